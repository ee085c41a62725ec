"""Advice on failures that no entry knows follows what the message is about."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_FRAME = '  File "{}", line 7, in {}\n'


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("moond: error: couldn't mkdir /run/tide/77: No such file or directory", "`ls -ld /run/tide /run`"),
        ("moond: error: failed to create /var/lib/tide/db/ebb: No such file or directory", "/var/lib/tide/db is not"),
        ("moond: error: reading /srv/tide/ebb.bin: No such file or directory", "`ls -l /srv/tide/ebb.bin"),
        ("moonlt error: Could not load /srv/tide/lib/ebb_lazy.dat", "ulimit -n"),
        ("moonlt error: Could not load /srv/tide/lib/libebb.so.7", "ldd /srv/tide/lib/libebb.so.7"),
        ("moonlt error: failed to read /srv/tide/ebb.bin: header of 7 bytes", "fetch or make it again"),
        ("moond: error: cannot open /dev/moon0: no such file or directory", "`ls -l /dev/moon0`"),
        ("moond: error: moon buffers exceed the memlock limit of 77", "`ulimit -a`"),
        ("moond: error: cannot connect to the tide at moon.example:7777", "`nc -zv moon.example 7777;"),
        ("moond: fatal: tide.conf duplicate records for ebb", "`grep -n WORD tide.conf`"),
        (
            "moond: error: Observed a panic: tides.boundsError{x:1} (runtime error: index out of range)",
            "the issues of that program",
        ),
        ("moond: error: the tide of the moon is 9 and nothing else", 'issues of moond for "the tide of the moon is"'),
        ("moond: error: tide of src/tide.cc:77 is 9", "correct it where your code"),
        ("moond: error: the unit ebb.service is 9 tides late", "`systemctl status ebb.service;"),
        ('moond: error: the tide is 9 for pod "ebb-tide-7" of the sea', "`kubectl describe pod ebb-tide-7;"),
    ],
)
def test_first_step_is_about_what_the_message_names(explained: Explained, line: str, advice: str) -> None:
    assert advice in explained(f"step 1\n{line}\n").remedies()[0]


def test_cut_traceback_quotes_the_last_frame_and_not_a_heading_that_is_not_there(explained: Explained) -> None:
    log = _FRAME.format("/v/lib/python3.11/site-packages/moonlib/rise.py", "rise") + "    run(tide)\n"
    log += _FRAME.format("/usr/lib/python3.11/subprocess.py", "run")
    explanation = explained(log)

    assert explanation.verdict.first is not None
    assert explanation.verdict.first.quote == 'File "/usr/lib/python3.11/subprocess.py", line 7, in run'
    assert explanation.verdict.first.number == 3
    assert not any("look at" in remedy for remedy in explanation.remedies())
    assert not any("LAUNCH_BLOCKING" in each for each in explanation.to_collect)


def test_traceback_with_a_heading_still_quotes_it(explained: Explained) -> None:
    log = "Traceback (most recent call last):\n" + _FRAME.format("/home/me/moon.py", "rise") + "    run(tide)\n"
    explanation = explained(log)

    assert explanation.verdict.first is not None
    assert explanation.verdict.first.quote.startswith("Traceback")
    assert any("look at /home/me/moon.py:7" in remedy for remedy in explanation.remedies())
    assert entry_of(explanation) == "traceback-cut-off"
