"""NVIDIA GPUs. `--gpus` and the ulimits: NVIDIA's user guide for its framework containers; `nvidia.com/gpu`: its device
plugin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ascendtune.machine.vendor.base import ContainerNeeds, Peak, Planned, Vendor, ids_of_files

if TYPE_CHECKING:
    from ascendtune.machine.inventory import Accelerator


class CudaVendor(Vendor):
    kind = "cuda"
    noun = "GPU"
    plural = "GPU"
    visible_variable = "CUDA_VISIBLE_DEVICES"
    # By default CUDA puts the fastest GPU first; nvidia-smi orders GPUs by the bus.
    numbering = MappingProxyType({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    interface_variables = ("NCCL_SOCKET_IFNAME",)
    flight_recorder = "NCCL"
    lists_desktop_processes = True
    container = ContainerNeeds(
        most_in_a_node=16,
        docker_driver="nvidia",
        ulimits={"memlock": -1, "stack": 67_108_864},
        resource="nvidia.com/gpu",
        gres="gpu",
    )

    @property
    def planned(self) -> Planned:
        # The extra `cuda` installs Liger: it is missing only if this machine trains on CUDA and lacks it.
        has_liger = find_spec("liger_kernel") is not None or self.why_unused() is not None
        return Planned(
            "varlen",
            "liger" if has_liger else "cuda",
            context_bytes=2**29,
            # Measured on one H200: memory within 0.4 % of the expected, and shares of 0.44 (1B) to 0.52 (8B).
            # Public runs of 7B and 8B models: H100 0.37 to 0.46, A100 0.43 (docs/plan.md).
            spread=(0.95, 1.2),
            flops_share=(0.35, 0.45, 0.55),
        )

    def device_ids(self, dev: Path) -> tuple[str, ...]:
        try:
            import pynvml
        except ImportError:
            return ids_of_files(dev, r"nvidia\d+")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return ()
        try:
            return tuple(map(str, range(pynvml.nvmlDeviceGetCount())))
        finally:
            pynvml.nvmlShutdown()

    def visible(self, ids: Sequence[str], value: str) -> tuple[str, ...]:
        """Unique names (GPU-…, MIG-…) are returned unchanged: `existing` looks them up."""
        # Like the CUDA runtime, and torch after it (torch/cuda/__init__.py, _parse_visible_devices).
        prefix = next((each for each in ("GPU-", "MIG-") if value.startswith(each)), None)
        names = value.split(",")
        if prefix is not None:
            kept = list(takewhile(lambda name: name.startswith(prefix), names))
        else:
            numbers = (re.match(r"\+?([0-9]+)", name.strip()) for name in names)
            kept = [str(int(number[1])) for number in takewhile(bool, numbers) if number]
        if len(set(kept)) < len(kept):
            return ()
        return tuple(kept) if prefix is not None else tuple(takewhile(ids.__contains__, kept))

    def existing(self, names: Sequence[str]) -> tuple[str, ...]:
        """As in torch (torch/cuda/__init__.py, _transform_uuid_to_ordinals); NVML does not list MIG-… among the
        GPUs."""
        from ascendtune.machine.cuda import gpus

        if not any(name.startswith("GPU-") for name in names):
            return tuple(names)
        existing_gpus = gpus()[0]
        if not existing_gpus or any(gpu.uuid is None for gpu in existing_gpus):
            return tuple(names)
        matching = [[gpu.uuid for gpu in existing_gpus if gpu.is_named(name)] for name in names]
        found = [gpus_of_name[0] for gpus_of_name in takewhile(lambda each: len(each) == 1, matching)]
        return tuple(names[: len(found)]) if len(set(found)) == len(found) else ()

    def why_unused(self) -> str | None:
        spec = find_spec("torch")
        is_built_for_cuda = spec and spec.origin and cuda_of_torch(Path(spec.origin).parent)
        return None if is_built_for_cuda else "the installed torch is built without CUDA"

    def near_cores(self, ids: Sequence[str], root: Path = Path("/")) -> list[set[int]]:
        from ascendtune.machine.cuda import gpus
        from ascendtune.machine.npu.topology import cores_of

        existing_gpus = gpus()[0]
        found: list[set[int]] = []
        for each in ids:
            matching = [gpu for gpu in existing_gpus if gpu.is_named(each)]
            # NVIDIA writes the domain with eight digits, the kernel with four.
            place = (matching[0].bus_id or "").lower()[-12:] if len(matching) == 1 else "unknown"
            try:
                found.append(cores_of((root / "sys/bus/pci/devices" / place / "local_cpulist").read_text()))
            except OSError:
                found.append(set())
        return found

    def link_peak(self, ids: Sequence[str]) -> Peak:
        return Peak(None, "no published speed of the links between these GPUs is known here")

    def label(self, device: Accelerator) -> str:
        return f"GPU {device.phy_id}"

    def environment(self, user: Mapping[str, str]) -> dict[str, str]:
        # torch from 2.9 on prefers the name without CUDA, and accepts the one with it; both at once are ambiguous.
        if "PYTORCH_ALLOC_CONF" in user:
            return {}
        # Expandable segments leave fewer gaps if lengths differ from batch to batch.
        # https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

    def network_environment(self, interface: str, address: str | None) -> dict[str, str]:
        return {"NCCL_SOCKET_IFNAME": f"={interface}"}


def cuda_of_torch(directory: Path) -> str | None:
    """The CUDA version that the torch in `directory` is built for, or None; not imported, because that takes a
    second."""
    try:
        text = (directory / "version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)", text, re.MULTILINE)
    return found[1] if found else None
