"""First causes, echoes, and logs without a failure."""

from __future__ import annotations

import gzip
import json
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.answer.json_form import as_json
from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation, explain
from ascendtune.check.explain.log.source import BLOCK_BYTES
from ascendtune.core.errors import CheckFailed, InputError, MachineError
from ascendtune.core.exit_cause import CauseKind, exit_cause
from ascendtune.core.records import write_json
from ascendtune.core.rundir import RunDir
from ascendtune.job.hang.heartbeat import RankHeartbeat
from ascendtune.job.record import Job
from ascendtune.job.registry import close, register
from ascendtune.job.spec import JobSpec

Explained = Callable[..., Explanation]

_UNKNOWN = """\
[rank2]: Traceback (most recent call last):
[rank0]: step 4 loss 1.0
[rank2]:   File "/home/me/train.py", line 12, in step
[rank1]: Traceback (most recent call last):
[rank2]:     weird(batch)
[rank2]:   File "/usr/lib/python3.11/site-packages/odd/core.py", line 3, in weird
[rank1]:   File "/home/me/train.py", line 40, in sync
[rank2]:     raise OddError("the moon is full")
[rank2]: odd.core.OddError: the moon is full
[rank1]: torch.distributed.DistNetworkError: Connection reset by peer, recvValue failed
"""


def test_an_unknown_exception_is_said_to_be_unknown_and_where_it_came_from(explained: Explained) -> None:
    explanation = explained(_UNKNOWN)
    first = explanation.verdict.first

    assert explanation.verdict.certainty == "unexplained"
    assert first is not None
    assert first.trace is not None
    assert first.trace.text == "odd.core.OddError: the moon is full"
    assert first.trace.place == ("/home/me/train.py", 12, "step")
    assert explanation.verdict.rank == 2


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("device npu:2, torch_npu 2.7.1", True),
        ("loaded libhccl.so", True),
        ("EZ9999: Inner Error!", True),
        ("sorted in descending order; input ids cannot be ascending", False),
        ("ascendtune 0.1.0 on cuda:0", False),
    ],
)
def test_directory_of_cann_logs_is_named_for_ascend_alone(explained: Explained, line: str, told: bool) -> None:
    text = as_text(explained(f"{line}\n{_UNKNOWN}"), columns=None, paint=lambda text, _: text)

    assert ("plog" in text) == told


def test_first_exception_of_a_chain_is_the_cause(explained: Explained) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nodd.OddError: first\n\n'
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "a.py", line 9, in h\n    f()\nRuntimeError: second\n'
    )

    assert explanation.verdict.first is not None
    assert explanation.verdict.first.text == "odd.OddError: first"


def test_a_known_exception_goes_before_the_unknown_one_that_led_to_it(explained: Explained) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nodd.OddError: first\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "a.py", line 9, in h\n    f()\n'
        "ModuleNotFoundError: No module named 'deepspeed'\n"
    )

    assert explanation.headline() == "a Python package is not installed here: deepspeed"


def test_a_watchdog_alone_is_a_symptom(explained: Explained) -> None:
    explanation = explained("[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)\n")

    assert explanation.verdict.certainty == "symptom"
    assert "no known line says why" in as_text(explanation, columns=80, paint=lambda text, _: text)


def test_echoes_alone_explain_nothing(explained: Explained) -> None:
    explanation = explained(
        "ChildFailedError:\nRoot Cause (first observed failure):\n[0]:\n  host      : node7\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 123)\n"
    )

    assert explanation.verdict.certainty == "unexplained"
    assert explanation.verdict.rank == 1
    assert "echoes only" in as_text(explanation, columns=200, paint=lambda text, _: text)


_STOPPED = """\
W1121 04:38:20.730000 23444 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 23515 closing signal SIGTERM
E1121 04:38:22.246000 23444 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 130) local_rank: 1 (pid: 23516) of binary: /venv/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 130 (pid: 23516)
"""  # noqa: E501


