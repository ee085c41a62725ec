"""Tracebacks as they come: cut, prefixed, put in panels, with messages of several lines, nested."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log import line

Explained = Callable[..., Explanation]

_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 12, in step',
    "    moon(batch)",
    "odd.OddError: the moon is full",
)


def _line(explanation: Explanation) -> str:
    assert explanation.verdict.first is not None
    return explanation.verdict.first.text


def test_an_exception_that_nothing_is_known_about_is_still_named(explained: Explained) -> None:
    explanation = explained("\n".join(_TRACEBACK))

    assert explanation.headline() == "Python failed with odd.OddError: the moon is full"
    assert explanation.verdict.certainty == "unexplained"


def test_an_error_line_that_nothing_is_known_about_is_said_in_its_own_words(explained: Explained) -> None:
    explanation = explained("step 1\n2025-11-20 10:11:12,000 - moon - ERROR - it is made of cheese\n")

    assert "made of cheese" in explanation.headline()
    assert explanation.verdict.certainty == "unexplained"


@pytest.mark.parametrize(
    "prefix",
    [
        "ERROR 11-20 10:11:{second:02} [gpu_worker.py:226] ",
        "[Stage-0] ERROR 11-20 10:11:{second:02} [gpu_worker.py:226] ",
        "(EngineCore_0 pid=71) ERROR 11-20 10:11:{second:02} [core.py:708] ",
        "2025-11-20 10:11:{second:02},475 - moon - INFO - [rank7]: ",
        "2025-11-20T10:11:{second:02}.123456Z stderr F ",
        "stderr: ",
        "[36m(WorkerDict pid=71)[0m ",
        "192.0.2.7: ",
        "trainer-1  | ",
        "\x1b[1;36m(EngineCore_0 pid=71)\x1b[0;0m ",
    ],
)
def test_prefixes_whose_time_continues(explained: Explained, prefix: str) -> None:
    explanation = explained("\n".join(prefix.format(second=second) + line for second, line in enumerate(_TRACEBACK)))

    first = explanation.verdict.first
    assert first is not None
    assert first.text == _TRACEBACK[-1]
    assert first.trace is not None
    assert first.trace.place == ("/home/me/train.py", 12, "step")


def test_a_logger_puts_its_prefix_before_the_first_line_only(explained: Explained) -> None:
    head, *rest = _TRACEBACK
    explanation = explained("\n".join([f"[2025-11-20 10:11:12 TP5] Scheduler hit an exception: {head}", *rest]))

    assert _line(explanation) == _TRACEBACK[-1]
    assert explanation.verdict.rank == 5


@pytest.mark.parametrize("name", ["AssertionError", "odd.OddError: the moon is full"])
def test_exception_is_found_without_the_head_of_its_traceback(explained: Explained, name: str) -> None:
    assert _line(explained("\n".join([*_TRACEBACK[1:3], name]))) == name


def test_a_log_that_is_only_frames_says_nothing(explained: Explained) -> None:
    assert explained("\n".join(_TRACEBACK[1:3])).is_healthy


def test_a_log_that_begins_with_frames_and_continues_says_nothing(explained: Explained) -> None:
    assert explained("\n".join([*_TRACEBACK[1:3], "Epoch: 1", "Loss: 2.0"])).is_healthy


def test_a_message_that_begins_in_the_next_line(explained: Explained) -> None:
    explanation = explained(
        "\n".join([*_TRACEBACK[:3], "odd.OddError: it failed because of the following:", "No module named 'moon'"])
    )

    assert (
        explanation.headline() == "Python finds no such module, neither in its environment nor beside the script: moon"
    )


@pytest.mark.parametrize("frame", ["[rank0]: {}", "{}"])
def test_a_message_that_ends_in_a_colon_and_nothing_follows(explained: Explained, frame: str) -> None:
    assert "odd.OddError" in _line(
        explained("\n".join(frame.format(line) for line in (*_TRACEBACK[:3], "odd.OddError:")))
    )


def test_exception_whose_message_the_next_traceback_cuts_off_is_the_first(explained: Explained) -> None:
    of_tide = "\n".join((*_TRACEBACK[:3], "odd.TideError: the tide did not come in because of:"))

    found = explained(f"{of_tide}\n" + "\n".join(_TRACEBACK)).verdict

    assert found.first is not None and "TideError" in found.first.text
    assert [event.text for event in found.echoes] == [_TRACEBACK[-1]]


def test_code_in_a_panel_is_not_the_exception(explained: Explained) -> None:
    assert _line(
        explained(
            "╭──────── Traceback (most recent call last) ────────╮\n"
            "│ /home/me/train.py:12 in step                       │\n"
            '│ ❱ 12 │   raise ModuleNotFoundError("No module named x") │\n'
            "╰────────────────────────────────────────────────────╯\n"
            "odd.OddError: the moon is full\n"
        )
    ).startswith("odd.OddError")


def test_exception_of_a_notebook_is_found(explained: Explained) -> None:
    assert (
        _line(
            explained(
                "OddError                                  Traceback (most recent call last)\n"
                "<ipython-input-7> in <cell line: 0>()\n---> 24 moon(batch)\n\nOddError: the moon is full\n"
            )
        )
        == "OddError: the moon is full"
    )


def test_the_error_of_a_helper_process_outranks_its_failure(explained: Explained) -> None:
    explanation = explained(
        "\n".join(
            [
                *_TRACEBACK[:3],
                "odd.OddError: Caught OddError in DataLoader worker process 0.",
                "Original Traceback (most recent call last):",
                *_TRACEBACK[1:],
            ]
        )
    )

    assert _line(explanation) == _TRACEBACK[-1]


def test_exception_of_a_group_is_found(explained: Explained) -> None:
    assert "the moon is full" in _line(
        explained(
            "  + Exception Group Traceback (most recent call last):\n"
            '  |   File "/home/me/train.py", line 12, in step\n'
            "  | odd.OddError: the moon is full\n"
        )
    )


def test_a_plain_mistake_while_another_exception_is_handled_does_not_hide_it(explained: Explained) -> None:
    explanation = explained(
        "\n".join(
            [
                *_TRACEBACK,
                "",
                "During handling of the above exception, another exception occurred:",
                "",
                *_TRACEBACK[:3],
                "KeyError: 'moon'",
            ]
        )
    )

    assert _line(explanation) == _TRACEBACK[-1]


@pytest.mark.parametrize("indents", [(0, 4, 8, 4), (4, 4, 8, 4), (0, 0, 4, 0), (2, 4, 6, 2)])
def test_a_traceback_that_was_indented_by_hand(explained: Explained, indents: tuple[int, ...]) -> None:
    """Whatever stands further right than the frames is code."""
    lines = [_TRACEBACK[0], _TRACEBACK[1].strip(), "CodeError: int = moon(batch)", "OddError: the moon is full"]

    explanation = explained("\n".join(" " * indent + line for indent, line in zip(indents, lines, strict=True)))

    assert explanation.headline() == "Python failed with OddError: the moon is full"


def test_exception_before_its_traceback_is_found(explained: Explained) -> None:
    """Two streams that were written into one, and no exception below the frames."""
    log = "RuntimeError: the moon is full" + "\n".join(_TRACEBACK[:-1])

    assert _line(explained(log)).startswith("RuntimeError: the moon is full")


def test_a_message_that_continues_behind_a_comma(explained: Explained) -> None:
    log = "\n".join(
        (*_TRACEBACK[:-1], "RuntimeError: Run failed, ", "error msg: the moon, ", "error msg: is full", "end")
    )

    assert _line(explained(log)) == "RuntimeError: Run failed, error msg: the moon, error msg: is full"


@pytest.mark.parametrize("prefix", ["", "(Worker pid=7) ERROR 11-20 10:11:12 [core.py:708] "])
@pytest.mark.parametrize("first", [0, 1])
def test_a_bare_assertion_says_what_was_not_so(explained: Explained, prefix: str, first: int) -> None:
    """Also where the head of the traceback is lost."""
    lines = (*_TRACEBACK[:2], "    assert moon.phase < 7", "           ^^^^^^^^^^^^^^", "AssertionError")
    explanation = explained("\n".join(prefix + line for line in lines[first:]))

    assert explanation.headline() == "an assertion failed (in step): moon.phase < 7 does not hold"


def test_message_below_a_decorated_line_is_found(explained: Explained) -> None:
    log = "\n".join((*_TRACEBACK[:-1], "odd.OddError: ", "///----[MOON]----", "[Rise] met an error:", "tide 7", "////"))

    assert _line(explained(log)) == "odd.OddError: [Rise] met an error: tide 7"


def test_a_traceback_that_was_logged_as_a_warning_was_caught(explained: Explained) -> None:
    prefix = "(EngineCore pid=24969) WARNING 06-25 16:32:09 [import_utils.py:408] "

    log = "".join(f"{prefix}{line}\n" for line in _TRACEBACK)

    assert explained(f"{log}step 1 loss 2.0\n").is_healthy
    assert not explained(log).is_healthy
    assert not explained(f"{log}step 1 loss 2.0\n".replace("WARNING", "ERROR")).is_healthy


def test_a_log_that_ends_within_a_chain_shows_the_exception_that_it_names(explained: Explained) -> None:
    log = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.11/site-packages/odd/store.py", line 3, in get\n'
        "    moon()\nRuntimeError: Connection reset by peer\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/usr/bin/launch", line 9, in <module>\n    main()\n'
    )

    assert _line(explained(log)) == "RuntimeError: Connection reset by peer"


@pytest.mark.parametrize("said", ["odd.OddError: the moon is full", "Killed", "Segmentation fault (core dumped)"])
def test_text_behind_a_progress_bar_is_read_without_it(explained: Explained, said: str) -> None:
    bar = "Loading checkpoint shards:  38%|███▊      | 3/8 [00:02<00:03,  1.28it/s]"

    assert _line(explained(f"step 1\n{bar}{said}\n")) == said
    assert explained(f"step 1\n{bar}\n").is_healthy


@pytest.mark.parametrize("again", ["", "[rank3]: "])
def test_prefix_before_a_progress_bar_names_the_rank_of_what_follows_it(again: str) -> None:
    bar = "Training:  38%|###8      | 3/8 [00:02<00:03,  1.28it/s]"

    assert line.read(f"[rank3]: {bar}{again}OddError: the moon") == line.read("[rank3]: OddError: the moon")
    assert line.read(f"[rank3]: {bar}").message == bar


@pytest.mark.parametrize(
    "prefix",
    ["2026-07-07 07:07:07 [rank6] ", "2026-07-07 07:07:07,777 [rank6]: ", "[2026-07-07 07:07:07] [rank 6] "],
)
def test_rank_behind_a_time_is_read(explained: Explained, prefix: str) -> None:
    assert line.read(f"{prefix}OddError: the moon") == line.read("[rank6]: OddError: the moon")
    assert line.read("2026-07-07 07:07:07 the moon").message == "2026-07-07 07:07:07 the moon"
    assert explained("\n".join(prefix + each for each in _TRACEBACK)).verdict.rank == 6


@pytest.mark.parametrize(
    ("prefix", "speaker"),
    [
        ("[pod/train-0/pytorch] ", "pod pod/train-0/pytorch"),
        ("Nov  8 19:00:02 node7 python3.11[4711]: ", "unit node7 python3.11[4711]"),
    ],
)
def test_prefix_of_kubectl_and_of_journalctl_is_not_part_of_a_line_without_its_traceback(
    explained: Explained, prefix: str, speaker: str
) -> None:
    cut = "\n".join(prefix + line for line in _TRACEBACK[1:])

    assert line.read(f"{prefix}[rank3]: odd.OddError: the moon").message == "odd.OddError: the moon"
    assert line.read(f"{prefix}the moon").speaker == speaker
    assert explained(cut).headline() == "Python failed with odd.OddError: the moon is full"


def test_time_of_kubectl_leaves_the_indentation_of_a_line() -> None:
    for prefix in ("2026-11-28T19:00:02.123456789Z ", "2026-11-28T19:00:02.1+08:00 stderr F "):
        assert line.read(f'{prefix}  File "/home/me/train.py", line 12, in step').message.startswith("  File ")


def test_name_that_grep_puts_before_a_line_is_not_part_of_the_message(explained: Explained) -> None:
    found = line.read("/moon/plog/plog-7_2025.log:12:[ERROR] TIDE(7,):the moon is full")

    assert found.message == "[ERROR] TIDE(7,):the moon is full"
    assert line.read("x/rank_3.log:7:OddError: the moon").rank == 3
    assert line.read("moon.log: 7 tides").message == "moon.log: 7 tides"
    assert "plog" not in explained("/moon/plog/plog-7_2025.log:12:[ERROR] the moon failed at tide 7\n").headline()


def test_message_that_rich_wrapped_at_the_width_of_its_box_is_joined(explained: Explained) -> None:
    box = "╰" + "─" * 46 + "╯"
    explanation = explained(
        f"{box}\nValueError: the tide of the seventh day is not\nequal to the moon of 64 != 4 *\n8\n"
    )

    assert _line(explanation).endswith("is not equal to the moon of 64 != 4 *")
    short = explained(f"{box}\nValueError: the tide is not\nequal to the moon\n")
    assert _line(short) == "ValueError: the tide is not"


def test_links_of_hccl_that_did_not_come_name_both_ranks(explained: Explained) -> None:
    row = "[ERROR] HCCL(7,moon):2025-01-01-10:00:01 [comm_base.cc:{}][8] {}\n"
    heading = row.format(967, "_______LINK_ERROR_INFO_______")
    old = row.format(1018, "| 192.168.2.7(5) | 192.168.2.8(3) | server | no connect |")
    new = row.format(599, "| 192.168.2.7(5) | 16666 | 192.168.2.8(3) | 0 | client | time out | DISABLE |")

    for table in (old, new):
        assert explained(heading + table).headline().startswith("rank 3 had no connection to rank 5 (192.168.2.7)")
    assert explained(heading).headline().startswith("ranks did not find each other in time")


def test_message_continues_where_the_next_line_begins_within_the_sentence(explained: Explained) -> None:
    explanation = explained("\n".join([*_TRACEBACK[:3], "ValueError: the tide that was given", "must be a whole one"]))

    assert "the tide that was given must be a whole one" in explanation.headline()


@pytest.mark.parametrize("line", ["step 7 of 12", "loss=7 rate=3", "Done.", "the sea: loss=7"])
def test_message_does_not_continue_with_what_else_was_printed(explained: Explained, line: str) -> None:
    explanation = explained("\n".join([*_TRACEBACK[:3], "ValueError: the tide that was given", line]))

    assert line not in explanation.headline()


def test_line_of_code_that_lost_its_blanks_is_still_one(explained: Explained) -> None:
    explanation = explained("\n".join([*_TRACEBACK[:2], "return moon(batch)", _TRACEBACK[-1]]))

    assert explanation.verdict.first is not None and explanation.verdict.first.trace is not None
    assert explanation.verdict.first.trace.code == "return moon(batch)"


def test_exception_of_torch_that_ends_in_failed_is_one(explained: Explained) -> None:
    lines = [*_TRACEBACK[:3], "torch._dynamo.exc.MoonFailed: tide='full' raised:", "OddError: the moon is full"]
    explanation = explained("\n".join(lines))

    assert "the moon is full" in explanation.headline()


@pytest.mark.parametrize(("file", "function"), [("moon/tide.pxi", "moon.check"), ("<frozen moon._tide>", "check")])
def test_source_that_no_installation_has_is_not_the_place(explained: Explained, file: str, function: str) -> None:
    package = '  File "/opt/site-packages/moon/rise.py", line 7, in rise'
    explanation = explained(
        "\n".join([_TRACEBACK[0], package, f'  File "{file}", line 91, in {function}', _TRACEBACK[-1]])
    )

    assert explanation.verdict.first is not None and explanation.verdict.first.trace is not None
    assert explanation.verdict.first.trace.place == ("/opt/site-packages/moon/rise.py", 7, "rise")


def test_object_that_torch_does_not_load_is_named(explained: Explained) -> None:
    refused = "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded."
    why = "\tWeightsUnpickler error: Unsupported global: GLOBAL moon.Tide was not an allowed global by default."
    explanation = explained("\n".join([*_TRACEBACK[:3], refused, "\t(1) two options", why]))

    assert "holds a moon.Tide" in explanation.headline()
    assert "add_safe_globals([moon.Tide])" in " ".join(explanation.remedies())


def test_exception_that_announces_another_line_is_told_where_the_log_ends_with_it(explained: Explained) -> None:
    """A log that begins with frames, and ends with a colon, is not one without a failure."""
    explanation = explained(
        '  File "/x/moon.py", line 7, in rise\n    raise OddError(\nOddError: 7 tides are shared:\n'
    )

    assert "7 tides are shared" in explanation.headline()


def test_cause_of_an_exception_that_the_log_does_not_name_is_the_headline(explained: Explained) -> None:
    cause = "  File \"/x/moon.py\", line 7, in rise\n    moon <= tide\nTypeError: '<=' not supported between instances"
    cut_off = [*_TRACEBACK[:2], "    raise MoonError(tide) from error"]
    link = "The above exception was the direct cause of the following exception:"

    explanation = explained("\n".join([f"{cause} of 'float' and 'str'", "", link, "", *cut_off]))

    assert "a number arrived as text" in explanation.headline()


def test_frames_are_those_of_the_traceback_below_the_same_exception(explained: Explained) -> None:
    error = "AttributeError: 'NoneType' object has no attribute 'tides'"
    explanation = explained(f'{error}\n\nFile "/x/moon.py", line 9, in rise\n  moon.tides\n  ^^^^^\n{error}\n')

    first = explanation.verdict.first
    assert first is not None and first.trace is not None
    assert (first.number, first.trace.place) == (6, ("/x/moon.py", 9, "rise"))


def test_field_that_pydantic_names_above_a_blank_line_is_told(explained: Explained) -> None:
    said = ["pydantic_core.ValidationError: 7 validation errors for MoonConfig", "tide", ""]
    reason = "  Extra inputs are not permitted [type=extra_forbidden, input_value=7, input_type=int]"

    assert "tide: Extra inputs" in explained("\n".join([*_TRACEBACK[:3], *said, reason])).headline()


def test_traceback_that_is_quoted_as_in_a_mail_is_read(explained: Explained) -> None:
    explanation = explained("\n".join(f"> {line}" for line in _TRACEBACK))

    first = explanation.verdict.first
    assert explanation.headline() == "Python failed with odd.OddError: the moon is full"
    assert first is not None and first.trace is not None
    assert first.trace.place == ("/home/me/train.py", 12, "step")


_NOTEBOOK = "{type}                Traceback (most recent call last)\n/x/moon.py in <cell line: 0>()\n----> 2 moon(\n"


def test_type_above_a_notebook_traceback_is_not_a_failure_of_its_own(explained: Explained) -> None:
    log = _NOTEBOOK.format(type="ZeroDivisionError") + "\nZeroDivisionError: the moon has no tides left\n"

    assert "the moon has no tides left" in explained(log).headline()


def test_type_above_a_notebook_traceback_that_is_cut_off_is_told(explained: Explained) -> None:
    assert entry_of(explained(_NOTEBOOK.format(type="ZeroDivisionError"))) == "division-by-zero"
    assert "MoonError" in explained(_NOTEBOOK.format(type="MoonError")).headline()


def test_message_below_an_exception_that_ends_with_a_colon_is_read(explained: Explained) -> None:
    explanation = explained("step 1\nmoon.OddError: \n      The tide is gone\n\nmoon.rise(7)\n")

    assert explanation.headline() == "Python failed with moon.OddError: The tide is gone"


def test_a_pydantic_error_of_the_whole_model_is_in_the_message(
    explained: Callable[..., Explanation],
) -> None:
    said = "The model type 'gemma7' does not support float16. Reason: Numerical instability. Please use bfloat16"
    explanation = explained(
        'Traceback (most recent call last):\n  File "/x/site-packages/vllm/moon.py", line 7, in rise\n    Moon()\n'
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        f"  Value error, {said} [type=value_error, input_value=ArgsKwargs((), {{}}), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.11/v/value_error\n"
    )

    assert "overflow in float16" in explanation.headline()


def test_line_that_was_copied_from_a_screen_of_k9s_is_read(explained: Explained) -> None:
    log = (
        "│ I0908 02:12:23.339234       1 client.go:53] tide\n"
        "│ F0908 02:12:23.566599       1 main.go:133] load config failed, "
        "error is can not find vnpu config for chip 7-7  \n"
    )

    assert entry_of(explained(log)) == "hami-chip-not-in-config"


@pytest.mark.parametrize("backslash", ["\\", "\\\\", "\\\\\\\\"])
def test_paths_of_windows_are_told_as_one_types_them(explained: Explained, backslash: str) -> None:
    """Some loggers write each backslash twice, as Python itself does in the path of an OSError."""
    log = (
        'Traceback (most recent call last):\n  File "C:|me|train.py", line 12, in step\n    moon(batch)\n'
        '  File "C:|venv|Lib|site-packages|moon|rise.py", line 7, in rise\n    open(tide)\n'
        "PermissionError: [WinError 5] Access is denied: 'C:|data|tide.bin'\n"
    )

    explanation = explained(log.replace("|", backslash))

    first = explanation.verdict.first
    assert first is not None and first.trace is not None
    assert first.trace.place is not None and first.trace.place[0] == "C:\\me\\train.py"
    assert first.trace.package == "moon"
    assert "C:\\data\\tide.bin" in explanation.headline()
    assert 'icacls "C:\\data\\tide.bin"' in explanation.remedies()[0]


def test_name_of_a_module_at_which_the_log_was_cut_is_taken_from_the_code(explained: Explained) -> None:
    log = (
        'Traceback (most recent call last):\n  File "/x/site-packages/moon/tide.py", line 7, in <module>\n'
        "    from triton.ops.tide import rise\nModuleNotFoundError: No module named 'triton.o"
    )

    explanation = explained(log)

    assert entry_of(explanation) == "triton-without-ops"
    assert "moon" in explanation.headline()


def test_name_of_a_module_that_does_not_stand_in_the_code_is_left_as_it_is(explained: Explained) -> None:
    log = (
        'Traceback (most recent call last):\n  File "/home/me/tide.py", line 7, in <module>\n'
        "    from moon import rise\nModuleNotFoundError: No module named 'ebb"
    )

    assert "moon" not in explained(log).headline()
