"""Facts from the innermost frame of a traceback, its line of code, and the lines below the exception."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.frame import is_command, is_of_standard_library, posix
from ascendtune.check.explain.traceback.attention_reasons import refusal_in

_NONE_HAS_NO = re.compile(r"'NoneType' object has no attribute '(\w+)'")
_SUBSCRIPT = re.compile(r"^(?:[\w., ]+ = )?([A-Za-z_][\w.]*(?:\([^()]*\))?)\[[^\[\]]*\]$")
"""A line of code with one subscript and nothing else, of which it can be said what was None."""
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
"""Words of a message, the use of a value that it is about, and where the syntax tree has the value."""
_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitOr: "|", ast.BitAnd: "&", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_LONGEST_CODE = 200
"""Of a line that is parsed: nothing in it is nested so deep that Python gives up."""
_LOOK_UP = re.compile(r"(?<![\w.\])])(?P<table>[A-Za-z_][\w.]*)\[(?P<key>\w[\w.]*|'[^']*'|\"[^\"]*\")\]")
"""A look-up in a table that has a name."""

_PACKAGE = re.compile(r".*/(?:site|dist)-packages/(?:[^/]+\.egg/)?([A-Za-z]\w*)")
_ANYBODYS = r"(?:train(?:ers?|ing)?|utils?|models?|data|common|core|scripts|tools|lib)/"
"""Directories below src/ that are parts of a project, and not packages."""
_SOURCE_TREE = re.compile(rf".*/(?:src/(?!{_ANYBODYS})(?=[a-z]\w*/)|(?P<name>[a-z]\w+)/(?=(?P=name)/))([a-z]\w*)/")
"""A package that runs from its source: below src/, or in a directory of its own name."""
OF_MODULES = ("__getattr__", "__getattribute__")
"""Methods of modules and configurations that say that they have no such attribute: who asked stands above them."""

OUTERMOST = ("<module>", "<cell line")
"""Functions of the frame in which a program or a cell of a notebook begins."""
_PASSING_ON = re.compile(
    r"torch/_ops\.py |torch/nn/modules/module\.py in _(?:wrapped_)?call_impl|torch/utils/_contextlib\.py |"
    r"accelerate/(?:hooks|utils/operations)\.py in (?:new_)?forward|"
    r"transformers/utils/(?:generic|deprecation)\.py in wrap|google/protobuf/"
)
"""Frames that only call a function with what they were given: who chose its arguments stands above them."""
_RUN_FROM_CLONES = re.compile(
    r"(?:.*/)?(vllm_(?:ascend|omni)|mindspeed(?:_\w+)?|mindie_llm|atb_llm|(?<!swift/)megatron|flag_gems|torchair|torch(?:ao|tune|titan|rl|vision|audio)|tensordict|liger_kernel|skyrl_train|prime_rl|nemo_rl|mind(?:formers|one|nlp))/"
)
"""Packages that are mostly run from a clone, whatever its directory is called."""
_OF_FRAMEWORK = re.compile(
    r"(?:.*/)?(?:sglang/(?=srt/)|vllm/(?=(?:v1|engine|entrypoints|executor|model_executor|worker|compilation)/)|"
    r"lmdeploy/(?=(?:pytorch|turbomind|serve)/)|verl/(?=(?:trainer|workers|single_controller)/)|"
    r"transformers/(?=(?:models|generation|integrations|utils)/)|deepspeed/(?=(?:runtime|ops|module_inject)/)|"
    r"llamafactory/(?=(?:train|data|model|hparams)/)|swift/(?=(?:cli|llm|trainers|megatron|tuners)/))"
)
"""Packages that are known by the directories within them, wherever they lie and however a path was shortened."""

_SHORTENED = re.compile(r"(?:\.{3}|…)/(?:.*/(?:src|lib)/)?(?!(?:src|lib|site|dist)\b)(?P<package>[a-z][a-z0-9_]+)/")
"""A file whose path was shortened: what is left begins with its package."""

_CUT_NAMES = (
    (re.compile(r"No module named '(?P<part>[\w.]*)$"), re.compile(r"^(?:from|import) (?P<name>\w[\w.]*)")),
    (re.compile(r"has no attribute '(?P<part>\w*)$"), re.compile(r"\.(?P<name>[A-Za-z_]\w*)")),
    (re.compile(r"unexpected keyword argument '(?P<part>\w*)$"), re.compile(r"[(,] *(?P<name>[A-Za-z_]\w*)=(?!=)")),
    (re.compile(r"cannot import name '(?P<part>\w*)$"), re.compile(r"(?:import|,) \(?(?P<name>[A-Za-z_]\w*)")),
    (re.compile(r"^name '(?P<part>\w*)$"), re.compile(r"(?<![\w.])(?P<name>[A-Za-z_]\w*)")),
)
"""Ends of messages within a name, each with what finds the names of its kind in a line of code."""
_LISTING = ("state_dict", "Weights only", "variable ready only once")
"""Messages of torch that name what they are about some lines below."""
_LISTED = re.compile(
    r"\W*(?:\w+ error: )?(?:Unexpected key\(s\)|Unsupported (?:global: |class )|Parameter at index \d)"
)


def completed(message: str, code: str) -> str:
    """The message whose end the log lacks, with the name from the line of code; empty where that is not one name."""
    for cut, named in _CUT_NAMES:
        if (end := cut.search(message)) is not None:
            found = (each["name"] for each in named.finditer(code))
            name = _only(each for each in found if each.startswith(end["part"]))
            return f"{message.removesuffix(end['part'])}{name}'" if name else ""
    return ""


def package_in(frames: list[tuple[str, int, str]], passed_on: str = "") -> str:
    """The package of the innermost of `frames` (file, line, function); empty if it is not in one.

    Args:
        passed_on: a package whose frames do not count: it only passed on what its caller gave it.
    """
    called = [(posix(file), function) for file, _, function in frames if function not in OF_MODULES]
    choosing = (file for file, function in reversed(called) if not _PASSING_ON.search(f"{file} in {function}"))
    packages = map(_package_of, choosing)
    return next((package for package in packages if not passed_on or package != passed_on), "")


def library_alone(frames: list[tuple[str, int, str]]) -> str:
    """The package of the innermost frame outside of torch, where all of `frames` are those of packages, of Python, or
    of a command that pip installed; empty if one is other code."""
    files = [posix(file) for file, _, _ in frames]
    others = [file for file in files if not (file.startswith("<frozen ") or is_command(file))]
    packages = [_package_of(file) for file in others if file[:1] == "<" or not is_of_standard_library(file)]
    return next((package for package in reversed(packages) if package != "torch"), "") if all(packages) else ""


def is_model_code_in(frames: list[tuple[str, int, str]]) -> bool:
    """Whether a frame is of code that a model on the hub brings (trust_remote_code)."""
    return any("/transformers_modules/" in posix(file) for file, _, _ in frames)


def _package_of(file: str) -> str:
    match = _PACKAGE.match(file) or _SOURCE_TREE.match(file) or _RUN_FROM_CLONES.match(file)
    return match[match.re.groups] if match else framework_of(file) or _cloned(file) or _shortened(file)


def framework_of(file: str) -> str:
    """The training or serving framework that a file belongs to by its directories; empty if it is another file."""
    match = _OF_FRAMEWORK.match(file)
    return match[0].rstrip("/").rpartition("/")[2] if match else ""


def _cloned(file: str) -> str:
    """The package that runs from a clone whose directory has its name in another spelling: Moon-MM/moon_mm/."""
    *folders, _ = file.split("/")
    pairs = pairwise(folders)
    return next((inner for outer, inner in pairs if outer != inner and _spelt(outer) == inner), "")


def _shortened(file: str) -> str:
    match = _SHORTENED.match(file)
    is_anybodys = match is not None and re.match(_ANYBODYS, f"{match['package']}/") is not None
    return match["package"] if match and not is_anybodys else ""


def _spelt(folder: str) -> str:
    return folder.lower().replace("-", "_")


def none_in(code: str, message: str) -> str:
    """The expression in `code` that was None, by the exception's message; empty if it is not known."""
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
    """The expressions in `code` that calls of `function` pass as the argument `name`, the one at `place` from 1 on."""
    for node in _nodes_of(code):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == function:
            yield from (ast.unparse(each.value) for each in node.keywords if each.arg == name)
            yield from (ast.unparse(each) for each in node.args[place - 1 : place])


