"""Lists public functions in src/ that take or return tensors or arrays and state no shape.

CONTRIBUTING, "Words": docstrings give shapes and dtypes of tensors.

    python tools/undocumented_shapes.py                  the whole package
    python tools/undocumented_shapes.py data merge       some rooms of it

A shape is written as in `(rows, tokens)`, `(groups,)`, `(…, hidden)` or `()`; a function that works on tensors of every
shape says "any shape". It stands in the docstring of the function, in that of its class for `__init__`, in that of the
method of a base class that it overrides, or in that of its module or class behind "All inputs and results:". Private
and nested functions are not looked at. Exit code 1 where there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "ascendtune"
_ARRAYS = {"Tensor", "NDArray", "ndarray"}
_DIMENSION = r"(?:\*?[A-Za-z_0-9.]+(?: ?[-+×*/] ?[A-Za-z_0-9.]+)*|…|\.\.\.|-1)"
_SHAPE = re.compile(rf"\((?:{_DIMENSION},|{_DIMENSION}(?:, {_DIMENSION})+|)\)|\b[Aa]ny shape\b")
_FOR_ALL = re.compile(r"All inputs and results:(.*)", re.DOTALL)

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(rooms: list[str]) -> int:
    found = [each for each in undocumented(SOURCE) if not rooms or each[0].relative_to(SOURCE).parts[0] in rooms]
    for file, line, name in found:
        print(f"{file.relative_to(SOURCE.parents[1])}:{line}: {name} states no shape")
    return 1 if found else 0


def undocumented(source: Path) -> Iterator[tuple[Path, int, str]]:
    """File, line and name of each."""
    modules = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(source.rglob("*.py"))}
    classes = {each.name: each for module in modules.values() for each in module.body if isinstance(each, ast.ClassDef)}
    aliases = {_dotted(file, source): _aliases(module) for file, module in modules.items()}
    for file, module in modules.items():
        arrays = _ARRAYS | aliases[_dotted(file, source)] | _imported(module, aliases)
        for function, owner in _public_functions(module):
            if _has_arrays(function, arrays) and not _states_shape(module, owner, function, classes):
                yield file, function.lineno, f"{owner.name}.{function.name}" if owner else function.name


def _has_arrays(function: _Function, arrays: set[str]) -> bool:
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    annotations = (function.returns, *(each.annotation for each in named if each is not None))
    return any(each is not None and _mentions(each, arrays) for each in annotations)


def _states_shape(
    module: ast.Module, owner: ast.ClassDef | None, function: _Function, classes: dict[str, ast.ClassDef]
) -> bool:
    texts = [_docstring(function)]
    if owner is not None:
        texts += [_docstring(owner)] if function.name == "__init__" else []
        texts += [_docstring(each) for each in _overridden(owner, function.name, classes)]
    texts += [found[1] for each in (module, owner) if each and (found := _FOR_ALL.search(_docstring(each)))]
    return any(_SHAPE.search(each) for each in texts)


def _overridden(owner: ast.ClassDef, name: str, classes: dict[str, ast.ClassDef]) -> Iterator[_Function]:
    for base in owner.bases:
        above = classes.get(ast.unparse(base).partition("[")[0].rpartition(".")[2])
        if above is not None and above is not owner:
            yield from (each for each in above.body if isinstance(each, _Function) and each.name == name)
            yield from _overridden(above, name, classes)


def _public_functions(module: ast.Module) -> Iterator[tuple[_Function, ast.ClassDef | None]]:
    for node in module.body:
        if isinstance(node, _Function) and not node.name.startswith("_"):
            yield node, None
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for each in node.body:
                if isinstance(each, _Function) and (not each.name.startswith("_") or each.name.startswith("__")):
                    yield each, node


def _mentions(annotation: ast.expr, names: set[str]) -> bool:
    """Whether a value of this type holds arrays; a function that takes them does not."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Callable"):
        return False
    if isinstance(annotation, ast.Name | ast.Attribute):
        return ast.unparse(annotation).rpartition(".")[2] in names
    return any(_mentions(each, names) for each in ast.iter_child_nodes(annotation) if isinstance(each, ast.expr))


def _aliases(module: ast.Module) -> set[str]:
    """Names that a module gives to types which are tensors or arrays, or hold them."""
    return {
        node.targets[0].id
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _mentions(node.value, _ARRAYS)
        if isinstance(node.value, ast.Subscript | ast.Attribute)
    }


def _imported(module: ast.Module, aliases: dict[str, set[str]]) -> set[str]:
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom) and node.module in aliases]
    return {each.name for node in imports for each in node.names if each.name in aliases[node.module or ""]}


def _dotted(file: Path, source: Path) -> str:
    return ".".join(file.relative_to(source.parent).with_suffix("").parts)


def _docstring(node: ast.Module | ast.ClassDef | _Function) -> str:
    return ast.get_docstring(node) or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
