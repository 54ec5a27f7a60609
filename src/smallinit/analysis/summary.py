"""Sentences of the summary that state numbers, rendered from the results."""

from smallinit.analysis.collect import Results


def scope(results: Results) -> str:
    """How large the experiment was, what was left out, and what that rules out; Markdown."""
    runs = results.runs
    low, high = runs["parameters"].min() / 1e6, runs["parameters"].max() / 1e6
    tokens = runs["tokens"].max() / 1e6
    diverged = runs.loc[runs["diverged"], "run"].tolist()
    per_parameter = (runs["tokens"] / runs["parameters"]).median()
    seeds = runs["seed"].nunique()
    lines = [
        f"* {len(runs)} models of {low:.2f} to {high:.2f} million parameters, {tokens:.1f} million tokens each "
        f"(about {per_parameter:.1f} tokens a parameter), {seeds} seed{'s' if seeds > 1 else ''} of each.",
        f"* Diverged: {', '.join(diverged) if diverged else 'none'}.",
        "* The paper trains models of 100 million to 1.5 billion parameters at several hundred tokens a parameter. At "
        f"our size and {per_parameter:.1f} tokens a parameter, these runs show the *early* part of training.",
    ]
    if seeds == 1:
        lines.append("* With one seed there is no estimate of the variation between seeds: small effects may be luck.")
    if runs["size"].nunique() < 3:
        lines.append(
            f"* {runs['size'].nunique()} sizes do not support a fit of loss against size, so what the gain is worth in "
            "model size is not estimated."
        )
    return "\n".join(lines)
