"""Lines that stand beside the one that names the cause: before it, below it, or as part of an orderly end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SHUTDOWN = "(EngineCore pid=970) INFO 05-12 11:36:00 [core.py:1224] Shutdown complete\n"
_DIED = "ERROR 05-12 11:36:01 [core_client.py:704] Engine core proc EngineCore died unexpectedly.\n"
_DEAD = (
    "ERROR 08-01 21:34:51 [async_llm.py:704] AsyncLLM output_handler failed.\n"
    "ERROR 08-01 21:34:51 [async_llm.py:704] Traceback (most recent call last):\n"
    'ERROR 08-01 21:34:51 [async_llm.py:704]   File "/x/vllm/v1/engine/core_client.py", line 1061, in get_output\n'
    "ERROR 08-01 21:34:51 [async_llm.py:704]     raise self._format_exception(outputs) from None\n"
    "ERROR 08-01 21:34:51 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an "
    "issue. See stack trace (above) for the root cause.\n"
)
_SIGTERM = "(EngineCore pid=7) INFO 08-01 21:34:51 [core.py:1214] [shutdown] EngineCore: received signal=SIGTERM\n"


_RAISED = 'Traceback (most recent call last):\n  File "/x/moon.py", line 1, in rise\n    moon()\nValueError: tide 7\n'


def test_killed_gives_way_to_the_cause_that_a_buffered_log_prints_below_it(explained: Explained) -> None:
    log = "step 7\nKilled\n[ERROR] [llm_infer_model_instance.cpp:47] [MIE05E030001] Initialize failed\n"

    assert entry_of(explained(log)) == "mindie-backend"


def test_killed_stays_the_cause_where_the_next_lines_name_none(explained: Explained) -> None:
    assert entry_of(explained("step 7\nKilled\nstep 8 of another job\n")) == "killed"


@pytest.mark.parametrize(
    ("reason", "known"),
    [("Failed to open libnvidia-ml.so.1", "nccl-no-nvml"), ("the moon has no such device", "nccl-last-error")],
)
def test_last_error_of_nccl_is_read_with_the_line_below_it(explained: Explained, reason: str, known: str) -> None:
    explanation = explained(
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
        f"Last error:\n{reason}\n"
    )

    assert entry_of(explanation) == known
    assert reason.split()[-1] in explanation.headline()


def test_last_error_that_speaks_of_a_peer_is_not_a_headline(explained: Explained) -> None:
    log = "ncclRemoteError: A call failed.\nLast error:\nConnection closed by remote peer x\n"

    assert entry_of(explained(log)) == "nccl-remote"


@pytest.mark.parametrize("log", [_SHUTDOWN + _DIED, _SIGTERM + _DEAD])
def test_a_dead_engine_after_an_orderly_shutdown_is_not_a_failure(explained: Explained, log: str) -> None:
    explanation = explained(log)

    assert explanation.is_healthy
    assert [event.hit.entry.id for event in explanation.verdict.notices] == ["engine-orderly-end"]


@pytest.mark.parametrize("log", [_DIED, _DEAD, "INFO:     Application shutdown complete.\n" + _DIED])
def test_a_dead_engine_without_such_a_shutdown_is_a_failure(explained: Explained, log: str) -> None:
    assert entry_of(explained(log)) == "engine-core"


def test_a_failure_before_an_orderly_shutdown_is_told(explained: Explained) -> None:

    assert "tide 7" in explained(_RAISED + _SHUTDOWN + _DIED).headline()


def test_the_second_line_of_a_warning_is_not_taken_for_the_cause(explained: Explained) -> None:
    log = (
        "/x/moon.py:8: RuntimeWarning: Failed to read commit hash:\nNo module named 'moon._version'\n"
        "ImportError: /x/moon.so: undefined symbol: _ZN3c104cuda9SetDeviceEi\n"
        "RuntimeError: Failed to import transformers.models.moon because of the following error:\n"
    )

    assert entry_of(explained(log)) == "symbol-of-torch"


def test_an_error_below_a_warning_that_ends_in_a_colon_still_counts(explained: Explained) -> None:
    assert "tide" in explained("UserWarning: the moon:\nERROR: the tide of 7 is too high\n").headline()


@pytest.mark.parametrize(
    "line",
    [
        r"- \(3 \times 22 = 66 > 44\) (no, 44 must be divisible by tensor parallel size)",
        "- so 44 is not divisible by 3, and 66 is not divisible by 4",
    ],
)
def test_text_of_a_model_is_not_a_failure(explained: Explained, line: str) -> None:
    assert explained(f"prompt: how many candies?\nmodel output:\n{line}\nreward: 1.0\n").is_healthy


def test_a_failure_before_the_signal_goes_before_it(explained: Explained) -> None:
    interrupted = 'Traceback (most recent call last):\n  File "/x/api.py", line 9, in signal_handler\n'
    interrupted += '    raise KeyboardInterrupt("terminated")\nKeyboardInterrupt: terminated\n'

    assert entry_of(explained(interrupted)) == "ended-by-signal"
    assert "tide 7" in explained(_RAISED + interrupted).headline()


def test_the_daemon_of_slurm_is_not_part_of_the_host_name(explained: Explained) -> None:
    log = "slurmstepd-gpu20-15: error: Detected 1 oom-kill event(s) in StepId=7.0. Some were killed\n"

    assert explained(log).verdict.host == "gpu20-15"


@pytest.mark.parametrize(
    ("ending", "known"),
    [
        ("***", "slurm-cancelled"),
        ("DUE TO TIME LIMIT ***", "slurm-time-limit"),
        ("DUE TO PREEMPTION ***", "slurm-preempted"),
    ],
)
def test_slurm_says_why_a_job_was_cancelled(explained: Explained, ending: str, known: str) -> None:
    explanation = explained(f"slurmstepd: error: *** JOB 7 ON tide3 CANCELLED AT 2025-11-20T10:11:12 {ending}\n")

    assert entry_of(explanation) == known
    assert ("--time" in " ".join(explanation.remedies())) is (known == "slurm-time-limit")


@pytest.mark.parametrize("host", ["api.wandb.ai", "tide.example"])
def test_a_host_that_is_not_a_hub_is_not_answered_with_variables_of_the_hub(explained: Explained, host: str) -> None:
    explanation = explained(
        "urllib3.exceptions.ConnectTimeoutError: (<urllib3.connection.HTTPSConnection object at 0x7f>, "
        f"'Connection to {host} timed out. (connect timeout=20)')\n"
    )

    assert "HF_" not in " ".join(explanation.remedies())


def test_a_host_name_that_does_not_match_is_not_answered_with_a_bundle_of_certificates(explained: Explained) -> None:
    explanation = explained(
        "requests.exceptions.SSLError: HTTPSConnectionPool(host='tide.example', port=443): Max retries exceeded with "
        'url: /moon (Caused by SSLError(SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate '
        "verify failed: Hostname mismatch, certificate is not valid for 'tide.example'. (_ssl.c:1007)\")))\n"
    )

    assert entry_of(explanation) == "certificate-host"
    assert "CA_BUNDLE" not in " ".join(explanation.remedies())


def test_check_failed_is_not_advice(explained: Explained) -> None:
    raised = 'Traceback (most recent call last):\n  File "/x/moon.py", line 1, in rise\n    moon()\n'
    explanation = explained(f"{raised}RuntimeError: Check failed: (status == tide) is false: the moon failed with 7\n")

    assert "advises" not in " ".join(explanation.remedies())


def test_bounds_that_everything_satisfies_are_left_out_of_conflicts_of_pip(explained: Explained) -> None:
    free = "".join(f"    moon{number} 1.0 depends on tide>=1.{number}\n" for number in range(6))
    explanation = explained(
        "ERROR: Cannot install tide==2.1 because these package versions have conflicting dependencies.\n\n"
        f"The conflict is caused by:\n    The user requested tide==2.1.1\n{free}    sun 0.5 depends on tide==2.4.0\n"
    )

    assert explanation.headline().endswith("tide==2.1.1; sun 0.5 depends on tide==2.4.0")


def test_git_that_wandb_could_not_read_is_not_a_failure(explained: Explained) -> None:
    explanation = explained(
        "ERROR:2025-03-02 11:56:34,332:git root error: Cmd('git') failed due to: exit code(128)\n"
        "  cmdline: git rev-parse --show-toplevel\n"
        "  stderr: 'fatal: detected dubious ownership in repository at '/moon'\nstep 1 loss 2.0\n"
    )

    assert explanation.is_healthy


def test_a_full_disk_of_ray_counts_only_where_it_is_repeated_at_the_end(explained: Explained) -> None:
    line = "[2025-02-25 19:42:26,206 E 7 7] file_system_monitor.cc:116: /tmp/ray/session_1 is over 95% full, free\n"

    assert explained(line * 4 + "step 1 loss 2.0\n" * 40).is_healthy
    assert entry_of(explained("step 1 loss 2.0\n" * 40 + line * 4)) == "ray-disk-nearly-full"


@pytest.mark.parametrize(
    "line",
    [
        r"ValueError: D:\times\moon: 14 heads must be divisible by tensor parallel size (4)",
        r"ValueError: '\(' opens a group: 14 heads must be divisible by tensor parallel size (4)",
    ],
)
def test_a_backslash_alone_does_not_make_a_message_the_words_of_a_model(explained: Explained, line: str) -> None:
    assert entry_of(explained(line + "\n")) == "parallel-divides"


@pytest.mark.parametrize("count", ["0", "3"])
def test_a_log_that_ends_with_something_invalid_failed_unless_the_count_is_zero(
    explained: Explained, count: str
) -> None:
    assert explained(f"step 1\nthe table of May has invalid rows: {count}\n").is_healthy is (count == "0")


def test_the_second_remedy_is_shown_before_more_causes(explained: Explained) -> None:
    line = "[ERROR] DEVICE [cuda_driver.cc:245] SetDevice for id:7 failed, ret[101], invalid device ordinal. "
    explanation = explained(line + "Make sure that 'device_id' is in the range: [0, total number of GPU). " * 3)

    text = as_text(explanation, columns=100, paint=lambda line, _: line)

    assert "2. `hostname` must differ" in text
    assert len(text.splitlines()) <= 12


_REFUSED = (
    "{0}pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedMoonConfig\n"
    "{1}tide_bucket\n"
    "{1}  Input should be a valid integer, got a number with a fractional part [type=int_from_float, "
    "input_value=77.5, input_type=float]\n"
)


@pytest.mark.parametrize(
    "prefixes",
    [
        ("with the third file it fails: ", "[rank3]: "),
        ("#12 21.0 ", "#12 21.1 "),
        ("2026-03-01 03:04:05,006 - moon - ERROR - ", "2026-03-01 03:04:05,007 - moon - ERROR - "),
        ("2026-03-01T03:04:05.1Z stderr F ", "2026-03-01T03:04:05.2Z stderr F "),
    ],
)
def test_lines_below_are_read_without_a_prefix_that_the_line_itself_lacks_or_has_otherwise(
    explained: Explained, prefixes: tuple[str, str]
) -> None:
    assert entry_of(explained(_REFUSED.format(*prefixes))) == "deepspeed-config-fraction"


def test_code_in_a_traceback_of_docker_build_keeps_its_indentation(explained: Explained) -> None:
    rows = ["Traceback (most recent call last):", '  File "/x/moon.py", line 1, in rise', "    assert tide > 0"]
    log = "".join(f"#12 7.{number} {row}\n" for number, row in enumerate([*rows, "AssertionError"]))

    assert "tide > 0 does not hold" in explained(log).headline()
