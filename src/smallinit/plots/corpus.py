"""Figures and tables of the corpus, from its small artifacts: manifest.json and lengths.csv."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from smallinit.data.arithmetic import LEVELS, train_documents
from smallinit.data.config import Generated
from smallinit.plots.style import BLUE, LANGUAGE_COLORS, LANGUAGE_NAMES, markdown

Manifest = dict[str, Any]


def problem_table(generated: Mapping[str, Generated], seed: int) -> str:
    """The first training problem of each level, one column a generator, as a Markdown table; or that there is none."""
    if not generated:
        return "This corpus has no texts made by rule: none are named under `generated` in its entry in `corpora`."
    table = pd.DataFrame({"level": LEVELS})
    for name, generator in generated.items():
        first: dict[int, str] = {}
        for problem in train_documents(generator.language, seed):
            first.setdefault(problem.level, problem.text.replace("\n", "<br>"))
            if len(first) == len(LEVELS):
                break
        table[name] = table["level"].map(first)
    return markdown(table)


def source_table(manifest: Manifest) -> pd.DataFrame:
    """One row a source, English first: licence, documents by fate, training and held-out tokens, bytes per token."""
    rows = []
    for entry in manifest["sources"]:
        documents, train, heldout = entry["documents"], entry["train"], entry["heldout"]
        rows.append(
            {
                "source": entry["source"],
                "language": entry["language"],
                "licence of the text": entry["licence"],
                **{name: documents[name] for name in ("read", "short", "reserved", "duplicate", "capped")},
                "train documents": train["documents"],
                "held-out documents": heldout["documents"],
                "train tokens": train["tokens"],
                "held-out tokens": heldout["tokens"],
                "bytes per token": bytes_per_token(train),
            }
        )
    return pd.DataFrame(rows).sort_values(["language", "train tokens"], ascending=[True, False], ignore_index=True)


def bytes_per_token(sizes: dict[str, int]) -> float:
    """UTF-8 bytes of text per token of text; the <|endoftext|> before each document holds none. NaN without text."""
    tokens = sizes["tokens"] - sizes["documents"]
    return sizes["bytes"] / tokens if tokens else float("nan")


def tokens_by_source(manifest: Manifest) -> Figure:
    """Training tokens of each source as horizontal bars, coloured by language."""
    table = source_table(manifest).sort_values("train tokens")
    total = manifest["train"]["tokens"]
    unit, name = (1e6, "million") if total >= 2e6 else (1e3, "thousand")
    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.34 * len(table)), layout="constrained")
    bars = axes.barh(table["source"], table["train tokens"] / unit, color=table["language"].map(LANGUAGE_COLORS))
    axes.bar_label(bars, [f"{tokens / total:.0%}" for tokens in table["train tokens"]], padding=4, fontsize=9)
    axes.set(xlabel=f"training tokens ({name})", xlim=(0, 1.1 * table["train tokens"].max() / unit))
    axes.grid(axis="y", visible=False)
    shares = [f"{e['train']['tokens'] / total:.0%} {LANGUAGE_NAMES[e['language']]}" for e in manifest["languages"]]
    axes.set_title(f"{total / unit:.1f} {name} training tokens: {', '.join(shares)}")
    axes.legend(handles=_language_handles(manifest), loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def document_lengths(lengths: pd.DataFrame, manifest: Manifest) -> Figure:
    """Distribution of document lengths, one row of bars a source; a black tick marks the bin of the median.

    lengths: columns source, low, high, documents; bins [low, high) in tokens, log-spaced.
    """
    languages = {entry["source"]: entry["language"] for entry in manifest["sources"]}
    shown = lengths[(lengths["documents"] > 0) & (lengths["source"].isin(languages))]
    common = shown[shown["documents"] >= 0.005 * shown.groupby("source")["documents"].transform("sum")]
    limits = (common["low"].min(), np.minimum(common["high"], 2 * common["low"]).max())
    medians = {name: _median_bin(group) for name, group in shown.groupby("source")}
    order = sorted(medians, key=medians.__getitem__)
    figure, rows = plt.subplots(
        len(order), 1, figsize=(7, 0.9 + 0.5 * len(order)), sharex=True, layout="constrained", squeeze=False
    )
    for axes, name in zip(rows[:, 0], order, strict=True):
        group = shown[shown["source"] == name]
        widths = np.minimum(group["high"], 2 * group["low"]) - group["low"]  # the last bin has no end
        share = group["documents"] / group["documents"].sum()
        color = LANGUAGE_COLORS[languages[name]]
        axes.bar(group["low"], share / share.max(), width=widths, align="edge", color=color, lw=0)
        axes.axvline(medians[name], color="black", lw=1.6)
        axes.set(xscale="log", yticks=[], ylim=(0, 1.1), xlim=limits)
        axes.tick_params(axis="x", which="minor", bottom=False)
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
        axes.spines["left"].set_visible(False)
    rows[-1, 0].set_xlabel("length of a document (tokens); height: documents, scaled per source; line: median")
    rows[-1, 0].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    short, long = order[0], order[-1]
    message = f"Half of {short} is longer than about {_two_digits(medians[short])} tokens"
    if long != short:
        message = (
            f"The median document has about {_two_digits(medians[short])} tokens in {short}, "
            f"{_two_digits(medians[long])} in {long}"
        )
    rows[0, 0].set_title(message)
    return figure


def token_sizes(manifest: Manifest) -> Figure:
    """UTF-8 bytes (left) and characters (right) of text per token: training as dots, held-out as rings."""
    table = source_table(manifest).iloc[::-1]
    entries = {entry["source"]: entry for entry in manifest["sources"]}
    figure, panels = plt.subplots(1, 2, figsize=(9, 1.1 + 0.34 * len(table)), sharey=True, layout="constrained")
    for axes, size in zip(panels, ("bytes", "characters"), strict=True):
        for name, language in zip(table["source"], table["language"], strict=True):
            color = LANGUAGE_COLORS[language]
            for part, fill, width in (("train", color, 5), ("heldout", "none", 10)):  # a ring around the dot
                value = bytes_per_token(entries[name][part] | {"bytes": entries[name][part][size]})
                axes.plot(value, name, "o", ms=width, mec=color, mfc=fill, mew=1.5)
        axes.set(xlabel=f"{size} per token")
        axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
    means = [
        f"{bytes_per_token(entry['train']):.2f} bytes of {LANGUAGE_NAMES[entry['language']]}"
        for entry in manifest["languages"]
    ]
    figure.suptitle(f"A token holds {' and '.join(means)}", x=0.01, ha="left", fontsize="medium")
    filled = [_dot(5, "#666666", "training"), _dot(10, "none", "held out")]
    panels[1].legend(handles=[*_language_handles(manifest), *filled], loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _median_bin(histogram: pd.DataFrame) -> float:
    """The geometric middle of the bin in which the median document lies."""
    cumulated = histogram["documents"].cumsum()
    row = histogram[cumulated >= cumulated.iloc[-1] / 2].iloc[0]
    return float(np.sqrt(row["low"] * min(row["high"], 2 * row["low"])))


def _two_digits(value: float) -> str:
    """A number rounded to two digits, because a bin knows no more: 14,000."""
    digits = max(0, int(np.log10(value)) - 1)
    return f"{round(value / 10**digits) * 10**digits:,}"


def _language_handles(manifest: Manifest) -> list[Patch]:
    languages = [entry["language"] for entry in manifest["languages"]]
    return [Patch(color=LANGUAGE_COLORS[language], label=LANGUAGE_NAMES[language]) for language in languages]


def _dot(size: float, fill: str, label: str) -> Line2D:
    return Line2D([], [], ls="", marker="o", ms=size, mec="#666666", mfc=fill, mew=1.5, label=label)


def token_frequencies(counts: np.ndarray) -> Figure:
    """How often each token occurs, from the most to the least frequent, on log axes.

    counts: (vocab_size,) occurrences of each token id in the training tokens.
    """
    ordered = np.sort(counts)[::-1]
    half = int(np.searchsorted(ordered.cumsum(), ordered.sum() / 2)) + 1
    figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
    axes.plot(np.arange(1, len(ordered) + 1), ordered, color=BLUE)
    axes.axvline(half, color="black", lw=1, ls="--")
    axes.set(xscale="log", yscale="log", xlabel="rank of the token", ylabel="occurrences in the training tokens")
    axes.set_title(f"{half} of {len(ordered):,} tokens (left of the dashed line) make half of all occurrences")
    plt.close(figure)  # shown once, by the notebook
    return figure
