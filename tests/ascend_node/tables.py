"""npu-smi's tables in the layouts of the recorded transcripts (910B4 with driver 25.2.0, A3 with 24.1.rc3.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascend_node.node import Node

_LINE = "+" + "-" * 96 + "+"
_PARTS = "+" + "-" * 27 + "+" + "-" * 15 + "+" + "-" * 52 + "+"
_DOUBLE = _PARTS.replace("-", "=")


def info_table(node: Node) -> str:
    """`npu-smi info`."""
    return "\n".join([*_head(node), *_chips(node), *_processes(node)]) + "\n"


def mapping_table(node: Node) -> str:
    """`npu-smi info -m`."""
    header = f"\t{'NPU ID':<31}{'Chip ID':<31}{'Chip Logic ID':<31}Chip Name"
    rows = [
        f"\t{index // node.chips_per_card:<31}{index % node.chips_per_card:<31}{index:<31}Ascend {node.name}"
        for index in range(len(node.chips))
    ]
    return "\n".join([header, *rows]) + "\n"


def _head(node: Node) -> list[str]:
    chip = "Chip  Phy-ID" if node.chips_per_card > 1 else "Chip"
    return [
        _LINE,
        f"| {'npu-smi ' + node.driver:<33}{'Version: ' + node.driver:<62}|",
        _PARTS,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        f"| {chip:<26}| Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        _DOUBLE,
    ]


def _chips(node: Node) -> Iterator[str]:
    for index, chip in enumerate(node.chips):
        card, die = divmod(index, node.chips_per_card)
        phy = f"{die:<6}{index}" if node.chips_per_card > 1 else f"{die}"
        used = f"{chip.memory_used_megabytes} / {node.memory_total_megabytes}"
        yield f"| {card:<6}{node.name:<20}| {chip.health:<14}| {'84.7':<12}{'38':<18}{'0    / 0':<21}|"
        yield f"| {phy:<26}| 0000:{index + 1:02X}:00.0  | {'0':<12}{'0    / 0':<18}{used:<21}|"
        yield _DOUBLE


def _processes(node: Node) -> Iterator[str]:
    yield _PARTS
    yield "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
    yield _DOUBLE
    for index, chip in enumerate(node.chips):
        card, die = divmod(index, node.chips_per_card)
        for each in chip.processes:
            yield f"| {card:<8}{die:<18}| {each.pid:<14}| {each.name:<25}| {each.memory_megabytes:<24}|"
        if not chip.processes:
            yield f"| {'No running processes found in NPU ' + str(card):<95}|"
        yield _DOUBLE
