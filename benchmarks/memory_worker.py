"""`ascendtune.train.worker` under torch's memory profiler: the most bytes that the allocator had given out.

    python benchmarks/memory_worker.py OUT RUN [START]

Writes OUT.RANK.json: the peak in each phase of the loop, and what was held when the loop began. What kernels take
within an operator counts too, unless they have allocators of their own (oneDNN). Weights that are mapped from files
are counted by their size.
"""

from __future__ import annotations

import bisect
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor
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
    events = [
        (each.start_ns(), each.nbytes())
        for each in profiler.profiler.kineto_results.events()
        if each.name() == "[memory]"
    ]
    times = [moment for moment, _ in marks]
    live, peaks, begin = 0, {}, 0
    for moment, size in sorted(events, key=lambda each: each[0]):
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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
