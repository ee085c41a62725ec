"""The tests that run each line of the source, measured with coverage; fast unit tests first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import measured_context
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_SECONDS = 1800

# The plugin tells coverage the test that runs; of a process that a test starts only the file of the test is known.
_SETTINGS = """[run]
source = {source}
{context}
data_file = {data}
parallel = True
concurrency = multiprocessing,thread
patch = subprocess,_exit
disable_warnings = no-data-collected,module-not-imported,module-not-measured
"""


@dataclass(frozen=True, order=True)
class Test:
    """A test function with all its parameters, or a file of tests where only that is known."""

    is_integration: bool
    seconds: float
    name: str
    """For pytest: a path, perhaps with `::` and a function."""


@dataclass
class CoverageMap:
    """Tests of each line of each file below src/ascendtune."""

    lines: dict[str, dict[int, set[Test]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    tests: set[Test] = field(default_factory=set)

    def tests_of(self, file: str, line: int, function: range | None) -> list[Test]:
        """The tests that a fault in this line could concern, unit tests first, then by duration.

        Args:
            function: the lines of the function around; None on module level, where lines run when somebody imports.
        """
        of_file = self.lines.get(file, {})
        if function is None:
            found = {test for tests in of_file.values() for test in tests}
        else:
            # In a statement of several lines not every line is one that Python runs.
            found = of_file.get(line) or {test for each in function for test in of_file.get(each, ())}
        if function is None or all(each.is_integration for each in found):
            # What runs when a module is imported runs in whichever test comes first.
            beside = f"tests/unit/{file.rpartition('/')[0]}/"
            found = found | {each for each in self.tests if each.name.startswith(beside)}
        return sorted(found)


def measure(folder: Path) -> None:
    """Run under coverage the tests whose files are new or have changed since; what was measured stays."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {digest for path in folder.glob("*/files.json") for digest in json.loads(path.read_text()).values()}
    files = {name: digest for name, digest in _test_files() if digest not in known}
    unit = {name: digest for name, digest in files.items() if name.startswith("tests/unit")}
    for group in [unit] * bool(unit) + [{name: files[name]} for name in files if name not in unit]:
        place = folder / hashlib.sha256("".join(group.values()).encode()).hexdigest()[:16]
        # What was stopped in the middle.
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        _run(list(group), place)
        (place / "files.json").write_text(json.dumps(group, indent=1))
        print(f"measured  {', '.join(group) if len(group) < 4 else f'{len(group)} files'}", flush=True)


def _run(tests: list[str], place: Path) -> None:
    settings, context = place / "settings", f"context = {tests[0]}" if len(tests) == 1 else ""
    settings.write_text(_SETTINGS.format(source=ROOT / "src/ascendtune", context=context, data=place / "data"))
    options = ["-q", "-p", "no:cacheprovider", "-p", measured_context.__name__, f"--basetemp={place / 'tests'}"]
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *options]
    with (place / "output").open("w") as output:
        subprocess.run(
            [*command, f"--junitxml={place / 'junit.xml'}", *tests],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{ROOT / 'src'}"},
            stdout=output, stderr=output, timeout=_PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    shutil.rmtree(place / "tests", ignore_errors=True)


def _test_files() -> Iterator[tuple[str, str]]:
    """(name, digest) of each file of tests whose coverage is worth its time."""
    unit = (ROOT / "tests/unit").rglob("test_*.py")
    places = ("integration/train", "integration/train/merge", "integration/job", "integration")
    integration = [file for place in places for file in sorted((ROOT / "tests" / place).glob("test_*.py"))]
    for path in [*sorted(unit), *integration]:
        yield str(path.relative_to(ROOT)), hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def load(folder: Path) -> CoverageMap:
    """What `measure` has left in `folder`. Tests that failed or were skipped are left out."""
    found = CoverageMap()
    source = f"{ROOT / 'src/ascendtune'}{os.sep}"
    for place in sorted(path.parent for path in folder.glob("*/files.json")):
        seconds = _durations(place / "junit.xml")
        found.tests |= {test for name in seconds if "::" in name and (test := _test_of(name, seconds))}
        for path in place.glob("data.*"):
            data = CoverageData(str(path))
            data.read()
            for measured in data.measured_files():
                of_file = found.lines[measured.removeprefix(source)]
                for line, contexts in data.contexts_by_lineno(measured).items():
                    of_file[line] |= {test for each in contexts if (test := _test_of(each, seconds))}
    return found


def _durations(report: Path) -> dict[str, float]:
    """Seconds of each test function that passed, over its parameters, and of each file."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        if len(case) and case[0].tag in ("failure", "error", "skipped"):
            continue
        file = f"{case.get('classname', '').replace('.', '/')}.py"
        duration = float(case.get("time", 0))
        seconds[file] += duration
        seconds[f"{file}::{case.get('name', '').partition('[')[0]}"] += duration
    return seconds


def _test_of(context: str, seconds: dict[str, float]) -> Test | None:
    # The file of tests, the test, or both with a bar between them; parameters may hold a bar, too.
    name = context.partition("[")[0].rpartition("|")[2]
    return Test("/integration/" in name, seconds[name], name) if name in seconds else None
