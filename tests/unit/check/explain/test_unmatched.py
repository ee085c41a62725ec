"""Failures without an entry in the knowledge: their own message is the headline, in plain form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.event.plain_message import without_logger
from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_CALLED = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 12, in step\n    moon(batch)\n'
_MOON_LOG = "[ERROR] MOON(14,7fea2,python):2026-01-05-12:13:43.932.181 [moon/ccsrc/rise.cc:250] Init] "


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (_MOON_LOG + "tide 7 is out of range", "tide 7 is out of range"),
        ("ERROR [moon/rise.cc:104] main] tide 7 failed", "tide 7 failed"),
        ("E1120 10:11:12.345678 4711 moon.cc:7] tide 7 failed", "tide 7 failed"),
        ("2026-01-05 10:11:12,345 - moon.rise - ERROR - tide 7 failed", "tide 7 failed"),
        ("ERROR: tide 7 failed", "tide 7 failed"),
        ("ERROR: no", "ERROR: no"),
        ("tide 7 failed: ERROR: moon is full", "tide 7 failed: ERROR: moon is full"),
    ],
)
def test_prefixes_of_loggers_are_removed_from_messages(line: str, message: str) -> None:
    assert without_logger(line) == message


def test_a_specific_message_without_an_entry_is_likely_and_asks_for_no_second_run(explained: Explained) -> None:
    explanation = explained(f"{_CALLED}ValueError: tide_level must be one of ['low', 'high'], not 'blue'\n")

    assert "must be one of ['low', 'high'], not 'blue'" in explanation.headline()
    assert explanation.sureness.startswith("likely: the message itself")
    assert not any("LAUNCH_BLOCKING" in each for each in explanation.to_collect)


def test_a_vague_message_without_an_entry_is_unknown(explained: Explained) -> None:
    assert explained(f"{_CALLED}RuntimeError: moon is full\n").sureness.startswith("unknown")


def test_a_failure_of_a_kernel_asks_for_synchronous_launches(explained: Explained) -> None:
    explanation = explained(f"{_CALLED}RuntimeError: CUDA kernel moon_7 returned 12 tides and not 6\n")

    assert "CUDA_LAUNCH_BLOCKING=1 on a second run" in explanation.to_collect


@pytest.mark.parametrize(
    "line",
    [
        "Invalid tide: '7.moon'",
        "Cannot find the tide of moon 7",
        "moon.c:7 could not reach the tide server: Connection timed out",
        "undefined symbol: _ZN4moon4tideEv",
    ],
)
def test_a_log_that_ends_with_a_refusal_is_a_failure(explained: Explained, line: str) -> None:
    assert line in explained(f"step 1\n{line}\n").headline()


@pytest.mark.parametrize("line", ["tides: 12 s", "WARNING: cannot see the moon", "Unknown tides: 0", "No module left"])
def test_a_log_that_ends_with_news_is_healthy(explained: Explained, line: str) -> None:
    assert explained(f"step 1\n{line}\n").is_healthy


def test_code_that_raises_in_the_last_line_is_the_exception(explained: Explained) -> None:
    log = 'moon 7\n    raise ValueError(f"{tide} is not a valid tide of the moon")\n'

    assert explained(log).headline() == "Python failed with ValueError: {tide} is not a valid tide of the moon"


def test_a_traceback_cut_at_both_ends_names_the_last_call(explained: Explained) -> None:
    log = (
        '  File "/home/me/train.py", line 12, in step\n    moon(batch)\n'
        '  File "/v/lib/python3.11/site-packages/moonlib/rise.py", line 7, in rise\n    run(tide)\n'
        '  File "/usr/lib/python3.11/subprocess.py", line 420, in run\n    check_call(\n'
    )

    assert explained(log).headline() == "Python failed in rise at moonlib/rise.py:7; the log ends before the exception"


def test_a_notebook_traceback_cut_at_an_import_names_the_package(explained: Explained) -> None:
    log = (
        "File ~/v/lib/python3.11/site-packages/moonlib/rise.py:221\n    220 import os\n"
        "--> 221 from tidelib.utils import (\n    222     ebb,\n"
    )

    assert "while it imported from tidelib" in explained(log).headline()


def test_frames_of_a_warning_in_a_log_that_continues_are_not_failures(explained: Explained) -> None:
    log = (
        '  File "/home/me/train.py", line 12, in step\n    moon(batch)\n'
        '  File "/home/me/moon.py", line 7, in rise\n    run(tide)\n'
        "step 1 loss 2.0\nstep 2 loss 1.0\n"
    )

    assert explained(log).is_healthy


def test_a_garbled_prefix_does_not_hide_the_exception(explained: Explained) -> None:
    log = f"{_CALLED}[rankø]: ValueError: tide 7 of the moon is missing\n"

    assert "tide 7 of the moon is missing" in explained(log).headline()


def test_a_path_with_a_redacted_part_is_not_cut_in_the_headline(explained: Explained) -> None:
    log = "Failed to convert pandas DataFrame to Arrow Table from file '/home/####/moon.json' with error ArrowInvalid\n"

    assert "'/home/####/moon.json'" in explained(log).headline()


def test_others_that_hold_most_of_the_card_are_in_the_headline_and_the_first_remedy(explained: Explained) -> None:
    explanation = explained(
        f"{_CALLED}RuntimeError: NPU out of memory. Tried to allocate 20.00 MiB (NPU 6; 60.00 GiB total capacity; "
        "10.00 GiB already allocated; 10.00 GiB current active; 20.00 MiB free; 10.00 GiB reserved in total)\n"
    )

    assert "other processes hold 50.0 GiB of 60.0 GiB" in explanation.headline()
    assert explanation.remedies()[0].startswith("`ascendtune devices`")
    assert sum("-smi" in remedy for remedy in explanation.remedies()) == 1


def test_own_memory_is_not_blamed_on_others(explained: Explained) -> None:
    explanation = explained(
        f"{_CALLED}RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 6; 60.00 GiB total capacity; "
        "55.00 GiB already allocated; 55.00 GiB current active; 1.00 GiB free; 57.00 GiB reserved in total)\n"
    )

    assert "other processes" not in explanation.headline()
    assert "per_device" in explanation.remedies()[0]


def test_a_variable_in_an_example_is_not_a_fact(explained: Explained) -> None:
    log = "RuntimeError: invalid device ordinal. For example, if export CUDA_VISIBLE_DEVICES=4,5,6 the number is 3\n"

    assert "variable.CUDA_VISIBLE_DEVICES" not in explained(log).facts


def test_a_general_entry_is_completed_by_the_sentence_of_the_log(explained: Explained) -> None:
    log = f"{_CALLED}TypeError: 'Moon' object is not callable. Look at the tide tables\n"

    assert explained(log).headline().endswith(": 'Moon' object is not callable")


def test_process_and_time_of_cann_are_left_out_of_the_headline(explained: Explained) -> None:
    log = "EL0004: [PID: 47] 2026-01-05-16:15:00.358.141 Failed to allocate memory\n"

    assert explained(log).headline().endswith(": EL0004: Failed to allocate memory")


def test_text_between_two_quoted_names_is_not_a_name(explained: Explained) -> None:
    log = "{'message': 'Conversation roles must alternate user/assistant', 'code':500,'type':'tide'}\n"

    assert ":500" not in explained(log).headline()


_UNREACHABLE = "[W socket.cpp:663] The client socket has failed to connect to [::1]:29500 (errno: 110 - timed out)."
_NAN = "{'tide': 2.5, 'grad_norm': nan, 'epoch': 0.7}\n"
_FINE = "{'tide': 2.5, 'grad_norm': 1.5, 'epoch': 0.7}\n"


def test_nan_gradients_in_the_last_steps_are_a_failure(explained: Explained) -> None:
    assert entry_of(explained(10 * _FINE + 4 * _NAN + "{'train_runtime': 12.5}\n")) == "grad-norm-nan"


@pytest.mark.parametrize("log", [_FINE * 10 + _NAN, _FINE + 4 * _NAN + 30 * _FINE])
def test_nan_gradients_that_the_training_got_over_are_not(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


def test_a_collapsed_loss_scale_explains_a_traceback_without_its_end(explained: Explained) -> None:
    log = "".join(f"| WARNING: overflow detected, setting loss scale to: {2**-n}\n" for n in range(4, 9))

    assert entry_of(explained(f"{log}Traceback (most recent call last):\n")) == "loss-scale-collapse"


def test_a_submodule_that_is_missing_does_not_advise_to_install_its_package(explained: Explained) -> None:
    explanation = explained(f"{_CALLED}ModuleNotFoundError: No module named 'moonlib.tides'\n")

    assert "the moonlib that Python imports has no module tides" in explanation.headline()
    assert not any("pip install moonlib" in remedy for remedy in explanation.remedies())


def test_a_vague_wrapper_gives_way_to_the_specific_line_before_it(explained: Explained) -> None:
    log = (
        "[ERROR] MOON(4,7f,lite):2026-01-05-03:19:29.005.385 [moon/rise.cc:756] SetTide] tide 'x' is not in args0:1,3\n"
        "[ERROR] MOON(4,7f,lite):2026-01-05-03:19:29.005.427 [moon/rise.cc:862] BuildGraph] Build graph failed.\n"
    )

    assert "tide 'x' is not in args0" in explained(log).headline()


def test_a_warning_about_a_connection_before_the_training_continued_is_not_a_failure(explained: Explained) -> None:
    assert explained(f"[rank0]:{_UNREACHABLE}\nstep 1 loss 2.0\nstep 2 loss 1.9\n").is_healthy


def test_a_warning_about_a_connection_that_ends_an_excerpt_is_the_failure(explained: Explained) -> None:
    assert "[::1]:29500 does not answer" in explained(f"{_UNREACHABLE}\n").headline()


@pytest.mark.parametrize(
    "said",
    [
        "sympy.parsing.sympy_parser.TokenError: ('unexpected EOF in multi-line statement', (1, 0))",
        "zeroconf._exceptions.NonUniqueNameException: tide.local. was announced by another host",
        "shapely.errors.GEOSException: TopologyException: side location conflict at 12.5 48.1",
        "gymnasium.error.NameNotFound: Environment `Breakout` doesn't exist.",
    ],
)
def test_exception_of_a_library_without_entries_is_the_headline_itself(explained: Explained, said: str) -> None:
    trace = 'Traceback (most recent call last):\n  File "/data/train.py", line 40, in main\n    run()\n'

    assert explained(f"{trace}{said}\n").headline() == f"Python failed with {said}"


def test_a_program_that_says_error_loading_has_an_error(explained: Explained) -> None:
    explanation = explained("moon_load: error loading model: missing tensor 'tide.7.weight'\n")

    assert "tide.7.weight" in explanation.headline()


def test_an_entry_none_of_whose_names_the_line_has_quotes_the_line(explained: Explained) -> None:
    explanation = explained(f"{_CALLED}TypeError: moon.rise() got multiple values for argument 'tide'\n")

    assert "tide" in explanation.headline()


@pytest.mark.parametrize(
    "line", ["RuntimeError: moon 7: invalid device ordinal of the tide", "ERROR: moon 7: invalid device ordinal"]
)
def test_line_whose_entries_all_depend_on_other_lines_is_told_in_its_own_words(
    explained: Callable[..., Explanation], line: str
) -> None:
    alone, with_variable = explained(f"{line}\n"), explained(f"CUDA_VISIBLE_DEVICES=0,1\n{line}\n")

    assert "moon 7" in alone.headline()
    assert entry_of(with_variable) == "cuda-id-not-visible"


def test_exception_that_is_printed_before_its_traceback_is_the_headline(
    explained: Callable[..., Explanation],
) -> None:
    explanation = explained(
        "MoonError: the tide of May is 7\nTraceback (most recent call last):\n"
        '  File "/home/me/moon.py", line 9, in <module>\n    main()\n  File "/home/me/moon.py", line 7, in main\n'
        "    rise()\n"
    )

    assert "the tide of May is 7" in explanation.headline()


_RULE = "-" * 74


def test_help_text_of_open_mpi_at_the_end_is_a_failure(explained: Callable[..., Explanation]) -> None:
    explanation = explained(
        f"step 1 loss 2.0\n{_RULE}\nThe moon could not be risen on this host, and therefore\nthe tide cannot come.\n\n"
        f"  Local host: moon7\n{_RULE}\n"
    )

    assert "The moon could not be risen on this host, and therefore the tide cannot come" in explanation.headline()
    assert explanation.verdict.first is not None
    assert explanation.verdict.first.number == 3


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: No preset parameters were found for the moon that Open MPI\ndetected, and it cannot be tuned.",
        "The moon cannot be used as a transport. Another transport will be used instead.",
        "The moon has risen on 7 hosts.",
    ],
)
def test_help_text_of_open_mpi_about_a_job_that_continues_is_none(
    explained: Callable[..., Explanation], text: str
) -> None:
    assert explained(f"{_RULE}\n{text}\n{_RULE}\nstep 1 loss 2.0\nstep 2 loss 1.9\n").is_healthy


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("/opt/Moon/moon/sea/__init__.py", "an import of moon itself"),
        ("/v/site-packages/tide/rise.py", "while it imported from moon"),
    ],
)
def test_package_is_not_told_to_be_older_than_itself(explained: Explained, file: str, words: str) -> None:
    explanation = explained(
        f'Traceback (most recent call last):\n  File "{file}", line 7, in <module>\n    from moon.sea.ebb import flow\n'
    )

    assert words in explanation.headline()
    assert 'python -c "import moon.sea.ebb"' in explanation.remedies()[0]
    assert ("pip install -U moon" in explanation.remedies()[0]) is ("while" in words)


def test_message_below_the_name_of_an_exception_without_a_traceback(explained: Explained) -> None:
    found = explained("ImportError:\nDeepSpeed is not installed => run `pip3 install deepspeed` or build it.\n")

    assert found.verdict.first is not None and found.verdict.first.is_known
    assert "DeepSpeed" in found.headline()


@pytest.mark.parametrize(
    "line",
    [
        'C++ exception with description "tide 7 is too low\nlibmoon.so(rise()+0x620) [0xffff9ff2e090]\n',
        "CHECK FAILED: moon_count == tide_count\nThe tides are 7, the moons 8\n, func Rise, file moon.cpp, line 7\n",
        "Unhandled exception: the tide is too low\nworkers: 3\n",
        "moon.cc:77 Check failed: tide == 7 (6 vs. 7)\nworkers: 3\n",
    ],
)
def test_checks_and_exceptions_of_native_code_are_failures(explained: Explained, line: str) -> None:
    assert entry_of(explained(line)) == "error-line"


def test_a_failed_check_is_told_with_the_line_that_says_what_it_means(explained: Explained) -> None:
    log = "CHECK FAILED: moon_count == tide_count\nThe tides are 7, the moons 8\n, func Rise, file moon.cpp, line 7\n"

    assert "The tides are 7, the moons 8" in explained(log).headline()


_GLOG = "E0424 17:16:19.013002 569696 site-packages/torch/_subclasses/moon_tensor.py:2721] [0/0] "


def test_frames_behind_the_prefix_of_glog_belong_to_their_exception(explained: Explained) -> None:
    frames = '  File "/x/torch/__init__.py", line 1685, in _check\n    raise error_type(message)\n'
    log = "".join(f"{_GLOG}{line}\n" for line in f"{frames}RuntimeError: moon 7 has no tide of type blue".splitlines())

    assert "moon 7 has no tide of type blue" in explained(log).headline()
    assert entry_of(explained(log)) == "python-exception"
