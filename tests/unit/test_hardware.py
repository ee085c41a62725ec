"""`make hardware`: pieces end in time and are kept, and the page says what the results say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from python_path import python_path

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """`hardware.run`, `page` and `cells`, which do not belong to the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        from hardware import cells, machine, page, run

        yield {"cells": cells, "machine": machine, "page": page, "run": run}
    for name in [each for each in sys.modules if each.partition(".")[0] == "hardware"]:
        del sys.modules[name]


@pytest.fixture
def run(modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(modules["run"], "_WORK", tmp_path / "work")
    return modules["run"]


def program(run: Any, name: str, code: str) -> Any:
    return run.Piece(name, ("-c", code, "{out}"))


WRITES = 'import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(\'{"summary": "9 tokens/s"}\')'


@pytest.mark.parametrize(
    ("code", "limit", "expected"),
    [
        (WRITES, 60, {"state": "passed", "summary": "9 tokens/s"}),
        (WRITES.replace("summary", "state").replace("9 tokens/s", "skipped"), 60, {"state": "skipped"}),
        (WRITES + "; sys.exit('out of memory')", 60, {"state": "failed", "summary": "out of memory"}),
        ("import os; os.kill(os.getpid(), 9)", 60, {"state": "failed", "summary": "ended by SIGKILL"}),
        ("import time; time.sleep(600)", 0.5, {"state": "failed", "timed_out": True, "summary": "ended after 0 s"}),
    ],
    ids=["passes", "skips", "fails", "is killed", "takes too long"],
)
def test_result_of_a_piece_says_how_it_ended(run: Any, code: str, limit: float, expected: dict[str, Any]) -> None:
    result = run.run_piece(program(run, "piece", code), run.environment_of_pieces(Path("packages")), limit)
    assert {key: result.get(key) for key in expected} == expected
    assert not list(run._WORK.iterdir())


_ALONE = """
import sys
from pathlib import Path
from hardware import run

run._WORK = Path(sys.argv[1])
run.end_pieces_on_sigterm()
run.run_piece(run.Piece("piece", ("-c", sys.argv[2], "{out}")), run.environment_of_pieces(Path("packages")), 60)
"""


def test_piece_ends_with_the_run_that_is_terminated(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"import os, pathlib, time; pathlib.Path({str(begun)!r}).write_text(str(os.getpid())); time.sleep(60)"
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT / "benchmarks")}
    child = subprocess.Popen([sys.executable, "-c", _ALONE, str(tmp_path / "work"), code], env=environment)
    ends = time.monotonic() + 60
    while not (begun.exists() and begun.read_text()) and time.monotonic() < ends:
        time.sleep(0.02)
    child.terminate()
    assert child.wait(60) == 143
    assert not Path(f"/proc/{begun.read_text()}").exists() and not list((tmp_path / "work").iterdir())


def test_pieces_are_kept_one_by_one_and_none_is_begun_too_late(run: Any, tmp_path: Path) -> None:
    results: dict[str, Any] = {"pieces": {}}
    file, environment = tmp_path / "device" / "results.json", run.environment_of_pieces(Path("packages"))
    two = [program(run, "one", WRITES), program(run, "two", "raise SystemExit(3)")]
    made_of = {"code": "abc", "packages": {"torch": "2.13.0"}}
    assert run.run_pieces(two, environment, results, file, time.monotonic() + 600, made_of) == []
    assert {name: each["state"] for name, each in json.loads(file.read_text())["pieces"].items()} == {
        "one": "passed", "two": "failed",
    }  # fmt: skip
    assert [each.name for each in run.not_passed(two, results, made_of)] == ["two"]
    for other in ({**made_of, "code": "def"}, {**made_of, "packages": {"torch": "2.12.0"}}):
        assert run.not_passed(two, results, other) == two
    three = program(run, "three", WRITES)
    assert run.run_pieces([three], environment, results, file, time.monotonic() + 30, made_of) == [three]
    assert "three" not in results["pieces"]


def test_every_test_of_a_file_is_in_its_result(run: Any, tmp_path: Path) -> None:
    report = (
        '<testsuites><testsuite><testcase name="one"/><testcase name="two"><failure message="3 != 4&#10;more"/>'
        '</testcase><testcase name="three"><skipped message="no fp16"/></testcase></testsuite></testsuites>'
    )
    found = run._tests(report)
    assert [(each["state"], each["why"]) for each in found["tests"]] == [
        ("passed", ""), ("failed", "3 != 4"), ("skipped", "no fp16"),
    ]  # fmt: skip
    assert found["summary"] == "1 passed, 1 failed, 1 skipped"


def test_wheel_of_an_installed_package_is_left_out_and_a_large_folder_is_refused(
    modules: dict[str, Any], tmp_path: Path
) -> None:
    wheel = tmp_path / "torch-1.0-py3-none-any.whl"
    wheel.touch()
    assert modules["machine"].install_wheels(tmp_path, tmp_path / "packages") == []
    with wheel.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(SystemExit, match="at most 64 MiB"):
        modules["machine"].install_wheels(tmp_path, tmp_path / "packages")


