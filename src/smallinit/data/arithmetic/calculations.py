"""Calculations with whole numbers, worked out in small steps, and which of them are kept for the test.

The rule that separates training from test: a calculation is *elementary* if a sum has an addend with a single non-zero
digit (54+7, 347+200, 61-7) or a product has two such factors (20×4). These are what everybody needs to calculate at
all, and occur on both sides. Every other calculation belongs to one side, whoever asks for it and whatever the seed:
`side` throws dice that depend on its numbers alone, and a quarter goes to the test. Turned around it is the same:
34+27, 27+34, 61-27 and 61-34 go together, as do 23×4 and 92÷4. So nothing that a test problem asks for was ever
calculated in a training text, yet numbers on both sides are equally large.
"""

import functools
import random
import re
from typing import Literal, NamedTuple

from smallinit.data.text import uniform

Operation = Literal["+", "-", "×", "÷"]
Side = Literal["train", "test"]
TEST_SHARE = 0.25


class Calculation(NamedTuple):
    """`a op b`, for instance 34+27; a product has the one-digit factor last, a quotient is whole."""

    a: int
    op: Operation
    b: int

    def __str__(self) -> str:
        return f"{self.a}{self.op}{self.b}"

    @property
    def value(self) -> int:
        match self.op:
            case "+":
                return self.a + self.b
            case "-":
                return self.a - self.b
            case "×":
                return self.a * self.b
            case "÷":
                return self.a // self.b

    def chain(self) -> list["Calculation"]:
        """This calculation and the ever simpler ones of the same value: 34+27, 54+7; or 23×4, 80+12, 90+2."""
        if self.op == "×":
            tens = leading(self.a)
            return [self, *Calculation(tens * self.b, "+", (self.a - tens) * self.b).chain()]
        if self.op == "÷":
            tens = leading(self.value)
            return [self, *Calculation(tens, "+", self.value - tens).chain()]
        first = leading(self.b)
        if first == self.b:
            return [self]
        return [self, *Calculation(Calculation(self.a, self.op, first).value, self.op, self.b - first).chain()]

    def worked(self) -> str:
        """The chain as text, `34+27=54+7=61`: without spaces, which would be tokens of their own."""
        return "=".join([*map(str, self.chain()), str(self.value)])

    def parts(self) -> tuple[int, int]:
        """The two addends or the two factors, the smaller first: of 61-27 they are 27 and 34."""
        first, second = (self.a, self.b) if self.op in "+×" else (self.value, self.b)
        return min(first, second), max(first, second)

    def elementary(self) -> bool:
        """Whether everybody needs it, so that it belongs to both sides."""
        short = [leading(part) == part for part in self.parts()]
        return any(short) if self.op in "+-" else all(short)

    def side(self) -> Side:
        """Where it belongs, unless it is elementary."""
        return _side("+" if self.op in "+-" else "×", *self.parts())


@functools.cache
def _side(op: str, first: int, second: int) -> Side:
    return "test" if uniform("arithmetic", op, first, second) < TEST_SHARE else "train"


@functools.cache
def leading(number: int) -> int:
    """The number with all digits but the first set to zero: 347 -> 300."""
    unit = 10 ** (len(str(number)) - 1)
    return number // unit * unit


def calculations_in(text: str) -> set[Calculation]:
    """All calculations that stand in a text, as `34+27`."""
    found: list[tuple[str, Operation, str]] = re.findall(r"(\d+)([-+×÷])(\d+)", text)
    return {Calculation(int(a), op, int(b)) for a, op, b in found}


def belongs(calculation: Calculation, side: Side) -> bool:
    """Whether the calculation is of that side, not elementary, and nothing in its chain is of the other side."""
    chain = calculation.chain()
    return not chain[0].elementary() and all(link.elementary() or link.side() == side for link in chain)


def draw(rng: random.Random, operations: tuple[Operation, ...], low: int, high: int, side: Side) -> list[Calculation]:
    """Calculations one after the other, each starting from the value of the one before, all of one side.

    Args:
        rng: where the numbers come from.
        operations: one for each calculation.
        low: smallest value, and smallest number of a sum; from 11.
        high: largest value, and largest number of a sum.
        side: train or test.
    """
    while (drawn := _attempt(rng, operations, low, high, side)) is None:
        pass
    return drawn


def _attempt(
    rng: random.Random, operations: tuple[Operation, ...], low: int, high: int, side: Side
) -> list[Calculation] | None:
    """Any numbers; None if the calculations do not come out whole, within bounds and on the right side."""
    value, drawn = rng.randint(low, high), []
    for op in operations:
        number = rng.randint(low, high) if op in "+-" else rng.randint(2, 9)
        calculation = Calculation(value, op, number)
        if op == "÷" and value % number:
            return None
        factor = {"×": value, "÷": calculation.value}.get(op, 11)  # of two digits, or the chain would be longer
        if not (low <= calculation.value <= 999 and 11 <= factor <= 99 and belongs(calculation, side)):
            return None
        drawn.append(calculation)
        value = calculation.value
    return drawn
