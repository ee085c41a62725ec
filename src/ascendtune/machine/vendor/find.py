"""The vendors, by the kind of their devices."""

from __future__ import annotations

from ascendtune.machine.vendor.base import Vendor
from ascendtune.machine.vendor.cpu import CpuVendor
from ascendtune.machine.vendor.cuda import CudaVendor
from ascendtune.machine.vendor.npu import NpuVendor

CPU = CpuVendor()
ACCELERATORS: tuple[Vendor, ...] = (NpuVendor(), CudaVendor())
"""In the order in which a machine's devices are chosen."""
_VENDORS: dict[str, Vendor] = {vendor.kind: vendor for vendor in (*ACCELERATORS, CPU)}


def vendor_of(kind: str) -> Vendor:
    """The vendor of devices of `kind`; the CPU's for an unknown kind, as in an old record."""
    return _VENDORS.get(kind, CPU)
