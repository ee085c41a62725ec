"""The two halves of a causal language model: tokens to hidden states, and through its head to logits.

Losses go through the head in chunks of positions (`logit_chunks`). For that they must know what the model does to the
output of its head. `find_head_form` runs the model's own code between the two halves: the decoder
and the head are replaced for a moment; the decoder returns hidden states that were drawn, the head checks
that it gets exactly these and returns numbers that were drawn over ten decades. What the model's forward makes of them
shows every scale, cap, bias and mask that it applies, in value and in gradient, however small the logits of its weights
are. No weight takes part, so divided weights, adapters and half precision change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ascendtune.train.batch import DeviceBatch

# Largest output of the head at each position. At the lower end any cap is far away, at the upper end it is reached.
_DECADES = [10.0**power for power in range(-4, 6)]
POSITIONS = len(_DECADES)
# Rounding of a forward pass in fp32, of each number by itself.
_ALLOWED = 1e-5


def decoder_of(model: Any) -> Any:
    """The model without its head; the model itself where its class does not say which part that is."""
    return model.base_model


def hidden_states(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """(batch × tokens, hidden)."""
    hidden: torch.Tensor = decoder_of(model)(**batch.model_inputs()).last_hidden_state
    return hidden.flatten(0, 1)


def labelled_states(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """(labelled, hidden) of the positions with a target."""
    return hidden_states(model, batch).index_select(0, batch.target_index)


def labelled_logits(model: Any, batch: DeviceBatch) -> torch.Tensor:
    """(labelled, vocabulary) fp32, through the model's own head: for models that do more than multiply there."""
    logits: torch.Tensor = model(**batch.model_inputs()).logits
    return logits.flatten(0, 1).index_select(0, batch.target_index).float()


@dataclass(frozen=True)
class HeadForm:
    """How logits follow from the output z of a head: cap · tanh(scale · z / cap), or scale · z without a cap."""

    scale: float = 1.0
    cap: float | None = None

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Logits of an output of the head, both (…, vocabulary) fp32."""
        scaled = output if self.scale == 1 else output * self.scale
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """dlogits/dz of each element, (…, vocabulary) fp32 as the logits: scale · (1 - (logits / cap)²)."""
        return self.scale if self.cap is None else (1 - (logits / self.cap) ** 2) * self.scale


PLAIN = HeadForm()


def find_head_form(model: Any, ids: torch.Tensor) -> tuple[HeadForm | None, torch.Tensor, torch.Tensor | None]:
    """The form in which `model` turns the output of its head into logits, None where none fits; and what it computes.

    The form fits in training and in evaluation mode, for values and gradients. There is none also where the head does
    not get the hidden states as they are, or where another trained weight (a learnt scale) takes part.

    Args:
        model: in evaluation mode.
        ids: (1, POSITIONS) int64 on the device.

    Returns:
        The form, the logits of `ids`: (1, POSITIONS, vocabulary), and the hidden states that the whole model gets from
        its decoder: (1, POSITIONS, hidden), None where that is not known.
    """
    head, decoder = model.get_output_embeddings(), decoder_of(model)
    inputs = {"input_ids": ids, "use_cache": False}
    if head is None or decoder is model:
        with torch.no_grad():
            return None, model(**inputs).logits, None
    seen: list[Any] = []
    with torch.no_grad(), _replaced(decoder, _noting(decoder, seen)), _replaced(head, _noting(head, seen)):
        logits = model(**inputs).logits
    if len(seen) != 2 or getattr(seen[0], "last_hidden_state", None) is None:
        return None, logits, None
    forms = set()
    try:
        for mode in (False, True):
            model.train(mode)
            forms.add(_form_in_this_mode(model, inputs, seen[0], seen[1].shape))
    finally:
        model.eval()
    return forms.pop() if len(forms) == 1 else None, logits, seen[0].last_hidden_state


def _form_in_this_mode(model: Any, inputs: dict[str, Any], decoder_output: Any, shape: torch.Size) -> HeadForm | None:
    """See `find_head_form`.

    Args:
        decoder_output: what the decoder returns for `inputs`.
        shape: (1, positions, vocabulary) of the head's output.
    """
    generator, device = torch.Generator().manual_seed(0), inputs["input_ids"].device
    states = decoder_output.last_hidden_state
    # Eighths are exact in every type. In that of the weights: without autocast, what lies between decoder and head
    # (RemBERT's transformation) takes no other.
    dtype = model.get_input_embeddings().weight.dtype
    hidden = (torch.randint(-8, 9, states.shape, generator=generator) / 8).to(device, dtype)
    size = torch.tensor(_DECADES)[:, None] * (0.3 + 0.7 * torch.rand(shape, generator=generator))
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    output = (size * sign).to(device).requires_grad_()
    given: list[torch.Tensor] = []

    def instead_of_decoder(*_: Any, **__: Any) -> Any:
        return type(decoder_output)(**{**decoder_output, "last_hidden_state": hidden})

    def instead_of_head(states: torch.Tensor) -> torch.Tensor:
        given.append(states)
        return output

    with (
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        _replaced(decoder_of(model), instead_of_decoder),
        _replaced(model.get_output_embeddings(), instead_of_head),
    ):
        logits = model(**inputs).logits
        if (
            len(given) != 1
            or given[0].shape != hidden.shape
            or not torch.equal(given[0].cpu().to(hidden.dtype), hidden.cpu())
        ):
            return None
        if logits.shape != output.shape or not logits.requires_grad:
            return None
        cotangent = torch.randn(shape, generator=generator).to(device)
        weights = [each for each in model.parameters() if each.requires_grad]
        gradient, *others = torch.autograd.grad((logits * cotangent).sum(), [output, *weights], allow_unused=True)
    if any(each is not None for each in others):
        return None
    # On the host: a device is asked for no operator that training does not need.
    return _fitting(*(each.detach().float().cpu() for each in (output, logits, cotangent, gradient)))


def _fitting(
    output: torch.Tensor, logits: torch.Tensor, cotangent: torch.Tensor, gradient: torch.Tensor
) -> HeadForm | None:
    """The form that gives `logits` for `output`, and `gradient` for `cotangent`; all (1, decades, vocabulary) fp32."""
    smallest, largest = (output[:, at].double() for at in (0, -1))
    # Far below the cap the logits are linear; eight digits, so that 1 is 1.
    scale = float(f"{float((smallest * logits[:, 0]).sum() / (smallest**2).sum()):.8g}")
    reached = float(logits[:, -1].abs().max())
    is_capped = reached < 0.5 * abs(scale) * float(largest.abs().max())
    form = HeadForm(scale, reached if is_capped else None)
    expected = form.logits(output)
    if not bool(((logits - expected).abs() <= _ALLOWED * expected.abs()).all()):
        return None
    slope = cotangent * form.slope(expected)
    return form if bool(((gradient - slope).abs() <= _ALLOWED * abs(scale) * cotangent.abs()).all()) else None


def _noting(module: Any, seen: list[Any]) -> Callable[..., Any]:
    forward = module.forward

    def noting(*inputs: Any, **named: Any) -> Any:
        seen.append(forward(*inputs, **named))
        return seen[-1]

    return noting


@contextmanager
def _replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Put `forward` into this one module for a moment."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
