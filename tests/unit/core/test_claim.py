"""The right to write in a run directory: one start, even after a kill, a fork, a replacement or a removal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.core import claim as module
from ascendtune.core.claim import CLAIM_FILE, Claim, is_unfinished_start
from ascendtune.core.errors import MachineError
from cluster import until

HOLD = "import sys, time; from pathlib import Path; from ascendtune.core.claim import Claim; "
TAKE = HOLD + "claim = Claim.take(Path(sys.argv[1])); print(claim.start_id, flush=True); "


def start(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)


def start_holder(directory: Path, code: str) -> subprocess.Popen[str]:
    """A process that has claimed `directory` and then runs `code`."""
    process = start(TAKE + code, str(directory))
    read_line(process)
    return process


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def require_taken(directory: Path, holder: int) -> None:
    with pytest.raises(MachineError) as caught:
        Claim.take(directory)
    assert caught.value.code == "run-in-use" and f"{holder} on " in caught.value.what


def require_free(directory: Path) -> None:
    Claim.take(directory).release()


def is_free(directory: Path) -> bool:
    try:
        require_free(directory)
    except MachineError as error:
        assert error.code == "run-in-use"
        return False
    return True


def test_second_claim_of_a_directory_is_refused(tmp_path: Path) -> None:
    with Claim.take(tmp_path / "run"):
        require_taken(tmp_path / "run", os.getpid())
    require_free(tmp_path / "run")


@pytest.mark.long
def test_claim_of_many_processes_at_once_is_one(tmp_path: Path) -> None:
    claimants = [start(TAKE + "time.sleep(60)", str(tmp_path / "run")) for _ in range(6)]
    until(lambda: sum(each.poll() is None for each in claimants) <= 1)
    alive = [each for each in claimants if each.poll() is None]
    said = [read_line(each) for each in alive]
    for each in claimants:
        end(each)
    assert len(alive) == 1 and said[0] != ""


def test_claim_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = start_holder(tmp_path / "run", "time.sleep(60)")
    require_taken(tmp_path / "run", process.pid)
    end(process)
    require_free(tmp_path / "run")


def test_claim_passes_to_the_program_that_the_process_becomes(tmp_path: Path) -> None:
    become = HOLD + (
        "claim = Claim.inherited(Path(sys.argv[1]), sys.argv[2]); print(claim is not None, flush=True); time.sleep(60)"
    )
    code = (
        "import os; claim.hand_over(); "
        f"os.execv(sys.executable, [sys.executable, '-c', {become!r}, sys.argv[1], claim.start_id])"
    )
    process = start_holder(tmp_path / "run", code)
    while True:
        require_taken(tmp_path / "run", process.pid)
        if Path(f"/proc/{process.pid}/cmdline").read_bytes().count(b"inherited") == 1:
            break
    assert read_line(process) == "True"
    require_taken(tmp_path / "run", process.pid)
    end(process)
    require_free(tmp_path / "run")


@pytest.mark.long
def test_claim_outlives_the_parent_of_a_fork(tmp_path: Path) -> None:
    code = (
        "import os\nif os.fork(): time.sleep(0.5); claim.release(); sys.exit(0)\n"
        "claim.hold(); print(os.getpid(), flush=True); time.sleep(60)"
    )
    process = start_holder(tmp_path / "run", code)
    child = int(read_line(process))
    assert process.wait(10) == 0
    require_taken(tmp_path / "run", child)
    os.kill(child, signal.SIGKILL)
    # Its last thread closes the file; which process then reaps it, and when, depends on the machine.
    until(lambda: is_free(tmp_path / "run"))


def test_children_of_the_holder_do_not_keep_the_claim(tmp_path: Path) -> None:
    code = (
        "import subprocess; claim.hand_over(); subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL); "
        "print('started', flush=True); time.sleep(60)"
    )
    process = start_holder(tmp_path / "run", code)
    read_line(process)
    children = subprocess.run(["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True).stdout
    end(process)
    require_free(tmp_path / "run")
    os.kill(int(children), signal.SIGKILL)


def test_directory_without_content_goes_with_its_claim(tmp_path: Path) -> None:
    claim = Claim.take(tmp_path / "runs" / "a")
    assert is_unfinished_start(tmp_path / "runs" / "a")
    claim.release()
    assert not (tmp_path / "runs" / "a").exists()
    with Claim.take(tmp_path / "b"):
        (tmp_path / "b" / "run.json").write_text("{}")
        assert not is_unfinished_start(tmp_path / "b")
    assert (tmp_path / "b" / "run.json").exists()


def test_program_of_a_former_start_is_refused(tmp_path: Path) -> None:
    with Claim.take(tmp_path / "run") as former:
        (tmp_path / "run" / "kept").touch()
    with Claim.take(tmp_path / "run") as claim:
        with pytest.raises(MachineError) as caught:
            Claim.inherited(tmp_path / "run", former.start_id)
        assert caught.value.code == "run-claimed-meanwhile"
        assert Claim.inherited(tmp_path / "run", claim.start_id) is None


def test_claim_file_that_was_removed_does_not_count(tmp_path: Path) -> None:
    """What the error advises where a host is gone and its file server keeps the lock."""
    former = Claim.take(tmp_path / "run")
    (tmp_path / "run" / CLAIM_FILE).unlink()
    with Claim.take(tmp_path / "run") as claim:
        former.release()
        assert json.loads((tmp_path / "run" / CLAIM_FILE).read_text())["start_id"] == claim.start_id


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A claim of another host whose lock does not reach this one: the record alone."""
    monkeypatch.setattr(module, "_ABANDONED_SECONDS", 3.0)

    def claimed(age_seconds: float) -> Path:
        directory = tmp_path / "run"
        directory.mkdir()
        record = {"start_id": "s", "pid": 7, "host": "node9", "boot_id": "another", "user": 0, "since": 0.0}
        (directory / CLAIM_FILE).write_text(json.dumps(record))
        when = time.time() - age_seconds
        os.utime(directory / CLAIM_FILE, (when, when))
        return directory

    return claimed


