"""Try the tests on faulty copies of the source: every fault must be noticed. `python tests/mutants/run.py --help`.

Verdicts are kept in `.mutants/`: given again, the command tries only the faults whose file or test has changed since.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from faults import FAULTS, Fault
from job_faults import JOB_FAULTS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "ascendtune"
TABLE = ROOT / "docs" / "mutants.md"
TITLE = "## Faults chosen by hand"
KEPT = ROOT / ".mutants" / "chosen.jsonl"
PATIENCE_SECONDS = 500
MOST_BYTES = 8 << 30
"""Of memory for a test of a faulty source, which may ask for more and more."""
# Imported once, before the processes that test are forked: each would pay seconds for them.
HEAVY = (
    "torch", "torch.distributed.tensor", "torch.nn.parallel", "transformers", "peft", "pyarrow", "tokenizers",
    "pytest", "transformers.models.qwen2.modeling_qwen2", "transformers.models.auto.modeling_auto",
    "hypothesis", "pydantic", "yaml", "jinja2", "rich.console", "psutil", "safetensors.torch", "torch.testing",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    fault: Fault
    outcome: str
    """killed, survived, broken (the tests did not run), or untried."""
    by: str
    """The test that failed, as pytest names it; or why there is none."""
    output: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults in whose file or text one of these words occurs")
    parser.add_argument("--quick", action="store_true", help="only the sample that `make test` tries")
    parser.add_argument("--kept", action="store_true", help="try none; show the kept verdicts")
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    chosen = [fault for fault in (*FAULTS, *JOB_FAULTS) if fault.quick or not arguments.quick]
    if arguments.words:
        chosen = [fault for fault in chosen if any(word in f"{fault.file} {fault.spoils}" for word in arguments.words)]
    for name in HEAVY:
        importlib.import_module(name)
    # `make test` tries the sample, and has run its tests on the source without a fault.
    try_one = judge if arguments.quick else kept if arguments.kept else kept_or_judged
    # One after the other, in the main thread: processes that a forked thread forks end with an error whatever they did.
    verdicts = []
    for fault in chosen:
        verdict = try_one(fault)
        verdicts.append(verdict)
        print(f"{verdict.outcome:8}  {verdict.fault.file}: {verdict.fault.spoils} ({verdict.by})", flush=True)
        if verdict.outcome != "killed":
            print(verdict.output[-3000:], flush=True)
    alive = [verdict for verdict in verdicts if verdict.outcome != "killed"]
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} faults were noticed")
    if arguments.write:
        replace_part(TABLE, TITLE, as_table(verdicts))
    return 1 if alive or not verdicts else 0


def kept(fault: Fault) -> Verdict:
    """The kept verdict: that the fault was noticed by a test that passes without it."""
    by = _kept().get(_key(fault))
    return Verdict(fault, "killed" if by else "untried", by or "its file or test has changed since it was tried", "")


def kept_or_judged(fault: Fault) -> Verdict:
    """The kept verdict, or a new one, which is kept if the fault was noticed by a test that passes without it."""
    if (known := kept(fault)).outcome == "killed":
        return known
    verdict = judge(fault)
    if verdict.outcome != "killed":
        return verdict
    if failure := _failure_without_fault(verdict.by):
        return Verdict(fault, "broken", f"{verdict.by} fails on the source without a fault", failure)
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as file:
        file.write(json.dumps({"key": _key(fault), "by": verdict.by}) + "\n")
    return verdict


def _kept() -> dict[str, str]:
    if not KEPT.is_file():
        return {}
    return {each["key"]: each["by"] for each in map(json.loads, KEPT.read_text().splitlines())}


def _key(fault: Fault) -> str:
    """A digest of the fault, of the file that it is put into and of the file of its test."""
    test = ROOT / fault.test.partition("::")[0]
    contents = [json.dumps(asdict(fault)).encode(), (PACKAGE / fault.file).read_bytes(), test.read_bytes()]
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in contents)).hexdigest()[:16]


@functools.cache
def _failure_without_fault(test: str) -> str:
    """What the test prints when it fails on the source as it is; empty when it passes."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        place = Path(name)
        code = run_tests([test], SOURCE, place, patience=PATIENCE_SECONDS)
        output = (place / "output").read_text(errors="replace")
    return "" if code == 0 else f"pytest ended with {code}\n{output}"


def judge(fault: Fault) -> Verdict:
    """Run the fault's test on a copy of the source that has the fault."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        place = Path(name)
        source = place / "src"
        # With the compiled files, which stand for a second of work; that of the faulty file is out of date.
        shutil.copytree(SOURCE, source)
        path = source / "ascendtune" / fault.file
        text = path.read_text()
        if (places := text.count(fault.old)) != 1:
            return Verdict(fault, "broken", f"stands there {places} times", fault.old)
        path.write_text(text.replace(fault.old, fault.new))
        code = run_tests([fault.test], source, place, patience=PATIENCE_SECONDS)
        output = (place / "output").read_text(errors="replace")
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", output, re.MULTILINE)
    if code == 1 and failed:
        return Verdict(fault, "killed", failed.group(1), output)
    if code is None:
        return Verdict(fault, "broken", f"no end after {PATIENCE_SECONDS} s", output)
    return Verdict(fault, "survived" if code == 0 else "broken", fault.test, output)


def run_tests(tests: Sequence[str], source: Path, place: Path, *, patience: float) -> int | None:
    """pytest's exit code: 0 all passed, 1 some failed, others: it could not run; None: it did not end."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(_be_pytest(tests, source, place))
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _be_pytest(tests: Sequence[str], source: Path, place: Path) -> int:
    import pytest

    output = os.open(place / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    # For the processes that tests start, too.
    os.environ |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    options = ["-x", "-q", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider", f"--basetemp={place / 'tests'}"]
    code = int(pytest.main([*options, *tests]))
    sys.stdout.flush()
    used = sys.modules.get("ascendtune")
    return code if used is None or str(source) in str(used.__file__) else 3


def as_table(verdicts: Sequence[Verdict]) -> str:
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    lines = [
        TITLE,
        "",
        "Written by `make mutants`: each fault is put into a copy of the source, and the named test is run on it.",
        f"{outcomes['killed']} of {len(verdicts)} were noticed, {outcomes['survived'] + outcomes['broken']} were not; "
        f"{outcomes['untried']} were not tried since their file or their test changed.",
        "",
        "| file | fault: what it does to a run | noticed by |",
        "|---|---|---|",
    ]
    for verdict in verdicts:
        by = f"`{verdict.by.rpartition('/')[2]}`" if verdict.outcome == "killed" else f"**{verdict.outcome}**"
        lines.append(f"| {verdict.fault.file} | {verdict.fault.spoils} | {by} |")
    return "\n".join(lines) + "\n"


def replace_part(path: Path, title: str, part: str) -> None:
    """Put `part` where the part with this title stands in the page, or at its end; the other parts stay."""
    head, *parts = re.split(r"^(?=## )", path.read_text(), flags=re.MULTILINE)
    kept = [each if each.startswith(f"{title}\n") else None for each in parts]
    if any(kept):
        parts = [part if old else each for old, each in zip(kept, parts, strict=True)]
    else:
        parts.append(part)
    path.write_text("\n\n".join(each.strip() for each in (head, *parts)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
