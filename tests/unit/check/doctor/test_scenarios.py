"""Every check has a machine on which it fails and one on which it passes."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_node.node import Cann, Chip, Node
from ascend_node.scenarios import HEALTHY, SCENARIOS
from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS, npu_ports
from ascendtune.check.doctor.check import examine, verdict
from ascendtune.check.doctor.required_versions import known_combinations
from ascendtune.check.doctor.system import Interface, System
from ascendtune.check.finding import Finding
from ascendtune.check.table import as_text
from ascendtune.core.process import Finished
from ascendtune.machine.inventory import Accelerator

Lay = Callable[..., System]
GIB = 1 << 30

FAILING: list[tuple[str, str, str, str]] = [
    # check, machine, status, what is said
    ("accelerators", "driver-not-loaded", "failure", "8 NPUs on the PCI bus, but no /dev/davinci"),
    ("accelerators", "no-torch-npu", "failure", "torch_npu is not installed"),
    ("device_nodes", "node-missing", "failure", "not hisi_hdc"),
    ("npu_smi", "container-without-dcmi", "warning", "not a sign of a broken card"),
    ("npu_smi", "npu-smi-absent", "unknown", "training does not need it"),
    ("npu_smi", "card-missing", "warning", "lists 8 chips, /dev has 7"),
    ("health", "card-alarmed", "failure", "NPU 7 reports Alarm, error code 80E01801"),
    ("cann", "cann-absent", "failure", "no CANN toolkit"),
    ("cann", "cann-not-loaded", "failure", "not loaded in this shell"),
    ("cann", "cann-without-kernels", "failure", "no compiled operators"),
    ("cann", "cann-kernels-of-an-a3", "failure", "for ascend910_93, not for the chips of this machine (910B4)"),
    ("versions", "driver-too-old", "failure", "driver 23.0.3 is too old for CANN 8.1.RC1"),
    ("versions", "torch-differs", "failure", "torch_npu 2.6.0 does not work with torch 2.7.1"),
    ("versions", "interface-too-old", "failure", "(ascendhal) is 3.9.0, CANN 8.2.RC1 needs 4.0.0"),
    ("cann", "nnal-differs", "warning", "nnal (ATB) 8.0.0 is installed beside CANN 8.2.RC1"),
    ("device_memory", "opened-without-npu-smi", "warning", "1 process has a card open"),
    ("libraries", "library-missing", "failure", "libhccl.so, libascend_hal.so not found"),
    ("container", "container-without-driver", "failure", "driver/lib64 does not exist"),
    ("container", "container-privileged", "warning", "--privileged"),
    ("driver_firmware", "firmware-differs", "failure", "neither lists the other as compatible"),
    ("driver_firmware", "container-without-driver", "unknown", "check on the host"),
    ("device_memory", "leftover-process", "warning", "processes hold memory on NPU 0"),
    ("device_memory", "used-by-nobody", "warning", "memory of NPU 0 is used, but no visible process holds it"),
    ("npu_network", "link-down", "warning", "the link of NPU 0 is DOWN"),
    ("npu_network", "link-unstable", "warning", "the link of NPU 0 went down 7 times since the card started, others 1"),
    ("npu_network", "tls-differs", "failure", "TLS is on for NPU 0"),
    ("npu_network", "address-twice", "failure", "NPU 0, 7 share the address 10.20.0.17"),
    ("npu_network", "address-lost", "warning", "NPU 0, 1 have no network address, although /etc/hccn.conf has some"),
    ("npu_network", "address-other-than-kept", "warning", "/etc/hccn.conf has another address than NPU 0"),
    ("npu_network", "udp-source-differs", "warning", "UDP source port is set in 2 ways: auto for NPU 1, 2, 3, 4"),
    ("npu_network", "udp-source-fixed", "ok", "UDP source ports fixed (4791)"),
    ("npu_network", "container-without-driver", "unknown", "hccn_tool was not found"),
    ("memory_limit", "memory-limited", "warning", "8.0 GiB of host memory"),
    ("cpu_governor", "saves-power", "warning", "4 of 4 cores save power"),
    ("numa", "cores-of-one-socket", "warning", "no core of the NUMA node of NPU 1, NPU 3, NPU 5, NPU 7"),
    ("numa", "cores-of-the-cards", "ok", "devices on NUMA node 0; this process may run"),
    ("numa", "npu-smi-absent", "unknown", "the NUMA nodes of the devices are unknown"),
    ("hugepages", "hugepages-reserved", "warning", "200.0 GiB of host memory are reserved as huge pages, 200.0 GiB of"),
    ("combinations", "peft-too-old", "warning", "transformers 5.2.0 with peft 0.17.1: importing PEFT ends with"),
    ("container", "container-healthy", "ok", "without CAP_SYS_PTRACE"),
]


def _answers(system: System, code: str) -> list[Finding]:
    return list(examine(system, [code]).findings)


@pytest.mark.parametrize(("code", "machine", "status", "said"), FAILING, ids=lambda value: str(value)[:24])
def test_planted_fault_of_a_machine_is_found(lay: Lay, code: str, machine: str, status: str, said: str) -> None:
    found = _answers(lay(machine), code)
    assert any(each.status == status and said in each.measured for each in found), found
    assert all(each.code == code for each in found)


@pytest.mark.parametrize(
    ("machine", "container", "remedy"),
    [
        ("address-lost", False, "sudo hccn_tool -a -cfg recovery"),
        ("address-lost", True, "on the host: sudo hccn_tool -a -cfg recovery"),
        (
            "address-other-than-kept",
            False,
            "sudo hccn_tool -i 0 -ip -s address 10.20.0.10 netmask 255.255.255.0",
        ),
        ("tls-differs", True, "on the host: for i in 0 1 2 3 4 5 6 7; do sudo hccn_tool -i $i -tls -s enable 0; done"),
    ],
)
def test_settings_of_ports_are_repaired_on_the_host(lay: Lay, machine: str, container: bool, remedy: str) -> None:
    (found,) = _answers(lay(replace(SCENARIOS[machine], container=container)), "npu_network")
    assert found.remedy == remedy


def test_ports_that_the_tool_cannot_read_are_unknown_with_its_words(lay: Lay) -> None:
    (found,) = _answers(lay("without-network"), "npu_network")
    assert found.status == "unknown" and "Error parameter of -t" in found.measured


@pytest.mark.parametrize(("health", "status"), [("Unreachable", "warning"), ("Detect ip set", "ok"), ("Init", "ok")])
def test_a_probe_address_that_was_not_tested_yet_is_no_fault(lay: Lay, health: str, status: str) -> None:
    chips = tuple(replace(chip, network_health=health) for chip in HEALTHY.chips)
    (found,) = _answers(lay(replace(HEALTHY, chips=chips)), "npu_network")
    assert found.status == status


@pytest.mark.parametrize(
    ("machine", "remedy"),
    [
        ("cann-not-loaded", "source {}/ascend-toolkit/set_env.sh"),
        ("cann-8.5-not-loaded", "source {}/cann-8.5.0/set_env.sh"),
        ("cann-without-kernels", "install Ascend-cann-kernels-910b 8.2.RC1"),
        ("cann-kernels-of-an-a3", "install Ascend-cann-910b-ops 8.5.0"),
    ],
)
def test_missing_parts_of_cann_have_the_names_of_the_release(lay: Lay, machine: str, remedy: str) -> None:
    system = lay(machine)
    (found,) = _answers(system, "cann")
    script = found.remedy.removeprefix("source ")
    assert found.remedy == remedy.format(system.path("/usr/local/Ascend"))
    assert not script.endswith(".sh") or Path(script).is_file()


@pytest.mark.parametrize("machine", ["healthy-910b4", "healthy-a3", "container-healthy"])
def test_a_healthy_machine_gives_no_warning(lay: Lay, machine: str) -> None:
    system = lay(machine)
    examination = examine(system)
    assert {each.status for each in examination.findings} == {"ok"}, examination.findings
    expected = {"cuda", "container", "shell_files", "recipe", "tracker"} - (
        {"container"} if "container" in machine else set()
    )
    assert set(examination.not_applicable) == expected
    count = len(SCENARIOS[machine].chips)
    assert verdict(examination, system) == f"this machine trains on {count} NPU ({SCENARIOS[machine].name})"


def test_a_look_at_sixteen_dies_costs_little_of_our_own_time(lay: Lay) -> None:
    system = lay("healthy-a3")
    began = time.process_time()
    examine(system)
    assert time.process_time() - began < 2


def test_every_check_has_a_machine_on_which_it_fails() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [code for code in (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS) if f'"{code}"' not in tests] == []


def test_verdict_names_the_worst(lay: Lay) -> None:
    system = lay("driver-too-old")
    assert verdict(examine(system), system) == "this machine cannot train: driver 23.0.3 is too old for CANN 8.1.RC1"


@pytest.mark.long
def test_a_hanging_npu_smi_costs_its_limit_once_and_is_a_failure(lay: Lay) -> None:
    system = lay("npu-smi-hangs")
    system.timeout_seconds = 1.0
    began = time.monotonic()
    examination = examine(system)
    assert time.monotonic() - began < 6
    found = {each.code: each for each in examination.findings}
    assert found["npu_smi"].status == "failure" and "no answer within 1 s" in found["npu_smi"].measured
    assert found["health"].status == found["device_memory"].status == "unknown"


@pytest.mark.long
def test_a_hanging_hccn_tool_is_asked_once(lay: Lay) -> None:
    system = lay("hccn-tool-hangs")
    system.timeout_seconds = 1.0
    began = time.monotonic()
    (found,) = _answers(system, "npu_network")
    assert time.monotonic() - began < 5 and found.status == "unknown"


def test_a_check_that_does_not_return_is_left_behind(lay: Lay) -> None:
    system = lay(HEALTHY)

    def never(path: Path) -> tuple[int, int]:
        time.sleep(120)
        raise AssertionError

    system.space = never
    began = time.monotonic()
    shown: list[list[str]] = []
    found = examine(system, ["disk", "limits"], limit_seconds=2, show=lambda codes: shown.append([*codes])).findings
    assert time.monotonic() - began < 60
    assert ["disk"] in shown
    assert {each.code: each.status for each in found} == {"disk": "unknown", "limits": "ok"}


def test_a_check_with_a_bug_is_unknown(lay: Lay) -> None:
    system = lay(HEALTHY)
    system.limits = None  # type: ignore[assignment]
    (found,) = _answers(system, "limits")
    assert found.status == "unknown" and "the check itself failed" in found.measured


def test_device_nodes_that_may_not_be_opened(lay: Lay) -> None:
    system = lay(HEALTHY)
    system.may_access = lambda path, mode: path.name != "davinci_manager"
    (found,) = _answers(system, "device_nodes")
    assert found.status == "failure" and found.measured.endswith("/dev/davinci_manager")
    assert "HwHiAiUser" in (found.remedy or "")


@pytest.mark.parametrize(
    ("change", "status", "said", "remedy"),
    [
        ({"python": "3.13"}, "failure", "does not support Python 3.13", "torch==2.8.0 torch-npu==2.8.0"),
        (
            {"cann": (Cann("8.3.RC1"),)},
            "warning",
            "built for CANN 8.2.RC1, but CANN 8.3.RC1 is loaded",
            "torch-npu==2.6.0.post3",
        ),
        ({"cann": (Cann("9.0.0"),)}, "warning", "a pair that is not in the vendor's table", "torch-npu==2."),
        ({"driver": "24.1.rc1"}, "warning", "older than the listed versions for CANN 8.2.RC1", "25.2.0"),
    ],
)
def test_versions_that_do_not_fit_are_found_with_a_remedy(
    lay: Lay, change: dict[str, object], status: str, said: str, remedy: str
) -> None:
    found = _answers(lay(replace(HEALTHY, **change)), "versions")
    assert any(each.status == status and said in each.measured and remedy in (each.remedy or "") for each in found), (
        found
    )


def test_torch_npu_that_no_table_lists_is_unknown(lay: Lay) -> None:
    node = replace(HEALTHY, packages={"torch": "2.6.0", "torch-npu": "2.6.0.dev20250101"})
    assert [each.status for each in _answers(lay(node), "versions")] == ["unknown"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/usr/local/Ascend/ascend-toolkit/8.2.RC1/aarch64-linux/devlib", "failure", "stub"),
        (
            "/usr/local/Ascend/ascend-toolkit/8.2.RC1/lib64:/opt/cann-8.5.0/lib64",
            "warning",
            "mixes CANN 8.2.RC1, 8.5.0",
        ),
        ("/usr/local/Ascend/cann-8.5.0/lib64", "warning", "has CANN 8.5.0, ASCEND_HOME_PATH CANN 8.2.RC1"),
        ("/usr/local/Ascend/ascend-toolkit/8.2.RC1.alpha002/lib64", "ok", "every library"),
    ],
)
def test_library_path_with_stubs_or_two_canns_is_found(lay: Lay, path: str, status: str, said: str) -> None:
    found = _answers(lay(HEALTHY, LD_LIBRARY_PATH=path), "libraries")
    assert any(each.status == status and said in each.measured for each in found)


@pytest.mark.parametrize(
    ("value", "status", "sees", "remedy"),
    [
        ("0,1,2,3", "ok", "", None),
        ("1, 2,3", "warning", "sees 1", "1,2,3"),
        ("3,1", "warning", "sees 3", "1,3"),
        ("0,8", "warning", "device 8 does not exist; a process sees 0", "0"),
        ("0,0", "warning", "an id is repeated", "0"),
        ("", "failure", "no NPU at all", "0,1,2,3,4,5,6,7"),
        ("npu:1", "failure", "'npu:1' is not an id", "1"),
        ("0-3", "failure", "'0-3' is not an id", "0,1,2,3"),
        ('"4,5"', "failure", "is not an id", "4,5"),
        ("6，7", "failure", "is not an id", "6,7"),
        ("all", "failure", "is not an id", "0,1,2,3,4,5,6,7"),
    ],
)
def test_invalid_visible_devices_are_found_with_a_value_that_works(
    lay: Lay, value: str, status: str, sees: str, remedy: str | None
) -> None:
    (found,) = _answers(lay(HEALTHY, ASCEND_RT_VISIBLE_DEVICES=value), "visible_devices")
    assert found.status == status and sees in found.measured
    assert remedy is None or found.remedy == f"export ASCEND_RT_VISIBLE_DEVICES={remedy}"


_SHARED = "--device=/dev/davinci_manager --device=/dev/devmm_svm --device=/dev/hisi_hdc"


@pytest.mark.parametrize(
    ("env", "said", "remedy"),
    [
        ({}, "has no /dev/davinci*", f"start the container with --device=/dev/davinci{{0,1,2,3,4,5,6,7}} {_SHARED}"),
        (
            {"ASCEND_VISIBLE_DEVICES": "0-1"},
            "has no /dev/davinci*; Ascend Docker Runtime alone reads ASCEND_VISIBLE_DEVICES=0-1",
            "if `docker info` on the host lists the runtime ascend: --runtime=ascend; else start the container with "
            f"--device=/dev/davinci{{0,1}} {_SHARED}",
        ),
        (
            {"ASCEND_VISIBLE_DEVICES": "5"},
            "ASCEND_VISIBLE_DEVICES=5",
            "if `docker info` on the host lists the runtime ascend: --runtime=ascend; else start the container with "
            f"--device=/dev/davinci5 {_SHARED}",
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
            "has no /dev/davinci*",
            "request cards for this container of the pod: resources.limits huawei.com/Ascend910: 8",
        ),
    ],
)
def test_container_without_cards_is_told_how_to_get_them(lay: Lay, env: dict[str, str], said: str, remedy: str) -> None:
    system = lay("container-without-cards", **env)
    (found,) = _answers(system, "accelerators")
    assert found.measured.endswith(said) and "driver is not loaded" not in found.measured and found.remedy == remedy
    mounts = [each for each in _answers(system, "container") if each.status == "failure"]
    assert "-v /usr/local/Ascend/driver:/usr/local/Ascend/driver" in (mounts[0].remedy or "")


@pytest.mark.parametrize("name", ["ASCEND_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"])
def test_variable_mistaken_for_visible_devices_is_a_warning(lay: Lay, name: str) -> None:
    (found,) = _answers(lay(HEALTHY, **{name: "0,1"}), "visible_devices")
    assert found.status == "warning" and name in found.measured


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("ASCEND_VISIBLE_DEVICES", "0-3", "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3; unset ASCEND_VISIBLE_DEVICES"),
        (
            "ASCEND_VISIBLE_DEVICES",
            "Ascend910-4,7",
            "export ASCEND_RT_VISIBLE_DEVICES=4,7; unset ASCEND_VISIBLE_DEVICES",
        ),
        ("NPU_VISIBLE_DEVICES", "all", "unset NPU_VISIBLE_DEVICES"),
        ("CUDA_VISIBLE_DEVICES", "1,0", "export ASCEND_RT_VISIBLE_DEVICES=0,1"),
        ("CUDA_VISIBLE_DEVICES", "", None),
        ("CUDA_VISIBLE_DEVICES", "-1", None),
    ],
)
def test_remedy_names_ids_that_the_runtime_reads(lay: Lay, name: str, value: str, remedy: str | None) -> None:
    (found,) = _answers(lay(HEALTHY, **{name: value}), "visible_devices")
    assert found.remedy == remedy and found.status == ("warning" if remedy else "ok")


@pytest.mark.parametrize(
    "env",
    [
        {"ASCEND_LAUNCH_BLOCKING": "1"},
        {"ASCEND_GLOBAL_LOG_LEVEL": "0"},
        {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:256"},
        {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:256", "PYTORCH_ALLOC_CONF": "max_split_size_mb:256"},
        {"RANK_TABLE_FILE": "/old.json"},
        {"HCCL_WHITELIST_DISABLE": "0"},
        {"HCCL_INTRA_ROCE_ENABLE": "1", "HCCL_INTRA_PCIE_ENABLE": "1"},
        {"INF_NAN_MODE_ENABLE": "0"},
        {"ASCEND_SLOG_PRINT_TO_STDOUT": "1"},
        {"ASCEND_LOG_PRINT_TO_STDOUT": "1"},
        {"NCCL_DEBUG": "INFO"},
    ],
    ids=lambda env: next(iter(env)),
)
def test_harmful_environment_variable_is_a_warning(lay: Lay, env: dict[str, str]) -> None:
    (found,) = _answers(lay(HEALTHY, **env), "environment")
    assert found.status == "warning" and next(iter(env)) in found.measured


@pytest.mark.parametrize(
    ("env", "status", "said"),
    [
        ({"HCCL_SOCKET_IFNAME": "eth"}, "ok", "eth0"),
        ({"HCCL_SOCKET_IFNAME": "=eth"}, "failure", "no such interface"),
        ({"GLOO_SOCKET_IFNAME": "enp1s0"}, "failure", "no such interface"),
        ({"HCCL_SOCKET_IFNAME": "lo"}, "warning", "does not reach other machines"),
        ({"HCCL_SOCKET_IFNAME": "ib0"}, "failure", "ib0 is down"),
        ({"HCCL_IF_IP": "10.9.9.9"}, "failure", "not an address of this machine"),
        ({"HCCL_IF_IP": "192.168.7.2"}, "ok", "eth0"),
        ({"HCCL_CONNECT_TIMEOUT": "60"}, "failure", "EI0001"),
        ({"HCCL_SOCKET_IFNAME": "bond,eth"}, "ok", "eth0"),
        ({"HCCL_SOCKET_IFNAME": "=bond0,enp1"}, "failure", "no such interface"),
        ({"GLOO_SOCKET_IFNAME": "eth0,bond0"}, "failure", "no such interface"),
        ({"HCCL_EXEC_TIMEOUT": "3600", "HCCL_EVENT_TIMEOUT": "1868"}, "warning", "not below HCCL_EVENT_TIMEOUT"),
        ({"HCCL_EXEC_TIMEOUT": "7200", "HCCL_CONNECT_TIMEOUT": "7200"}, "ok", "eth0"),
        ({"HCCL_EXEC_TIMEOUT": "0"}, "ok", "eth0"),
        ({"HCCL_EXEC_TIMEOUT": "ten"}, "failure", "is not a number"),
        ({"HCCL_EXEC_TIMEOUT": "0.05", "HCCL_OP_EXPANSION_MODE": "AIV"}, "ok", "eth0"),
        ({"HCCL_IF_IP": "192.168.7.2%eth0"}, "ok", "eth0"),
        ({"HCCL_RDMA_SL": "1000"}, "failure", "HCCL_RDMA_SL=1000 is rejected (EI0001)"),
        ({"HCCL_RDMA_TC": "130"}, "failure", "HCCL_RDMA_TC=130"),
        ({"HCCL_RDMA_TC": "100", "HCCL_RDMA_SL": "3", "HCCL_BUFFSIZE": "400"}, "ok", "eth0"),
        ({"HCCL_BUFFSIZE": "0"}, "failure", "HCCL_BUFFSIZE=0"),
        ({"HCCL_BUFFSIZE": "200MB"}, "failure", "HCCL_BUFFSIZE=200MB"),
        ({"HCCL_RDMA_TIMEOUT": "22"}, "failure", "HCCL_RDMA_TIMEOUT=22"),
        ({"HCCL_DETERMINISTIC": "1"}, "failure", "HCCL_DETERMINISTIC=1"),
        ({"HCCL_DETERMINISTIC": "TRUE", "HCCL_SOCKET_FAMILY": "AF_INET6"}, "ok", "eth0"),
    ],
)
def test_hccl_variables_that_do_not_fit_the_host_are_found(
    lay: Lay, env: dict[str, str], status: str, said: str
) -> None:
    system = lay(HEALTHY, **env)
    up = system.interfaces()
    system.interfaces = lambda: {**up, "ib0": Interface((), is_up=False)}
    (found,) = _answers(system, "hccl_host")
    assert found.status == status and said in found.measured


def test_the_first_generation_accepts_longer_waits_of_its_network(lay: Lay) -> None:
    (found,) = _answers(lay(replace(HEALTHY, name="910A"), HCCL_RDMA_TIMEOUT="22"), "hccl_host")
    assert found.status == "ok"


def test_a_rejected_value_has_the_range_of_the_vendors_page(lay: Lay) -> None:
    (found,) = _answers(lay(HEALTHY, HCCL_RDMA_TC="130"), "hccl_host")
    assert (found.expected, found.remedy) == ("a whole number, 0 to 255, a multiple of 4", "unset HCCL_RDMA_TC")


@pytest.mark.parametrize(("code", "free"), [("shared_memory", 64 << 20), ("disk", 5 * GIB)])
def test_little_free_space_is_a_warning(lay: Lay, code: str, free: int) -> None:
    system = lay(replace(HEALTHY, container=True))
    system.space = lambda path: (free, 64 * GIB)
    assert {each.status for each in _answers(system, code)} == {"warning"}


def test_a_full_disk_is_a_failure_in_the_verdict(lay: Lay) -> None:
    system = lay(HEALTHY)
    system.space = lambda path: (1 << 20, 64 * GIB) if path.name != "shm" else (GIB * 8, GIB * 8)
    examination = examine(system, ["disk"])
    assert {each.status for each in examination.findings} == {"failure"}
    assert "trains on 8 NPU (910B4), but the working directory" in verdict(examination, system)


@pytest.mark.parametrize(
    ("kind", "status"),
    [("nfs4 server:/x rw,vers=4.1", "warning"), ("fuse.dpc dpc rw", "warning"), ("ext4 /dev/a rw", "ok")],
)
def test_cache_on_a_network_file_system_is_found(lay: Lay, kind: str, status: str) -> None:
    system = lay(HEALTHY)
    mounts = system.path("/proc/self/mountinfo")
    mounts.write_text(f"1 0 8:1 / / rw - xfs /dev/sda rw\n2 1 0:9 / {system.cache} rw - {kind}\n")
    found = _answers(system, "disk")
    assert [each.status for each in found] == [status] and kind.split()[0] in found[0].measured


def test_limit_of_1024_open_files_is_a_warning(lay: Lay) -> None:
    system = lay(HEALTHY)
    system.limits = lambda number: (1024, 1024) if number == resource.RLIMIT_NOFILE else (65536, 65536)
    (found,) = _answers(system, "limits")
    assert found.status == "warning" and found.measured.startswith("at most 1024 open files")


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"torch": "2.5.1", "numpy": "1.26.4"}, "torch 2.5.1 is outside"),
        ({"torch": "2.6.0", "numpy": "2.1.2"}, "numpy 2.1.2 with CANN 8.2.RC1"),
    ],
)
def test_conflicting_packages_are_a_warning(lay: Lay, packages: dict[str, str], said: str) -> None:
    found = _answers(lay(replace(HEALTHY, packages=packages)), "packages")
    assert [each.status for each in found] == ["warning"] and said in found[0].measured


COMBINATIONS = [
    ({"numpy": "2.1.2", "deepspeed": "0.14.2"}, {"numpy": "2.1.2", "deepspeed": "0.14.4"}, "BUFSIZE"),
    (
        {"transformers": "4.52.3", "accelerate": "0.34.0"},
        {"transformers": "4.52.3", "accelerate": "1.3.0"},
        "keep_torch_compile",
    ),
    ({"transformers": "4.52.4", "torch": "2.4.0"}, {"transformers": "4.52.4", "torch": "2.5.1"}, "ALL_PARALLEL_STYLES"),
    ({"transformers": "5.2.0", "peft": "0.17.1"}, {"transformers": "5.2.0", "peft": "0.18.0"}, "HybridCache"),
    (
        {"transformers": "4.56.0", "accelerate": "1.9.0"},
        {"transformers": "4.56.1", "accelerate": "1.9.0"},
        "parallelism_config",
    ),
    ({"numpy": "1.26.4", "deepspeed": "0.18.2"}, {"numpy": "1.26.4", "deepspeed": "0.17.5"}, "norm is too small"),
    ({"numpy": "1.26.4", "deepspeed": "0.18.3"}, {"numpy": "1.26.4", "deepspeed": "0.19.4"}, "used twice"),
    ({"numpy": "1.26.4", "deepspeed": "0.12.2"}, {"numpy": "1.26.4", "deepspeed": "0.12.6"}, "reported as 0"),
]


@pytest.mark.parametrize(
    ("breaks", "works", "said"), COMBINATIONS, ids=lambda each: each if isinstance(each, str) else ""
)
def test_packages_that_break_together_are_a_warning_with_its_source(
    lay: Lay, breaks: dict[str, str], works: dict[str, str], said: str
) -> None:
    (found,) = _answers(lay(replace(HEALTHY, packages=breaks)), "combinations")
    assert found.status == "warning" and said in found.measured and found.evidence[0].startswith("https://")
    system = lay(replace(HEALTHY, packages=works))
    assert [each.status for each in _answers(system, "combinations")] == ["ok"]


@pytest.mark.parametrize(("ids", "status"), [("0,2", "ok"), ("0,1", "warning"), ("1 ,2", "warning")])
def test_only_the_devices_that_were_chosen_must_be_near(lay: Lay, ids: str, status: str) -> None:
    (found,) = _answers(lay("cores-of-one-socket", ASCEND_RT_VISIBLE_DEVICES=ids), "numa")
    assert found.status == status


@pytest.mark.parametrize("machine", ["healthy-910b4", "npu-smi-absent"])
def test_variables_of_devices_that_no_tool_lists_end_no_check(lay: Lay, machine: str) -> None:
    """No GPU is here, and npu-smi may list no NPU."""
    system = lay(machine, CUDA_VISIBLE_DEVICES="0,1", ASCEND_RT_VISIBLE_DEVICES="0,1")
    assert not [each for each in examine(system).findings if "the check itself failed" in each.measured]


def test_every_combination_is_tested() -> None:
    assert len(COMBINATIONS) == len(known_combinations())


@pytest.mark.parametrize(("held", "status"), [("000001ffffffffff", "warning"), ("00000000a80c25fb", "ok")])
def test_privileges_beside_a_gpu(lay: Lay, held: str, status: str) -> None:
    system = _with_gpu(lay, "550.54.15", "'12.4'")
    (system.root / ".dockerenv").touch()
    (system.root / "proc/self/status").write_text(f"CapEff:\t{held}\n")
    (found,) = _answers(system, "container")
    assert found.status == status and "PTRACE" not in found.measured


@pytest.mark.parametrize(
    ("value", "status", "remedy"),
    [
        ("GPU-0a1b", "ok", None),
        ("GPU-1,GPU-0", "ok", None),
        ("GPU-7,GPU-0", "warning", "export CUDA_VISIBLE_DEVICES=GPU-0a1b,GPU-1c2d"),
        ("GPU-", "warning", "export CUDA_VISIBLE_DEVICES=GPU-0a1b,GPU-1c2d"),
        ("MIG-5f", "ok", None),
    ],
)
def test_unique_names_of_gpus_are_looked_up(lay: Lay, value: str, status: str, remedy: str | None) -> None:
    node = Node(chips=(), driver_files=False, shared_nodes=(), npu_smi="absent", packages={"torch": "2.6.0"})
    system = lay(node, CUDA_VISIBLE_DEVICES=value)
    gpus = tuple(Accelerator("cuda", logical_id=n, uuid=uuid) for n, uuid in enumerate(("GPU-0a1b", "GPU-1c2d")))
    system.query_gpus = lambda: (gpus, "580.65.06", ())
    (found,) = _answers(system, "visible_devices")
    assert (found.status, found.remedy) == (status, remedy)


def _with_gpu(lay: Lay, driver: str, cuda: str) -> System:
    system = lay(Node(chips=(), driver_files=False, shared_nodes=(), npu_smi="absent", packages={"torch": "2.6.0"}))
    gpu = Accelerator("cuda", phy_id=0, name="NVIDIA H100", memory_used_bytes=GIB, memory_total_bytes=80 * GIB)
    system.query_gpus = lambda: ((gpu,), driver, ())
    (system.root / "site/torch/version.py").write_text(f"cuda: Optional[str] = {cuda}\n")
    return system


@pytest.mark.parametrize(
    ("driver", "cuda", "status"),
    [("550.54.15", "'12.4'", "ok"), ("470.1", "'12.4'", "failure"), ("550.54.15", "None", "failure")],
)
def test_cuda_needs_its_own_torch_and_a_driver_that_is_new_enough(
    lay: Lay, driver: str, cuda: str, status: str
) -> None:
    system = _with_gpu(lay, driver, cuda)
    assert [each.status for each in _answers(system, "cuda")] == [status]
    if status == "ok":
        assert verdict(examine(system), system).startswith("this machine trains on 1 GPU (NVIDIA H100)")


def test_a_machine_without_accelerators_is_quiet(lay: Lay) -> None:
    system = lay(
        Node(chips=(), driver_files=False, shared_nodes=(), npu_smi="absent", cann=(), packages={"torch": "2.6.0"})
    )
    examination = examine(system)
    assert {each.status for each in examination.findings} == {"ok"}
    cores = len(os.sched_getaffinity(0))
    assert verdict(examination, system).startswith(f"this machine trains on the CPU ({cores} core")
    assert {"npu_smi", "cann", "versions", "npu_network", "cuda"} <= set(examination.not_applicable)


def test_the_download_directory_is_looked_at_too(lay: Lay, tmp_path: Path) -> None:
    system = lay(HEALTHY, HF_HOME=str(tmp_path / "models"))
    system.space = lambda path: (5 * GIB if path == tmp_path else 500 * GIB, 1000 * GIB)
    (found,) = _answers(system, "disk")
    assert found.measured == f"the download directory {tmp_path} has 5.0 GiB free" and "HF_HOME" in (found.remedy or "")


_SOCKETS = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:EA61 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20381 1 0
   1: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20382 1 0
   2: 0100007F:EA62 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 20383 1 0
"""


