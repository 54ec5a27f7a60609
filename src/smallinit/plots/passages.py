"""Passages of text coloured by what two runs make of each token: a page to hover over, and a picture."""

import html
import importlib.util
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, get_font
from matplotlib.patches import Rectangle

from smallinit import paths
from smallinit.analysis.passages import Passage
from smallinit.analysis.token_pairs import Pair
from smallinit.files import replacing
from smallinit.plots.style import BLUE, LANGUAGE_NAMES, RED

# From gamma = 0.5's colour over white to gamma = 1's, pale enough at the ends to read black text on them.
COLORS = LinearSegmentedColormap.from_list("gap", ["#5aa9dc", "#ffffff", "#ef9253"], N=257)
SIZE, LINE = 9.0, 15.0  # of the picture's text, in points
ROWS = 2  # of a passage that the picture shows; the page has all
FINE = 16  # widths are measured that much larger, where hinting to whole pixels no longer matters


def cjk_font() -> FontProperties:
    """A font with Latin and Chinese characters, the same on every machine: Noto Sans CJK, from the package `mplfonts`.

    The package is only looked for: importing it needs others that nothing else here needs.

    Raises:
        FileNotFoundError: it is not installed.
    """
    found = importlib.util.find_spec("mplfonts")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "fonts" / "NotoSansCJKsc-Regular.otf"
        if path.exists():
            return FontProperties(fname=str(path))
    raise FileNotFoundError(
        "no font with Chinese characters: install mplfonts as pinned in environment.yml, `make env`"
    )


def title(passages: list[Passage], pair: Pair) -> str:
    """What is compared, and how the two do on these very passages."""
    units = pd.concat([passage.units for passage in passages])
    quoted = f"{len(units)} tokens and characters of {len(passages)} passages"
    return f"{pair.small} against {pair.base}: mean Δ of {quoted} is {units['gap'].mean():+.3f}"


def chosen(passages: list[Passage], each: int) -> list[Passage]:
    """`each` passages of every language for a picture of one page, of different sources where there are some."""
    found = []
    for language in sorted({passage.language for passage in passages}):
        own = [passage for passage in passages if passage.language == language]
        sources = [passage.source for passage in own]
        turn = [sources[:number].count(source) for number, source in enumerate(sources)]  # which of its source
        found += [own[number] for number in np.argsort(turn, kind="stable")[:each]]
    return found


def color(gap: float) -> str:
    """The colour of a symmetric probability gap in [-1, 1], as #rrggbb."""
    return to_hex(COLORS((gap + 1) / 2))


def hover(text: str, tokens: int, p_base: float, p_small: float, gap: float) -> str:
    """What a page says about one token, or one character of several tokens."""
    what = f"“{text}”" + (f", one character of {tokens} tokens" if tokens > 1 else "")
    return f"{what}\nγ = 0.5: p = {p_base:.3g}\nγ = 1: p = {p_small:.3g}\nΔ = {gap:+.2f}"


def heading(passage: Passage) -> str:
    """Where a passage is from."""
    language = LANGUAGE_NAMES.get(passage.language, passage.language)
    return f"{language}: {passage.source}, held-out document {passage.document}"


def article(passage: Passage) -> str:
    """One passage as HTML."""
    spans = [
        f'<span style="background:{color(gap)}" title="{html.escape(hover(text, tokens, p_base, p_small, gap))}">'
        f"{html.escape(text)}</span>"
        for text, tokens, p_base, p_small, gap in passage.units.itertuples(index=False, name=None)
    ]
    return f'<h2>{html.escape(heading(passage))}</h2>\n<p lang="{passage.language}">{"".join(spans)}</p>\n'


def page(passages: list[Passage], title: str) -> str:
    """A web page of its own, without a script or anything from elsewhere."""
    steps = ", ".join(color(step / 10 - 1) for step in range(21))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{html.escape(title)}</title>