def test_a_launcher_says_of_ctrl_c_what_it_says_of_failures(explained: Explained) -> None:
    assert explained(_STOPPED).is_healthy
    assert not explained(_STOPPED.replace("130", "1")).is_healthy
    assert not explained(f"[rank0]: RuntimeError: weird\n{_STOPPED}").is_healthy


def test_an_error_that_the_job_outlived_is_not_a_failure(explained: Explained) -> None:
    caught = "Traceback (most recent call last):\n  File 'x.py', line 1, in f\nValueError: never mind\n"
    going_on = "".join(f"step {step} loss 1.0\n" for step in range(6000))

    assert explained(caught + going_on).is_healthy
    assert not explained(going_on + caught).is_healthy


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Connection refused, trying again",
        "/usr/lib/python3/site-packages/x.py:3: UserWarning: CUDA out of memory is possible here",
        "step 3 eval_error 0.25 error_rate 0.5",
        "[INFO] HCCL(1,python): timeout 120, retry on failure",
        "Exception ignored in: <function x at 0x1>",
    ],
)
def test_talk_of_errors_is_not_an_error(explained: Explained, line: str) -> None:
    assert explained(f"step 1 loss 2.0\n{line}\nstep 2 loss 1.9\n").is_healthy


def test_torchruns_report_names_the_first_rank(explained: Explained) -> None:
    explanation = explained(
        "failed (exitcode: -9) local_rank: 3 (pid: 123) of binary: /usr/bin/python\n"
        "ChildFailedError:\nRoot Cause (first observed failure):\n[0]:\n  time      : 2025-11-20_10:11:12\n"
        "  host      : node7\n  rank      : 11 (local_rank: 3)\n  exitcode  : -9 (pid: 123)\n"
    )

    assert entry_of(explanation) == "sigkill"
    assert (explanation.verdict.rank, explanation.verdict.host) == (11, "node7")


def test_a_month_that_does_not_exist(explained: Explained) -> None:
    log = "E0000 00:00:1737817030.660638 1887713 moon.cc:8310] the moon is full\nERROR 2024-00-41 00:00:00,000 end\n"

    assert "the moon is full" in explained(log).headline()