def test_ports_of_the_job_that_another_program_holds(lay: Lay) -> None:
    system = lay(HEALTHY)
    (system.path("/proc/net")).mkdir(parents=True, exist_ok=True)
    system.path("/proc/net/tcp").write_text(_SOCKETS)

    (found,) = _answers(system, "hccl_host")

    assert found.status == "warning" and "ports 29500, 60001 of torchrun or HCCL" in found.measured


def test_user_without_name_is_a_warning(lay: Lay) -> None:
    system = lay(HEALTHY)
    system.user_name = lambda: None
    system.env = {name: value for name, value in system.env.items() if name not in ("USER", "LOGNAME")}

    (found,) = _answers(system, "environment")

    assert found.status == "warning" and "has no name" in found.measured


def test_cards_with_an_alarm_are_not_counted_as_trained_on(lay: Lay) -> None:
    system = lay("card-alarmed")

    assert verdict(examine(system), system).startswith("this machine trains on 7 of 8 NPU (910B4), without NPU 7, but")


def test_cards_of_unknown_health_are_called_so(lay: Lay) -> None:
    system = lay("npu-smi-absent")

    assert "8 NPU of unknown health" in verdict(examine(system), system)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"MASTER_PORT": "29600"}, "port 29600 of"),
        ({"HCCL_IF_BASE_PORT": "50000"}, "ports 29500, 50003 of"),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "61000-61010,61050"}, "ports 29500, 61050 of"),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}, "port 29500 of"),
    ],
)
def test_ports_that_the_environment_chooses(lay: Lay, env: dict[str, str], said: str) -> None:
    system = lay(HEALTHY, **env)
    system.path("/proc/net").mkdir(parents=True, exist_ok=True)
    ports = [29600] if "MASTER_PORT" in env else [29500, 50003, 61050]
    rows = [f"  {n}: 00000000:{port:04X} 00000000:0000 0A 0:0 00:0 0 0 0 7{n} 1 0" for n, port in enumerate(ports)]
    system.path("/proc/net/tcp").write_text("\n".join(["  sl  local_address", *rows]) + "\n")
    holder = system.path("/proc/4711")
    (holder / "fd").mkdir(parents=True)
    (holder / "fd/5").symlink_to("socket:[70]")
    (holder / "comm").write_text("python3.11\n")

    (found,) = _answers(system, "hccl_host")

    assert said in found.measured and found.evidence == (f"{ports[0]}: pid 4711 (python3.11)",)


