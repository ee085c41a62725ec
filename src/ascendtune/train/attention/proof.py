"""Compares a small copy of a model using this project's attention with the same copy using its own, row by row.

The reference is the model's own eager attention on one document after the other: no padding, no packing, no code of
this project. Values and the gradients of all parameters are compared, in fp32 on the host. If they agree, the functions
are the same; that a device's kernel computes this function is checked by `model_checks.prove_isolation` and the
kernels' own tests.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ascendtune.core.errors import AscendtuneError
from ascendtune.core.foreign_json import first_line
from ascendtune.hub.gpu_functions import plain_functions
from ascendtune.train.attention.recurrence import documents_apart
from ascendtune.train.attention.small_copy import WINDOW, small_configs
from ascendtune.train.objective.head import decoder_of

# Neither these lengths nor their sum are multiples of a block of keys.
_LENGTHS = (11, 6, 20)
assert max(_LENGTHS) > 4 * WINDOW
# Allowed rounding errors: of values, as a share of the largest; of a gradient, as a share of its own largest value plus
# one of the largest of all gradients (a gradient may consist of rounding errors only).
_VALUES, _GRADIENT, _ALL_GRADIENTS = 1e-4, 1e-3, 1e-5
_MOST_ROUNDING = 0.01
Make = Callable[[Any, str], nn.Module]
"""Makes a model from a config, with an attention by its name in transformers."""


class NotComparable(Exception):
    """No small copy of the model can be made, or its own attention fails."""


@dataclass
class _Outcome:
    values: list[torch.Tensor]
    """Values of each document: (tokens, …)."""
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)


class AttentionTrial:
    """A small copy on which attentions are tried one after the other.

    Args:
        config: config of the real model.
        make: see `Make`.
        values_of: maps (model, arguments of its forward) to the values of the loss, (batch, tokens, …).

    Raises:
        NotComparable: see its docstring.
    """

    def __init__(self, config: Any, make: Make, values_of: Callable[[Any, dict[str, Any]], torch.Tensor]) -> None:
        self._make, self._values_of = make, values_of
        first: Exception | None = None
        with _quiet(), torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            try:
                for small in small_configs(config, lambda each: make(each, "eager")):
                    try:
                        self._begin(small)
                        return
                    except Exception as error:  # noqa: BLE001
                        first = first or error
            # Model code raises various errors for sizes that do not fit together.
            except Exception as error:  # noqa: BLE001
                first = first or error
        raise NotComparable("all of them are large" if first is None else _failure(first, "on them"))

    def _begin(self, config: Any) -> None:
        self._config = config
        model: Any = self._make(config, "eager").float().eval()
        generator = torch.Generator().manual_seed(0)
        vocabulary = min(config.get_text_config().vocab_size, model.get_input_embeddings().weight.shape[0])
        self._documents = [
            torch.randint(min(3, vocabulary - 1), vocabulary, (length,), generator=generator) for length in _LENGTHS
        ]
        for is_random in (True, False):
            if is_random:
                _randomise_weights(model, generator)
            else:
                # The random weights give values that are not finite: use the model's own initialisation.
                model = self._make(config, "eager").float().eval()
            rows = [self._values(model, {"input_ids": each[None]})[0] for each in self._documents]
            if all(torch.isfinite(each).all() for each in rows):
                break
        else:
            raise NotComparable("its own attention computes values that are not numbers")
        self._state = {key: value.detach().clone() for key, value in model.state_dict().items()}
        self._cotangents = [torch.randn(each.shape, generator=generator) for each in rows]
        self._expected = self._outcome(model, rows)
        self._reference = model
        self._rounding = self._effect_of_rounding(generator)

    def _effect_of_rounding(self, generator: torch.Generator) -> float:
        """Factor by which limits are widened: deeper copies amplify rounding errors more than shallow ones."""
        model = self._reference
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1e-7 * torch.randn(parameter.shape, generator=generator))
            rounded = [self._values(model, {"input_ids": each[None]})[0] for each in self._documents]
        model.load_state_dict(self._state)
        share = max(_share(one, other) for one, other in zip(rounded, self._expected.values, strict=True))
        if not share <= _MOST_ROUNDING:
            raise NotComparable("its values depend on the last digit of its weights")
        return max(1.0, 4 * share / _VALUES)

    def is_causal(self) -> bool:
        """Whether the values of a token do not depend on the tokens after it."""
        longest, half = self._documents[-1], len(self._documents[-1]) // 2
        # The length is unchanged: it may decide between equal scores, which is not a look ahead.
        changed = torch.cat([longest[:half], longest[: len(longest) - half]])
        with _quiet(), torch.no_grad():
            values = self._values(self._reference, {"input_ids": changed[None]})[0][:half]
        expected = self._expected.values[-1][:half]
        return _share(values, expected) <= _VALUES * self._rounding

    def without_gradient(self) -> list[str]:
        """Parameters without a gradient from any token, with stars for numbers."""
        reached: dict[str, bool] = {}
        for name, gradient in self._expected.gradients.items():
            pattern = layer_pattern(name)
            has_one = gradient is not None and bool(gradient.any())
            reached[pattern] = reached.get(pattern, False) or has_one
        return sorted(name for name, has_one in reached.items() if not has_one)

    def difference_padded(self, implementation: str, *, masked: bool) -> str | None:
        """Describe the difference with rows padded on the right; None if there is none.

        Args:
            implementation: a name of transformers, or the result of `register`.
            masked: whether the model gets an attention mask, which marks padding.
        """
        longest = max(_LENGTHS)
        ids = torch.full((len(_LENGTHS), longest), 1)
        mask = torch.zeros_like(ids)
        for row, document in enumerate(self._documents):
            ids[row, : len(document)] = document
            mask[row, : len(document)] = 1
        inputs = {"input_ids": ids, **({"attention_mask": mask} if masked else {})}
        return self._difference(
            implementation,
            inputs,
            lambda values: [values[row, :length] for row, length in enumerate(_LENGTHS)],
            "with this attention",
        )

    def difference_packed(self, implementation: str) -> str | None:
        """Describe the difference with all documents in one sequence; None if there is none."""
        ends = [0]
        for length in _LENGTHS:
            ends.append(ends[-1] + length)
        inputs = {
            "input_ids": torch.cat(self._documents)[None],
            "position_ids": torch.cat([torch.arange(length) for length in _LENGTHS])[None],
            "cu_seqlens": tuple(ends),
        }
        return self._difference(
            implementation, inputs, lambda values: list(values[0].split(_LENGTHS)), "on packed documents"
        )

    def _difference(
        self,
        implementation: str,
        inputs: dict[str, Any],
        rows_of: Callable[[torch.Tensor], list[torch.Tensor]],
        condition: str,
    ) -> str | None:
        try:
            with _quiet(), torch.random.fork_rng(devices=[]), torch.enable_grad():
                model = self._make(self._config, implementation).float().eval()
                model.load_state_dict(self._state)
                outcome = self._outcome(model, rows_of(self._values(model, inputs)))
        # Model code raises various errors: such an attention may not exist, or not accept an argument.
        except AscendtuneError as error:
            return error.what
        except Exception as error:  # noqa: BLE001
            return _failure(error, condition)
        return _compared(outcome, self._expected, self._rounding)

    def _values(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        # Functions of packages for GPUs refuse host memory.
        with plain_functions(model), documents_apart(model) if "cu_seqlens" in inputs else nullcontext():
            return self._values_of(model, {**inputs, "use_cache": False}).float()

    def _outcome(self, model: nn.Module, rows: list[torch.Tensor]) -> _Outcome:
        model.zero_grad()
        total = torch.stack([(row * each).sum() for row, each in zip(rows, self._cotangents, strict=True)]).sum()
        total.backward()
        gradients = {name: each.grad for name, each in model.named_parameters() if each.requires_grad}
        return _Outcome([row.detach() for row in rows], gradients)


def lm_values(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Logits of a causal language model: (batch, tokens, vocabulary)."""
    logits: torch.Tensor = model(**inputs).logits
    return logits


