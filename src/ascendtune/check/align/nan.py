"""The module that produced the first non-finite number, read from the dump of the step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.check.align.language import say
from ascendtune.check.finding import Finding
from ascendtune.core.records import read_json_lines
from ascendtune.core.rundir import RunDir

_SHOWN = 8
_MADE_BY = {
    "forward": "NaN or infinity first appears in the forward pass of {name} ({kind})",
    "input": "NaN or infinity first appears before {name} ({kind}), in a function that is not a module",
    "loss": "NaN or infinity first appears in the loss; the results of all modules are finite",
    "backward": "NaN or infinity first appears in the backward pass, in the gradient of the result of {name} ({kind})",
    "gradient": "the gradient of {name} is not finite, though all gradients of results are",
    "parameter_before": "the weight {name} was not finite before the step",
}


@dataclass(frozen=True)
class FirstNonFinite:
    """The first tensor of a step that contains NaN or infinity.

    Attributes:
        row: its line in the dump.
        shown: lines of its inputs.
        rows: numbers of the rows in the step's batch.
    """

    step: int
    rank: int
    row: dict[str, Any]
    shown: tuple[dict[str, Any], ...]
    rows: tuple[int, ...]

    @property
    def finding(self) -> Finding:
        """The finding, with the ranges of the inputs as evidence."""
        row = self.row
        how = "input" if str(row.get("slot")).startswith("input") else str(row.get("phase"))
        made = say(_MADE_BY.get(how, "{name}"), name=row.get("name") or say("the model"), kind=row.get("kind"))
        return Finding(
            "first-not-finite",
            "failure",
            say(
                "step {step}, rank {rank}: {made}; {range}",
                step=self.step,
                rank=self.rank,
                made=made,
                range=_range(row),
            ),
            remedy=say(
                "look at the ranges and the rows: lower optim.learning_rate where weights or inputs are large, try "
                "precision: fp32 or another attention or kernel where they are not, or correct the rows"
            ),
            evidence=tuple(
                f"{each.get('phase')} {each.get('name')} {each.get('slot')}: {_range(each)}" for each in self.shown
            ),
        )


def first_non_finite(run: RunDir) -> FirstNonFinite | None:
    """The first non-finite tensor of the newest dumped step that has one; None if no dump has one.

    Raises:
        MachineError: a dump is damaged.
    """
    steps = sorted(run.dumps.glob("step-*"), reverse=True)
    for step in steps:
        of_ranks = [bad for file in sorted(step.glob("rank_*.jsonl")) if (bad := _of_rank(file)) is not None]
        if of_ranks:
            return min(of_ranks, key=lambda bad: _number(bad.row.get("order")))
    return None


def _of_rank(file: Path) -> FirstNonFinite | None:
    header, *rows = list(read_json_lines(file)) or [{}]
    bad = [row for row in rows if _number(row.get("nan")) + _number(row.get("inf"))]
    if not bad:
        return None
    # Weights are dumped after the passes that use them.
    before = [row for row in bad if row.get("phase") == "parameter_before"]
    first = (before or bad)[0]
    sequences = header.get("rows")
    flat = [each for one in sequences if isinstance(one, list) for each in one] if isinstance(sequences, list) else []
    return FirstNonFinite(
        _number(header.get("step")),
        _number(header.get("rank")),
        first,
        tuple(_before(first, rows)),
        tuple(each for each in flat if type(each) is int),
    )


def _before(first: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of the inputs and the weights of the module; if it has neither, of the tensors computed before it."""
    name, number = first.get("name"), first.get("micro_batch")
    same = [row for row in rows if row.get("name") == name and row.get("micro_batch") == number and row is not first]
    inputs = [row for row in same if str(row.get("slot")).startswith("input")]
    weights = [row for row in rows if row.get("phase") == "parameter_before" and _is_of(row, name)]
    shown = [*inputs, *weights][:_SHOWN]
    if not inputs:
        at = rows.index(first)
        shown = [*rows[max(0, at - 2) : at], *shown][:_SHOWN]
    return shown


def _is_of(row: dict[str, Any], module: Any) -> bool:
    return bool(module) and str(row.get("name")).rpartition(".")[0] == module


def _range(row: dict[str, Any]) -> str:
    ends = [each if isinstance(each, int | float) else None for each in (row.get("min"), row.get("max"))]
    has_range = None not in ends
    finite = say(
        "finite values from {low:.6g} to {high:.6g}" if has_range else "no finite value",
        **({"low": ends[0], "high": ends[1]} if has_range else {}),
    )
    nan, inf = _number(row.get("nan")), _number(row.get("inf"))
    if nan or inf:
        finite = say("{finite}, {nan:,} NaN and {inf:,} infinite", finite=finite, nan=nan, inf=inf)
    return f"{finite} ({row.get('dtype')}, {row.get('shape')})"


def _number(value: Any) -> int:
    """`value` if it is an integer, else 0: a dump may come from an untrusted source."""
    return value if type(value) is int else 0
