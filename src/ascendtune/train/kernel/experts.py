"""Experts of a mixture, stacked in two matrices: Σ over a token's experts of weight · down(act(gate(x)) · up(x)).

Shazeer et al. 2017, arXiv 1701.06538, eq. 1, with the gated MLP of `swiglu` as expert. Both products may have biases,
which are stacked, too (gpt-oss).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from ascendtune.train.kernel.fusable import FusableModule, Kernel, randn
from ascendtune.train.precision import in_autocast_type

_MATRICES, _BIASES = ("gate_up_proj", "down_proj"), ("gate_up_proj_bias", "down_proj_bias")
_TRIED_EXPERTS = 4
"""A real mixture has hundreds; a few of the same size suffice to test an operator."""

Adapter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Adds to a product, (rows, out), what an adapter gives for rows (rows, in) and the numbers of rows of each expert."""
NO_ADAPTERS: Mapping[str, Adapter] = MappingProxyType({})


class FusableExperts(FusableModule):
    """Kernels are called with rows (rows, in), sorted by expert, weight (experts, in, out), and the number of rows of
    each expert (experts,) int64, on the device; they return (rows, out). Rows and weight have one dtype.

    Nothing here waits for the device: the numbers of rows are never read on the host.
    """

    multiplies_inside = True

    def __init__(self, module: nn.Module, *, transposed: bool) -> None:
        super().__init__(module)
        self.transposed = transposed
        """Whether the matrices are stored as (experts, in, out)."""

    def forward_with(self, kernel: Kernel) -> Callable[..., Any]:
        transposed, has_biases = self.transposed, bool(self._biases())

        def forward(
            self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor,
            adapters: Mapping[str, Adapter] = NO_ADAPTERS,
        ) -> torch.Tensor:  # fmt: skip
            def multiply(rows: torch.Tensor, name: str, weight: torch.Tensor) -> torch.Tensor:
                output: torch.Tensor = kernel(rows, weight, counts)
                return adapters[name](output, rows, counts) if name in adapters else output

            gate_up, down = in_autocast_type(self.gate_up_proj, self.down_proj)
            if not transposed:
                gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
            top_k, experts = top_k_index.shape[-1], torch.arange(len(gate_up), device=top_k_index.device)
            # Pairs of token and expert, ordered by token; `order` sorts them by expert.
            expert_of_pair = top_k_index.flatten()
            order = _argsort(expert_of_pair)
            back = _argsort(order)
            counts = (expert_of_pair[:, None] == experts).sum(0)
            rows = _reorder(hidden_states.to(gate_up.dtype), order, back, top_k)
            rows = multiply(rows, _MATRICES[0], gate_up)
            if has_biases:
                expert_of_row = expert_of_pair.index_select(0, order)
                rows = _add_bias(rows, self.gate_up_proj_bias, expert_of_row)
            rows = multiply(_gated(self, rows), _MATRICES[1], down)
            if has_biases:
                rows = _add_bias(rows, self.down_proj_bias, expert_of_row)
            pairs = _reorder(rows, back, order) * top_k_weights.flatten()[:, None]
            output: torch.Tensor = pairs.unflatten(0, (-1, top_k)).sum(1)
            return output.to(hidden_states.dtype)

        return forward

    def samples(self, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        gate_up, down = self.module.gate_up_proj, self.module.down_proj
        count, width = min(len(gate_up), _TRIED_EXPERTS), down.shape[2 if self.transposed else 1]
        # Scaled to keep the magnitude of activations.
        matrices = [
            randn((count, *each.shape[1:]), device, torch.float32, seed=seed) * each.shape[1:].numel() ** -0.25
            for seed, each in ((2, gate_up), (3, down))
        ]
        biases = self._biases()
        matrices += [
            randn((count, each.shape[1]), device, torch.float32, seed=seed) for seed, each in enumerate(biases, 4)
        ]
        # The last expert gets no token, as may happen in training.
        routing = randn((29, max(count - 1, 1)), torch.device("cpu"), torch.float32).topk(min(2, max(count - 1, 1)))
        weights = routing.values.softmax(-1).to(device, dtype)
        return [
            randn((29, width), device, dtype).requires_grad_(), routing.indices.to(device), weights.requires_grad_(),
            *(one.to(own.dtype).requires_grad_() for one, own in zip(matrices, (gate_up, down, *biases), strict=True)),
        ]  # fmt: skip

    def run(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, index, weights, *parameters = samples
        count = self.module.num_experts
        self.module.num_experts = len(parameters[0])
        try:
            named = dict(zip((*_MATRICES, *_BIASES), parameters, strict=False))
            return (functional_call(self.module, named, (hidden, index, weights)),)
        finally:
            self.module.num_experts = count

    def parameters(self) -> list[nn.Parameter]:
        """Matrices and biases, in the order of `samples`."""
        return [getattr(self.module, name) for name in (*_MATRICES, *_BIASES) if hasattr(self.module, name)]

    def _biases(self) -> list[nn.Parameter]:
        """Those of gate and up, (experts, out), and of down; empty if there are none."""
        return self.parameters()[len(_MATRICES) :]


def find_experts(model: nn.Module, device: torch.device) -> list[FusableModule]:
    """All modules of `model` that compute this form on `device`."""
    is_supported: dict[Hashable, bool] = {}
    modules: list[FusableModule] = []
    for experts in stacked_experts(model):
        if experts.key not in is_supported:
            is_supported[experts.key] = _is_of_this_form(experts, device)
        if is_supported[experts.key]:
            modules.append(experts)
    return modules


def stacked_experts(model: nn.Module) -> Iterator[FusableExperts]:
    """All modules of `model` whose parameters have this form; their computation is not checked."""
    for module in model.modules():
        if (transposed := _is_transposed(module)) is not None:
            yield FusableExperts(module, transposed=transposed)


def multiply_by_group(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """rows (rows, in), sorted by expert, times weight (experts, in, out): (rows, out); counts: (experts,) int64."""
    parts = rows.split(counts.tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight, strict=True)])


def grouped_mm(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The same as `multiply_by_group`, (rows, out), with torch's operator for CUDA.

    It is one kernel in bf16 from compute capability 8.0 on. In other dtypes it is torch's loop, which waits for the
    device at each group.
    """
    ends = counts.cumsum(0, dtype=torch.int32)
    output: torch.Tensor = torch.nn.functional.grouped_mm(rows, weight, offs=ends)
    return output


def _is_transposed(module: nn.Module) -> bool | None:
    """Whether the matrices are stored transposed; None if parameters or arguments of the forward have another form."""
    parameters = dict(module.named_parameters())
    if set(parameters) not in ({*_MATRICES}, {*_MATRICES, *_BIASES}):
        return None
    # The module, hidden states, the experts of each token and their weights.
    if len(inspect.signature(type(module).forward).parameters) != 4:
        return None
    gate_up, down = (tuple(parameters[name].shape) for name in _MATRICES)
    if not isinstance(getattr(module, "num_experts", None), int) or len(gate_up) != 3 or len(down) != 3:
        return None
    experts, first, second = gate_up
    if down == (experts, second, first // 2):
        transposed = False
    elif down == (experts, second // 2, first):
        transposed = True
    else:
        return None
    outputs = [(experts, parameters[name].shape[2 if transposed else 1]) for name in _MATRICES]
    biases = [tuple(parameters[name].shape) for name in _BIASES if name in parameters]
    return transposed if biases in ([], outputs) else None


def _is_of_this_form(experts: FusableExperts, device: torch.device) -> bool:
    samples = experts.samples(device, experts.module.gate_up_proj.dtype)
    with torch.no_grad():
        (result,) = experts.run(*samples)
        experts.replace_forward(multiply_by_group)
        (expected,) = experts.run(*samples)
        experts.restore_forward()
    scale = float(expected.abs().max())
    return isinstance(result, torch.Tensor) and torch.allclose(result, expected, rtol=1e-2, atol=1e-2 * scale)


def _argsort(numbers: torch.Tensor) -> torch.Tensor:
    """Stable argsort, via fp32: Ascend sorts integers on its slow AI CPU, according to a warning of torch_npu 2.13.

    Exact below 2**24 numbers; no device can store as many rows.
    """
    return numbers.float().argsort(stable=True)


def _reorder(rows: torch.Tensor, order: torch.Tensor, back: torch.Tensor, times: int = 1) -> torch.Tensor:
    """Repeat each row `times` times, then reorder all; `back` is the inverse of `order`."""
    output: torch.Tensor = _Reorder.apply(rows, order, back, times)  # type: ignore[no-untyped-call]
    return output


class _Reorder(torch.autograd.Function):
    """Has its own derivative: the derivative of an index adds up a token's rows in an order that a device does not
    guarantee, so two equal runs could differ.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor, back: torch.Tensor, times: int) -> torch.Tensor:
        ctx.save_for_backward(back)
        ctx.times = times
        return rows.index_select(0, order // times if times > 1 else order)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (back,) = ctx.saved_tensors
        gradient = gradient.index_select(0, back)
        return gradient.unflatten(0, (-1, ctx.times)).sum(1) if ctx.times > 1 else gradient, None, None, None


def _add_bias(rows: torch.Tensor, bias: torch.Tensor, expert_of_row: torch.Tensor) -> torch.Tensor:
    """rows (rows, out) plus the bias, (experts, out), of each row's expert, (rows,) int64; in the dtype of `rows`."""
    of_rows: torch.Tensor = _BiasOfRows.apply(bias, expert_of_row)  # type: ignore[no-untyped-call]
    return (rows + of_rows).to(rows.dtype)


class _BiasOfRows(torch.autograd.Function):
    """Selects rows; its derivative, too, is a product, which adds up in an order that is the same each time."""

    @staticmethod
    def forward(ctx: Any, bias: torch.Tensor, expert_of_row: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(expert_of_row)
        ctx.experts = len(bias)
        return bias.index_select(0, expert_of_row)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (expert_of_row,) = ctx.saved_tensors
        experts = torch.arange(ctx.experts, device=gradient.device)
        return (experts[:, None] == expert_of_row).to(gradient.dtype) @ gradient, None


def _gated(module: Any, gate_up: torch.Tensor) -> torch.Tensor:
    # transformers' @use_experts_implementation adds this method to a class; some include limits in it.
    if hasattr(module, "_apply_gate"):
        gated: torch.Tensor = module._apply_gate(gate_up)
        return gated
    gate, up = gate_up.chunk(2, dim=-1)
    product: torch.Tensor = module.act_fn(gate) * up
    return product
