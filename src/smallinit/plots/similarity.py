"""Row cosines in motion: a filmstrip, and an animation with the same bytes each time."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from PIL import Image

from smallinit import paths
from smallinit.evaluation.similarity import SCALE, Matrix, Similarity, log_spaced
from smallinit.files import replacing
from smallinit.plots.condensation import DPI, KIND_NAMES
from smallinit.plots.style import gamma_color, headline

# Orange: the same direction, purple: the opposite; no colours of a gamma. In few steps, so that noise is one white.
COSINES = plt.get_cmap("PuOr_r", 11)
SHADES = 6  # of each colour of words in the animation
SHOWN_MS, LAST_MS = 700, 3000


def matrix_name(matrix: Matrix) -> str:
    """For instance `W_q, block 1`; blocks are counted from 1."""
    name = KIND_NAMES.get(matrix.kind, matrix.kind)
    return name if matrix.layer < 0 else f"{name}, block {matrix.layer + 1}"


def reordered(cosines: np.ndarray) -> np.ndarray:
    """Cosines (n, n) of a frame, rows and columns in the order of the top eigenvector: rows that agree lie together.

    The sign of an eigenvector is arbitrary: its largest entry is made positive.
    """
    top = np.linalg.eigh(cosines.astype(float))[1][:, -1]
    order = np.argsort(top * np.sign(top[np.abs(top).argmax()]), kind="stable")
    return cosines[np.ix_(order, order)]


def draw_cosines(axes: Axes, cosines: np.ndarray) -> AxesImage:
    """One matrix of cosines, reordered, without ticks."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes.imshow(reordered(cosines) / SCALE, cmap=COSINES, vmin=-1, vmax=1, interpolation="none")


def common_steps(pair: Mapping[float, Similarity]) -> list[int]:
    """Steps at which all of the runs have a frame."""
    return sorted(set.intersection(*(set(pictures.steps) for pictures in pair.values())))


def filmstrip(pair: Mapping[float, Similarity], count: int = 6) -> Figure:
    """Cosines of W_q and of the FFN's up matrix of the first block, at `count` steps, a row a gamma."""
    first = next(iter(pair.values()))
    shown = [next(i for i, m in enumerate(first.matrices) if m.kind == kind) for kind in ("query", "ffn_up")]
    steps = log_spaced(common_steps(pair), count)
    rows = [(number, gamma) for number in shown for gamma in pair]
    size = (1.75 * len(steps) + 1.2, 1.95 * len(rows))
    figure, panels = plt.subplots(len(rows), len(steps), figsize=size, squeeze=False, layout="constrained", dpi=DPI)
    for line, (number, gamma) in zip(panels, rows, strict=True):
        pictures = pair[gamma]
        for axes, step in zip(line, steps, strict=True):
            frame = pictures.steps.index(step)
            image = draw_cosines(axes, pictures.cosines[frame, number])
            axes.set_title(f"stable rank {pictures.stable_ranks[frame][number]:.1f}", fontsize=9, loc="center")
        line[0].set_ylabel(f"{matrix_name(first.matrices[number])}\nγ = {gamma:g}", color=gamma_color(gamma))
    for axes, step in zip(panels[0], steps, strict=True):
        tokens = first.tokens[first.steps.index(step)]
        axes.set_title(
            f"step {step:,}\n{millions(tokens)} tokens\n{axes.get_title('center')}", fontsize=9, loc="center"
        )
    figure.colorbar(image, ax=panels, label="cosine of two rows", shrink=0.5, aspect=30)
    headline(figure, *film_message(pair, shown[0]))
    return figure


