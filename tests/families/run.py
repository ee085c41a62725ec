"""Train a tiny model of every causal language model type of the installed transformers: `make families`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from families.configs import takes_other_input, types
from families.measure import TUNERS, Family, Tried, measure
from families.page import write_page
from tiny_model import write_tiny_model

_PATIENCE_SECONDS = 900


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these types")
    parser.add_argument("--write", action="store_true", help="write docs/models.md")
    parser.add_argument("--keep", type=Path, help="append results to this file; what stands there is not tried again")
    parser.add_argument("--tuners", nargs="+", choices=TUNERS, default=list(TUNERS), help="only these columns")
    arguments = parser.parse_args()
    not_tried = [name for name, kind in types().items() if takes_other_input(kind)]
    names = arguments.names or [name for name in types() if name not in not_tried]
    families = []
    for family in _kept_or_measured(names, arguments.keep, arguments.tuners):
        families.append(family)
        print(_line(family), flush=True)
    if arguments.write:
        write_page(families, not_tried)
    wrong = [family.name for family in families if is_wrong(family)]
    print(f"{len(families)} types, {len(wrong)} wrong: {' '.join(wrong)}")
    return 1 if wrong else 0


def _kept_or_measured(names: list[str], file: Path | None, tuners: list[str]) -> Iterator[Family]:
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    kept = {family.name: family for family in map(Family.from_json, lines) if family.name in names}
    yield from kept.values()
    for family in measure_all([name for name in names if name not in kept], tuners):
        if file is not None:
            with file.open("a") as results:
                results.write(family.as_json() + "\n")
        yield family


def measure_all(names: list[str], tuners: Iterable[str] = TUNERS) -> Iterator[Family]:
    """Each type in a forked process of its own, which need not import anything again and may die."""
    import peft  # noqa: F401  # imported once, before processes are forked
    import transformers  # noqa: F401

    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"XDG_CACHE_HOME": f"{directory}/cache", "XDG_STATE_HOME": f"{directory}/state"}
        tokenizer = write_tiny_model(Path(directory) / "tokenizer")
        for name in names:
            yield _in_a_process(name, Path(directory) / name, tokenizer, tuners)


def is_wrong(family: Family) -> bool:
    """Whether a run of it would mislead: other numbers than the model's own, or an end without a sentence."""
    return any(tried is not None and (tried.different or tried.failed) for tried in family.tried())


def _in_a_process(name: str, directory: Path, tokenizer: Path, tuners: Iterable[str]) -> Family:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, directory, tokenizer, tuners, sender))
    process.start()
    sender.close()
    end = time.monotonic() + _PATIENCE_SECONDS
    try:
        if not receiver.poll(end - time.monotonic()):
            raise EOFError
        return Family.from_json(receiver.recv())
    except EOFError:
        how = f"no answer within {_PATIENCE_SECONDS} s" if process.is_alive() else "the process died"
        return Family(name, full=Tried(failed=how))
    finally:
        process.kill()
        process.join()


def _measure(name: str, directory: Path, tokenizer: Path, tuners: Iterable[str], sender: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    # Progress and library chatter; what is measured is read from files.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sender.send(measure(name, directory, tokenizer, tuners).as_json())


def _line(family: Family) -> str:
    if family.cannot_be_made:
        return f"{family.name}: cannot be made: {family.cannot_be_made}"
    return f"{family.name}: " + "; ".join(f"{tuner} {_short(getattr(family, tuner))}" for tuner in TUNERS)


def _short(tried: Tried | None) -> str:
    if tried is None:
        return "not tried"
    if tried.failed or tried.different:
        return f"WRONG ({tried.failed or '; '.join(tried.different)})"
    if tried.refused:
        return f"refused ({tried.refused})"
    return "packed" if tried.packed else "padded"


if __name__ == "__main__":
    sys.exit(main())
