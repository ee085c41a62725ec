"""A YAML or JSON file as plain values with their places.

YAML is read with positions: `1e-4` is a number, a duplicate key is an error, and the origin of each value is kept, for
error messages and for `origins.json`, which distinguishes default, file and override.

Size, depth and number of values are bounded, including values that aliases repeat: any file is read or refused within
a second.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ascendtune.core.errors import RecipeError, combined_error, read_fault
from ascendtune.core.files import is_endless
from ascendtune.core.mask import contains_secret, is_name_of_secret
from ascendtune.core.suggest import closest
from ascendtune.core.yaml_faults import fault_of_text, syntax_fault, tag_as_written

Path_ = tuple[str | int, ...]

_RECIPE = "recipe"

# PyYAML reads 0.2 MB a second where every line is a key.
_MOST_BYTES = 256 * 1024
_MOST_VALUES = 10_000
_DEEPEST = 32
_MERGE = "tag:yaml.org,2002:merge"
_LEADING_ZERO = re.compile(r"[-+]?0[0-7]+")


@dataclass
class Document:
    """Plain values, and the origin of each: `places[("optim", "learning_rate")] == "recipe.yaml:7"`."""

    values: dict[str, Any]
    source: str
    places: dict[Path_, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Notes for the user, if the values were translated from another format."""
    ignored: list[str] = field(default_factory=list)
    """The notes about keys that have no effect."""
    other_names: dict[str, str] = field(default_factory=dict)
    """Key -> its name in the file, if the values were translated from another format."""

    def place(self, path: Path_) -> str:
        """The place of `path`, or of the nearest enclosing value."""
        for length in range(len(path), 0, -1):
            if found := self.places.get(path[:length]):
                return found
        return self.source


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, with the numbers of YAML 1.2: `1e-4` is a float, `1:30:00` and dates are text."""

    yaml_implicit_resolvers = {
        first: [each for each in resolvers if each[0].rpartition(":")[2] not in ("int", "float", "timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self._source = source
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Raises:
        RecipeError: too deep, too many values, or an explicit tag.
        """
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        where = f"{self._source}:{mark.line + 1}" if mark else self._source
        self._nodes += 1
        # A key and its value are two nodes.
        if self._depth > _DEEPEST or self._nodes > 2 * _MOST_VALUES:
            raise _too_much(where)
        if (tag := getattr(event, "tag", None)) not in (None, "!"):
            raise RecipeError(
                f"the YAML tag '{_short(tag_as_written(tag))}' is not supported",
                code="yaml-tag",
                remedy="remove it; to make a value text, put it in quotes",
                where=where,
            )
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _too_much(where: str) -> RecipeError:
    return RecipeError(
        f"more than {_MOST_VALUES:,} values or {_DEEPEST} levels",
        code="document-too-large",
        remedy="shorten it here; each alias (*name) counts as all the values that it repeats",
        where=where,
    )


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0b[01]+|0x[0-9a-fA-F]+|0[0-7]*|[1-9][0-9_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$|^[-+]?\d[\d_]*\.[\d_]*$|^[-+]?\.\d[\d_]*([eE][-+]?\d+)?$"
        r"|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$",
        re.ASCII,
    ),
    list("-+0123456789."),
)


def read_document(path: Path, what: str = _RECIPE) -> Document:
    """Read a YAML or JSON file.

    Args:
        what: the kind of document, for messages.

    Raises:
        RecipeError: the file is missing, not YAML, not a mapping, or contains a key twice.
        MachineError: no permission to read it.
    """
    text = _text_of(path, what)
    # JSON may be indented with tabs, which YAML refuses; in a JSON string a tab is always escaped.
    return parse_document(text.replace("\t", " ") if path.suffix.lower() == ".json" else text, str(path), what)


