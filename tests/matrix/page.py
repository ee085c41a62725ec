"""docs/matrix.md: a table for each part, written anew without touching the other."""

from __future__ import annotations

import math
from pathlib import Path

from matrix.cells import LOSSES, TUNERS, WAYS, Outcome, Way

PAGE = Path(__file__).resolve().parents[2] / "docs" / "matrix.md"
PARTS = {"cpu": "On CPU", "npu": "On a simulated Ascend node"}
TOLERANCE = 1e-5

_HEAD = f"""# Matrix

Three steps of a tiny model in fp32 for every loss, tuner and strategy.
✓: losses and gradient norms are those of one device on CPU within {TOLERANCE:g} (relative).
A number: refused before anything starts, for the reason below. ✗: wrong.
"""
_ABOUT = {
    "cpu": "Written by `make matrix`. Gloo joins the ranks.",
    "npu": """Written by `make matrix-npu`, a part of `make matrix`. **Simulated: no NPU took part.** torch_npu and its
`ProcessGroupHCCL`, which joins the ranks, are the real ones; below them, in the place of CANN, are libraries of ours
that compute on the host (`tests/ascend_node/cann`). So a ✓ means that the combination calls the right operators and
collectives in an order that works; it says nothing about a device's own numbers, memory or speed. All cells of a column
are trained by the same processes in one process group. DeepSpeed's buckets are as large as the model asks for
(`auto`): its own, of gigabytes, would be filled by a simulated device.""",
}


def same(found: Outcome, alone: Outcome) -> bool:
    """Whether it was trained, and as on one device on CPU."""
    if found.curve is None or alone.curve is None or len(found.curve) != len(alone.curve):
        return False
    return all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(found.curve, alone.curve, strict=True))


def write_part(part: str, outcomes: dict[tuple[str, str, Way], Outcome], alone: dict[tuple[str, str], Outcome]) -> None:
    """Put the part's section into the page; the other one stays as it is."""
    _, *sections = PAGE.read_text().split("\n## ")
    texts = {section.partition("\n")[0]: section.partition("\n")[2] for section in sections}
    texts[PARTS[part]] = f"\n{_ABOUT[part]}\n\n" + "\n".join(_table(outcomes, alone)) + "\n"
    PAGE.write_text(_HEAD + "".join(f"\n## {title}\n{texts[title]}" for title in PARTS.values() if title in texts))


def _table(outcomes: dict[tuple[str, str, Way], Outcome], alone: dict[tuple[str, str], Outcome]) -> list[str]:
    reasons: dict[str, int] = {}
    ways = [way for way in WAYS if any(cell[2] == way for cell in outcomes)]
    lines = ["| loss | tuner | " + " | ".join(map(str, ways)) + " |", "|" + " --- |" * (len(ways) + 2)]
    for loss in LOSSES:
        for tuner in TUNERS:
            marks = []
            for way in ways:
                outcome = outcomes.get((loss, tuner, way))
                if outcome is None:
                    marks.append("")
                elif outcome.refused:
                    marks.append(str(reasons.setdefault(outcome.refused, len(reasons) + 1)))
                else:
                    marks.append("✓" if same(outcome, alone[loss, tuner]) else "✗")
            lines.append(f"| {loss} | {tuner} | " + " | ".join(marks) + " |")
    return lines + ([""] if reasons else []) + [f"{number}. {reason}" for reason, number in reasons.items()]