@pytest.mark.parametrize("shift", [0, 1])
def test_lines_that_end_in_crlf_count_once(tmp_path: Path, shift: int) -> None:
    """Wherever a block of the file ends."""
    line = b"x" * 6 + b"\r\n"
    log = tmp_path / "job.log"
    log.write_bytes(b"y" * shift + line * (BLOCK_BYTES // len(line) * 2) + b"RuntimeError: the moon is full\r\n")

    first = explain([str(log)]).verdict.first

    assert first is not None
    assert first.number == BLOCK_BYTES // len(line) * 2 + 1


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_log_that_powershell_redirected_is_read(tmp_path: Path, encoding: str, end: str) -> None:
    before = "│ 训练 │" + end
    count = BLOCK_BYTES // len(before.encode(encoding)) + 1
    log = tmp_path / "job.log"
    log.write_bytes(("\ufeff" + before * count + f"RuntimeError: the moon is full{end}").encode(encoding))

    explanation = explain([str(log)])

    assert "the moon is full" in explanation.headline()
    first = explanation.verdict.first
    assert first is not None and first.number == count + 1


def test_log_of_docker_s_json_file_is_read_as_the_container_wrote_it(tmp_path: Path) -> None:
    said = (
        "step 1\r 50%|#####     | 1/2 [00:01<00:01,  1.00it/s]\rTraceback (most recent call last):",
        '  File "/home/me/train.py", line 12, in step',
        '    moon("日")',
        "odd.OddError: the moon is full",
    )
    log = tmp_path / "c-json.log"
    log.write_text(
        "".join(json.dumps({"log": f"{each}\n", "stream": "stderr"}, separators=(",", ":")) + "\n" for each in said)
        + '{"log":"cut off'
    )

    explanation = explain([str(log)])

    assert explanation.headline() == "Python failed with odd.OddError: the moon is full"
    first = explanation.verdict.first
    assert first is not None and first.number == 4 and first.trace is not None
    assert first.trace.place == ("/home/me/train.py", 12, "step")


def test_log_that_is_given_twice_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("RuntimeError: the moon is full\n")
    with (tmp_path / "job.log").open() as log:
        monkeypatch.setattr("sys.stdin", log)
        assert len(explain(["-", "-"]).scans) == 1


def test_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        explain([str(tmp_path / "none.log")])
    assert caught.value.code == "file-unreadable"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.create("name: x\n", {}, {})
    run.begin_attempt({})
    return run


def test_a_run_that_says_why_it_failed(run: RunDir) -> None:
    cause = {"what": "the disk is full", "remedy": "free some space", "exit_code": 3, "rank": 0}
    run.end_attempt("failed", cause)

    explanation = explain([str(run)])

    assert explanation.headline() == "the disk is full (rank 0)"
    assert explanation.remedies() == ("free some space",)
    assert json.loads(as_json(explanation))["exit_code"] == 1


def test_the_logs_of_a_run_say_more_than_that_a_rank_ended(run: RunDir) -> None:
    run.end_attempt("failed", {"what": "rank 1 ended with exit code 1", "remedy": "look", "exit_code": 1, "rank": 1})
    (run.logs / "rank_1.log").write_text("ModuleNotFoundError: No module named 'deepspeed'\n")

    explanation = explain([str(run)])

    assert explanation.headline() == "a Python package is not installed here: deepspeed (rank 1)"


def test_a_run_that_finished_is_healthy_whatever_earlier_attempts_said(run: RunDir) -> None:
    (run.logs / "rank_1.log").write_text("ModuleNotFoundError: No module named 'deepspeed'\n")
    run.end_attempt("finished")

    assert explain([str(run)]).is_healthy


@pytest.mark.parametrize("host", [None, "node2"])
@pytest.mark.parametrize("kind", ["exit", "signal", "launcher"])
def test_a_log_that_says_why_outranks_a_cause_seen_from_outside(run: RunDir, kind: CauseKind, host: str | None) -> None:
    error = CheckFailed("rank 3 on node2 was killed (SIGKILL)", code="test", remedy="look at dmesg")
    run.end_attempt("failed", exit_cause(kind, error, rank=3, host=host, signal_name="SIGKILL"))
    assert explain([str(run)]).headline() == "rank 3 on node2 was killed (SIGKILL)"
    (run.logs / "rank_3.log").write_text("RuntimeError: CANN error: the moon is not what it should be\n")

    explanation = explain([str(run)])

    assert explanation.verdict.first is not None and explanation.run_cause is not None
    assert (explanation.run_cause["kind"], explanation.run_cause["rank"]) == (kind, 3)


_FAILED = (
    "E1130 03:04:23.5 75 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) {rank}\n"
)
_SUMMARY = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \nRoot Cause (first observed failure):\n[0]:\n"
    "  host      : {host}\n  rank      : {rank} (local_rank: 0)\n  exitcode  : {code} (pid: 7)\n"
)


def test_torchrun_that_was_killed_outranks_how_the_ranks_of_another_host_ended(run: RunDir) -> None:
    error = CheckFailed("torchrun on nodeb was killed (SIGKILL)", code="process-killed", remedy="look at dmesg")
    run.end_attempt("failed", exit_cause("signal", error, host="nodeb", signal_name="SIGKILL"))
    ended = _FAILED.format(code=143, rank="local_rank: 0 (pid: 7)") + _SUMMARY.format(host="nodea", rank=0, code=143)
    (run.logs / "launcher.log").write_text(ended)
    assert explain([str(run)]).headline() == error.what


def test_rank_that_was_killed_outranks_the_rank_that_lost_it_and_is_named_as_its_own_launcher_does(run: RunDir) -> None:
    error = CheckFailed("rank 1 on nodeb was killed (SIGKILL)", code="process-killed", remedy="look at dmesg")
    run.end_attempt("failed", exit_cause("signal", error, rank=1, host="nodeb", signal_name="SIGKILL"))
    lost = MachineError("the connection to another rank broke: Read error", code="connection-lost", remedy="look")
    (run.logs / "rank_0.log").write_text(f"error: {lost}\n")
    for log, host, rank, code in (("launcher", "nodea", 0, 3), ("launcher_node_1", "nodeb", 1, -9)):
        ended = _FAILED.format(code=code, rank="local_rank: 0 (pid: 7)") + _SUMMARY.format(
            host=host, rank=rank, code=code
        )
        (run.logs / f"{log}.log").write_text(ended)
    explanation = explain([str(run)])
    assert explanation.headline().startswith("a process was killed with SIGKILL")
    assert explanation.headline().endswith("(rank 1, host nodeb)")


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            {"what": "stopped by SIGINT after step 2", "remedy": "go on", "exit_code": 130, "rank": 0},
            "nothing went wrong: stopped by SIGINT after step 2",
        ),
        (None, "nothing went wrong: the run was asked to stop"),
    ],
)
def test_a_stop_is_nothing_wrong(run: RunDir, cause: dict[str, Any] | None, said: str) -> None:
    (run.logs / "launcher.log").write_text("ModuleNotFoundError: No module named 'deepspeed'\n")
    run.end_attempt("stopped", cause)

    explanation = explain([str(run)])

    assert (explanation.is_healthy, explanation.headline()) == (True, said)
    text = as_text(explanation, columns=None, paint=lambda text, name: text)
    assert text.splitlines()[1].startswith("do")
    assert json.loads(as_json(explanation))["exit_code"] == 0