def test_whitelist_that_cannot_be_read(lay: Lay, tmp_path: Path) -> None:
    env = {"HCCL_WHITELIST_DISABLE": "0", "HCCL_WHITELIST_FILE": str(tmp_path / "list")}
    (found,) = _answers(lay(HEALTHY, **env), "environment")
    assert found.status == "warning" and "cannot be read" in found.measured
    (tmp_path / "list").write_text("[]")
    assert [each.status for each in _answers(lay(HEALTHY, **env), "environment")] == ["ok"]


def test_container_without_the_vendors_tools_is_a_warning_with_the_mounts(lay: Lay) -> None:
    found = _answers(lay(replace(HEALTHY, container=True, npu_smi="absent", hccn_tool="absent")), "container")
    (warned,) = found
    assert warned.status == "warning" and "npu-smi" in warned.measured and "hccn_tool" in warned.measured
    assert "-v $(command -v npu-smi):/usr/local/sbin/npu-smi" in (warned.remedy or "")


def test_verdict_counts_visible_healthy_devices(lay: Lay) -> None:
    system = lay("card-alarmed", ASCEND_RT_VISIBLE_DEVICES="6,7")
    assert "trains on 1 of 8 NPU (910B4), those in ASCEND_RT_VISIBLE_DEVICES, without NPU 7, but" in verdict(
        examine(system), system
    )
    system = lay("card-alarmed", ASCEND_RT_VISIBLE_DEVICES="7")
    assert verdict(examine(system), system).startswith("this machine cannot train: NPU 7 reports Alarm")


