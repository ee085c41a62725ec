"""The table, the links, the pictures, and what is expected of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.comm import sweep
from ascendtune.check.comm.picture import draw_links, draw_rows, heat_map
from ascendtune.check.comm.start import RankGroup
from ascendtune.check.comm.sweep import BandwidthRow, Link, against_figure, against_peak, expected_of
from ascendtune.core.errors import InputError
from ascendtune.machine.vendor.base import Peak


def plain(text: str, colour: str) -> str:
    return text


def painted(text: str, colour: str) -> str:
    return f"{colour[0]}{text.strip()}"


def row(size: int, busbw: float, wrong: int | None = 0) -> BandwidthRow:
    return BandwidthRow(size, size // 4, 20, size / busbw, busbw, busbw, wrong)


def links(ranks: int, slow: tuple[int, int] | None = None) -> list[Link]:
    return [Link(a, b, 10**9, 1.0 if (a, b) == slow else 0.05) for a in range(ranks) for b in range(ranks) if a != b]


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("64K", 1 << 16), ("16m", 1 << 24), ("1G", 1 << 30), ("2 MiB", 1 << 21), ("100B", 100)]
)
def test_sizes_with_units_are_bytes(text: str, size: int) -> None:
    assert sweep.bytes_of(text, "--min-bytes") == size


@pytest.mark.parametrize("text", ["", "0", "-8", "1.5G", "G", "8KX", "1e6"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        sweep.bytes_of(text, "--max-bytes")
    assert caught.value.code == "invalid-option-value" and "--max-bytes" in caught.value.what


def test_the_slowest_rank_and_every_wrong_element_count(ran: Any) -> None:
    def notes(seconds: float, wrong: int, *more: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"row": {"bytes": 10**6, "count": 125, "samples": 9, "seconds": seconds, "wrong": wrong}}, *more]

    unfinished = {"row": {"bytes": 2 * 10**6, "count": 250, "samples": 9, "seconds": 1.0, "wrong": 0}}
    told = ran(notes(0.5, 1), notes(1.0, 2, unfinished))
    assert sweep.bandwidth_rows(told, "all_gather") == [BandwidthRow(10**6, 125, 9, 1.0, 1e6, 5e5, 3)]


def test_a_link_is_as_slow_as_its_slower_end(ran: Any) -> None:
    def pair(seconds: float) -> dict[str, Any]:
        return {"pair": {"from": 1, "to": 0, "bytes": 100, "seconds": seconds}}

    (link,) = sweep.links_of(ran([pair(2.0)], [pair(1.0)]))
    assert (link.sender, link.receiver, link.bytes_per_second) == (1, 0, 50.0)


def test_the_slowest_link_is_named() -> None:
    ranks = RankGroup("npu", 4, None, ("npu 0", "npu 1", "npu 2", "npu 3"))
    found = sweep.slow_link(links(4, slow=(3, 1)), ranks)
    assert found.status == "warning"
    assert found.measured == "slowest link: rank 3 (npu 3) to rank 1 (npu 1), 1 GB/s, 5% of the median"
    assert sweep.slow_link(links(4), ranks).status == "ok"


def test_wrong_elements_are_a_failure() -> None:
    found = sweep.values([row(8, 1e9)])
    assert found.status == "ok" and found.measured == "every element is right at 1 size"
    assert sweep.values([row(8, 1e9, wrong=None)]).status == "unknown"
    found = sweep.values([row(8, 1e9), row(2048, 1e9, wrong=3)])
    assert found.status == "failure" and found.measured == "3 elements wrong, first at 2,048 bytes"


def test_the_heat_map_has_figures_and_colours() -> None:
    drawn = heat_map(links(3, slow=(2, 0)), 3, 60, plain).splitlines()
    assert drawn == [
        "from\\to       0      1      2",
        "0             -     20     20",
        "1            20      -     20",
        "2             1     20      -",
        "GB/s, one direction",
    ]
    assert heat_map(links(3, slow=(2, 0)), 3, 60, painted).splitlines()[3] == "2       r1g20      -"


def test_a_large_heat_map_has_shades_where_there_is_no_room() -> None:
    drawn = heat_map(links(16, slow=(2, 0)), 16, 60, plain).splitlines()
    assert len(drawn) == 18 and max(map(len, drawn)) <= 60
    assert drawn[3].split() == ["2", "░", "█", "-", *"█" * 13]
    assert "quarters of the fastest, 20 GB/s" in drawn[-1]


@pytest.mark.parametrize(("text", "figure"), [("peak", None), ("150", 150e9), ("0.5", 0.5e9)])
def test_expected_bandwidth_is_parsed(text: str, figure: float | None) -> None:
    assert expected_of(text) == figure


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "nan", "inf"])
def test_invalid_expected_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        expected_of(text)
    assert caught.value.code == "invalid-option-value"


def test_bandwidth_below_the_expected_one_fails() -> None:
    assert against_figure(100e9, 90e9).status == "ok"
    assert against_figure(80e9, 100e9).status == "failure" and "80%" in against_figure(80e9, 100e9).measured
    peak = Peak(56e9, "HCCS")
    assert against_peak(28e9, peak).status == "ok" and "50% of the peak of 56 GB/s" in against_peak(28e9, peak).measured
    assert against_peak(5.6e9, peak).status == "warning"
    assert against_peak(5.6e9, Peak(None, "nobody knows")).status == "unknown"


def test_plots_are_png_files(tmp_path: Path) -> None:
    draw_rows(tmp_path / "rows.png", "all_reduce", [row(8, 1e6), row(1 << 20, 6e9)])
    draw_links(tmp_path / "links.png", "links", links(3), 3)
    for name in ("rows.png", "links.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
