"""No result is typed by hand: prose in notebooks and in README holds no number that looks like one.

A result that stands in prose as text goes stale with the next run. The rule, for the Markdown cells of `notebooks/` and
for README outside generated blocks:

1. Left out are code (fenced and `inline`), formulas ($...$), addresses of links, HTML, arXiv numbers, and numbers that
   follow the symbol of a setting: "γ = 0.5 and 1", "γ of 0.25 … 1.5", "ε is 1e-12", "version 3.11", "at 95 %".
2. In the rest, these look like results: a number with a decimal point or in scientific notation; a share ("12 %",
   "12 percent", "5 of 6"); a number with a unit of results (nats, bits, points, halvings, standard errors); a factor
   ("2 times", "3×", "3x faster").

Other integers pass: years, counts, widths, sections, steps, sizes of downloads, minutes. What is no result and yet
looks like one, such as a threshold that defines a measure, is in ALLOWED with its reason.
"""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
NUMBER = r"[+−±-]?\d[\d,]*(?:\.\d+)?(?:e[+−-]?\d+)?"
LIST = rf"{NUMBER}(?:\s*(?:,|and|or|to|…|–|against)\s*{NUMBER})*"
SYMBOL = r"(?:γ|ε|β|λ|η|σ|gamma|eps)\**"
UNIT = r"nats?|bits?|halvings?|doublings?|(?:percentage )?points?|standard (?:errors?|deviations?)|orders? of magnitude"
LEFT_OUT = [
    r"```.*?```",
    r"<!-- generated.*?<!-- end of generated -->",
    r"<[^>\n]+>",
    r"\$\$.*?\$\$",
    r"\$[^$]+\$",
    r"`[^`]+`",
    r"\]\([^)]*\)",
    r"arXiv[: ]+\d{4}\.\d{4,5}",
    r"(?:[Pp]ython3? \(?|version )\d+(?:\.\d+)+",
    r"\bat 95 ?%",  # a level of confidence
    rf"{SYMBOL}\s*(?:=|≥|≤|<|>|∈|of|is|from)?\s*[{{(]?{LIST}[}})]?",
]
RESULT = re.compile(
    rf"(?<![\w.]){NUMBER}\s?(?:%|(?:percent|per cent|times|-?fold)\b|×(?!\s?\d)|x(?= (?:as|faster|slower|larger)))"
    rf"|(?<![\w.]){NUMBER} (?:{UNIT})\b"
    r"|(?<![\w.])\d+ (?:of|out of) (?:the |all )?\d+"
    r"|(?<![\w.])[+−±-]?\d[\d,]*\.\d+"
    r"|(?<![\w.])\d+e[+−-]?\d+"
)
ALLOWED = {
    "10_ladder.ipynb": {
        "one 44 % larger": "a law that the cell below makes up, to check the code on a known answer",
        "as worth 44 %": "the same",
    },
    "13_gate.ipynb": {
        "A gate of 0.5": "a sigmoid at zero",
        "values below 0.1": "the threshold in the definition of a measure",
    },
    "17_condensation.ipynb": {"pairs above 0.7": "the threshold in the definition of a measure"},
}


def results_in(text: str) -> list[str]:
    """What looks like a result in a Markdown text, each with the words around it."""
    for pattern in LEFT_OUT:
        text = re.sub(pattern, " ▢ ", text, flags=re.S)
    return [text[max(0, m.start() - 30) : m.end() + 20].replace("\n", " ").strip() for m in RESULT.finditer(text)]


def prose(path: Path) -> str:
    """The Markdown cells of a notebook, or the text of another file."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


TEXTS = [*sorted((ROOT / "notebooks").glob("*.ipynb")), ROOT / "README.md"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_result_is_typed_into_prose(path: Path) -> None:
    text = prose(path)
    for phrase in ALLOWED.get(path.name, {}):
        assert phrase in text, f"ALLOWED has {phrase!r} of {path.name}, which no longer says so: remove it there"
        text = text.replace(phrase, "")
    found = results_in(text)
    assert not found, (
        f"{path.name} has numbers that look like results typed by hand: {found}. Render them from data, for instance "
        "display(Markdown(f'...')); a setting belongs in `code` or a formula; else see ALLOWED in tests/test_prose.py"
    )


@pytest.mark.parametrize(
    "planted",
    [
        "The loss falls by 0.14 nats.",
        "It wins by 12 %.",
        "It wins by 12% at size s.",
        "a model that is 44 percent larger",
        "γ = 1 wins in 5 of 6 comparisons",
        "the gain is 3 nats",
        "a loss of 4.53 at the end, lower than before",
        "twice as good, 3 times as fast",
        "training is 3x faster",
        "it is 2.5× smaller",
        "at γ = 0.5 the loss is 4.7",  # a setting and a result in one sentence
        "the change has a p value of 3e-5",
        "two\n12.5\nlines",
        "[the gain](10_ladder.ipynb) is −0.02",
        "| s | 4.51 | 4.49 |",
        "falls by 2 halvings",
    ],
)
def test_planted_results_are_caught(planted: str) -> None:
    assert results_in(planted)


@pytest.mark.parametrize(
    "ordinary",
    [
        "We compare γ = 0.5 with γ=1, and γ of 0.25, 0.75 … 1.5 in a sweep; γ ∈ {0.3, 0.5}; γ = 0.5 and 1.",
        "RMSNorm's ε = 1e-5 against ε of 1e-12; **AdamW's ε** is 1e-12.",
        "A variance of $d^{-2\\gamma} = 0.14$ and $$\\frac{1}{2.5}\\,12\\%$$ in formulas.",
        "Set `train.weight_decay: 0.1`, or run\n```\nmake repro JOBS=4  # 12 %\n```\nand wait 4 minutes.",
        "Section 4, in 2026, of 64 dimensions and 4096 tokens; see [13_gate](13_gate.ipynb#2.5) and arXiv 2410.10781.",
        "Gu et al. (`arXiv 2405.05409`) have 16-bit numbers, f(x) = 4x − 7, 3 × 12 = 36, then +5, then −8.",
        "<!-- generated: claims -->\n| C1 | +0.143 |\n<!-- end of generated -->",
        "python3 (3.11 or newer) makes 95 intervals at 95 %.",
        '<img src="a.svg" width="82.0%">',
        "the first of 3 seeds, a tenth of a nat, half of the tokens",
    ],
)
def test_ordinary_sentences_pass(ordinary: str) -> None:
    assert results_in(ordinary) == []


def test_only_markdown_cells_are_read(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell("x = 0.14  # nats"), nbformat.v4.new_markdown_cell("a gain of 0.14 nats")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    assert prose(tmp_path / "a.ipynb") == "a gain of 0.14 nats"
