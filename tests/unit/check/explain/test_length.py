"""The usual answer has at most twelve lines, in a window of 80 columns, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.knowledge.entries import entries, raised_entries
from ascendtune.check.explain.package.distributions import named_for_pip

_MOST = 12


def _text(explanation: Explanation, columns: int, *, everything: bool = False) -> str:
    return as_text(explanation, columns=columns, paint=lambda text, _: text, everything=everything)


@pytest.mark.parametrize("columns", [80, 118])
def test_quoted_line_is_cut_where_nothing_else_can_be_left_out(
    explained: Callable[..., Explanation], columns: int
) -> None:
    message = " ".join(f"tide{number}" for number in range(50))
    shapes = (
        "copying a param with shape torch.Size([33004, 4096]) from checkpoint, the shape in current model is "
        "torch.Size([32000, 4096])."
    )
    explanation = explained(f"RuntimeError: size mismatch for moon.embed_tokens.weight: {shapes} {message}\n")

    assert len(_text(explanation, columns).splitlines()) <= _MOST
    assert " […]" in _text(explanation, 60)
    assert len(_text(explanation, 60, everything=True).splitlines()) > _MOST


def test_answer_without_room_for_causes_points_to_none(explained: Callable[..., Explanation]) -> None:
    memory = "(NPU 0; 60.96 GiB total capacity; 57.41 GiB already allocated; 1.20 GiB free; 58.02 GiB reserved in total"
    text = _text(explained(f"RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB {memory} by PyTorch)\n"), 60)

    assert "\nwhy " not in text and "\nsure     certain what broke; " in text and "below" not in text


# One test, because explaining every entry's own lines takes 20 CPU seconds.
@pytest.mark.long
def test_answer_to_the_test_of_each_entry_is_that_entry_in_at_most_twelve_lines(
    explained: Callable[..., Explanation],
) -> None:
    long, others = {}, {}
    of_exceptions = {entry.id for entry in raised_entries()}
    for entry in (*entries(), *raised_entries()):
        explanation = explained(entry.test + "\n")
        if len(lines := _text(explanation, 80).splitlines()) > _MOST:
            long[entry.id] = len(lines)
        # The lines of others need not be the first cause where they stand alone.
        if entry.id in of_exceptions and (found := entry_of(explanation)) != entry.id:
            others[entry.id] = found

    assert long == {} and others == {}


def test_command_of_pip_names_the_distribution_and_no_list(explained: Callable[..., Explanation]) -> None:
    for module, distribution in [("cv2", "opencv-python-headless"), ("msprobe", "mindstudio-probe")]:
        assert f"pip install {distribution}" in explained(f"No module named '{module}'\n").remedies()[0]
        assert named_for_pip(f"pip install {module}") == f"pip install {distribution}"
