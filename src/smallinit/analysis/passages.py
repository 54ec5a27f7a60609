"""Example passages of held-out text with the probabilities that two runs give to each token."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from smallinit import paths
from smallinit.analysis import collect
from smallinit.analysis.token_pairs import Pair
from smallinit.analysis.tokens import symmetric_gap
from smallinit.files import read_json


@dataclass(frozen=True)
class Passage:
    """One stretch of text; `units` has a row a token, or a character of several tokens, see `merged`."""

    source: str
    language: str
    document: int
    units: pd.DataFrame


def merged(pieces: list[str], base: np.ndarray, small: np.ndarray) -> pd.DataFrame:
    """Tokens as readers see them: those that are only parts of a character are taken together.

    Args:
        pieces: text of each token; all but the last token of a character have "".
        base: loss of each token in nats, (n,).
        small: the same of the other run.

    Returns:
        text, tokens (how many), p_base, p_small (of all these tokens together), gap. Parts of a character that the end
        of the passage has cut off are left out.
    """
    whole = pd.Series([piece != "" for piece in pieces], dtype=bool)
    unit = whole.cumsum() - whole  # a character's last token closes its unit
    tokens = pd.DataFrame({"unit": unit, "text": pieces, "tokens": 1, "base": base, "small": small})
    units = tokens.groupby("unit")[["text", "tokens", "base", "small"]].sum()
    units = units[units["text"] != ""].reset_index(drop=True)
    gap = symmetric_gap(units["base"].to_numpy(float), units["small"].to_numpy(float))
    units = units.assign(p_base=np.exp(-units["base"]), p_small=np.exp(-units["small"]), gap=gap)
    return units[["text", "tokens", "p_base", "p_small", "gap"]]


def read(pair: Pair) -> list[Passage]:
    """The passages of `results/corpus/passages.json` that lie within the slice whose token losses are kept.

    Empty if no source of the corpus may be quoted.
    """
    path = paths.RESULTS / "corpus" / "passages.json"
    base, small = (collect.token_losses(run).astype(float) for run in (pair.base, pair.small))
    found = []
    for passage in read_json(path) if path.exists() else []:
        place = slice(
            passage["start"] - 1, passage["start"] - 1 + len(passage["ids"])
        )  # entry i belongs to token i + 1
        if place.stop <= len(base):
            units = merged(passage["pieces"], base[place], small[place])
            found.append(Passage(passage["source"], passage["language"], passage["document"], units))
    return found
