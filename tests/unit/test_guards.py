"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import ascendtune
from ascendtune.cli.commands import COMMANDS
from ascendtune.core import errors
from ascendtune.job.nodes.cluster_spec import TargetHost
from ascendtune.job.nodes.connection import module_on

SOURCE = Path(ascendtune.__file__).parent
HEAVY = ("torch", "transformers", "peft", "torch_npu", "matplotlib", "huggingface_hub")


def _modules_imported_by(statement: str) -> set[str]:
    look = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import ascendtune.recipe.recipe",
        "from ascendtune.train import Recipe, fit",
        "import ascendtune.job.backend.local, ascendtune.machine.visible",
        "import ascendtune.data.load, ascendtune.hub.download",
        "from ascendtune.machine.snapshot import take_snapshot; take_snapshot()",
    ],
)
def test_torch_is_imported_by_the_worker_only(statement: str) -> None:
    assert not _modules_imported_by(statement) & set(HEAVY)


def test_the_package_itself_imports_nothing() -> None:
    assert _modules_imported_by("import ascendtune") - _modules_imported_by("") == {"ascendtune"}


def _error_classes(root: type[errors.AscendtuneError]) -> Iterator[type[errors.AscendtuneError]]:
    yield root
    for each in root.__subclasses__():
        yield from _error_classes(each)


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[Path, ast.Module]]:
    # Half a million nodes, none of which can be collected before the last test: looking at them takes longer than
    # parsing.
    gc.disable()
    parsed = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    gc.freeze()
    gc.enable()
    yield parsed
    gc.unfreeze()


def _defines_an_error(module: ast.Module, known: set[str]) -> bool:
    classes = (node for node in ast.walk(module) if isinstance(node, ast.ClassDef))
    return any(isinstance(base, ast.Name) and base.id in known for each in classes for base in each.bases)


def test_every_error_demands_a_remedy_or_always_has_one(modules: dict[Path, ast.Module]) -> None:
    known = {each.__name__ for each in _error_classes(errors.AscendtuneError)}
    for path, module in modules.items():
        if _defines_an_error(module, known):
            import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    found = set(_error_classes(errors.AscendtuneError))
    assert len(found) >= 8
    for each in found:
        try:
            error = each("what happened")  # type: ignore[call-arg]
        except TypeError as refusal:
            assert "remedy" in str(refusal), each
        else:
            assert error.remedy, each


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that importing the module imports, or may be attributes of what it imports."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _imports(ast.iter_child_nodes(node))


def _with_packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _import_graph(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Module -> those that importing it imports, but for the packages that it is in."""
    return {
        name: {part for each in _imports(tree.body) for part in _with_packages(each)} & set(modules)
        - set(_with_packages(name))
        for name, tree in modules.items()
    }  # fmt: skip


def test_imports_form_no_cycle_so_that_their_order_does_not_matter(modules: dict[Path, ast.Module]) -> None:
    named = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in modules.items()
    }
    graph = _import_graph(named)
    assert sum(map(len, graph.values())) > 1000
    TopologicalSorter(graph).prepare()


def test_a_cycle_of_imports_is_found() -> None:
    texts = {"a": "import a.b", "a.b": "try:\n    from c import x\nfinally: pass", "c": "from a.b import y"}
    with pytest.raises(CycleError):
        TopologicalSorter(_import_graph({name: ast.parse(text) for name, text in texts.items()})).prepare()


_SYNONYMS = re.compile(
    "(bad|wrong|illegal|impossible|no-such|missing|conflict|contradict[a-z]*|not-enough|double|twice)-"
    "|.*-(not-found|not-installed|not-possible|absent|corrupt|contradiction)$"
)
"""What `CONTRIBUTING.md` has another word for. The data pages call rows that cannot be trained on bad rows."""


@pytest.fixture(scope="module")
def codes(modules: dict[Path, ast.Module]) -> set[str]:
    found = set()
    for module in modules.values():
        calls = (node for node in ast.walk(module) if isinstance(node, ast.Call))
        given = (word.value for call in calls for word in call.keywords if word.arg == "code")
        found |= {str(each.value) for each in given if isinstance(each, ast.Constant)}
    return found - {""}


def test_error_codes_follow_the_naming_rule(codes: set[str]) -> None:
    assert len(codes) > 200
    assert [code for code in codes if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){0,4}", code)] == []
    assert [code for code in codes - {"bad-rows"} if _SYNONYMS.match(code)] == []


def test_no_two_error_codes_have_the_same_words(codes: set[str]) -> None:
    assert len({tuple(sorted(code.split("-"))) for code in codes}) == len(codes)


def _calls_of_print(module: ast.Module) -> list[int]:
    calls = (node for node in ast.walk(module) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def test_only_the_command_line_prints(modules: dict[Path, ast.Module]) -> None:
    printing = {path.relative_to(SOURCE).parts[0] for path, module in modules.items() if _calls_of_print(module)}
    assert printing == {"cli"}


def test_every_room_says_in_one_sentence_what_it_answers() -> None:
    rooms = [path for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))]
    assert len(rooms) >= 6
    for room in rooms:
        docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
        assert docstring and "?" in docstring.splitlines()[0], f"{room.name}/__init__.py"


_BEGINS_WITH_PRONOUN = re.compile(r"(?:What|Whoever|Who|Nobody)\b")


def _docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings of a module, its classes and functions, and of its attributes and constants."""
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _begins_with_pronoun(path: Path, line: int, text: str) -> bool:
    is_question = path.name == "__init__.py" and line == 1 and "?" in text.splitlines()[0]
    return _BEGINS_WITH_PRONOUN.match(text) is not None and not is_question


def test_no_docstring_begins_with_a_pronoun(modules: dict[Path, ast.Module]) -> None:
    """Only the question of a room, in the first line of its `__init__.py`, may begin with What or Who."""
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path, module in modules.items()
        for line, text in _docstrings(module)
        if _begins_with_pronoun(path, line, text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "code", "is_found"),
    [
        ("tides.py", '"""What is a tide? The sea."""', True),
        ("__init__.py", '"""What is a tide? The sea."""', False),
        ("__init__.py", '"""What a tide is."""', True),
        ("__init__.py", 'TIDE = 1\n"""What is a tide?"""', True),
        ("tides.py", 'class Tide:\n    height: int\n    """Whoever measures it."""', True),
        ("tides.py", 'def tide() -> None:\n    """Whole tides."""', False),
    ],
)
def test_a_docstring_that_begins_with_a_pronoun_is_found(name: str, code: str, is_found: bool) -> None:
    assert [_begins_with_pronoun(Path(name), *each) for each in _docstrings(ast.parse(code))] == [is_found]


