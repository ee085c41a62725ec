from __future__ import annotations

import subprocess
import sys

import pytest

_DROPPED = """
import sys, time, weakref
from ascendtune.core.interrupts import keep_interrupts
keep_interrupts()
class Thing: pass
thing = Thing()
def drop(_):
    raise KeyboardInterrupt if sys.argv[1] == "interrupt" else ValueError("another fault")
reference = weakref.ref(thing, drop)
try:
    del thing
    time.sleep(5)
    print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.long
def test_interrupt_that_python_drops_in_a_callback_is_raised_again() -> None:
    ended = subprocess.run([sys.executable, "-c", _DROPPED, "interrupt"], capture_output=True, text=True, timeout=30)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


def test_other_unraisable_exceptions_are_still_printed() -> None:
    program = _DROPPED.replace("sleep(5)", "sleep(0)")
    ended = subprocess.run([sys.executable, "-c", program, "other"], capture_output=True, text=True, timeout=30)
    assert ended.stdout == "went on\n" and "ValueError: another fault" in ended.stderr
