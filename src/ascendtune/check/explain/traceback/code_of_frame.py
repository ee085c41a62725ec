"""Facts from the innermost frame of a traceback, its line of code, and the lines below the exception."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

from ascendtune.check.explain.language import say
from ascendtune.check.explain.traceback.attention_reasons import refusal_in

_NONE_HAS_NO = re.compile(r"'NoneType' object has no attribute '(\w+)'")
_SUBSCRIPT = re.compile(r"^(?:[\w., ]+ = )?([A-Za-z_][\w.]*(?:\([^()]*\))?)\[[^\[\]]*\]$")
"""A line of code with only one subscript: the expression that was None is certain."""
_LENGTH_OF = re.compile(r"\blen\(([A-Za-z_][\w.]*)\)")
_MEMBER_OF = re.compile(r"(?P<loop>\bfor [\w, ()]+? )?\bin (?P<whole>[A-Za-z_][\w.]*)(?![\w.(\[])")
_LOOP = re.compile(r"\bfor (?P<each>[\w, ()]+?) in (?P<whole>[A-Za-z_][\w.]*)(?![\w.(\[])")
_NO_ARGUMENT = re.compile(r"for argument '(\w+)' .*but (?:instead )?found type '?NoneType'?")
_PLACED = re.compile(r"(?P<function>\w+)\(\): argument '(?P<name>\w+)' \(position (?P<place>\d+)\) .*\bnot NoneType")
_OPERANDS = re.compile(
    r"unsupported operand type\(s\) for (?P<operator>[^\s=:]+)=?(?: or pow\(\))?: '(?P<left>\w+)' and '(?P<right>\w+)'"
)
_COMPARED = re.compile(
    r"'(?P<operator>[<>]=?)' not supported between instances of '(?P<left>\w+)' and '(?P<right>\w+)'"
)
_CONVERTED = re.compile(
    r"(?P<function>int|float)\(\) argument must be .*'NoneType'|'NoneType' object cannot be interpreted as an integer|"
    r"os\.PathLike object, not NoneType"
)
_USES_OF_NONE = (
    ("bad operand type for unary", ast.UnaryOp, "operand"),
    ("'NoneType' object is not subscriptable", ast.Subscript, "value"),
    ("'NoneType' object is not callable", ast.Call, "func"),
)
"""Words of a message, the node of the syntax tree that uses the value, and the node's attribute with the value."""
_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitOr: "|", ast.BitAnd: "&", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_LONGEST_CODE = 200
"""Characters of a line that is parsed: nothing in it is nested too deeply for Python."""
_LOOK_UP = re.compile(r"(?<![\w.\])])(?P<table>[A-Za-z_][\w.]*)\[(?P<key>\w[\w.]*|'[^']*'|\"[^\"]*\")\]")
"""A look-up in a named table."""

OUTERMOST = ("<module>", "<cell line")
"""Functions of the frame in which a program or a notebook cell begins."""

_CUT_NAMES = (
    (re.compile(r"No module named '(?P<part>[\w.]*)$"), re.compile(r"^(?:from|import) (?P<name>\w[\w.]*)")),
    (re.compile(r"has no attribute '(?P<part>\w*)$"), re.compile(r"\.(?P<name>[A-Za-z_]\w*)")),
    (re.compile(r"unexpected keyword argument '(?P<part>\w*)$"), re.compile(r"[(,] *(?P<name>[A-Za-z_]\w*)=(?!=)")),
    (re.compile(r"cannot import name '(?P<part>\w*)$"), re.compile(r"(?:import|,) \(?(?P<name>[A-Za-z_]\w*)")),
    (re.compile(r"^name '(?P<part>\w*)$"), re.compile(r"(?<![\w.])(?P<name>[A-Za-z_]\w*)")),
)
"""Ends of messages that are cut within a name, each with a pattern of such names in a line of code."""
_BARE_CONSTRUCTOR = re.compile(r"(?<![\w.])__init__(?=\(\) )")
_CALLED_CLASS = re.compile(r"^[^(]*?(?<![\w.])(?:[a-z_]\w*\.)*(?P<name>[A-Z]\w*)\((?!.*(?<!\w)[A-Z]\w*\()")
"""The outermost call of a line, if no other class is called in it."""
_ALIASES = {"FSDP": "FullyShardedDataParallel", "DDP": "DistributedDataParallel"}
"""Short names under which code imports classes, by their usual `import … as`."""
_LISTING = ("state_dict", "Weights only", "variable ready only once")
"""Messages of torch whose subject is named some lines below."""
_LISTED = re.compile(
    r"\W*(?:\w+ error: )?(?:Unexpected key\(s\)|Unsupported (?:global: |class )|Parameter at index \d)"
)


