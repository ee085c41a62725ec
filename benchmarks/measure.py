"""Run commands in turn and note what they cost; write down what came out, and on what machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
RESULTS = _HERE / "results"
_SET_TO_ONE = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"),
    *("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"),
    # LLaMA-Factory's, for another torch than it was released with.
    "DISABLE_VERSION_CHECK",
)
# Where it is set, modules of a source tree are compiled at each start; those that pip installed are not.
_COMPILES_ANEW = "PYTHONDONTWRITEBYTECODE"
ASCENDTUNE = Path(sys.executable).with_name("ascendtune")


@dataclass(frozen=True)
class Step:
    """The end of an optimizer step, as `hook/sitecustomize.py` noted it."""

    cpu_seconds: float
    """Of the command and everything that it started, since it was started."""
    seconds: float
    """Since the command was started."""
    tokens: int
    """Real tokens so far, padding not counted; 0 where the tool tells them elsewhere."""


@dataclass(frozen=True)
class Measured:
    """One command, run to its end."""

    began: float
    """Seconds since the epoch."""

    exit_code: int
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    output: str
    steps: list[Step] = field(default_factory=list)
    data_cpu_seconds: float | None = None
    """From the first `datasets.load_dataset` to the end of the last `Dataset.map`, where the tool uses them."""


def run(
    argv: Sequence[str | Path], *, directory: Path, env: dict[str, str] | None = None, pad_id: int = -1
) -> Measured:
    """Run a command on one thread, offline, with the hook that notes its steps."""
    notes = Path(tempfile.mkdtemp(dir=directory)) / "steps.jsonl"
    environment = {
        **{name: value for name, value in os.environ.items() if name != _COMPILES_ANEW},
        **dict.fromkeys(_SET_TO_ONE, "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(_HERE / "hook"),
        "BENCHMARK_NOTES": str(notes),
        "BENCHMARK_PAD_ID": str(pad_id),
        "BENCHMARK_PID": str(os.getpid()),
        "BENCHMARK_BEGAN": str(time.time()),
        **(env or {}),
    }
    log = notes.with_name("output.txt")
    with log.open("wb") as output:
        begun = time.perf_counter()
        child = subprocess.Popen(
            [str(word) for word in argv],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    steps = [Step(**json.loads(line)) for line in notes.read_text().splitlines()] if notes.exists() else []
    data = notes.with_name(notes.name + ".data")
    return Measured(
        began=float(environment["BENCHMARK_BEGAN"]),
        exit_code=child.returncode,
        seconds=time.perf_counter() - begun,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        # Kilobytes on Linux; of the largest process among the command and what it waited for.
        peak_rss_bytes=usage.ru_maxrss * 1024,
        output=log.read_text(errors="replace"),
        steps=steps,
        data_cpu_seconds=float(data.read_text()) if data.exists() else None,
    )


def trained(variant: Callable[[Path], Measured]) -> Measured:
    """What `variant` costs in a directory of its own, gone afterwards; ends this program where it trains nothing."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        measured = variant(Path(scratch))
    if measured.exit_code or not measured.steps:
        raise SystemExit(f"exit code {measured.exit_code}:\n{measured.output[-3000:]}")
    return measured


def in_turn(variants: dict[str, Callable[[], dict[str, Any]]], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Each variant once, `rounds` times over, so that a neighbour's load falls on all alike. Adds the load average."""
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for number in range(rounds):
        for name, variant in variants.items():
            figure = {**variant(), "load": round(os.getloadavg()[0], 2)}
            figures[name].append(figure)
            print(f"round {number + 1}  {name}: {_short(figure)}", file=sys.stderr, flush=True)
    return figures


def median(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def spread(runs: list[dict[str, Any]], key: str, digits: int = 2) -> str:
    """`median (least to most)`."""
    values = sorted(run[key] for run in runs)
    return f"{statistics.median(values):,.{digits}f} ({values[0]:,.{digits}f} to {values[-1]:,.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_result(
    what: str, text: str, figures: dict[str, list[dict[str, Any]]], peers: dict[str, dict[str, str]] | None = None
) -> None:
    """`results/YYYY-MM-DD-<what>.md` and `.json`; prints the text.

    Args:
        figures: per variant and round.
        peers: per peer, the versions of its packages.
    """
    RESULTS.mkdir(exist_ok=True)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    loads = [run["load"] for runs in figures.values() for run in runs]
    ours = {name: importlib.metadata.version(name) for name in ("ascendtune", "torch", "transformers", "peft")}
    facts = {
        "date": today,
        "device": _cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": [min(loads), max(loads)],
        "versions": {"ours": ours, **(peers or {})},
    }
    versions = [
        f"- {tool}: " + ", ".join(f"{name} {version}" for name, version in packages.items())
        for tool, packages in {"ours": ours, **(peers or {})}.items()
    ]
    machine = f"{_cpu_name()}, {os.cpu_count()} cores, one thread a process, Python {platform.python_version()}"
    heading = (
        f"# {what.replace('-', ' ').capitalize()}, {today}\n\n{machine}, load average {min(loads)} to {max(loads)}"
    )
    whole = "\n".join([heading, "", *versions, "", text, ""])
    (RESULTS / f"{today}-{what}.md").write_text(whole)
    (RESULTS / f"{today}-{what}.json").write_text(json.dumps({**facts, "figures": figures}, indent=1) + "\n")
    print(whole)


def _short(figure: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:.5g}" for key, value in figure.items() if isinstance(value, int | float))


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
