"""Everything that checks read, behind one object that tests replace."""

from __future__ import annotations

import grp
import os
import platform
import pwd
import resource
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ascendtune.check.doctor.needs import Needs
from ascendtune.check.nodes.node_report import NodeReports
from ascendtune.core.directories import cache_directory, state_directory
from ascendtune.core.files import text_of
from ascendtune.core.process import Finished, run
from ascendtune.core.procfs import is_first_pid_namespace
from ascendtune.machine.cuda import gpus
from ascendtune.machine.inventory import Accelerator, Trouble
from ascendtune.machine.npu.info import NpuSmiInfo
from ascendtune.machine.npu.plog import cann_logs
from ascendtune.machine.npu.smi import NpuSmi
from ascendtune.machine.npu.versions import Versions, installed_versions
from ascendtune.machine.visible import VisibleDevices, visible_devices

VENDOR_TOOL_SECONDS = 5.0
COMPUTE_SECONDS = 150.0
"""Limit of a program that computes with torch: the first operators of an NPU may be compiled, and importing torch_npu
from a slow disk takes many seconds."""
NETWORK_SECONDS = 1.5

_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "dpc", "lustre", "ceph", "beegfs", "gpfs", "9p")
_PIECE_BYTES, _SPEED_BYTES, _SPEED_SECONDS, _SHORTEST_SECONDS = 4 << 20, 32 << 20, 1.0, 1e-6

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Interface:
    """A network interface of the host."""

    addresses: tuple[str, ...]
    is_up: bool


def package_version(name: str) -> str | None:
    """The installed version of a distribution, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def package_requirements(name: str) -> Sequence[str]:
    """The requirements that a distribution declares; empty if it is not installed."""
    try:
        return requires(name) or ()
    except PackageNotFoundError:
        return ()


def package_directory(module: str) -> Path | None:
    """The directory of a module, without importing it."""
    spec = find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def user_name() -> str | None:
    """The name of this process's user; None if the system has no name for the number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None


