"""The cells of a benchmark: the trainings that are compared, and the measurements of each. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any, Literal

from ascendtune.check.bench.language import say
from ascendtune.core.errors import MachineError
from ascendtune.core.foreign_json import is_number

RECIPE_STRATEGY = "recipe"
"""Used in place of a strategy's name for the recipe's own strategy."""
Comparison = Literal["equal batch per device", "equal global batch"]
COMPARISONS: tuple[Comparison, ...] = ("equal batch per device", "equal global batch")
_MOST = 1e18


@dataclass(frozen=True)
class Cell:
    """One training of the recipe."""

    strategy: str
    devices: int
    per_device: int
    """Sequences of a micro-batch."""
    accumulate: int

    @property
    def name(self) -> str:
        return f"{self.strategy}-{self.devices}x{self.per_device}x{self.accumulate}"

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.devices * self.per_device * self.accumulate


@dataclass(frozen=True)
class Repeat:
    """Measurements of one training of a cell. None: not reported on this device."""

    run: str
    """The run directory."""
    tokens_per_second: float
    """Of all ranks: tokens of the measured steps divided by their seconds."""
    median_tokens_per_second: float
    """Of all ranks: the median over the recorded steps."""
    memory_peak_bytes: int | None
    """Peak of the main rank's tensors; on CPU its resident set."""
    memory_used_bytes: int | None = None
    """Maximum that the vendor's tool reported for one device."""
    utilization_ratio: float | None = None
    """Mean over samples and devices, from the vendor's tool."""
    power_watts: float | None = None
    """Mean over samples of the sum over devices, from the vendor's tool."""
    strategy: str | None = None
    """Strategy chosen by the run."""


@dataclass
class CellResult:
    """A cell with the repeats measured so far."""

    cell: Cell
    repeats: list[Repeat] = field(default_factory=list)
    failure: str | None = None
    """The run's message on why it could not be trained."""

    @property
    def directory(self) -> str | None:
        """Run directory of its first training, which has the profiles of all ranks."""
        return self.repeats[0].run if self.repeats else None

    @property
    def rate(self) -> float | None:
        """Tokens per second of all ranks: the median over repeats."""
        return median(each.tokens_per_second for each in self.repeats) if self.repeats else None

    @property
    def mean_rate(self) -> float | None:
        return mean(each.tokens_per_second for each in self.repeats) if self.repeats else None

    @property
    def spread(self) -> float | None:
        """(fastest - slowest) / median over repeats; None with fewer than two."""
        rates = [each.tokens_per_second for each in self.repeats]
        return (max(rates) - min(rates)) / median(rates) if len(rates) > 1 else None

    def memory_bytes(self) -> int | None:
        """The maximum memory of one device, as reported by the vendor's tool, else as recorded by the run."""
        used = [each.memory_used_bytes or each.memory_peak_bytes for each in self.repeats]
        return max((each for each in used if each is not None), default=None)

    def average(self, name: Literal["utilization_ratio", "power_watts"]) -> float | None:
        values = [value for each in self.repeats if (value := getattr(each, name)) is not None]
        return mean(values) if values else None

    def as_plain(self) -> dict[str, Any]:
        return {"name": self.cell.name, **asdict(self)}

    @classmethod
    def of(cls, values: Any) -> CellResult:
        """A cell from the result of `as_plain`.

        Raises:
            MachineError: the values do not have this form.
        """
        try:
            cell, repeats, failure = values["cell"], values["repeats"], values["failure"]
            result = cls(
                Cell(str(cell["strategy"]), *(_count(cell[name]) for name in ("devices", "per_device", "accumulate"))),
                [_repeat(each) for each in repeats],
                None if failure is None else str(failure),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise MachineError(
                f"bench.json is damaged: {error}",
                code="record-damaged",
                remedy="remove it: the cells are measured again; or give another --output",
            ) from error
        return result


def cells_of(
    *, devices: Sequence[int], strategies: Sequence[str], per_device: int, accumulate: int
) -> tuple[list[Cell], list[str]]:
    """The cells for both comparisons, and notes on those that are left out, in the current language.

    At an equal batch per device every training accumulates as in the recipe. At an equal global batch all trainings
    have the recipe's global batch on the largest number of devices, and fewer devices accumulate more. One device needs
    no strategy: it is trained once, with the recipe's.

    Args:
        devices: numbers of devices in ascending order.
        strategies: names for more than one device; empty: the recipe's.
    """
    cells: dict[Cell, None] = {}
    notes = []
    most = devices[-1]
    for count in devices:
        times = [accumulate]
        if accumulate * most % count == 0:
            times.append(accumulate * most // count)
        else:
            notes.append(
                say("{count} devices have no equal global batch: {all} sequences cannot be divided into whole "
                    "micro-batches of {size}",
                    count=count, all=accumulate * most * per_device, size=per_device)
            )  # fmt: skip
        for strategy in strategies if strategies and count > 1 else (RECIPE_STRATEGY,):
            cells.update(dict.fromkeys(Cell(strategy, count, per_device, each) for each in times))
    return list(cells), notes


def _count(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 1 << 31:
        raise ValueError("a count is not a whole number above 0")
    return value


def _repeat(values: dict[str, Any]) -> Repeat:
    names = ("tokens_per_second", "median_tokens_per_second", "memory_peak_bytes", "memory_used_bytes",
             "utilization_ratio", "power_watts")  # fmt: skip
    for name in names:
        if not (is_number(values[name], 0, _MOST) or (values[name] is None and not name.endswith("per_second"))):
            raise ValueError(f"{name} is not a number")
    strategy = values["strategy"]
    return Repeat(
        str(values["run"]), **{name: values[name] for name in names},
        strategy=None if strategy is None else str(strategy),
    )  # fmt: skip