def test_remedy_of_an_alarm_lists_the_other_devices(lay: Lay) -> None:
    (found,) = _answers(lay("card-alarmed"), "health")
    assert (found.remedy or "").startswith(
        "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6 leaves out the cards with an alarm; then look up"
    )


def test_remedy_of_an_alarm_adds_no_card_that_the_user_has_left_out(lay: Lay) -> None:
    (found,) = _answers(lay("card-alarmed", ASCEND_RT_VISIBLE_DEVICES="5,6,7"), "health")
    assert (found.remedy or "").startswith("export ASCEND_RT_VISIBLE_DEVICES=5,6 leaves out")


def test_health_that_is_not_a_word_of_the_vendor_s_is_not_trained_on(lay: Lay) -> None:
    system = lay(replace(HEALTHY, chips=(Chip(health="Fault"), *HEALTHY.chips[1:])))
    (found,) = _answers(system, "health")
    assert found.status == "failure" and (found.remedy or "").startswith("export ASCEND_RT_VISIBLE_DEVICES=1,2")
    assert "trains on 7 of 8 NPU (910B4), without NPU 0" in verdict(examine(system, ["health"]), system)


def test_advice_on_versions_does_not_contradict_what_is_expected(lay: Lay) -> None:
    found = [each for each in _answers(lay("torch-differs"), "versions") if each.status == "failure"]

    assert "2.6.0" not in (found[0].expected or "") and len({each.remedy for each in found}) == 1


