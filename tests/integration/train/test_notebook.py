"""docs/notebook.ipynb: its cells run one after the other in this process, on a tiny model, beside a kernel's display.

No kernel is started: nbclient and ipykernel weigh more than what they would add here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from ascendtune.train.report.notebook import Picture, in_notebook

NOTEBOOK = Path(__file__).parents[3] / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def shown() -> Iterator[list[str]]:
    """What IPython was asked to display, as HTML; this process counts as a kernel meanwhile."""
    pages: list[str] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    # Matplotlib asks.
    ipython.version_info = (9, 0)  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]

    def show(page: str, *, display_id: bool) -> SimpleNamespace:
        assert display_id
        pages.append(page)
        return SimpleNamespace(update=pages.append)

    display.display = show  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "IPython", ipython)
        patch.setitem(sys.modules, "IPython.display", display)
        yield pages


@pytest.fixture(scope="module", autouse=True)
def _empty_pictures() -> None:
    """Replaces the fixture that writes empty ones: the notebook shows them."""


@pytest.fixture(scope="module")
def cells(shown: list[str], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the cells leave, and under `values` what their last lines come to."""
    names: dict[str, Any] = {"values": {}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] != "code":
                continue
            source = "".join(cell["source"]).replace("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_model))
            *others, last = source.splitlines()
            has_value = last[0].isalpha() and " = " not in last
            exec(compile("\n".join(others if has_value else [*others, last]), str(NOTEBOOK), "exec"), names)
            if has_value:
                names["values"][last] = eval(last, names)
    return names


def test_every_cell_runs_and_leaves_its_values(cells: dict[str, Any]) -> None:
    values = cells["values"]
    assert cells["result"].steps == 6
    assert isinstance(values["result.plot()"], Picture) and values["result.plot()"]._repr_png_().startswith(b"\x89PNG")
    [answer] = values['engine.generate([[{"role": "user", "content": "What is 3 plus 3?"}]])']
    assert isinstance(answer, str)


def test_loaded_model_has_the_adapter(cells: dict[str, Any]) -> None:
    model = cells["model"]
    assert not model.training
    assert any(".lora_B." in name and torch.any(each != 0) for name, each in model.named_parameters())


def test_cell_shows_a_bar_that_ends_with_the_last_step(cells: dict[str, Any], shown: list[str]) -> None:
    assert cells["result"].steps == 6
    assert "waiting for the first step" in shown[0]
    assert "step 6/6" in shown[-1] and 'value="6" max="6"' in shown[-1] and "evaluation loss" in shown[-1]
    assert in_notebook()


def test_terminal_is_not_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not in_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
