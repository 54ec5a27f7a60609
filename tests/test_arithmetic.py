"""Problems made by rule: right answers, worked steps, what separates training from test, wording, determinism."""

import itertools
import random
import re
import statistics

import pytest

from smallinit.data.arithmetic import LEVELS, Problem, extract_answer, test_problems, train_documents
from smallinit.data.arithmetic.calculations import TEST_SHARE, Calculation, belongs, leading
from smallinit.data.arithmetic.problems import EXPRESSIONS, WORDINGS, expression, make
from smallinit.data.arithmetic.stories import PLANS
from smallinit.data.config import Language
from smallinit.data.text import clean, digest

LANGUAGES: tuple[Language, ...] = ("en", "zh")
BINARY = re.compile(r"(\d+)([-+×÷])(\d+)")
STEPS = {1: 1, 2: 1, 3: 1, 4: 2, 5: 1, 6: 2, 7: 3}
FIRST = (
    "Question: A farm has 3 fields with 37 cows in each. Paul takes 34 of them away. How many cows are on the farm?\n"
    "Answer: In all: 37×3=90+21=110+1=111.\n"
    "Left: 111-34=81-4=77.\n"
    "The answer is 77."
)


@pytest.fixture(scope="module")
def trained() -> dict[Language, list[Problem]]:
    return {language: list(itertools.islice(train_documents(language, 0), 8000)) for language in LANGUAGES}


@pytest.fixture(scope="module")
def tested() -> dict[Language, list[Problem]]:
    return {language: test_problems(language, 0, 40) for language in LANGUAGES}


@pytest.fixture(scope="module")
def everything(trained: dict[Language, list[Problem]], tested: dict[Language, list[Problem]]) -> list[Problem]:
    return [problem for kind in (trained, tested) for problems in kind.values() for problem in problems]


def evaluated(text: str) -> int:
    """The value of an expression by Python's own arithmetic; it must be whole."""
    value = eval(text.replace("×", "*").replace("÷", "/"))
    assert value == int(value), text
    return int(value)


def chain(step: str) -> list[str]:
    """The expressions of a step that it says are equal."""
    return re.split(r"[:：]", step)[-1].strip(" .。").split("=")


def calculated(problem: Problem) -> set[tuple[str, int, int]]:
    """Every calculation in a solution that has no round number in it, by kind and its two parts in order.

    Computed from the text alone, without the code that made it.
    """
    found = set()
    for a, op, b in BINARY.findall(" ".join(problem.steps)):
        first, second = int(a), int(b)
        if op in "-÷":
            first = first - second if op == "-" else first // second
        rounded = [len(str(number).rstrip("0")) == 1 for number in (first, second)]
        if not (any(rounded) if op in "-+" else all(rounded)):
            found.add(("+" if op in "-+" else "×", min(first, second), max(first, second)))
    return found


# ------------------------------------------------------------------------------------------------------------ answers


def test_every_step_is_right_and_the_last_one_is_the_answer(everything: list[Problem]) -> None:
    for problem in everything:
        values = [[evaluated(part) for part in chain(step)] for step in problem.steps]
        assert all(len(parts) > 2 and len(set(parts)) == 1 for parts in values), problem.text
        assert str(values[-1][0]) == problem.answer == extract_answer(problem.gold) == extract_answer(problem.text)
        assert len(problem.steps) == STEPS[problem.level]


def test_expressions_are_worth_the_answer(everything: list[Problem]) -> None:
    for problem in everything:
        if problem.level <= 4:
            asked = re.search(r"[(\d][-+×÷()\d]*[)\d]", problem.question)
            assert asked and evaluated(asked[0]) == int(problem.answer), problem.question


