"""Findings from the notes of all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from ascendtune.check.comm.judge import judge, results, verdict
from ascendtune.check.finding import exit_code

START = [{"at": "opening the device"}, {"at": "the start"}, {"backend": "gloo"}]


def _cell(dtype: str, wrong: int = 0, **further: Any) -> dict[str, Any]:
    part = {
        "elements": 10, "from": None, "wrong": wrong, "seen": [3.0], "expected": [3.0],
        "first_wrong": {"element": 4, "seen": 9.0, "expected": 3.0} if wrong else None,
    }  # fmt: skip
    return {"cell": {"collective": "all_reduce", "dtype": dtype, "parts": [part], **further}}


def _left_out(dtype: str, **why: str) -> dict[str, Any]:
    return {"cell": {"collective": "all_reduce", "dtype": dtype, **why}}


def test_verdict_counts_right_and_refused_dtypes(ran: Any) -> None:
    notes = [
        *START,
        _cell("float32"),
        _left_out("int16", refused="Unsupported data type at::kShort"),
        _left_out("uint16", refused="Unsupported data type at::ScalarType::UInt16"),
        _left_out("bool", untried="no sum"),
        {"done": True},
    ]
    told = ran(notes, notes)
    (found,) = judge(told, ["all_reduce"], 5)
    assert found.status == "ok"
    assert found.measured == (
        "right in float32; gloo refuses int16, uint16 (Unsupported data type); not tried: bool (no sum)"
    )
    assert verdict(told, [found]) == "2 ranks over gloo: 1 of 1 collective is right, element by element"
    assert results(told)[0]["ranks"][1]["parts"][0]["seen"] == [3.0]


def test_a_wrong_sum_is_a_failure_with_the_values_seen(ran: Any) -> None:
    right, wrong = [*START, _cell("int8"), {"done": True}], [*START, _cell("int8", wrong=2), {"done": True}]
    (found,) = judge(ran(right, wrong, names=("npu 4", "npu 6")), ["all_reduce"], 5)
    assert found.status == "failure" and "rank 1 (npu 6) has wrong sums" in found.measured
    assert found.evidence == ("rank 1 (npu 6), int8: 2 of 10 elements; element 4 is 9.0, not 3.0",)


def test_a_dtype_that_only_one_rank_refuses_is_not_called_right(ran: Any) -> None:
    one = [*START, _cell("int8"), {"done": True}]
    other = [*START, _left_out("int8", refused="Unsupported data type"), {"done": True}]
    (found,) = judge(ran(one, other), ["all_reduce"], 5)
    assert found.status == "unknown" and "refuses int8" in found.measured and exit_code([found]) == 4


def test_a_barrier_that_does_not_wait(ran: Any) -> None:
    early = [{"cell": {"collective": "barrier", "dtype": None, "missed": [1]}}, {"done": True}]
    fine = [{"cell": {"collective": "barrier", "dtype": None, "missed": []}}, {"done": True}]
    (found,) = judge(ran([*START, *early], [*START, *fine]), ["barrier"], 5)
    assert found.status == "failure" and found.measured == "rank 0 did not wait for rank 1"


AT = {"at": "all_gather of int8"}


@pytest.mark.parametrize(
    ("notes", "seen", "said"),
    [
        (
            ([*START, AT, {"absent": [1]}], START),
            None,
            "rank 1 never reached all_gather of int8: rank 0 waited 5 s; it was last at the start",
        ),
        (([{"at": "the start"}, {"absent": [1]}], []), None, "rank 1 never reached the start"),
        (
            ([*START, AT, {"absent": [1]}], [*START, AT]),
            None,
            "rank 1 did not return from all_gather of int8: rank 0",
        ),
        (
            ([*START, AT, {"error": "RuntimeError: Connection closed by peer"}], [*START, AT, {"error": "no memory"}]),
            None,
            "rank 1 failed at all_gather of int8: no memory",
        ),
        (
            ([*START, AT, {"error": "RuntimeError: Timed out waiting 5000ms for recv"}], [*START, AT]),
            None,
            "rank 1 did not return from all_gather of int8",
        ),
        (
            ([*START, AT, {"error": "Connection reset by peer"}], [*START, AT]),
            (1, "was killed (SIGKILL)"),
            "rank 1 was killed (SIGKILL) at all_gather of int8",
        ),
        (
            ([*START, AT, {"started": 9}], [*START, AT], [*START, AT, {"started": 9}]),
            (0, "crashed (SIGABRT)"),
            "rank 1 did not return from all_gather of int8",
        ),
        (
            ([*START, AT, {"error": "timed out"}], [*START, AT, {"error": "timed out"}]),
            None,
            "rank 0, rank 1 lost the connections to each other at all_gather of int8",
        ),
    ],
    ids=["absent", "never there", "within", "failed", "hangs", "killed", "behind", "cut off"],
)
def test_the_missing_rank_is_named(ran: Any, notes: Any, seen: tuple[int, str] | None, said: str) -> None:
    told = ran(*notes, seen=seen)
    first, second = judge(told, ["all_gather"], 5)
    assert first.code == "ranks" and first.status == "failure" and said in first.measured
    assert second.status == "unknown" and exit_code([first, second]) == 1
    assert "not every rank finished" in verdict(told, [first, second])


def test_the_log_of_the_missing_rank_is_named(ran: Any) -> None:
    told = ran([*START, AT, {"error": "timed out"}], [*START, AT])
    (tmp := told.directory / "log").mkdir()
    (tmp / "rank_1.log").write_text("loading\nEI0002: the link is down\n\n")
    found = judge(told, [], 5)[0]
    assert f"ascendtune explain {tmp}/rank_1.log" in (found.remedy or "")
    assert found.evidence == (f"{tmp}/rank_1.log: EI0002: the link is down",)