def test_port_that_hccn_tool_does_not_report_is_not_called_up(lay: Lay) -> None:
    system = lay(replace(HEALTHY, chips=(Chip(link=None, address=None, network_health=""), *HEALTHY.chips[1:])))
    (found,) = _answers(system, "npu_network")
    assert found.status == "unknown" and found.measured.endswith("the link of NPU 0")


@pytest.mark.parametrize(
    ("question", "answer", "status", "said"),
    [
        ("-ip", "ipaddr:10.20.0.1", "unknown", "does not report the address of NPU 3"),
        ("-ip", "Cmd execute failed!\n", "unknown", "does not report the address of NPU 3"),
        ("-ip", "Get ip failed, because no ip was preset there!\n", "warning", "NPU 3 has no network address"),
        ("-route", "The cmd line execute timeout!\n", "ok", "8 ports: link up, address set"),
        ("-route", "Routing table:\nDestination Gateway\n10.0.0.0 *\n", "warning", "NPU 3 has no gateway"),
        ("-route", "Routing table:\nDestination Gateway\n10.0.0", "ok", "8 ports: link up, address set"),
        ("-link", "link status: D", "unknown", "does not report the link of NPU 3"),
        ("-net_health", "net health status: Suc", "ok", "8 ports: link up"),
    ],
)
def test_answers_of_hccn_tool_that_are_cut_or_fail_blame_no_port(
    lay: Lay, question: str, answer: str, status: str, said: str
) -> None:
    system = lay(HEALTHY)
    (system.root / f"answers/hccn_tool/-i_3_{question}_-g").write_text(answer)
    (found,) = _answers(system, "npu_network")
    assert found.status == status and said in found.measured


