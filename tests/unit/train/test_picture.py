"""The picture of a run, drawn from its records alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.train.report.picture import _smoothed, _thinned, draw


def recorded(directory: Path, losses: list[float], **others: Any) -> RunDir:
    lines = [
        {"step": step, "attempt": 1 if step < 3 else 2, "loss": loss, "learning_rate": 1e-4, "grad_norm": 1.0, **others}
        for step, loss in enumerate(losses, 1)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunDir(directory)


def text_of(svg: Path) -> str:
    return " ".join(ElementTree.parse(svg).getroot().itertext())


@pytest.mark.long
def test_drawing_a_run_writes_png_and_svg(tmp_path: Path) -> None:
    run = recorded(tmp_path, [4.0, 2.0, 0.3, 0.2], tokens_per_second=None)
    (tmp_path / "eval.jsonl").write_text('{"step": 2, "loss": 2.5}\n')
    assert draw(run) == [tmp_path / "loss.png", tmp_path / "loss.svg"]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    words = text_of(tmp_path / "loss.svg")
    for expected in (tmp_path.name, "loss 4 → 0.2", "evaluation", "attempt 2", "not recorded"):
        assert expected in words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval.jsonl", "loss.png", "loss.svg", "metrics.jsonl"]


@pytest.mark.long
@pytest.mark.parametrize("losses", [[3.0], [float("nan")], [0.0, -1.0, 2.0], [2.0, float("inf"), 1.0] * 40])
def test_short_and_odd_runs_are_drawn(tmp_path: Path, losses: list[float]) -> None:
    assert len(draw(recorded(tmp_path, losses))) == 2


@pytest.mark.long
def test_every_panel_shows_its_records(tmp_path: Path) -> None:
    draw(recorded(tmp_path, [4.0, 2.0, 1.0], tokens_per_second=1234.0, accuracy=0.5))
    words = text_of(tmp_path / "loss.svg")
    assert "not recorded" not in words
    for panel in ("learning rate", "gradient norm", "tokens/s", "accuracy"):
        assert panel in words
    # A small change must not fill the panel.
    assert "0%" in words.split()


@pytest.mark.long
def test_a_name_with_dollars_and_a_style_of_the_user_s_own_change_nothing(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    run = recorded(tmp_path, [4.0, 2.0, 1.0])
    draw(run)
    shapes = len(list(ElementTree.parse(tmp_path / "loss.svg").iter()))
    named = tmp_path / "$USER-$SLURM_JOB_ID"
    named.mkdir()
    # LaTeX is not installed, and would not take the name.
    with matplotlib.rc_context({"text.usetex": True, "axes.grid": True, "font.size": 40}):
        assert len(draw(recorded(named, [4.0, 2.0, 1.0]))) == 2
        assert matplotlib.rcParams["font.size"] == 40
    assert named.name in text_of(named / "loss.svg")
    assert len(list(ElementTree.parse(named / "loss.svg").iter())) == shapes


@pytest.mark.long
def test_evaluations_of_other_rows_are_not_in_the_curve(tmp_path: Path) -> None:
    run = recorded(tmp_path, [4.0, 2.0, 1.0])
    (tmp_path / "eval.jsonl").write_text('{"step": 1, "loss": 900, "data_hash": "a"}\n')
    draw(run)
    assert "500" in text_of(tmp_path / "loss.svg")
    with (tmp_path / "eval.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 1.5, "data_hash": "b"}\n')
    draw(run)
    assert "500" not in text_of(tmp_path / "loss.svg")


def test_nothing_recorded_draws_nothing(tmp_path: Path) -> None:
    assert draw(RunDir(tmp_path)) == []


def test_a_missing_matplotlib_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("ascendtune.train.report.picture.warn", warnings.append)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw(recorded(tmp_path, [3.0])) == []
    assert len(warnings) == 1
    assert not (tmp_path / "loss.png").exists()


def test_a_long_curve_keeps_its_spikes() -> None:
    values = [1.0] * 100_000
    values[77_777] = 9.0
    steps, kept = _thinned(range(100_000), values)
    assert len(kept) <= 1600
    assert (77_777, 9.0) in zip(steps, kept, strict=True)


def test_smoothing_ignores_a_spike_and_reaches_both_ends() -> None:
    values = [1.0] * 1000
    values[500] = 99.0
    steps, smooth = _smoothed(range(1000), values, 25)
    assert (steps[0], steps[-1]) == (0, 999)
    assert set(smooth) == {1.0}


@pytest.mark.long
def test_learning_from_pairs_has_a_panel_of_its_own(tmp_path: Path) -> None:
    draw(recorded(tmp_path, [0.7, 0.5], accuracy=0.75))
    assert "accuracy" in text_of(tmp_path / "loss.svg")
    draw(recorded(tmp_path, [0.7, 0.5]))
    assert "accuracy" not in text_of(tmp_path / "loss.svg")
