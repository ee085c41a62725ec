"""Colours, width, tables and language of a command's output."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO

from ascendtune.core import language
from ascendtune.core.terminal_text import control, terminal_width
from ascendtune.core.text_table import table_lines

if TYPE_CHECKING:
    from ascendtune.check.finding import Finding

PLAIN_COLUMNS = 100
"""Width for text that is laid out, if it is piped."""
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
_CODES = {**_COLOURS, "bold": "1", "dim": "2"}


def colour(text: str, name: str, stream: TextIO) -> str:
    """`text` in a colour, if `stream` is a terminal and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"{control(f'[{_CODES[name]}m', stream)}{text}{control('[0m', stream)}"


def paint(text: str, name: str) -> str:
    """`colour` for stdout."""
    return colour(text, name, sys.stdout)


def width(stream: TextIO) -> int | None:
    """Columns of the terminal `stream`, or None if it is not a terminal: piped output is never cut."""
    return terminal_width(stream)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), spare: Sequence[str] = ()
) -> str:
    """Aligned columns with two spaces between them.

    Args:
        right: headers of right-aligned columns.
        spare: headers of columns that are dropped, in this order, until the others fit on the terminal, which are then
            never cut. Without `spare` the first column is shortened.
    """
    return "\n".join(table_lines(header, rows, limit=width(sys.stdout), right=right, spare=spare))


def print_json(content: Any, *, indent: int | None = 2) -> None:
    """Print plain values as JSON, for a program; with `indent` None in one line."""
    # Imported here: `--help` does not need it.
    from ascendtune.core.records import json_for_programs

    print_json_text(json_for_programs(content, indent=indent))


def print_json_text(text: str) -> None:
    """Print JSON; characters that the encoding of stdout may lack are escaped, so that values are not changed."""
    if not sys.stdout.encoding.lower().startswith("utf"):
        text = re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], text)
    print(text, flush=True)


def print_findings(
    sentence: str, findings: Sequence[Finding], *, as_json: bool = False, everything: bool = False, **further: Any
) -> None:
    """Print a verdict and its findings.

    Args:
        everything: whether the evidence of findings that are ok is also shown; JSON always has it.
        further: additional keys of the JSON.
    """
    from ascendtune.check import table

    if as_json:
        print_json_text(table.as_json(sentence, findings, **further))
    else:
        print(table.as_text(sentence, findings, columns=width(sys.stdout), paint=paint, everything=everything))


def in_language(
    option: str | None, *, as_json: bool = False, encoding: str | None = None
) -> AbstractContextManager[None]:
    """Context in which a command prints in the language of `--lang`, else of the locale.

    JSON is in English, unless `--lang` selects another language.

    Args:
        encoding: encoding of the output file (default: that of stdout).

    Raises:
        InputError: `option` is not a language.
    """
    return language.using(language.choose(option, {} if as_json else os.environ, encoding or sys.stdout.encoding))
