"""Whether the nodes of `--nodes` have the same versions, devices, variables and limits."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok
from ascendtune.check.nodes.compare import compare
from ascendtune.core.units import count_of

CODE = "nodes_alike"


def _look(outside: Outside) -> Iterator[Finding]:
    if outside.nodes is None or len(outside.nodes.answers) < 2:
        return
    comparison = compare(outside.nodes.answers)
    differences = [each for each in comparison.differences if each.is_fact]
    for each in differences:
        required = each.status == "failure"
        yield Finding(
            CODE,
            each.status,
            each.in_words(),
            expected="the same on every node; a job with --nodes refuses to start" if required else None,
            remedy="install the same version on every node" if required else "make it the same, or know why it is not",
        )
    if not differences:
        yield ok(CODE, f"{count_of(comparison.equal_facts, 'fact')} are the same")


CHECK = Check(
    CODE,
    what="Compares what the nodes of `--nodes` say of themselves: versions (Python, packages, driver, firmware, CANN, "
    "kernel), number and names of devices, HCCL_*, GLOO_* and NCCL_* variables, limits, memory, MTU of the way to the "
    "first node.",
    why="Nodes that differ start together and part later: another torch computes other losses, another CANN or "
    "time-out ends in an HCCL error on the node that is right, a smaller MTU passes small messages and loses "
    "large ones. A job with `--nodes` refuses nodes whose Python, torch, torch_npu, transformers, deepspeed or "
    "ascendtune differ; that is a failure here, the rest is a warning.",
    fix="Install from the same image or the same lock file. Variables are those that a job would have: what you "
    "have set here goes before what the node's own shell sets. MTU: `ip link set IFACE mtu N` on the odd one, "
    "and the same on the switch.",
    look=_look,
)
