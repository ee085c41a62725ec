"""`ascendtune comm test` and `comm bench` on real ranks over Gloo, healthy ones and one that is at fault."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.comm.collective import LARGEST_EXACT

pytestmark = pytest.mark.usefixtures("preloaded")

Run = Callable[..., subprocess.CompletedProcess[str]]
_FAULTY = Path(__file__).with_name("command.py")
_REFUSED = {"float8_e4m3fn", "float8_e5m2", "int16", "uint64", "uint32", "uint16"}
"""By gloo of torch 2.13, in everything but send and receive."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The command in an empty directory; `fault=("dies", 1)` happens on that rank."""

    def start(*words: str, fault: tuple[str, int] | None = None) -> subprocess.CompletedProcess[str]:
        program = ["-m", "ascendtune"] if fault is None else [str(_FAULTY), fault[0], str(fault[1])]
        return subprocess.run(
            [sys.executable, *program, "comm", *words],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return start


def _findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_two_ranks_agree_in_everything_that_gloo_takes(run: Run, tmp_path: Path) -> None:
    done = run("test", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "2 ranks over gloo: 7 of 7 collectives are right, element by element"
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"):
        cells = {each["dtype"]: each["ranks"] for each in told["results"] if each["collective"] == name}
        assert cells.keys() == LARGEST_EXACT.keys()
        refused = {dtype for dtype, ranks in cells.items() if "refused" in ranks[0]}
        assert refused == (set() if name == "send_recv" else _REFUSED)
        untried = {dtype for dtype, ranks in cells.items() if "untried" in ranks[0]}
        assert untried == ({"bool"} if name in ("all_reduce", "reduce_scatter") else set())
        parts = [part for ranks in cells.values() for rank in ranks for part in rank.get("parts", ())]
        assert parts and all(part["wrong"] == 0 and part["seen"] == part["expected"] for part in parts)
    assert not list(tmp_path.glob("ascendtune-comm-*")), "the directory of the ranks stays only where a log is needed"


@pytest.mark.soak
def test_four_ranks_give_10(run: Run) -> None:
    done = run("test", "--devices", "4", "--dtype", "bfloat16", "--collective", "all_reduce", "--json")
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(done.stdout)["results"]
    assert [rank["parts"][0]["seen"][0] for rank in cell["ranks"]] == [10.0] * 4
    assert "4 processes share" in done.stderr or (os.cpu_count() or 1) >= 4


_SHORT = (
    *("--collective", "all_reduce", "--collective", "all_gather", "--collective", "broadcast"),
    *("--dtype", "int8", "--timeout", "4"),
)
_THE_SUMS = "rank {} makes the sums wrong: without it they are right (int8)"


@pytest.mark.parametrize(
    ("fault", "devices", "collective", "said"),
    [
        (("adds one", 2), 4, "all_reduce", _THE_SUMS.format(2)),
        pytest.param(("adds one", 1), 2, "all_reduce", _THE_SUMS.format(1), marks=pytest.mark.soak),
        pytest.param(("spoils its sum", 1), 2, "all_reduce", "rank 1 has wrong sums", marks=pytest.mark.soak),
        pytest.param(
            ("sends an old buffer", 3), 4, "all_gather", "values sent by rank 3 are wrong", marks=pytest.mark.soak
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_rank_that_is_wrong_is_named(
    run: Run, fault: tuple[str, int], devices: int, collective: str, said: str
) -> None:
    done = run("test", "--devices", str(devices), *_SHORT, "--json", fault=fault)
    assert done.returncode == 1, done.stderr
    findings = _findings(done)
    assert said in findings[collective]["measured"] and findings[collective]["evidence"]
    assert {code for code, finding in findings.items() if finding["status"] != "ok"} == {collective}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param("hangs", "rank 1 did not return from all_gather of int8", marks=pytest.mark.soak),
        pytest.param("dies", "rank 1 was killed (SIGKILL) at all_gather of int8", marks=pytest.mark.soak),
        pytest.param("raises", "rank 1 failed at all_gather of int8: RuntimeError: EL0004", marks=pytest.mark.soak),
        ("never starts", "rank 1 never reached the start: rank 0 waited 4 s"),
        pytest.param("comes late", "rank 1 never reached broadcast of int8: rank 0 waited", marks=pytest.mark.soak),
    ],
)
def test_a_rank_that_is_missing_is_named_and_its_log(run: Run, tmp_path: Path, fault: str, said: str) -> None:
    done = run("test", *_SHORT, fault=(fault, 1))
    assert done.returncode == 1, done.stderr
    words = " ".join(done.stdout.split())
    assert said in words and "Traceback" not in done.stdout + done.stderr
    log = re.search(r"\S+/log/rank_1\.log", done.stdout)
    assert log and Path(log[0].strip("()")).is_file()
    assert words.endswith("all_reduce right in int8") or fault in ("never starts", "comes late")


def test_table_shows_sizes_bandwidths_and_the_expectation_that_is_missed(run: Run, tmp_path: Path) -> None:
    asked = ("--collective", "all_gather", "--min-bytes", "4", "--max-bytes", "64K", "--iterations", "3")
    expected = ("--expect", "1000", "--png", "a.png")
    done = run("bench", *asked, *expected, fault=("has little memory", 1))
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert " ".join(lines[0].split()) == "size (B) count type time (us) algbw GB/s busbw GB/s #wrong"
    table = [line.split() for line in lines[1 : lines.index("")]]
    # Four bytes have no two parts of one element each.
    assert [int(row[0]) for row in table] == [2**power for power in range(3, 16)]
    assert [int(row[1]) for row in table] == [2**power for power in range(13)]
    assert all(row[2] == "float32" and row[6] == "0" for row in table)
    seconds, algbw, busbw = (float(table[-1][column]) for column in (3, 4, 5))
    assert algbw == pytest.approx(32768 / seconds / 1e3, abs=0.006) and busbw == pytest.approx(algbw / 2, abs=0.006)
    assert "of what is expected" in done.stdout and "every element is right at 13 sizes" in done.stdout
    assert "the largest size was 32.0 KiB, limited by half of the free memory" in done.stderr
    assert (tmp_path / "a.png").is_file()


@pytest.mark.soak
def test_without_measurements_there_is_no_verdict(run: Run) -> None:
    done = run("bench", "--min-bytes", "1M", "--expect", "1", fault=("has little memory", 1))
    assert done.returncode == 4, done.stderr
    assert "no size fits" in done.stdout and "--min-bytes" in done.stdout


def test_the_slow_link_is_named(run: Run) -> None:
    asked = ("--pairs", "--max-bytes", "1K", "--iterations", "2", "--json")
    done = run("bench", *asked, fault=("is slow to the next", 0))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(link["sender"], link["receiver"]) for link in told["links"]] == [(0, 1), (1, 0)]
    assert all(link["bytes"] == 1024 and link["bytes_per_second"] > 0 for link in told["links"])
    found = _findings(done)["links"]
    assert found["status"] == "warning" and found["measured"].startswith("slowest link: rank 0 to rank 1, ")


def test_directory_of_another_run_is_refused_and_left_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine" / "log").mkdir(parents=True)
    (tmp_path / "mine" / "log" / "rank_0.log").write_text("of another run")
    asked = ("test", "--collective", "barrier", "--directory")
    done = run(*asked, "mine")
    assert done.returncode == 2 and "code: directory-not-empty" in done.stderr
    assert (tmp_path / "mine" / "log" / "rank_0.log").read_text() == "of another run"


@pytest.mark.soak
def test_a_directory_may_be_given_twice(run: Run, tmp_path: Path) -> None:
    for collective in ("barrier", "broadcast"):
        asked = ("test", "--collective", collective, "--dtype", "int8", "--directory", "kept", "--json")
        done = run(*asked)
        assert done.returncode == 0, done.stderr
        assert [finding["code"] for finding in json.loads(done.stdout)["findings"]] == [collective]
    assert (tmp_path / "kept" / "log" / "rank_1.log").is_file()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("test", "--collective", "allreduce"), 2, "did you mean 'all_reduce'?"),
        (("test", "--devices", "1"), 2, "code: too-few-ranks"),
        (("bench", "--min-bytes", "2K", "--max-bytes", "1K"), 2, "--min-bytes 2K is larger than --max-bytes 1K"),
        (("bench", "--max-bytes", "many"), 2, "--max-bytes many is not a size"),
        (("bench", "--expect", "fast"), 2, "--expect fast is not a bandwidth"),
        (("bench", "--pairs", "--dtype", "int8"), 2, "code: conflicting-options"),
        (("bench", "--profile-step", "recipe.yaml"), 2, "no such recipe"),
        (("bench", "--png", "/dev/null/a.png"), 3, "code: not-a-directory"),
        (("test", "--directory", "/dev/null"), 3, "a file of that name exists"),
    ],
)
def test_impossible_options_are_refused(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    done = run(*words)
    assert done.returncode == code and said in done.stderr and done.stdout == ""
