"""The picture that `ascendtune devices --topology` prints."""

from __future__ import annotations

from collections.abc import Mapping

from ascendtune.cli.terminal import table
from ascendtune.machine.npu.topology import LINKS, Topology, cores_of


def picture(topology: Topology, numa_nodes: Mapping[str, str]) -> str:
    """The matrix of links, the cores and NUMA nodes near each NPU, and what the links mean.

    Args:
        numa_nodes: node -> its cores, as the host says.
    """
    rows = [[f"NPU{npu}", *(_way(topology, npu, other) for other in topology.npus)] for npu in topology.npus]
    matrix = table(["", *(f"NPU{npu}" for npu in topology.npus)], rows)
    near = [f"NPU{npu}: {_near(topology.cores[npu], numa_nodes)}" for npu in topology.npus if npu in topology.cores]
    used = set(topology.links.values())
    meanings = [
        f"{link}: {LINKS.get(link, 'a link that npu-smi does not explain')}" for link in sorted(used, key=_rank)
    ]
    return "\n".join([matrix, "", *near, "", *meanings])


def _way(topology: Topology, npu: int, other: int) -> str:
    return "X" if npu == other else topology.links.get((npu, other), "-")


def _near(cores: str, numa_nodes: Mapping[str, str]) -> str:
    near = cores_of(cores)
    nodes = [node for node, its_cores in numa_nodes.items() if near & cores_of(its_cores)]
    return f"cores {cores}" + (f", NUMA node {', '.join(nodes)}" if nodes else "")


def _rank(link: str) -> int:
    names = list(LINKS)
    return names.index(link) if link in names else len(names)