def decoder_values(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Hidden states of a model with a score head: (batch, tokens, hidden)."""
    hidden: torch.Tensor = decoder_of(model)(**inputs).last_hidden_state
    return hidden


def layer_pattern(name: str) -> str:
    """Replace numbers by stars: model.layers.3.mlp -> model.layers.*.mlp"""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _compared(outcome: _Outcome, expected: _Outcome, rounding: float) -> str | None:
    share = max(_share(one, other) for one, other in zip(outcome.values, expected.values, strict=True))
    if not share <= _VALUES * rounding:
        return f"its values differ by {share:.1%} of the largest one"
    largest = max((float(each.abs().max()) for each in expected.gradients.values() if each is not None), default=0.0)
    zero = torch.zeros(())
    for name, expected_gradient in expected.gradients.items():
        # A missing gradient is a gradient of 0.
        gradient, reference = (
            zero if each is None else each for each in (outcome.gradients.get(name), expected_gradient)
        )
        own_largest = float(reference.abs().max())
        difference = float((gradient - reference).abs().max())
        if not difference <= rounding * (_GRADIENT * own_largest + _ALL_GRADIENTS * largest):
            share = difference / max(own_largest, 1e-30)
            return f"the gradient of {layer_pattern(name)} differs by {share:.1%} of its largest value"
    return None


def _share(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def _randomise_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Set random weights with which attention prefers some tokens, and every bias and gate has an effect."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.1 * noise)


def _failure(error: Exception, condition: str) -> str:
    """A sentence on an error of a model's code; it contains the error's message if that was written for users."""
    sentence = f"the model's code does not run {condition}"
    if not isinstance(error, NotComparable | ValueError | NotImplementedError | ImportError):
        return sentence
    # The first sentence: advice that may follow is for other programs.
    return f"{sentence}: {first_line(error).partition('. ')[0].rstrip('.')}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages of libraries about the copies: they do not concern the model that is trained."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(verbosity)
