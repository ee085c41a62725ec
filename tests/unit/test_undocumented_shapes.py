"""tools/undocumented_shapes.py, on a small package."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "undocumented_shapes.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("undocumented_shapes", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _found(tool: ModuleType, tmp_path: Path, text: str) -> list[str]:
    package = tmp_path / "package"
    package.mkdir()
    (package / "types.py").write_text("Floats = NDArray[np.float64]\n")
    (package / "code.py").write_text(text)
    return [name for _, _, name in tool.undocumented(package)]


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: torch.Tensor) -> None: ...",
        "def f() -> dict[str, Tensor | None]: ...",
        "def f(*x: np.ndarray[Any, Any]) -> None:\n    '''Take x (see there).'''",
        "from package.types import Floats\ndef f(x: Floats) -> None: ...",
    ],
)
def test_a_function_with_arrays_and_no_shape_is_listed(tool: ModuleType, tmp_path: Path, text: str) -> None:
    assert _found(tool, tmp_path, text) == ["f"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: Tensor) -> None:\n    '''x: (rows,) int32.'''",
        "def f(x: Tensor) -> None:\n    '''x: (batch × tokens, vocabulary).'''",
        "def f(x: Tensor) -> None:\n    '''x: any shape.'''",
        "def _private(x: Tensor) -> None: ...",
        "def f(x: Callable[[Tensor], Tensor]) -> None: ...",
        "Floats = tuple[int, ...]\ndef f(x: Floats) -> None: ...",
        "'''All inputs and results: (groups,).'''\ndef f(x: Tensor) -> None: ...",
        "class A:\n    '''x: (rows,).'''\n    def __init__(self, x: Tensor) -> None: ...",
        "class A:\n    def f(self) -> Tensor:\n        '''(rows,)'''\nclass B(A):\n    def f(self) -> Tensor: ...",
    ],
)
def test_a_shape_in_reach_or_no_array_is_not_listed(tool: ModuleType, tmp_path: Path, text: str) -> None:
    assert _found(tool, tmp_path, text) == []


def test_a_method_without_a_shape_is_listed_with_its_class(tool: ModuleType, tmp_path: Path) -> None:
    text = "class A:\n    '''x: (rows,).'''\n    def f(self, x: Tensor) -> None: ..."
    assert _found(tool, tmp_path, text) == ["A.f"]
