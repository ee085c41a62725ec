"""Whether every node of `--nodes` can be reached and asked."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.core.units import count_of

CODE = "nodes_answer"


def _look(outside: Outside) -> Iterator[Finding]:
    if outside.nodes is None:
        return
    for error in outside.nodes.silent.values():
        yield Finding(CODE, "failure", error.what, expected="passwordless ssh works", remedy=error.remedy)
    if not outside.nodes.silent:
        yield ok(CODE, f"{count_of(len(outside.nodes.answers), 'node')} answered")


CHECK = Check(
    CODE,
    what="Starts the doctor on every node of `--nodes` over ssh, as a job of several nodes is started.",
    why="A job with `--nodes` reaches its hosts in the same way: by passwordless ssh, with the same path of Python. "
    "What does not answer here does not start there.",
    fix="`ssh HOST true` must work without a question: put your public key there, and the host's key into "
    "known_hosts. Install ascendtune at the same path on every node, or share its environment. A node that is "
    "late hangs in something that it looks at: run `ascendtune doctor` on it.",
    look=_look,
)
