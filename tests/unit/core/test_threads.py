import subprocess
import sys

import pytest

from ascendtune.core.threads import run_in_daemon_thread


def test_results_and_exceptions_of_the_work_are_passed_on() -> None:
    assert run_in_daemon_thread(lambda: 7).result(5) == 7
    with pytest.raises(SystemExit, match="3"):
        run_in_daemon_thread(lambda: sys.exit(3)).result(5)


def test_work_that_never_ends_keeps_no_process_from_ending() -> None:
    imported = "from threading import Event; from ascendtune.core.threads import run_in_daemon_thread"
    script = f"{imported}; run_in_daemon_thread(Event().wait)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
