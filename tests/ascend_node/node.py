"""An Ascend machine as seen from outside, laid out below a directory: programs, version files, device files.

Nothing here computes. Every answer begins with SIMULATED, so that no capture of it is taken for a real one.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from ascend_node.tables import info_table, mapping_table
from ascendtune.machine.npu.chip_family import family_of

SIMULATED = "SIMULATED: this machine has no such hardware"
_HOME = "usr/local/Ascend"
_REQUIRED = "required_driver_ascendhal_version=4.0.0\n"
_SHARED_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    memory_megabytes: int


@dataclass(frozen=True)
class Chip:
    """One die. `link` and what follows are its network port; None: the tool says nothing of it."""

    health: str = "OK"
    error_code: str = "NA"
    memory_used_megabytes: int = 2871
    processes: tuple[Process, ...] = ()
    link: str | None = "UP"
    address: str | None = "auto"
    netmask: str = "255.255.255.0"
    gateway: str | None = "10.20.0.1"
    kept: str | None = None
    """The address of this port in /etc/hccn.conf; None: none."""
    network_health: str = "Success"
    tls: int = 0
    udp_source: str = "auto"
    link_downs: int = 1


@dataclass(frozen=True)
class Cann:
    """An installed toolkit; `loaded`: its set_env.sh was read."""

    version: str = "8.2.RC1"
    loaded: bool = True
    kernels: str | None = None
    """The chip whose operators are installed: None is the machine's own, empty none."""

    @property
    def place(self) -> str:
        """Below /usr/local/Ascend, as releases before and from 8.5 on have it."""
        return f"ascend-toolkit/{self.version}" if self.version < "8.5" else f"cann-{self.version}"