_DIED = "W1120 10:11:12.0 140 torch/distributed/elastic/api.py:897] Sending process 7 closing signal SIGTERM\n"


def _started(run: RunDir, *, first: str) -> Job:
    """A second start of a run whose first one has written `first`."""
    (run.logs / "launcher.log").write_text(first)
    return register(JobSpec(("program",), run.path, nproc=2, kind="cpu"), ["train"], watched=True)


def test_the_newest_attempt_of_a_running_run_is_read(run: RunDir) -> None:
    job = _started(run, first=_DIED)
    explanation = explain([str(run)])
    assert explanation.is_healthy and explanation.headline().startswith(
        "the run is under way, and its logs show no failure"
    )
    with (run.logs / "launcher.log").open("a") as log:
        log.write("ModuleNotFoundError: No module named 'deepspeed'\n")
    explanation = explain([str(run)])
    assert explanation.headline() == "a Python package is not installed here: deepspeed"
    assert explanation.verdict.first is not None and explanation.verdict.first.number == 2
    assert "The run is under way" in as_text(explanation, columns=None, paint=lambda text, name: text)
    close(job, 1)


_WAITED = """\
RuntimeError: synchronize:NPUStream.cpp:517 NPU function error: aclrtSynchronizeStream, error code is 507011
EI0002: [PID: 77] 2025-07-23-03:47:57.070.463 The wait execution of the Notify register times out. Reason: The Notify \
register has not received the Notify record from remote rank [3].
"""
_HEARTBEAT = """\
[ERROR] HCCL(77,python):2025-07-23-03:47:56.070.463 [heartbeat.cc:652] [77]Cluster Exception Location[IP/ID]:\
[10.10.0.4/3], Arrival Time:[Wed Jul 23 03:20:11 2025], Discoverer:[10.10.0.1/0], ExceptionType:[Heartbeat Lost \
Occurred], Possible Reason:1. Process has exited, 2. Network Disconnected
"""
_NOISE = "[ERROR] DRV(77,python):2025-07-23-03:47:36.070.463 [drv][share_log_read_in_user 1101]Invalid para.(fd=-1)\n"


