r"""Where the answer stands in a text. The same rule reads the published solution and what a model writes.

| rule | the answer is | used for |
|---|---|---|
| number | the last number | GSM8K |
| boxed | what the last `\boxed{...}` holds | MATH |
| arithmetic | what the last line states | our own problems |
"""

import re
from collections.abc import Callable
from decimal import Decimal

from smallinit.data.arithmetic import extract_answer

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
# Where a model that goes on writing begins another problem.
STOPS = {"number": ["Question:", "\n\n"], "boxed": ["Problem:"], "arithmetic": ["\n\n"]}


def number(text: str) -> str | None:
    """The last number, without thousands separators and zeros to spare: `$1,080.50.` gives 1080.5."""
    found = NUMBER.findall(text)
    return f"{Decimal(found[-1].replace(',', '')).normalize():f}" if found else None


def boxed(text: str) -> str | None:
    r"""What stands between the braces of the last \boxed, up to spaces, \left, \right and the size of a fraction."""
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    opened, content = 0, ""
    for character in text[start + len("\\boxed") :]:
        opened -= character == "}"
        if opened > 0:
            content += character
        opened += character == "{"
        if opened == 0:
            break
    if opened:  # the closing brace is missing
        return None
    return re.sub(r"\\left|\\right|\\!|\s", "", re.sub(r"\\[dt]frac", r"\\frac", content)) or None


EXTRACT: dict[str, Callable[[str], str | None]] = {"number": number, "boxed": boxed, "arithmetic": extract_answer}
