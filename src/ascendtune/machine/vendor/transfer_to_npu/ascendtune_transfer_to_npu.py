"""Calls of torch.cuda run on NPUs in every Python process that has this directory in PYTHONPATH.

torch looks for backends among the entry points `torch.backends` of what is installed when it has been imported. The
directory beside this file is what an installed package looks like, with such an entry point. torch_npu's variable
TORCH_TRANSFER_TO_NPU does the same, but in its products from 26.0.0 on only: those of CANN 8.2 to 8.5 do not read it.
"""

from __future__ import annotations


def autoload() -> None:
    """Called by torch at the end of its import."""
    from torch_npu.contrib import transfer_to_npu  # noqa: F401  # the import replaces the functions
