"""A merge that waits before a call of a function of merge/write.py: stopped_merge.py ADAPTER TARGET NAME AT REACHED."""

import sys
import time
from pathlib import Path

from ascendtune.merge import write
from ascendtune.merge.merge import merge

adapter, target, name, at, reached = sys.argv[1:]
function, calls = getattr(write, name), []


def stop_before(*arguments, **options):
    calls.append(name)
    if len(calls) == int(at):
        Path(reached).touch()
        time.sleep(100)
    return function(*arguments, **options)


setattr(write, name, stop_before)
merge([adapter], Path(target), verify=False)