@pytest.mark.parametrize(
    ("said", "plog", "headline", "files"),
    [
        (_WAITED, _HEARTBEAT, "HCCL lost the heartbeat of device 3 on 10.10.0.4", 3),
        (_WAITED, _NOISE, "a collective waited for a rank that did not come", 3),
        ("ModuleNotFoundError: No module named 'deepspeed'\n", _HEARTBEAT, "a Python package is not installed", 2),
    ],
    ids=["cause", "noise", "another failure"],
)
def test_plogs_of_a_run_are_read_where_cann_failed(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, plog: str, headline: str, files: int
) -> None:
    """Of the run's own ranks, and written since it was started."""
    monkeypatch.setenv("ASCEND_PROCESS_LOG_PATH", str(tmp_path / "logs"))
    place = tmp_path / "logs/debug/plog"
    place.mkdir(parents=True)
    (place / "plog-77_20240101000000.log").write_text("EI9999: Inner Error!\n")
    os.utime(place / "plog-77_20240101000000.log", (1, 1))
    (place / "plog-78_20250723034757.log").write_text("EI9999: Inner Error!\n")
    job = register(JobSpec(("program",), run.path, nproc=1, kind="npu"), ["train"], watched=True)
    beat = RankHeartbeat(0, "step", 7, 1.0, 1, 77, 1, "node1", "boot", "4026531836")
    write_json(run.heartbeats / "rank_0.json", asdict(beat))
    (run.logs / "launcher.log").write_text("")
    (run.logs / "rank_0.log").write_text(said)
    (place / "plog-77_20250723034757.log").write_text(plog)
    run.end_attempt("failed", {"what": "rank 0 ended", "remedy": "look", "exit_code": 1, "rank": 0, "kind": "exit"})
    close(job, 1)

    explanation = explain([str(run)])

    assert explanation.headline().startswith(headline)
    assert len(explanation.scans) == files
    assert not any("plog" in remedy and "says more" in remedy for remedy in explanation.remedies())


def test_a_starter_that_vanished_is_the_cause(run: RunDir, tmp_path: Path) -> None:
    job = _started(run, first="")
    record = next(Path(os.environ["XDG_STATE_HOME"]).rglob(f"{job.id}.json"))
    record.write_text(json.dumps({**job.as_json(), "start_ticks": job.start_ticks - 1}))
    (run.logs / "launcher.log").write_text(_DIED)

    explanation = explain([str(run)])

    assert explanation.headline().startswith("the process that started the run ended without recording why")
    assert not explanation.is_healthy and "the same command resumes" in explanation.remedies()[0]
    run.end_attempt("stopped", {"what": "stopped by SIGTERM after step 2", "remedy": "-", "exit_code": 143, "rank": 0})
    assert explain([str(run)]).headline().endswith("; its workers were then stopped by SIGTERM after step 2")


def test_torchrun_whose_starter_vanished_was_not_told_to_stop_by_others(explained: Explained) -> None:
    log = f"""error: the process that started the job (pid 7) has ended, and so the ranks are stopped
   do: it was killed (kill -9, out of host memory, a container that was removed)
{_DIED}Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.api.SignalException: Process 31803 got signal: 15
"""
    headline = "ascendtune says: the process that started the job (pid 7) has ended, and so the ranks are stopped"
    assert explained(log).headline() == headline


def test_an_empty_log_explains_nothing(explained: Explained) -> None:
    explanation = explained("\n \n")
    assert explanation.is_empty and explanation.headline() == "there is nothing to explain: the log is empty"
    content = json.loads(as_json(explanation))
    assert (content["exit_code"], content["certainty"]) == (explanation.exit_code, "none") == (4, "none")
    assert not explained("step 1\n").is_empty


def test_a_file_that_is_not_text_is_refused_as_a_log(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b'{"a": "header"}' * 99 + random.Random(0).randbytes(20_000))
    with pytest.raises(InputError) as caught:
        explain([str(weights)])
    assert caught.value.code == "not-a-log"
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 3000)
    with pytest.raises(InputError) as caught:
        explain([str(tmp_path / "noise")])
    assert caught.value.code == "not-a-log"
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(random.Random(0).randbytes(20_000)))
    with pytest.raises(InputError) as caught:
        explain([str(packed)])
    assert caught.value.code == "not-a-log"


