"""Attention sinks on top of a fused attention that does not know them.

A sink s, one number per head, is the score of one more key, which has no value (Xiao et al. 2023, arXiv 2309.17453; as
a learned number in gpt-oss, arXiv 2508.10925). With the scores S of a query and L = logsumexp(S):

    L' = log(exp(L) + exp(s))        O' = softmax([S, s]) · [V, 0] = exp(S - L') · V = exp(L - L') · O

A fused attention's backward pass recomputes P = exp(S - L) from L, and takes from the output only D = Σ dO · O
(Dao 2023, arXiv 2307.08691, algorithm 2). With sinks the formulas are the same in L' and O', and it gets those; the
gradient of the sink is -Σ exp(s - L') · D' over all queries.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class FusedAttention(Protocol):
    """A fused attention with fixed documents, scale and window; its tensors are (tokens, heads, head_dim)."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output, (tokens, heads, head_dim), and L, (heads, tokens) fp32."""

    def backward(
        self, gradient: torch.Tensor, inputs: Gradients, output: torch.Tensor, log_sums: torch.Tensor
    ) -> Gradients:
        """Gradients by the inputs (query, key, value), from those by `output`; output and log_sums as in `forward`."""


def attend_with_sinks(
    fused: FusedAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """Attention by `fused` with `sinks`, (heads,): (tokens, heads, head_dim), in the dtype of `query`."""
    output: torch.Tensor = _WithSinks.apply(fused, query, key, value, sinks)  # type: ignore[no-untyped-call]
    return output


class _WithSinks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        fused: FusedAttention,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor,
    ) -> torch.Tensor:
        output, log_sums = fused.forward(query, key, value)
        # Not `logaddexp`: Ascend has no aclnn operator for it.
        with_sinks = torch.stack([log_sums, sinks.to(log_sums.dtype)[:, None].expand_as(log_sums)]).logsumexp(0)
        output = (output * (log_sums - with_sinks).exp().t()[..., None]).to(query.dtype)
        ctx.fused = fused
        ctx.save_for_backward(query, key, value, sinks, output, with_sinks)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, sinks, output, log_sums = ctx.saved_tensors
        of_sinks = None
        if ctx.needs_input_grad[4]:
            products = (gradient.float() * output).sum(-1).t()
            of_sinks = -((sinks[:, None] - log_sums).exp() * products).sum(1).to(sinks.dtype)
        return None, *ctx.fused.backward(gradient.contiguous(), (query, key, value), output, log_sums), of_sinks
