"""Output of hosts: what goes to the terminal and what to logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.job.nodes.screen import Screen


def test_output_goes_to_stdout_as_it_is_and_all_else_to_stderr_with_its_host(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = Screen(tmp_path, is_foreign=False)
    shown.show("node2", {"out": "loss 1.5\n"})
    shown.show("node2", {"err": "step 1\n"})
    shown.show("node2", {"complaint": "Connection closed"})
    shown.show("node2", {"left_out": 3})
    shown.show("node2", {"rank": 1, "line": "of rank 1"})
    shown.show("node3", {"rank": 2, "line": "of rank 1"})
    shown.finish(was_asked_to_stop=False)
    out, err = capfd.readouterr()
    assert out == "loss 1.5\n"
    assert [line.partition(",")[0] for line in err.splitlines()] == [
        "step 1",
        "[node2] Connection closed",
        "[node2 rank 0] 3 lines dropped: the terminal did not take them in time",
        "[node2 rank 1] of rank 1",
    ]
