"""What `comm test` makes of the notes of all ranks: a finding per collective, and every value that was seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ascendtune.check.comm.blame import blame
from ascendtune.check.comm.collective import BARRIER
from ascendtune.check.comm.start import Ran, Ranks
from ascendtune.check.comm.trouble import trouble
from ascendtune.check.finding import Finding, ok, unknown

Cells = Mapping[int, Mapping[str, Any]]
"""Rank -> its cell, of one collective and one dtype."""
_SHOWN = 6
_TYPE_NAME = re.compile(r"[: ]*at::[\w:/]+")
"""In messages of torch_npu; left out, so that dtypes with one reason stand together."""


def judge(ran: Ran, collectives: Sequence[str], timeout_seconds: float) -> list[Finding]:
    """A finding for each collective that was tried; first the rank that is missing, where one is."""
    table = _by_collective(ran)
    found = [] if ran.is_whole else [trouble(ran, timeout_seconds)]
    for name in collectives:
        cells = table.get(name, {})
        if name == BARRIER and cells:
            found.append(_barrier(ran.ranks, next(iter(cells.values()))))
        elif cells:
            found.append(_carrying(ran, name, cells))
        else:
            found.append(unknown(name, "was not reached"))
    return found


def results(ran: Ran) -> list[dict[str, Any]]:
    """For programs: each collective and dtype, with what each rank has seen."""
    return [
        {
            "collective": name,
            "dtype": dtype or None,
            "ranks": [{"rank": rank, **_without_names(cell)} for rank, cell in sorted(cells.items())],
        }
        for name, dtypes in _by_collective(ran).items()
        for dtype, cells in dtypes.items()
    ]


def verdict(ran: Ran, findings: Sequence[Finding]) -> str:
    """One sentence over all."""
    who = f"{ran.ranks.count} ranks over {ran.backend}"
    if not ran.is_whole:
        return f"{who}: not every rank came to the end"
    bad = [finding.code for finding in findings if finding.status == "failure"]
    if bad:
        return f"{who}: wrong in {', '.join(bad)}"
    right = sum(finding.status == "ok" for finding in findings)
    return f"{who}: {right} of {len(findings)} collectives are right, element by element"


def _by_collective(ran: Ran) -> dict[str, dict[str, Cells]]:
    """Collective -> dtype -> cells, of those that every rank has finished."""
    table: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for each in ran.notes:
        for cell in each.of("cell"):
            table.setdefault(cell["collective"], {}).setdefault(cell["dtype"] or "", {})[each.rank] = cell
    whole = {
        name: {dtype: cells for dtype, cells in dtypes.items() if len(cells) == ran.ranks.count}
        for name, dtypes in table.items()
    }
    return {name: dict(dtypes) for name, dtypes in whole.items() if dtypes}


def _carrying(ran: Ran, name: str, dtypes: Mapping[str, Cells]) -> Finding:
    tried = {dtype: cells for dtype, cells in dtypes.items() if all("parts" in cell for cell in cells.values())}
    faults = {dtype: said for dtype, cells in tried.items() if (said := blame(cells, ran.ranks.labels))}
    left_out = _reasons(f"{ran.backend} refuses", "refused", dtypes) + _reasons("not tried:", "untried", dtypes)
    if faults:
        return Finding(
            name,
            "failure",
            "; ".join(f"{said} ({', '.join(of)})" for said, of in _grouped(faults.items()).items()),
            expected="every element is what the ranks' values make of it",
            remedy="take the device or the link that is named out of use, look at its health, and test again",
            evidence=tuple(_first_wrong(ran.ranks, {dtype: tried[dtype] for dtype in faults})),
        )
    if not tried:
        return unknown(name, "; ".join(left_out) or "was not reached")
    return ok(name, "; ".join([f"right in {', '.join(tried)}", *left_out]))


def _reasons(how: str, key: str, dtypes: Mapping[str, Cells]) -> list[str]:
    said = {
        dtype: _TYPE_NAME.sub("", cell[key])
        for dtype, cells in dtypes.items()
        for cell in cells.values()
        if key in cell
    }
    return [f"{how} {', '.join(of)} ({why})" for why, of in _grouped(said.items()).items()]


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """What was said -> of which dtypes."""
    grouped: dict[str, list[str]] = {}
    for dtype, said in pairs:
        grouped.setdefault(said, []).append(dtype)
    return grouped


def _first_wrong(ranks: Ranks, dtypes: Mapping[str, Cells]) -> list[str]:
    lines = [
        f"{ranks.label(rank)}, {dtype}: {part['wrong']:,} of {part['elements']:,} elements{_source(part)}; element "
        f"{part['first_wrong']['element']} is {part['first_wrong']['seen']}, not {part['first_wrong']['expected']}"
        for dtype, cells in dtypes.items()
        for rank, cell in sorted(cells.items())
        for part in cell["parts"]
        if part["wrong"]
    ]
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"and {more} more; --json tells all"]


def _source(part: Mapping[str, Any]) -> str:
    return "" if part["from"] is None else f" from rank {part['from']}"


def _barrier(ranks: Ranks, dtypes: Cells) -> Finding:
    early = {rank: cell["missed"] for rank, cell in dtypes.items() if cell["missed"]}
    if not early:
        return ok(BARRIER, "nobody leaves before the last has come")
    return Finding(
        BARRIER,
        "failure",
        "; ".join(f"{ranks.label(rank)} did not wait for {ranks.labels(missed)}" for rank, missed in early.items()),
        expected="nobody leaves before the last has come",
        remedy="do not rely on barriers of this backend; check its version with `ascendtune doctor versions`",
    )


def _without_names(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in cell.items() if key not in ("collective", "dtype")}
