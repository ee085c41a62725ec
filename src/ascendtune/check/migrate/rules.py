"""Rules on CUDA code: what runs on Ascend and what does not, one rule per subject, with its source.

[torch_npu] marks facts that were read and tried in torch_npu 2.13: contrib/transfer_to_npu.py, and the functions of
torch.cuda that are unchanged after its import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rule:
    """A subject, its effect on Ascend, and what to do instead."""

    code: str
    status: Literal["failure", "warning", "ok"]
    """failure: it does not run, or computes something else; warning: it runs, but should be checked."""
    what: str
    remedy: str = ""


def _words(text: str) -> list[str]:
    return text.split()


RULES = {
    rule.code: rule
    for rule in (
        # [torch_npu] Tensor.cuda, Module.cuda, device arguments, torch.cuda.*, nccl -> hccl.
        Rule("moves-by-itself", "ok", "device calls that transfer_to_npu replaces by NPU calls"),
        Rule(
            "cuda-only-api",
            "failure",
            "functions of torch.cuda that transfer_to_npu leaves as they are",
            "skip them on NPU, or use the counterpart: torch_npu.npu.mstx for nvtx, torch_npu.profiler for "
            "profiler, `npu-smi info` for power, temperature and clocks",
        ),
        Rule(
            "float64",
            "warning",
            "64-bit floats, which few NPU operators support; transfer_to_npu makes torch.cuda.DoubleTensor FloatTensor",
            "compute in fp32, or keep this part on the CPU",
        ),
        Rule(
            "torch-compile",
            "warning",
            "torch.compile with its default backend, inductor: transfer_to_npu disables Triton for it",
            "run without it first; then torchair.get_npu_backend() as backend, or triton-ascend for inductor",
        ),
        Rule(
            "torch-jit",
            "warning",
            "torch.jit.script, which transfer_to_npu disables: the function runs as plain Python",
            "nothing, unless a scripted module is saved or its speed matters",
        ),
        Rule(
            "device-compare",
            "warning",
            "comparisons with 'cuda' or 'nccl': a moved tensor's device is 'npu', a moved backend 'hccl', so the other "
            "branch runs",
            "compare with 'cpu' instead, or accept 'npu' and 'hccl' too",
        ),
        Rule(
            "cuda-backends",
            "warning",
            "settings of cuDNN and cuBLAS, which have no effect on NPU",
            "torch_npu.npu.matmul.allow_hf32 and torch_npu.npu.conv.allow_hf32 correspond to TF32",
        ),
        Rule(
            "cuda-variables",
            "warning",
            "variables that only CUDA and NCCL read",
            "CUDA_VISIBLE_DEVICES -> ASCEND_RT_VISIBLE_DEVICES, PYTORCH_CUDA_ALLOC_CONF -> PYTORCH_NPU_ALLOC_CONF, "
            "CUDA_LAUNCH_BLOCKING -> ASCEND_LAUNCH_BLOCKING, NCCL_SOCKET_IFNAME -> HCCL_SOCKET_IFNAME; drop others",
        ),
        Rule(
            "cuda-kernels",
            "failure",
            "CUDA sources: kernels, and C++ that includes CUDA's headers or calls its functions",
            "look for the operator in torch_npu and CANN; otherwise write it in Ascend C, or with torch operators",
        ),
        Rule(
            "cuda-extension",
            "failure",
            "builds of CUDA extensions",
            "torch_npu.utils.cpp_extension.NpuExtension builds C++ that calls CANN; kernels have to be rewritten",
        ),
        Rule(
            "nvidia-tools",
            "failure",
            "NVIDIA's programs and container images",
            "npu-smi or `ascendtune devices` for nvidia-smi, an Ascend image (quay.io/ascend/cann) for nvidia/cuda, "
            "huawei.com/Ascend910 for nvidia.com/gpu, --device /dev/davinciN for --gpus",
        ),
        Rule(
            "cuda-wheels",
            "failure",
            "packages built for CUDA",
            "the CPU build of torch and the torch-npu of the same version; leave nvidia-* and cu1xx indexes out",
        ),
        Rule(
            "bitsandbytes",
            "failure",
            "bitsandbytes, whose released wheels have no NPU backend: 8-bit optimizers, 4- and 8-bit weights",
            "LoRA on bf16 weights instead of QLoRA, AdamW instead of its 8-bit form; or build the NPU branch yourself",
        ),
        Rule(
            "flash-attn",
            "failure",
            "flash_attn, which has CUDA kernels only",
            "transformers calls the NPU's own kernel for attn_implementation flash_attention_2 without this package; "
            "in your own code F.scaled_dot_product_attention, or torch_npu.npu_fusion_attention (TND for packed rows)",
        ),
        Rule(
            "xformers",
            "failure",
            "xformers, which has CUDA kernels only",
            "torch.nn.functional.scaled_dot_product_attention, or torch_npu.npu_fusion_attention",
        ),
        Rule(
            "apex",
            "failure",
            "NVIDIA's apex",
            "torch.amp, torch.optim.AdamW(fused=True), torch.nn.RMSNorm; the vendor's fork is gitcode.com/Ascend/apex",
        ),
        Rule(
            "triton",
            "failure",
            "Triton kernels: triton's own wheels compile for NVIDIA and AMD",
            "triton-ascend replaces triton (install it last); expect to tune block sizes, or use torch operators",
        ),
        Rule(
            "deepspeed-ops",
            "failure",
            # deepspeed 0.19: op_builder/npu has these and no others.
            "operators of DeepSpeed that it does not build for NPU (it builds async_io, CPU and fused Adam and Lion, "
            "Lamb, inference, quantizer)",
            "torch's own operators; ZeRO itself runs",
        ),
        Rule(
            "cuda-libraries",
            "failure",
            "libraries with CUDA kernels and no NPU build",
            "look for the operator in torch_npu, MindSpeed or vllm-ascend; otherwise compose it from torch operators",
        ),
        Rule(
            "liger",
            "warning",
            "Liger, which reaches the NPU through triton-ascend (0.8.5 needs torch 2.9 and CANN 9.1)",
            "remove it; ascendtune replaces such modules by torch_npu's fused operators",
        ),
        Rule("not-readable", "warning", "files that this Python cannot parse", "review them by hand"),
    )
}

MODULES = {
    "bitsandbytes": "bitsandbytes",
    "xformers": "xformers",
    "apex": "apex",
    "amp_C": "apex",
    "fused_layer_norm_cuda": "apex",
    "triton": "triton",
    "liger_kernel": "liger",
    "pynvml": "nvidia-tools",
    "nvidia_smi": "nvidia-tools",
    "GPUtil": "nvidia-tools",
    **dict.fromkeys(("flash_attn", "flash_attn_interface", "flash_attn_2_cuda", "flash_attn_3"), "flash-attn"),
    **dict.fromkeys(
        _words(
            "transformer_engine tensorrt torch_tensorrt tensorrt_llm cupy pycuda cudf cuml nvidia flashinfer "
            "deep_gemm deep_ep mamba_ssm causal_conv1d megablocks grouped_gemm auto_gptq gptqmodel awq "
            "exllamav2 vllm_flash_attn sageattention unsloth dali"
        ),
        "cuda-libraries",
    ),
}
"""Top-level module -> rule."""

SUBMODULES = {
    "numba.cuda": "cuda-libraries",
    "torch.utils.cpp_extension.CUDAExtension": "cuda-extension",
    "torch.utils.cpp_extension.CUDA_HOME": "cuda-extension",
    "transformers.BitsAndBytesConfig": "bitsandbytes",
    **{
        f"deepspeed.ops.{name}": "deepspeed-ops"
        for name in _words("sparse_attention transformer random_ltd spatial deepspeed4science fp_quantizer gds")
    },
    "torch.backends.cudnn": "cuda-backends",
    "torch.backends.cuda": "cuda-backends",
    "torch.float64": "float64",
    "torch.double": "float64",
    "torch.DoubleTensor": "float64",
    "torch.cuda.DoubleTensor": "float64",
    "torch.jit.script": "torch-jit",
    "torch.jit.script_method": "torch-jit",
}
"""Dotted name, or its prefix -> rule."""

CUDA_ONLY = frozenset(
    # [torch_npu] These are unchanged after transfer_to_npu.
    _words(
        "CUDAPluggableAllocator GreenContext caching_allocator_disabled caching_allocator_enable "
        "check_error clock_rate cudaStatus cudart current_solver_handle device_memory_used get_arch_list "
        "get_gencode_flags get_stream_from_external is_tf32_supported list_gpu_processes memory_usage "
        "power_draw temperature nccl nvtx profiler jiterator tunable ComplexDoubleStorage"
    )
)
"""Names in torch.cuda that transfer_to_npu does not replace."""

KEYWORDS = {"load_in_4bit": "bitsandbytes", "load_in_8bit": "bitsandbytes"}
"""Keyword argument -> rule, unless its value is False."""

STRINGS = (
    (r"(paged_)?(adamw|lion|rmsprop|ademamix)_(bnb_)?8bit|paged_(adamw|lion)_32bit|\w+_bnb(_\w+)?", "bitsandbytes"),
    (r"flash_attention_3", "flash-attn"),
    (r"(CUDA_(?!HOME)|NCCL_|TORCH_NCCL_|PYTORCH_CUDA_)[A-Z0-9_]+", "cuda-variables"),
    (r"nvidia-smi\b.*", "nvidia-tools"),
)
"""Patterns for whole strings in Python code -> rule."""

PACKAGES = {
    "flash-attn": "flash-attn",
    "bitsandbytes": "bitsandbytes",
    "xformers": "xformers",
    "apex": "apex",
    "triton": "triton",
    "liger-kernel": "liger",
    "nvidia-ml-py": "nvidia-tools",
    "pynvml": "nvidia-tools",
    **dict.fromkeys(
        _words(
            "transformer-engine tensorrt flashinfer-python mamba-ssm causal-conv1d auto-gptq autoawq "
            "gptqmodel megablocks unsloth sageattention tensorrt-llm"
        ),
        "cuda-libraries",
    ),
}
"""Distribution in a requirements file -> rule."""


@dataclass(frozen=True)
class Hit:
    code: str
    line: int
    text: str
    """The source line."""
    is_optional: bool = False
    """An import whose failure is caught: the code runs without it."""