def completed(message: str, code: str) -> str:
    """Complete a message that is cut within a name with the name in the line of code; empty if several names fit."""
    for cut, named in _CUT_NAMES:
        if (end := cut.search(message)) is not None:
            names = (each["name"] for each in named.finditer(code))
            name = _only(each for each in names if each.startswith(end["part"]))
            return f"{message.removesuffix(end['part'])}{name}'" if name else ""
    return ""


def with_class(message: str, code: str) -> str:
    """`message` with the class that the line of code calls: Pythons before 3.10 say only "__init__()" of a constructor;
    unchanged where the line calls several classes or none.
    """
    called = _CALLED_CLASS.search(code) if _BARE_CONSTRUCTOR.search(message) else None
    if called is None:
        return message
    return _BARE_CONSTRUCTOR.sub(f"{_ALIASES.get(called['name'], called['name'])}.__init__", message, count=1)


def none_in(code: str, message: str) -> str:
    """Expression in `code` that was None, by the exception's message; empty if unknown."""
    attribute = _NONE_HAS_NO.search(message)
    if attribute is not None:
        used = re.search(rf"([A-Za-z_][\w.]*(?:\([^()]*\)|\[[^\[\]]*\])*)\.{attribute[1]}\b", code)
        used = used or re.search(rf"\bgetattr\(([A-Za-z_][\w.]*), [\"']{attribute[1]}[\"']", code)
        return used[1] if used else ""
    if "'NoneType' has no len()" in message:
        return _only(_LENGTH_OF.findall(code))
    if "argument of type 'NoneType' is not" in message:
        return _only(each["whole"] for each in _MEMBER_OF.finditer(code) if not each["loop"])
    if "'NoneType' object is not iterable" in message:
        return _iterated(code)
    if argument := _NO_ARGUMENT.search(message):
        return _only(re.findall(rf"\b{argument[1]}=([A-Za-z_][\w.]*)(?![\w.(\[])", code))
    if placed := _PLACED.search(message):
        return _only(_given(code, placed["function"], placed["name"], int(placed["place"])))
    if operands := _OPERANDS.search(message) or _COMPARED.search(message):
        return _operand(code, operands)
    if "concatenate" in message and '(not "NoneType")' in message:
        return _only(ast.unparse(right) for symbol, _, right in _operations(code) if symbol == "+")
    if converted := _CONVERTED.search(message):
        return _only(_converted(code, converted["function"] or ""))
    for words, kind, part in _USES_OF_NONE:
        if words in message:
            return _only(ast.unparse(getattr(each, part)) for each in _nodes_of(code) if isinstance(each, kind))
    return ""


def _given(code: str, function: str, name: str, place: int) -> Iterator[str]:
    """Expressions that calls of `function` in `code` pass as the argument `name`, at position `place`, from 1."""
    for node in _nodes_of(code):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == function:
            yield from (ast.unparse(each.value) for each in node.keywords if each.arg == name)
            yield from (ast.unparse(each) for each in node.args[place - 1 : place])


def _converted(code: str, function: str) -> Iterator[str]:
    """Arguments of the calls in `code` that are not constants; only of calls of `function` if it is not empty."""
    for node in _nodes_of(code):
        if isinstance(node, ast.Call) and function in ("", ast.unparse(node.func)):
            yield from (ast.unparse(each) for each in node.args if not isinstance(each, ast.Constant))


def _operand(code: str, operands: re.Match[str]) -> str:
    """The operand that was None by the message, if `code` has one such operator."""
    sides = [
        side
        for symbol, *both in _operations(code)
        if symbol == operands["operator"]
        for side, kind in zip(both, (operands["left"], operands["right"]), strict=True)
        if kind == "NoneType"
    ]
    return _only(ast.unparse(side) for side in sides)


