"""A host's own record of a job that another one's command has started: `jobs list|show|stop` know it there, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ascendtune.core.errors import MachineError
from ascendtune.core.log import warn
from ascendtune.job import registry
from ascendtune.job.spec import JobSpec


@contextmanager
def joined(spec: JobSpec, hosts: Sequence[str], started_from: str) -> Iterator[Callable[[int], None]]:
    """Note that this process has a part of the job, and how that ended; takes the exit code when there is one.

    Where the registry has the job from whoever started it (on this machine, or in a home that hosts share), and where
    nothing can be noted, the job goes on without.
    """
    known = [job for job in registry.jobs() if job.id == spec.id]
    if any(job.started_from is None for job in known):
        yield lambda exit_code: None
        return
    try:
        job = registry.register(spec, spec.argv, watched=True, hosts=hosts, started_from=started_from)
    except MachineError as error:
        warn(f"`ascendtune jobs` will not know the job on this host: {error.what}")
        yield lambda exit_code: None
        return
    with registry.closing(job) as ended_with:
        yield ended_with
