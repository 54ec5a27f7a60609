"""A trained model as lm-eval's LM: the same scores as in the stage `benchmark`."""

from collections.abc import Sequence

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs

from smallinit.evaluation.scoring import Scorer


class CheckpointLM(LM):
    """Answers lm-eval's three kinds of requests with a Scorer.

    The numbers are those of lm-eval's own `hf` model with `add_bos_token=True` on the exported run, but in two cases
    that it cannot score: a token that spans the end of the context (see `Scorer.split`), and a continuation that is
    longer than the model's window.
    """

    def __init__(self, scorer: Scorer):
        super().__init__()
        self.scorer = scorer

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """log p(continuation | context) in nats, and whether it is what greedy decoding writes."""
        scores = self.scorer.loglikelihoods([request.args for request in requests])
        return [(-nats, greedy) for nats, greedy in zip(scores["nats"], scores["greedy"].tolist(), strict=True)]

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """log p(text) in nats."""
        return [-nats for nats in self.scorer.rolling([request.args[0] for request in requests])["nats"]]

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """What greedy decoding writes, at most half a window: the other half is for the prompt.

        Raises:
            ValueError: the task wants samples.
        """
        half = self.scorer.seq_len // 2
        groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for number, request in enumerate(requests):
            wanted = normalize_gen_kwargs(request.args[1], default_max_gen_toks=half)
            if wanted["do_sample"]:
                raise ValueError(
                    f"{request.task_name}: samples its texts (do_sample), but only greedy decoding is there"
                )
            groups.setdefault((min(wanted["max_gen_toks"], half), tuple(wanted["until"])), []).append(number)
        texts: dict[int, str] = {}
        for (max_tokens, until), numbers in groups.items():
            prompts = [requests[number].args[0] for number in numbers]
            texts.update(zip(numbers, self.scorer.generate(prompts, max_tokens, until), strict=True))
        return [texts[number] for number in range(len(requests))]
