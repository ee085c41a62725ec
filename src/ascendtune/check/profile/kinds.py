"""The kind of work of an operator, kernel or module, derived from its name."""

from __future__ import annotations

import re
from functools import lru_cache

_AUTOGRAD = "autograd::engine::evaluate_function: "
KINDS = ("matmul", "attention", "loss", "norm", "rotary", "activation", "optimizer", "clip", "gradients", "other")
"""Kinds of computing, with their names in the report."""

# In this order: the first pattern found in the name decides.
_OPERATORS = (
    ("collective", r"nccl|hccl|gloo:|c10d::|allreduce|all_reduce|allgather|all_gather|reduce_scatter|hcom_|lccl"),
    ("copy", r"^(aten::)?(copy_|_to_copy|to|clone|contiguous|_local_scalar_dense|item|pin_memory|_pin_memory)$"),
    ("copy", r"^Memcpy|^Memset|MEMCPY_ASYNC|AsyncMemcpy"),
    ("attention", r"scaled_dot_product|flash|fmha|[Aa]ttention|varlen_attn"),
    (
        "optimizer",
        r"Optimizer\.step|[Aa]dam|ApplyAdam|multi_tensor_apply|_foreach_(?!norm)|Foreach(?!Norm)|fused_sgd"
        r"|[Mm]uon",
    ),
    ("clip", r"_foreach_norm|ForeachNorm|linalg_vector_norm|clip_grad"),
    ("loss", r"cross_entropy|CrossEntropy|log_?softmax|LogSoftmax|nll_loss|NLLLoss|logsumexp"),
    ("norm", r"rms_?norm|RmsNorm|RMSNorm|layer_?norm|LayerNorm"),
    ("rotary", r"rotary|[Rr]ope\b|rope_"),
    ("activation", r"silu|swiglu|SwiGlu|SwiGLU|gelu|Gelu|\brelu"),
    ("matmul", r"\b(mm|addmm|bmm|baddbmm|addmm_|addbmm|matmul|linear|_grouped_mm|_scaled_mm)\b"),
    ("matmul", r"(?<!fb)gemm|GEMM|cutlass|cublas|nvjet|xmma|MatMul|BatchMatMul|GroupedMatmul|_mm_kernel"),
    ("gradients", r"AccumulateGrad|distributed::reducer|distributed\.ddp\.reducer|^_DDPSink"),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _OPERATORS)

_WAITS = re.compile(
    r"^(cuda|cu|hip|aclrt)?(StreamSynchronize|DeviceSynchronize|EventSynchronize|CtxSynchronize|Memcpy)(_ptsz|_v2)?$"
    r"|^(cuda|hip)(Malloc|Free|HostAlloc)$|^aclrtSynchronize(Stream|Device|Event)(WithTimeout)?$"
)
"""Driver calls in which the host waits for the device."""

_MODULES = (
    ("norm", re.compile(r"Norm")),
    ("rotary", re.compile(r"Rotary")),
    ("in_attention", re.compile(r"Attention")),
    ("in_mlp", re.compile(r"MLP|FeedForward|Experts|M[oO]E")),
)
_LINEAR_NODES = re.compile(r"^_(LinearWithAdapter|QuantisedProduct)(Backward)?$")
"""Nodes of this project's linear layers: with an adapter, and with a quantised weight."""
_VIEWS = re.compile(
    r"^aten::(view|to|_unsafe_view|reshape|transpose|permute|t|expand|expand_as|slice|select|as_strided|unsqueeze|squeeze"
    r"|narrow|split|split_with_sizes|unbind|alias|detach|detach_|lift_fresh|result_type|empty|empty_like|empty_strided"
    r"|_reshape_alias|view_as|chunk|unfold|resolve_conj|resolve_neg|set_|resize_)$|^detach$"
)
_COLLECTIVES = (
    ("all-reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("reduce-scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all-gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all-to-all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("send and receive", re.compile(r"send|recv|receive", re.IGNORECASE)),
)


def short_name(name: str) -> str:
    """The name of an operator without autograd's prefix."""
    return name.removeprefix(_AUTOGRAD)


@lru_cache(maxsize=1 << 16)
def kind_of_operator(name: str) -> str:
    """One of `KINDS`, or "collective" or "copy"; "other" if the name matches no pattern."""
    # Autograd's names contain the name of the forward operator: MmBackward0, AddmmBackward0.
    plain = short_name(name)
    if match := re.fullmatch(r"([A-Z]\w*?)Backward\d*", plain):
        plain = re.sub(r"(?<!^)(?=[A-Z])", "_", match[1]).lower() + " " + match[1]
    return next((kind for kind, pattern in _COMPILED if pattern.search(plain)), "other")


@lru_cache(maxsize=1 << 16)
def is_linear_node(name: str) -> bool:
    """Whether the operator is the autograd node of one of this project's linear layers.

    Beside its products it casts, adds, and dequantises a weight by look-ups and copies, which are not work of the
    module around it.
    """
    return bool(_LINEAR_NODES.match(short_name(name)))


@lru_cache(maxsize=1 << 16)
def kind_of_module(name: str) -> str:
    """ "norm", "rotary", "in_attention", "in_mlp", or "" for other classes of modules."""
    return next((kind for kind, pattern in _MODULES if pattern.search(name)), "")


@lru_cache(maxsize=1 << 16)
def kind_of_collective(name: str) -> str:
    """The collective of a kernel or of a range of a communication library, such as "all-reduce"."""
    return next((kind for kind, pattern in _COLLECTIVES if pattern.search(name)), "other collectives")


@lru_cache(maxsize=1 << 16)
def waits(name: str) -> bool:
    """Whether the host waits for the device in this driver call."""
    return bool(_WAITS.match(name))


@lru_cache(maxsize=1 << 16)
def is_view(name: str) -> bool:
    """Whether the operator only creates a view or an empty tensor, without computing."""
    return bool(_VIEWS.match(name))


def kind_in_module(module: str, own: str, name: str) -> str:
    """The kind of an operator inside a module.

    Args:
        module: result of `kind_of_module`; "" outside.
        own: result of `kind_of_operator` for the operator itself.
    """
    if module in ("norm", "rotary"):
        return module
    if module == "in_attention":
        # Unfused attention: batched matrix products and a softmax.
        if own == "attention" or re.search(r"bmm|softmax", name):
            return "attention"
        return own if own in ("matmul", "norm", "collective", "loss") else "rotary"
    if module == "in_mlp":
        return "activation" if own in ("other", "copy") else own
    return own
