"""`ascendtune profile` of a large trace: processor time and peak memory.

    python benchmarks/profile_trace.py TRACE [--megabytes 1000] [--keep FILE]

TRACE is one of torch.profiler (.json or .json.gz). Its events are repeated at later times, with numbers of their own,
until the file has the size; a process of its own then summarises it.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LIST = re.compile(r'"traceEvents":\s*\[')
_TIME = re.compile(r'"ts": (\d+(?:\.\d+)?)')
_NUMBER = re.compile(r'("(?:External id|Sequence number|correlation|Fwd thread id|Ev Idx)": |ProfilerStep#)(\d+)')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=int, default=1000, help="of the file, uncompressed (10^6 bytes)")
    parser.add_argument("--keep", type=Path, help="write the large trace here, and leave it")
    given = parser.parse_args()
    text = _text(given.trace)
    with tempfile.TemporaryDirectory() as work:
        large = given.keep or Path(work) / "large.json"
        with large.open("w") as file:
            file.writelines(repeated(text, given.megabytes * 10**6))
        events = sum(line.count('"ph": ') for line in large.open())
        command = [sys.executable, "-m", "ascendtune", "profile", str(large), "--report", f"{work}/report.html"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if outcome.returncode:
            sys.exit(outcome.stderr)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print("\n".join(outcome.stdout.splitlines()[:5]))
        print(
            f"{large.stat().st_size / 1e6:,.0f} MB, {events:,} events: {used.ru_utime + used.ru_stime:.1f} s of "
            f"processor time, peak {used.ru_maxrss / 1024:,.0f} MiB"
        )


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode()


def repeated(text: str, size: int) -> Iterator[str]:
    """The text of a trace with its events repeated until it has about `size` characters."""
    begin = _LIST.search(text)
    if begin is None:
        sys.exit("not a trace of torch.profiler: no traceEvents")
    end = text.rindex("]")
    events = text[begin.end() : end]
    times = [float(each) for each in _TIME.findall(events)]
    span = max(times) - min(times) + 1.0
    most = 1 + max((int(number) for _, number in _NUMBER.findall(events)), default=0)
    yield text[: begin.end()]
    for copy in range(max(1, round((size - len(text)) / len(events)) + 1)):
        yield ("," if copy else "") + _shifted(events, copy * span, copy * most)
    yield text[end:]


def _shifted(events: str, microseconds: float, number: int) -> str:
    later = _TIME.sub(lambda found: f'"ts": {float(found[1]) + microseconds:.3f}', events)
    return _NUMBER.sub(lambda found: f"{found[1]}{int(found[2]) + number}", later)


if __name__ == "__main__":
    main()