def test_stories_name_the_numbers_that_are_calculated_with(everything: list[Problem]) -> None:
    """Each step starts from the value of the one before; all other numbers stand in the question, and no others do."""
    for problem in everything:
        if problem.level >= 5:
            first = [BINARY.search(step).groups() for step in problem.steps]  # type: ignore[union-attr]
            used = [first[0][0], *(b for _, _, b in first)]
            assert sorted(used) == sorted(re.findall(r"\d+", problem.question)), problem.text
            for (a, _, _), step in zip(first[1:], problem.steps, strict=False):
                assert a == chain(step)[-1]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 3+4=7.\nThe answer is 7.", "7"),
        ("3+4=7。\n答案是7。", "7"),
        ("The answer is 1,234.", "1234"),
        ("The answer is -5", "-5"),
        ("The answer is 7.\nQuestion: What is 1+1?\nAnswer: The answer is 2.", "7"),
        ("34+27=61", None),
        ("The answer is unknown.", None),
        ("", None),
    ],
)
def test_extraction(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


# --------------------------------------------------------------------------------------- training apart from the test


def test_no_calculation_of_the_test_is_in_a_training_text(
    everything: list[Problem], tested: dict[Language, list[Problem]]
) -> None:
    test = {part for problems in tested.values() for problem in problems for part in calculated(problem)}
    other = {part for problem in everything[:16_000] for part in calculated(problem)}
    assert len(test) > 300 and len(other) > 5000
    assert not test & other
    assert all(calculated(problem) for problem in everything), "every problem asks for something that is not elementary"


def test_neither_phrases_nor_themes_are_shared(
    trained: dict[Language, list[Problem]], tested: dict[Language, list[Problem]]
) -> None:
    for language in LANGUAGES:
        names = [{problem.template.split()[0] for problem in kind[language]} for kind in (trained, tested)]
        assert not names[0] & names[1]
        themes = [WORDINGS[language].themes[side] for side in ("train", "test")]  # type: ignore[index]
        sentences = [
            {text for t in part for text in (t.given, t.groups, t.ask, t.share, *t.more, *t.less)} for part in themes
        ]
        assert not sentences[0] & sentences[1]


def test_a_seed_changes_the_problems_but_not_the_sides(trained: dict[Language, list[Problem]]) -> None:
    other = test_problems("en", 1, 10)
    assert {problem.text for problem in other} != {problem.text for problem in test_problems("en", 0, 10)}
    seen = {part for problem in trained["en"] for part in calculated(problem)}
    assert not seen & {part for problem in other for part in calculated(problem)}


def test_numbers_are_equally_large_on_both_sides(trained: dict[Language, list[Problem]]) -> None:
    for level in (1, 2, 3, 5):
        train = [int(problem.answer) for problem in trained["en"] if problem.level == level]
        test = [int(make("en", level, "test", random.Random(number)).answer) for number in range(300)]
        assert 0.8 < statistics.mean(train) / statistics.mean(test) < 1.25, level


def test_what_turned_around_is_the_same_calculation_has_the_same_side() -> None:
    rng = random.Random(0)
    sides = []
    for _ in range(2000):
        a, b = rng.randint(11, 99), rng.randint(11, 99)
        calculation = Calculation(a, "+", b)
        turned = [Calculation(b, "+", a), Calculation(a + b, "-", b), Calculation(a + b, "-", a)]
        assert {each.side() for each in turned} == {calculation.side()}
        assert Calculation(a, "×", b).side() == Calculation(a * b, "÷", b).side()
        sides.append(calculation.side())
    assert abs(sides.count("test") / 2000 - TEST_SHARE) < 0.05


def test_elementary_calculations_are_on_both_sides() -> None:
    elementary = {"54+7": True, "347+200": True, "7+54": True, "61-7": True, "34+27": False, "61-27": False}
    elementary |= {"20×4": True, "23×4": False, "80÷4": True, "92÷4": False}
    for text, expected in elementary.items():
        a, op, b = re.split("([-+×÷])", text)
        calculation = Calculation(int(a), op, int(b))  # type: ignore[arg-type]
        assert calculation.elementary() == expected, text
        assert [belongs(calculation, "train"), belongs(calculation, "test")].count(True) <= (not expected)


# ------------------------------------------------------------------------------------------------------------- solving


@pytest.mark.parametrize(
    ("calculation", "worked"),
    [
        (Calculation(34, "+", 27), "34+27=54+7=61"),
        (Calculation(347, "+", 225), "347+225=547+25=567+5=572"),
        (Calculation(300, "-", 108), "300-108=200-8=192"),
        (Calculation(83, "×", 9), "83×9=720+27=740+7=747"),
        (Calculation(92, "÷", 4), "92÷4=20+3=23"),
    ],
)
def test_known_solutions(calculation: Calculation, worked: str) -> None:
    assert calculation.worked() == worked


def test_leading_digit_and_brackets() -> None:
    assert [leading(number) for number in (7, 27, 347, 100)] == [7, 20, 300, 100]
    assert expression([Calculation(34, "+", 27), Calculation(61, "×", 4)]) == "(34+27)×4"
    assert expression([Calculation(23, "×", 4), Calculation(92, "-", 35)]) == "23×4-35"
    assert expression([Calculation(50, "-", 21), Calculation(29, "-", 11)]) == "50-21-11"


# ----------------------------------------------------------------------------------------------------------- documents


def test_documents_are_clean_different_and_of_all_levels(trained: dict[Language, list[Problem]]) -> None:
    for problems in trained.values():
        assert len({digest(problem.text) for problem in problems}) == len(problems)
        assert all(clean(problem.text) == problem.text == problem.prompt + problem.gold for problem in problems)
        levels = [problem.level for problem in problems]
        assert all(levels.count(level) > 700 for level in LEVELS)
        templates = {(problem.level, problem.template) for problem in problems}
        plans = {level: len(found) for level, found in (EXPRESSIONS | PLANS).items()}
        assert len(templates) == 6 * sum(plans[level] for level in (1, 2, 3, 4)) + 8 * sum(
            plans[level] for level in (5, 6, 7)
        )


def test_there_are_fifty_thousand_different_documents() -> None:
    assert len({digest(problem.text) for problem in itertools.islice(train_documents("zh", 3), 50_000)}) == 50_000


def test_the_same_seed_gives_the_same_problems(trained: dict[Language, list[Problem]]) -> None:
    for language in LANGUAGES:
        assert list(itertools.islice(train_documents(language, 0), 100)) == trained[language][:100]
        assert list(itertools.islice(train_documents(language, 1), 100)) != trained[language][:100]
    assert trained["en"][0].text == FIRST, "another version of Python or of this code makes another corpus"


def test_more_test_problems_begin_with_the_same_ones(tested: dict[Language, list[Problem]]) -> None:
    for language in LANGUAGES:
        few = test_problems(language, 0, 5)
        assert [problem.level for problem in few] == [level for level in LEVELS for _ in range(5)]
        assert len({problem.text for problem in few}) == len(few)
        for level in LEVELS:
            more = [problem for problem in tested[language] if problem.level == level]
            assert [problem for problem in few if problem.level == level] == more[:5]


# -------------------------------------------------------------------------------------------------------------- wording


def test_sentences_are_complete(everything: list[Problem]) -> None:
    for problem in everything:
        assert "{" not in problem.text and "  " not in problem.text
        ends = "?." if problem.language == "en" else "？。"
        assert problem.question[-1] in ends
        if problem.language == "en":
            assert problem.text.isascii() or set(problem.text) - set(map(chr, range(128))) <= {"×", "÷"}
            assert all(sentence[0].isupper() for sentence in re.split(r"(?<=[.?]) ", problem.question))
        else:
            assert not re.search("[A-Za-z,.?!:]", problem.text)


def test_nouns_are_never_counted_in_ones(everything: list[Problem]) -> None:
    for problem in everything:
        if problem.level >= 5:
            assert all(int(number) >= 2 for number in re.findall(r"\d+", problem.question)), problem.question


def test_chinese_things_have_one_measure_word_a_theme(trained: dict[Language, list[Problem]]) -> None:
    """The measure word in the question for a thing is the one that counts it at the start."""
    wording = WORDINGS["zh"]
    for theme in (*wording.themes["train"], *wording.themes["test"]):
        measure = theme.given.split("{n}")[1].split("{thing}")[0]
        assert len(measure) == 1
        assert f"多少{measure}{{thing}}" in theme.ask and f"多少{measure}{{thing}}" in theme.share
        assert f"{{n}}{measure}" in theme.groups
        assert all(f"{{n}}{measure}" in sentence for sentence in theme.more + theme.less)