def _converted(code: str, function: str) -> Iterator[str]:
    """The arguments of calls in `code` that are not constants; of calls of `function` alone, where it is named."""
    for node in _nodes_of(code):
        if isinstance(node, ast.Call) and function in ("", ast.unparse(node.func)):
            yield from (ast.unparse(each) for each in node.args if not isinstance(each, ast.Constant))


def _operand(code: str, operands: re.Match[str]) -> str:
    """The side of the one operator of this kind in `code` that the message says was None."""
    sides = [
        side
        for symbol, *both in _operations(code)
        if symbol == operands["operator"]
        for side, kind in zip(both, (operands["left"], operands["right"]), strict=True)
        if kind == "NoneType"
    ]
    return _only(ast.unparse(side) for side in sides)


def _operations(code: str) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Symbol, left and right side of each operator in a line of code."""
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
    """Of a line of code, also of one that begins a block; none where it goes on in the next line."""
    line = re.sub(r"^elif\b", "if", code.strip())
    if len(line) > _LONGEST_CODE:
        return []
    for text in (line, f"{line} pass"):
        # What Python itself would warn of is for whoever runs that code.
        with suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
            return list(ast.walk(ast.parse(text)))
    return []


def _iterated(code: str) -> str:
    """The iterable of the loop in `code`; of two nested loops that of the outer one."""
    loops = list(_LOOP.finditer(code))
    if len(loops) == 2 and loops[0]["each"] == loops[1]["whole"]:
        return say("{name} or an entry of it", name=loops[0]["whole"])
    return _only(each["whole"] for each in loops)


def _only(names: Iterable[str]) -> str:
    """The name, if it is the only one."""
    found = dict.fromkeys(names)
    return next(iter(found)) if len(found) == 1 else ""


def argument_of(name: str, function: str, call: str) -> str:
    """The expression that the line `call` passes to `function`, if it is the only argument; else `name`."""
    passed = re.search(rf"\b{re.escape(function)}\(([A-Za-z_][\w.]*)\)", call) if function.isidentifier() else None
    first, blank, rest = name.partition(" ")
    return f"{passed[1]}{blank}{rest}" if passed and first.isidentifier() else name


def looked_up_in(marked: str) -> str:
    """The table of the one look-up that Python's marks single out in a line of code; empty if they do not."""
    table = _SUBSCRIPT.search(marked)
    return table[1] if table else ""


