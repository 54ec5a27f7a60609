"""Word problems: a theme has a sentence for each operation, and a story is one such sentence after the other.

A quantity is given, or so many groups of it; it grows and shrinks; at the end it is asked for, or shared out evenly.
Every number is at least 2, so nouns are always in the plural.
"""

from dataclasses import dataclass

from smallinit.data.arithmetic.calculations import Calculation, Operation


@dataclass(frozen=True)
class Theme:
    """Sentences with the fields {n} (a number), {thing} and those of a person; each with its full stop.

    Attributes:
        name: of the theme, within its language.
        things: nouns that {thing} may stand for; in Chinese, those that share the theme's measure word.
        given: {n} things are there at the start.
        groups: {m} groups of {n} things are there at the start.
        more: {n} more come.
        less: {n} go.
        ask: the question for what is there in the end.
        share: they are shared among {n}: the question for what each gets.
    """

    name: str
    things: tuple[str, ...]
    given: str
    groups: str
    more: tuple[str, ...]
    less: tuple[str, ...]
    ask: str
    share: str


# The operations of a story, by level; a product comes first and a quotient last.
PLANS: dict[int, tuple[tuple[Operation, ...], ...]] = {
    5: (("+",), ("-",), ("×",), ("÷",)),
    6: (("+", "-"), ("-", "+"), ("×", "+"), ("×", "-"), ("+", "÷"), ("-", "÷")),
    7: (("×", "+", "-"), ("×", "-", "+"), ("×", "+", "÷"), ("×", "-", "÷"), ("+", "-", "÷"), ("-", "+", "÷")),
}


def tell(theme: Theme, calculations: list[Calculation], choice: int, fields: dict[str, str], space: str) -> str:
    """The story and its question.

    Args:
        theme: whose sentences.
        calculations: what is to be calculated, as `PLANS` orders it.
        choice: any number; decides between sentences that say the same.
        fields: values for the fields other than numbers.
        space: between two sentences.
    """
    first = calculations[0]
    if first.op == "×":
        sentences, rest = [theme.groups.format(n=first.a, m=first.b, **fields)], calculations[1:]
    else:
        sentences, rest = [theme.given.format(n=first.a, **fields)], calculations
    for calculation in rest:
        ways = {"+": theme.more, "-": theme.less, "÷": (theme.share,)}[calculation.op]
        sentences.append(ways[choice % len(ways)].format(n=calculation.b, **fields))
    if calculations[-1].op != "÷":
        sentences.append(theme.ask.format(**fields))
    return space.join(sentences)
