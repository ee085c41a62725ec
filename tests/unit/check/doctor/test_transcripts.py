"""Findings from recorded answers of npu-smi, of every generation and with every error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_node.scenarios import HEALTHY
from ascendtune.check.doctor.check import examine, verdict
from ascendtune.check.doctor.system import System

TRANSCRIPTS = Path(__file__).parents[3] / "fixtures" / "ascend"


@pytest.mark.parametrize("name", sorted(path.stem for path in TRANSCRIPTS.glob("[ie][nr][fr][o_]*.txt")))
def test_no_check_fails_over_a_transcript(lay: Callable[..., System], name: str) -> None:
    system = lay(replace(HEALTHY, npu_smi="absent", hccn_tool="absent"))
    program = system.root / "bin" / "npu-smi"
    program.write_text(f"#!/bin/sh\ncat {TRANSCRIPTS / name}.txt\n")
    program.chmod(0o755)
    examination = examine(system)
    assert not [each for each in examination.findings if "the check itself failed" in each.measured]
    found = {each.code: each for each in examination.findings}
    if name.startswith("err_"):
        assert found["npu_smi"].status in ("warning", "failure") and found["health"].status == "unknown"
    elif "alarm" in name:
        assert "usual on such boards" in found["health"].measured and found["health"].status == "ok"
    assert verdict(examination, system)
