"""How processes ended, as a shell would tell it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ascendtune.job.outcome import as_of_a_shell


@pytest.mark.parametrize("ending", [0, 1, 3, 77, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT])
def test_an_exit_code_is_the_one_that_a_shell_shows(ending: int) -> None:
    program = f"import os; os.kill(os.getpid(), {-ending})" if ending < 0 else f"raise SystemExit({ending})"
    code = subprocess.run([sys.executable, "-S", "-c", program], timeout=30).returncode
    shown = subprocess.run(["bash", "-c", f"{sys.executable} -S -c '{program}' 2>/dev/null; exit $?"], timeout=30)
    assert as_of_a_shell(code) == shown.returncode
