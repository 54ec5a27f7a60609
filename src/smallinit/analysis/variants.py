"""What is known of variants by their names: which arm is like them, and which train at another rate on purpose."""

# The arm that stands for a variant which has no trials or no second seed of its own, and why it may.
SHARED = {
    "gelu": ("both", "same gate and ε; another feed-forward network"),
    "tied": ("both", "same gate and ε; the embedding is the head too"),
    "scaled": ("both", "same gate and ε; only the residual outputs start smaller"),
    "headwise": ("both", "same ε and a gate as well, one for each head"),
    "grouped": ("both", "same gate and ε; fewer keys and values"),
    "layernorm": ("both", "same gate and ε; LayerNorm divides by the same size, only the mean goes"),
    "moe": ("both", "same gate and ε; experts are as wide and start as small"),
    "slow": ("both", "the same but for the rate, which is lower on purpose"),
    "fast": ("both", "the same but for the rate, which is higher on purpose"),
    "slow_standard": ("standard", "the same but for the rate, which is lower on purpose"),
    "slow_eps": ("eps", "the same but for the rate, which is lower on purpose"),
    "slow_gate": ("gate", "the same but for the rate, which is lower on purpose"),
    "undecayed": ("both", "same gate and ε; at these rates decay takes little in a short training"),
    "long": ("both", "the same but for the tokens; the pilot was shorter than either"),
    "layernorm_standard": ("standard", "same ε, no gate; LayerNorm divides by the same size, only the mean goes"),
    "moe_standard": ("standard", "same ε, no gate; experts are as wide and start as small"),
    "literal": ("eps", "no gate; an ε of 1e-5 attenuates hardly anything at these widths"),
}
# Times the tuned rate of the arm that stands for them, as `rate_factor` in params.yaml.
OTHER_RATES = {"slow": 0.5, "fast": 2.0, "slow_standard": 0.5, "slow_eps": 0.5, "slow_gate": 0.5}
