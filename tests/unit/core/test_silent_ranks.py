"""The time after which a training counts as silent, and its words."""

from __future__ import annotations

import pytest

from ascendtune.core.silent_ranks import LONG_PHASES, is_silent, silence_in_words
from ascendtune.job.hang.judge import Limits


@pytest.mark.parametrize(
    ("seconds", "step_seconds", "silent"),
    [(9, 1.0, False), (11, 1.0, True), (19, 4.0, False), (21, 4.0, True), (59, None, False), (61, None, True)],
)
def test_silence_begins_at_five_steps_and_ten_seconds(seconds: float, step_seconds: float | None, silent: bool) -> None:
    assert is_silent("forward", seconds, step_seconds) is silent


def test_long_phases_are_never_silent() -> None:
    assert not any(is_silent(phase, 3600, 1.0) for phase in LONG_PHASES)
    assert set(Limits().phases) == LONG_PHASES


def test_words_name_the_usual_step_where_it_is_known() -> None:
    assert silence_in_words(240, 1.234) == "silent for 4:00 (usual step 1.2 s)"
    assert silence_in_words(90, None) == "silent for 1:30"