@dataclass(frozen=True)
class Node:
    """What the machine is. The defaults are a healthy server with eight 910B4."""

    name: str = "910B4"
    chips: tuple[Chip, ...] = (Chip(),) * 8
    chips_per_card: int = 1
    memory_total_megabytes: int = 32768
    driver: str = "25.2.0"
    firmware: str = "7.7.0.6.236"
    firmware_range: str = "[7.0.0,7.8.99]"
    cann: tuple[Cann, ...] = (Cann(),)
    super_pod: tuple[int, int] | None = None
    """Of an A3: the super pod, and the index of this host in it."""
    npu_smi: str = "answers"
    """answers | absent | hangs | a line that it prints instead of the table"""
    hccn_tool: str = "answers"
    """answers | absent | hangs"""
    device_nodes: int | None = None
    shared_nodes: tuple[str, ...] = _SHARED_NODES
    driver_files: bool = True
    dcmi: bool = True
    container: bool = False
    privileged: bool = False
    on_bus: int | None = None
    governor: str = "performance"
    memory_limit_bytes: int | None = 512 << 30
    packages: dict[str, str] = field(
        default_factory=lambda: {"torch": "2.6.0", "torch-npu": "2.6.0", "transformers": "5.2.0", "numpy": "1.26.4"}
    )
    python: str = "3.11"
    unresolved: tuple[str, ...] = ()
    """Libraries that the loader does not find below torch_npu."""
    interface: str = "7.35.23"
    """The driver's ascendhal_version."""
    nnal: str | None = None
    numa_of_chips: tuple[int, ...] = (0, 1)
    """The NUMA node of each chip, in turn; a node has two of the four cores."""
    cores_allowed: str = "0-3"
    hugepages_free: int = 0
    """Of 2 MiB each, reserved and used by nobody; the host has 1 TiB."""
    opened_by: tuple[int, ...] = ()
    """Processes that have davinci0 open, whatever npu-smi says."""
    env: dict[str, str] = field(default_factory=dict)

    def lay_out(self, root: Path) -> dict[str, str]:
        """Write everything below `root`; returns the environment of a shell on this machine."""
        self._devices(root)
        self._programs(root)
        self._installed(root)
        self._kernel(root)
        self._python_packages(root)
        loaded = next((each for each in self.cann if each.loaded), None)
        env = {"PATH": f"{root}/bin:/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
        if loaded:
            env["ASCEND_HOME_PATH"] = str(root / _HOME / loaded.place)
        return {**env, **self.env}

    def _devices(self, root: Path) -> None:
        count = len(self.chips) if self.device_nodes is None else self.device_nodes
        for name in (*(f"davinci{index}" for index in range(count)), *self.shared_nodes):
            _write(root / "dev" / name, "")
        (root / "dev/shm").mkdir(parents=True, exist_ok=True)
        for index in range(len(self.chips) if self.on_bus is None else self.on_bus):
            device = root / f"sys/bus/pci/devices/0000:{index + 1:02x}:00.0"
            _write(device / "vendor", "0x19e5\n")
            _write(device / "class", "0x120000\n")
            _write(device / "numa_node", f"{self.numa_of_chips[index % len(self.numa_of_chips)]}\n")

    def _programs(self, root: Path) -> None:
        answers = root / "answers"
        _write(answers / "npu-smi/info", info_table(self))
        _write(answers / "npu-smi/info_-m", mapping_table(self))
        if self.super_pod:
            names = ("SDID", "Super Pod Size", "Super Pod ID", "Server Index")
            values = (16777216, 384, *self.super_pod)
            told = "".join(f"\t{name:<30} : {value}\n" for name, value in zip(names, values, strict=True))
            _write(answers / "npu-smi/info_-t_spod-info_-i_0_-c_0", told)
        for index, chip in enumerate(self.chips):
            card, die = divmod(index, self.chips_per_card)
            health = f"\tHealth Status : {chip.health}\n\tError Code : {chip.error_code}\n\tError Information : NA\n"
            _write(answers / f"npu-smi/info_-t_health_-i_{card}_-c_{die}", health)
            for question, answer in self._port(index, chip).items():
                _write(answers / f"hccn_tool/-i_{index}_{question}_-g", answer)
        if self.npu_smi == "hangs":
            _program(root / "bin/npu-smi", "exec sleep 60")
        elif self.npu_smi == "answers":
            _program(root / "bin/npu-smi", _answering(answers / "npu-smi"))
        elif self.npu_smi != "absent":
            _program(root / "bin/npu-smi", f"echo {shlex.quote(SIMULATED)}; echo {shlex.quote(self.npu_smi)}; exit 1")
        tool = root / _HOME / "driver/tools/hccn_tool"
        if self.hccn_tool != "absent":
            _program(tool, "exec sleep 60" if self.hccn_tool == "hangs" else _answering(answers / "hccn_tool"))

    @staticmethod
    def _port(index: int, chip: Chip) -> dict[str, str]:
        address = f"10.20.0.{10 + index}" if chip.address == "auto" else chip.address
        route = "Routing table:\nDestination Gateway Genmask Flags Metric Ref Use Iface\n"
        told = {
            "-ip": f"ipaddr:{address}\nnetmask:{chip.netmask}\n"
            if address
            else "Get ipconf failed, because no ip was preset there!\n",
            "-route": route + (f"default {chip.gateway} 0.0.0.0 UG 0 0 0 eth{index}\n" if chip.gateway else ""),
            "-net_health": f"net health status: {chip.network_health}\n",
            "-link_stat": _link_history(index, chip.link_downs),
            "-udp": f"udp_port:4791\nstatus:{chip.udp_source}\n",
            "-tls": f"dev_id:{index}, tls switch[{chip.tls}](0:disable, 1:enable), tls alarm time threshold[60]days\n",
        }
        return told | ({"-link": f"link status: {chip.link}\n"} if chip.link else {})

    def _installed(self, root: Path) -> None:
        if self.driver_files:
            _write(
                root / _HOME / "driver/version.info",
                f"Version={self.driver}\nascendhal_version={self.interface}\ncompatible_version_fw={self.firmware_range}\n",
            )
            _write(root / _HOME / "driver/lib64/driver/libascend_hal.so", "")
            _write(root / _HOME / "firmware/version.info", f"Version={self.firmware}\n")
        if self.dcmi:
            _write(root / "usr/local/dcmi/libdcmi.so", "")
            _write(root / "etc/ascend_install.info", "Driver_Install_Path_Param=/usr/local/Ascend\n")
        kept = {index: chip.kept for index, chip in enumerate(self.chips) if chip.kept}
        if kept:
            lines = (f"address_{index}={each}\nnetmask_{index}=255.255.255.0\n" for index, each in kept.items())
            _write(root / "etc/hccn.conf", "".join(lines))
        if self.nnal:
            _write(root / _HOME / "nnal/atb/latest/version.info", f"    Ascend-cann-atb : {self.nnal}\n")
        for each in self.cann:
            kit = root / _HOME / each.place
            info = kit / ("runtime" if each.version < "8.5" else "share/info/runtime") / "version.info"
            _write(info, f"Version=7.7.0.1.238\nversion_dir={each.version}\n{_REQUIRED}")
            script = kit.parent if each.version < "8.5" else kit
            _write(script / "set_env.sh", f"export ASCEND_HOME_PATH='{kit}' READ=$READ:{each.version}\n")
            _write(kit / "lib64/libhccl.so", "")
            family = family_of(self.name)
            kernels = family.directory if each.kernels is None and family else each.kernels
            if kernels:
                _write(kit / f"opp/built-in/op_impl/ai_core/tbe/kernel/{kernels}/add/add.o", "")

    def _kernel(self, root: Path) -> None:
        if self.container:
            _write(root / ".dockerenv", "")
        held = "000001ffffffffff" if self.privileged else "00000000a80425fb"
        _write(root / "proc/self/status", f"Name:\tpython\nCapEff:\t{held}\nCpus_allowed_list:\t{self.cores_allowed}\n")
        for node, cores in enumerate(("0-1", "2-3")):
            _write(root / f"sys/devices/system/node/node{node}/cpulist", f"{cores}\n")
        huge = f"HugePages_Total: {self.hugepages_free}\nHugePages_Free: {self.hugepages_free}\nHugepagesize: 2048 kB\n"
        _write(root / "proc/meminfo", f"MemTotal: {1 << 30} kB\n{huge}")
        _write(root / "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        for pid in self.opened_by:
            _write(root / f"proc/{pid}/comm", "python3.11\n")
            (root / f"proc/{pid}/fd").mkdir(parents=True, exist_ok=True)
            (root / f"proc/{pid}/fd/7").symlink_to("/dev/davinci0")
        for core in range(4):
            _write(root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor", f"{self.governor}\n")
        limit = "max" if self.memory_limit_bytes is None else str(self.memory_limit_bytes)
        _write(root / "sys/fs/cgroup/memory.max", f"{limit}\n")

    def _python_packages(self, root: Path) -> None:
        _write(root / "site/torch/version.py", "cuda: Optional[str] = None\n")
        if "torch-npu" in self.packages:
            _write(root / "site/torch_npu/lib/libtorch_npu.so", "")
        found = ["libc.so.6 => /lib/libc.so.6 (0x0)", *(f"{name} => not found" for name in self.unresolved)]
        lines = " ".join(shlex.quote(f"\t{line}") for line in found)
        _program(root / "bin/ldd", f"printf '%s\\n' {lines}")


def _answering(answers: Path) -> str:
    """A program that prints the file that is named like its arguments."""
    return (
        f"echo {shlex.quote(SIMULATED)}\n"
        'IFS=_; asked="$*"\n'
        f'if [ -f {answers}/"$asked" ]; then cat {answers}/"$asked"; else echo "Error parameter of -t"; exit 1; fi'
    )


def _program(path: Path, body: str) -> None:
    _write(path, f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _link_history(index: int, downs: int) -> str:
    times = [
        f"Sun Oct {day:2d} 10:13:50 2025    LINK {state}" for day in range(downs, 0, -1) for state in ("UP", "DOWN")
    ]
    lines = [f"link up count       : {downs + 1}", f"link down count     : {downs}", "link change records :", *times]
    return "".join(f"[devid {index}]{line}\n" for line in lines)