def _text_of(path: Path, what: str) -> str:
    try:
        if is_endless(path):
            raise RecipeError(
                "a pipe or a device, not a file",
                code="not-a-regular-file",
                remedy=f"write the {what} into a file",
                where=path,
            )
        # A pipe of the shell has no size, and a file may grow while it is read.
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise RecipeError(
                f"larger than {_MOST_BYTES // 1024} KiB",
                code="document-too-large",
                remedy=f"give a {what}; a file of this size is not one",
                where=path,
            )
        return content.decode("utf-8")
    except FileNotFoundError:
        raise RecipeError(
            f"no such {what}", code="path-missing", remedy=_missing_file_remedy(path, what), where=path
        ) from None
    except IsADirectoryError:
        resumed = "; a run is resumed with its recipe.yaml" if what == _RECIPE else ""
        raise RecipeError(
            f"this is a directory, not a {what}",
            code="not-a-file",
            remedy=f"give the file in it{resumed}",
            where=path,
        ) from None
    except UnicodeDecodeError as error:
        line = len(error.object[: error.start + 1].splitlines())
        raise RecipeError(
            "not UTF-8 text", code="not-utf8", remedy=f"save the {what} as UTF-8", where=f"{path}:{line}"
        ) from error
    except OSError as error:
        fault = RecipeError(
            f"cannot be read: {error.strerror}", code="file-unreadable", remedy="check the path", where=path
        )
        raise read_fault(error, path) or fault from error


def parse_document(text: str, source: str, what: str = _RECIPE) -> Document:
    """`read_document` for text; `source` is the place used in messages."""
    try:
        return _values_of(text, source, what)
    except yaml.YAMLError as error:
        raise syntax_fault(error, text, source) from error


def _values_of(text: str, source: str, what: str) -> Document:
    loader = _Loader(text, source)
    try:
        node = loader.get_single_node()
        if node is None:
            start = "`ascendtune init` writes one to start from" if what == _RECIPE else "write its keys into it"
            raise RecipeError(f"the {what} is empty", code="document-empty", remedy=start, where=source)
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(
                f"the {what} is not a mapping of keys to values",
                code="not-a-mapping",
                remedy="write it as `key: value` lines",
                where=source,
            )
        document = Document({}, source)
        document.values = _PlainValues(loader, document).of(node, ())
        return document
    finally:
        loader.dispose()


