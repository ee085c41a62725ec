"""The engines: the file that each reads, how it is submitted, and whether the engine exists and is large enough."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core import process
from ascendtune.core.errors import InputError, MachineError
from ascendtune.job.backend.submission import Submission
from ascendtune.machine.visible import attached

_SUBMIT_SECONDS = 1800
"""An image may have to be pulled first."""


@dataclass(frozen=True)
class JobEngine:
    """One value of `--to`."""

    program: str
    """Its name in messages."""
    probe: tuple[str, ...]
    """A command that succeeds if the engine can be used."""
    suffix: str
    """Suffix of the generated file."""
    submit: tuple[str, ...]
    """The command that submits the file; `{}` is its path."""
    largest_node: Callable[[Submission], int | None]
    """Number of devices, of the requested kind, of its largest node; None if it cannot be determined."""
    is_this_machine: bool = False
    """Whether it runs containers on this machine."""

    def require(self, submission: Submission) -> None:
        """Raise unless the engine can run `submission`.

        Raises:
            InputError: NODE_RANK and MASTER_ADDR are not set.
            MachineError: the program is missing, or no node has that many devices.
        """
        if self.is_this_machine and submission.nodes > 1 and not {"NODE_RANK", "MASTER_ADDR"} <= os.environ.keys():
            raise InputError(
                f"the job has {submission.nodes} nodes, and NODE_RANK and MASTER_ADDR are not set",
                code="node-variable-missing",
                remedy="set NODE_RANK (0, 1, …) and MASTER_ADDR (the address of node 0), on every node",
            )
        probed = process.run(self.probe)
        if probed.exit_code != 0:
            missing = probed.exit_code == 127
            what = "is not installed here" if missing else f"cannot be used: {_output_of(probed)}"
            remedy = "run this where it can be used, or leave --apply out: then the file is only written"
            raise MachineError(f"{self.program} {what}", code="engine-unavailable", remedy=remedy)
        largest = self.largest_node(submission) if submission.vendor.is_accelerator else None
        if largest is None or largest >= submission.devices:
            return
        noun = submission.vendor.noun
        if largest == 0:
            what, remedy = f"there is no {noun}", "choose another --accelerator, or another engine"
        else:
            what = f"{submission.devices} {noun} on one node requested, at most {largest} available"
            remedy = f"use --devices {largest}, and --nodes for more"
        raise MachineError(what, code="too-few-devices", remedy=f"{remedy} ({self._source(submission)})")

    def hand_over(self, file: Path) -> str:
        """Submit; returns the engine's answer.

        Raises:
            MachineError: the engine refuses; the message contains its reason.
        """
        argv = [str(file) if word == "{}" else word for word in self.submit]
        done = process.run(argv, timeout_seconds=_SUBMIT_SECONDS)
        if done.exit_code != 0:
            raise MachineError(
                f"{self.program} refuses: {_output_of(done)}",
                code="engine-refused",
                remedy="correct the reported fault, and submit again",
                where=file,
            )
        return done.output.strip()

    def _source(self, submission: Submission) -> str:
        if self.is_this_machine:
            return f"seen in /dev and {submission.vendor.visible_variable}"
        return f"{self.program} says so"


def _output_of(done: process.Finished) -> str:
    return " ".join((done.error or done.output).split())


def _on_this_machine(submission: Submission) -> int:
    return len(attached(submission.vendor))


def _of_slurm(submission: Submission) -> int | None:
    """The largest count of the gres in `sinfo`'s lines: "gpu:a100:8(S:0-1),npu:4"."""
    answer = process.run(["sinfo", "--noheader", "--format=%G"])
    # A site may use other names for its devices, which the user then sets.
    if answer.exit_code != 0 or any("--gres" in option for option in submission.sbatch):
        return None
    # A node may have several types of one gres; a job that names no type gets any of them.
    pattern = re.compile(rf"\b{submission.needs.gres}(?::[^:,(\s]+)?:(\d+)")
    return max((sum(map(int, pattern.findall(node))) for node in answer.output.splitlines()), default=0)


def _of_kubernetes(submission: Submission) -> int | None:
    """The largest allocatable count among the nodes; None if the user may not list nodes."""
    answer = process.run(["kubectl", "get", "nodes", "--output=json"])
    if answer.exit_code != 0:
        return None
    nodes = json.loads(answer.output)["items"]
    counts = [node["status"].get("allocatable", {}).get(submission.needs.resource, 0) for node in nodes]
    return max(map(int, counts), default=0)


ENGINES = {
    "docker": JobEngine(
        program="docker",
        probe=("docker", "version"),
        suffix="docker.sh",
        submit=("bash", "{}"),
        largest_node=_on_this_machine,
        is_this_machine=True,
    ),
    "compose": JobEngine(
        program="docker compose",
        probe=("docker", "compose", "version"),
        suffix="compose.yaml",
        submit=("docker", "compose", "--file", "{}", "up", "--detach"),
        largest_node=_on_this_machine,
        is_this_machine=True,
    ),
    "slurm": JobEngine(
        program="sbatch",
        probe=("sbatch", "--version"),
        suffix="sbatch",
        submit=("sbatch", "{}"),
        largest_node=_of_slurm,
    ),
    "kubernetes": JobEngine(
        program="kubectl",
        probe=("kubectl", "version", "--request-timeout=10s"),
        suffix="kubernetes.yaml",
        submit=("kubectl", "apply", "--filename", "{}"),
        largest_node=_of_kubernetes,
    ),
}
