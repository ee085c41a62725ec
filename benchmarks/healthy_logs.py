"""Two hundred logs of runs that went well, made anew, and what `ascendtune explain` says of them: nothing.

    python benchmarks/healthy_logs.py DIR [NAME…]

Runs of ours, of torchrun, Accelerate, DeepSpeed, transformers, TRL and the peers with different settings, of jobs that
libraries complain in, of downloads, installations, builds, tests and servers, each of some seconds on a CPU, two at
a time. A log that is there already is not made again. A run that ends in a failure of its own is listed and not
counted; of one that Ctrl-C stopped, the answer may be that it was interrupted. Exit code 1 where some healthy log is
not taken for one.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from healthy.case import Case, Place
from healthy.cases import all_cases
from inputs import make

from ascendtune.check.explain.event.fatal import INTERRUPTED
from ascendtune.check.explain.explain import explain

_SIDE_BY_SIDE = 2
_LONGEST_SECONDS = 600


def main() -> None:
    # A shell's background jobs ignore Ctrl-C, and so would the programs that are stopped by it here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = Path(sys.argv[1]).resolve()
    place = _prepare(directory)
    wanted = sys.argv[2:] or ["*"]
    chains = [chain for chain in all_cases(place) if any(fnmatch(case.name, name) for case in chain for name in wanted)]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        list(pool.map(lambda chain: [_run(case, place) for case in chain], chains))
    failed = sorted(path.stem for path in place.logs.glob("*.failed"))
    logs = sorted(place.logs.glob("*.log"))
    loud = [path for path in logs if not _is_silent(path)]
    for name in failed:
        print(f"{name}: the run itself failed; not counted")
    for path in loud:
        first = explain([str(path)])
        print(f"{path.name}: {first.headline()}\n    {first.verdict.first and first.verdict.first.text[:200]}")
    runs = {path.name.split(".")[0] for path in logs}
    print(f"{len(runs)} healthy runs, {len(logs)} logs; explain is not silent on {len(loud)}")
    sys.exit(1 if loud else 0)


def _is_silent(log: Path) -> bool:
    found = explain([str(log)])
    was_stopped = log.name.startswith("stopped-") and found.verdict.first is not None
    return found.is_healthy or (was_stopped and found.findings()[0].code in INTERRUPTED)


def _prepare(directory: Path) -> Place:
    toy = make("toy")
    place = Place(directory, toy.model, toy.alpaca, directory / "rows", directory / "log")
    for folder in (place.rows, place.logs, directory / "out"):
        folder.mkdir(parents=True, exist_ok=True)
    alpaca = json.loads(toy.alpaca.read_text())[:120]
    said = [
        (
            [{"role": "user", "content": row["instruction"]}],
            [{"role": "assistant", "content": row["output"]}],
        )
        for row in alpaca
    ]
    turned = [*said[1:], said[0]]
    written = {
        "chat": [{"messages": asked + answer} for asked, answer in said],
        "text": [{"text": row["instruction"] + " " + row["output"]} for row in alpaca],
        "pairs": [
            {"prompt": asked, "chosen": answer, "rejected": other}
            for (asked, answer), (_, other) in zip(said, turned, strict=True)
        ],
        "marked": [
            {"prompt": asked, "completion": answer, "label": number % 3 > 0}
            for number, (asked, answer) in enumerate(said)
        ],
        "questions": [{"prompt": asked} for asked, _ in said],
        "bad": [{"messages": asked + answer} for asked, answer in said[:60]] + [{"messages": []}, {"nothing": 1}],
    }
    for name, rows in written.items():
        (place.rows / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def _run(case: Case, place: Place) -> None:
    log, failed = place.logs / f"{case.name}.log", place.logs / f"{case.name}.failed"
    if log.exists() or failed.exists():
        return
    env = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "DISABLE_VERSION_CHECK"), "1"),
        "HF_HOME": str(place.directory / "hf"),
        "TOKENIZERS_PARALLELISM": "false",
        **case.env,
    }
    env = {name: value for name, value in env.items() if value}
    half = log.with_suffix(".half")
    code = _to_terminal(case, half, env) if case.terminal else _to_file(case, half, env)
    # A stop is what was asked for.
    half.rename(log if code == 0 or (case.interrupt_at and code in _stopped(case)) else failed)
    if log.exists():
        for beside in case.also:
            for path in filter(lambda path: path.stat().st_size, sorted(place.directory.glob(beside))):
                (place.logs / f"{case.name}.{path.parent.name}-{path.name}").write_bytes(path.read_bytes())
    print(f"{case.name}: exit code {code}", file=sys.stderr, flush=True)


def _to_file(case: Case, log: Path, env: dict[str, str]) -> int:
    with log.open("wb") as output:
        child = subprocess.Popen(
            case.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
        )
        if case.interrupt_at:
            _stop(child, case)
        return child.wait(_LONGEST_SECONDS)


def _to_terminal(case: Case, log: Path, env: dict[str, str]) -> int:
    """Colours and progress bars are written to terminals only."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(case.argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    with log.open("wb") as output:
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:
                break
            if not piece:
                break
            output.write(piece)
    os.close(ours)
    return child.wait(_LONGEST_SECONDS)


def _stop(child: subprocess.Popen[bytes], case: Case) -> None:
    for _ in range(_LONGEST_SECONDS * 5):
        if child.poll() is not None:
            return
        if case.interrupt_at and case.interrupt_at.exists() and case.interrupt_at.stat().st_size:
            break
        time.sleep(0.2)
    time.sleep(case.after)
    os.killpg(child.pid, case.by)


def _stopped(case: Case) -> tuple[int, ...]:
    """Exit codes of a program that was stopped; some call it a failure of theirs."""
    return 1, -case.by, 128 + case.by


if __name__ == "__main__":
    main()
