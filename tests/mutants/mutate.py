"""Faults that mutmut's operators make of a source file, each as the whole text of the file.

Only mutmut's operators and its walk over the syntax tree are used; decision 10 says why its runner is not.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from mutmut.mutation import mutators
from mutmut.mutation.file_mutation import create_mutations


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        file: below src/ascendtune.
        function: the outermost function around the fault, with its class; empty on module level.
        line: of the first changed line, from 1.
        old: the changed lines as they are, stripped and joined.
        new: the same lines with the fault.
        key: the same for the same change of the same function, wherever it stands in the file.
        text: the whole file with the fault.
    """

    file: str
    function: str
    line: int
    old: str
    new: str
    key: str
    text: str

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]


@dataclass(frozen=True)
class Candidate:
    """A fault whose text has not been made yet: making all texts of a file takes minutes."""

    file: str
    key: str
    module: cst.Module
    original: cst.CSTNode
    mutated: cst.CSTNode

    def rank(self, seed: int) -> str:
        """Where the draw with this seed has it: a hash, so that other faults may come and go."""
        return hashlib.sha256(f"{seed}:{self.key}".encode()).hexdigest()


def candidates(root: Path, file: str) -> Iterator[Candidate]:
    """All faults that the operators make of one file."""
    source = (root / file).read_text()
    module, mutations, *_ = create_mutations(file, source)
    seen: Counter[str] = Counter()
    for mutation in mutations:
        if _is_sentence(mutation.original_node):
            continue
        around = mutation.contained_by_top_level_function
        name = around.name.value if isinstance(around, cst.FunctionDef) else ""
        context = module.code_for_node(around) if around is not None else ""
        change = f"{module.code_for_node(mutation.original_node)} -> {module.code_for_node(mutation.mutated_node)}"
        identity = f"{file}:{name}:{change}:{hashlib.sha256(context.encode()).hexdigest()}"
        seen[identity] += 1
        key = hashlib.sha256(f"{identity}:{seen[identity]}".encode()).hexdigest()[:16]
        yield Candidate(file, key, module, mutation.original_node, mutation.mutated_node)


def made(root: Path, candidate: Candidate) -> Mutant | None:
    """The fault with its text; None where the text is no Python or the change is of white space alone."""
    source = (root / candidate.file).read_text()
    changed = candidate.module.deep_replace(candidate.original, candidate.mutated)
    assert isinstance(changed, cst.Module)
    text = changed.code
    try:
        compile(text, candidate.file, "exec")
        if ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
            return None
    except SyntaxError:
        return None
    before, after = source.splitlines(), text.splitlines()
    same = 0
    while before[same] == after[same]:
        same += 1
    behind = 0
    while behind < min(len(before), len(after)) - same and before[-1 - behind] == after[-1 - behind]:
        behind += 1
    line = same + 1
    old, new = (" ".join(each[same : len(each) - behind]).split() for each in (before, after))
    function = function_at(source, line)
    return Mutant(candidate.file, function, line, " ".join(old), " ".join(new), candidate.key, text)


def function_at(source: str, line: int) -> str:
    """The qualified name of the outermost function around a line, with its class; empty on module level."""
    node = _outermost(ast.parse(source).body, line)
    return ".".join(node)


def lines_of_function(source: str, line: int) -> range | None:
    """The lines of the innermost function around a line; None on module level and in the body of a class."""
    inner = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if line in lines and (inner is None or len(lines) < len(inner)):
                inner = lines
    return inner


def _outermost(body: Iterable[ast.stmt], line: int) -> list[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
            inner = _outermost(node.body, line) if isinstance(node, ast.ClassDef) else []
            return [node.name, *inner]
    return []


def _is_sentence(node: cst.CSTNode) -> bool:
    """Words for people: changing them is no fault of the kind that spoils a run."""
    return isinstance(node, cst.SimpleString | cst.FormattedStringText | cst.ConcatenatedString) and " " in getattr(
        node, "value", " "
    )


def _dropped_call(node: cst.SimpleStatementLine) -> Iterable[cst.SimpleStatementLine]:
    match node.body:
        case [cst.Expr(value=cst.Call())]:
            yield node.with_changes(body=[cst.Pass()])


def _dropped_keyword(node: cst.Call) -> Iterable[cst.Call]:
    for at, argument in enumerate(node.args):
        if argument.keyword is not None:
            yield node.with_changes(args=[*node.args[:at], *node.args[at + 1 :]])


def _swapped_arguments(node: cst.Call) -> Iterable[cst.Call]:
    plain = [at for at, each in enumerate(node.args) if each.keyword is None and not each.star]
    if len(plain) == 2:
        first, second = plain
        swapped = list(node.args)
        swapped[first] = node.args[first].with_changes(value=node.args[second].value)
        swapped[second] = node.args[second].with_changes(value=node.args[first].value)
        yield node.with_changes(args=swapped)


def _negated_condition(node: cst.If | cst.While) -> Iterable[cst.CSTNode]:
    # Comparisons and `not` have operators of mutmut's own.
    if not isinstance(node.test, cst.Comparison | cst.UnaryOperation):
        inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(operator=cst.Not(), expression=inner))


def _open_slice(node: cst.Slice) -> Iterable[cst.Slice]:
    if node.lower is not None:
        yield node.with_changes(lower=None)
    if node.upper is not None:
        yield node.with_changes(upper=None)


def _one_less(node: cst.Integer) -> Iterable[cst.BaseExpression]:
    if node.evaluated_value > 0:
        yield node.with_changes(value=repr(node.evaluated_value - 1))


def _one_string(node: cst.BaseString) -> Iterable[cst.BaseString]:
    # The first is another string; those that follow differ in case alone.
    yield from list(mutators.operator_string(node))[:1]


# None for a value, and a call without one of its positional arguments, end in a TypeError at the first call:
# they would only make the share of killed faults look better.
_TOO_EASY = (mutators.operator_assignment, mutators.operator_arg_removal, mutators.operator_string)
_OPERATORS = [
    *((kind, make) for kind, make in mutators.mutation_operators if make not in _TOO_EASY),
    (cst.BaseString, _one_string),
    (cst.SimpleStatementLine, _dropped_call),
    (cst.Call, _dropped_keyword),
    (cst.Call, _swapped_arguments),
    (cst.If, _negated_condition),
    (cst.While, _negated_condition),
    (cst.Slice, _open_slice),
    (cst.Integer, _one_less),
]
assert isinstance(mutators.mutation_operators, list)
mutators.mutation_operators[:] = _OPERATORS