def table_in(code: str, message: str) -> str:
    """The table in `code` that lacks the key, which is the message of a KeyError; empty if it is not known.

    That is the one in which the key itself is looked up, else the only one of the line.
    """
    key = message.strip("'\"")
    tables = {each["table"]: each["key"].strip("'\"") for each in _LOOK_UP.finditer(code)}
    named = [table for table, used in tables.items() if used == key]
    if named:
        return named[0]
    return next(iter(tables)) if len(tables) == 1 else ""


def indexed_in(code: str, message: str) -> str:
    """The list in `code` that is too short, if only one is indexed or popped; empty if it is not known."""
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
    """The expression that gave `code` no value, or the wrong number of them, or was read by a key although it has none;
    empty if it is not known.

    Args:
        error: the exception's type and message.
        marked: the part of `code` that Python underlines.
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
    """The condition of an assert statement; empty where the statement goes on in the next line."""
    return _only(ast.unparse(node.test) for node in _nodes_of(code) if isinstance(node, ast.Assert))


def listed_in(message: str, below: list[str]) -> str:
    """The line below an exception that names what its message is about; empty if there is none."""
    if refusal := refusal_in(message, below):
        return "" if refusal in message else refusal
    if not any(each in message for each in _LISTING):
        return ""
    named = next((line.strip() for line in below if _LISTED.match(line)), "")
    return "" if named in message else named
