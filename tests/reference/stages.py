"""The loss of every stage in plain torch and transformers, one row at a time, in fp64.

Written from the papers, without ascendtune: nothing here may import it. Rows are lists of (token ids, labels), labels
-100 where nothing is learnt; a label is the token at its own position, predicted by the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import logsigmoid

Row = tuple[list[int], list[int]]
Loss = Callable[[Any], torch.Tensor]
Messages = Sequence[dict[str, Any]]


def load(directory: Path, *, scores: bool = False, seed: int = 0) -> Any:
    """The model in fp64 with its own eager attention; `seed` draws what the files lack (the score of rewards)."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    made = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    more = {"num_labels": 1, "pad_token_id": 0} if scores else {}
    torch.manual_seed(seed)
    model = made.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager", **more).double().eval()
    for module in model.modules():
        # transformers computes these in fp32, whatever comes in.
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _rms_norm(module)
    return model


def _rms_norm(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        return module.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + epsilon)

    return forward


def chatml_row(tokenizer: Any, messages: Messages, *, learnt: Sequence[int] | None = None) -> Row:
    """A conversation in ChatML, written out by hand.

    Args:
        learnt: which messages are learnt; None for every answer without `weight` 0.
    """
    text, spans = "", []
    for number, message in enumerate(messages):
        text += f"<|im_start|>{message['role']}\n"
        begin = len(text)
        text += f"{message['content']}<|im_end|>"
        is_learnt = message["role"] == "assistant" and message.get("weight", 1) if learnt is None else number in learnt
        if is_learnt:
            spans.append((begin, len(text)))
        text += "\n"
    found = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    labels = [
        token if any(begin < last and end > first for first, last in spans) else -100
        for token, (begin, end) in zip(found["input_ids"], found["offset_mapping"], strict=True)
    ]
    return found["input_ids"], labels


def text_row(tokenizer: Any, text: str) -> Row:
    """A document for pretraining: EOS at its end, everything learnt."""
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return ids, list(ids)


def answer_row(tokenizer: Any, prompt: str, answer: str) -> Row:
    return chatml_row(tokenizer, [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}])


def log_probs(model: Any, row: Row) -> torch.Tensor:
    """(labelled,) fp64."""
    ids, labels = torch.tensor(row[0]), torch.tensor(row[1][1:])
    logits = model(input_ids=ids[None]).logits[0, :-1].double()
    at = labels != -100
    return logits[at].log_softmax(-1).gather(1, labels[at][:, None])[:, 0]


def token_loss(rows: Sequence[Row]) -> Loss:
    """Supervised fine-tuning and pretraining: the mean over all labelled tokens."""

    def loss(model: Any) -> torch.Tensor:
        each = [-log_probs(model, row) for row in rows]
        return torch.stack([values.sum() for values in each]).sum() / sum(map(len, each))

    return loss


def reward_loss(pairs: Sequence[tuple[Row, Row]], margins: Sequence[float], *, centring: float = 0.0) -> Loss:
    def score(model: Any, row: Row) -> torch.Tensor:
        states = model.base_model(input_ids=torch.tensor(row[0])[None]).last_hidden_state
        return model.score(states[0, -1])[0]

    def loss(model: Any) -> torch.Tensor:
        losses = []
        for (chosen, rejected), margin in zip(pairs, margins, strict=True):
            ahead, behind = score(model, chosen), score(model, rejected)
            losses.append(-logsigmoid(ahead - behind - margin) + centring * (ahead + behind) ** 2)
        return torch.stack(losses).mean()

    return loss


def preference_loss(
    name: str,
    pairs: Sequence[tuple[Row, Row]],
    reference: Any,
    *,
    beta: float,
    smoothing: float = 0.0,
    gamma: float = 0.5,
    sft_weight: float = 0.0,
) -> Loss:
    with torch.no_grad():
        of_reference = [[log_probs(reference, row).sum() for row in pair] for pair in pairs]

    def loss(model: Any) -> torch.Tensor:
        losses = []
        for pair, (chosen_before, rejected_before) in zip(pairs, of_reference, strict=True):
            chosen, rejected = (log_probs(model, row) for row in pair)
            up, down = chosen.sum() - chosen_before, rejected.sum() - rejected_before
            if name == "sigmoid":
                x = beta * (up - down)
                each = -(1 - smoothing) * logsigmoid(x) - smoothing * logsigmoid(-x)
            elif name == "hinge":
                each = torch.relu(1 - beta * (up - down))
            elif name == "ipo":
                each = (up / len(chosen) - down / len(rejected) - 1 / (2 * beta)) ** 2
            elif name == "simpo":
                each = -logsigmoid(beta * (chosen.mean() - rejected.mean()) - gamma)
            else:
                assert name == "orpo"
                odds = [mean - torch.log1p(-torch.exp(mean)) for mean in (chosen.mean(), rejected.mean())]
                each = -chosen.mean() - beta * logsigmoid(odds[0] - odds[1])
            losses.append(each - sft_weight * chosen.mean())
        return torch.stack(losses).mean()

    return loss


def kto_loss(
    rows: Sequence[Row], mismatched: Sequence[Row], desirable: Sequence[bool], reference: Any, *, beta: float
) -> Loss:
    """The divergence is the mean over all mismatched answers, not below zero, without a gradient."""
    with torch.no_grad():
        before = [log_probs(reference, row).sum() for row in rows]
        before_mismatched = [log_probs(reference, row).sum() for row in mismatched]

    def loss(model: Any) -> torch.Tensor:
        with torch.no_grad():
            drift = [log_probs(model, row).sum() - old for row, old in zip(mismatched, before_mismatched, strict=True)]
            divergence = torch.stack(drift).mean().clamp(min=0)
        losses = []
        for row, old, good in zip(rows, before, desirable, strict=True):
            x = beta * (log_probs(model, row).sum() - old - divergence)
            losses.append(1 - torch.sigmoid(x if good else -x))
        return torch.stack(losses).mean()

    return loss


@dataclass
class Curve:
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)


def train(model: Any, loss: Loss, *, steps: int, learning_rate: float, max_grad_norm: float | None = 1.0) -> Curve:
    """AdamW at a constant rate, without weight decay, over the same rows in every step; written out."""
    parameters: list[nn.Parameter] = [each for each in model.parameters() if each.requires_grad]
    first, second = ([torch.zeros_like(each) for each in parameters] for _ in range(2))
    curve = Curve()
    for step in range(1, steps + 1):
        model.zero_grad()
        value = loss(model)
        value.backward()
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        norm = math.sqrt(sum(float((each**2).sum()) for each in gradients))
        scale = 1.0 if max_grad_norm is None else min(1.0, max_grad_norm / (norm + 1e-6))
        curve.losses.append(float(value))
        curve.grad_norms.append(norm)
        with torch.no_grad():
            for parameter, gradient, mean, square in zip(parameters, gradients, first, second, strict=True):
                mean.mul_(0.9).add_(0.1 * scale * gradient)
                square.mul_(0.999).add_(0.001 * (scale * gradient) ** 2)
                root = (square / (1 - 0.999**step)).sqrt() + 1e-8
                parameter -= learning_rate * (mean / (1 - 0.9**step)) / root
    return curve
