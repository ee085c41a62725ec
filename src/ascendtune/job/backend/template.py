"""Files for engines, from templates that look like them: `templates/`.

`<name>` is replaced by a value. Lines between `<if name>` and `<end>` are kept if the value is neither empty nor false,
those after `<if not name>` if it is. Lines that begin with `##` are comments of the template. A value is quoted as its
format requires, and its own text is never parsed as a template.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_PLACEHOLDER = re.compile(r"<([a-z_]+)>")
_IF = re.compile(r"<if (?P<negated>not )?(?P<name>[a-z_]+)>")

Values = Mapping[str, Any]


class Code(str):
    """A value for a script that is already code, and not quoted."""


def fill_script(name: str, values: Values) -> str:
    """A shell script. A line with a list is repeated for each of its items; numbers and strings become one word each.

    Lines with `#SBATCH` are quoted as sbatch reads them, other comments not at all.
    """
    return "".join(f"{line}\n" for template in _lines(name, values) for line in _filled_lines(template, values))


def _filled_lines(template: str, values: Values) -> list[str]:
    for each in _PLACEHOLDER.findall(template):
        if isinstance(values[each], list | tuple):
            return [line for item in values[each] for line in _filled_lines(template, {**values, each: item})]
    quote = _quoted_for_sbatch if template.startswith("#SBATCH") else str if template.startswith("#") else shlex.quote

    def quoted(found: re.Match[str]) -> str:
        value = values[found[1]]
        return value if isinstance(value, Code) else quote(str(value))

    return [_PLACEHOLDER.sub(quoted, template)]


def _quoted_for_sbatch(option: str) -> str:
    """Quote a part of an argument of sbatch in a directive, where a space ends it, and `#` begins a comment."""
    return re.sub(r"""([\s"'\\#])""", r"\\\1", option)


def fill_yaml(name: str, values: Values) -> list[Any]:
    """The documents of a YAML file. A value that is a whole item keeps its type.

    A list in place of an item is inserted as its items, a mapping in place of a key as its entries.
    """
    documents = yaml.safe_load_all("\n".join(_lines(name, values)))
    return [_filled(each, values) for each in documents]


def _filled(node: Any, values: Values) -> Any:
    if isinstance(node, dict):
        filled: dict[Any, Any] = {}
        for key, inner in node.items():
            found = _filled(key, values)
            filled |= found if isinstance(found, dict) else {found: _filled(inner, values)}
        return filled
    if isinstance(node, list):
        items: list[Any] = []
        for each in node:
            found = _filled(each, values)
            items += found if isinstance(each, str) and isinstance(found, list | tuple) else [found]
        return items
    if not isinstance(node, str):
        return node
    if alone := _PLACEHOLDER.fullmatch(node):
        return values[alone[1]]
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), node)


def _lines(name: str, values: Values) -> list[str]:
    """The lines of a template whose conditions the values fulfil."""
    kept, conditions = [], []
    for line in (Path(__file__).with_name("templates") / name).read_text(encoding="utf-8").splitlines():
        if condition := _IF.fullmatch(line):
            conditions.append(bool(values[condition["name"]]) != bool(condition["negated"]))
        elif line == "<end>":
            conditions.pop()
        elif all(conditions) and not line.lstrip().startswith("##"):
            kept.append(line)
    return kept


def heading(name: str, values: Values) -> str:
    """The comments at the top of a YAML file, and the line that separates them from the first document."""
    lines = itertools.takewhile(lambda line: line.startswith(("#", "---")), _lines(name, values))
    return "".join(_PLACEHOLDER.sub(lambda found: str(values[found[1]]), line) + "\n" for line in lines)


def to_yaml(*documents: Any) -> str:
    """The documents, one after the other, keys in their order."""
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=200)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        # Otherwise two equal pods would become one pod and a reference to it, which is hard to edit.
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)
