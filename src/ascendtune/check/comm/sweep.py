"""Result of `comm bench`, from the notes of all ranks: nccl-tests' columns, and findings on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from ascendtune.check.comm.collective import COLLECTIVES
from ascendtune.check.comm.start import RankGroup, RankResults
from ascendtune.check.finding import Finding, failure, ok, unknown, warning
from ascendtune.core.errors import InputError
from ascendtune.core.units import count_of
from ascendtune.machine.vendor.base import Peak

GIGA = 1e9
"""GB as in nccl-tests."""
SLOW_SHARE = 0.5
"""A link with less than this share of the median link's bandwidth is considered slow."""

_SIZE = re.compile(r"([0-9]+) ?(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def bytes_of(text: str, option: str) -> int:
    """ "64M" -> 67108864; units are powers of 1024, as in nccl-tests.

    Raises:
        InputError: `text` is not a size above 0.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
    if size <= 0:
        raise InputError(
            f"{option} {text} is not a size",
            code="invalid-option-value",
            remedy="give a number of bytes, or one like 64K, 16M, 1G",
        )
    return size


@dataclass(frozen=True)
class BandwidthRow:
    """A row of the table; `bytes` and `count` are counted as in nccl-tests."""

    bytes: int
    count: int
    samples: int
    seconds: float
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float
    wrong: int | None
    """None if sums over this many ranks are not exact in the dtype: rounding differences are not errors."""


@dataclass(frozen=True)
class Link:
    """A link from one rank to another, in one direction."""

    sender: int
    receiver: int
    bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "bytes_per_second": self.bytes_per_second}


def bandwidth_rows(ran: RankResults, collective: str) -> list[BandwidthRow]:
    """The sizes measured by every rank. The time of a size is the slowest rank's median; #wrong counts all ranks.

    Raises:
        KeyError: the collective does not exist.
    """
    rows = []
    for of_ranks in zip(*(each.of("row") for each in ran.notes), strict=False):
        size, seconds = of_ranks[0]["bytes"], max(row["seconds"] for row in of_ranks)
        algorithm, bus = COLLECTIVES[collective].bandwidths(size, seconds, ran.ranks.count)
        wrongs = [row["wrong"] for row in of_ranks]
        wrong = None if None in wrongs else sum(wrongs)
        rows.append(BandwidthRow(size, of_ranks[0]["count"], of_ranks[0]["samples"], seconds, algorithm, bus, wrong))
    return rows


def links_of(ran: RankResults) -> list[Link]:
    """The links measured by both ends, with the time of the slower end."""
    ends: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for each in ran.notes:
        for pair in each.of("pair"):
            ends.setdefault((pair["from"], pair["to"]), []).append(pair)
    return [
        Link(sender, receiver, both[0]["bytes"], max(end["seconds"] for end in both))
        for (sender, receiver), both in sorted(ends.items())
        if len(both) == 2
    ]


def average_busbw(rows: Sequence[BandwidthRow]) -> float:
    """Mean busbw over all sizes, in bytes per second: the last line of nccl-tests."""
    return fmean(row.busbw_bytes_per_second for row in rows)


def best(rows: Sequence[BandwidthRow]) -> BandwidthRow:
    return max(rows, key=lambda row: row.busbw_bytes_per_second)


def values(rows: Sequence[BandwidthRow]) -> Finding:
    """The finding on whether the received values were right at every size."""
    if any(row.wrong is None for row in rows):
        return unknown("values", "sums over this many ranks are not exact in this dtype, so values cannot be compared")
    bad = [row for row in rows if row.wrong]
    if not bad:
        return ok("values", f"every element is right at {count_of(len(rows), 'size')}")
    return failure(
        "values",
        f"{count_of(sum(row.wrong or 0 for row in bad), 'element')} wrong, first at {bad[0].bytes:,} bytes",
        expected="0 wrong elements",
        remedy="`ascendtune comm test` finds the rank or the link at fault",
    )


def slow_link(links: Sequence[Link], ranks: RankGroup) -> Finding:
    """The slowest link, compared with the median link."""
    slowest = min(links, key=lambda link: link.bytes_per_second)
    usual = median(link.bytes_per_second for link in links)
    share = slowest.bytes_per_second / usual
    where = f"{ranks.label(slowest.sender)} to {ranks.label(slowest.receiver)}"
    text = f"slowest link: {where}, {slowest.bytes_per_second / GIGA:.3g} GB/s, {share:.0%} of the median"
    if share >= SLOW_SHARE:
        return ok("links", text)
    return warning(
        "links",
        text,
        expected=f"{SLOW_SHARE:.0%} of the median link, {usual / GIGA:.3g} GB/s, or more",
        remedy="look at the link between the two: `ascendtune devices --topology`, `hccn_tool -i N -link_stat -g`, "
        "`nvidia-smi nvlink -s`",
    )


BANDWIDTH = "bandwidth"
PEAK = "peak"
_SUSPICIOUS_SHARE = 0.25
"""Published peaks are not reached in practice, and may count both directions; neither explains less than a quarter."""


def expected_of(text: str) -> float | None:
    """The value of `--expect` in bytes per second; None for `peak`.

    Raises:
        InputError: neither a number above 0 nor `peak`.
    """
    if text == PEAK:
        return None
    try:
        figure = float(text)
    except ValueError:
        figure = 0.0
    if not 0 < figure < float("inf"):
        raise InputError(
            f"--expect {text} is not a bandwidth",
            code="invalid-option-value",
            remedy="give GB/s, e.g. 150, or `peak`",
        )
    return figure * GIGA


def against_figure(busbw: float, expected: float) -> Finding:
    """The finding on measured and expected busbw, both in bytes per second."""
    text = f"{busbw / GIGA:.3g} GB/s"
    if busbw >= expected:
        return ok(BANDWIDTH, f"{text}, as expected ({expected / GIGA:g} GB/s)")
    return failure(
        BANDWIDTH,
        f"{text}, {busbw / expected:.0%} of what is expected",
        expected=f"{expected / GIGA:g} GB/s or more",
        remedy="`ascendtune comm bench --pairs` finds the slow link; see also `ascendtune doctor`",
    )


def against_peak(busbw: float, peak: Peak) -> Finding:
    """The finding on measured busbw in bytes per second, compared with the published peak of the links."""
    if peak.bytes_per_second is None:
        return unknown(BANDWIDTH, peak.what, remedy="give the expected bandwidth: --expect GB/s")
    share = busbw / peak.bytes_per_second
    text = f"{busbw / GIGA:.3g} GB/s, {share:.0%} of the peak of {peak.bytes_per_second / GIGA:g} GB/s ({peak.what})"
    if share >= _SUSPICIOUS_SHARE:
        return ok(BANDWIDTH, text)
    return warning(
        BANDWIDTH,
        text,
        expected=f"{_SUSPICIOUS_SHARE:.0%} of the peak or more",
        remedy="`ascendtune comm bench --pairs` finds the slow link; see also `ascendtune doctor`",
    )
