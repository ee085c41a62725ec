"""The interface of a vendor: one object per kind of device, with the differences between vendors. Free of torch."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascendtune.machine.inventory import Accelerator
    from ascendtune.machine.visible import Kind


@dataclass(frozen=True)
class ContainerNeeds:
    """Requirements of containers and schedulers for programs in them to use devices of a kind."""

    most_in_a_node: int | None = None
    """The most devices of any server that the vendor sells."""
    device_file: str | None = None
    """The file of one device, `{}` for its number."""
    control_files: tuple[str, ...] = ()
    """Device files that all devices share."""
    driver: tuple[str, ...] = ()
    """Required paths of the host, mounted read-only at the same path."""
    driver_if_there: tuple[str, ...] = ()
    """Optional ones, mounted on hosts that have them."""
    docker_driver: str | None = None
    """Docker's name of the driver that provides the devices, if device files do not suffice."""
    ulimits: Mapping[str, int] = field(default_factory=dict)
    resource: str | None = None
    """Kubernetes' name for one device."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which the vendor's scheduler recognises a job."""
    granted: Mapping[str, str] = field(default_factory=dict)
    """Variable -> annotation of the pod from which the vendor's container runtime reads the granted devices."""
    gres: str | None = None
    """Slurm's usual name for one device."""
    slurm_limits_devices: bool = True
    """Whether Slurm sets the variable that limits a job to its devices."""
    image: str | None = None
    """Name of an image that is built from our Dockerfile."""
    set_up: tuple[str, ...] = ()
    """Shell lines before a program starts."""

    def device_files(self, numbers: Sequence[str]) -> tuple[str, ...]:
        """The device files with these numbers, and those that all devices share."""
        own = tuple(self.device_file.format(each) for each in numbers) if self.device_file else ()
        return own + self.control_files

    def file_numbers(self, ids: Sequence[str], root: Path = Path("/")) -> tuple[str, ...]:
        """The numbers of the device files of the devices `ids`.

        Ids count from 0; the files of a host with a broken card have a gap. If this host has fewer devices, the job is
        for another one, whose files are assumed to have none.
        """
        folder, _, name = (self.device_file or "").rpartition("/")
        files = (root / folder.lstrip("/")).glob(name.format("[0-9]*")) if name else ()
        numbers = sorted(int(each.name.removeprefix(name.format(""))) for each in files)
        is_here = all(int(each) < len(numbers) for each in ids)
        return tuple(str(numbers[int(each)]) for each in ids) if is_here else tuple(ids)

    def mounts(self, root: Path = Path("/")) -> tuple[str, ...]:
        """Paths to mount on this host: all that are required, and those of the optional ones that exist."""
        return self.driver + tuple(path for path in self.driver_if_there if (root / path.lstrip("/")).exists())


def ids_of_files(dev: Path, pattern: str) -> tuple[str, ...]:
    """An id from 0 for each device file in `dev` whose whole name matches `pattern`."""
    found = [path for path in dev.glob("*") if re.fullmatch(pattern, path.name)]
    return tuple(map(str, range(len(found))))


@dataclass(frozen=True)
class Peak:
    """The published speed of a link, in bytes per second. `what`: the source, or the reason why there is none."""

    bytes_per_second: float | None
    what: str


@dataclass(frozen=True)
class Planned:
    """Assumptions of an estimate of memory and time on a device, which need not be present, nor its vendor's
    software."""

    attention: str
    kernels: str | None = None
    """Value of `Device.kernels`."""
    context_bytes: int = 0
    """Memory used before the first tensor: an allowance, not measured."""
    spread: tuple[float, float] = (0.85, 1.2)
    """The low and the high estimate, as factors of the expected one: on CPU as measured (docs/plan.md); elsewhere the
    allocator reserves more than tensors take. NPUs have not been measured."""
    flops_share: tuple[float, float, float] = (0.2, 0.4, 0.6)
    """Share of the dense peak that computation reaches: low, expected and high, without measurements."""
    supports_fp16: bool = True
    fuses_optimizer_in_fp16: bool = True
    fuses_without_bf16: bool = True
    """Whether chips without bf16 also have these operators for attention, `kernels` and the optimizer."""


class Vendor(ABC):
    """Differences between kinds of devices; the defaults are those of the CPU."""

    kind: Kind
    noun: str
    """Name of one device in messages."""
    plural: str
    is_accelerator = True
    """Whether devices are counted: any number of processes may share a CPU."""
    visible_variable = ""
    """Environment variable that limits the devices which a process sees; empty if there is none."""
    numbering: Mapping[str, str] = MappingProxyType({})
    """Variables with which `visible_variable` numbers devices like `device_ids` and the vendor's tool."""
    interface_variables: tuple[str, ...] = ()
    """Environment variables that set the network interface of the collective library."""
    flight_recorder: str | None = None
    """The name of torch's flight recorder in its environment variables, if a job enables it."""
    lists_desktop_processes = False
    """Whether the list of a device's processes includes those that draw windows."""
    container = ContainerNeeds()

    @property
    @abstractmethod
    def planned(self) -> Planned:
        """The assumptions of `ascendtune plan` for a device of this kind."""

    @abstractmethod
    def device_ids(self, dev: Path) -> tuple[str, ...]:
        """The devices in this machine, as values of `visible_variable`; `dev` is the directory of device files."""

    @abstractmethod
    def visible(self, ids: Sequence[str], value: str) -> tuple[str, ...]:
        """The devices among `ids` that the runtime shows to a process, as values of the visibility variable.

        Args:
            value: value of `visible_variable`.
        """

    def existing(self, names: Sequence[str]) -> tuple[str, ...]:
        """`names`, from `visible`, up to the first unique name that no device here has."""
        return tuple(names)

    @abstractmethod
    def why_unused(self) -> str | None:
        """The reason why the installed torch cannot compute on these devices; None if it can."""

    @abstractmethod
    def near_cores(self, ids: Sequence[str], root: Path = Path("/")) -> list[set[int]]:
        """The cores on the NUMA node of each device of `ids`; an empty set if unknown.

        Args:
            root: root of the paths of the kernel's files.
        """

    @abstractmethod
    def link_peak(self, ids: Sequence[str]) -> Peak:
        """The published speed of one link between two of the devices `ids`."""

    @abstractmethod
    def label(self, device: Accelerator) -> str:
        """Name of a device of the inventory in messages."""

    def environment(self, user: Mapping[str, str]) -> dict[str, str]:
        """Defaults for the environment of a job's processes.

        Args:
            user: the user's environment, whose variables may exclude some of these.
        """
        return {}

    def cuda_environment(self, user: Mapping[str, str]) -> dict[str, str]:
        """Variables with which code that was written for torch.cuda runs here; empty where the vendor cannot do that.

        Args:
            user: the user's environment.
        """
        return {}

    def network_environment(self, interface: str, address: str | None) -> dict[str, str]:
        """Variables that make the collective library use `interface`, which has `address`."""
        return {}