@pytest.mark.long
def test_claim_of_another_host_that_is_touched_is_refused(elsewhere: Callable[..., Path]) -> None:
    directory = elsewhere(5)
    toucher = start(
        "import os, sys, time\nwhile True: time.sleep(0.5); os.utime(sys.argv[1])", str(directory / CLAIM_FILE)
    )
    try:
        with pytest.raises(MachineError) as refused:
            Claim.take(directory)
        assert refused.value.code == "run-in-use" and "7 on node9" in refused.value.what
        assert f"remove {directory / CLAIM_FILE}" in refused.value.remedy
    finally:
        end(toucher)


def test_clock_of_this_host_does_not_make_a_claim_old(
    elsewhere: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file server dates the file: a host whose clock is an hour ahead must not take over a claim that is held."""
    monkeypatch.setattr(module, "_ABANDONED_SECONDS", 0.2)
    directory, now = elsewhere(5), time.time()
    monkeypatch.setattr(time, "sleep", lambda seconds: os.utime(directory / CLAIM_FILE))
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    with pytest.raises(MachineError) as refused:
        Claim.take(directory)
    assert refused.value.code == "run-in-use"


@pytest.mark.long
@pytest.mark.parametrize("age_seconds", [5, 3600])
def test_claim_of_a_host_that_is_gone_is_taken_over(elsewhere: Callable[..., Path], age_seconds: float) -> None:
    began = time.monotonic()
    with Claim.take(elsewhere(age_seconds)) as claim:
        waited = time.monotonic() - began
        assert claim.start_id != "s"
    assert (waited > 2) == (age_seconds == 5)


def test_holder_touches_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOUCH_EVERY_SECONDS", 0.05)
    with Claim.take(tmp_path / "run"):
        os.utime(tmp_path / "run" / CLAIM_FILE, (0, 0))
        until(lambda: (tmp_path / "run" / CLAIM_FILE).stat().st_mtime > 0)


def test_claim_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run" / CLAIM_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises((MachineError, OSError)):
        Claim.take(tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_claim_that_is_handed_over_within_a_process_is_released_once_for_both(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with Claim.take(tmp_path / "run") as claim:
        claim.hand_over()
        heir = Claim.inherited(tmp_path / "run", claim.start_id)
        assert heir is not None
        with heir:
            with pytest.raises(MachineError, match="being trained"):
                Claim.take(tmp_path / "run")
            (tmp_path / "run" / "run.json").write_text("{}")
        with pytest.raises(MachineError, match="being trained"):
            Claim.take(tmp_path / "run")
    assert set(Path("/proc/self/fd").iterdir()) <= before
    Claim.take(tmp_path / "run").release()
