"""`--detach`: the terminal is given back, and told how to go on from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascendtune.job.spec import JobSpec


def stays_with_the_terminal(spec: JobSpec) -> bool:
    """Divide this process in two: True in the one that keeps the terminal, once the other has begun with the job."""
    from ascendtune.job.detach import detach

    job = detach(spec)
    if job is None:
        return False
    print(f"{job.id} runs in the background")
    print(f"directory: {job.run_dir}")
    print(f"   follow: ascendtune jobs logs -f {job.id}")
    print(f"     stop: ascendtune jobs stop {job.id}")
    return True
