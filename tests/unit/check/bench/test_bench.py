"""Cells of a benchmark, what is made of their measurements, and the table and picture of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.check.profile.traces import op, step, write

from ascendtune.check.bench.cells import COMPARISONS, RECIPE_STRATEGY, Cell, CellResult, Repeat, cells_of
from ascendtune.check.bench.judge import insignificant_differences, lost_time, shortfalls, speedup_rows
from ascendtune.check.bench.measure import DeviceSamples, read_repeat
from ascendtune.check.bench.picture import draw
from ascendtune.check.bench.show import BenchSettings, as_markdown, as_plain
from ascendtune.check.profile.profile import RankProfile, read_profile
from ascendtune.core.errors import AscendtuneError
from ascendtune.core.rundir import RunDir
from ascendtune.machine.inventory import Accelerator

SETTING = BenchSettings("a|b", "Ascend 910B3", "npu", 64 << 30, 8, 20, 5, 3, "1.0")


def result(cell: Cell, *rates: float, memory: int | None = None, used: float | None = None) -> CellResult:
    repeats = [Repeat("runs/x", rate, rate, memory, utilization_ratio=used, power_watts=300.0) for rate in rates]
    return CellResult(cell, repeats, None if rates else "out of device memory | <b>")


def no_profile(_: CellResult) -> list[RankProfile] | None:
    return None


def profile_of(directory: Path, milliseconds: float, waiting: float, *, tokens: float, ranks: int) -> RankProfile:
    """A step of one product and an all-reduce that nothing hides."""
    directory.mkdir()
    compute = (milliseconds - waiting) * 1000
    events = [step(1, 0, milliseconds * 1000), op("aten::mm", 0, compute)]
    write(directory / "rank_0.trace.json", [*events, op("gloo:all_reduce", compute, waiting * 1000)])
    facts = {"tokens_per_step": tokens, "world_size": ranks}
    return replace(read_profile(directory)[0], facts=facts)


def test_cells_cover_both_comparisons_once() -> None:
    cells, notes = cells_of(devices=[1, 2, 4], strategies=["ddp", "fsdp"], per_device=2, accumulate=3)
    assert not notes
    assert [each.name for each in cells] == [
        "recipe-1x2x3", "recipe-1x2x12",
        "ddp-2x2x3", "ddp-2x2x6", "fsdp-2x2x3", "fsdp-2x2x6",
        "ddp-4x2x3", "fsdp-4x2x3",
    ]  # fmt: skip
    assert {each.global_batch for each in cells if each.accumulate * each.devices == 12} == {24}


def test_a_number_of_devices_that_does_not_divide_the_global_batch_is_left_out_of_it() -> None:
    cells, notes = cells_of(devices=[3, 8], strategies=[], per_device=1, accumulate=1)
    assert [each.name for each in cells] == ["recipe-3x1x1", "recipe-8x1x1"]
    assert len(notes) == 1 and "3 devices" in notes[0]


def test_speedup_and_efficiency_compare_with_the_fewest_devices_of_the_same_comparison() -> None:
    results = [
        result(Cell(RECIPE_STRATEGY, 1, 1, 1), 100.0, 90.0, 110.0),
        result(Cell(RECIPE_STRATEGY, 1, 1, 8), 200.0),
        result(Cell("ddp", 8, 1, 1), 600.0, memory=48 << 30, used=0.9),
        result(Cell("fsdp", 8, 1, 1), 400.0),
    ]
    rows = speedup_rows(results, 64 << 30)
    found = {(row.comparison, row.result.cell.name): row for row in rows}
    weak, strong = (found[each, "ddp-8x1x1"] for each in COMPARISONS)
    assert (weak.speedup, weak.efficiency, weak.base_devices) == (6.0, 0.75, 1)
    assert (strong.speedup, strong.efficiency) == (3.0, 0.375)
    assert weak.memory_ratio == 0.75
    assert results[0].rate == 100.0 and results[0].spread == pytest.approx(0.2)
    assert found[COMPARISONS[0], "fsdp-8x1x1"].speedup == 4.0
    assert len(rows) == 6


def test_a_difference_within_the_spread_of_the_repeats_is_doubted() -> None:
    results = [
        result(Cell(RECIPE_STRATEGY, 1, 1, 1), 100.0, 90.0, 110.0),
        result(Cell("ddp", 2, 1, 1), 105.0, 104.0, 106.0),
        result(Cell("fsdp", 2, 1, 1), 180.0, 179.0, 181.0),
        result(Cell("ddp", 4, 1, 1), 300.0, 250.0, 320.0),
        result(Cell("fsdp", 4, 1, 1), 310.0, 308.0, 312.0),
    ]
    found = insignificant_differences(speedup_rows(results, None))
    weak = [each for each in found if each.startswith(COMPARISONS[0])]
    assert len(weak) == 2
    assert "ddp-2x1x1 and recipe-1x1x1 differ by 5.0%, their repeats by up to 20.0%" in weak[0]
    assert "fsdp-4x1x1 and ddp-4x1x1 differ by 3.3%" in weak[1]
    assert (
        insignificant_differences(
            speedup_rows([result(Cell(RECIPE_STRATEGY, 1, 1, 1), 100.0), result(Cell("ddp", 2, 1, 1), 101.0)], None)
        )
        == []
    )


def test_a_strategy_is_not_compared_with_another_one_where_one_device_failed() -> None:
    results = [
        result(Cell(RECIPE_STRATEGY, 1, 1, 1)),
        result(Cell("ddp", 2, 1, 1)),
        result(Cell("fsdp", 2, 1, 1), 100.0),
        result(Cell("ddp", 4, 1, 1), 150.0),
        result(Cell("fsdp", 4, 1, 1), 180.0),
    ]
    rows = {row.result.cell.name: row for row in speedup_rows(results, None) if row.comparison == COMPARISONS[0]}
    assert rows["fsdp-4x1x1"].speedup == 1.8 and rows["fsdp-4x1x1"].efficiency == 0.9
    assert rows["ddp-4x1x1"].speedup == 1.0 and rows["ddp-4x1x1"].base_devices == 4
    assert rows["recipe-1x1x1"].speedup is None


def test_lost_time_is_the_device_time_that_a_token_takes_more(tmp_path: Path) -> None:
    # One device: 100 ms for 100 tokens, 1 ms of a device for each. Two: 200 ms for 200 tokens, 2 ms for each.
    before = profile_of(tmp_path / "before", 100, 0, tokens=100, ranks=1)
    now = profile_of(tmp_path / "now", 200, 75, tokens=200, ranks=2)
    assert lost_time(now, before) == [
        ("exposed communication", pytest.approx(0.75)), ("compute", pytest.approx(0.25)),
    ]  # fmt: skip
    assert lost_time(before, now) == []
    assert lost_time(replace(now, facts={}), before) == []


def test_the_worst_efficiency_is_explained_by_its_profile(tmp_path: Path) -> None:
    one, two = result(Cell(RECIPE_STRATEGY, 1, 1, 1), 1000.0), result(Cell(RECIPE_STRATEGY, 2, 1, 1), 1000.0)
    profiles = {
        1: [profile_of(tmp_path / "one", 100, 0, tokens=100, ranks=1)],
        2: [profile_of(tmp_path / "two", 200, 100, tokens=200, ranks=2)],
    }
    rows = speedup_rows([one, two], None)
    short = shortfalls(rows, lambda each: profiles[each.cell.devices], on_host=True, cores=8)
    (found,) = [each for each in short if each.comparison == COMPARISONS[0]]
    assert (found.cell, found.measure, found.value) == ("recipe-2x1x1", "efficiency", 0.5)
    assert found.why is not None and "100% exposed communication" in found.why
    assert "exposed-communication" in found.why
    shared = shortfalls(rows, no_profile, on_host=True, cores=1)
    assert shared[0].why == "2 ranks share 1 core of the CPU"


def test_memory_and_utilisation_have_targets_on_a_device_only() -> None:
    results = [result(Cell(RECIPE_STRATEGY, 1, 1, 1), 10.0, memory=40 << 30, used=0.5)]
    rows = speedup_rows(results, 100 << 30)
    short = shortfalls(rows, no_profile, on_host=False, cores=8)
    assert [(each.measure, each.value) for each in short] == [("memory", 0.4), ("utilisation", 0.5)]
    assert shortfalls(rows, no_profile, on_host=True, cores=8) == []


def test_markdown_escapes_names_of_others_and_leaves_out_unknown_columns() -> None:
    rows = speedup_rows([result(Cell(RECIPE_STRATEGY, 1, 1, 1), 10.0), result(Cell(RECIPE_STRATEGY, 2, 1, 1))], None)
    text = as_markdown(SETTING, rows, [], ["a note"])
    assert "# a\\|b on Ascend 910B3" in text and "\\<b>" in text
    heads = next(line for line in text.splitlines() if line.startswith("| devices"))
    assert "power" in heads and "memory" not in heads
    weak = text.partition("## Equal global batch")[0].splitlines()
    assert len({line.count("|") for line in weak if line.startswith("|")}) == 1
    plain = as_plain(SETTING, rows, [], [])
    assert json.loads(json.dumps(plain)) == plain and plain["rows"][0]["tokens_per_second"] == 10.0


def test_results_are_read_as_they_were_written_and_damaged_ones_are_refused() -> None:
    written = result(Cell("ddp", 2, 1, 4), 12.5, 13.0, memory=5, used=0.5)
    values = json.loads(json.dumps(written.as_plain()))
    assert CellResult.of(values) == written
    for damage in ({"cell": None}, {"repeats": [{}]}, {"cell": {**values["cell"], "devices": True}},
                   {"repeats": [{**values["repeats"][0], "tokens_per_second": None}]}):  # fmt: skip
        with pytest.raises(AscendtuneError) as caught:
            CellResult.of({**values, **damage})
        assert caught.value.code == "record-damaged"


def metrics(directory: Path, *records: tuple[int, float, float]) -> RunDir:
    run = RunDir(directory / "run")
    run.create("", {}, {"resolved": {"strategy": {"name": "ddp", "reason": ""}}})
    lines = [
        json.dumps({"step": at, "tokens": tokens, "seconds": {"step": seconds}, "memory_peak_bytes": 1000 * at})
        for at, tokens, seconds in records
    ]
    run.metrics.write_text("".join(line + "\n" for line in lines))
    return run


def test_only_records_whose_steps_are_all_measured_count(tmp_path: Path) -> None:
    # Steps 3 to 6; the record of step 4 holds step 2 too.
    run = metrics(tmp_path, (1, 7, 7), (4, 7, 7), (5, 100, 1), (6, 300, 2), (7, 9, 900), (8, 9, 900))
    found = read_repeat(run, range(3, 7), DeviceSamples(list, range(3, 7)))
    assert found.tokens_per_second == pytest.approx(400 / 3)
    assert found.median_tokens_per_second == pytest.approx(125)
    assert (found.memory_peak_bytes, found.strategy, found.power_watts) == (6000, "ddp", None)


def test_a_run_without_measured_steps_is_refused(tmp_path: Path) -> None:
    run = metrics(tmp_path, (10, 7, 7))
    with pytest.raises(AscendtuneError) as caught:
        read_repeat(run, range(3, 7), DeviceSamples(list, range(3, 7)))
    assert caught.value.code == "nothing-measured"


def test_samples_are_taken_while_measured_steps_run(tmp_path: Path) -> None:
    looks = iter([(0.5, 100.0, 10), (1.0, None, 30)])

    def look() -> list[Accelerator]:
        ratio, watts, used = next(looks)
        first = Accelerator("npu", utilization_ratio=ratio, power_watts=watts, memory_used_bytes=used)
        return [first, replace(first, utilization_ratio=None)]

    samples = DeviceSamples(look, range(3, 5))
    samples.take(metrics(tmp_path / "a", (1, 1, 1)))
    samples.take(metrics(tmp_path / "b", (4, 1, 1)))
    assert samples.utilization_ratio is None and samples.memory_used_bytes is None
    samples.take(metrics(tmp_path / "c", (2, 1, 1)))
    samples.take(metrics(tmp_path / "d", (3, 1, 1)))
    assert samples.utilization_ratio == 0.75
    assert samples.power_watts == 200.0
    assert samples.memory_used_bytes == 30


@pytest.mark.long
def test_the_picture_is_an_svg_with_a_line_for_each_strategy(tmp_path: Path) -> None:
    results = [
        result(Cell(RECIPE_STRATEGY, 1, 1, 1), 100.0, 110.0),
        result(Cell("ddp", 2, 1, 1), 180.0),
        result(Cell("fsdp", 2, 1, 1), 150.0),
    ]
    draw(tmp_path / "bench.svg", "a $ <recipe>", speedup_rows(results, None))
    text = (tmp_path / "bench.svg").read_text()
    assert text.startswith("<?xml") and ">ddp<" in text and ">fsdp<" in text and "&lt;recipe" in text