def test_hccn_tool_that_is_busy_is_asked_again(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_ports, "_BUSY_PAUSES", (0.0, 0.0, 0.0))
    system, asked = lay(HEALTHY), Counter[str]()
    run = system.run

    def sometimes_busy(argv: Sequence[str], timeout_seconds: float | None = None) -> Finished:
        asked[" ".join(argv[1:])] += 1
        if asked[" ".join(argv[1:])] % 3:
            return Finished(tuple(argv), 1, "hccn_tool is busy, please try again.\n", "")
        return run(argv, timeout_seconds)

    monkeypatch.setattr(system, "run", sometimes_busy)
    (found,) = _answers(system, "npu_network")
    assert found.status == "ok" and "TLS the same" in found.measured


def test_hccn_tool_that_this_user_may_not_ask_is_named(lay: Lay) -> None:
    system = lay(HEALTHY)
    for answer in (system.root / "answers/hccn_tool").iterdir():
        answer.write_text("permission denied: pls check this cmd run permission.\n")
    (found,) = _answers(system, "npu_network")
    assert found.status == "unknown" and "permission denied" in found.measured and "as root" in (found.remedy or "")


def test_tls_that_no_port_reports_is_not_called_the_same(lay: Lay) -> None:
    system = lay(HEALTHY)
    for answer in (system.root / "answers/hccn_tool").glob("*_-tls_-g"):
        answer.write_text("permission denied\n")
    (found,) = _answers(system, "npu_network")
    assert found.status == "ok" and "TLS unknown" in found.measured


