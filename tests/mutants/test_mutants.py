"""The faults still fit the source; `make soak` tries a sample of them, `make mutants` all."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "ascendtune"


def test_every_fault_has_its_place_in_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    faults = runpy.run_path(str(HERE / "faults.py"))["FAULTS"]
    of_jobs = runpy.run_path(str(HERE / "job_faults.py"))["JOB_FAULTS"]
    for fault in (*faults, *of_jobs):
        places = (SOURCE / fault.file).read_text().count(fault.old)
        assert places == 1, f"{fault.file}: stands there {places} times: {fault.old}"
        assert fault.new != fault.old
        assert (HERE.parents[1] / fault.test.partition("::")[0]).is_file(), fault.test


def test_the_page_names_files_and_tests_that_exist() -> None:
    page = (HERE.parents[1] / "docs" / "mutants.md").read_text(encoding="utf-8")
    files = set(re.findall(r"^\| ([a-z_/]+\.py) \|", page, re.MULTILINE))
    assert len(files) > 50 and [each for each in files if not (SOURCE / each).is_file()] == []
    tests = set(re.findall(r"`(test_\w+\.py)::(\w+)", page))
    paths = list((HERE.parents[1] / "tests").rglob("test_*.py"))
    texts = {name: "".join(each.read_text() for each in paths if each.name == name) for name, _ in tests}
    assert [f"{name}::{test}" for name, test in tests if f"def {test}(" not in texts[name]] == []


@pytest.mark.soak
def test_a_sample_of_faults_is_noticed() -> None:
    tried = subprocess.run([sys.executable, HERE / "run.py", "--quick"], capture_output=True, text=True, timeout=600)
    assert tried.returncode == 0, tried.stdout + tried.stderr
