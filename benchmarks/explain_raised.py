"""Of how many messages that packages raise does `explain` know more than their own words?

    python benchmarks/explain_raised.py [PACKAGE_OR_DIRECTORY ...] [--unknown N]

Reads the `raise` and `assert` statements with a text in the sources of installed packages (or of a directory), puts
each at the end of a traceback that ends in that file, and asks `explain`. Values that the code would fill in are
invented. Most of them are internal checks that no user meets: the share says where knowledge is missing, not how good
it is.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import table

from ascendtune.check.explain.explain import explain

_PACKAGES = ("transformers", "trl", "peft", "accelerate", "datasets", "huggingface_hub", "torch", "safetensors")
_NOT_MET = re.compile(
    r"(?:^|/)(?:tests?|testing|examples?|docs?|scripts|_inductor|_dynamo|_refs|_prims|onnx|fx|jit|ao|_export|export)/|"
    r"(?:^|/)(?:test_|convert_|modular_|setup)"
)
_VALUE = "\N{REPLACEMENT CHARACTER}"
_LEAST = 12
"""Letters of a message that can be told from others."""
_PLACEHOLDER = re.compile(r"%[-\d.]*[sdrfx]|\{[^{}]*\}")
_NUMBER = re.compile(r"(?:^|[._])(?:n|num|size|len|count|dim|rank|shape|length|world|idx|index)\b|len\(")


@dataclass(frozen=True)
class Raised:
    """A `raise` or `assert` statement with a text."""

    file: str
    line: int
    function: str
    exception: str
    message: str

    def log(self, value: str) -> str:
        """A traceback that ends with it; `value` is in the place of each that the code would fill in."""
        return (
            'Traceback (most recent call last):\n  File "/home/me/run.py", line 7, in <module>\n    main()\n'
            f'  File "/opt/venv/lib/python3.11/site-packages/{self.file}", line {self.line}, in {self.function}\n'
            f"    raise {self.exception}(\n{self.exception}: {self.message.replace(_VALUE, value)}\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=_PACKAGES)
    parser.add_argument("--unknown", type=int, default=0, help="print the first so many messages without an entry")
    given = parser.parse_args()
    rows = []
    for name in given.packages:
        raised = list(_raised_in(_root_of(name)))
        unknown = [each for each in raised if not _is_known(each)]
        for each in unknown[: given.unknown]:
            print(
                f"{each.file}:{each.line}: {each.exception}: {' '.join(each.message.replace(_VALUE, 'moon').split())}"
            )
        share = 1 - len(unknown) / len(raised) if raised else 0
        rows.append([Path(name).name, str(len(raised)), str(len(raised) - len(unknown)), f"{share:.0%}"])
    print(table(["package", "messages", "known", "share"], rows))


def _root_of(name: str) -> Path:
    if Path(name).is_dir():
        return Path(name)
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        sys.exit(f"{name} is neither a directory nor an installed package")
    return Path(found.origin).parent


def _raised_in(root: Path) -> Iterator[Raised]:
    """Each message once."""
    seen = set()
    for path in sorted(root.rglob("*.py")):
        file = str(path.relative_to(root.parent))
        if _NOT_MET.search(str(path.relative_to(root))):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        except (SyntaxError, ValueError):
            continue
        for each in _statements(tree, file, "<module>"):
            if (each.exception, each.message) not in seen and sum(map(str.isalpha, each.message)) >= _LEAST:
                seen.add((each.exception, each.message))
                yield each


def _statements(node: ast.AST, file: str, function: str) -> Iterator[Raised]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and child.exc.args:
            exception, message = ast.unparse(child.exc.func).split(".")[-1], _text(child.exc.args[0]).strip()
            yield Raised(file, child.lineno, inner, exception, message)
        elif isinstance(child, ast.Assert) and child.msg is not None:
            yield Raised(file, child.lineno, inner, "AssertionError", _text(child.msg).strip())
        yield from _statements(child, file, inner)


def _text(node: ast.expr) -> str:
    """What an expression of literals would print; values are invented. Empty for any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return "7" if _NUMBER.search(ast.unparse(node.value)) else _VALUE
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _PLACEHOLDER.sub(_VALUE, _text(node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _PLACEHOLDER.sub(_VALUE, _text(node.func.value))
    return ""


def _is_known(raised: Raised) -> bool:
    return any(_is_log_known(raised.log(value)) for value in ("moon", "7"))


def _is_log_known(log: str) -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        file.write(log)
        file.flush()
        first = explain([file.name]).verdict.first
    return first is not None and first.is_known and not first.hit.entry.general


if __name__ == "__main__":
    main()
