"""Problems in English: phrases, themes and people. Themes and phrases for the test occur in no training text."""

from smallinit.data.arithmetic.stories import Theme
from smallinit.data.arithmetic.wording import Wording

PHRASES = (
    ("what-is", "What is {}?"),
    ("calculate", "Calculate {}."),
    ("how-much", "How much is {}?"),
    ("compute", "Compute {}."),
    ("result", "What is the result of {}?"),
    ("solve", "Solve {}."),
)
TEST_PHRASES = (
    ("work-out", "Work out {}."),
    ("value", "Find the value of {}."),
)

THEMES = (
    Theme(
        name="fruit",
        things=("apples", "oranges", "pears", "plums", "lemons"),
        given="{name} has {n} {thing}.",
        groups="{name} has {m} baskets with {n} {thing} in each.",
        more=("{name} buys {n} more.", "{He} picks {n} more."),
        less=("{name} gives {n} to a friend.", "{He} sells {n} of them."),
        ask="How many {thing} does {name} have?",
        share="{He} packs all of them evenly into {n} bags. How many {thing} are in each bag?",
    ),
    Theme(
        name="library",
        things=("books", "magazines", "maps", "records"),
        given="A library has {n} {thing}.",
        groups="A library has {m} shelves with {n} {thing} on each.",
        more=("{name} brings {n} more.", "It buys {n} more from {name}."),
        less=("{name} borrows {n} of them.", "It lends {n} of them to {name}."),
        ask="How many {thing} are in the library?",
        share="All of them are put evenly on {n} tables. How many {thing} are on each table?",
    ),
    Theme(
        name="bakery",
        things=("rolls", "cakes", "cookies", "muffins"),
        given="A baker made {n} {thing}.",
        groups="A baker filled {m} trays with {n} {thing} each.",
        more=("Then {name} baked {n} more.", "{name} brought {n} more."),
        less=("{name} bought {n} of them.", "Then {n} of them were sold to {name}."),
        ask="How many {thing} are there?",
        share="They are shared evenly among {n} shops. How many {thing} does each shop get?",
    ),
    Theme(
        name="collection",
        things=("stamps", "coins", "shells", "stickers", "postcards"),
        given="{name} collected {n} {thing}.",
        groups="{name} has {m} albums with {n} {thing} in each.",
        more=("{He} finds {n} more.", "{name} gets {n} more as a gift."),
        less=("{He} loses {n} of them.", "{name} gives away {n} of them."),
        ask="How many {thing} does {name} have?",
        share="{He} divides all of them equally among {n} children. How many {thing} does each child get?",
    ),
    Theme(
        name="farm",
        things=("cows", "sheep", "goats", "horses"),
        given="There are {n} {thing} on a farm.",
        groups="A farm has {m} fields with {n} {thing} in each.",
        more=("{name} brings {n} more.", "The farmer buys {n} more."),
        less=("{name} takes {n} of them away.", "The farmer sells {n} of them."),
        ask="How many {thing} are on the farm?",
        share="They are put into {n} barns, the same number in each. How many {thing} are in a barn?",
    ),
    Theme(
        name="school",
        things=("pencils", "pens", "notebooks", "rulers"),
        given="A teacher has {n} {thing}.",
        groups="A teacher has {m} boxes of {n} {thing}.",
        more=("{name} brings {n} more.", "The school sends {n} more."),
        less=("{name} takes {n} of them.", "The class uses {n} of them."),
        ask="How many {thing} does the teacher have?",
        share="They are shared equally among {n} groups. How many {thing} does each group get?",
    ),
    Theme(
        name="train",
        things=("passengers", "tourists", "workers", "students"),
        given="There are {n} {thing} on a train.",
        groups="A train has {m} cars with {n} {thing} in each.",
        more=("At a station {n} more get on.", "Then {n} more join them."),
        less=("At a station {n} of them get off.", "Then {n} of them leave."),
        ask="How many {thing} are on the train?",
        share="They spread evenly over {n} cars. How many {thing} are in each car?",
    ),
    Theme(
        name="garden",
        things=("roses", "tulips", "trees", "bushes"),
        given="{name} has {n} {thing} in the garden.",
        groups="{name} has {m} rows of {n} {thing} in the garden.",
        more=("{He} plants {n} more.", "A neighbor plants {n} more."),
        less=("{He} cuts down {n} of them.", "A storm breaks {n} of them."),
        ask="How many {thing} are in the garden?",
        share="Now they stand in {n} equal rows. How many {thing} are in each row?",
    ),
)
TEST_THEMES = (
    Theme(
        name="kitchen",
        things=("eggs", "potatoes", "carrots", "onions"),
        given="The cook has {n} {thing}.",
        groups="The cook has {m} bowls of {n} {thing}.",
        more=("{name} delivers {n} more.",),
        less=("{name} cooks {n} of them.",),
        ask="How many {thing} are in the kitchen?",
        share="They are split evenly between {n} pots. How many {thing} are in each pot?",
    ),
    Theme(
        name="harbor",
        things=("boats", "ships", "barrels", "crates"),
        given="{name} counts {n} {thing} in the harbor.",
        groups="{name} counts {m} lines of {n} {thing} in the harbor.",
        more=("In the morning {n} more arrive.",),
        less=("In the evening {n} of them are gone.",),
        ask="How many {thing} does {name} see now?",
        share="They belong to {n} towns, equally many to each. How many {thing} does a town own?",
    ),
    Theme(
        name="toys",
        things=("blocks", "marbles", "balls", "dolls"),
        given="{name} puts {n} {thing} on the floor.",
        groups="{name} builds {m} towers of {n} {thing}.",
        more=("Then {he} adds {n}.",),
        less=("Then {he} removes {n}.",),
        ask="How many {thing} is {name} playing with?",
        share="{He} puts them all away in {n} drawers, equally full. How many {thing} does a drawer hold?",
    ),
)


def _people(names: str, he: str, capital: str) -> tuple[dict[str, str], ...]:
    return tuple({"name": name, "he": he, "He": capital} for name in names.split())


WORDING = Wording(
    before_question="Question: ",
    before_answer="Answer:",
    answer="The answer is {}.",
    space=" ",
    stop=".",
    labels={"+": "Then: ", "-": "Left: ", "×": "In all: ", "÷": "Each: "},
    phrases={"train": PHRASES, "test": TEST_PHRASES},
    themes={"train": THEMES, "test": TEST_THEMES},
    people=_people("Tom Ben Jack Paul David Peter Sam Henry", "he", "He")
    + _people("Anna Mary Lucy Emma Jane Kate Sarah Alice", "she", "She"),
)
