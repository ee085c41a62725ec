"""The simulated operators that training uses: each against torch's CPU, and each noticed when it is wrong."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ascend_node.cann.node import Node
from ascendtune.core.rundir import RunDir
from ascendtune.train.kernel.experts import multiply_by_group
from ascendtune.train.kernel.rotary import rotate_by_halves

Case = Callable[[list[torch.Tensor]], Any]


def drawn(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def strided(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    """The same values, laid out in memory in another way."""
    if kind == 1 and tensor.ndim >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == 2:
        wide = torch.empty((*tensor.shape[:-1], tensor.shape[-1] * 2), dtype=tensor.dtype, device=tensor.device)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if kind == 3:
        long = torch.empty((tensor.shape[0] + 3, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
        long[3:] = tensor
        return long[3:]
    return tensor


def fused_or_written_out(part: str, x: list[torch.Tensor]) -> torch.Tensor:
    """A fused operator of ours on the device, and on the CPU the formula that stands for it."""
    if x[0].device.type == "npu":
        from ascendtune.train.kernel import npu

        kernel: Any = {
            "rms_norm": npu.npu_rms_norm, "rotary": npu.npu_rotary_mul, "swiglu": npu.npu_swiglu,
            "experts": lambda *x: npu.npu_grouped_matmul(*x, COUNTS.to("npu")),
        }[part]  # fmt: skip
        found = kernel(*x, 1e-5) if part == "rms_norm" else kernel(*x)
    elif part == "rms_norm":
        found = x[0] * torch.rsqrt(x[0].pow(2).mean(-1, keepdim=True) + 1e-5) * x[1]
    elif part == "experts":
        found = multiply_by_group(*x, COUNTS)
    elif part == "swiglu":
        found = nn.functional.silu(x[0]) * x[1]
    else:
        found = rotate_by_halves(*x)
    return found if isinstance(found, torch.Tensor) else torch.cat([each.flatten() for each in found])


MATRIX, ROWS = (7, 12), (5, 12)
INDEX = torch.tensor([3, 0, 6, 3, 1])
COUNTS = torch.tensor([3, 0, 4])
MASK = torch.tensor([[True, False, False] * 4] * 7)

# Name, shapes of random inputs, and what to compute. Tensors that a case makes itself go where its first input is.
FORWARD: dict[str, tuple[list[tuple[int, ...]], Case]] = {
    "add": ([MATRIX, MATRIX], lambda x: torch.add(x[0], x[1], alpha=0.3)),
    "add broadcast": ([MATRIX, (12,)], lambda x: x[0] + x[1]),
    "add number": ([MATRIX], lambda x: x[0] + 0.7),
    "sub": ([MATRIX, MATRIX], lambda x: x[0] - x[1]),
    "rsub": ([MATRIX], lambda x: 1.5 - x[0]),
    "mul": ([MATRIX, (7, 1)], lambda x: x[0] * x[1]),
    "div": ([MATRIX, MATRIX], lambda x: x[0] / (x[1].abs() + 1)),
    "neg": ([MATRIX], lambda x: -x[0]),
    "pow": ([MATRIX], lambda x: x[0].pow(2)),
    "rsqrt": ([MATRIX], lambda x: (x[0].abs() + 0.1).rsqrt()),
    "cos and sin": ([MATRIX], lambda x: x[0].cos() * x[0].sin()),
    "exp and log": ([MATRIX], lambda x: (x[0].exp() + 1).log()),
    "sigmoid": ([MATRIX], lambda x: x[0].sigmoid()),
    "tanh": ([MATRIX], lambda x: x[0].tanh()),
    "silu": ([MATRIX], lambda x: nn.functional.silu(x[0])),
    "clamp": ([MATRIX], lambda x: x[0].clamp(-0.5, 0.4)),
    "compare": ([MATRIX, MATRIX], lambda x: (x[0] > x[1]) | (x[0] <= -1)),
    "where": ([MATRIX, MATRIX], lambda x: torch.where(x[0] > 0, x[0], x[1])),
    "masked fill": ([MATRIX], lambda x: x[0].masked_fill(MASK.to(x[0].device), -2.0)),
    "cast to bf16": ([MATRIX], lambda x: x[0].to(torch.bfloat16)),
    "cast to fp16": ([MATRIX], lambda x: x[0].half().float()),
    "sum": ([(3, 4, 5)], lambda x: x[0].sum((0, 2))),
    "mean": ([(3, 4, 5)], lambda x: x[0].mean(-1, keepdim=True)),
    "max": ([MATRIX], lambda x: x[0].max(-1).values),
    "argmax": ([MATRIX], lambda x: x[0].argmax(-1)),
    "norm": ([MATRIX], lambda x: torch.linalg.vector_norm(x[0])),
    "any and all": ([MATRIX], lambda x: torch.stack([(x[0] > 2).any(), (x[0] > -9).all()])),
    "cumsum": ([MATRIX], lambda x: x[0].cumsum(0)),
    "logsumexp": ([MATRIX], lambda x: torch.logsumexp(x[0], -1)),
    "softmax": ([(2, 3, 5)], lambda x: x[0].softmax(-1)),
    "log_softmax": ([MATRIX], lambda x: x[0].log_softmax(-1)),
    "cross_entropy": ([ROWS], lambda x: nn.functional.cross_entropy(x[0], INDEX.to(x[0].device))),
    "mm": ([(5, 7), MATRIX], lambda x: x[0] @ x[1]),
    "addmm": ([(12,), (5, 7), MATRIX], lambda x: torch.addmm(x[0], x[1], x[2])),
    "linear": ([(2, 5, 12), (7, 12), (7,)], lambda x: nn.functional.linear(*x)),
    "bmm": ([(3, 4, 5), (3, 5, 2)], lambda x: x[0] @ x[1]),
    "baddbmm": ([(3, 4, 2), (3, 4, 5), (3, 5, 2)], lambda x: torch.baddbmm(*x, alpha=0.3)),
    "embedding": ([MATRIX], lambda x: nn.functional.embedding(INDEX.to(x[0].device), x[0])),
    "index": ([MATRIX], lambda x: x[0][INDEX.to(x[0].device)]),
    "index of a dimension": ([(3, 7, 2)], lambda x: x[0][:, INDEX.to(x[0].device)]),
    "index_select": ([MATRIX], lambda x: x[0].index_select(0, INDEX.to(x[0].device))),
    "index_add": ([MATRIX, ROWS], lambda x: x[0].index_add(0, INDEX.to(x[0].device), x[1], alpha=0.5)),
    "gather": ([ROWS], lambda x: x[0].gather(1, INDEX.to(x[0].device)[:, None])),
    "scatter_add": ([ROWS, (5, 1)], lambda x: x[0].scatter_add(1, INDEX.to(x[0].device)[:, None], x[1])),
    "boolean index": ([MATRIX], lambda x: x[0][MASK.to(x[0].device)]),
    "nonzero": ([MATRIX], lambda x: (x[0] > 0).nonzero()),
    "cat": ([MATRIX, ROWS], lambda x: torch.cat([x[0], x[1]])),
    "stack": ([MATRIX, MATRIX], lambda x: torch.stack(x, 1)),
    "pad": ([MATRIX], lambda x: nn.functional.pad(x[0], (1, 2), value=3.0)),
    "triu": ([MATRIX], lambda x: torch.triu(x[0], 1)),
    "arange": ([(1,)], lambda x: torch.arange(2, 19, 3, device=x[0].device)),
    "eye": ([(1,)], lambda x: torch.eye(3, 5, device=x[0].device)),
    "repeat": ([(2, 3)], lambda x: x[0].repeat(2, 2)),
    "repeat_interleave": ([(2, 3)], lambda x: x[0].repeat_interleave(3, 1)),
    "sort": ([MATRIX], lambda x: x[0].sort(-1).values),
    "topk": ([MATRIX], lambda x: x[0].topk(3).values),
    "copy from another layout": ([MATRIX], lambda x: torch.zeros_like(x[0]).copy_(x[0])),
    "fill": ([MATRIX], lambda x: torch.full_like(x[0], 0.25) + torch.ones_like(x[0]) + torch.zeros_like(x[0])),
    "in place": ([MATRIX, MATRIX], lambda x: x[0].clone().add_(x[1]).mul_(0.5).addcmul_(x[1], x[1]).sub_(1).div_(3)),
    "lists": ([MATRIX, ROWS], lambda x: torch.cat(torch._foreach_mul(torch._foreach_add(x, 1.0), 2.0))),
    "norms of lists": ([MATRIX, ROWS], lambda x: nn.utils.get_total_norm(x)),
    "max and min of all": ([MATRIX], lambda x: torch.stack([x[0].max(), x[0].min()])),
    "is finite": ([MATRIX], lambda x: (x[0] / x[0].clamp(min=0)).isfinite()),
    "is close": ([MATRIX, MATRIX], lambda x: torch.isclose(x[0], x[1], rtol=0.5)),
    "remainder": ([MATRIX], lambda x: ((x[0] * 100).long() + 1) % 7),
    "floor division": ([MATRIX], lambda x: (x[0] * 9).long() // 4),
    "histogram": ([MATRIX], lambda x: torch.histc(x[0], bins=4, min=-1, max=2)),
    "argsort": ([(12,)], lambda x: x[0].argsort(stable=True)),
    "sub number": ([MATRIX], lambda x: x[0] - 0.7),
    "reciprocal": ([MATRIX], lambda x: (x[0].abs() + 1).reciprocal()),
    "sqrt": ([MATRIX], lambda x: (x[0] * x[0] + 1).sqrt()),
    "in place, without gradient": (
        [MATRIX, MATRIX],
        lambda x: x[0].clone().sub_(x[1]).exp_().add_(0.3).lerp_(x[1], 0.1).addcdiv_(x[0], x[1]),
    ),
    "rms_norm": ([(2, 5, 12), (12,)], lambda x: fused_or_written_out("rms_norm", x)),
    "rotary": ([(1, 4, 5, 8), (1, 2, 5, 8), (1, 5, 8), (1, 5, 8)], lambda x: fused_or_written_out("rotary", x)),
    "swiglu": ([(2, 5, 12), (2, 5, 12)], lambda x: fused_or_written_out("swiglu", x)),
    "swiglu of no rows": ([(0, 12), (0, 12)], lambda x: fused_or_written_out("swiglu", x)),
    "experts": ([MATRIX, (3, 12, 5)], lambda x: fused_or_written_out("experts", x)),
    "layer_norm": ([ROWS, (12,), (12,)], lambda x: nn.functional.layer_norm(x[0], (12,), x[1], x[2])),
}
"""What a Llama, Qwen2 or Mistral runs in training here, and its neighbours."""

WITHOUT_GRADIENT = {
    "compare", "cast to bf16", "argmax", "any and all", "nonzero", "arange", "eye", "fill", "norms of lists",
    "is finite", "is close", "remainder", "floor division", "histogram", "argsort", "in place, without gradient",
}  # fmt: skip


def operators_on_npu(kind: int) -> dict[str, str]:
    """On the node: which cases differ from the CPU, forward or backward, and how."""
    wrong: dict[str, str] = {}
    for name, (shapes, compute) in FORWARD.items():
        generator = torch.Generator().manual_seed(len(name))
        inputs = [drawn(shape, generator) for shape in shapes]
        try:
            expected, found = (_results(name, compute, inputs, device, kind) for device in ("cpu", "npu"))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        except AssertionError as error:
            wrong[name] = str(error)
        except RuntimeError as error:
            # What comes after a failed kernel means nothing.
            return {**wrong, name: str(error)}
    return wrong


def _results(name: str, compute: Case, inputs: list[torch.Tensor], device: str, kind: int) -> list[torch.Tensor]:
    leaves = [each.to(device, copy=True).requires_grad_(name not in WITHOUT_GRADIENT) for each in inputs]
    output = compute([strided(each, kind) for each in leaves])
    if name in WITHOUT_GRADIENT:
        return [output.cpu()]
    # A random direction, so that no part of the gradient cancels.
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(device)
    gradients = torch.autograd.grad(output, leaves, direction, allow_unused=True)
    return [output.detach().cpu(), *(each.cpu() for each in gradients if each is not None)]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "every second element", "offset"])
def test_operators_compute_what_the_cpu_computes(node: Node, layout: str) -> None:
    kinds = {"contiguous": 0, "transposed": 1, "every second element": 2, "offset": 3}
    assert node.call(operators_on_npu, kinds[layout]) == {}


def operators_of_the_cases() -> set[str]:
    """On the node: the operators that the cases above run."""
    assert operators_on_npu(0) == {}
    return set(operators_that_ran())


# Attention has a test of its own; optimizers and the scaling of fp16 are compared with the CPU's as a whole.
CHECKED_ELSEWHERE = {
    "aclnnFlashAttentionVarLenScore",
    "aclnnFlashAttentionUnpaddingScoreGrad",
    "aclnnApplyAdamWV2",
    "aclnnForeachNonFiniteCheckAndUnscale",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": {"packing": False}, "memory": {"gradient_checkpointing": True}, "precision": "bf16"},
        {"method": {"tuner": "lora"}, "precision": "fp16"},
    ],
    ids=["packed", "padded and recomputed in bf16", "lora in fp16"],
)
def test_operators_of_a_training_are_among_the_cases(
    node: Node, prepared: Callable[..., RunDir], changes: dict[str, Any]
) -> None:
    _, ran = node.call(train_with, prepared(**{**MUTANTS, **changes}).path, "none")
    assert sorted(set(ran) - node.call(operators_of_the_cases) - CHECKED_ELSEWHERE) == []


def attention_on_npu(dtype: torch.dtype) -> dict[str, list[list[torch.Tensor]]]:
    """On the node: output and gradients of our attention there, and of the written-out one on the CPU in fp32."""
    from ascendtune.train.attention.interface import eager_attention
    from ascendtune.train.attention.npu import npu_fusion_attention

    generator = torch.Generator().manual_seed(3)
    results: dict[str, list[list[torch.Tensor]]] = {}
    # Multi-head latent attention has narrower values than keys, gpt-oss has sinks.
    for borders, window, width, sinks in product((None, (0, 5, 6, 13)), (None, 1, 4, 100), (16, 8), (False, True)):
        batch = 1 if borders else 3
        sizes = (4, 16), (2, 16), (2, width)
        inputs = [torch.randn((batch, heads, 13, each), generator=generator) for heads, each in sizes]
        direction = torch.randn((batch, 13, 4, width), generator=generator)
        inputs += [torch.randn((4,), generator=generator)] if sinks else []
        pair = results[f"window {window}, borders {borders}, values {width}, sinks {sinks}"] = []
        for attention, device, kind in ((npu_fusion_attention, "npu", dtype), (eager_attention, "cpu", torch.float32)):
            leaves = [each.to(dtype).to(device, kind).requires_grad_() for each in inputs]
            output, _ = attention(
                nn.Module(), *leaves[:3], None,
                sliding_window=window, cu_seqlens=borders, scaling=0.3, s_aux=leaves[3] if sinks else None,
            )  # fmt: skip
            gradients = torch.autograd.grad(output, leaves, direction.to(device, kind))
            pair.append([each.detach().float().cpu() for each in (output, *gradients)])
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_is_the_written_out_formula(node: Node, dtype: torch.dtype) -> None:
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for name, (found, expected) in node.call(attention_on_npu, dtype).items():
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(
                ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )


def sinks_on_npu() -> list[list[torch.Tensor]]:
    """On the node: output and gradients of attention with sinks, there and on the CPU."""
    from ascendtune.train.attention.interface import eager_attention
    from ascendtune.train.attention.npu import npu_fusion_attention

    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(shape, generator=generator) for shape in ((1, 4, 13, 8), (1, 2, 13, 8), (1, 2, 13, 8), (4,))]
    direction = torch.randn((1, 13, 4, 8), generator=generator)
    found = []
    for attention, device in ((npu_fusion_attention, "npu"), (eager_attention, "cpu")):
        leaves = [each.to(device).requires_grad_() for each in inputs]
        output, _ = attention(nn.Module(), *leaves[:3], None, s_aux=leaves[3], cu_seqlens=(0, 5, 13))
        gradients = torch.autograd.grad(output, leaves, direction.to(device))
        found.append([each.detach().cpu() for each in (output, *gradients)])
    return found


@pytest.mark.parametrize("operator", ["aclnnFlashAttentionVarLenScore", "aclnnFlashAttentionUnpaddingScoreGrad"])
def test_a_fused_attention_that_gets_sinks_wrong_is_replaced(node: Node, operator: str) -> None:
    ended = node.run(sinks_on_npu, SIMULATED_NPU_SPOIL=operator)
    assert "attention sinks are computed in plain operators, not by npu_fusion_attention" in ended.out + ended.err
    for ours, theirs in zip(*ended.result, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def many_documents_on_npu() -> list[list[torch.Tensor]]:
    """On the node: output and gradients of 2,500 documents of one to three tokens, there and on the CPU."""
    from ascendtune.train.attention.interface import eager_attention
    from ascendtune.train.attention.npu import npu_fusion_attention

    generator = torch.Generator().manual_seed(3)
    borders = [0, *torch.randint(1, 4, (2500,), generator=generator).cumsum(0).tolist()]
    inputs = [torch.randn((1, heads, borders[-1], 8), generator=generator) for heads in (4, 2, 2)]
    direction = torch.randn((1, borders[-1], 4, 8), generator=generator)
    found = []
    for attention, device in ((npu_fusion_attention, "npu"), (eager_attention, "cpu")):
        leaves = [each.to(device).requires_grad_() for each in inputs]
        output, _ = attention(nn.Module(), *leaves, None, cu_seqlens=tuple(borders))
        found.append(
            [each.detach().cpu() for each in (output, *torch.autograd.grad(output, leaves, direction.to(device)))]
        )
    return found


def test_more_documents_than_one_call_of_attention_takes(node: Node) -> None:
    found, expected = node.call(many_documents_on_npu)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def statistics_on_npu() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """On the node: statistics of dumped tensors there and on the CPU."""
    from ascendtune.train.dump.statistics import measure, read

    values = torch.randn(7, 50_000, generator=torch.Generator().manual_seed(3))
    broken = values.clone()
    broken[0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    tensors = [values, broken.bfloat16(), values[0, :1].half(), values[:0]]
    on_npu, on_cpu = (read([measure(each.to(device), torch.float32) for each in tensors]) for device in ("npu", "cpu"))
    return list(zip(on_npu, on_cpu, strict=True))


def test_dumped_statistics_are_those_of_the_cpu(node: Node) -> None:
    for ours, theirs in node.call(statistics_on_npu):
        for name, expected in theirs.items():
            close = name in ("mean", "l2") and expected is not None
            assert ours[name] == (pytest.approx(expected, rel=1e-5) if close else expected), name


def train_with(path: Path, spoilt: str) -> tuple[list[float], list[str]]:
    """On the node: losses and gradient norms with an operator that gives 1 % too much; which operators ran."""
    from ascendtune.train import attempt

    os.environ["SIMULATED_NPU_SPOIL"] = spoilt
    attempt.draw = lambda run: None  # type: ignore[assignment]
    attempt.train(RunDir(path), RunDir(path).read())
    run = RunDir(path)
    return [record[key] for record in run.read_metrics() for key in ("loss", "grad_norm")], operators_that_ran()


def operators_that_ran() -> list[str]:
    """On the node: the operators of CANN that this process has run so far."""
    names: Any = ctypes.CDLL("libopapi.so").simulated_npu_operators
    names.restype = ctypes.c_char_p
    return names().decode().split()


# Kernels that a step runs; one for each that makes a number on the way from weights to weights.
SPOILT = [
    "aclnnFlashAttentionVarLenScore",
    "aclnnFlashAttentionUnpaddingScoreGrad",
    "aclnnSilu",
    "aclnnSiluBackward",
    "aclnnMatmul",
    "aclnnMm",
    "aclnnRsqrt",
    "aclnnEmbedding",
    "aclnnApplyAdamWV2",
]


@pytest.mark.parametrize("spoilt", SPOILT)
def test_one_per_cent_in_one_kernel_is_noticed(
    node: Node, prepared: Callable[..., RunDir], spoilt: str, healthy: list[float]
) -> None:
    curve, ran = node.call(train_with, prepared(**MUTANTS, name=spoilt).path, spoilt)
    assert spoilt in ran
    # The bound of the tests that compare training with the CPU's.
    assert curve != pytest.approx(healthy, rel=1e-5)


@pytest.mark.parametrize(
    ("part", "spoilt"),
    [
        ("rms_norm", "aclnnRmsNormGrad"),
        ("rotary", "aclnnRotaryPositionEmbedding"),
        ("swiglu", "aclnnSwiGlu"),
    ],
)
def test_a_fused_operator_that_is_one_per_cent_off_is_not_used(
    node: Node, prepared: Callable[..., RunDir], part: str, spoilt: str, healthy: list[float]
) -> None:
    run = prepared(**MUTANTS, name=spoilt)
    curve, _ = node.call(train_with, run.path, spoilt)
    assert "disagrees with the module" in run.read()["resolved"]["kernel"][part]
    assert curve == pytest.approx(healthy, rel=1e-5)


MUTANTS: dict[str, Any] = {"data": {"packing": True}, "optim": {"max_steps": 3, "max_grad_norm": None}}


@pytest.fixture
def healthy(node: Node, prepared: Callable[..., RunDir]) -> list[float]:
    if not _HEALTHY:
        curve, _ = node.call(train_with, prepared(**MUTANTS, name="healthy").path, "none")
        _HEALTHY.extend(curve)
    return _HEALTHY


_HEALTHY: list[float] = []
