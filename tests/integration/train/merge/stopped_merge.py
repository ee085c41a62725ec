"""A merge that waits before a call of a function: stopped_merge.py ADAPTER TARGET MODULE.NAME AT REACHED.

Of `sync_path`, which files are synced with as well, only the calls for the directory of the target count.
"""

import sys
import time
from pathlib import Path

from ascendtune.core import files
from ascendtune.merge import write
from ascendtune.merge.merge import merge

adapter, target, place, at, reached = sys.argv[1:]
file, name = place.split(".")
module = {"files": files, "write": write}[file]
function, calls = getattr(module, name), []


def stop_before(*arguments, **options):
    if name != "sync_path" or arguments == (Path(target).parent,):
        calls.append(name)
    if len(calls) == int(at):
        Path(reached).touch()
        time.sleep(100)
    return function(*arguments, **options)


setattr(module, name, stop_before)
merge([adapter], Path(target), verify=False)