_DESCRIBED = re.compile(r"^ *Args:\n((?: .*\n|\n(?= ))*)", re.MULTILINE)


def _unknown_parameters(module: ast.Module) -> Iterator[str]:
    """FUNCTION: NAME for each name under "Args:" of a docstring that is not a parameter."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            described = _DESCRIBED.search(f"{text}\n")
            names = re.findall(
                r"^    (\w+(?:, \w+)*):", described[1].split("\n\n")[0] if described else "", re.MULTILINE
            )
            known = _parameters(node)
            yield from (
                f"{node.name}: {name}" for each in names for name in each.split(", ") if known and name not in known
            )


def _parameters(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Names of the parameters; of a class, its fields or those of its `__init__`; empty if a base class has it."""
    if isinstance(node, ast.ClassDef):
        init = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        fields = {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        return _parameters(init[0]) if init else fields
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}


def test_docstrings_describe_parameters_that_exist(modules: dict[Path, ast.Module]) -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {each}"
        for path, module in modules.items()
        for each in _unknown_parameters(module)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def tide(height): X", ["tide: low"]),
        ("def tide(height, low): X", []),
        ("def tide(*, high: int, low: int): X", ["tide: height"]),
        ("class Tide:\n    X\n    height: int", ["Tide: low"]),
        ("class Tide:\n    X\n    def __init__(self, height, low): ...", []),
        ("class Tide(Sea):\n    X", []),
    ],
)
def test_a_described_parameter_that_does_not_exist_is_found(code: str, found: list[str]) -> None:
    text = '"""Tide.\n\n    Args:\n        height, low: in metres.\n            high: no parameter.\n    """'
    assert list(_unknown_parameters(ast.parse(code.replace("X", text)))) == found


_KINDS = {"npu", "cuda"}
_VENDORS_OWN = ("machine/vendor", "machine/torch_backend", "machine/npu", "check/migrate")
"""Where a vendor is known by name: its own files, and the search for CUDA in code that is to be migrated."""
_TABLES = ("train/kernel/install.py",)
"""Tables of name -> module."""


def _words(node: ast.expr) -> set[object]:
    if isinstance(node, ast.Constant):
        return {node.value}
    return (
        {word for each in node.elts for word in _words(each)}
        if isinstance(node, ast.Tuple | ast.List | ast.Set)
        else set()
    )


