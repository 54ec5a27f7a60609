"""Other people's trainers on the same model: Hugging Face Transformers and litgpt, set up as their users do.

Each starts from our initial weights and takes the same AdamW steps, so that its loss must come out as ours does.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smallinit import paths
from smallinit.batches import take
from smallinit.bench.case import Case
from smallinit.bench.contestants import Contestant, Tick, first_loss, order
from smallinit.init import initialize
from smallinit.model import Decoder
from smallinit.optimizer import adamw

# litgpt asks for older versions of what this project pins, so it gets a folder of its own, without its dependencies but
# for those that its model imports.
LITGPT = (
    "litgpt==0.5.13",
    "lightning==2.6.6",
    "lightning-utilities==0.15.3",
    "torchmetrics==1.9.0",
    "jsonargparse==4.41.0",
)


def litgpt_folder() -> Path:
    """Where `install_litgpt` puts the packages, apart from the project's environment."""
    return paths.STATE / "bench" / LITGPT[0].replace("==", "-")


def install_litgpt() -> None:
    """Download litgpt once (about 22 MB).

    Raises:
        OSError: pip failed, for instance without a network; the message is its last line.
    """
    folder = litgpt_folder()
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        place = Path(temporary) / "packages"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*command, "--target", str(place), *LITGPT], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"pip could not install litgpt: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        place.rename(folder)


def initial_model(case: Case) -> Decoder:
    """Our model at step 0."""
    model = Decoder(case.run.model)
    initialize(model, case.run.gamma, case.run.seed)
    return model


def llama(case: Case) -> nn.Module:
    """`LlamaForCausalLM` with our initial weights, as a run is exported, but to be trained."""
    from smallinit.hf.convert import to_transformers

    model = to_transformers(initial_model(case), "llama").train()
    model.config.use_cache = False
    return model


def litgpt(case: Case) -> nn.Module:
    """litgpt's `GPT` of the same shape, with our initial weights; its queries, keys and values are one matrix."""
    if case.packages is None:
        raise ImportError("litgpt is not installed")
    sys.path.append(case.packages)  # last: whatever the project pins comes first
    from litgpt.config import Config
    from litgpt.model import GPT

    ours, weights = case.run.model, initial_model(case).state_dict()
    config = Config(
        **{"block_size": ours.seq_len, "n_layer": ours.n_layers, "n_embd": ours.d_model, "n_head": ours.n_heads},
        **{"vocab_size": ours.vocab_size, "padded_vocab_size": ours.vocab_size, "intermediate_size": ours.d_ff},
        **{"norm_class_name": "RMSNorm", "norm_eps": ours.norm_eps, "rope_base": int(ours.rope_theta)},
        **{"rotary_percentage": 1.0, "parallel_residual": False, "bias": False, "mlp_class_name": "LLaMAMLP"},
    )
    names = {
        "attn.proj": "attention.o_proj",
        "mlp.fc_1": "ffn.ffn_gate",
        "mlp.fc_2": "ffn.ffn_up",
        "mlp.proj": "ffn.ffn_down",
        "norm_1": "attention_norm",
        "norm_2": "ffn_norm",
    }
    renamed = {
        "transformer.wte.weight": weights["embed.weight"],
        "transformer.ln_f.weight": weights["final_norm.weight"],
        "lm_head.weight": weights["head.weight"],
    }
    for block in range(ours.n_layers):
        for other, name in names.items():
            renamed[f"transformer.h.{block}.{other}.weight"] = weights[f"blocks.{block}.{name}.weight"]
        qkv = [weights[f"blocks.{block}.attention.{name}_proj.weight"] for name in "qkv"]
        renamed[f"transformer.h.{block}.attn.qkv.weight"] = torch.cat(qkv)
    model = GPT(config)
    model.load_state_dict(renamed)
    return model


def plain_loop(case: Case, model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tick], None]:
    """The loop of a tutorial: autocast, backward, clip, fused AdamW. `loss_of` takes ids and targets, (B, T) each."""
    config, batches = case.run.train, order(case)
    optimizer = adamw(model, config)
    torch.set_num_threads(config.threads)

    def train(tick: Tick) -> None:
        for step in range(case.run.steps):
            ids = batches.batch(step)  # (B, T + 1)
            with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
                loss = loss_of(ids[:, :-1], ids[:, 1:].contiguous())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
            optimizer.step()
            optimizer.zero_grad()
            tick()

    return train


def hf_loop(case: Case, compiled: bool) -> Contestant:
    """Llama of Transformers in a plain loop, with the loss that its own forward pass returns."""
    model = llama(case)
    called: Any = torch.compile(model) if compiled else model

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        return called(input_ids=ids, labels=ids, shift_labels=targets).loss

    return Contestant(plain_loop(case, model, loss_of), lambda: first_loss(case, lambda ids: model(ids).logits))


def litgpt_loop(case: Case, compiled: bool) -> Contestant:
    """litgpt's model and loss, put together as its `pretrain` does."""
    model = litgpt(case)
    from litgpt.utils import chunked_cross_entropy

    called: Any = torch.compile(model) if compiled else model

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        return chunked_cross_entropy(called(ids), targets)

    return Contestant(plain_loop(case, model, loss_of), lambda: first_loss(case, model))


def hf_trainer(case: Case) -> Contestant:
    """Llama of Transformers with its `Trainer`; it follows our order of batches and our optimizer settings."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    config, batches, model = case.run.train, order(case), llama(case)
    torch.set_num_threads(config.threads)

    class Windows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return case.run.steps * case.run.batch_size

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            ids = take(batches.tokens, batches.order[index : index + 1], batches.seq_len)[0]  # (T + 1,)
            return {"input_ids": ids[:-1], "labels": ids[:-1], "shift_labels": ids[1:]}

    class AfterStep(TrainerCallback):
        def __init__(self, tick: Tick):
            self.tick = tick

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.tick()

    def train(tick: Tick) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=case.run.batch_size,
                train_sampling_strategy="sequential",
                remove_unused_columns=False,
                max_steps=case.run.steps,
                learning_rate=config.peak_lr,
                lr_scheduler_type="constant",
                weight_decay=config.weight_decay,
                adam_beta1=config.adam_beta1,
                adam_beta2=config.adam_beta2,
                adam_epsilon=config.adam_eps,
                max_grad_norm=config.grad_clip,
                bf16=config.precision == "bfloat16",
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            )
            Trainer(model, settings, train_dataset=Windows(), callbacks=[AfterStep(tick)]).train()

    return Contestant(train, lambda: first_loss(case, lambda ids: model(ids).logits))
