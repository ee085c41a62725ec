"""Tests and speed of ascendtune on the device of this machine, in pieces that can be interrupted.

    make hardware [PYTHON=python3] [WHEELS=FOLDER] [MINUTES=9]

It needs torch >= 2.6 and no index, virtual environment or installation. Each piece is a process of at most 9 minutes,
kept in RESULTS/DEVICE/results.json; one that passed with the same code and packages is not run again. Without a GPU the
pieces run in their small form on the CPU: that shows that they run, and says nothing about hardware.

Exit code 0: all pieces have run; 1: one has failed; 75: some are left for the next call.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hardware import cells, machine, page

PIECE_SECONDS = 540
_LEAST_SECONDS = 60
"""A piece is not begun with less time than this."""
_LEFT = 75
"""Exit code where pieces are left: "try again" (EX_TEMPFAIL in sysexits.h)."""
_CODE = ("src", "benchmarks", "tests/hardware")
_WORK = machine.ROOT / "build" / "hardware"
_PACKAGES = _WORK / "packages"


@dataclass(frozen=True)
class Piece:
    name: str
    argv: tuple[str, ...]
    """Behind the interpreter; `{out}` is the file that the piece writes."""
    tool: str | None = None
    """Of the speed table."""


def pieces(*, small: bool) -> list[Piece]:
    """The tests, then the speed table; the cells with a target first."""
    files = sorted((machine.ROOT / "tests" / "hardware").glob("test_*.py"))
    pytest = ("-m", "pytest", "-p", "no:cacheprovider", "--junit-xml={out}")
    found = [Piece(f"test-{file.stem.removeprefix('test_').replace('_', '-')}", (*pytest, str(file))) for file in files]
    for cell in cells.cells(small=small):
        for tool in cell.tools:
            found.append(Piece(f"speed-{cell.name}-{tool}", ("-m", "hardware.speed", cell.name, tool, "{out}"), tool))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--wheels",
        default="",
        help="folder of wheels for what this Python lacks, at most 64 MiB; wheels in WHEELS/TOOL are that tool's",
    )
    parser.add_argument("--results", type=Path, default=machine.ROOT / "docs" / "hardware")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="end after this time; what it cuts off runs next time"
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="pieces whose name holds one of these words, in the order of the words"
    )
    parser.add_argument("--again", action="store_true", help="run pieces again that have passed")
    parser.add_argument("--traces", type=Path, help="keep the trace of one step of each cell in this directory")
    given = parser.parse_args()
    end_pieces_on_sigterm()
    ends = time.monotonic() + 60 * given.minutes
    if given.wheels:
        for name in install_packages(Path(given.wheels), _PACKAGES):
            print(f"installed {name}", flush=True)
    environment = environment_of_pieces(_PACKAGES)
    asked = subprocess.run(
        [sys.executable, "-m", "hardware.machine"], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if asked.returncode:
        raise SystemExit(asked.returncode)
    device = json.loads(asked.stdout.splitlines()[-1])
    small = device["kind"] == "cpu"
    if small:
        print("torch finds no GPU here: the small form runs, on the CPU", flush=True)
        environment |= {"ASCENDTUNE_HARDWARE": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if given.traces:
        given.traces.mkdir(parents=True, exist_ok=True)
        environment["ASCENDTUNE_HARDWARE_TRACES"] = str(given.traces.resolve())
    name = "cpu-small" if small else re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
    file = given.results / name / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {"form": "small" if small else "full", "pieces": {}}
    results["device"] = device
    chosen = chosen_pieces(pieces(small=small), given.only)
    made_of = {"code": digest_of_code(), "packages": device["versions"]}
    waiting = chosen if given.again else not_passed(chosen, results, made_of)
    done = len(chosen) - len(waiting)
    print(f"{device['name']}: {done} of {len(chosen)} pieces have passed with this code and these packages", flush=True)
    environment["ASCENDTUNE_HARDWARE_MODELS"] = str(_WORK / f"models-{os.getpid()}")
    try:
        left = run_pieces(waiting, environment, results, file, ends, made_of)
    finally:
        shutil.rmtree(environment["ASCENDTUNE_HARDWARE_MODELS"], ignore_errors=True)
    page.write(given.results)
    known = [results["pieces"].get(each.name, {}) for each in chosen if each not in left]
    states = [each["state"] for each in known]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped"))
    print(f"{counts}, {len(left)} left for the next call; {given.results / 'README.md'}")
    raise SystemExit(1 if "failed" in states else _LEFT if left else 0)


def end_pieces_on_sigterm() -> None:
    """A piece has a process group of its own, and would go on alone on the device."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def install_packages(wheels: Path, packages: Path) -> list[str]:
    """What this Python lacks, and for a tool with a folder of wheels in `wheels` whatever lies there, for it alone."""
    found = machine.install_wheels(wheels, packages)
    for tool in cells.TOOLS:
        if (wheels / tool).is_dir():
            found += machine.install_wheels(wheels / tool, packages_of(tool, packages), every=True)
    return found


def packages_of(tool: str, packages: Path) -> Path:
    """Where the packages lie that are one tool's alone; it need not exist."""
    return packages.with_name(f"{packages.name}-{tool}")


