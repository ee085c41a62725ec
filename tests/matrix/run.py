"""Try every combination of loss, tuner, strategy and ranks that is not refused. `python tests/matrix/run.py --help`."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from pathlib import Path

from cells import LOSSES, TUNERS, WAYS, Outcome, Way, asked, attempt, write_rows

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
# Beside .venv, where it slows nothing else down.
sys.path.append(str(ROOT / ".venv-deepspeed" / "packages"))
PAGE = ROOT / "docs" / "matrix.md"
TOLERANCE = 1e-5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only cells in whose name one of these words occurs")
    parser.add_argument("--write", action="store_true", help=f"write the page {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcomes = _try_all(Path(directory), arguments.words)
    if arguments.write:
        PAGE.write_text(_page(outcomes))
    wrong = [(cell, verdict) for cell, outcome in outcomes.items() if (verdict := _verdict(cell, outcomes)) == "wrong"]
    for cell, _ in wrong:
        print(f"{' | '.join(map(str, cell))}: {outcomes[cell].failed or outcomes[cell].curve}")
    print(f"{len(outcomes)} cells, {len(wrong)} wrong")
    return 1 if wrong else 0


Cell = tuple[str, str, Way]


def _try_all(directory: Path, words: list[str]) -> dict[Cell, Outcome]:
    import deepspeed  # noqa: F401  # imported once, before processes are forked
    import peft  # noqa: F401
    import torch.distributed.checkpoint  # noqa: F401
    import transformers  # noqa: F401

    from tiny_model import write_tiny_model

    os.environ |= {"XDG_CACHE_HOME": str(directory / "cache"), "XDG_STATE_HOME": str(directory / "state")}
    model, files = write_tiny_model(directory / "model"), write_rows(directory)
    outcomes: dict[Cell, Outcome] = {}
    for way in WAYS:
        for loss in LOSSES:
            for tuner in TUNERS:
                name = f"{loss} {tuner} {way}"
                # One device is what the others are held against.
                if way == WAYS[0] or not words or any(word in name for word in words):
                    outcomes[loss, tuner, way] = attempt(
                        asked(loss, tuner, way, files, model, directory / "runs"), way.ranks
                    )
                    print(name, _short(outcomes[loss, tuner, way]), flush=True)
    return outcomes


def _short(outcome: Outcome) -> str:
    return outcome.refused or outcome.failed[-300:] or " ".join(f"{loss:.6f}" for loss in outcome.curve or [])


def _verdict(cell: Cell, outcomes: dict[Cell, Outcome]) -> str:
    """`same` as one device, `refused`, or `wrong`."""
    loss, tuner, _ = cell
    found, alone = outcomes[cell], outcomes[loss, tuner, WAYS[0]]
    if found.refused:
        return "refused"
    if found.curve is None or alone.curve is None or len(found.curve) != len(alone.curve):
        return "wrong"
    same = all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(found.curve, alone.curve, strict=True))
    return "same" if same else "wrong"


def _page(outcomes: dict[Cell, Outcome]) -> str:
    reasons: dict[str, int] = {}
    lines = [
        "# Matrix",
        "",
        "Written by `make matrix`: three steps of a tiny model on CPU (Gloo, fp32) for every loss, tuner and strategy.",
        f"✓: losses and gradient norms are those of one device within {TOLERANCE:g} (relative).",
        "A number: refused before anything starts, for the reason below. ✗: wrong.",
        "",
    ]
    ways = [way for way in WAYS if any(cell[2] == way for cell in outcomes)]
    lines.append("| loss | tuner | " + " | ".join(map(str, ways)) + " |")
    lines.append("|" + " --- |" * (len(ways) + 2))
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
                    marks.append("✓" if _verdict((loss, tuner, way), outcomes) == "same" else "✗")
            lines.append(f"| {loss} | {tuner} | " + " | ".join(marks) + " |")
    lines += ["", *(f"{number}. {reason}" for reason, number in reasons.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