def _vendor_branches(tree: ast.Module) -> list[int]:
    """Lines that compare something with the kind of a vendor's devices, or choose by it in a dict or a `match`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            words = set().union(*map(_words, (node.left, *node.comparators)))
        elif isinstance(node, ast.Dict):
            keys = set().union(*(_words(key) for key in node.keys if key is not None))
            words = keys if len(keys & {*_KINDS, "cpu"}) > 1 else set()
        elif isinstance(node, ast.MatchValue):
            words = _words(node.value)
        else:
            continue
        if words & _KINDS:
            found.append(node.value.lineno if isinstance(node, ast.MatchValue) else node.lineno)
    return found


def test_only_a_vendors_own_files_branch_on_its_kind(modules: dict[Path, ast.Module]) -> None:
    """Elsewhere a device or its vendor answers: see machine/vendor/base.py and machine/torch_backend/device.py."""
    branches = [
        f"{name}:{line}"
        for path, module in modules.items()
        if not (name := path.relative_to(SOURCE).as_posix()).startswith(_VENDORS_OWN) and name not in _TABLES
        for line in _vendor_branches(module)
    ]
    assert branches == []


@pytest.mark.parametrize(
    "code", ["if kind == 'npu': pass", "x = kind in ('cuda', 'rocm')", "x = {'npu': 1, 'cpu': 2}[kind]"]
)
def test_a_branch_on_a_vendor_is_found(code: str) -> None:
    assert _vendor_branches(ast.parse(code)) == [1]


_COMMAND = re.compile(
    rf"(?:^|[\s`'\"(])(?:ascendtune (?:{'|'.join(COMMANDS)})|chown -R|chown \$USER|chmod [-+\w]+|rm(?: -rf?)?|mkdir -p"
    rf"|git switch|git -C|tensorboard --logdir|python|cd|export [A-Z_]+)"
    rf"(?: -[\w-]+| \S*X)*[ =]$"
)
"""A command, up to the place of an argument; X stands for earlier arguments."""
_NOT_PATHS = frozenset(
    ("job.id", "spec.id", "self._destination.tracker", "repository", "host", "command", "encoding", "root", "program",
     "os.geteuid()")
)  # fmt: skip
"""Names that have no special characters, and what the user types as a whole."""


def _unquoted(module: ast.Module) -> list[str]:
    """Arguments in the commands of messages that are not quoted for the shell, as "line: expression"."""
    quoted = {
        ast.unparse(name)
        for node in ast.walk(module)
        if isinstance(node, ast.Assign) and re.search(r"quote\b|shlex\.join", ast.unparse(node.value))
        for target in node.targets
        for name in (target.elts if isinstance(target, ast.Tuple) else [target])
    }
    found = []
    for node in ast.walk(module):
        text = ""
        for part in node.values if isinstance(node, ast.JoinedStr) else ():
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            assert isinstance(part, ast.FormattedValue)
            expression = ast.unparse(part.value)
            is_safe = "quote" in expression or expression in quoted or expression in _NOT_PATHS
            if _COMMAND.search(text) and not is_safe:
                found.append(f"{part.lineno}: {expression}")
            text += "X"
    return found


def test_arguments_of_suggested_commands_are_quoted(modules: dict[Path, ast.Module]) -> None:
    """A directory of a stranger may be called `$(reboot)`, and people paste what a remedy says."""
    unquoted = [f"{path.relative_to(SOURCE)}:{each}" for path, module in modules.items() for each in _unquoted(module)]
    assert unquoted == []


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("f'see `ascendtune runs show {run}`'", True),
        ("f'`ascendtune merge {a} --to {run}`'", True),
        ("f'`ascendtune merge {shlex.quote(a)} --to {run}`'", True),
        ("f'rm -r {run}'", True),
        ("f'`ascendtune runs show {shlex.quote(str(run))}`'", False),
        ("run = shlex.quote(x)\nf'`ascendtune runs show {run}`'", False),
        ("f'this version of ascendtune reads {run}'", False),
    ],
)
def test_unquoted_argument_of_a_suggested_command_is_found(code: str, is_found: bool) -> None:
    assert bool(_unquoted(ast.parse(code))) == is_found


def test_our_modules_are_started_without_the_working_directory_in_their_path() -> None:
    """A directory of a stranger may hold torch.py or ascendtune.py, which `python -m` alone would run."""
    unsafe = [
        path.name
        for path in SOURCE.rglob("*.py")
        for found in re.finditer(r'(\S+)\s+"-m",\s+(?:"ascendtune|module\b)', path.read_text("utf-8"))
        if found[1] not in ('"-P",', '("-P",')
    ]
    assert unsafe == []


def test_module_of_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    for name in ("ascendtune", "json", "threading"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the working directory')")
    argv = module_on(TargetHost("localhost"), "ascendtune.check.nodes.agent")
    done = subprocess.run(argv, cwd=tmp_path, input='{"clock": true}\n', capture_output=True, text=True, timeout=120)
    assert '{"time": ' in done.stdout, done.stderr
