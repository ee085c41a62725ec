"""Supervised fine-tuning and pretraining: the cross-entropy of the labelled tokens.

It is computed in chunks: (labelled × vocabulary) logits never exist at once. The gradient is computed in the forward
pass, while a chunk's logits are in memory (the method of Liger's fused linear cross-entropy): three matrix products per
chunk, no recomputation, and unlabelled positions cost nothing.

For one position with hidden state h, weights W (vocabulary × hidden) and target y, in fp32:

    z = W h        loss = logsumexp(z) - z_y        dloss/dz = softmax(z) - onehot(y)

If the model scales or caps its logits (`HeadForm`), z is the scaled or capped W h, and the chain rule adds its slope.

Variants of the loss multiply the cross-entropy of each position by a weight without gradient (`token_weight`).
ASFT adds weight · KL(q ‖ p) of the distributions before training, q, and now, p: dKL/dz = p - q (`start_weights`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ascendtune.recipe.method import MethodSection
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.objective.base import LossOutput, Objective
from ascendtune.train.objective.embedding_noise import EmbeddingNoise
from ascendtune.train.objective.head import PLAIN, HeadForm, labelled_logits, labelled_states
from ascendtune.train.objective.logit_chunks import (
    add_weight_gradient,
    autocast_operands,
    checkpointed_chunks,
    product_chunks,
    softmax_chunks,
)
from ascendtune.train.objective.start_weights import Anchor, StartWeights
from ascendtune.train.objective.token_weight import TokenWeight, token_weight


class SupervisedObjective(Objective):
    """Loss of a causal language model over a micro-batch; in evaluation always the plain cross-entropy.

    Args:
        model: a transformers causal language model, with or without adapters inside.
        head_form: form of the logits as a function of `head(decoder(x))`, for the fused loss; None uses the model's own
            logits.
    """

    def __init__(self, model: Any, method: MethodSection, *, head_form: HeadForm | None, **_: Any) -> None:
        super().__init__(model)
        self.head_form = head_form
        self._weight = token_weight(method.sft) if method.stage == "sft" else None
        alpha = method.sft.neftune_alpha if method.stage == "sft" else None
        self._noise = None if alpha is None else EmbeddingNoise(alpha)
        self._anchor_weight = method.sft.asft_alpha
        self._start = StartWeights(model) if method.stage == "sft" and method.sft.loss == "asft" else None
        if self._noise is not None:
            model.get_input_embeddings().register_forward_hook(self._noise)

    def forward(self, batch: DeviceBatch) -> LossOutput:
        """The summed loss over the labelled positions."""
        weigh, anchor = (self._weight if self.training else None), None
        if self._start is not None and self.training:
            anchor = self._start.anchor(batch, self.head_form, self._anchor_weight)
        if self._noise is not None:
            self._noise.document_ends = batch.cu_seqlens
        if self.head_form is not None:
            head, hidden = self.model.get_output_embeddings(), labelled_states(self.model, batch)
            return LossOutput(linear_cross_entropy(hidden, head, batch.targets, self.head_form, weigh, anchor), {})
        logits = labelled_logits(self.model, batch)
        loss = _weighted_sum(logits, batch.targets, weigh)
        if anchor is not None:
            loss = loss + _divergence(logits, anchor, slice(None), PLAIN)
        return LossOutput(loss, {})


def linear_cross_entropy(
    hidden: torch.Tensor,
    head: nn.Module,
    targets: torch.Tensor,
    form: HeadForm = PLAIN,
    weigh: TokenWeight | None = None,
    anchor: Anchor | None = None,
) -> torch.Tensor:
    """Sum of the cross-entropy of `form.logits(head(hidden))` against `targets`, in fp32.

    Args:
        hidden: (positions, hidden) the labelled positions only.
        head: the language-model head; an nn.Linear is fused with the loss, other modules (an adapter around it, a
            normalised head) are called chunk by chunk under recomputation.
        targets: (positions,) int64 token ids.
        form: what the model does to the output of its head.
        weigh: computes the weight of each position; None: 1.
        anchor: the divergence to add; None: none.

    Returns:
        (): the sum, fp32; 0 with a gradient of 0 if there are no positions.
    """
    if type(head) is not nn.Linear:
        return _chunkwise(hidden, head, targets, form, weigh, anchor)
    loss: torch.Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        *autocast_operands(hidden, head), targets, form, weigh, anchor
    )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        form: HeadForm,
        weigh: TokenWeight | None,
        anchor: Anchor | None,
    ) -> torch.Tensor:
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        # Added up at the end, in pairs: a running total over many chunks would lose the digits of each.
        sums: list[torch.Tensor] = []
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias and bias is not None else None
        for part in product_chunks(len(hidden), weight, is_trained=needs_weight):
            logits = nn.functional.linear(hidden[part], weight, bias)
            anchored = anchor.output(part) if anchor is not None else None
            for rows in softmax_chunks(len(logits), len(weight)):
                log_probs, slope = _log_probs(logits[rows], form)
                target = targets[part][rows, None]
                losses = -log_probs.gather(1, target).squeeze(1)
                counts = weigh(log_probs, losses) if weigh is not None else None
                sums.append((losses if counts is None else losses * counts).sum())
                drift = None
                if anchor is not None and anchored is not None:
                    divergence, drift = _drift(log_probs, slope, _log_probs(anchored[rows], form)[0])
                    sums.append(anchor.weight * divergence)
                if not (needs_hidden or needs_weight or needs_bias):
                    continue
                grad = _gradient(log_probs, target, slope)
                if counts is not None:
                    grad *= counts[:, None]
                if drift is not None and anchor is not None:
                    grad.add_(drift, alpha=anchor.weight)
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
                logits[rows] = grad
            if grad_hidden is not None:
                torch.mm(logits, weight, out=grad_hidden[part])
            if grad_weight is not None:
                add_weight_gradient(grad_weight, logits, hidden[part])
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = weight.dtype, bias.dtype if bias is not None else None
        return torch.stack(sums).sum() if sums else hidden.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        return (
            _scaled(grad_hidden, grad_output, grad_hidden.dtype) if grad_hidden is not None else None,
            _scaled(grad_weight, grad_output, weight_dtype) if grad_weight is not None else None,
            _scaled(grad_bias, grad_output, bias_dtype) if grad_bias is not None else None,
            None,
            None,
            None,
            None,
        )


def _log_probs(output: torch.Tensor, form: HeadForm) -> tuple[torch.Tensor, torch.Tensor | float | None]:
    """Log-probabilities, (positions, vocabulary) fp32, and the slope of the logits by `output`; None if it is 1.

    Args:
        output: (positions, vocabulary) of the head.
    """
    if form == PLAIN:
        return nn.functional.log_softmax(output, dim=-1, dtype=torch.float32), None
    logits = form.logits(output.float())
    return nn.functional.log_softmax(logits, dim=-1), form.slope(logits)


def _gradient(log_probs: torch.Tensor, target: torch.Tensor, slope: torch.Tensor | float | None) -> torch.Tensor:
    """Gradient of the summed loss by the head's output, (positions, vocabulary) fp32; it overwrites `log_probs`.

    Args:
        target: (positions, 1) int64 token ids.
    """
    grad = log_probs.exp_()
    grad.scatter_add_(1, target, grad.new_full(target.shape, -1.0))
    return grad if slope is None else grad.mul_(slope)


def _drift(
    log_probs: torch.Tensor, slope: torch.Tensor | float | None, start: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(start ‖ now) summed over positions, () fp32, and its gradient by the head's output, as in `_gradient`.

    Args:
        log_probs: (positions, vocabulary) fp32, now.
        start: (positions, vocabulary) fp32 log-probabilities of the start weights.
    """
    divergence = nn.functional.kl_div(log_probs, start, reduction="sum", log_target=True)
    grad = log_probs.exp() - start.exp()
    return divergence, grad if slope is None else grad.mul_(slope)


