"""Logs of successful runs cause no alarm, whatever launcher or library printed the lines.

The logs are of runs of ours and of a script below torchrun, cut (`benchmarks/healthy_logs.py` makes a hundred such).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.explain.answer.json_form import fields_of
from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation

_LOGS = sorted((Path(__file__).parents[3] / "fixtures" / "explain" / "healthy").glob("*.log"))
_FRAMES = (
    "",
    "[rank1]: ",
    "[default0]:",
    "3: ",
    "(Worker rank=2 pid=71) ",
    "2026-11-21T10:11:12.123456Z stderr F ",
    "worker-0: ",
)
_FAILURE = "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 1; 60.96 GiB total capacity)"


def _read(log: Path) -> str:
    # Progress bars end their lines with \r.
    with log.open(encoding="utf-8", newline="") as file:
        return file.read()


def test_healthy_logs_are_at_least_twelve() -> None:
    assert len(_LOGS) >= 12


@pytest.mark.parametrize("frame", _FRAMES)
@pytest.mark.parametrize("log", _LOGS, ids=lambda log: str(log.stem))
def test_explain_finds_nothing_in_a_healthy_log(explained: Callable[..., Explanation], log: Path, frame: str) -> None:
    text = "\n".join(frame + line for line in _read(log).split("\n"))

    assert explained(text).is_healthy, explained(text).verdict.first


@pytest.mark.parametrize("log", _LOGS, ids=lambda log: str(log.stem))
def test_explain_is_not_silent_when_it_ends_in_a_failure(explained: Callable[..., Explanation], log: Path) -> None:
    verdict = explained(_read(log).rstrip() + f"\n{_FAILURE}\n").verdict

    assert verdict.first is not None
    assert verdict.first.hit is not None
    assert verdict.first.hit.entry.id == "npu-oom"


@pytest.mark.parametrize(
    "line",
    [
        "wandb: ERROR Failed to sample metric: Not Supported",
        "moon7:11:11 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
        "[W120 18:45:15.7 socket.cpp:487] [c10d] waitForInput: socket SocketImpl(fd=11, addr=[moon]:38674, "
        "remote=[::ffff:10.0.0.2]:23456) timed out after 9000ms",
        " 33%|███      | 1/3 [00:02<00:04,  2.0s/it]{'loss': 1.25, 'grad_norm': 0.7, 'epoch': 0.3}",
        " 33%|███      | 1/3 [00:02<00:04,  2.0s/it]Saving model checkpoint to out/checkpoint-1",
    ],
)
def test_a_run_that_continued_after_it_is_healthy(explained: Callable[..., Explanation], line: str) -> None:
    steps = "".join(f"step {step} loss 1.{step}\n" for step in range(40))

    assert explained(f"{line}\n{steps}").is_healthy


def test_last_words_that_are_a_notice_are_not_failures(explained: Callable[..., Explanation]) -> None:
    collected = (
        "step 1 loss 2.0\n[moon4:71] 3 more processes have sent help message help-mpi-btl-base.txt / btl:no-nics\n"
        '[moon4:71] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages\n'
    )

    assert explained(collected).verdict.certainty == "healthy"
    assert explained("step 1 loss 2.0\nsee all help / error messages\n").verdict.certainty != "healthy"


def test_last_line_of_a_log_without_a_known_failure_is_shown(explained: Callable[..., Explanation]) -> None:
    text = as_text(explained("step 1 loss 2.0\nthe tide has turned\n\n"), columns=80, paint=lambda text, _: text)

    assert text.startswith("no failure was found\n") and "last     the tide has turned" in text


def test_warning_that_ended_nothing_is_shown_as_what_comes_nearest(explained: Callable[..., Explanation]) -> None:
    warning = "/x/moon.py:7: UserWarning: CUDA initialization: CUDA unknown error - this may be due to tides.\n"
    explanation = explained(warning + "".join(f"step {step} loss 1.{step}\n" for step in range(40)))
    text = as_text(explanation, columns=80, paint=lambda text, _: text)

    assert explanation.is_healthy and text.startswith("no failure was found\n")
    assert "maybe    " in text and "do: " in text
    assert len(fields_of(explanation)["dismissed"]) == 1
    assert not explained("step 1 loss 2.0\n").verdict.dismissed


def test_lines_of_an_excerpt_that_sound_bad_are_shown(explained: Callable[..., Explanation]) -> None:
    excerpt = "moon 1 of 4\n| moon 2 | tide_ring: wait fails with status 1 | SIGSEGV |\nmoon 3 of 4\n"
    text = as_text(explained(excerpt), columns=200, paint=lambda text, _: text)

    assert text.startswith("no failure was found\n") and ":2: | moon 2 | tide_ring: wait fails" in text
    whole = explained(excerpt + "moon 4 of 4\n" * 100)
    assert "maybe" not in as_text(whole, columns=80, paint=lambda text, _: text)
    assert "maybe" not in as_text(explained("errors: 0\nloss 2.0\n"), columns=80, paint=lambda text, _: text)


def test_reason_of_what_a_job_does_without_is_not_a_failure(explained: Callable[..., Explanation]) -> None:
    notice = "A matching Moon is not available, some optimizations will not be enabled.\nError caught was: {reason}\n"
    notice = notice.format(reason="No module named 'triton'")
    raised = 'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\nValueError: 7 odd tides\n'

    assert explained(notice + "step 1 loss 2.0\n").is_healthy
    assert "7 odd tides" in explained(notice + raised).headline()
    assert not explained("A matching Moon is not available.\nError caught was: No module named 'triton'\n").is_healthy


@pytest.mark.parametrize(
    "warned",
    [
        # Known as a notice, and as an exception that a package raises.
        " [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.\n",
        "2027-07-07 07:07:07.0: W tensorflow/tide.cc:7] Could not load dynamic library 'libmoon.so.7'; dlerror: "
        "libmoon.so.7: cannot open shared object file: No such file or directory\nNum GPUs Available:  4\n",
        "2027-07-07 07:07:07.0: E external/local_xla/moon.cc:7] failed call to cuInit: UNKNOWN ERROR (303)\n",
        '("Final validation metrics: {}")\n[ERROR] TBE Subprocess[moon] raise error[], main process disappeared!\n',
        "Processed prompts: 100%|#| 4/4\nERROR 07-07 07:07:07 [core_client.py:7] Engine core proc EngineCore_DP0 died "
        "unexpectedly, shutting down client.\n",
    ],
)
def test_trouble_that_others_print_in_passing_is_not_a_failure(
    explained: Callable[..., Explanation], warned: str
) -> None:
    assert explained(warned).is_healthy


def test_engine_that_dies_before_its_answers_is_a_failure(explained: Callable[..., Explanation]) -> None:
    died = "ERROR 07-07 07:07:07 [core_client.py:7] Engine core proc EngineCore_DP0 died unexpectedly, "
    assert not explained(f"Processed prompts:  25%|#| 1/4\n{died}shutting down client.\n").is_healthy


_COMPLAINTS = [
    "retrying request: 503 Server Error",
    "bash: nvidia-smi: command not found",
    "run.sh: line 7: npu-smi: command not found",
    "/bin/sh: 1: nvcc: not found",
    "run.sh: line 7: module: command not found",
    "/sbin/ldconfig.real: Can't create temporary cache file /etc/ld.so.cache~: Permission denied",
    "sysctl: permission denied on key 'net.core.somaxconn'",
    "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)",
    "fatal: not a git repository (or any of the parent directories): .git",
]


@pytest.mark.parametrize("line", _COMPLAINTS)
def test_complaint_that_the_job_outlived_is_not_a_failure(explained: Callable[..., Explanation], line: str) -> None:
    steps = "".join(f"{{'loss': 1.{step}, 'epoch': 0.{step}}}\n" for step in range(3))

    assert explained(f"{line}\n{steps}").is_healthy
    assert not explained(f"{steps}{line}\n").is_healthy
    assert not explained(f"{line}\nmoon\n").is_healthy


@pytest.mark.parametrize("line", _COMPLAINTS[1:])
def test_exception_counts_more_than_an_earlier_command_of_the_script(
    explained: Callable[..., Explanation], line: str
) -> None:
    raised = f'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\n{_FAILURE}\n'

    assert explained(f"{line}\n{raised}").findings()[0].code == "npu-oom"


def test_missing_command_that_an_exception_names_is_its_cause(explained: Callable[..., Explanation]) -> None:
    raised = 'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\nOSError: moon asked nvcc\n'

    assert explained(f"/bin/sh: 1: nvcc: not found\n{raised}").findings()[0].code == "nvcc-not-on-path"


_LOGGED = [
    "error: cannot lock ref 'refs/remotes/origin/moon'",
    "Unable to init server: Could not connect: Connection refused",
    "tide - ERROR - Authentication token does not exist, failed to access model moon/7 which may not exist or may be "
    "private. Please login first.",
    "Unexpected exception while the moon rose: [Errno 13] permission denied",
    "[ERROR] 2027-07-07-07:07:07 (PID:7, Device:-1, RankID:-1) ERR99999 UNKNOWN application exception",
]


@pytest.mark.parametrize("line", _LOGGED)
def test_logged_error_after_which_the_training_continued_is_not_a_failure(
    explained: Callable[..., Explanation], line: str
) -> None:
    losses = [f"{{'loss': 1.{step}, 'epoch': 0.{step}}}\n" for step in range(6)]
    raised = f'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\n{_FAILURE}\n'

    assert explained(f"{line}\n{''.join(losses)}").is_healthy
    assert not explained(f"{line}\n{losses[0]}").is_healthy
    assert not explained(f"{line}\n{losses[0] * 7}").is_healthy
    assert explained(f"{line}\n{''.join(losses)}{raised}").findings()[0].code == "npu-oom"


@pytest.mark.parametrize(
    "step",
    [
        "{{'loss': 1.{}, 'epoch': 0.1}}",
        " iteration        7/      70 | lm loss: 1.{}E+00 | loss scale: 1.0 |",
        "epoch: 1 step: 7, loss is 1.{}",
        "step 7 loss=1.{}",
        "Step 7: Train Loss: 1.{}",
    ],
)
def test_loss_is_known_as_other_frameworks_write_it(explained: Callable[..., Explanation], step: str) -> None:
    steps = "".join(f"{step.format(number)}\n" for number in range(6))

    assert explained(f"ERROR the moon was lost at 7 o'clock\n{steps}").is_healthy


def test_losses_of_another_rank_say_nothing_of_the_one_that_failed(explained: Callable[..., Explanation]) -> None:
    losses = "".join(f"[rank0]: {{'loss': 1.{step}}}\n" for step in range(6))

    assert not explained(f"[rank1]: ERROR the moon was lost at 7 o'clock\n{losses}").is_healthy
    assert explained(f"[rank0]: ERROR the moon was lost at 7 o'clock\n{losses}").is_healthy
    # A rank that a prefix names has gone on after two of its own.
    two = "[rank1]: {'loss': 1.0}\n[rank1]: {'loss': 1.1}\n"
    assert explained(f"[rank1]: ERROR the moon was lost at 7 o'clock\n{two}").is_healthy


@pytest.mark.parametrize(
    "line",
    [
        "rmdir: failed to remove '/tmp/x': Directory not empty",
        "perl: warning: Setting locale failed.",
        "ls: cannot access 'moon-*': No such file or directory",
        "tee: 'standard output': Broken pipe",
        "dmesg: read kernel buffer failed: Operation not permitted",
        "fatal: No names found, cannot describe anything.",
    ],
)
def test_complaint_of_a_script_after_the_training_was_done_is_not_a_failure(
    explained: Callable[..., Explanation], line: str
) -> None:
    assert explained(f"{{'train_runtime': 12.0, 'train_loss': 1.0}}\n{line}\n").is_healthy


@pytest.mark.parametrize(
    "line",
    ["pkill: killing pid 7 failed: Operation not permitted", "rmdir: failed to remove '/x': Directory not empty"],
)
@pytest.mark.parametrize("end", ["/x/run.sh: line 12: 7 Killed   python t.py", "EI0006: Getting socket times out."])
def test_command_of_a_script_gives_way_to_what_ended_the_job(
    explained: Callable[..., Explanation], line: str, end: str
) -> None:
    alone = explained(f"step 1\n{end}\n").findings()[0].code

    assert explained(f"step 1\n{line}\n{end}\n").findings()[0].code == alone
    assert explained(f"step 1\n{end}\n{line}\n").findings()[0].code == alone


def test_harmless_line_below_an_exception_does_not_make_it_harmless(explained: Callable[..., Explanation]) -> None:
    raised = 'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\n{error}\n'
    below = "will not load any checkpoints and will start from random\n"

    for error in ("OSError: [Errno 28] No space left on device: '/moon'", "ValueError: the tide of 7 o'clock"):
        alone = explained(raised.format(error=error)).findings()[0].code
        assert explained(raised.format(error=error) + below).findings()[0].code == alone


def test_line_below_a_key_does_not_belong_to_it(explained: Callable[..., Explanation]) -> None:
    raised = "Traceback (most recent call last):\n  File \"/x/t.py\", line 7, in t\n    row['moon']\nKeyError: 'moon'\n"

    assert "infiniband" not in explained(f"{raised}failed to read /sys/class/infiniband\n").headline()


def test_error_below_a_warning_is_not_its_second_half(explained: Callable[..., Explanation]) -> None:
    warning = "/x/checkpoint.py:61: UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n"
    end = "slurmstepd: error: *** JOB 812 ON n12 CANCELLED AT 2025-03-01T10:00:00 DUE TO TIME LIMIT ***\n"

    assert explained(warning + end).findings()[0].code == "slurm-time-limit"


def test_quoted_exception_gives_way_to_what_is_known_to_have_ended_the_job(
    explained: Callable[..., Explanation],
) -> None:
    quoted = "Failed to import xformers: No module named 'xformers'\n"
    raised = f'Traceback (most recent call last):\n  File "/x/t.py", line 7, in t\n    t()\n{_FAILURE}\n'

    assert explained(quoted + raised).findings()[0].code == "npu-oom"
    assert not explained(quoted).is_healthy


def test_exception_that_the_training_outlived_until_its_end_is_not_a_failure(
    explained: Callable[..., Explanation],
) -> None:
    raised = f'Traceback (most recent call last):\n  File "/x/t.py", line 7, in <module>\n    t()\n{_FAILURE}\n'
    losses = "".join(f"{{'loss': 1.{step}, 'epoch': 0.{step}}}\n" for step in range(6))
    end = "{'train_runtime': 12.0, 'train_loss': 1.0}\n"

    assert explained(raised + losses + end).is_healthy
    assert not explained(raised + losses).is_healthy
    assert not explained(losses + raised + end).is_healthy
    assert not explained(losses + end + raised).is_healthy
    assert not explained(f"[rank1]: {raised.replace(chr(10), chr(10) + '[rank1]: ')}x\n{losses}{end}").is_healthy


_COMPLAINTS = (
    "[2026-11-29 07:13:01,116] [ERROR] [monitor] notification failed: HTTP 403",
    "[2026-11-29 07:13:01,116] ERROR metrics: port 9090 is in use: [Errno 98] Address already in use",
    "slurmstepd: error: Unable to create TMPDIR [/tide/x]: Permission denied",
    "gzip: stdout: Broken pipe",
)


@pytest.mark.parametrize("complaint", _COMPLAINTS)
@pytest.mark.parametrize("quote", ["", "'"])
def test_complaint_before_a_short_training_that_came_to_its_end_is_not_a_failure(
    explained: Callable[..., Explanation], complaint: str, quote: str
) -> None:
    """Since release 5 transformers writes the numbers of its steps in quotes."""
    steps = "".join(f"{{'loss': {quote}1.{step}{quote}, 'epoch': {quote}0.{step}{quote}}}\n" for step in range(3))
    end = f"{{'train_runtime': {quote}12.0{quote}}}\n"

    assert explained(f"start\n{complaint}\n{steps}{end}").is_healthy
    assert not explained(f"start\n{complaint}\n").is_healthy


@pytest.mark.parametrize("number", ["nan", "'nan'"])
@pytest.mark.parametrize(
    ("step", "entry"),
    [
        ("{{'loss': {number}, 'grad_norm': {number}, 'epoch': '0.1'}}\n", "nan-loss"),
        ("{{'loss': '0.2', 'grad_norm': {number}, 'epoch': '0.1'}}\n", "grad-norm-nan"),
        ("fp16=True\n{{'loss': {number}, 'epoch': '0.1'}}\n", "nan-loss-in-fp16"),
        ("{{'loss': {number}, 'epoch': '0.1'}}\n{{'loss': '2.1', 'epoch': '0.2'}}\n", "nan-loss-now-and-then"),
    ],
)
def test_number_that_is_none_is_found_in_quotes(
    explained: Callable[..., Explanation], number: str, step: str, entry: str
) -> None:
    assert explained(step.format(number=number) * 3).findings()[0].code == entry


def test_message_that_logging_could_not_write_is_not_a_failure(explained: Callable[..., Explanation]) -> None:
    lost = (
        "--- Logging error ---\nTraceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/logging/__init__.py", line 1110, in emit\n    msg = self.format(record)\n'
        "TypeError: not all arguments converted during string formatting\nCall stack:\n"
        "  File \"/x/t.py\", line 3, in <module>\nMessage: 'tide'\nArguments: (1,)\n"
    )

    assert explained(f"step 1\n{lost}").is_healthy


@pytest.mark.parametrize(
    "line",
    [
        "ERROR:asyncio:Unclosed client session",
        "2027-07-07 07:07:07,101 ERROR asyncio: Task was destroyed but it is pending!",
        "OSError: [Errno 39] Directory not empty: '/tmp/pymp-x71'",
        "Processing failed rows: 0",
        "No module named 'flash_attn', using the PyTorch implementation",
        "Could not connect to the metrics server, results are not reported",
    ],
)
def test_last_line_of_what_the_job_does_without_is_not_a_failure(
    explained: Callable[..., Explanation], line: str
) -> None:
    losses = "".join(f"{{'loss': 1.{step}, 'epoch': 0.{step}}}\n" for step in range(9))

    assert explained(f"{losses}{line}\n").is_healthy


@pytest.mark.parametrize(
    ("end", "is_healthy"),
    [
        ("====== 4 passed, 1 skipped, 1 xfailed, 2 warnings in 0.31s ======", True),
        ("4 passed, 1 warning in 0.31s", True),
        ("Ran 1 test in 0.310s\n\nOK", True),
        ("Ran 3 tests in 0.310s\n\nOK (skipped=2)", True),
        ("OK", False),
        ("====== 1 failed, 4 passed in 0.31s ======", False),
        ("4 passed, 1 error in 0.31s", False),
        ("FAILED (failures=1)", False),
    ],
)
def test_tests_that_passed_are_not_failures_whatever_they_printed(
    explained: Callable[..., Explanation], end: str, is_healthy: bool
) -> None:
    printed = "test_moon.py::test_names[tide] ERROR: the moon was lost at 7 o'clock\nPASSED\n"

    assert explained(f"{printed}{end}\n").is_healthy is is_healthy


@pytest.mark.parametrize(
    "line",
    [
        'time="2026-07-07T07:07:07.777Z" level=info msg="skip loading plugin" error="aufs is not supported (modprobe '
        'aufs failed: exit status 1 \\"modprobe: FATAL: Module aufs not found in directory /lib\\n\\"): skip"',
        'time="2026-07-07T07:07:07.777Z" level=info msg="trying next host" error="failed to do request: Head '
        '\\"http://127.0.0.1:7000/v2/moon\\": dial tcp 127.0.0.1:7000: connect: connection refused"',
        '{"level":"info","msg":"retrying","error":"dial tcp 10.0.0.7:7777: connect: connection refused"}',
        '{"level":"warn","msg":"retrying","error":"dial tcp 10.0.0.7:7777: connect: connection refused"}',
    ],
)
def test_lines_of_a_service_below_error_level_are_not_failures(
    explained: Callable[..., Explanation], line: str
) -> None:
    assert explained(f'{line}\ntime="2026-07-07T07:07:08.777Z" level=info msg="moon is up"\n').is_healthy


def test_news_of_a_service_are_not_its_last_words(explained: Callable[..., Explanation]) -> None:
    line = 'time=2026-07-07T07:07:07.777 level=INFO msg="failure during GPU discovery" error="tide failed"'

    assert explained(f"{line}\n").is_healthy


@pytest.mark.parametrize(
    "line", ["failed ranks: 3", "failed ranks: 0, 7", "Failed nodes: [0, 7]", "job failed, failed tasks: 1 of 8"]
)
def test_things_that_failed_and_are_counted_are_a_failure(explained: Callable[..., Explanation], line: str) -> None:
    assert not explained(f"step 1\n{line}\n").is_healthy


@pytest.mark.parametrize("option", ["--log-level=debug", "--log-level info", "--log-level=warning"])
def test_option_for_the_level_of_a_log_is_not_the_level_of_its_line(
    explained: Callable[..., Explanation], option: str
) -> None:
    assert not explained(f"step 1\nERROR: the worker crashed at 7, run with {option} for details\n").is_healthy


def test_the_level_of_errors_is_known_in_any_case(explained: Callable[..., Explanation]) -> None:
    line = 'time=2026-07-07T07:07:07.777 level={} source=moon.go:7 msg="tide did not come" error="moon"\n'

    for level in ("ERROR", "error", "FATAL"):
        assert not explained(line.format(level)).is_healthy


_UPLOAD = 'wandb: ERROR Error uploading "output.log": CommError, An unexpected error occurred\n'
_REFUSED = (
    "ERROR 11-29 10:00:00 serving_chat.py:100] Error in preprocessing prompt inputs: template\n"
    'INFO:     127.0.0.1:1234 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n'
)
_ANSWERED = 'INFO:     127.0.0.1:1234 - "POST /v1/chat/completions HTTP/1.1" {}\n'


@pytest.mark.parametrize(
    ("complaint", "goes_on"),
    [
        (_UPLOAD, "epoch 1 loss 1.0\nmodel saved to /out; done, exit code 0\n"),
        ("ERROR: could not write to tensorboard, retrying\n", "step 3 loss 1.8\nTraining completed. Saved to /out\n"),
        ("ERROR: could not write the moon, retrying\n", "step 3 loss 1.8\nTraining completed. Saved to /out\n"),
        (_REFUSED, _ANSWERED.format("200 OK")),
    ],
)
def test_complaint_of_what_the_job_does_not_wait_for_is_not_a_failure(
    explained: Callable[..., Explanation], complaint: str, goes_on: str
) -> None:
    assert explained(complaint + goes_on).is_healthy
    assert not explained(complaint).is_healthy


def test_error_of_a_server_that_answers_no_other_request_is_a_failure(explained: Callable[..., Explanation]) -> None:
    error = "ERROR 11-29 10:00:00 serving_chat.py:100] the moon was lost\n"

    assert not explained(error + _ANSWERED.format("200 OK")).is_healthy
    assert not explained(error + 2 * _ANSWERED.format("500 Internal Server Error")).is_healthy


def test_uncaught_exception_of_a_tracker_is_a_failure(explained: Callable[..., Explanation]) -> None:
    raised = 'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in <module>\n    wandb.init()\n'

    assert not explained(f"{raised}wandb.errors.CommError: upload failed\nstep 3 loss 1.0\n").is_healthy


@pytest.mark.parametrize("line", ["ERROR the moon was lost at 7 o'clock", "moon was built without tides of 7 hours"])
def test_complaint_after_which_two_losses_were_reported_is_not_a_failure(
    explained: Callable[..., Explanation], line: str
) -> None:
    steps = "step 1 loss 1.7\nstep 2 loss 1.6\n"

    assert explained(f"{line}\n{steps}").is_healthy
    assert not explained(f"ERROR the moon was lost at 7 o'clock\n{steps[:16]}").is_healthy
    assert not explained(f"[ERROR] HCCL wait of the moon timed out\n{steps}").is_healthy


def test_device_library_that_is_missing_is_not_a_failure_where_steps_follow(
    explained: Callable[..., Explanation],
) -> None:
    line = (
        "The installed version of bitsandbytes was compiled without GPU support. 8-bit optimizers, 8-bit "
        "multiplication, and GPU quantization are unavailable.\n"
    )

    assert explained(f"{line}step 1 loss 1.7\nstep 2 loss 1.6\n").is_healthy
    assert not explained(line).is_healthy


_WORK = "".join(f"row {row} of the moon\n" for row in range(9))


@pytest.mark.parametrize(
    "end", ["saved to /moon/7", "job finished", "done", "Process 7 exits successfully.", "exit code: 0"]
)
def test_unknown_error_before_work_that_was_done_is_not_a_failure(
    explained: Callable[..., Explanation], end: str
) -> None:
    line = "ERROR the tide of port 7777 is lost\n"

    assert explained(f"{line}{_WORK}{end}\n").is_healthy
    assert not explained(f"{line}{end}\n").is_healthy
    assert not explained(f"{line}{_WORK}").is_healthy
    assert not explained(f"{line}{_WORK}{end}\nError: moon 7 is lost\n").is_healthy
    assert not explained(f"{_WORK}{line}{end}\n").is_healthy


def test_last_line_counts_where_the_job_outlived_all_that_was_said_before(
    explained: Callable[..., Explanation],
) -> None:
    log = "ERROR the tide of port 7777 is lost\nstep 1 loss 1.7\nstep 2 loss 1.6\n"

    assert explained(log).is_healthy
    assert not explained(f"{log}moon failed at 7 o'clock\n").is_healthy


@pytest.mark.parametrize(
    "log",
    [
        "  Failed to build moon\nCould not build wheels for moon, using legacy install\n  Running setup.py install for "
        "moon: finished with status 'done'\nSuccessfully installed moon-0.7\n",
        "  ERROR: Failed building wheel for moon\n    Running setup.py install for moon ... done\n",
        "01/01 10:00:00 [ERROR] CUID#7 - Download aborted. URI=https://moon/7\nDownload Results:\ngid   |stat|avg "
        "speed  |path/URI\n2089b0|OK  |    50MiB/s|/moon/7\n",
        "2027/07/07 07:07:07 ERROR : moon/7: Failed to copy: 503 SlowDown\n2027/07/07 07:07:37 ERROR : Attempt 2/3 "
        "succeeded\nTransferred:   \t   7.7 GiB / 7.7 GiB, 100%, 120 MiB/s, ETA 0s\n",
        "未安装 moon：ImportError: No module named 'moon'，跳过\nrising 7\nrising 8\n",
        "moon is not installed, using eager attention\nrising 7\nrising 8\n",
    ],
)
def test_a_build_that_succeeded_in_another_way_is_not_a_failure(
    explained: Callable[..., Explanation], log: str
) -> None:
    assert explained(log).is_healthy


@pytest.mark.parametrize(
    "log",
    [
        "  ERROR: Failed building wheel for moon\nSuccessfully installed moon-tide-0.7\n",
        "Successfully installed moon-0.7\n  ERROR: Failed building wheel for tide\n",
    ],
)
def test_wheel_that_was_not_built_is_a_failure_whatever_else_was_installed(
    explained: Callable[..., Explanation], log: str
) -> None:
    assert not explained(log).is_healthy
