"""Runs functions on a simulated node: each in a process of its own, forked from one that has imported torch_npu.

A process of its own, because a failed kernel poisons the process that it failed in; forked, because the imports take
seconds.
"""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_node.cann.environment import simulated_environment

_SERVER = Path(__file__).with_name("server.py")


@dataclass(frozen=True)
class Ended:
    """How a function ended on the node. `result` is what it returned, when `code` is 0."""

    code: int
    out: str
    err: str
    result: Any = None


class Node:
    """A simulated node. Its functions are ordinary module-level ones; what they are given and return is pickled."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._calls = 0
        self._log = (directory / "server.log").open("w")
        self._server = subprocess.Popen(
            [sys.executable, str(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=simulated_environment(dict(os.environ)),
        )

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(30)
        self._log.close()

    def call(self, function: Callable[..., Any], *arguments: Any, **environment: object) -> Any:
        """What `function` returns there; an error when it raised. `environment`: variables for its process."""
        ended = self.run(function, *arguments, **environment)
        assert ended.code == 0, ended.err
        return ended.result

    def run(self, function: Callable[..., Any], *arguments: Any, **environment: object) -> Ended:
        """Like `call`, whatever the end."""
        return self.run_ranks(function, *arguments, environments=[environment])[0]

    def run_ranks(
        self, function: Callable[..., Any], *arguments: Any, environments: Sequence[dict[str, object]]
    ) -> list[Ended]:
        """`function` in several processes at the same time, one per environment."""
        self._calls += 1
        places = []
        for number, environment in enumerate(environments):
            place = self._directory / f"{self._calls}-{function.__name__}-{number}"
            place.mkdir()
            request = {
                "file": inspect.getsourcefile(function),
                "function": function.__name__,
                "environment": {name: str(value) for name, value in environment.items()},
            }
            (place / "request.json").write_text(json.dumps(request))
            (place / "arguments.pickle").write_bytes(pickle.dumps(arguments))
            places.append(place)
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps([str(place) for place in places]), file=self._server.stdin, flush=True)
        answer = self._server.stdout.readline()
        assert answer, f"the simulated node is gone:\n{Path(self._log.name).read_text()}"
        return [_ended(place, code) for place, code in zip(places, json.loads(answer), strict=True)]


def _ended(place: Path, code: int) -> Ended:
    result = place / "result.pickle"
    return Ended(
        code,
        (place / "out").read_text(errors="replace"),
        (place / "err").read_text(errors="replace"),
        pickle.loads(result.read_bytes()) if result.exists() else None,
    )