def space(path: Path) -> tuple[int, int]:
    """Free and total bytes of the file system of `path`. Raises OSError."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize


def inodes(path: Path) -> tuple[int, int]:
    """Free and total inodes of the file system of `path`; 0 of 0 where it does not count them. Raises OSError."""
    state = os.statvfs(path)
    return state.f_favail, state.f_files


def owner(path: Path) -> str:
    """ "root:HwHiAiUser": user and group of a file, as numbers where they have no names."""
    try:
        state = path.stat()
    except OSError:
        return "?"
    user, group = str(state.st_uid), str(state.st_gid)
    with suppress(KeyError):
        user = pwd.getpwuid(state.st_uid).pw_name
    with suppress(KeyError):
        group = grp.getgrgid(state.st_gid).gr_name
    return f"{user}:{group}"


def file_speed(directory: Path) -> tuple[float, float]:
    """Bytes per second of writing, with fsync, and of reading, with an unnamed file.

    Its size is 4 MiB, and up to 32 MiB if a second suffices for writing and a second for reading.

    Raises OSError.
    """
    piece = os.urandom(_PIECE_BYTES)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        began, written = time.monotonic(), file.write(piece)
        # Written pieces may only be in memory: the first one shows how many of them a second suffices for.
        os.fsync(file.fileno())
        allowed = _SPEED_SECONDS / max(time.monotonic() - began, _SHORTEST_SECONDS) * written
        while written < min(_SPEED_BYTES, allowed):
            written += file.write(piece)
        os.fsync(file.fileno())
        write_seconds = time.monotonic() - began
        # Otherwise the read would only copy the data that the write left in memory.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began, read = time.monotonic(), 0
        while (part := file.read(_PIECE_BYTES)) and time.monotonic() - began < _SPEED_SECONDS:
            read += len(part)
        read_seconds = time.monotonic() - began
    return written / max(write_seconds, _SHORTEST_SECONDS), read / max(read_seconds, _SHORTEST_SECONDS)


def path_exists(path: Path) -> bool:
    """Whether `path` exists; False if a directory above it is closed to this user, for which exists() raises."""
    try:
        return path.exists()
    except OSError:
        return False


def existing_parent(path: Path) -> Path:
    """`path`, or the nearest directory above it that this user can see."""
    path = path.absolute()
    while not path_exists(path):
        path = path.parent
    return path


@dataclass(frozen=True)
class MountedFilesystem:
    """The mounted file system of a path."""

    point: str
    kind: str | None
    """nfs4, dpc, ext4, …"""
    options: tuple[str, ...]

    @property
    def is_remote(self) -> bool:
        return self.kind is not None and (self.kind in _REMOTE or self.kind.startswith("fuse."))

    @property
    def is_nfs(self) -> bool:
        return self.kind in ("nfs", "nfs4")


def host_interfaces() -> dict[str, Interface]:
    states = psutil.net_if_stats()
    return {
        name: Interface(tuple(each.address.partition("%")[0] for each in found), name in states and states[name].isup)
        for name, found in psutil.net_if_addrs().items()
    }


@dataclass
class System:
    """The machine, with its files below `root`. Answers that several checks need are queried once."""

    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: Path = field(default_factory=Path.cwd)
    cache: Path = field(default_factory=cache_directory)
    state: Path = field(default_factory=state_directory)
    python: str = field(default_factory=lambda: ".".join(platform.python_version_tuple()[:2]))
    package: Callable[[str], str | None] = package_version
    package_requirements: Callable[[str], Sequence[str]] = package_requirements
    package_directory: Callable[[str], Path | None] = package_directory
    may_access: Callable[[Path, int], bool] = os.access
    interfaces: Callable[[], Mapping[str, Interface]] = host_interfaces
    user_name: Callable[[], str | None] = user_name
    is_first_pid_namespace: Callable[[], bool] = is_first_pid_namespace
    """Whether pids here are the host's."""
    limits: Callable[[int], tuple[int, int]] = resource.getrlimit
    space: Callable[[Path], tuple[int, int]] = space
    inodes: Callable[[Path], tuple[int, int]] = inodes
    owner: Callable[[Path], str] = owner
    file_speed: Callable[[Path], tuple[float, float]] = file_speed
    site: Path = field(default_factory=lambda: Path(sysconfig.get_path("purelib")))
    """Directory into which pip installs."""
    memory_total_bytes: int = field(default_factory=lambda: psutil.virtual_memory().total)
    query_gpus: Callable[[], tuple[tuple[Accelerator, ...], str | None, tuple[Trouble, ...]]] = gpus
    needs: Needs | None = None
    """The requirements of the recipe; None without a recipe."""
    nodes: NodeReports | None = None
    """Answers of other machines, if they were queried."""
    program: str = sys.executable
    """The Python whose torch is checked."""
    timeout_seconds: float = VENDOR_TOOL_SECONDS
    _answers: dict[str, Any] = field(default_factory=dict, repr=False)
    _locks: dict[str, threading.Lock] = field(default_factory=dict, repr=False)

    def path(self, absolute: str | Path) -> Path:
        """The path of e.g. "/dev/shm" below `root`."""
        return self.root / str(absolute).lstrip("/")

    def text(self, absolute: str | Path) -> str:
        """The content of a file; empty if it cannot be read."""
        return text_of(self.path(absolute))

    def run(self, argv: Sequence[str], timeout_seconds: float | None = None) -> Finished:
        env = {**self.env, "LC_ALL": "C"}
        return run(argv, timeout_seconds=timeout_seconds or self.timeout_seconds, env=env)

    def open_files(self) -> Iterator[tuple[int, str, list[str]]]:
        """Pid, name and targets of the open files of each process; only of this user's, unless run by root."""
        for process in self.path("/proc").glob("[0-9]*"):
            found = []
            with suppress(OSError), os.scandir(process / "fd") as entries:
                for entry in entries:
                    with suppress(OSError):
                        found.append(str(Path(entry.path).readlink()))
            if found:
                yield int(process.name), self.text(f"/proc/{process.name}/comm").strip(), found

    @property
    def npu_nodes(self) -> tuple[Path, ...]:
        """/dev/davinci0, /dev/davinci1, …, sorted by number."""
        found = [path for path in self.path("/dev").glob("davinci*") if path.name[7:].isdecimal()]
        return tuple(sorted(found, key=lambda path: int(path.name[7:])))

    @property
    def npu_smi(self) -> tuple[NpuSmiInfo, tuple[Trouble, ...], bool]:
        """The output of `npu-smi info`, its errors, and whether npu-smi exists and answers."""

        def ask() -> tuple[NpuSmiInfo, tuple[Trouble, ...], bool]:
            info = self._smi.info()
            return info, tuple(self._smi.troubles), self._smi.is_available

        return self.once("npu-smi", ask)

    def query_npu_smi(self, *words: str) -> str:
        """The output of another npu-smi command; empty if `npu-smi info` failed."""
        return self._smi.output_of(*words) if self.npu_smi[2] else ""

    @property
    def _smi(self) -> NpuSmi:
        return self.once("npu-smi queries", lambda: NpuSmi(self.timeout_seconds, env=self.env, root=self.root))

    @property
    def gpus(self) -> tuple[tuple[Accelerator, ...], str | None, tuple[Trouble, ...]]:
        """The GPUs, the driver version, and errors."""
        return self.once("gpus", self.query_gpus)

    @property
    def visible(self) -> VisibleDevices:
        """The devices that a process started on this machine can use."""
        return self.once("visible", lambda: visible_devices(self.env, self.path("/dev")))

    @property
    def versions(self) -> Versions:
        return self.once("versions", lambda: installed_versions(self.root, self.env))

    @property
    def driver_version(self) -> str | None:
        return self.versions.driver_version or self.npu_smi[0].driver_version

    @property
    def cann_logs(self) -> Path:
        """The directory of CANN's logs, by its variables."""
        return cann_logs(self.env)

    @property
    def hub_cache(self) -> Path | None:
        """The download directory of huggingface_hub, by its variables."""
        env = self.env
        caches = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else None)
        home = env.get("HF_HOME") or (f"{caches}/huggingface" if caches else None)
        place = env.get("HF_HUB_CACHE") or (f"{home}/hub" if home else None)
        return Path(place) if place else None

    def mount(self, path: Path) -> MountedFilesystem:
        """The longest mount point above `path`, and of equal ones the last one mounted."""
        best = MountedFilesystem("", None, ())
        for line in self.text("/proc/self/mountinfo").splitlines():
            left, dash, right = line.partition(" - ")
            fields, rest = left.split(), right.split()
            if not dash or len(fields) < 6 or len(rest) < 3:
                continue
            point = fields[4].replace("\\040", " ")
            if path.is_relative_to(point) and len(point) >= len(best.point):
                best = MountedFilesystem(point, rest[0], (*fields[5].split(","), *rest[2].split(",")))
        return best

    def pci_devices(self, vendor: str, classes: tuple[str, ...]) -> int:
        """Number of PCI devices of a vendor (e.g. 0x19e5) and of these classes (e.g. 0x1200)."""
        found = 0
        for device in self.path("/sys/bus/pci/devices").glob("*"):
            try:
                is_vendors = (device / "vendor").read_text().strip() == vendor
                found += is_vendors and (device / "class").read_text().startswith(classes)
            except OSError:
                continue
        return found

    @property
    def npus_on_bus(self) -> int:
        """Number of Huawei accelerators on the PCI bus, with or without driver."""
        return self.once("pci-npu", lambda: self.pci_devices("0x19e5", ("0x1200",)))

    @property
    def gpus_on_bus(self) -> int:
        return self.once("pci-gpu", lambda: self.pci_devices("0x10de", ("0x0300", "0x0302")))

    @property
    def has_npus(self) -> bool:
        """Whether the machine has NPUs, by device files, driver or PCI bus; no program is started."""
        driver = self.path("/usr/local/Ascend/driver/version.info").is_file()
        return bool(self.npu_nodes) or driver or self.npus_on_bus > 0

    @property
    def in_container(self) -> bool:
        # Docker, podman, Apptainer; Kubernetes' pods have no such file.
        files = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
        if not self.is_first_pid_namespace() or any(self.path(each).exists() for each in files):
            return True
        return not self.env.keys().isdisjoint(("container", "KUBERNETES_SERVICE_HOST")) or any(
            word in self.text("/proc/1/cgroup") for word in ("docker", "kubepods", "containerd")
        )

    def once(self, name: str, ask: Callable[[], Answer]) -> Answer:
        """The cached result of `ask`; concurrent callers wait for the first."""
        with self._locks.setdefault(name, threading.Lock()):
            if name not in self._answers:
                self._answers[name] = ask()
            answer: Answer = self._answers[name]
            return answer
