"""The page and the text of a profile, with names that others chose."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit.check.profile.traces import OTHER, named, op, step, write

from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.page import write_page
from ascendtune.check.profile.profile import RankProfile, read_profile
from ascendtune.check.profile.show import as_plain, as_text, parts_of

HOSTILE = "\x1b]0;owned\x07<script>alert(1)</script>\u202e"


@pytest.fixture
def ranks(tmp_path: Path) -> list[RankProfile]:
    for rank, late in ((0, 0), (1, 400)):
        events = [
            step(1, 0, 1000),
            op("aten::mm", 0, 300 + late),
            op(HOSTILE, 300 + late, 50),
            named("ascendtune:phase forward", 360 + late, 20),
            named(f"ascendtune:sync {HOSTILE}:1", 360 + late, 10),
            named("gloo:all_reduce", 400, 600, tid=OTHER),
        ]
        write(tmp_path / f"rank_{rank}.trace.json.gz", events, ascendtune={"rank": rank})
    return read_profile(tmp_path)


def test_the_page_escapes_names_and_loads_nothing(ranks: list[RankProfile], tmp_path: Path) -> None:
    write_page(tmp_path / "report.html", ranks)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
    HTMLParser().feed(page)
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', page)]
    # Each bar is as long as the others: the steps are.
    assert sum(widths) == pytest.approx(2 * 870, abs=0.1)


def test_the_text_has_no_control_characters_and_its_parts_add_up(ranks: list[RankProfile]) -> None:
    advice = advice_for(ranks)
    text = as_text(ranks, advice, 100)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert all(len(line) <= 130 for line in text.splitlines())
    split = ranks[0].split
    assert sum(seconds for _, seconds, _ in parts_of(split)) == pytest.approx(split.total)


def test_the_rank_that_waits_least_is_the_slow_one(ranks: list[RankProfile]) -> None:
    advice = advice_for(ranks)
    assert advice[0].code == "slow-rank"
    assert "for rank 1, which spends 0.4 ms more than they on computing (matmul)" in advice[0].what
    # Of the collective's 600 us, rank 0 waits in all, and rank 1 computes in 350 of them.
    assert advice[0].gain == pytest.approx(350e-6)
    plain = as_plain(ranks, advice)
    assert [each["rank"] for each in plain["ranks"]] == [0, 1]
    assert plain["advice"][0]["code"] == "slow-rank"


def test_the_rank_that_a_trace_notes_counts_where_its_name_has_none(tmp_path: Path) -> None:
    for name, rank in (("host_a.pt.trace.json", 3), ("host_b.pt.trace.json", 1)):
        write(tmp_path / name, [op("aten::mm", 0, 10)], distributedInfo={"backend": "nccl", "rank": rank})
    assert [each.rank for each in read_profile(tmp_path)] == [1, 3]
    assert read_profile(tmp_path / "host_a.pt.trace.json")[0].rank == 3
