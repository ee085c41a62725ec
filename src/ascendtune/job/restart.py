"""A job that fails is started again, as often as was allowed; the workers go on from the newest complete checkpoint.

Not torchrun's own restarts: its agents start workers again where they stand, beside whatever of the old ones still
hangs in a collective, and wait for nodes that are gone. Here an attempt has ended everywhere before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable

from ascendtune.core.log import say, warn
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of
from ascendtune.job.outcome import Outcome, record_of
from ascendtune.job.spec import JobSpec


def with_restarts(spec: JobSpec, attempt: Callable[[], Outcome], *, may_go_on: Callable[[], bool]) -> Outcome:
    """The outcome of the last attempt.

    Args:
        may_go_on: asked before another attempt; a user who wants to stop has the last word.
    """
    told: tuple[str, int] | None = None
    for left in range(spec.max_restarts, -1, -1):
        result = attempt()
        if not (left and result.is_failure and may_go_on()):
            break
        step = _newest_step(spec)
        if result.cause is not None and (result.cause, step) == told:
            warn("the same failure came again without a checkpoint in between: it is not tried a third time")
            break
        told = (result.cause, step) if result.cause is not None else None
        what = f" ({result.error.what})" if result.error else ""
        say(
            f"the attempt failed{what}; going on from {f'step {step}' if step else 'the beginning'}, "
            f"{count_of(left - 1, 'restart')} left"
        )
    return result


def _newest_step(spec: JobSpec) -> int:
    steps = RunDir(spec.run_dir).checkpoint_steps() if record_of(spec.run_dir) else []
    return steps[-1] if steps else 0
