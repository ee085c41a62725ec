"""Ascend NPUs; their ranks communicate by HCCL. The only file of this room that uses torch_npu."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ascendtune.core.errors import MachineError
from ascendtune.machine.torch_backend.device import Device, StepProfiler, require_index

# Dense bf16 FLOP/s per device of torch, for an A3 per die. Sources: train/plan/devices.toml.
_PEAK_FLOPS = {
    "Ascend910B1": 374e12,
    "Ascend910B2": 354e12,
    "Ascend910B3": 295e12,
    "Ascend910B4": 246e12,
    "Ascend910_93": 354e12,
}

_JIT_COMPILE = "ASCENDTUNE_JIT_COMPILE"
"""1: compile operators at first use; with packed rows of one length they can be faster."""
_SETTINGS = (
    "TASK_QUEUE_ENABLE", "ASCEND_LAUNCH_BLOCKING", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "MULTI_STREAM_MEMORY_REUSE", "CPU_AFFINITY_CONF", "COMBINED_ENABLE", "ACLNN_CACHE_LIMIT", "HCCL_BUFFSIZE",
    "HCCL_OP_EXPANSION_MODE", "HCCL_DETERMINISTIC",
)  # fmt: skip
"""Variables that scripts for Ascend set for speed or memory."""


def npu_is_usable() -> bool:
    """Whether torch_npu is installed, can be imported, and finds a device. The doctor explains a broken
    installation."""
    if importlib.util.find_spec("torch_npu") is None:
        return False
    import torch_npu

    return bool(torch_npu.npu.is_available())


class NpuDevice(Device):
    kind = "npu"
    collective_backend = "hccl"
    # On the 910B sums over ranks are not deterministic otherwise (hccl, HCCL_DETERMINISTIC.md). torch_npu tells HCCL of
    # torch's switch with the next operator, which may come after the first communicator is made.
    deterministic_variables = MappingProxyType({"HCCL_DETERMINISTIC": "true"})
    supports_fp64 = False
    # torch_npu 2.13 needs HcclGroupStart of libhcomm.so; if CANN does not have it, the process is unusable afterwards.
    batches_messages = False
    # Once a device is bound, torch asks every further group for its backend, also Gloo's for the host. Gloo claims
    # CUDA; for an NPU new_group raises "No backend type associated with device type npu" (torch 2.13).
    binds_process_group = False

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        try:
            import torch_npu
        except ImportError as error:
            raise MachineError(
                f"torch_npu cannot be imported: {error}",
                code="torch-npu-broken",
                remedy="install the torch-npu that belongs to this torch and source CANN's set_env.sh",
            ) from error
        self._npu = torch_npu.npu
        self._version = str(torch_npu.__version__)
        require_index(index, int(self._npu.device_count()), "npu")

    @property
    def attention(self) -> str:
        return "npu_fusion" if self._has_fused_operators else "sdpa"

    @property
    def kernels(self) -> str | None:
        return "npu" if self._has_fused_operators else None

    @property
    def _has_fused_operators(self) -> bool:
        """CANN has them for the 910B1 and later, the first with bf16 (pages of npu_fusion_attention and
        aclnnApplyAdamWV2)."""
        return self.supports_bf16

    @property
    def torch_device(self) -> torch.device:
        return torch.device("npu", self.index)

    @property
    def name(self) -> str:
        return str(self._npu.get_device_name(self.index))

    @property
    def memory_total_bytes(self) -> int:
        return int(self._npu.get_device_properties(self.index).total_memory)

    def memory_peak_bytes(self) -> int:
        return int(self._npu.max_memory_allocated(self.index))

    def activate(self) -> None:
        self._npu.set_device(self.index)
        # Operators that are compiled ahead: if lengths differ from batch to batch, those that are compiled at first use
        # are compiled again and again. The first generation has the opposite default.
        # https://www.hiascend.com/document/detail/zh/canncommercial/601/modeldevpt/ptmigr/ptmigr_0013.html
        # https://www.hiascend.com/document/detail/zh/Pytorch/700/apiref/apilist/ptaoplist_000610.html
        self._npu.set_compile_mode(jit_compile=os.environ.get(_JIT_COMPILE) == "1")

    def settings(self) -> dict[str, str]:
        variables = {name: os.environ[name] for name in _SETTINGS if name in os.environ}
        return {"jit_compile": str(not self._npu.is_jit_compile_false()).lower(), **variables}

    def product_types(self) -> dict[str, str]:
        """HF32 where torch_npu allows it: by default for convolutions. Unknown for chips before the 910B."""
        if not self._has_fused_operators:
            return {}
        switches = {"matmul": self._npu.matmul, "conv": self._npu.conv}
        return {name: "hf32" if switch.allow_hf32 else "fp32" for name, switch in switches.items()}

    def synchronize(self) -> None:
        self._npu.synchronize(self.index)

    @property
    def supports_bf16(self) -> bool:
        # torch_npu answers by the order of its list of chips, in which the 310B, made for inference, follow the 910B.
        return bool(self._npu.is_bf16_supported()) and not self.name.startswith("Ascend310")

    @property
    def supports_fp16(self) -> bool:
        return True

    @property
    def supports_fp8(self) -> bool:
        # The 950 is the first with them (Huawei's announcement of its roadmap, September 2025).
        return self.name.startswith(("Ascend950", "Ascend910_95"))

    def fuses_optimizer(self, compute: str) -> bool:
        # torch's fused AdamW skips a step when the scaler has found an overflow. torch_npu's implementation ignores it
        # (2.13): after one overflow all weights are NaN.
        return compute != "fp16" and self._has_fused_operators

    def gradient_scaler(self, *, on_host: bool = False) -> torch.amp.GradScaler:
        if on_host:
            # The vendor's reads its overflow flag on the device only, and its copies to the host too early.
            raise MachineError(
                "precision is fp16, which cannot be scaled on this device while parallel.fsdp.offload keeps gradients "
                "in host memory",
                code="fp16-unsupported",
                remedy="use precision: bf16 or fp32, more devices without parallel.fsdp.offload, or method.tuner: lora",
            )
        # The vendor's own: torch's needs an operator that chips without bf16 do not have (aclnnAmpUpdateScale), and
        # cannot detect an overflow on chips that saturate instead of returning an infinity.
        scaler: Any = self._npu.amp.GradScaler()
        unscale = scaler.unscale_

        def unscale_gradients(optimizer: torch.optim.Optimizer) -> None:
            with _without_empty_gradients(optimizer):
                unscale(optimizer)

        scaler.unscale_ = unscale_gradients
        return scaler  # type: ignore[no-any-return]

    def profiler(self, directory: Path, name: str, *, steps: int, stacks: bool, memory: bool) -> StepProfiler:
        """torch_npu's own profiler, whose files are in `DIRECTORY/NAME_…_ascend_pt/ASCEND_PROFILER_OUTPUT`."""
        import torch_npu.profiler as vendor

        # Level 1: with the communication operators, and their waiting times.
        level = vendor._ExperimentalConfig(
            export_type=[vendor.ExportType.Text], profiler_level=vendor.ProfilerLevel.Level1
        )
        profiler: StepProfiler = vendor.profile(
            activities=[vendor.ProfilerActivity.CPU, vendor.ProfilerActivity.NPU],
            schedule=vendor.schedule(wait=0, warmup=1, active=steps, repeat=1),
            on_trace_ready=vendor.tensorboard_trace_handler(str(directory), worker_name=name),
            with_stack=stacks,
            profile_memory=memory,
            experimental_config=level,
        )
        return profiler

    @property
    def peak_flops(self) -> float | None:
        return next((flops for chip, flops in _PEAK_FLOPS.items() if self.name.startswith(chip)), None)

    def versions(self) -> dict[str, str | None]:
        return {"torch_npu": self._version, "cann_home": os.environ.get("ASCEND_HOME_PATH")}


@contextmanager
def _without_empty_gradients(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Context in which parameters without rows on this rank have no gradient.

    aclnnForeachNonFiniteCheckAndUnscale refuses empty tensors. FSDP has them on ranks if a weight has fewer rows than
    there are ranks: a reward model's score has one, an adapter's A as many as its rank.
    """
    trained = [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
    empty = [(each, each.grad) for each in trained if not _local(each.grad).numel()]
    # A rank without any gradient would not take part in the sum of the overflow flags over ranks.
    if len(empty) == len(trained):
        empty = []
    for parameter, _ in empty:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in empty:
            parameter.grad = gradient


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The local part of `tensor`, any shape, on this rank."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
