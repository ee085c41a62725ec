"""Pictures of the report: axes, the band around the reference, histograms of tensors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ascendtune.check.align import histogram
from ascendtune.check.align.dump import read_values
from ascendtune.check.align.dump_comparison import FirstDifference
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.report import _chart, _ticks, write_report
from ascendtune.check.align.stages import compare_trainings
from ascendtune.check.align.tensor_table import tensors_as_html
from ascendtune.check.align.training_record import read_training_record


@pytest.mark.parametrize(
    ("low", "high", "log", "labels"),
    [
        (4.8653, 4.8797, False, ["4.870", "4.875"]),
        (0.0, 10.0, False, ["0", "2", "4", "6", "8", "10"]),
        (-8.0, -0.7, True, ["1e-08", "1e-06", "1e-04", "1e-02"]),
        (-3.2, -2.8, True, ["1e-03"]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, log: bool, labels: list[str]) -> None:
    assert [label for _, label in _ticks(low, high, log)] == labels


def test_band_is_drawn_around_the_reference_and_leaves_out_what_is_not_a_number() -> None:
    reference = np.array([2.0, np.nan, 3.0, 2.0])
    band = reference - 0.1, reference + 0.1
    drawn = _chart(np.arange(1, 5), {"reference": reference}, band=band, at=None)
    found = re.search(r'<polygon class="area" points="([^"]*)"', drawn)
    assert found is not None
    points = [tuple(map(float, each.split(","))) for each in found[1].split()]
    assert len(points) == 6
    # Above the reference, then back below it.
    assert all(up[1] < down[1] for up, down in zip(points[:3], reversed(points[3:]), strict=True))


def test_band_wider_than_the_curve_is_cut_at_half_of_its_height() -> None:
    reference = np.array([2.0, 3.0])
    drawn = _chart(np.array([1, 2]), {"reference": reference}, band=(reference - 100, reference + 100), at=None)
    assert re.findall(r'text-anchor="end">([\d.]+)</text>', drawn)[:-1] == ["1.5", "2.0", "2.5", "3.0", "3.5"]


@pytest.mark.parametrize("loss", [0.0, 1e17, -1e300])
def test_losses_that_are_all_equal_have_an_axis(loss: float) -> None:
    equal = np.array([loss, loss])
    drawn = _chart(np.array([1, 2]), {"reference": equal}, band=(equal, equal), at=None)
    assert 'class="curve reference"' in drawn and "nan" not in drawn


def _side(place: Path, factor: float) -> Path:
    """Three whole tensors of 64 values."""
    file = place / "dump" / "step-0000001" / "rank_0.jsonl"
    file.parent.mkdir(parents=True)
    (place / "recorded.json").write_text(json.dumps({"format": 2, "world_size": 1}))
    lines: list[dict[str, Any]] = [{"format": 2, "step": 1, "rank": 0, "world_size": 1, "content": "tensors"}]
    tensors = {}
    for order, name in enumerate(("first", "second", "third")):
        values = np.linspace(-1, 1, 64, dtype=np.float32) * (factor if order else 1)
        tensors[str(order)] = values.reshape(8, 8)
        what = {"order": order, "phase": "forward", "micro_batch": 0, "name": name, "slot": "output", "kind": "Linear"}
        numbers = {"min": values.min(), "max": values.max(), "mean": values.mean(), "l2": np.linalg.norm(values)}
        statistics = {key: float(value) for key, value in numbers.items()}
        samples = {"samples": values[::4].tolist(), "hash": f"{values[0]}", "nan": 0, "inf": 0}
        lines.append({**what, "shape": [8, 8], "dtype": "float32", **statistics, **samples})
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    save_file(tensors, file.with_suffix(".safetensors"))
    return place


@pytest.mark.parametrize("most", [300, 1])
def test_every_tensor_that_was_dumped_whole_has_a_histogram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(histogram, "_MOST", most)
    one, other = read_training_record(_side(tmp_path / "a", 1.0)), read_training_record(_side(tmp_path / "b", 2.0))
    comparison = compare_trainings(one, other, expected_noise(one, other))
    found = histogram.histograms_of(comparison.dumps, one.dump, other.dump)
    assert [key.name for key in found][:1] == ["second"] and len(found) == min(most, 3)
    counts = next(iter(found.values()))
    assert counts.reference.sum() == counts.candidate.sum() == 64
    write_report(tmp_path / "page.html", comparison, one, other)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    # The first difference is drawn on top, too; the others by their samples.
    assert page.count('<svg class="histogram"') == 4
    assert page.count('class="curve candidate" d="M0,90') == 1 + min(most, 3)


def test_tensor_too_large_for_the_bound_leaves_histograms_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histogram, "_MOST_VALUES", 2 * 64 + 1)
    one, other = read_training_record(_side(tmp_path / "a", 1.0)), read_training_record(_side(tmp_path / "b", 2.0))
    dumps = compare_trainings(one, other, expected_noise(one, other)).dumps
    second = next(row for row in dumps.rows if row.key.name == "second")
    large = replace(second, reference=second.reference._replace(shape=(1 << 20,)))
    rows = tuple(large if row is second else row for row in dumps.rows)
    found = histogram.histograms_of(replace(dumps, rows=rows), one.dump, other.dump)
    assert [key.name for key in found] == ["third"]


def test_replicas_of_ranks_that_differ_have_no_histogram_of_both_sides(tmp_path: Path) -> None:
    one, other = read_training_record(_side(tmp_path / "a", 1.0)), read_training_record(_side(tmp_path / "b", 2.0))
    dumps = compare_trainings(one, other, expected_noise(one, other)).dumps
    found = histogram.histograms_of(dumps, one.dump, other.dump)
    dumps = replace(dumps, place=FirstDifference(1, "ranks", dumps.rows[1], (0,)))
    first, table = tensors_as_html(dumps, found).split("</section>")
    assert 'd="M0,90' not in first and 'd="M0,90' in table


def test_gradient_of_one_side_alone_is_not_read_from_the_file_of_the_other(tmp_path: Path) -> None:
    one = read_training_record(_side(tmp_path / "a", 1.0))
    assert one.dump is not None
    dump = one.dump.read(one.dump.files[1][0])
    tensor = next(iter(dump.tensors.values()))
    assert read_values(dump, tensor) is not None and read_values(dump, tensor._replace(dtype="")) is None


@pytest.mark.parametrize(
    "values", [[], [3.0], [1e17, 1e17], [1.0, np.nextafter(1.0, 2.0)], [-3.4e38, -3.4e38], [-3.4e38, 3.4e38]]
)
def test_histogram_counts_values_of_any_size(values: list[float]) -> None:
    edges = histogram._edges(np.array(values))
    assert len(edges) == 49 and (np.diff(edges) > 0).all()
    assert np.histogram(values, edges)[0].sum() == len(values)