def film_message(pair: Mapping[float, Similarity], number: int) -> tuple[str, str]:
    """Title and subtitle: the stable rank of one matrix on its way, for each gamma."""
    parts = []
    for gamma, pictures in sorted(pair.items(), reverse=True):
        ranks = [frame[number] for frame in pictures.stable_ranks]
        lowest, at_step = min(zip(ranks, pictures.steps, strict=True))
        parts.append(f"γ = {gamma:g}: {ranks[0]:.1f} → {lowest:.1f} (step {at_step:,}) → {ranks[-1]:.1f}")
    name = matrix_name(next(iter(pair.values())).matrices[number])
    return (
        f"Stable rank of {name}, start → lowest → end. " + "; ".join(parts),
        "one seed; each frame in the order of the top eigenvector of its own cosines: blocks are rows that agree",
    )


def millions(tokens: int) -> str:
    """Tokens in millions, two digits at least."""
    return f"{tokens / 1e6:.2f} M"


def half(part: SubFigure, gamma: float, pictures: Similarity) -> list[tuple[Axes, AxesImage]]:
    """The panels of one gamma in the animation, two a row."""
    part.suptitle(f"γ = {gamma:g}", color=gamma_color(gamma), fontweight="bold", fontsize=12)
    panels = part.subplots(-(-len(pictures.matrices) // 2), 2, squeeze=False).ravel()
    for axes in panels[len(pictures.matrices) :]:
        axes.set_visible(False)
    return [(axes, draw_cosines(axes, cosines)) for axes, cosines in zip(panels, pictures.cosines[0], strict=False)]


def frames(pair: Mapping[float, Similarity]) -> list[np.ndarray]:
    """The animation's frames, (height, width, 3) uint8 each: all matrices at one step, the gammas side by side."""
    figure = plt.figure(figsize=(9.6, 5.4), dpi=80, layout="constrained")
    title, rest = figure.subfigures(2, 1, height_ratios=[1, 14], squeeze=False)[:, 0]
    text = title.text(0.5, 0.4, "", ha="center", va="center", fontsize=13)
    parts = rest.subfigures(1, len(pair), squeeze=False)[0]
    drawn = {g: half(part, g, pictures) for part, (g, pictures) in zip(parts, sorted(pair.items()), strict=True)}
    made = []
    for step in common_steps(pair):
        for gamma, pictures in pair.items():
            frame = pictures.steps.index(step)
            for number, (axes, image) in enumerate(drawn[gamma]):
                image.set_data(reordered(pictures.cosines[frame, number]) / SCALE)
                rank = pictures.stable_ranks[frame][number]
                axes.set_title(f"{matrix_name(pictures.matrices[number])}: stable rank {rank:.1f}", fontsize=9)
            text.set_text(f"step {step:,} · {millions(pictures.tokens[frame])} tokens")
        figure.canvas.draw()
        made.append(np.asarray(figure.canvas.buffer_rgba())[..., :3].copy())  # type: ignore[attr-defined]
        figure.set_layout_engine("none")  # the first frame's: panels do not move
    plt.close(figure)
    return made


def palette(gammas: Iterable[float]) -> Image.Image:
    """The colours of the animation, the same in all frames: cosines, black and gammas, paler for edges of letters."""
    cosines = COSINES(np.arange(COSINES.N))[:, :3]
    words = np.array([to_rgb(color) for color in ("black", *map(gamma_color, gammas))])
    colors = [cosines, *(1 - depth * (1 - words) for depth in np.linspace(1, 0, SHADES))]
    image = Image.new("P", (1, 1))
    image.putpalette((255 * np.concatenate(colors)).round().astype(np.uint8).tobytes())
    return image


def animate(pair: Mapping[float, Similarity], name: str, folder: Path | None = None) -> Path:
    """Write `figures/<name>.gif`, log-spaced steps of training in a loop; the same bytes each time."""
    colors = palette(pair)
    images = [Image.fromarray(frame).quantize(palette=colors, dither=Image.Dither.NONE) for frame in frames(pair)]
    path = (folder or paths.FIGURES) / f"{name}.gif"
    shown = [SHOWN_MS] * (len(images) - 1) + [LAST_MS]
    with replacing(path) as temporary:
        images[0].save(temporary, "GIF", save_all=True, append_images=images[1:], duration=shown, loop=0)
    return path
