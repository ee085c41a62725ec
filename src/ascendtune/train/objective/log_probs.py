"""Log-probabilities of given tokens, in chunks: (labelled × vocabulary) logits never exist at once.

Preference losses weigh each answer's gradient by a function of all its tokens, so unlike for the cross-entropy the
gradient cannot be computed in the forward pass: the backward pass computes the logits of a chunk again.

For one position with hidden state h, weights W (vocabulary × hidden) and target y, in fp32:

    z = W h        log_prob = z_y - logsumexp(z)        dlog_prob/dz = onehot(y) - softmax(z)

If the model scales or caps its logits (`HeadForm`), z is the scaled or capped W h, and the chain rule adds its slope.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ascendtune.train.objective.head import PLAIN, HeadForm
from ascendtune.train.objective.logit_chunks import (
    add_weight_gradient,
    autocast_operands,
    checkpointed_chunks,
    product_chunks,
    softmax_chunks,
)


def linear_log_probs(
    hidden: torch.Tensor, head: nn.Module, targets: torch.Tensor, form: HeadForm = PLAIN
) -> torch.Tensor:
    """(positions,) fp32: log-probability of `targets` under `form.logits(head(hidden))`.

    Args:
        hidden: (positions, hidden) the labelled positions only.
        head: the language-model head; an nn.Linear is fused with the loss, other modules are called chunk by chunk.
        targets: (positions,) int64 token ids.
        form: what the model does to the output of its head.
    """
    if type(head) is not nn.Linear:
        return _chunkwise(hidden, head, targets, form)
    log_probs: torch.Tensor = _LinearLogProbs.apply(*autocast_operands(hidden, head), targets, form)  # type: ignore[no-untyped-call]
    return log_probs


class _LinearLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        form: HeadForm,
    ) -> torch.Tensor:
        log_probs = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        normalisers = torch.empty_like(log_probs)
        for part in product_chunks(len(hidden), weight, is_trained=False):
            logits = nn.functional.linear(hidden[part], weight, bias)
            for rows in softmax_chunks(len(logits), len(weight)):
                shaped = form.logits(logits[rows].float())
                normaliser = torch.logsumexp(shaped, dim=-1)
                normalisers[part][rows] = normaliser
                log_probs[part][rows] = shaped.gather(1, targets[part][rows][:, None]).squeeze(1) - normaliser
        ctx.save_for_backward(hidden, weight, bias, targets, normalisers)
        ctx.form = form
        return log_probs

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, normalisers = ctx.saved_tensors
        form: HeadForm = ctx.form
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if needs_weight else None
        grad_bias = torch.zeros(bias.shape, dtype=torch.float32, device=weight.device) if needs_bias else None
        for part in product_chunks(len(hidden), weight, is_trained=needs_weight):
            logits = nn.functional.linear(hidden[part], weight, bias)
            for rows in softmax_chunks(len(logits), len(weight)):
                grad = _gradient(
                    logits[rows], targets[part][rows], normalisers[part][rows], grad_output[part][rows], form
                )
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
                logits[rows] = grad
            if grad_hidden is not None:
                torch.mm(logits, weight, out=grad_hidden[part])
            if grad_weight is not None:
                add_weight_gradient(grad_weight, logits, hidden[part])
        return (
            grad_hidden,
            grad_weight.to(weight.dtype) if grad_weight is not None else None,
            grad_bias.to(bias.dtype) if grad_bias is not None else None,
            None,
            None,
        )


def _gradient(
    logits: torch.Tensor, targets: torch.Tensor, normalisers: torch.Tensor, weights: torch.Tensor, form: HeadForm
) -> torch.Tensor:
    """(positions, vocabulary) fp32: the gradient of Σ weights · log-probability by the output of the head.

    Args:
        logits: (positions, vocabulary) the output of the head.
        targets: (positions,) int64 token ids.
        normalisers: (positions,) fp32 logsumexp of the logits that `form` computes from `logits`.
        weights: (positions,) fp32.
    """
    shaped = form.logits(logits.float())
    slope = form.slope(shaped)
    grad = (shaped - normalisers[:, None]).exp_().mul_(-weights[:, None])
    grad.scatter_add_(1, targets[:, None], weights[:, None])
    return grad if form == PLAIN else grad.mul_(slope)


def _chunkwise(hidden: torch.Tensor, head: nn.Module, targets: torch.Tensor, form: HeadForm) -> torch.Tensor:
    def score(logits: torch.Tensor, target: torch.Tensor, _: slice) -> torch.Tensor:
        return -nn.functional.cross_entropy(logits, target, reduction="none")

    parts = checkpointed_chunks(score, hidden, head, targets, form)
    # A batch without any target must still be part of the graph.
    return torch.cat(parts) if parts else head(hidden).float().sum(-1)
