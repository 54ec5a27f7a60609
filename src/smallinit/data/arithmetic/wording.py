"""What a language has to bring along to put problems into words."""

from dataclasses import dataclass

from smallinit.data.arithmetic.calculations import Operation, Side
from smallinit.data.arithmetic.stories import Theme


@dataclass(frozen=True)
class Wording:
    """The words of one language.

    Attributes:
        before_question, before_answer: what begins the two halves of a document.
        answer: the last line, with {} for the number.
        space: between sentences, and before a solution.
        stop: ends a sentence.
        labels: before a calculation of a story.
        phrases: for expressions, each with a name and {} for the expression.
        themes: for stories.
        people: the fields for a person, one of whom each story has.
    """

    before_question: str
    before_answer: str
    answer: str
    space: str
    stop: str
    labels: dict[Operation, str]
    phrases: dict[Side, tuple[tuple[str, str], ...]]
    themes: dict[Side, tuple[Theme, ...]]
    people: tuple[dict[str, str], ...]