@pytest.mark.parametrize("kept", [1.0, 0.9])
def test_compressed_log_is_read_also_where_it_is_cut_off(tmp_path: Path, kept: float) -> None:
    steps = "".join(f"step {step} loss {step / 7}\n" for step in range(9000))
    packed = gzip.compress(f"OSError: [Errno 28] No space left on device: '/moon/7'\n{steps}".encode())
    (tmp_path / "rank_3.log.gz").write_bytes(packed[: int(kept * len(packed))])

    scan = explain([str(tmp_path)]).scans[0]

    assert scan.rank == 3 and scan.lines >= 8000 * kept
    assert [event.hit.entry.id for event in scan.events if "No space" in event.text]


@pytest.mark.parametrize(
    ("steps", "kept", "told"), [(3000, 0.5, "after line 1,"), (3000, 0.001, "nothing of it could be read")]
)
def test_compressed_log_that_is_cut_off_gets_no_all_clear(tmp_path: Path, steps: int, kept: float, told: str) -> None:
    packed = gzip.compress("".join(f"step {step} loss {step / 7}\n" for step in range(steps)).encode())
    log = tmp_path / "a.log.gz"
    log.write_bytes(packed[: int(kept * len(packed))])

    explanation = explain([str(log)])
    content = json.loads(as_json(explanation))

    headline = explanation.headline()
    assert f"the compressed file {log} is cut off or damaged" in headline and told in headline
    assert (explanation.exit_code, content["exit_code"], content["certainty"]) == (4, 4, "none")
    assert content["sources"][0]["is_cut_off"]


def test_a_failure_in_what_is_left_of_a_compressed_log_is_told(tmp_path: Path) -> None:
    packer, failure = zlib.compressobj(wbits=31), b"OSError: [Errno 28] No space left on device: '/moon/7'\n"
    (tmp_path / "a.log.gz").write_bytes(packer.compress(failure) + packer.flush(zlib.Z_SYNC_FLUSH))

    explanation = explain([str(tmp_path / "a.log.gz")])

    assert explanation.exit_code == 1 and explanation.verdict.first is not None
    shown = as_text(explanation, columns=999, paint=lambda text, _: text)
    assert "a.log.gz is cut off or damaged after line 1: what follows is not known" in shown


def test_compressed_log_that_is_cut_off_between_cr_and_lf_is_read_and_closed(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    packer = zlib.compressobj(wbits=31)
    log = tmp_path / "a.log.gz"
    log.write_bytes(packer.compress(b"step 1\r\nstep 2\r") + packer.flush(zlib.Z_SYNC_FLUSH))

    assert explain([str(log)]).scans[0].lines == 2
    assert not [each for each in recwarn if each.category is ResourceWarning]


def test_a_log_that_was_cut_while_it_was_written_is_text(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"\0" * 300_000 + b"ModuleNotFoundError: No module named 'deepspeed'\n")
    assert "deepspeed" in explain([str(log)]).headline()


def test_a_directory_of_logs_is_read(tmp_path: Path) -> None:
    (tmp_path / "plog").mkdir()
    with pytest.raises(InputError) as caught:
        explain([str(tmp_path)])
    assert caught.value.code == "no-logs-in-directory"
    (tmp_path / "plog" / "plog-7_1.log").write_text("ModuleNotFoundError: No module named 'deepspeed'\n")
    assert "deepspeed" in explain([str(tmp_path)]).headline()


@pytest.mark.parametrize("unlike_first", [True, False])
def test_long_logs_whose_lines_are_alike_or_not(explained: Explained, unlike_first: bool) -> None:
    """Shapes of lines are looked at only where lines repeat; neither way of reading loses the failure between."""
    draw = random.Random(0)
    letters = "ghijklmnopqrstuvwxyz"
    unlike = ["".join(draw.choices(letters, k=60)) for _ in range(12_000)]
    alike = [f"step {step} loss 1.0 of a line as long as the others are" for step in range(12_000)]
    failure = "[rank3]: OSError: [Errno 28] No space left on device"

    first, second = (unlike, alike) if unlike_first else (alike, unlike)
    verdict = explained("\n".join([*first, *second[:11_000], failure, *second[11_000:]])).verdict

    assert verdict.first is not None
    assert verdict.first.hit is not None
    assert (verdict.first.hit.entry.id, verdict.rank) == ("disk-full", 3)
