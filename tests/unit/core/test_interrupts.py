from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_DROPPED = """
import signal, sys, time, weakref
from ascendtune.core.interrupts import keep_interrupts
keep_interrupts()
class Thing: pass
thing = Thing()
def drop(_):
    raise KeyboardInterrupt if sys.argv[1] == "interrupt" else ValueError("another fault")
reference = weakref.ref(thing, drop)
try:
    if sys.argv[2:] == ["held"]:
        # As while a process is forked: the thread that raises it again inherits the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    del thing
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    time.sleep(5)
    print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.long
@pytest.mark.parametrize("while_held", [(), ("held",)], ids=["free", "held"])
def test_interrupt_that_python_drops_in_a_callback_is_raised_again(while_held: tuple[str, ...]) -> None:
    argv = [sys.executable, "-c", _DROPPED, "interrupt", *while_held]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


def test_other_unraisable_exceptions_are_still_printed() -> None:
    program = _DROPPED.replace("sleep(5)", "sleep(0)")
    ended = subprocess.run([sys.executable, "-c", program, "other"], capture_output=True, text=True, timeout=30)
    assert ended.stdout == "went on\n" and "ValueError: another fault" in ended.stderr


_IMPORTING = """
import sys, time
from ascendtune.core.interrupts import keep_interrupts
keep_interrupts()
sys.path.insert(0, sys.argv[1])
try:
    import numpy
    time.sleep(5)
    print("went on")
except KeyboardInterrupt:
    print("interrupted", "numpy" in sys.modules)
"""
_NUMPY = """
import os, signal, sys, time
try:
    for _ in range(int(sys.argv[2])):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
except KeyboardInterrupt:
    print("within", end=" ")
    raise
"""


@pytest.mark.parametrize(
    ("presses", "printed"), [("1", "interrupted True\n"), ("2", "within interrupted False\n")], ids=["once", "twice"]
)
def test_interrupt_within_the_import_of_numpy_is_raised_at_its_end(presses: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(_NUMPY)
    argv = [sys.executable, "-c", _IMPORTING, str(tmp_path), presses]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=30).stdout == printed


_BLOCKING = """
import os, signal, threading, time
from ascendtune.core.interrupts import keep_interrupts
keep_interrupts()
threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
try:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    print("blocked", end=" ")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    time.sleep(5)
    print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupt_that_the_main_thread_blocks_waits_for_it_where_another_thread_takes_it() -> None:
    """As between the start of a job and the worker in the same interpreter: nothing would record the end."""
    ended = subprocess.run([sys.executable, "-c", _BLOCKING], capture_output=True, text=True, timeout=30)
    assert (ended.stdout, ended.stderr) == ("blocked interrupted\n", "")
