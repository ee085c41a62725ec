"""Draw faults with mutmut's operators, try the tests on each. `python tests/mutants/drawn.py --help`.

Everything that it measures and finds is kept in `.mutants/`: given again, the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from heapq import nsmallest
from pathlib import Path

import coverage_map
from coverage_map import CoverageMap, Test
from mutate import Mutant, candidates, lines_of_function, made
from run import HEAVY, PACKAGE, ROOT, SOURCE, TABLE, replace_part, run_tests

KEPT = ROOT / ".mutants"
REASONS = Path(__file__).with_name("survivors.toml")
TITLE = "## Faults drawn by a tool"
# Of ten faults this many are drawn in each room.
SHARES = {"train": 4, "data": 3, "job": 2, "infer": 1}
# What the tests of a fault may take where all pass; those that take longest are left out.
UNIT_SECONDS, INTEGRATION_SECONDS = 60.0, 120.0
_IN_NAMESPACE = "ASCENDTUNE_MUTANTS_IN_NAMESPACE"


@dataclass(frozen=True)
class Result:
    """What became of a fault."""

    key: str
    file: str
    function: str
    line: int
    old: str
    new: str
    outcome: str
    """killed, timeout or survived."""
    by: str
    """The first test that failed; of a survivor how many tests ran, and how many were left out."""
    seconds: float

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]


@dataclass(frozen=True)
class Reason:
    """Why a fault that no test notices stays."""

    file: str
    old: str
    new: str
    kind: str
    """equivalent: nothing that anybody could see changes. tolerated: what changes is said in `why`."""
    why: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draw", type=int, default=250, metavar="N", help="how many faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="decides which (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="files, as train/plan*.py")
    parser.add_argument("--leave-out", action="append", default=[], metavar="PATTERN", help="files not to draw from")
    parser.add_argument("--again", action="store_true", help="try survivors again: tests were added")
    parser.add_argument("--write", action="store_true", help=f"write the figures to {TABLE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    _enter_namespace()
    print("measuring which tests run which lines", flush=True)
    coverage_map.measure(KEPT / "coverage")
    tests = coverage_map.load(KEPT / "coverage")
    known = {result.key: result for result in _kept()}
    results = []
    for name in HEAVY:
        importlib.import_module(name)
    for mutant in draw(arguments.draw, arguments.seed, arguments.only, arguments.leave_out):
        result = known.get(mutant.key)
        if result is None or (arguments.again and result.outcome == "survived"):
            result = judge(mutant, tests)
            _keep(result)
            print(f"{result.outcome:8}  {result.file}:{result.line}: {result.old}  ->  {result.new}", flush=True)
            print(f"          {result.by}, {result.seconds:.0f} s", flush=True)
        results.append(result)
    table = as_table(results, _reasons())
    print(table)
    if arguments.write:
        replace_part(TABLE, TITLE, table)
    return 1 if any(_reason_of(each, _reasons()) is None for each in results if each.outcome == "survived") else 0


def draw(count: int, seed: int, only: Sequence[str], leave_out: Sequence[str]) -> list[Mutant]:
    """Each room's share of `count` faults, the rooms in turn; with a larger count the same, and more."""
    files = [str(path.relative_to(PACKAGE)) for room in SHARES for path in sorted((PACKAGE / room).rglob("*.py"))]
    files = [each for each in files if not only or any(fnmatch(each, pattern) for pattern in only)]
    files = [each for each in files if not any(fnmatch(each, pattern) for pattern in leave_out)]
    # Making the faults of all files takes a minute: kept for the next time.
    made_of = hashlib.sha256(f"{count} {seed}".encode())
    for file in files:
        made_of.update(f"{file} ".encode() + (PACKAGE / file).read_bytes())
    path = KEPT / f"drawn-{made_of.hexdigest()[:16]}.json"
    if path.is_file():
        return [Mutant(**each) for each in json.loads(path.read_text())]
    drawn: list[tuple[float, Mutant]] = []
    for room, share in SHARES.items():
        wanted = -(-count * share // sum(SHARES.values()))
        found = (each for file in files if file.startswith(f"{room}/") for each in candidates(PACKAGE, file))
        # A tenth more than wanted: not every candidate makes a fault.
        best = nsmallest(wanted + wanted // 10 + 1, found, key=lambda each: each.rank(seed))
        mutants = [mutant for each in best if (mutant := made(PACKAGE, each))][:wanted]
        drawn += [(at / wanted, mutant) for at, mutant in enumerate(mutants)]
    mutants = [mutant for _, mutant in sorted(drawn, key=lambda each: each[0])]
    path.write_text(json.dumps([asdict(each) for each in mutants]))
    return mutants


def judge(mutant: Mutant, tests: CoverageMap) -> Result:
    """Run the tests of the changed line on a copy of the source: unit tests, then the others if nothing was noticed."""
    began = time.monotonic()
    original = (PACKAGE / mutant.file).read_text()
    found = tests.tests_of(mutant.file, mutant.line, lines_of_function(original, mutant.line))
    ran, outcome, by = 0, "survived", ""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        place = Path(name)
        source = place / "src"
        # With the compiled files, which stand for a second of work; that of the faulty file is out of date.
        shutil.copytree(SOURCE, source)
        (source / "ascendtune" / mutant.file).write_text(mutant.text)
        for is_integration, budget in ((False, UNIT_SECONDS), (True, INTEGRATION_SECONDS)):
            chosen = _within(budget, [each for each in found if each.is_integration == is_integration])
            if not chosen:
                continue
            ran += len(chosen)
            expected = sum(each.seconds for each in chosen)
            code = run_tests([each.name for each in chosen], source, place, patience=60 + 4 * expected)
            output = (place / "output").read_text(errors="replace")
            if code is None:
                outcome, by = "timeout", f"no end after {60 + 4 * expected:.0f} s"
            elif code not in (0, 5):
                outcome, by = "killed", _first_failure(output, code)
            if outcome != "survived":
                break
    if outcome == "survived":
        left_out = len(found) - ran
        by = f"{ran} tests ran" + (f", {left_out} that take longer did not" if left_out else "") if found else "no test"
    return Result(
        mutant.key, mutant.file, mutant.function, mutant.line, mutant.old, mutant.new, outcome, by,
        round(time.monotonic() - began, 1),
    )  # fmt: skip


def _within(seconds: float, tests: Sequence[Test]) -> list[Test]:
    """As many of the fastest as take no longer than that together."""
    chosen = []
    for test in tests:
        seconds -= test.seconds
        if seconds < 0:
            break
        chosen.append(test)
    # A file stands for all of its tests.
    files = {each.name for each in chosen if "::" not in each.name}
    return [each for each in chosen if each.name in files or each.name.partition("::")[0] not in files]


def _first_failure(output: str, code: int) -> str:
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if failed:
        return failed.group(1).rpartition("/")[2]
    return f"pytest ended with {code}"


def _enter_namespace() -> None:
    """Go on in a process namespace of our own: a faulty `job/` must not find, let alone signal, other processes."""
    if os.environ.get(_IN_NAMESPACE):
        return
    command = [sys.executable, *sys.argv]
    # bash is process 1 in there, and takes care of orphans.
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", '"$@"; exit $?', "bash"]
    if shutil.which("unshare") is None or os.system("unshare --pid --fork --mount-proc true 2>/dev/null"):
        sys.exit("no process namespace (unshare, as root): a fault of job/ could signal foreign processes")
    os.execvpe("unshare", [*alone, *command], {**os.environ, _IN_NAMESPACE: "1"})


def _kept() -> Iterator[Result]:
    path = KEPT / "results.jsonl"
    if path.is_file():
        for line in path.read_text().splitlines():
            yield Result(**json.loads(line))


def _keep(result: Result) -> None:
    with (KEPT / "results.jsonl").open("a") as file:
        file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")


def _reasons() -> dict[tuple[str, str, str], Reason]:
    content = tomllib.loads(REASONS.read_text())
    reasons = [Reason(**each) for each in content.get("survivor", [])]
    return {(each.file, each.old, each.new): each for each in reasons}


def _reason_of(result: Result, reasons: dict[tuple[str, str, str], Reason]) -> Reason | None:
    return reasons.get((result.file, result.old, result.new))


def as_table(results: Sequence[Result], reasons: dict[tuple[str, str, str], Reason]) -> str:
    survivors = [each for each in results if each.outcome == "survived"]
    lines = [
        TITLE,
        "",
        "Written by `python tests/mutants/drawn.py --write`: mutmut's operators and some more (decision 10) make all",
        "faults of four rooms; a seed draws from them. Each is put into a copy of the source; the unit tests that run",
        "the changed line are tried, then the integration tests.",
        "",
        "| room | drawn | noticed | of them by a time-out | survived | equivalent | tolerated | unexplained |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for room in (*SHARES, "all"):
        own = [each for each in results if room in ("all", each.room)]
        alive = [each for each in own if each.outcome == "survived"]
        kinds = Counter(reason.kind if (reason := _reason_of(each, reasons)) else "unexplained" for each in alive)
        late = sum(each.outcome == "timeout" for each in own)
        share = f"{len(alive)} ({len(alive) / len(own):.0%})" if own else "0"
        lines.append(
            f"| {room} | {len(own)} | {len(own) - len(alive)} | {late} | {share} | {kinds['equivalent']} | "
            f"{kinds['tolerated']} | {kinds['unexplained']} |"
        )
    lines += [
        "",
        "Those that survived:",
        "",
        "| file | as it is | with the fault | why it stays |",
        "|---|---|---|---|",
    ]
    for each in sorted(survivors, key=lambda each: (each.file, each.line)):
        reason = _reason_of(each, reasons)
        why = f"{reason.kind}: {reason.why}" if reason else f"**unexplained** ({each.by})"
        lines.append(f"| {each.file} | {_code(each.old)} | {_code(each.new)} | {why} |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    shown = text.replace("|", "\\|").replace("`", "'")
    return f"`{shown}`" if shown else "(nothing)"


if __name__ == "__main__":
    sys.exit(main())
