"""Messages of several lines: reasons that were wrapped, values on the next line, advice in the last line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.traceback.advice import advice_below

_ADVISED = "the message itself advises: "


@pytest.mark.parametrize(
    ("below", "advice"),
    [
        (["Check for missing whitespace before the backslash."], "Check for missing whitespace before the backslash."),
        (["got a moon of 7 tides.", "Set MOON_TIDES=8 and start again."], "Set MOON_TIDES=8 and start again."),
        (["Please use --moon 7", "or leave the tide out."], "Please use --moon 7 or leave the tide out."),
        (["Check failed: moon == tide"], ""),
        (["INFO 06-26 08:18:55 [moon.py:128] Use the tide of 7"], ""),
        (["2026-01-01 10:00:00 Set the moon to 7"], ""),
        (["/x/moon.py:7: UserWarning: tide", "Use the moon instead."], ""),
        (["", "Set the moon to 7"], ""),
        (["Killed"], ""),
    ],
)
def test_lines_below_a_message_are_advice_where_they_tell_what_to_do(below: list[str], advice: str) -> None:
    assert advice_below("a moon rose", below) == advice


def test_advice_in_the_last_line_of_a_message_is_the_first_remedy(explained: Callable[..., Explanation]) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in rise\n    raise ValueError(text)\n'
        "ValueError: Invalid moon '7.7' in --tides[0]: looks like two tides.\nCheck for blanks in the command.\n"
    )

    remedies = explained(raised).remedies()

    assert remedies[0] == f"{_ADVISED}Check for blanks in the command."


def test_a_long_message_is_told_as_a_whole(explained: Callable[..., Explanation]) -> None:
    said = (
        "The number of tides a moon may have when both moons are up is one of {32, 64, 128}, thus this is not possible "
        "for Moonlet-V2-Lite, as it only has 16 tides. And if you're using Moonlet-V3 or Moonlet-R1 on several "
        "beaches of one sea, please make sure after the split, tides / moons in {32, 64, 128}."
    )
    raised = (
        f'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in rise\n    tide()\nTypeError: {said}\n'
    )

    explanation = explained(raised)

    assert explanation.headline().endswith("tides / moons in {32, 64, 128}.")
    assert explanation.remedies()[0].startswith(f"{_ADVISED}please make sure after the split")


def test_a_reason_of_cann_that_was_wrapped_is_read_to_its_end(explained: Callable[..., Explanation]) -> None:
    wrapped = (
        "EZ9999[PID: 7] 2026-03-17-08:21:12.001.372 (EZ9999):  HCCL_BUFFSIZE is too SMALL, maxBs = 7,\n"
        "moons = 2, NEEDED_HCCL_BUFFSIZE(((maxBs * tide) +\n(maxBs * moon)) * 2) = 777MB, HCCL_BUFFSIZE=200MB.\n"
        "[FUNC:Moon][FILE:moon.cpp][LINE:7]\n"
    )

    assert explained(wrapped).remedies()[0].startswith("export HCCL_BUFFSIZE=777 ")


def test_a_command_whose_value_is_unknown_has_a_place_for_it(explained: Callable[..., Explanation]) -> None:
    remedy = explained("EZ9999: HCCL_BUFFSIZE is too SMALL, maxBs = 7\n").remedies()[0]

    assert remedy.startswith("export HCCL_BUFFSIZE=NEEDED ")


def test_the_reason_below_a_code_of_cann_is_part_of_its_line(explained: Callable[..., Explanation]) -> None:
    below = (
        "AclNN_Parameter_Error(EZ1001):\n    Tensor self not implemented for DT_INT8,\n    should be in [DT_FLOAT]\n"
    )

    assert entry_of(explained(f"call aclnnMoon failed, error code is 161002\n{below}")) == "npu-dtype-refused"


def test_frames_without_the_word_file_are_frames(explained: Callable[..., Explanation]) -> None:
    cut = (
        'python3.10/site-packages/moon/tide.py", line 221, in wrapper\n    return tide(*args)\n'
        '  python3.10/site-packages/moon/rise.py", line 462, in rise\n    moon = tides.args[0]\n'
        "ValueError: no moon rose today\n"
    )

    first = explained(cut).verdict.first

    assert (
        first is not None
        and first.trace is not None
        and first.trace.place == (*("python3.10/site-packages/moon/rise.py", 462, "rise"),)
    )
