"""Sentences of the summary that state numbers, rendered from the results."""

from collections.abc import Sequence

import pandas as pd

from smallinit.analysis import answers, condensation, controls, rate_controls
from smallinit.analysis import rates as tried
from smallinit.analysis.claim_needs import BOTH
from smallinit.analysis.claims import CONTRADICTED, NOT_SEEN, NOT_TESTED, REPLICATED
from smallinit.analysis.collect import Results
from smallinit.analysis.effective_size import Worth, effective_size, percent
from smallinit.analysis.ladder import SMALL, Arms
from smallinit.analysis.resamples import Refusal
from smallinit.analysis.verdicts import Finding


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def span(values: pd.Series, form: str) -> str:
    """The range of some numbers, or the one number if they print alike."""
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"


def counts(findings: Sequence[Finding]) -> str:
    """How many claims have which verdict, and which; Markdown, a line a verdict."""
    lines = []
    for verdict in (REPLICATED, NOT_SEEN, CONTRADICTED, NOT_TESTED):
        numbers = [finding.claim.number for finding in findings if finding.verdict == verdict]
        listed = f" ({', '.join(numbers)})" if numbers else ""
        lines.append(f"* **{verdict}**: {len(numbers)}{listed}")
    return f"Of {plural(len(findings), 'claim')} of the paper:\n\n" + "\n".join(lines)


# -------------------------------------------------------------------------------------------------------------- scope
def scope(arms: Arms) -> str:
    """How large the experiment was, what was left out, and what that rules out; Markdown."""
    results = arms.results
    runs = results.runs
    diverged = [f"`{run}`" for run in runs.loc[runs["diverged"], "run"]]
    per_parameter = runs["tokens"] / runs["parameters"]
    lines = [
        f"* **Models.** {plural(len(runs), 'run')} of {plural(runs['size'].nunique(), 'size')}, "
        f"{span(runs['parameters'] / 1e6, '.2f')} million parameters, of which embeddings are "
        f"{span(1 - runs['parameters_without_embeddings'] / runs['parameters'], '.0%')}. The paper's have "
        "100 million to 1.5 billion, of which embeddings are a small part.",
        f"* **Data.** {span(runs['tokens'] / 1e6, '.1f')} million tokens each, {span(per_parameter, '.1f')} a "
        "parameter. The paper has several hundred: these runs show the *early* part of training.",
        f"* **Seeds.** {seeds(arms)}",
        f"* **Learning rates.** {rates(results)}",
        f"* **Diverged.** {', '.join(diverged) or 'None'}.",
    ]
    return "\n".join(lines)


def seeds(arms: Arms) -> str:
    """Which comparisons of two gammas have several seeds, and what follows for the others; sentences."""
    pairs = arms.results.runs[["size", "variant"]].drop_duplicates().itertuples(index=False)
    found = {f"`{size}-…-{variant}`": len(arms.seeds(size, variant)) for size, variant in pairs}
    several = [f"{name} ({count})" for name, count in found.items() if count > 1]
    if not several:
        return "One of each run, so there is no estimate of the variation between seeds: small effects may be luck."
    return (
        f"Several of {', '.join(several)}. All other comparisons have one, and intervals over held-out documents only: "
        f"there, small effects may be luck. {controls.nulls_text(controls.seed_nulls(arms), controls.seed_gains(arms))}"
    )


def rates(results: Results) -> str:
    """At which rates each gamma ran, and whether rate and gamma can be told apart; sentences."""
    by_gamma = results.runs.groupby("gamma")["peak_lr"]
    shown = ", ".join(f"{span(own, 'g')} at γ = {gamma:g}" for gamma, own in by_gamma)
    return (
        f"Peak rates are {shown}: each arm's own, from a pilot of short trainings with one seed, carried over to other "
        f"widths by a power law (22_pilot). {rate_controls.rates_text(results.runs)}"
    )


# ----------------------------------------------------------------------------------------------------- beside the rule
def worth(arms: Arms, variant: str = BOTH) -> str:
    """What the gain is worth in model size, or why that is not stated; a sentence."""
    found = effective_size(arms, variant)
    if isinstance(found, Refusal):
        return f"What γ = 1 is worth in model size, with both interventions, is not stated: {found}."
    if isinstance(found.pooled, Refusal):
        return f"What γ = 1 is worth in model size, with both interventions, is not stated: it is {found.pooled}."
    return (
        f"With both interventions, γ = 1 is worth **{percent(found.pooled)}** in parameters, one factor for "
        f"{', '.join(found.names)} with its interval over documents; {_seeds_of_worth(found)}."
    )


def _seeds_of_worth(found: Worth) -> str:
    return "one seed" if found.seeds[-1] is None else f"over seeds {percent(found.seeds[-1])}"


def one_rate(arms: Arms, trials: pd.DataFrame) -> str:
    """Which gamma the pilot's short trainings prefer, at one rate for both and with each at its own; sentences.

    trials: of `rates.read`.
    """
    fixed = tried.at_fixed(tried.at_main_batch(trials))
    fixed = fixed[fixed["gamma"] == SMALL]
    if fixed.empty:
        return "The pilot has tried no rate at both γ."
    null = arms.loss_null.reach({})
    turned, pairs = tried.flips(fixed, null)
    tuned = fixed.drop_duplicates(tried.FIXED[:5])["tuned"].dropna()
    signs = [tried.sign(gain, null) for gain in tuned]
    luck = "" if null is None else f", gains up to {null:.3f} nats, as far as two seeds of one arm differ, not counted"
    return (
        f"In the pilot's short trainings, with one rate for both γ, who wins turns with that rate in {turned} of "
        f"{plural(pairs, 'comparison')}; with a rate for each, γ = 1 is ahead in {signs.count(1)} and behind in "
        f"{signs.count(-1)} of {len(signs)}{luck}."
    )


def hidden(arms: Arms) -> str:
    """Whether what training adds to the weights is simple at either start; sentences."""
    pair = condensation.pictured(arms)
    table = condensation.changes(pair) if pair else pd.DataFrame()
    if table.empty:
        return (
            "Whether training adds something simpler at γ = 1, or the same thing at both with less noise to hide it, "
            "was not measured: name the `both` runs of one size in `snapshots` in `params.yaml`."
        )
    return f"{condensation.change_sentence(table)} (1: as many directions as a random matrix)."


def chance(arms: Arms) -> str:
    """Whether the models answer questions with choices better than by chance; a sentence."""
    asked = answers.load(arms).summary
    choices = asked.dropna(subset=["accuracy_norm", "chance"]) if len(asked) else asked
    if choices.empty:
        return "No model has been asked a benchmark with choices."
    distance = (choices["accuracy_norm"] - choices["chance"]) / choices["accuracy_norm_se"]
    above, below = int((distance > 2).sum()), int((distance < -2).sum())
    return (
        f"Of {len(choices)} accuracies ({plural(choices['task'].nunique(), 'task')} with choices, "
        f"{plural(choices['run'].nunique(), 'model')}), {above} are more than two standard errors above chance and "
        f"{below} below."
    )
