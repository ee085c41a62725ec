"""Four simulated Ascend nodes, one of which was installed on another day."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ascend_node.node import Cann, Node
from ascend_node.scenarios import HEALTHY, SCENARIOS
from ascend_node.system import system_of
from ascendtune.check.doctor.check import examine, trains_on, verdict
from ascendtune.check.nodes.compare import compare_nodes
from ascendtune.check.nodes.compared_facts import facts, mtu_towards
from ascendtune.check.nodes.node_report import Clock, NodeReport


def _look(node: Node, root: Path, **env: str) -> NodeReport:
    """As the agent answers."""
    system = system_of(node, root, **env)
    examination = examine(system, ["versions", "health", "driver_firmware"])
    said = verdict(examination, system), trains_on(system)
    told = {name: value for name, value in facts(system) if name != "working directory"}
    return NodeReport(*said, examination.findings, examination.not_applicable, told, Clock(0, 0.001))


def test_facts_of_a_healthy_server_are_listed(tmp_path: Path) -> None:
    told = _look(HEALTHY, tmp_path, HCCL_BUFFSIZE="400", HCCL_IF_IP="10.0.0.1", HF_TOKEN="s").facts
    expected = {
        "torch": "2.6.0",
        "torch_npu": "2.6.0",
        "transformers": "5.2.0",
        "CANN": "8.2.RC1",
        "driver": "25.2.0",
        "firmware": "7.7.0.6.236",
        "NPUs": "8 x 910B4 with 32.0 GiB",
        "memory": "1024 GiB",
        "open files": "65536",
        "HCCL_BUFFSIZE": "400",
    }
    assert told.items() >= expected.items()
    assert not {"HCCL_IF_IP", "HF_TOKEN", "peft", "GPUs"} & told.keys()


def test_a_cann_that_is_not_loaded_and_cards_that_npu_smi_does_not_name(tmp_path: Path) -> None:
    assert _look(SCENARIOS["cann-not-loaded"], tmp_path / "a").facts["CANN"] == "8.2.RC1 (not loaded)"
    assert _look(SCENARIOS["npu-smi-absent"], tmp_path / "b").facts["NPUs"] == "8, which npu-smi does not name"


def test_the_node_that_was_installed_on_another_day(tmp_path: Path) -> None:
    packages = {**HEALTHY.packages, "torch-npu": "2.6.0.post3"}
    other = replace(
        HEALTHY,
        packages=packages,
        cann=(Cann("8.3.RC1"),),
        driver="24.1.rc1",
        firmware="7.5.0.1.129",
        env={"HCCL_BUFFSIZE": "400"},
    )
    nodes = {"node1": HEALTHY, "node2": HEALTHY, "node3": other, "node4": HEALTHY}
    comparison = compare_nodes({name: _look(node, tmp_path / name) for name, node in nodes.items()})
    assert {each.name for each in comparison.differences if each.is_fact} == {
        "torch_npu",
        "CANN",
        "driver",
        "firmware",
        "HCCL_BUFFSIZE",
    }
    assert {each.groups[0].hosts for each in comparison.differences} == {("node3",)}
    assert comparison.differences[0].in_words() == ("node3 differs: torch_npu 2.6.0.post3 there, 2.6.0 on the other 3")


def test_mtu_is_that_of_the_interface_towards_the_peer(tmp_path: Path) -> None:
    system = system_of(HEALTHY, tmp_path)
    assert mtu_towards(system, "127.0.0.1") is None, "nothing is known of an interface without a file"
    (tmp_path / "sys/class/net/lo").mkdir(parents=True)
    (tmp_path / "sys/class/net/lo/mtu").write_text("65536\n")
    assert mtu_towards(system, "127.0.0.1") == "65536"
    assert mtu_towards(system, "no.such.host.invalid") is None