def test_remedy_in_a_container_does_not_kill_by_the_numbers_of_the_host(lay: Lay) -> None:
    (found,) = _answers(lay("leftover-process"), "device_memory")
    assert "kill 472206" in (found.remedy or "")
    (found,) = _answers(lay(replace(SCENARIOS["leftover-process"], container=True)), "device_memory")
    assert "kill" not in (found.remedy or "") and "those of the host" in (found.remedy or "")


@pytest.mark.parametrize("sign", ["KUBERNETES_SERVICE_HOST", "pid namespace", ".singularity.d", None])
def test_container_without_a_file_of_docker_is_one(lay: Lay, sign: str | None) -> None:
    system = lay(HEALTHY, **({sign: "10.0.0.1"} if sign and sign.isupper() else {}))
    if sign == ".singularity.d":
        (system.root / sign).mkdir()
    system.is_first_pid_namespace = lambda: sign != "pid namespace"
    assert system.in_container == (sign is not None)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.partition("| NPU     Chip  ")[0],
        lambda table: table.replace("2871 / 32768", "NA / NA     "),
    ],
    ids=["cut before the processes", "memory not reported"],
)
def test_memory_is_not_called_free_without_a_report(lay: Lay, change: Callable[[str], str]) -> None:
    system = lay(HEALTHY)
    table = system.root / "answers/npu-smi/info"
    table.write_text(change(table.read_text()))
    (found,) = _answers(system, "device_memory")
    assert found.status == "unknown" and "NPU 0, NPU 1" in found.measured


