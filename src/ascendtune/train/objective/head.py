"""The two halves of a causal language model: tokens to hidden states, and through its head to logits.

Losses compute the logits in chunks of positions (`logit_chunks`). For that they must know what the model does with the
output of its head. `find_head_form` runs the model's own code between the two halves with the decoder and the head
replaced: the decoder returns random hidden states, and the head checks that it receives exactly these and returns
random numbers over nine decades. The model's output then shows every scale, cap, bias and mask that it applies, in
value and in gradient, however small the logits of its weights are. No weight takes part, so sharded weights, adapters
and half precision make no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ascendtune.train.batch import DeviceBatch

# Largest output of the head at each position. At the lower end it is far below any cap, at the upper end above it.
_SIZES = [10.0 ** (power / 2) for power in range(-8, 11)]
POSITIONS = len(_SIZES)
"""At least 16: with fewer keys torch's attention on a CPU hides NaN in queries and keys."""
# Relative rounding error of each number in a forward pass in fp32.
_ALLOWED = 1e-5


def decoder_of(model: Any) -> Any:
    """The model without its head; the model itself if its class does not define that part."""
    return model.base_model


def hidden_states(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """Hidden states of all tokens: (batch × tokens, hidden)."""
    hidden: torch.Tensor = decoder_of(model)(**batch.model_inputs()).last_hidden_state
    return hidden.flatten(0, 1)


def labelled_states(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """Hidden states of the positions with a target: (labelled, hidden)."""
    return hidden_states(model, batch).index_select(0, batch.target_index)


def labelled_logits(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """Logits of the model itself, (labelled, vocabulary) fp32: for heads that do more than multiply."""
    logits: torch.Tensor = model(**batch.model_inputs()).logits
    return logits.flatten(0, 1).index_select(0, batch.target_index).float()


@dataclass(frozen=True)
class HeadForm:
    """Logits as a function of the head's output z: cap · tanh(scale · z / cap), or scale · z without a cap."""

    scale: float = 1.0
    cap: float | None = None

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Logits for an output of the head, both (…, vocabulary) fp32."""
        scaled = output if self.scale == 1 else output * self.scale
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """dlogits/dz of each element, (…, vocabulary) fp32 like the logits: scale · (1 - (logits / cap)²)."""
        return self.scale if self.cap is None else (1 - (logits / self.cap) ** 2) * self.scale


PLAIN = HeadForm()


def find_head_form(model: Any, ids: torch.Tensor) -> tuple[HeadForm | None, torch.Tensor, torch.Tensor | None]:
    """Find the form in which `model` computes logits from the output of its head, and run the model.

    The form must hold in training and in evaluation mode, for values and gradients. It is None also if the head gets
    other hidden states than the decoder returns, or if another trained weight (a learnt scale) takes part.

    Args:
        model: in evaluation mode.
        ids: (1, POSITIONS) int64 on the device.

    Returns:
        The form, or None if none holds; the logits of `ids`: (1, POSITIONS, vocabulary); and the hidden states that the
        decoder returns within the whole model: (1, POSITIONS, hidden), None if they are unknown.
    """
    head, decoder = model.get_output_embeddings(), decoder_of(model)
    inputs = {"input_ids": ids, "use_cache": False}
    if head is None or decoder is model:
        with torch.no_grad():
            return None, model(**inputs).logits, None
    outputs: list[Any] = []
    with torch.no_grad(), _replaced(decoder, _recording(decoder, outputs)), _replaced(head, _recording(head, outputs)):
        logits = model(**inputs).logits
    if len(outputs) != 2 or getattr(outputs[0], "last_hidden_state", None) is None:
        return None, logits, None
    forms = set()
    try:
        for mode in (False, True):
            model.train(mode)
            forms.add(_form_in_this_mode(model, inputs, outputs[0], outputs[1].shape))
    finally:
        model.eval()
    return forms.pop() if len(forms) == 1 else None, logits, outputs[0].last_hidden_state


def _form_in_this_mode(model: Any, inputs: dict[str, Any], decoder_output: Any, shape: torch.Size) -> HeadForm | None:
    """Find the form in the model's current mode; see `find_head_form`.

    Args:
        decoder_output: what the decoder returns for `inputs`.
        shape: (1, positions, vocabulary) of the head's output.
    """
    generator, device = torch.Generator().manual_seed(0), inputs["input_ids"].device
    states = decoder_output.last_hidden_state
    # Eighths are exact in every dtype. The dtype is that of the weights: without autocast, layers between decoder and
    # head (RemBERT's transformation) accept no other.
    dtype = model.get_input_embeddings().weight.dtype
    hidden = (torch.randint(-8, 9, states.shape, generator=generator) / 8).to(device, dtype)
    size = torch.tensor(_SIZES)[:, None] * (0.3 + 0.7 * torch.rand(shape, generator=generator))
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    output = (size * sign).to(device).requires_grad_()
    received: list[torch.Tensor] = []

    def instead_of_decoder(*_: Any, **__: Any) -> Any:
        return type(decoder_output)(**{**decoder_output, "last_hidden_state": hidden})

    def instead_of_head(states: torch.Tensor) -> torch.Tensor:
        received.append(states)
        return output

    with (
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        _replaced(decoder_of(model), instead_of_decoder),
        _replaced(model.get_output_embeddings(), instead_of_head),
    ):
        logits = model(**inputs).logits
        if (
            len(received) != 1
            or received[0].shape != hidden.shape
            or not torch.equal(received[0].cpu().to(hidden.dtype), hidden.cpu())
        ):
            return None
        if logits.shape != output.shape or not logits.requires_grad:
            return None
        cotangent = torch.randn(shape, generator=generator).to(device)
        weights = [each for each in model.parameters() if each.requires_grad]
        gradient, *others = torch.autograd.grad((logits * cotangent).sum(), [output, *weights], allow_unused=True)
    if any(each is not None for each in others):
        return None
    # On the host: the device may lack operators that training does not need.
    return _fitting(*(each.detach().float().cpu() for each in (output, logits, cotangent, gradient)))


def _fitting(
    output: torch.Tensor, logits: torch.Tensor, cotangent: torch.Tensor, gradient: torch.Tensor
) -> HeadForm | None:
    """The form that maps `output` to `logits` and `cotangent` to `gradient`; all (1, POSITIONS, vocabulary) fp32."""
    smallest, largest = (output[:, at].double() for at in (0, -1))
    # Far below the cap the logits are linear; rounded to eight digits, so that a scale of 1 is exact.
    scale = float(f"{float((smallest * logits[:, 0]).sum() / (smallest**2).sum()):.8g}")
    reached = float(logits[:, -1].abs().max())
    is_capped = reached < 0.5 * abs(scale) * float(largest.abs().max())
    form = HeadForm(scale, reached if is_capped else None)
    expected = form.logits(output)
    if not bool(((logits - expected).abs() <= _ALLOWED * expected.abs()).all()):
        return None
    slope = cotangent * form.slope(expected)
    return form if bool(((gradient - slope).abs() <= _ALLOWED * abs(scale) * cotangent.abs()).all()) else None


def _recording(module: Any, outputs: list[Any]) -> Callable[..., Any]:
    forward = module.forward

    def recording(*inputs: Any, **named: Any) -> Any:
        outputs.append(forward(*inputs, **named))
        return outputs[-1]

    return recording


@contextmanager
def _replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the `forward` of this one module within the context."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
