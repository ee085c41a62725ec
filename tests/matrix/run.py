"""Try every combination of loss, tuner, strategy and ranks that is not refused: `make matrix`, `make matrix-npu`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ascend_node.cann.build import why_not
from ascend_node.cann.node import Node
from matrix.cells import LOSSES, TUNERS, WAYS, Outcome, Way, asked, attempt, write_rows
from matrix.page import PAGE, PARTS, same, write_part
from matrix.simulated import DEEPSPEED, attempt_in_turn, with_small_buckets

Pair = tuple[str, str]
"""Loss and tuner."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("words", nargs="*", help="only cells in whose name one of these words occurs")
    parser.add_argument("--write", action="store_true", help=f"write this part of docs/{PAGE.name}")
    arguments = parser.parse_args()
    if arguments.part == "npu" and (reason := why_not()):
        sys.exit(f"error: {reason}")
    # Beside .venv, where it slows nothing else down.
    sys.path.append(str(DEEPSPEED))
    alone: dict[Pair, Outcome] = {}
    outcomes: dict[tuple[str, str, Way], Outcome] = {}
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        for loss, tuner, way, outcome in _try_all(arguments.part, Path(directory), arguments.words, alone):
            outcomes[loss, tuner, way] = outcome
            is_wrong = not outcome.refused and not same(outcome, alone[loss, tuner])
            wrong += is_wrong
            print(f"{'WRONG: ' * is_wrong}{loss}, {tuner}, {way}: {_short(outcome)}", flush=True)
    if arguments.write:
        write_part(arguments.part, outcomes, alone)
    print(f"{len(outcomes)} cells, {wrong} wrong")
    return 1 if wrong else 0


def _try_all(
    part: str, directory: Path, words: list[str], alone: dict[Pair, Outcome]
) -> Iterator[tuple[str, str, Way, Outcome]]:
    """What came of each cell; `alone` is filled with one device on CPU, against which they are held."""
    import peft  # noqa: F401  # imported once, before processes are forked
    import transformers  # noqa: F401

    from tiny_model import write_tiny_model

    os.environ |= {"XDG_CACHE_HOME": str(directory / "cache"), "XDG_STATE_HOME": str(directory / "state")}
    model, files = write_tiny_model(directory / "model"), write_rows(directory)
    try_recipes: Callable[[list[dict[str, Any]], Way], Iterable[Outcome]]
    with ExitStack() as stack:
        if part == "cpu":
            import deepspeed  # noqa: F401

            try_recipes = _on_cpu
        else:
            node = Node(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            stack.callback(node.close)
            try_recipes = partial(_on_npus, node, directory)
        for way in WAYS:
            pairs = [
                (loss, tuner)
                for loss in LOSSES
                for tuner in TUNERS
                if not words or any(word in f"{loss} {tuner} {way}" for word in words)
            ]
            for pair in pairs:
                if pair not in alone:
                    alone[pair] = attempt(asked(*pair, WAYS[0], files, model, directory / "alone"), 1)
            recipes = [asked(*pair, way, files, model, directory / part) for pair in pairs]
            for pair, outcome in zip(pairs, try_recipes(recipes, way), strict=True):
                yield *pair, way, outcome


def _on_cpu(recipes: list[dict[str, Any]], way: Way) -> Iterator[Outcome]:
    for each in recipes:
        yield attempt(each, way.ranks)


def _on_npus(node: Node, directory: Path, recipes: list[dict[str, Any]], way: Way) -> list[Outcome]:
    parallel = with_small_buckets(way, directory)
    return attempt_in_turn(node, [{**each, "parallel": parallel} for each in recipes], way.ranks)


def _short(outcome: Outcome) -> str:
    return outcome.refused or outcome.failed[-300:] or " ".join(f"{value:.6f}" for value in outcome.curve or [])


if __name__ == "__main__":
    sys.exit(main())