def test_cards_that_a_cut_table_lacks_are_not_trained_on(lay: Lay) -> None:
    system = lay(HEALTHY)
    table = system.root / "answers/npu-smi/info"
    table.write_text(table.read_text().partition("| 5 ")[0])
    assert verdict(examine(system), system).startswith("this machine trains on 5 of 8 NPU (910B4), 3 of unknown health")


def test_verdict_claims_nothing_where_npu_smi_lists_no_card(lay: Lay) -> None:
    system = lay("npu-smi-absent")
    assert verdict(examine(system), system).startswith("it is unknown whether this machine trains: 8 NPU of unknown")


def test_findings_that_follow_from_another_are_one_line(lay: Lay) -> None:
    findings = [each for each in examine(lay("npu-smi-absent")).findings if each.status != "ok"]
    text = as_text("", findings, columns=100, paint=lambda text, _: text)
    assert "therefore not known either: health, device_memory, numa" in text
    assert text.count("see the finding") == 0


@pytest.mark.parametrize(("device_nodes", "listed"), [(None, 5), (None, 1), (0, 5)])
def test_health_of_chips_that_a_cut_table_lacks_is_unknown(
    lay: Lay, tmp_path: Path, device_nodes: int | None, listed: int
) -> None:
    system = lay(replace(HEALTHY, device_nodes=device_nodes))
    table = tmp_path / "machine/answers/npu-smi/info"
    lines = table.read_text().splitlines(keepends=True)
    first_lines = [number for number, line in enumerate(lines) if " 910B4 " in line]
    table.write_text("".join(lines[: first_lines[listed]]))

    (found,) = _answers(system, "health")

    assert (found.status, found.because) == ("unknown", "npu_smi")
    assert f"OK for {listed} chip" in found.measured


def test_health_is_known_where_only_the_list_of_processes_is_cut(lay: Lay, tmp_path: Path) -> None:
    system = lay(HEALTHY)
    table = tmp_path / "machine/answers/npu-smi/info"
    text = table.read_text()
    table.write_text(text[: text.rindex("No running processes found in NPU 6")])

    (found,) = _answers(system, "health")

    assert (found.status, found.measured) == ("ok", "8 chips report OK")