def _scaled(grad: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`grad` · `factor` in `dtype`, in the shape of `grad`, without a temporary copy in another dtype."""
    return torch.mul(grad, factor, out=torch.empty_like(grad, dtype=dtype))


def _weighted_sum(logits: torch.Tensor, targets: torch.Tensor, weigh: TokenWeight | None) -> torch.Tensor:
    if weigh is None:
        return nn.functional.cross_entropy(logits, targets, reduction="sum")
    losses = nn.functional.cross_entropy(logits, targets, reduction="none")
    with torch.no_grad():
        weights = weigh(logits, losses)
    return (losses * weights).sum()


def _divergence(logits: torch.Tensor, anchor: Anchor, part: slice, form: HeadForm) -> torch.Tensor:
    """weight · KL(q ‖ p), summed over the positions of `part`: () fp32.

    Args:
        logits: (positions, vocabulary) fp32, of the model.
        form: form of the start weights' logits as a function of the output in `anchor`.
    """
    start = torch.log_softmax(form.logits(anchor.output(part).float()), dim=-1)
    now = torch.log_softmax(logits, dim=-1)
    return anchor.weight * nn.functional.kl_div(now, start, reduction="sum", log_target=True)


def _chunkwise(
    hidden: torch.Tensor,
    head: nn.Module,
    targets: torch.Tensor,
    form: HeadForm,
    weigh: TokenWeight | None,
    anchor: Anchor | None,
) -> torch.Tensor:
    def score(logits: torch.Tensor, target: torch.Tensor, part: slice) -> torch.Tensor:
        loss = _weighted_sum(logits, target, weigh)
        return loss if anchor is None else loss + _divergence(logits, anchor, part, form)

    if len(hidden) == 0:
        nothing: torch.Tensor = head(hidden).float().sum()
        return nothing
    return torch.stack(checkpointed_chunks(score, hidden, head, targets, form)).sum()
