"""Failures that no entry knows: the rule of their message, and the line of the log that sets its values."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.event.message_rule import turned_round
from ascendtune.check.explain.event.plain_message import program_and_message
from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_OF_PACKAGE = (
    'Traceback (most recent call last):\n  File "/home/me/moon.py", line 7, in <module>\n    rise(tide)\n'
    '  File "/v/site-packages/moonlight/ebb.py", line 12, in rise\n    raise ValueError(\n'
)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("moon heads (32) must be divisible by tides (3)", "2, 4 in place of 3 (divisors of 32); or 30 or 33"),
        ("sea width = 64 is not a multiple of wave_n = 128", "128 in place of 64"),
        (
            "The tide (7 x 1) must be evenly divisible by waves (8)",
            "choose 'tide (7 x 1)' as a multiple of 'waves (8)'",
        ),
        ("Expected one of 'ebb', 'flow' but got 'moon'", "one that it lists: 'ebb', 'flow'"),
        ("this sea only supports {32, 64}, not 7", "one that it lists: {32, 64}"),
        ("the valid values for the number of tides are: [7]", "one that it lists: [7]"),
        ("tide_cache must be set to False when the moon is full", "tide_cache has to be False"),
        ("Requires use_tide=True on the moon", "set use_tide=True"),
        ("Cannot use both --ebb and --flow at the same time", "leave out '--ebb' or '--flow'"),
        ("`ebb_tide` is not supported when `flow` is on", "the two do not go together: leave out 'ebb_tide'"),
        ("the fit between 'ebb' and 'flow = 3' has not been shown", "leave out 'ebb' or 'flow = 3'"),
        ("Tidal charts are not supported for this kind of moon", "leave out 'Tidal charts': 'this kind of moon'"),
        ("tide_degree is inconsistent before and after checkpoint", "continue with the same tide_degree"),
        ("Expected tide to be 2D but got 3D instead", "'tide' has to be '2D' and is '3D'"),
        (
            "Expected moon to be a `str` not <class 'int'>, as it is not serializable",
            "'moon' has to be 'str' and is '<",
        ),
        ("tides_to_leave cannot be empty. You must name one. Example: [7]", "'tides_to_leave' is empty: print it"),
        ("`sea` must contain at least one moon.", "'sea' has no 'moon': print it"),
        ("The tide must have at least one digit, got ebb", "'tide' has no 'digit': print it"),
        ("expected sea to have 3 moons instead of 4", "'sea' has to have '3 moons' and has '4'"),
        ("tide must be either ebb or flow", "one that it lists: ebb or flow"),
        ("tide.flow does not work with ebb != 0.", "leave out 'tide.flow' or 'ebb != 0'"),
        ("Tide can only be scalar but got {'ebb': 7}", "'scalar' is expected where '{'ebb': 7}' is given"),
        ("tide size 1 does not match the sea size 2", "'tide size 1' and 'sea size 2'"),
        ("sea7 has low water (63 < 64)", "63 is on one side and 64 on the other"),
        ("moon_len must be at least 7", "bring 'moon_len' to where it is at least '7'"),
        ("tide depth (47) exceeds limit (32) here", "lower 'tide depth (47)'"),
        ("moonlight is only supported on Tide 11.6 and above", "it goes with 'Tide 11.6 and above' only"),
        ("Pass ebb_type only when ebb is not native; otherwise omit it", "leave out ebb_type"),
        ("Invalid value \"a//b\" for key 'tide'. It would resolve to 'a/b'", "use 'a/b' in place of \"a//b\""),
        ("moon name 'a/b': cannot contain characters '/#', found '/'", "the rule is 'cannot contain characters"),
    ],
)
def test_a_rule_is_turned_round(message: str, advice: str) -> None:
    assert advice in turned_round(message)


@pytest.mark.parametrize(
    "message",
    [
        "At least one moon must be specified, but got tides=/data/sea",
        "the moon is full",
        "Unused tide: expected it to be full, not ebbing",
        "ebb=8 should be either positive and smaller than the sea 7 or a float in the (0, 1) range",
        "Invalid tide: shutdown or no waves when fetching",
        "unsupported operand type(s) for *: 'Moon' and 'Tide'",
        "descriptor '__init__' of 'Moon' object needs an argument",
        "moon.tide is set elsewhere. In the sea it is usually 7",
        "({'reason': \"tide failed, not support sea size's shape [-1] and [-2]\"}, \"In moon[not support sea's [-1]\")",
    ],
)
def test_no_rule_is_read_into_a_message(message: str) -> None:
    assert turned_round(message) == ""


@pytest.mark.parametrize(
    ("line", "program", "message"),
    [
        ("moonc: error: frontend failed with exit code 70", "moonc", "frontend failed with exit code 70"),
        ("CMake Error at sea/CMakeLists.txt:7 (message): no tide here", "CMake", "no tide here"),
        ('time="2026" level=fatal msg="Error watching tides: moon"', "", "Error watching tides: moon"),
        ("[INIT][TIDE][ERROR]: the sea of moon is dry", "", "the sea of moon is dry"),
        ('C++ exception with description "ebb of the tide % 8', "", "ebb of the tide % 8"),
        ("<GetMoon> call of the tide failed here", "", "call of the tide failed here"),
        ("[26002.109061] moon: tide stopped the sea", "", "moon: tide stopped the sea"),
        ("Internal error: tide of the moon failed", "", "Internal error: tide of the moon failed"),
    ],
)
def test_program_and_message_are_told_apart(line: str, program: str, message: str) -> None:
    assert program_and_message(line) == (program, message)


def test_package_that_refuses_is_named_with_its_release_and_what_to_search_for(explained: Explained) -> None:
    found = explained(f"moonlight==1.7.2\n{_OF_PACKAGE}ValueError: tide_a must match the wave_b of the moon\n")

    assert found.headline().startswith("moonlight refuses what it was given (ValueError): tide_a must match")
    assert found.remedies()[0].startswith("the two have to agree: 'tide_a' and 'wave_b of the moon'")
    assert any('search its issues for "tide_a must match the wave_b' in remedy for remedy in found.remedies())


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("+ moon run --sea-level 12 --ebb", "--sea-level 12 --ebb"),
        ("Namespace(ebb=True, sea_level=12, flow=None)", "sea_level=12"),
        ("  sea_level: 12", "sea_level: 12"),
        ("export SEA_LEVEL=12", "SEA_LEVEL=12"),
    ],
)
def test_line_that_sets_what_the_message_names_is_shown(explained: Explained, line: str, shown: str) -> None:
    first = explained(f"start\n{line}\n{_OF_PACKAGE}ValueError: sea_level must be at most 7\n").remedies()[0]

    assert first.startswith("the log shows sea_level at line 2: ")
    assert shown in first


def test_value_that_a_message_quotes_is_found_where_it_was_given(explained: Explained) -> None:
    log = (
        f"+ moon --hosts 10.0.0.310.0.0.3 --ebb\n{_OF_PACKAGE}ValueError: Invalid host '10.0.0.310.0.0.3' of the moon\n"
    )

    assert explained(log).remedies()[0].startswith("the log shows where the value comes from, line 1: ")


def test_line_of_an_error_or_of_code_sets_nothing(explained: Explained) -> None:
    log = (
        f"ERROR: invalid sea_level = 12\nself.sea_level = level\n{_OF_PACKAGE}ValueError: sea_level must be at most 7\n"
    )

    assert not any("the log shows" in remedy for remedy in explained(log).remedies())


def test_service_is_asked_for_by_its_unit(explained: Explained) -> None:
    found = explained("Jan  7 07:07:07 sea systemd[1]: moond.service: Control process exited, status=1/FAILURE error\n")

    assert "`systemctl status moond.service; journalctl -u moond.service -n 50" in found.remedies()[0]


def test_log_of_a_host_asks_for_no_ranks_and_no_launches(explained: Explained) -> None:
    asked = explained("moond: error: the kernel of the tide 7 is gone from here\n").to_collect

    assert "the log of every rank" not in asked
    assert not any("LAUNCH_BLOCKING" in each for each in asked)


@pytest.mark.parametrize(
    ("message", "key"),
    [("[Moon] 'tide level' is not set correctly", "'tide level'"), ("`moon rise` is required here", "`moon rise`")],
)
def test_quoted_key_of_several_words_is_named_as_a_whole(message: str, key: str) -> None:
    assert turned_round(message).startswith(f"give {key}: ")