def chosen_pieces(found: list[Piece], words: list[str]) -> list[Piece]:
    """Those whose name holds one of `words`, in the order of the words; all where there are none."""
    return list(dict.fromkeys(each for word in words or [""] for each in found if word in each.name))


def digest_of_code() -> str:
    """12 hex digits over what the pieces run; results lie elsewhere, and git need not be here."""
    digest = hashlib.sha256()
    for file in sorted(each for part in _CODE for each in (machine.ROOT / part).rglob("*.py")):
        digest.update(f"{file.relative_to(machine.ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def not_passed(chosen: list[Piece], results: dict[str, Any], made_of: dict[str, Any]) -> list[Piece]:
    """Pieces that have not passed yet with the code and the packages of `made_of`."""
    passed = {"state": "passed", **made_of}
    return [each for each in chosen if not passed.items() <= results["pieces"].get(each.name, {}).items()]


def run_pieces(
    waiting: Iterable[Piece],
    environment: dict[str, str],
    results: dict[str, Any],
    file: Path,
    ends: float,
    made_of: dict[str, Any],
) -> list[Piece]:
    """Run pieces until `ends` (of time.monotonic) and keep each result; returns those that did not reach their end."""
    left = list[Piece]()
    for piece in waiting:
        limit = min(PIECE_SECONDS, ends - time.monotonic())
        result = run_piece(piece, environment, limit) if limit >= _LEAST_SECONDS else None
        if result is None or (result["state"] == "failed" and result["timed_out"] and limit < PIECE_SECONDS):
            left.append(piece)
            continue
        print(f"{result['state']:8}{result['seconds']:7.1f} s  {piece.name}  {result['summary']}", flush=True)
        results["pieces"][piece.name] = {**result, **made_of}
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        part.replace(file)
    return left


def run_piece(piece: Piece, environment: dict[str, str], limit: float) -> dict[str, Any]:
    """One piece in a process group of its own, ended after `limit` seconds."""
    scratch = _WORK / f"work-{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    out, log = scratch / "result", scratch / "output.txt"
    argv = [sys.executable, *(word.replace("{out}", str(out)) for word in piece.argv)]
    own = {"XDG_CACHE_HOME": str(scratch / "cache"), "XDG_STATE_HOME": str(scratch / "state"), "TMPDIR": str(scratch)}
    if piece.tool and (packages := packages_of(piece.tool, _PACKAGES)).is_dir():
        own["PYTHONPATH"] = os.pathsep.join([str(packages), environment["PYTHONPATH"]])
    begun, timed_out = time.monotonic(), False
    try:
        with log.open("wb") as output:
            child = subprocess.Popen(
                argv, cwd=machine.ROOT, env={**environment, **own}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                child.wait(limit)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        said = log.read_text(errors="replace").replace(str(scratch), "…").strip().splitlines()[-25:]
        content = (_tests if "pytest" in piece.argv else json.loads)(out.read_text()) if out.exists() else {}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    said_state = content.pop("state", "passed")
    state = said_state if child.returncode == 0 else "failed"
    told = content.pop("summary", "")
    if timed_out:
        told = f"ended after {limit:.0f} s"
    elif child.returncode < 0:
        told = f"ended by {signal.Signals(-child.returncode).name}"
    elif not told or (child.returncode and "tests" not in content):
        told = said[-1] if said else ""
    result = {
        "state": state,
        "summary": told,
        "timed_out": timed_out,
        "seconds": round(time.monotonic() - begun, 1),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": _commit(),
        **content,
    }
    return result | ({"output": said} if state == "failed" else {})


def _tests(text: str) -> dict[str, Any]:
    """What a JUnit report of pytest says: a line for each test."""
    found = []
    for case in ElementTree.fromstring(text).iter("testcase"):
        outcomes = [each for each in case if each.tag in ("failure", "error", "skipped")]
        state = (
            {"failure": "failed", "error": "failed", "skipped": "skipped"}[outcomes[0].tag] if outcomes else "passed"
        )
        why = (outcomes[0].get("message") or "").splitlines()[:1] if outcomes else []
        found.append({"name": case.get("name"), "state": state, "why": "".join(why)[:300]})
    counts = {state: sum(each["state"] == state for each in found) for state in ("passed", "failed", "skipped")}
    return {
        "state": "passed" if counts["passed"] else "skipped",
        "summary": ", ".join(f"{count} {state}" for state, count in counts.items() if count),
        "tests": found,
    }


def environment_of_pieces(packages: Path) -> dict[str, str]:
    """That of this process, with the repository and the wheels on the path, offline."""
    found = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    own = [machine.ROOT / each for each in ("src", "benchmarks", "tests")]
    path = [*own, packages, *filter(None, [found.get("PYTHONPATH")])]
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    return {**found, **offline, "PYTHONPATH": os.pathsep.join(map(str, path)), "TOKENIZERS_PARALLELISM": "false"}


def _commit() -> str | None:
    """None where git or the repository's history is not there."""
    if shutil.which("git") is None:
        return None
    asked = subprocess.run(
        ["git", "-C", str(machine.ROOT), "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return asked.stdout.strip() or None


if __name__ == "__main__":
    main()