<style>
body {{ max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font-family: sans-serif; color: #111; background: #fff; }}
p[lang] {{ line-height: 1.9; font-size: 1.1rem; white-space: pre-wrap; overflow-wrap: anywhere; }}
p[lang] span {{ padding: 0.15em 0; }}
p[lang] span:hover {{ outline: 2px solid #111; }}
h1 {{ font-size: 1.4rem; }}
h2 {{ font-size: 1rem; margin-top: 2rem; }}
.bar {{ height: 1rem; background: linear-gradient(to right, {steps}); border: 1px solid #999; }}
.ends {{ display: flex; justify-content: space-between; }}
</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p>Colour: Δ = (p₁ − p₀.₅) / (p₁ + p₀.₅) of each token, given the text before it. Rest the pointer on a token for its
probabilities. A character that is written in several tokens is shown as one.</p>
<div class="bar"></div>
<div class="ends"><span>−1: only γ = 0.5 expects it</span><span>0</span><span>only γ = 1 expects it: +1</span></div>
{"".join(article(passage) for passage in passages)}</body>
</html>
"""


def save_page(passages: list[Passage], title: str, name: str, folder: Path | None = None) -> Path:
    """Write `figures/<name>.html`; returns its path."""
    path = (folder or paths.FIGURES) / f"{name}.html"
    with replacing(path) as temporary:
        temporary.write_text(page(passages, title), encoding="utf-8")
    return path


def advance(text: str, font: FontProperties) -> float:
    """Width of `text` in points at SIZE, spaces at its ends included."""
    drawn = get_font(str(font.get_file()))
    drawn.set_size(SIZE, 72 * FINE)
    widths = []
    for string in (f"|{text}|", "||"):
        drawn.set_text(string)
        widths.append(drawn.get_width_height()[0] / 64 / FINE)
    return widths[0] - widths[1]


def lines(passage: Passage, width: float, font: FontProperties) -> list[list[tuple[str, float, float, float]]]:
    """The passage broken into lines of at most `width` points: (text, left, width, gap) of each unit."""
    broken: list[list[tuple[str, float, float, float]]] = [[]]
    left = 0.0
    for text, gap in zip(passage.units["text"], passage.units["gap"], strict=True):
        shown = text.replace("\n", "¶")
        wide = advance(shown, font)
        if left + wide > width and left:
            broken.append([])
            left = 0.0
        broken[-1].append((shown, left, wide, gap))
        left += wide
    return broken


def picture(passages: list[Passage], title: str, width: float = 760.0) -> Figure:
    """The beginnings of the passages one below the other, with a colour bar; all lengths in points."""
    font = cjk_font()
    laid = [lines(passage, width, font)[:ROWS] for passage in passages]
    height = sum(len(block) + 2 for block in laid) * LINE + 60
    figure = plt.figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.text(0, 12, title, fontsize=12, fontweight="bold")
    top = 36.0
    for passage, block in zip(passages, laid, strict=True):
        axes.text(0, top, heading(passage), fontsize=9, color="#444444")
        top += LINE
        for line in block:
            for text, left, wide, gap in line:
                axes.add_patch(Rectangle((left, top - 11), wide, LINE - 0.5, color=color(gap), lw=0))
                axes.text(left, top, text, fontproperties=font, fontsize=SIZE, parse_math=False)
            top += LINE
        top += LINE
    bar = figure.add_axes((0.3, 14 / height, 0.4, 9 / height))
    figure.colorbar(ScalarMappable(Normalize(-1, 1), COLORS), cax=bar, orientation="horizontal", ticks=[-1, 0, 1])
    bar.tick_params(labelsize=8)
    for place, text, ink, side in (
        (0.29, "γ = 0.5 expects it more", BLUE, "right"),
        (0.71, "γ = 1 expects it more", RED, "left"),
    ):
        figure.text(place, 17 / height, text, fontsize=9, color=ink, ha=side)
    return figure
