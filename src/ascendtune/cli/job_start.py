"""Starting a job for `train` and `launch`: `--dry-run` prints the command, `--detach` runs it in the background."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from ascendtune.core.mask import command_without_secrets
from ascendtune.job.command import command
from ascendtune.job.environment import local_environment

if TYPE_CHECKING:
    from ascendtune.cli.node_choice import ChosenNodes
    from ascendtune.job.spec import JobSpec


def show_command(spec: JobSpec, nodes: ChosenNodes) -> None:
    """Print a command line of this machine's part: variables that are not set yet, then the program; no secrets.

    Hosts on which we would start it are not queried; they add the interface of the route to the first of them.
    """
    given = local_environment(spec, os.environ, nodes.place)
    new = {name: value for name, value in given.items() if os.environ.get(name) != value}
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(new.items())]
    if nodes.hosts is not None:
        names = ", ".join(host.name for host in nodes.hosts.hosts)
        print(f"# on {names}, over ssh, when all have answered and agree on versions and the run directory")
    for word in words:
        print(f"{word} \\")
    print(shlex.join(command_without_secrets(command(spec, os.environ, nodes.place))))


def fork_into_background(spec: JobSpec) -> bool:
    """Fork into the background: True in the process that keeps the terminal, once the other has begun with the job."""
    from ascendtune.job.detach import detach

    job = detach(spec)
    if job is None:
        return False
    print(f"{job.id} runs in the background")
    print(f"directory: {job.run_dir}")
    print(f"   follow: ascendtune jobs logs -f {job.id}")
    print(f"     stop: ascendtune jobs stop {job.id}")
    return True
