"""Lists functions, methods and classes in src/ that nothing in src/ names: `python tools/unused_definitions.py`.

A word anywhere else in the package counts as a use, also in a table of strings. What only tests call is not used: it is
given to a command, or deleted. Exit code 1 where there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "ascendtune"
_CALLED_BY_LIBRARIES = ("validator", "override", "property.setter")
"""Decorators of what a library calls by itself."""
_OVERRIDDEN = {
    *("ignore_aliases", "writelines", "setup_context", "autoload"),
    *("get_backend", "is_closed", "set_closed", "num_nodes_waiting", "shutdown", "next_rendezvous", "use_agent_store"),
}
"""What others call: methods of yaml.Dumper, a stream, autograd, torch's RendezvousHandler; torch's entry point."""


def main() -> int:
    unused = list(unused_definitions(SOURCE))
    for file, line, name in unused:
        print(f"{file.relative_to(SOURCE.parents[1])}:{line}: nothing uses {name}")
    return 1 if unused else 0


def unused_definitions(source: Path) -> Iterator[tuple[Path, int, str]]:
    """File, line and name of each."""
    definitions, words = [], Counter[str]()
    for file in sorted(source.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        words.update(re.findall(r"\w+", text))
        nodes = (each for each in ast.walk(ast.parse(text)) if isinstance(each, _Definition))
        definitions += [(file, node.lineno, node.name) for node in nodes if not _is_called_from_outside(node)]
    defined = Counter(name for _, _, name in definitions)
    for file, line, name in definitions:
        if words[name] <= defined[name]:
            yield file, line, name


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _is_called_from_outside(node: _Definition) -> bool:
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return (
        node.name.startswith(("__", "visit_", "_repr_"))
        or node.name in _OVERRIDDEN
        or any(word in each for each in decorators for word in _CALLED_BY_LIBRARIES)
    )


if __name__ == "__main__":
    sys.exit(main())