def results_of_gpu() -> dict[str, Any]:
    """Invented figures."""
    figures = {"seconds_per_step": 0.5, "memory_peak_bytes": 2**34, "mfu_6n": 0.5}
    ours = {**figures, "cell": "8b-lora-4k", "tool": "ascendtune", "tokens_per_second": 2000.0, "mfu": 0.4}
    bare = {**figures, "cell": "8b-lora-4k", "tool": "bare", "tokens_per_second": 1000.0}
    tests = [{"name": "one", "state": "passed", "why": ""}, {"name": "two", "state": "failed", "why": "3 | <b>"}]
    return {
        "form": "full",
        "device": {"name": "NVIDIA H200", "kind": "cuda", "versions": {"torch": "2.11.0"}},
        "pieces": {
            "test-training": {"state": "failed", "summary": "", "tests": tests},
            "speed-8b-lora-4k-ascendtune": {"state": "passed", "summary": "", "speed": ours | {"planned_bytes": 2**35}},
            "speed-8b-lora-4k-bare": {"state": "passed", "summary": "", "speed": bare},
            "speed-8b-full-4k-bare": {"state": "failed", "summary": "out of memory"},
        },
    }


def test_page_shows_targets_beside_figures_and_what_failed(modules: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "nvidia-h200" / "results.json"
    file.parent.mkdir()
    file.write_text(json.dumps(results_of_gpu()))
    modules["page"].write(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "Not run on a GPU yet" not in page
    assert "| 8b-lora-4k | 13,000 | 2,000 |" in page and "| 8b-full-4k | 8,200 | not measured |" in page
    assert "| 8b-lora-4k | ascendtune | 2,000 | 0.50 s | 40.0% | 50.0% | 16.0 GiB | 32.0 GiB |" in page
    # Half the speed at the same work that is needed.
    assert "| 8b-lora-4k | bare | 1,000 | 0.50 s | 20.0% | 50.0% | 16.0 GiB |  |" in page
    assert "- test-training: two: 3 \\| &lt;b>" in page and "- speed-8b-full-4k-bare: out of memory" in page
    assert "(nvidia-h200/speed.png)" in page and (file.parent / "speed.png").stat().st_size > 1000
    assert "(nvidia-h200/speed.png)" in (tmp_path / "README.zh-CN.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("language", "name"), [("en", "README.md"), ("zh", "README.zh-CN.md")])
def test_page_in_docs_is_what_its_results_say(modules: dict[str, Any], language: str, name: str) -> None:
    directory = ROOT / "docs" / "hardware"
    results = modules["page"].read(directory)
    page = modules["page"].text(results, language, directory)
    assert (directory / name).read_text(encoding="utf-8") == page, "run: PYTHONPATH=benchmarks python -m hardware.page"
    is_measured = any(each["form"] == "full" for each in results.values())
    assert (modules["page"]._TEXTS[language]["none"] in page) == (not is_measured)


@pytest.mark.parametrize("shape", ["1b", "8b", "tiny"])
def test_mfu_counts_the_parameters_of_the_model(modules: dict[str, Any], shape: str) -> None:
    import torch
    from hardware.speed import mfu_6n
    from transformers import AutoConfig, AutoModelForCausalLM

    values = modules["cells"].SHAPES[shape]
    config = AutoConfig.for_model(**values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = [each.numel() for each in model.parameters() if each.ndim == 2]
    looked_up = 0 if values["tie_word_embeddings"] else model.get_input_embeddings().weight.numel()
    cell = modules["cells"].Cell(shape, "full", 4096, 1)
    heads = config.num_attention_heads * config.head_dim
    per_token = 6 * (sum(matrices) - looked_up) + 12 * config.num_hidden_layers * heads * 4096
    assert mfu_6n(cell, 1e3, 1e15) == pytest.approx(per_token * 1e3 / 1e15)
    assert mfu_6n(cell, 1e3, None) is None


def test_measurements_are_kept_if_the_plan_fails(modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from hardware.speed import planned

    from ascendtune.core.errors import MachineError
    from ascendtune.recipe.recipe import Recipe

    def fails(*_: Any, **__: Any) -> None:
        raise MachineError("no estimate came in 300 s", code="no-estimate", remedy="try again")

    monkeypatch.setattr("ascendtune.train.plan.estimator.run_estimator", fails)
    recipe = Recipe.check({"model": {"path": "moon"}, "data": {"train": "tide.jsonl"}})
    monkeypatch.setattr("ascendtune.train.plan.estimator.cached_dataset", lambda recipe: None)
    assert planned(recipe)["plan_error"].startswith("no estimate came in 300 s")
