"""The display of findings."""

from __future__ import annotations

import json

import pytest

from ascendtune.check.finding import Finding, exit_code, failure, ok, unknown, warning
from ascendtune.check.table import as_json, as_text

FINDINGS = [
    ok("disk", "500 GiB free"),
    Finding(
        "versions",
        "failure",
        "driver 23.0.3 is too old for CANN 8.1.RC1",
        expected="driver 25.0.RC1 or newer",
        remedy="pip install torch==2.6.0 torch-npu==2.6.0",
        evidence=("/usr/local/Ascend/driver/version.info",),
    ),
    unknown("network", "offline"),
]


def _text(columns: int | None) -> str:
    return as_text("this machine cannot train", FINDINGS, columns=columns, paint=lambda text, colour: text)


def test_wide_table_puts_expectation_and_remedy_below_each_finding() -> None:
    assert _text(100).splitlines() == [
        "this machine cannot train",
        "failure  versions  driver 23.0.3 is too old for CANN 8.1.RC1",
        "                   expected: driver 25.0.RC1 or newer",
        "                   do: pip install torch==2.6.0 torch-npu==2.6.0",
        "                   seen: /usr/local/Ascend/driver/version.info",
        "unknown  network   offline",
        "ok       disk      500 GiB free",
    ]


def test_table_fits_sixty_columns() -> None:
    lines = _text(60).splitlines()
    assert lines[1:4] == [
        "failure  versions",
        "    driver 23.0.3 is too old for CANN 8.1.RC1",
        "    expected: driver 25.0.RC1 or newer",
    ]
    assert max(map(len, lines)) <= 60


def test_a_command_is_never_cut_within_a_word() -> None:
    path = "/usr/local/Ascend/" + "x" * 80
    text = as_text("v", [Finding("cann", "failure", "m", remedy=f"source {path}")], columns=60, paint=lambda t, c: t)
    assert path in text


def test_json_holds_findings_and_exit_code() -> None:
    told = json.loads(as_json("v", FINDINGS, not_applicable=["cuda"]))
    assert told["exit_code"] == 1 and told["not_applicable"] == ["cuda"]
    assert [each["code"] for each in told["findings"]] == ["versions", "network", "disk"]
    assert set(told["findings"][0]) == {
        "code",
        "status",
        "measured",
        "expected",
        "remedy",
        "evidence",
        "because",
        "repair",
    }


def test_exit_code_is_that_of_the_worst_finding() -> None:
    assert exit_code(FINDINGS) == 1 and exit_code(FINDINGS[::2]) == 0
    assert exit_code([unknown("a", "b")]) == 4 and exit_code([]) == 0


def test_a_failure_needs_a_remedy() -> None:
    with pytest.raises(ValueError, match="needs a remedy"):
        Finding("a", "failure", "b")


def test_a_remedy_of_two_findings_of_a_check_and_what_follows_from_them_are_printed_once() -> None:
    remedy = "start the container with the options that mount the driver"
    findings = [
        failure("container", "no lib64", remedy=remedy),
        warning("container", "no version.info", remedy=remedy),
        unknown("npu_smi", "no npu-smi", remedy="mount it", because="container"),
        unknown("health", "no npu-smi", because="npu_smi"),
    ]
    lines = as_text("v", findings, columns=None, paint=lambda text, _: text).splitlines()
    assert [line.strip() for line in lines if "do: " in line] == [f"do: {remedy}", "do: the same as above"]
    assert lines[-1].split(maxsplit=2)[1:] == ["container", "therefore not known either: npu_smi, health"]
