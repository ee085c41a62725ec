"""`ascendtune.train.worker` under torch's memory profiler: the most bytes that the allocator had given out.

    python benchmarks/memory_worker.py OUT RUN [START]

Writes OUT.RANK.json: the peak in each phase of the loop, and what was held when the loop began. What kernels take
within an operator counts too, unless they have allocators of their own (oneDNN) or are collectives. Weights that are
mapped from files are counted by their size.
"""

from __future__ import annotations

import bisect
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from ascendtune.train.loop import Loop
from ascendtune.train.worker import main as worker


def main(out: str, arguments: list[str]) -> None:
    """Train; ends the process."""
    marks: list[tuple[int, str]] = []
    mapped = 0
    # Threads of their own are not seen by the profiler.
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    original = Loop.run

    def run(self: Loop) -> str:
        nonlocal mapped
        weights = self.objective.parameters()
        mapped = sum(each.nbytes for each in weights if type(each.data) is Tensor and each.untyped_storage().filename)
        marks.append((time.time_ns(), "begin"))
        enter = self.phases.enter

        def noted(name: str) -> None:
            marks.append((time.time_ns(), name))
            enter(name)

        self.phases.enter = noted  # type: ignore[method-assign]
        reason = original(self)
        marks.append((time.time_ns(), "end"))
        return reason

    Loop.run = run  # type: ignore[method-assign]
    profiler: Any = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    profiler.start()
    code = worker(arguments)
    profiler.stop()
    times = [moment for moment, _ in marks]
    live, peaks, begin = 0, dict[str, int](), 0
    held: dict[int, int] = {}
    for moment, address, size in sorted(_allocations(profiler)):
        # An address that is given out again was given back on a thread that is not seen.
        live -= held.pop(address, 0)
        if size > 0:
            held[address] = size
            live += size
        index = bisect.bisect_right(times, moment) - 1
        name = marks[index][1] if index >= 0 else "before"
        peaks[name] = max(peaks.get(name, 0), live + mapped)
        if index < 0:
            begin = live + mapped
    outcome = {"code": code, "peaks": peaks, "begin": begin, "mapped": mapped}
    Path(f"{out}.{os.environ.get('RANK', '0')}.json").write_text(json.dumps(outcome))
    sys.stdout.flush()
    os._exit(code)


def _allocations(profiler: Any) -> Iterator[tuple[int, int, int]]:
    """Nanoseconds, address and bytes (negative: given back) of all but what collectives take within themselves.

    Gloo gives that back on threads of its own, which the profiler does not see: it would count as held for ever.
    """
    events = list(profiler.profiler.kineto_results.experimental_event_tree())
    while events:
        event = events.pop()
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size
        elif not event.name.startswith(("c10d::", "gloo:")):
            events += event.children


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