def _operations(code: str) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Symbol, left and right operand of each operator in a line of code."""
    for node in _nodes_of(code):
        if isinstance(node, ast.BinOp):
            yield _SYMBOLS[type(node.op)], node.left, node.right
        elif isinstance(node, ast.AugAssign):
            yield _SYMBOLS[type(node.op)], node.target, node.value
        elif isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            for operator, (left, right) in zip(node.ops, pairwise(sides), strict=True):
                yield _SYMBOLS.get(type(operator), ""), left, right


def _nodes_of(code: str) -> list[ast.AST]:
    """Syntax nodes of a line of code, which may begin a block; none if it continues on the next line."""
    line = re.sub(r"^elif\b", "if", code.strip())
    if len(line) > _LONGEST_CODE:
        return []
    for text in (line, f"{line} pass"):
        # Warnings of Python's parser are not about our code.
        with suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
            return list(ast.walk(ast.parse(text)))
    return []


def _iterated(code: str) -> str:
    """Iterable of the loop in `code`; of the outer one of two nested loops."""
    loops = list(_LOOP.finditer(code))
    if len(loops) == 2 and loops[0]["each"] == loops[1]["whole"]:
        return say("{name} or an entry of it", name=loops[0]["whole"])
    return _only(each["whole"] for each in loops)


def _only(names: Iterable[str]) -> str:
    """The name, if it is the only one."""
    unique = dict.fromkeys(names)
    return next(iter(unique)) if len(unique) == 1 else ""


def argument_of(name: str, function: str, call: str) -> str:
    """Expression that the line `call` passes to `function`, if it is the only argument; else `name`."""
    passed = re.search(rf"\b{re.escape(function)}\(([A-Za-z_][\w.]*)\)", call) if function.isidentifier() else None
    first, blank, rest = name.partition(" ")
    return f"{passed[1]}{blank}{rest}" if passed and first.isidentifier() else name


def looked_up_in(marked: str) -> str:
    """Table of the look-up that Python's marks underline in a line of code; empty if they underline anything else."""
    table = _SUBSCRIPT.search(marked)
    return table[1] if table else ""


def table_in(code: str, message: str) -> str:
    """Table in `code` that lacks the key, which is the message of a KeyError; empty if unknown.

    It is the one in which the key itself is looked up, else the only one of the line.
    """
    key = message.strip("'\"")
    tables = {each["table"]: each["key"].strip("'\"") for each in _LOOK_UP.finditer(code)}
    named = [table for table, used in tables.items() if used == key]
    if named:
        return named[0]
    return next(iter(tables)) if len(tables) == 1 else ""


def indexed_in(code: str, message: str) -> str:
    """List in `code` that is too short, if only one is indexed or popped; else empty."""
    nodes = _nodes_of(code)
    if "pop from" in message:
        calls = (node.func for node in nodes if isinstance(node, ast.Call))
        return _only(
            ast.unparse(each.value) for each in calls if isinstance(each, ast.Attribute) and each.attr == "pop"
        )
    looked_up = [node for node in nodes if isinstance(node, ast.Subscript)]
    lists = (
        each for each in looked_up if not isinstance(each.slice, (ast.Slice, ast.Tuple)) and not _is_text(each.slice)
    )
    return _only(ast.unparse(each.value) for each in lists)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def taken_from(code: str, error: str, marked: str) -> str:
    """Expression in `code` that had no next value, or the wrong number of values, or no keys; empty if unknown.

    Args:
        error: the exception's type and message.
        marked: part of `code` that Python underlines.
    """
    nodes = _nodes_of(marked if marked and "indices must be integers" in error else code)
    if error.startswith("StopIteration"):
        called = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "next")
        return _only(ast.unparse(each.args[0]) for each in called if each.args)
    if "indices must be integers" in error:
        looked_up = (node for node in nodes if isinstance(node, ast.Subscript) and _is_text(node.slice))
        return _only(ast.unparse(each.value) for each in looked_up)
    if "values to unpack" not in error and "cannot unpack non-iterable" not in error:
        return ""
    assigned = (node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple))
    looped = (
        node for node in nodes if isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Tuple)
    )
    entries = (say("an entry of {name}", name=ast.unparse(each.iter)) for each in looped)
    return _only([*(ast.unparse(each.value) for each in assigned), *entries])


def condition_in(code: str) -> str:
    """Condition of an assert statement; empty if the statement continues on the next line."""
    return _only(ast.unparse(node.test) for node in _nodes_of(code) if isinstance(node, ast.Assert))


def listed_in(message: str, below: list[str]) -> str:
    """Line below an exception that names the subject of its message; empty if there is none."""
    if refusal := refusal_in(message, below):
        return "" if refusal in message else refusal
    if not any(each in message for each in _LISTING):
        return ""
    named = next((line.strip() for line in below if _LISTED.match(line)), "")
    return "" if named in message else named
