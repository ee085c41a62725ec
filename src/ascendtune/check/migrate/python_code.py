"""Python, read as a syntax tree: names are resolved through imports; comments and docstrings are ignored."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from ascendtune.check.migrate.rules import CUDA_ONLY, KEYWORDS, MODULES, STRINGS, SUBMODULES, Hit

# Files without any of these words cannot match a rule: most files of a code base are not parsed at all.
_WORTH_READING = re.compile(
    "|".join(
        [
            r"cuda|CUDA|nccl|NCCL|nvidia|float64|double\b|Double|torch\.compile|\bjit\b",
            r"torch import [^\n]{0,500}compile",
            r"8bit|4bit|_bnb|flash_attention_3|cudnn|cpp_extension|deepspeed\.ops|BitsAndBytes",
            rf"\b({'|'.join(MODULES)})\b",
        ]
    ).encode()
)
_STRINGS = [(re.compile(pattern), code) for pattern, code in STRINGS]
_MOVED = re.compile(r"cuda(:\d+)?|nccl")
_CATCHES_IMPORTS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_INDUCTOR = (None, "inductor")
_LONGEST_STRING = 1000
"""Characters; no name or command has more."""


def find_in_python(source: bytes) -> list[Hit]:
    """The hits, sorted by line; a file that cannot be parsed is one hit."""
    if not _WORTH_READING.search(source):
        return []
    try:
        # Python's warnings about invalid escapes are irrelevant here.
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        return [Hit("not-readable", getattr(error, "lineno", None) or 1, str(error).splitlines()[0])]
    lines = source.decode("utf-8", errors="replace").splitlines()
    finder = _Finder(lines)
    try:
        finder.visit(tree)
    except RecursionError:
        finder.hits.append(Hit("not-readable", 1, "nested too deeply to be analysed"))
    return sorted(set(finder.hits), key=lambda hit: hit.line)


class _Finder(ast.NodeVisitor):
    def __init__(self, lines: list[str]) -> None:
        self.hits: list[Hit] = []
        self._lines = lines
        self._names: dict[str, str] = {}
        """Local name -> full name: th -> torch, amp -> torch.cuda.amp."""
        self._guards = 0

    def visit_Try(self, node: ast.Try) -> None:
        caught = {name for handler in node.handlers for name in _exception_names(handler)}
        is_guard = bool(caught & _CATCHES_IMPORTS)
        self._guards += is_guard
        for each in node.body:
            self.visit(each)
        self._guards -= is_guard
        for other in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(other)

    def visit_If(self, node: ast.If) -> None:
        if getattr(node.test, "id", getattr(node.test, "attr", None)) == "TYPE_CHECKING":
            for each in node.orelse:
                self.visit(each)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
            self._imported(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            return
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self._names[alias.asname or alias.name] = full
            self._imported(node, full)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._full_name(node)
        if name is None:
            if node.attr in ("cuda", "is_cuda") and isinstance(node.ctx, ast.Load):
                self._hit("moves-by-itself", node)
            self.generic_visit(node)
        else:
            self._named(node, name)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and "." in (name := self._names.get(node.id, "")):
            self._named(node, name)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._full_name(node.func)
        keywords = {each.arg: each.value for each in node.keywords}
        if name == "torch.compile":
            self._compiled(node, keywords)
        if name in ("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline") and (
            "cuda_sources" in keywords or ".cu" in ast.unparse(node)
        ):
            self._hit("cuda-extension", node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "double" and not (node.args or node.keywords):
            self._hit("float64", node)
        for argument, value in keywords.items():
            if (code := KEYWORDS.get(argument or "")) and not (isinstance(value, ast.Constant) and not value.value):
                self._hit(code, node)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._decorated(node)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for side in (node.left, *node.comparators):
            parts = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
            for part in parts:
                if not (isinstance(part, ast.Constant) and isinstance(part.value, str)):
                    self.visit(part)
                elif _MOVED.fullmatch(part.value):
                    self._hit("device-compare", node)

    def visit_Expr(self, node: ast.Expr) -> None:
        # A string as a statement is a docstring.
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str) or len(node.value) > _LONGEST_STRING:
            return
        if _MOVED.fullmatch(node.value):
            self._hit("moves-by-itself", node)
        for pattern, code in _STRINGS:
            if pattern.fullmatch(node.value):
                self._hit(code, node)

    def _imported(self, node: ast.stmt, name: str) -> None:
        code = MODULES.get(name.partition(".")[0]) or _longest(name)
        if code is None and name.startswith("torch.cuda.") and name.split(".")[2] in CUDA_ONLY:
            code = "cuda-only-api"
        if code and code != "float64":
            self._hit(code, node, is_optional=self._guards > 0)

    def _named(self, node: ast.expr, name: str) -> None:
        """Handle a name whose module is known."""
        if code := _longest(name):
            self._hit(code, node)
        elif name.startswith("torch.cuda."):
            self._hit("cuda-only-api" if name.split(".")[2] in CUDA_ONLY else "moves-by-itself", node)

    def _compiled(self, node: ast.Call, keywords: dict[str | None, ast.expr]) -> None:
        backend = keywords.get("backend")
        backend_name = backend.value if isinstance(backend, ast.Constant) else None if backend is None else "own"
        disabled = keywords.get("disable")
        if backend_name in _INDUCTOR and not (isinstance(disabled, ast.Constant) and disabled.value is True):
            self._hit("torch-compile", node)

    def _decorated(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            if self._full_name(decorator) == "torch.compile":
                self._hit("torch-compile", decorator)

    def _full_name(self, node: ast.expr) -> str | None:
        """The full name of an imported object, e.g. torch.cuda.amp; None for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._names:
            return None
        return ".".join([self._names[node.id], *reversed(parts)])

    def _hit(self, code: str, node: ast.expr | ast.stmt, *, is_optional: bool = False) -> None:
        text = self._lines[node.lineno - 1].strip() if node.lineno <= len(self._lines) else ""
        self.hits.append(Hit(code, node.lineno, text, is_optional))


def _longest(name: str) -> str | None:
    """The rule of a dotted name, or of its longest prefix that has one."""
    parts = name.split(".")
    codes = (SUBMODULES.get(".".join(parts[:length])) for length in range(len(parts), 0, -1))
    return next((code for code in codes if code), None)


def _exception_names(handler: ast.ExceptHandler) -> Iterator[str]:
    if handler.type is None:
        yield "BaseException"
        return
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for each in types:
        yield ast.unparse(each).rpartition(".")[2]
