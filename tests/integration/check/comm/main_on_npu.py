"""The command on a simulated Ascend node: the device files by which a real node is known are not simulated."""

import sys

from ascendtune.cli.main import main
from ascendtune.machine.vendor.npu import NpuVendor

NpuVendor.device_ids = lambda self, dev: ("0", "1")
main(sys.argv[1:])
