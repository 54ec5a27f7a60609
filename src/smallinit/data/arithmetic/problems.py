"""Arithmetic and word problems with worked solutions, made by rule: texts for training and problems for the test.

| level | what is asked |
|---|---|
| 1 | one sum or difference of two-digit numbers |
| 2 | one sum or difference of larger numbers, up to three digits |
| 3 | one product or quotient: two digits times one |
| 4 | an expression of two operations |
| 5 | a story of one step |
| 6 | a story of two steps |
| 7 | a story of three steps |

Training and test differ in wording, in stories and in what is calculated, but not in the size of the numbers: a test
problem has a phrase or a theme that no training text has, and every calculation in it is one that no training text
makes, elementary ones aside (`calculations.py` has that rule).

One problem is one document: it begins where a document begins, as the prompt of the test does, and its loss belongs to
one level.
"""

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from smallinit.data.arithmetic import chinese, english
from smallinit.data.arithmetic.calculations import Calculation, Operation, Side, draw
from smallinit.data.arithmetic.stories import PLANS, tell
from smallinit.data.arithmetic.wording import Wording
from smallinit.data.config import Language

LEVELS = tuple(range(1, 8))
WORDINGS: dict[Language, Wording] = {"en": english.WORDING, "zh": chinese.WORDING}
SUMS: tuple[Operation, ...] = ("+", "-")
ALL: tuple[Operation, ...] = ("+", "-", "×", "÷")
EXPRESSIONS: dict[int, tuple[tuple[Operation, ...], ...]] = {
    1: (("+",), ("-",)),
    2: (("+",), ("-",)),
    3: (("×",), ("÷",)),
    4: (*((first, then) for first in SUMS for then in ALL), ("×", "+"), ("×", "-")),
}
ANSWER = re.compile(r"(?:The answer is|答案是)\s*(-?\d[\d,]*)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: `text` is the training document, `prompt` and `gold` are its two halves.

    Attributes:
        language: en or zh.
        level: 1 to 7, as in the table above.
        template: the phrase or theme, then the operations: `fruit +-`.
        question: without `Question:` before it.
        steps: lines of the solution, one a calculation, each a chain of equal expressions.
        answer: the number that the last line states, in digits.
    """

    language: Language
    level: int
    template: str
    question: str
    steps: tuple[str, ...]
    answer: str

    @property
    def prompt(self) -> str:
        wording = WORDINGS[self.language]
        return f"{wording.before_question}{self.question}\n{wording.before_answer}"

    @property
    def gold(self) -> str:
        wording = WORDINGS[self.language]
        return wording.space + "\n".join([*self.steps, wording.answer.format(self.answer)])

    @property
    def text(self) -> str:
        return self.prompt + self.gold


def extract_answer(text: str) -> str | None:
    """The first number that a text states as the answer, without thousands separators; None if it states none.

    The first, because whatever a model writes after its answer is no longer about this problem.
    """
    found = ANSWER.search(text)
    return found[1].replace(",", "") if found else None


def make(language: Language, level: int, side: Side, rng: random.Random) -> Problem:
    """A problem of one level, for training or for the test, from the numbers that `rng` gives."""
    wording = WORDINGS[language]
    operations = rng.choice((EXPRESSIONS | PLANS)[level])
    low, high = (101, 999) if level == 2 else (11, 99)
    calculations = draw(rng, operations, low, high, side)
    if level in PLANS:
        theme = rng.choice(wording.themes[side])
        fields = rng.choice(wording.people) | {"thing": rng.choice(theme.things)}
        name = theme.name
        question = tell(theme, calculations, rng.randrange(6), fields, wording.space)
        labels = [wording.labels[calculation.op] for calculation in calculations]
    else:
        name, phrase = rng.choice(wording.phrases[side])
        question = phrase.format(expression(calculations))
        labels = [""] * len(calculations)
    steps = [f"{label}{each.worked()}{wording.stop}" for label, each in zip(labels, calculations, strict=True)]
    template, answer = f"{name} {''.join(operations)}", str(calculations[-1].value)
    return Problem(language, level, template, question, tuple(steps), answer)


def expression(calculations: list[Calculation]) -> str:
    """Calculations one after the other as one expression: `(34+27)×4`."""
    text = str(calculations[0].a)
    for before, calculation in zip([None, *calculations], calculations, strict=False):
        if before is not None and before.op in SUMS and calculation.op not in SUMS:
            text = f"({text})"
        text += f"{calculation.op}{calculation.b}"
    return text


def train_documents(language: Language, seed: int) -> Iterator[Problem]:
    """Training problems of all levels in random order, without end; no text comes twice.

    The n-th depends on language, seed and n alone. Levels are equally likely as long as they have new texts; level 3
    has only a few thousand, so among many documents it is rarer.
    """
    seen: set[str] = set()
    for index in itertools.count():
        rng = random.Random(f"train {language} {seed} {index}")
        problem = make(language, rng.choice(LEVELS), "train", rng)
        if problem.text not in seen:
            seen.add(problem.text)
            yield problem


def test_problems(language: Language, seed: int, per_level: int) -> list[Problem]:
    """Test problems, `per_level` different ones of each level in turn; more of them begin with the same ones."""
    problems: list[Problem] = []
    for level in LEVELS:
        chosen: dict[str, Problem] = {}
        for index in itertools.count():
            if len(chosen) == per_level:
                break
            problem = make(language, level, "test", random.Random(f"test {language} {seed} {level} {index}"))
            chosen.setdefault(problem.text, problem)
        problems += chosen.values()
    return problems


test_problems.__test__ = False  # type: ignore[attr-defined]  # pytest collects functions by that name
