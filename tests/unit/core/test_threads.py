import subprocess
import sys

import pytest

from ascendtune.core.threads import left_behind


def test_what_the_work_returns_or_raises_is_passed_on() -> None:
    assert left_behind(lambda: 7).result(5) == 7
    with pytest.raises(SystemExit, match="3"):
        left_behind(lambda: sys.exit(3)).result(5)


def test_work_that_never_ends_keeps_no_process_from_ending() -> None:
    script = "from threading import Event; from ascendtune.core.threads import left_behind; left_behind(Event().wait)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
