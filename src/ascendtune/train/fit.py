"""Training as a function call. Free of torch until it is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.ownership import restricted_umask
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe


@dataclass(frozen=True)
class FitResult:
    """A finished run."""

    run: RunDir
    steps: int
    loss: float | None
    """Loss of the last recorded step; None when it was not a number."""
    best_evaluation_loss: float | None
    model: Path
    """Final weights in Hugging Face format; an adapter when the tuner is lora."""


def fit(recipe: Recipe, *, allow_change: Sequence[str] = (), trust_checkpoint: bool = False) -> FitResult:
    """Train in this process, on one device; several devices need `ascendtune train` or torchrun.

    Args:
        allow_change: recipe keys that may differ from the run that is resumed.
        trust_checkpoint: see `checkpoint.resume` with a path.

    Raises:
        AscendtuneError: as the command line would report it; `exit_code` is the one it would return.
    """
    # Imported here: checking a recipe takes neither Arrow nor torch.
    from ascendtune.train.prepare import prepare_run

    with restricted_umask():
        start = prepare_run(recipe, {}, allow_change=allow_change, trust_checkpoint=trust_checkpoint)
        assert start.run is not None and start.claim is not None
        with start.claim:
            from ascendtune.train.attempt import train

            train(start.run)
    last = list(start.run.read_metrics())[-1]
    evaluations = [record["loss"] for record in start.run.read_evaluations() if record["loss"] is not None]
    return FitResult(
        run=start.run,
        steps=last["step"],
        loss=last["loss"],
        best_evaluation_loss=min(evaluations, default=None),
        model=start.run.model,
    )
