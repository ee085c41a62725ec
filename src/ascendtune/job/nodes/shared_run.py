"""Lets nodes that are started one by one agree on a run: node 0 chooses it, and publishes it in the shared directory.

    RUNS/.nodes_ADDRESS_PORT/node_K.json        a question of node K: a random number
    RUNS/.nodes_ADDRESS_PORT/answer.json        the run, and the numbers of the questions that it answers
    RUNS/.nodes_ADDRESS_PORT/preparing_K.json   node K still prepares its data: a changing number, and its progress

A file that an earlier start left behind contains another number, so it answers no question. An answered question proves
that the nodes use the same directory.
"""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ascendtune.core.errors import MachineError, translated_disk_errors
from ascendtune.core.log import say
from ascendtune.core.ownership import require_own
from ascendtune.core.records import record_if_readable, write_json
from ascendtune.job.spec import NodePlace

_PATIENCE_SECONDS = 3600.0
"""Limit without a sign of life of a node that prepares its data."""
_SIGN_EVERY_SECONDS = 15.0
_TELL_AFTER_SECONDS = 15.0
_TELL_EVERY_SECONDS = 60.0
_LOOK_EVERY_SECONDS = 0.2
_MOST_NAMED = 8


@contextmanager
def preparing(runs: Path, place: NodePlace) -> Iterator[Callable[[str, int, int], None]]:
    """Context during which the other nodes see that this one prepares its data; yields a function for the progress."""
    path, over = _directory(runs, place) / f"preparing_{place.node_rank}.json", threading.Event()
    doing = "preparing its data"

    def show(what: str, done: int, total: int) -> None:
        nonlocal doing
        doing = what + (f": {done / total:.0%}" if total else "")

    def live() -> None:
        while not over.wait(_SIGN_EVERY_SECONDS):
            # Functions that need the directory report whether it can be written.
            with suppress(MachineError, OSError):
                _write(path, sign=secrets.token_hex(8), doing=doing)

    thread = threading.Thread(target=live, name="signs of life", daemon=True)
    thread.start()
    try:
        yield show
    finally:
        over.set()
        thread.join()
        with suppress(OSError):
            path.unlink(missing_ok=True)


def publish_run(runs: Path, place: NodePlace, run: Path) -> None:
    """As node 0: publish `run`, and wait until every other node has confirmed it.

    Raises:
        MachineError: for an hour, a node neither asks nor prepares its data; or other users may write the files that
            the nodes exchange.
    """
    directory = _directory(runs, place)
    answered: dict[str, str] = {}

    def all_confirmed() -> bool:
        nonlocal answered
        questions = _questions(place, directory)
        nonces = {rank: question["nonce"] for rank, question in questions.items() if "nonce" in question}
        if nonces != answered:
            write_json(directory / "answer.json", {"run": str(run.resolve()), "nonces": nonces})
            answered = nonces
        return all(question.get("knows") == question.get("nonce", "") for question in questions.values())

    with translated_disk_errors(directory, "telling the other nodes which run it is"):
        # A node that has already asked asks again.
        shutil.rmtree(directory, ignore_errors=True)
        _make(directory)
        _wait(all_confirmed, lambda: f"for {_missing(place, directory)}", directory)
        shutil.rmtree(directory, ignore_errors=True)


def receive_run(runs: Path, place: NodePlace) -> Path:
    """As another node: receive the run from node 0.

    Raises:
        MachineError: for an hour, node 0 neither answers nor prepares its data; or other users may write the files that
            the nodes exchange.
    """
    directory, nonce = _directory(runs, place), secrets.token_hex(8)
    answer: dict[str, Any] = {}

    def is_answered() -> bool:
        nonlocal answer
        question = directory / f"node_{place.node_rank}.json"
        if record_if_readable(question).get("nonce") != nonce:
            _write(question, nonce=nonce)
        answer = record_if_readable(directory / "answer.json")
        nonces = answer.get("nonces")
        is_ours = isinstance(nonces, dict) and nonces.get(str(place.node_rank)) == nonce
        return is_ours and isinstance(answer.get("run"), str)

    with translated_disk_errors(directory, "asking node 0 which run it is"):
        _wait(is_answered, lambda: f"for node 0 at {place.master_addr}", directory)
        _write(directory / f"node_{place.node_rank}.json", nonce=nonce, knows=nonce)
    return Path(answer["run"])


def _make(directory: Path) -> None:
    """Make the directory, and check that no other user can have written the files in it.

    Raises:
        MachineError: another user has made it, or may write to it.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(0o755, exist_ok=True)
    require_own(directory, remedy="use another MASTER_PORT or run_dir")


def _write(path: Path, **content: str) -> None:
    """Write a file, unless node 0 removes the directory: then the question is repeated, or every node has confirmed."""
    try:
        _make(path.parent)
        write_json(path, content)
    except (FileNotFoundError, FileExistsError):
        return
    except MachineError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


def _directory(runs: Path, place: NodePlace) -> Path:
    address = re.sub(r"[^\w.-]", "_", place.master_addr)
    return runs / f".nodes_{address}_{place.master_port}"


def _questions(place: NodePlace, directory: Path) -> dict[str, dict[str, Any]]:
    """Rank of each other node -> its question; empty if it has not asked."""
    return {str(rank): record_if_readable(directory / f"node_{rank}.json") for rank in range(1, place.nnodes)}


def _missing(place: NodePlace, directory: Path) -> str:
    missing = [rank for rank, question in _questions(place, directory).items() if "nonce" not in question]
    if not missing:
        return "the nodes to continue"
    *first, last = missing if len(missing) <= _MOST_NAMED else [*missing[:_MOST_NAMED], "more"]
    listed = f"nodes {', '.join(first)} and {last}" if first else f"node {last}"
    return f"{listed} (of {place.nnodes})"


def _wait(is_so: Callable[[], bool], for_what: Callable[[], str], directory: Path) -> None:
    since = time.monotonic()
    reported_at, last_message = since + _TELL_AFTER_SECONDS - _TELL_EVERY_SECONDS, ""
    signs = dict[str, Any]()
    while not is_so():
        now = time.monotonic()
        before, signs = signs, {path.stem[10:]: record_if_readable(path) for path in directory.glob("preparing_*.json")}
        since = since if signs == before else now
        if now - since > _PATIENCE_SECONDS:
            raise MachineError(
                f"waited an hour {for_what()}",
                code="nodes-not-started",
                remedy="start the command on every node, with run_dir on a file system that all share",
                where=directory,
            )
        message = f"waiting {for_what()}: {_doings(signs)}"
        if now - reported_at > _TELL_EVERY_SECONDS and message != last_message:
            say(message)
            reported_at, last_message = now, message
        time.sleep(_LOOK_EVERY_SECONDS)


def _doings(signs: Mapping[str, Any]) -> str:
    if not signs:
        return "not started yet, or run_dir is not on a file system that all nodes share"
    return ", ".join(f"node {node} is {sign.get('doing')}" for node, sign in sorted(signs.items())[:_MOST_NAMED])
