"""Which benchmarks there are, where their items come from, and what is measured on them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from smallinit.config import Strict
from smallinit.data.config import Archive, Language

ItemReader = Literal["olmo", "uhgeval", "halluqa"]
Answer = Literal["number", "boxed", "arithmetic", "greedy"]


class Task(Strict):
    """One benchmark inside an archive and how to read it."""

    archive: str
    language: Language
    reader: ItemReader
    members: list[str] = Field(min_length=1, description="paths or glob patterns inside the archive")
    count: int = Field(ge=1, description="items that must be there: a truncated file is an error")
    licence: str = Field(min_length=1, description="of the items")
    examples: bool = Field(default=False, description="keep the worked examples before a question: few-shot")
    answer: Answer | None = Field(default=None, description="how the answer is found in a text, for exact match")
    reserved: str | None = Field(default=None, description="a source of the corpus: only the items reserved from it")

    @model_validator(mode="after")
    def _examples_exist(self) -> "Task":
        if self.examples and self.reader != "olmo":
            raise ValueError(f"examples = true: reader {self.reader!r} knows none, only 'olmo' does")
        return self


class Arithmetic(Strict):
    """Our own test problems (`data/arithmetic`): one task a language, `arithmetic_en` and `arithmetic_zh`."""

    languages: list[Language]
    seed: int = Field(ge=0)
    per_level: int = Field(ge=1, description="problems of each level of difficulty; more of them include the fewer")


class ItemsConfig(Strict):
    """Everything that determines the items, given the archives and the keys that the corpus has reserved."""

    items: Annotated[int, Field(ge=1)] | None = Field(description="of a task at most, chosen by a hash; None: all")
    tasks: dict[str, Task]
    arithmetic: Arithmetic
    archives: dict[str, Archive]

    @model_validator(mode="after")
    def _archives_are_known(self) -> "ItemsConfig":
        for name, task in self.tasks.items():
            if task.archive not in self.archives:
                known = ", ".join(sorted(self.archives)) or "none"
                raise ValueError(f"tasks.{name}.archive = {task.archive!r} is not defined (allowed: {known})")
        return self

    def answers(self) -> dict[str, Answer | None]:
        """How the answer is found in a text of each task, tasks in the order of tables."""
        own: dict[str, Answer | None] = {
            f"arithmetic_{language}": "arithmetic" for language in self.arithmetic.languages
        }
        return {name: task.answer for name, task in self.tasks.items()} | own


class Generate(Strict):
    """The tasks whose answers a model has to write itself, and at most how long."""

    tasks: list[str]
    max_tokens: int = Field(ge=1)


class BenchmarkConfig(Strict):
    """How models are measured on the items."""

    generate: Generate
    micro_batch: int = Field(ge=1, description="windows of seq_len tokens scored at a time")
    threads: int = Field(ge=1)


class BenchmarksParams(BenchmarkConfig):
    """`benchmarks` in params.yaml: the settings of the stages `items` and `benchmark`; `ask` chooses among `tasks`."""

    ask: list[str]
    items: Annotated[int, Field(ge=1)] | None
    tasks: dict[str, Task]
    arithmetic: Arithmetic

    def split(self, archives: dict[str, Archive]) -> tuple[ItemsConfig, BenchmarkConfig]:
        """The configuration of each of the two stages, with the archives that the first one needs.

        Raises:
            ValueError: an archive is not among `archives`, a task to ask is not among `tasks`, or a task to generate
                for is not asked or has no answer.
        """
        if unknown := [name for name in self.ask if name not in self.tasks]:
            raise ValueError(f"benchmarks.ask: {unknown[0]!r} is not defined (allowed: {', '.join(self.tasks)})")
        asked = {name: self.tasks[name] for name in self.ask}
        needed = {task.archive for task in asked.values()}
        items = ItemsConfig(
            items=self.items,
            tasks=asked,
            arithmetic=self.arithmetic,
            archives={name: archive for name, archive in archives.items() if name in needed},
        )
        possible = [name for name, answer in items.answers().items() if answer not in (None, "greedy")]
        for name in self.generate.tasks:
            if name not in possible:
                raise ValueError(
                    f"benchmarks.generate.tasks: {name!r} is no task with an answer to write (allowed: "
                    f"{', '.join(possible) or 'none'})"
                )
        return items, BenchmarkConfig(**{key: getattr(self, key) for key in BenchmarkConfig.model_fields})
