"""The `data` section of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from ascendtune.core.config import MOST, Contradiction, Section
from ascendtune.core.suggest import did_you_mean
from ascendtune.data.encoding import Encoding

_WITH_THOUGHTS = ("qwen3", "qwen3_5", "deepseekr1", "glmz1", "glm4_7")
_WITHOUT = (
    "chatml", "llama2", "llama3", "qwen", "qwen3_nothink", "mistral", "ministral", "glm4", "intern2", "deepseek",
    "deepseekcoder", "deepseek3", "baichuan2", "gemma", "phi", "alpaca", "human_assistant", "plain",
)  # fmt: skip
LAST_THOUGHT = "_last_thought"
"""Suffix of templates that write a thought before the last answer only, and remove earlier thoughts."""

NAMED = (*_WITHOUT, *_WITH_THOUGHTS, *(name + LAST_THOUGHT for name in _WITH_THOUGHTS))
"""Valid names of `data.template`; each, without that ending, is a file in `templates/`."""


def is_name(template: str) -> bool:
    """Whether it can only be a name, not a path."""
    return "/" not in template and "." not in template


def unknown(template: str) -> tuple[str, str]:
    """Error and remedy for a template that does not exist."""
    suggestion = did_you_mean(template, NAMED) if is_name(template) else ""
    what = f"the chat template '{template}' is neither a name nor a readable Jinja file"
    return what, f"{suggestion} use auto, one of {', '.join(NAMED)}, or a path".lstrip()


Task = Literal["conversations", "text", "pairs", "singles"]
"""The kind of a row: a conversation, a text that is trained on completely, a pair of a better and a worse answer, or a
single answer that is marked good or bad."""

ROWS_OF_A_GROUP: dict[Task, int] = {"conversations": 1, "text": 1, "pairs": 2, "singles": 2}
"""Rows of tokens per group; a group is never split."""


def _one_or_many(value: Any) -> Any:
    """`train: file.json` and `train: {path: …}` are short for a list with one entry."""
    if isinstance(value, str | dict):
        value = [value]
    return [{"path": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


class DatasetSpec(Section):
    """One data set: a file, a directory of files, or a hub id."""

    path: str
    """File, directory or hub id. Paths are relative to the working directory."""
    format: Literal[
        "auto", "alpaca", "sharegpt", "messages", "prompt_completion", "text", "preference", "scored", "unpaired"
    ] = "auto"
    """Format of the rows; `auto` detects it from the columns of the first rows."""
    encoding: Encoding = "auto"
    """Encoding of text files; `auto` is UTF-16 if the file begins with its byte order mark, else UTF-8."""
    header: bool = True
    """The first line of a CSV or TSV file names the columns; false: it is a row, and they are column_1, column_2, …"""
    split: str | None = None
    """For a hub data set, or a copy of one: the split whose files are read (default `train`)."""
    subset: str | None = None
    """Likewise the subset: a configuration of its README.md (default: its default, else its first), or a directory."""
    revision: str | None = None
    """For a hub data set: branch, tag or commit."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """How often each row is used per epoch: 0.5 uses half of the rows (seeded), 2 uses each row twice."""
    limit: int | None = Field(default=None, ge=1, le=MOST)
    """Read at most this many rows."""
    columns: dict[str, str | None] = {}
    """Name in the format -> column in the file, e.g. `{prompt: question, completion: answer}`; null: do not read it.

    A value inside a column is named by its path: `translation.de`, `answers.text.0`.
    """
    tags: dict[Literal["from", "value", "human", "gpt", "observation", "function_call", "system"], str] = {}
    """ShareGPT's name -> name in the file's turns: `{from: role, value: content, human: user, gpt: assistant}`."""
    system: str | None = None
    """A system message for rows that have none."""


_List = list[DatasetSpec | str]
_FilledList = Annotated[_List, Field(min_length=1)]
_Checked = list[DatasetSpec]
Datasets = Annotated[_Checked, BeforeValidator(_one_or_many, DatasetSpec | str | _List)]
TrainDatasets = Annotated[_Checked, Field(min_length=1), BeforeValidator(_one_or_many, DatasetSpec | str | _FilledList)]


class DataSection(Section):
    """The data sets, and their conversion to tokens."""

    train: TrainDatasets
    """One or several data sets; they are mixed by their weights."""
    eval: Datasets = []
    """Data sets for the evaluation loss."""
    eval_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Hold out this share of the training rows (seeded) for the evaluation loss, if `eval` is not given."""
    eval_rows: int | None = Field(default=None, ge=1, le=MOST)
    """Hold out this many of the training rows (seeded), instead of a share."""
    template: str = "auto"
    """`auto` (the model's own chat template), a name (chatml, llama3, qwen, …), or a path to a Jinja file."""
    max_length: int = Field(default=2048, ge=2, le=1_048_576)
    """Maximum tokens of a row, and of a packed sequence."""
    packing: Literal["auto"] | bool = "auto"
    """Pack several rows into one sequence without attention between them; `auto`: if the attention supports it;
    `false`: each row is a sequence. In both cases padding is not computed if the attention supports that."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """A row that cannot be trained on: stop and list the first five, or skip and count. Invalid JSON always stops."""
    on_long_row: Literal["truncate", "drop", "fail"] = "truncate"
    """A row longer than `max_length`: cut its end (no EOS), drop it, or stop. Stage pretrain splits and never cuts."""
    loss_on: Literal["assistant", "all"] = "assistant"
    """Stage sft: the tokens that are trained on: the assistant's turns, or all."""
    processes: int | None = Field(default=None, ge=1, le=1024)
    """Processes that tokenise (default: the CPU count, at most 16; one for few rows)."""

    @field_validator("template")
    @classmethod
    def _require_known_name(cls, template: str) -> str:
        # A path is checked when it is read: the run may be in another directory by then.
        if is_name(template) and template not in ("auto", *NAMED) and not Path(template).exists():
            what, remedy = unknown(template)
            raise Contradiction(what, code="unknown-template", remedy=remedy)
        return template

    def contradictions(self) -> Iterator[Contradiction]:
        first, *others = [key for key in ("eval", "eval_fraction", "eval_rows") if getattr(self, key)] or [""]
        for other in others:
            yield Contradiction(
                f"data.{first} and data.{other} contradict each other",
                code="conflicting-keys",
                remedy="keep one of them",
                path=("data", other),
            )
