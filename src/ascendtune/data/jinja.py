"""The Jinja dialect of chat templates: the same sandbox, filters and tags as in transformers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro

from ascendtune.data.template_limits import LimitedEnvironment

# Marks around the text of a {% generation %} block. They are removed from the text before it is used. No data can
# contain them: each process draws its own.
_DRAWN = secrets.token_hex(8)
GENERATION_BEGINS = f"\ufdd0generation {_DRAWN}\ufdd1"
GENERATION_ENDS = f"\ufdd0endgeneration {_DRAWN}\ufdd1"


class ChatEnvironment(LimitedEnvironment):
    """Compiles chat templates."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters["tojson"] = to_json
        self.limit_filter("tojson")
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now


def split_generation_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without marks, and the character ranges between them, in order."""
    if GENERATION_BEGINS not in text:
        return text, []
    pieces, ranges, length = [], [], 0
    before, *blocks = text.split(GENERATION_BEGINS)
    for piece in [before, *blocks]:
        generated, mark, rest = piece.partition(GENERATION_ENDS)
        if mark:
            ranges.append((length, length + len(generated)))
        pieces += [generated, rest]
        length += len(generated) + len(rest)
    return "".join(pieces), ranges


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape `<`, `>`, `&` and `'` for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`: with it a template marks the text that the model generates."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_marked"), [], [], body)
        block.set_lineno(line)
        return block

    def _marked(self, caller: Macro | Callable[[], str]) -> str:
        return GENERATION_BEGINS + caller() + GENERATION_ENDS


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
