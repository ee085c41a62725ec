"""The line of a failure that is shown: CANN's lines below an error, launchers' summaries, warnings."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.explain import Explanation, explain
from ascendtune.check.explain.log import directory as logs_module
from ascendtune.check.explain.log import source
from ascendtune.check.explain.log.directory import logs_in
from ascendtune.check.explain.traceback.cann_reason import shortened
from ascendtune.core.errors import InputError

Explained = Callable[..., Explanation]

_CALL = "RuntimeError: moon:torch_npu/csrc/moon.cpp:7 NPU function error: call aclnnMoon failed, error code is 561002\n"
_WRAPPED = "[ERROR] 2025-11-20-10:11:12 (PID:7, Device:3, RankID:-1) ERR00100 PTA call acl api failed\n"


def _first(explanation: Explanation) -> Event:
    assert explanation.verdict.first is not None
    return explanation.verdict.first


def test_the_words_of_cann_go_before_the_number_of_the_call_and_what_follows_from_them(explained: Explained) -> None:
    first = _first(
        explained(
            f"{_CALL}{_WRAPPED}EZ9999: Inner Error!\n"
            "EZ9999: [PID: 7] 2025-11-20-10:11:12.123.456 the moon has 3 sides, 4 are needed"
            "[FUNC:Sides][FILE:moon.cc][LINE:9]\n"
            "        TraceBack (most recent call last):\n"
            "       the shape of the moon cannot be had.[FUNC:Shape][FILE:moon.cc][LINE:90]\n"
            "       Tiling failed\n       Kernel Run failed. opType: 7, Moon\n"
        )
    )

    assert "the moon has 3 sides" in first.text
    assert first.hit.entry.kind == "detail"


_PLACE = "RuntimeError: npu_moon:torch_npu/csrc/moon.cpp:7\n"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (
            f"{_PLACE}    NPU function error: call aclnnMoon failed,\n    error code is 561002\n{_WRAPPED}"
            "EZ9999[PID: 7] ...: In MOON situation, tides should be 4, but got 3.\n    [FUNC:Sides]\n    [LINE:9]\n",
            "tides should be 4, but got 3",
        ),
        (f"{_CALL}... tideNum is 48, in case of moon, it must no more than 30.\n", "tideNum is 48"),
        (
            f"{_CALL}{_WRAPPED}EZ9999: Inner Error!\nThe tide is not equal to the moon.\n  [FUNC:Sides][LINE:9]\n"
            "Moon do tiling failed, ret is -1.\nCheck MoonDoTiling(executor) failed\n",
            "The tide is not equal to the moon",
        ),
        (f"{_CALL}Check Moon(tide) failed\ntides = 77 too large, moons do not support.\n", "tides = 77 too large"),
        (
            "RuntimeError: moon:moon.cpp:7 NPU function error: c10_npu::Moon(), error code is 100000\n"
            "[Error]: The argument is invalid.\nEE1001: [PID: 7] 2025-11-20-10:11:12.123.456 The moon 7 is invalid.\n",
            "The moon 7 is invalid",
        ),
        (
            "RuntimeError: moon:moon.cpp:7 NPU function error: aclrtMoon, error code is 107000\n"
            "[PID: 7] Invalid_Argument(EL0003): The argument is invalid.\n        Solution: Try a valid argument.\n"
            "        rtsMoon execution failed, reason=tide error:no ebb[FUNC:FuncErrorReason][FILE:moon.cc][LINE:6]\n",
            "rtsMoon: tide error:no ebb",
        ),
    ],
)
def test_reason_below_a_call_is_in_the_headline(explained: Explained, block: str, reason: str) -> None:
    assert reason in explained(block).headline()


@pytest.mark.parametrize(
    "below",
    [
        "INFO 127.0.0.1 - invalid moon must be 7\n",
        "step 7 of 9 loss 2.0 tides 4\n",
        "[Error]: The tides must be 4.\n",
        "Check that the moon is not invalid.\n",
        'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in rise\n    tide()\n',
    ],
)
def test_other_lines_below_a_call_are_not_reasons(explained: Explained, below: str) -> None:
    assert _first(explained(_CALL + below)).reason == ""


def test_long_reason_keeps_the_clauses_with_its_values() -> None:
    text = (
        "when the dtype of the moon is [int4], and its format is [MOON_NZ_OF_TIDES], the sizes of all tides should be"
    )

    assert shortened(f"{text} 9 or 7, but the tide is [8].") == (
        "and its format is [MOON_NZ_OF_TIDES], the sizes of all tides should be 9 or 7, but the tide is [8]"
    )


def test_a_reason_of_cann_continues_in_the_next_line(explained: Explained) -> None:
    log = "AclNN_Parameter_Error(EZ1001): when the moon is [full],\nthe tide should be [7], but is [9].\n"

    assert "the tide should be [7], but is [9]" in explained(log).headline()


def test_a_tree_of_uv_is_one_message(explained: Explained) -> None:
    log = (
        "  |-> No solution found when resolving: `moon`, `tide==7.1.0`,\n  |   `sun`\n"
        "  `-> Because tide==7.1.0 depends on ebb==7.1.0+cpu and there is no version of ebb==7.1.0+cpu, we can\n"
        "      conclude that tide==7.1.0 cannot be used.\n"
    )

    assert explained(log).headline().startswith("tide==7.1.0 needs ebb==7.1.0+cpu")


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "9.6   ╰─▶ Because there is no version of tide==7.1+cpu and you require\n9.6       tide==7.1+cpu, we\n",
            "tide==7.1+cpu",
        ),
        (
            "  ╰─▶ Because there is no version of sun{os == 'x'}==7 and your project depends on sun{os ==\n 'x'}==7,\n",
            "sun==7",
        ),
        (
            "  ╰─▶ Because there is no version of ebb==7\n      and tide==9 depends on ebb==7, we\n",
            "tide==9 needs ebb==7",
        ),
    ],
)
def test_package_that_uv_does_not_find_is_named(explained: Explained, reason: str, shown: str) -> None:
    assert shown in explained(f"  × No solution found when resolving dependencies:\n{reason}").headline()


def test_a_code_of_its_own_goes_before_the_line_that_quotes_a_number(explained: Explained) -> None:
    first = _first(
        explained(
            "W NPUStream.cpp:409] Warning: NPU warning, error code is 507046[Error]:\n"
            "[Error]: The stream synchronization times out.\n"
            "EE1002: [PID: 7] 2025-11-20-10:11:12.123.456 Stream synchronize timeout. reason=[stream sync timeout]\n"
        )
    )

    assert first.text.startswith("EE1002")


def test_the_error_of_a_kernel_outranks_the_report_of_its_crash(explained: Explained) -> None:
    explanation = explained(
        "[rank2]: EZ9999: [PID: 7] 2025-11-20-10:11:12.123.456 The error from device(chipId:2, dieId:0), there is an "
        "exception of aivec error, core id is 4, error code = 0x800000\n"
        "[rank2]:         TraceBack (most recent call last):\n"
        "[rank2]:        The extend info: errcode:(0x800000, 0, 0) errorStr: The DDR address of the MTE instruction is "
        "out of range. fixp_error0 info: 0x3\n"
        "[rank2]:        Kernel task happen error, retCode=0x31, [vector core exception].\n"
    )

    assert _first(explanation).hit.entry.id == "aicore-address"
    assert explanation.verdict.rank == 2


def test_a_summary_of_the_launcher_is_about_the_rank_that_failed_first(explained: Explained) -> None:
    explanation = explained(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "====\ntrain.py FAILED\n----\nFailures:\n"
        "[1]:\n  host      : node8\n  rank      : 9 (local_rank: 1)\n  exitcode  : -6 (pid: 99)\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 99\n----\n"
        "Root Cause (first observed failure):\n"
        "[0]:\n  host      : node7\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 77)\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 77\n====\n"
    )

    assert "SIGKILL" in _first(explanation).text
    assert (explanation.verdict.rank, explanation.verdict.host) == (3, "node7")


def test_a_summary_without_a_signal_shows_the_exit_code(explained: Explained) -> None:
    explanation = explained(
        "    raise ChildFailedError(\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n"
        "  exitcode  : 1 (pid: 77)\n  error_file: <N/A>\n"
    )

    assert _first(explanation).text.startswith("exitcode")
    assert explanation.verdict.certainty == "unexplained"


_TAKEN = (
    "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 "
    "(errno: 98 - Address already in use).\n"
)
_DEAF = "[E socket.cpp:500] [c10d] The server socket has failed to listen on any local network address.\n"


def test_a_warning_is_believed_once_what_follows_from_it_has_followed(explained: Explained) -> None:
    assert explained(f"{_TAKEN}step 1 loss 2.0\n").is_healthy

    assert "29500" in _first(explained(_TAKEN + _DEAF)).text


def test_warnings_do_not_bring_an_error_back_that_the_job_outlived(explained: Explained) -> None:
    caught = "Traceback (most recent call last):\n  File 'x.py', line 1, in f\nValueError: never mind\n"
    going_on = "".join(f"step {step} loss 1.0\n" for step in range(1000)) + _TAKEN

    assert explained(caught + going_on * 9).is_healthy


def test_a_complaint_that_never_ends_is_what_the_job_hangs_on(explained: Explained) -> None:
    retry = "node-1:9:9 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"

    assert "refused" in _first(explained(f"step 1\n{retry * 3}")).text
    assert explained(f"step 1\n{retry * 3}step 2 loss 1.0\n").is_healthy


@pytest.mark.parametrize("thrown", ["terminate called after throwing an instance of 'moon::Error'\n", ""])
def test_message_of_a_cpp_exception_is_the_first_cause(explained: Explained, thrown: str) -> None:
    first = _first(explained(f"step 1\n{thrown}  what():  the moon is full\nAborted (core dumped)\n"))

    assert "the moon is full" in first.text


def test_lines_of_code_are_not_errors(explained: Explained) -> None:
    """The head of the traceback is lost, and its frames with it."""
    first = _first(
        explained("step 1\n" * 60 + "    raise RuntimeError('Engine core initialization failed')\nRuntimeError: moon\n")
    )

    assert first.text == "RuntimeError: moon"


@pytest.mark.parametrize(
    "words",
    [
        "/app/src/moon.cpp:63: moon error",
        "the moon could not be reached, job aborted",
        "httpx.InvalidURL: Invalid port: 'moon'",
        "moon returned unexpected status code: 503: try later",
        "opening the moon failed, 0x7020010",
        "moon failed: 107001",
        "moon failed (-11)",
    ],
)
def test_the_last_words_of_a_log_are_about_its_failure(explained: Explained, words: str) -> None:
    assert words in _first(explained(f"step 1 loss 2.0\n{words}\n\n")).text
    assert explained(f"{words}\nstep 1 loss 2.0\nstep 2 loss 1.9\nstep 3 loss 1.8\n").is_healthy


@pytest.mark.parametrize(
    "words",
    [
        "finished with 0 errors",
        "error 0.25",
        "final error -0.25",
        "error 12345.5",
        "errors: 12",
        "error rate 0.25",
        "failed: 0",
        "no failures",
        "moon.Tide: Invalid port",
    ],
)
def test_figures_of_merit_are_not_last_words(explained: Explained, words: str) -> None:
    assert explained(f"step 1 loss 2.0\n{words}\n").is_healthy


def test_logs_below_a_directory_are_found_beside_what_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/one.log", "odd/two.out", "z/three.txt", "z/weights.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    real = os.scandir

    def scan(path: str) -> Any:
        if str(path).endswith("odd"):
            # As directories of the kernel's answer, whose process has ended meanwhile.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert [log.name for log in logs_in(tmp_path)[0]] == [str(tmp_path / "a/one.log"), str(tmp_path / "z/three.txt")]


@pytest.mark.parametrize(("limit", "most"), [("_MOST_ENTRIES", 2), ("_MOST_LOGS", 1), ("_MOST_BYTES", 9)])
def test_directory_of_more_than_the_logs_of_a_training_is_refused_without_reading_them(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/one.log", "a/two.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("12345")
    assert len(logs_in(tmp_path)[0]) == 2
    monkeypatch.setattr(logs_module, limit, most)
    with pytest.raises(InputError) as caught:
        logs_in(tmp_path)
    assert caught.value.code == "directory-too-large"


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        ("nvcc fatal   : Unsupported gpu architecture 'compute_90a'", "nvcc-architecture-too-new"),
        ("/x/moon.cu:3:10: fatal error: cublas_v2.h: No such file or directory", "cuda-header-missing"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "compiler-killed"),
        ("moon", "deepspeed-build"),
    ],
)
def test_a_compilers_error_outranks_the_failed_build_of_an_operator(
    explained: Explained, said: str, entry: str
) -> None:
    failed = f"RuntimeError: Error building extension 'fused_adam': [1/2] nvcc -c moon.cu\n{said}\n"

    first = _first(
        explained(f'Traceback (most recent call last):\n  File "/x/t.py", line 8, in go\n    go()\n{failed}')
    )

    assert first.hit.entry.id == entry


@pytest.mark.parametrize("padding", [0, source.BLOCK_BYTES - 40])
def test_lines_in_gbk_are_read_beside_those_in_utf_8(tmp_path: Path, padding: int) -> None:
    log = tmp_path / "job.log"
    lines = [b"x" * 99] * (padding // 100) + [
        "读取数据：第 3 步".encode("gbk"),
        "训练 │ step 3".encode(),
        "RuntimeError: 月亮不是圆的，请检查".encode("gbk"),
    ]
    log.write_bytes(b"\n".join(lines) + b"\n")

    first = _first(explain([str(log)]))

    assert first.text.endswith("RuntimeError: 月亮不是圆的，请检查")
    read = b"".join(source.blocks(str(log))).decode()
    assert "读取数据：第 3 步\n训练 │ step 3\n" in read and len(read.splitlines()) == len(lines)


# Latin-1, and UTF-8 that was cut: as GBK they would have letters of the line in them.
@pytest.mark.parametrize(
    "word", [b"caf\xe9s", b"na\xefve", b"\x81s", *("错误".encode()[:size] for size in range(1, 6))]
)
def test_stray_bytes_take_no_letter_from_a_line(tmp_path: Path, word: bytes) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(line := b"OSError: " + word + b" moon\n")
    assert b"".join(source.blocks(str(log))) == line


def test_directory_of_runs_is_not_taken_for_logs(tmp_path: Path) -> None:
    """The record of a run says how it ended; its logs alone may look healthy."""
    for name in ("first", "second"):
        (tmp_path / name / "log").mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
        (tmp_path / name / "log" / "job.log").write_text("step 1\n")
    with pytest.raises(InputError) as caught:
        logs_in(tmp_path)
    assert caught.value.code == "directory-of-runs" and f"explain {tmp_path / 'second'}" in (caught.value.remedy or "")
    (tmp_path / "slurm-7.out").write_text("Traceback\n")
    assert len(logs_in(tmp_path)[0]) == 3