class _PlainValues:
    """Converts composed nodes to dict, list, str, int, float, bool and None; aliases are expanded, within limits."""

    def __init__(self, loader: _Loader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._count = 0
        self._around: list[yaml.Node] = []

    def of(self, node: yaml.Node, path: Path_) -> Any:
        """Raises:
        RecipeError: a key that is not text or occurs twice, a value whose type is not the apparent one, an alias that
            refers to itself or expands to too many values.
        """
        self._document.places.setdefault(path, self._source_line(node))
        self._add(1, node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        self._enter(node)
        if isinstance(node, yaml.MappingNode):
            plain: Any = self._mapping(node, path)
        else:
            plain = [self.of(item, (*path, index)) for index, item in enumerate(node.value)]
        self._around.pop()
        return plain

    def _add(self, values: int, node: yaml.Node) -> None:
        self._count += values
        if self._count > _MOST_VALUES or len(self._around) > _DEEPEST:
            raise _too_much(self._source_line(node))

    def _enter(self, node: yaml.Node) -> None:
        if any(node is each for each in self._around):
            raise RecipeError(
                "an alias refers to a value that contains it",
                code="yaml-alias-recursive",
                remedy="remove this alias",
                where=self._source_line(node),
            )
        self._around.append(node)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, (key_node, value_node) in self._pairs(node).items():
            self._document.places[(*path, key)] = self._source_line(key_node)
            result[key] = self.of(value_node, (*path, key))
        return result

    def _pairs(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """The keys of a mapping and those that `<<: *name` adds; own keys take precedence, then earlier merged ones."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                several = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for each in several:
                    for key, pair in self._merged_pairs(each).items():
                        merged.setdefault(key, pair)
                continue
            key = self._key(key_node)
            if key in own:
                raise RecipeError(
                    f"the key '{_short(key)}' is given twice, first in line {own[key][0].start_mark.line + 1}",
                    code="duplicate-key",
                    remedy="remove one of them",
                    where=self._source_line(key_node),
                )
            own[key] = key_node, value_node
        return merged | own

    def _merged_pairs(self, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(
                "the value that << merges is not a mapping",
                code="yaml-merge-not-a-mapping",
                remedy="name a mapping",
                where=self._source_line(node),
            )
        self._enter(node)
        pairs = self._pairs(node)
        self._around.pop()
        self._add(1 + len(pairs), node)
        return pairs

    def _key(self, node: yaml.Node) -> str:
        key = self._scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            is_scalar = isinstance(node, yaml.ScalarNode)
            fault = f"the key '{_short(node.value)}' is not text" if is_scalar else "a key is a list or a mapping"
            remedy = "put the key in quotes" if is_scalar else "write the name of one key"
            raise RecipeError(fault, code="key-not-text", remedy=remedy, where=self._source_line(node))
        if isinstance(node, yaml.ScalarNode) and node.style is None and key != key.strip():
            odd = key[0] if key[0].isspace() else key[-1]
            raise RecipeError(
                f"the character U+{ord(odd):04X} is next to the key '{_short(key.strip())}': it looks like a space, "
                "but YAML reads it as a letter",
                code="key-beside-odd-space",
                remedy="delete it, and indent with ordinary spaces",
                where=self._source_line(node),
            )
        return key

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.style is None and _LEADING_ZERO.fullmatch(node.value):
            raise RecipeError(
                f"'{_short(node.value)}' begins with 0: some programs read it as octal, others as decimal",
                code="number-ambiguous",
                remedy="remove the zero, or put it in quotes if it is text",
                where=self._source_line(node),
            )
        try:
            value = self._loader.construct_object(node)
        except (ValueError, OverflowError) as error:
            raise RecipeError(
                f"'{_short(node.value)}' looks like a number and cannot be read as one",
                code="number-unreadable",
                remedy="write a smaller number, or put it in quotes if it is text",
                where=self._source_line(node),
            ) from error
        if isinstance(value, str) and (fault := fault_of_text(value)):
            raise RecipeError(
                f"the text contains {fault}", code="unsafe-text", remedy="remove it", where=self._source_line(node)
            )
        return value

    def _source_line(self, node: yaml.Node) -> str:
        return f"{self._document.source}:{node.start_mark.line + 1}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _missing_file_remedy(path: Path, what: str) -> str:
    folder = path.parent
    names = (
        [entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml", ".json")]
        if folder.is_dir()
        else []
    )
    similar = closest(path.name, names)
    # An equal suffix does not suffice to make names similar.
    if similar and (len(path.stem) < 3 or closest(path.stem, [Path(similar).stem])):
        return f"did you mean '{folder / similar}'?"
    return "check the path" + ("; `ascendtune init` writes a recipe" if what == _RECIPE else "")


def require_no_secrets(document: Document, remedy: str) -> None:
    """Raise if a key has the name of a secret, or a value looks like one: recipes are copied into other files.

    Raises:
        RecipeError: all of them; it contains the keys, never the values.
    """
    errors: list[RecipeError] = []
    waiting = deque[tuple[Path_, Any]]([((), document.values)])
    seen: set[int] = set()
    while waiting:
        path, value = waiting.popleft()
        named = bool(path) and isinstance(path[-1], str) and is_name_of_secret(path[-1])
        if (named and value is not None) or (isinstance(value, str) and contains_secret(value)):
            dotted = ".".join(map(str, path))
            what, where = f"'{dotted}' contains a password or a token", document.place(path)
            errors.append(RecipeError(what, code="secret-in-recipe", remedy=remedy, where=where))
        # An alias may refer to a value that contains it.
        if id(value) not in seen and isinstance(value, dict | list):
            seen.add(id(value))
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [((*path, key), each) for key, each in inner]
    if errors:
        raise combined_error(errors)


def parse_value(text: str, where: str) -> Any:
    """A single value, read as in a file.

    Raises:
        RecipeError: invalid YAML, or a value that is not allowed in a file.
    """
    try:
        loader = _Loader(text, where)
        try:
            node = loader.get_single_node()
            return None if node is None else _PlainValues(loader, Document({}, where)).of(node, ())
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise RecipeError(
            "the value is not valid YAML", code="invalid-yaml", remedy="put the value in quotes", where=where
        ) from error
    except RecipeError as error:
        raise RecipeError(error.what, code=error.code, remedy=error.remedy, where=where) from error
