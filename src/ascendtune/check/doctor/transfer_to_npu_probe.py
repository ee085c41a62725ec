"""A small script for CUDA, that `doctor --deep` starts where NPUs shall answer; prints one line of JSON.

It must not import torch_npu: scripts for CUDA do not. Started with TORCH_TRANSFER_TO_NPU=1 as
`python -m ascendtune.check.doctor.transfer_to_npu_probe`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_SIZE = 256


def main() -> None:
    """Print what `probe` found."""
    sys.stdout.write(json.dumps(probe()) + "\n")


def probe() -> dict[str, Any]:
    """is_available, device (type of the tensors), error (relative; the larger of product and gradient)."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(_SIZE, _SIZE, generator=generator) for _ in range(2))
    is_available = torch.cuda.is_available()
    ours = rows.cuda()
    torch.cuda.set_device(0)
    parameter = torch.nn.Parameter(weight.to("cuda:0"))
    product = ours @ parameter
    (ours_gradient,) = torch.autograd.grad(product.sum(), parameter)
    torch.cuda.synchronize()
    exact = rows.double() @ weight.double()
    gradient = rows.double().sum(0)[:, None].expand(_SIZE, _SIZE)
    errors = (_error(product.detach(), exact), _error(ours_gradient, gradient))
    return {"is_available": is_available, "device": ours.device.type, "error": max(errors)}


def _error(ours: Any, exact: Any) -> float:
    return float((ours.cpu().double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    main()
