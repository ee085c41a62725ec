"""A shell on a simulated machine: the whole command line, and the word SIMULATED."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from python_path import python_path

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[3]


def _on(scenario: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ascend_node", scenario, *command],
        env={**os.environ, "PYTHONPATH": python_path(TESTS), "COLUMNS": "60"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.long
def test_doctor_on_a_simulated_node_reports_its_old_driver() -> None:
    result = _on("driver-too-old", "ascendtune", "doctor")
    assert result.returncode == 1
    assert result.stdout.startswith("this machine cannot train: driver 23.0.3 is too old for CANN 8.1.RC1\n")
    assert "SIMULATED" in result.stderr


def test_simulated_node_answers_as_the_vendors_tools() -> None:
    assert "SIMULATED" in _on("healthy-910b4", "npu-smi", "info").stdout
    result = _on("link-down", "hccn_tool", "-i", "0", "-link", "-g")
    assert result.stdout.splitlines()[1:] == ["link status: DOWN"] and "SIMULATED" in result.stdout


def test_devices_on_a_simulated_node_lists_its_leftover_process() -> None:
    result = _on("leftover-process", "ascendtune", "devices")
    assert result.returncode == 0
    assert "NPU 0 472206 - 22.8 GiB - python3.11" in [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_unknown_machine_is_refused_with_the_known_names() -> None:
    result = _on("no-such")
    assert result.returncode == 2 and "healthy-910b4" in result.stderr
