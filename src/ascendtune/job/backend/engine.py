"""The engines: what each writes, what hands it over, and whether it is there and large enough."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core import process
from ascendtune.core.errors import MachineError
from ascendtune.job.backend.submission import Submission
from ascendtune.machine.visible import VARIABLES, attached

_SUBMIT_SECONDS = 1800
"""An image may have to be pulled."""


@dataclass(frozen=True)
class Engine:
    """One value of `--to`."""

    program: str
    suffix: str
    """Of the file that is written."""
    submit: tuple[str, ...]
    """The command that hands the file over; `{}` is its path."""
    largest_node: Callable[[Submission], int | None]
    """How many of the devices that are asked for its largest node has; None where it does not say."""
    is_this_machine: bool = False
    """Whether it runs things here, in containers of this machine."""

    def require(self, submission: Submission) -> None:
        """Raise unless the engine can be asked for `submission`.

        Raises:
            MachineError: the program is missing, or no node has that many devices.
        """
        if shutil.which(self.program) is None:
            raise MachineError(
                f"{self.program} is not installed here",
                remedy="run this where it is, or leave --apply out: then the file is only written",
            )
        there = self.largest_node(submission)
        if submission.kind == "cpu" or there is None or there >= submission.devices:
            return
        noun = submission.needs.noun
        if there == 0:
            what, remedy = f"no {noun} is there", "choose another --accelerator, or another engine"
        else:
            what = f"{submission.devices} {noun} on one node asked for, {there} at most are there"
            remedy = f"use --devices {there}, and --nodes for more"
        raise MachineError(what, remedy=f"{remedy} ({self._asked(submission)})")

    def hand_over(self, file: Path) -> str:
        """Submit; returns what the engine answers.

        Raises:
            MachineError: the engine refuses; its own words are in the message.
        """
        argv = [str(file) if word == "{}" else word for word in self.submit]
        done = process.run(argv, timeout_seconds=_SUBMIT_SECONDS)
        if done.exit_code != 0:
            said = " ".join((done.error or done.output).split())
            raise MachineError(
                f"{self.program} refuses: {said}", remedy="mend what it names, and submit again", where=file
            )
        return done.output.strip()

    def _asked(self, submission: Submission) -> str:
        if self.is_this_machine:
            return f"seen in /dev and {VARIABLES[submission.kind]}"
        return f"{self.program} says so"


def _here(submission: Submission) -> int:
    return len(attached(submission.kind))


def _of_slurm(submission: Submission) -> int | None:
    """The largest count of the gres in `sinfo`'s lines: "gpu:a100:8(S:0-1),npu:4"."""
    asked = process.run(["sinfo", "--noheader", "--format=%G"])
    # A site may call its devices otherwise, and the user then says so.
    if asked.exit_code != 0 or any("--gres" in option for option in submission.sbatch):
        return None
    counts = re.findall(rf"\b{submission.needs.gres}(?::[^:,(\s]+)?:(\d+)", asked.output)
    return max(map(int, counts), default=0)


def _of_kubernetes(submission: Submission) -> int | None:
    """The largest allocatable count among the nodes; many users may not list nodes."""
    asked = process.run(["kubectl", "get", "nodes", "--output=json"])
    if asked.exit_code != 0:
        return None
    nodes = json.loads(asked.output)["items"]
    counts = [node["status"].get("allocatable", {}).get(submission.needs.resource, 0) for node in nodes]
    return max(map(int, counts), default=0)


ENGINES = {
    "docker": Engine("docker", "docker.sh", ("bash", "{}"), _here, is_this_machine=True),
    "compose": Engine(
        "docker",
        "compose.yaml",
        ("docker", "compose", "--file", "{}", "up", "--detach"),
        _here,
        is_this_machine=True,
    ),
    "slurm": Engine("sbatch", "sbatch", ("sbatch", "{}"), _of_slurm),
    "kubernetes": Engine("kubectl", "kubernetes.yaml", ("kubectl", "apply", "--filename", "{}"), _of_kubernetes),
}
