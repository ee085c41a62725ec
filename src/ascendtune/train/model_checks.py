"""Checks of a model before its first step, and warnings about it."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import CheckFailed, RecipeError
from ascendtune.core.log import warn
from ascendtune.core.units import count_of
from ascendtune.hub.adapter_files import adapted_module
from ascendtune.hub.loaded_weights import weights_not_finite
from ascendtune.hub.model_config import length_of_dynamic_rope, lengths_that_change_rope
from ascendtune.hub.weight_files import sample_of_weights
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.attention.choice import AttentionChoice
from ascendtune.train.attention.proof import layer_pattern
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.objective.head import POSITIONS, HeadForm, decoder_of, find_head_form
from ascendtune.train.precision import DTYPES

_LENGTHS = (5, 9, 7)
_LARGE_WEIGHT = 0.25
"""Few weights of a matrix are larger than this."""
# Allowed rounding error, as a share of the largest value: for a row with other neighbours (the same kernels compute it,
# so nearly none), and for a row computed in another shape.
_SAME_SHAPE = {"fp32": 1e-5, "bf16": 4e-3, "fp16": 1e-3}
_OTHER_SHAPE = {"fp32": 1e-3, "bf16": 6e-2, "fp16": 1e-2}


def require_same_files(directory: Path, gather: Callable[[str], list[str]]) -> None:
    """Raise on every rank if nodes have other weights at the same path: training would mix both.

    Args:
        gather: returns the texts of all ranks for that of this rank.
    """
    of_main, *others = gather(f"{sample_of_weights(directory)} {socket.gethostname()}")
    sample, main_host = of_main.split(" ", 1)
    if differing := sorted({host for other, host in (each.split(" ", 1) for each in others) if other != sample}):
        raise RecipeError(
            f"{', '.join(differing[:8])} {'has' if len(differing) == 1 else 'have'} other weights at this path than "
            f"{main_host}",
            code="model-differs-between-nodes",
            remedy="give every node the same model: copy it from one to the others, or put it on a shared file system",
            where=directory,
        )


def prove_isolation(model: Any, device: torch.device, vocabulary: int, *, attention: str, compute: str) -> float:
    """Check that documents in one sequence do not attend to each other; return the largest difference.

    Three documents go through the model in one sequence. Replacing the first must not change the hidden states of the
    others, and the last document alone must have the hidden states that it has in the sequence: then attention stops at
    both borders and positions restart. Call it under the autocast of training.

    Args:
        attention: name for the message.
        compute: fp32, bf16 or fp16: determines the allowed rounding error.

    Raises:
        CheckFailed: a document's hidden states depend on its neighbours.
        RecipeError: the model itself refuses to isolate documents on this device.
    """
    first, *others = _documents(device, vocabulary)
    try:
        together = _hidden(model, [first, *others])
    except ValueError as error:
        # transformers raises ValueError. NotImplementedError is a different case: the device lacks an operator.
        raise RecipeError(
            f"this model does not support packed documents: {str(error).strip().splitlines()[0]}",
            code="packing-unsupported",
            remedy="set data.packing: auto or false",
        ) from error
    in_other_company = _hidden(model, [(first + 1) % vocabulary, *others])
    last_alone = _hidden(model, others[-1:])
    scale = float(together.abs().max())
    leaked = float((together - in_other_company)[:, len(first) :].abs().max())
    moved = float((together[:, -len(others[-1]) :] - last_alone).abs().max())
    for difference, allowed in ((leaked, _SAME_SHAPE[compute] * scale), (moved, _OTHER_SHAPE[compute] * scale)):
        if not difference <= allowed:
            raise CheckFailed(
                f"documents packed into one sequence attend to each other: hidden states differ by {difference:.3g} "
                f"(allowed {allowed:.2g}, largest value {scale:.3g}) under attention '{attention}'",
                code="documents-not-isolated",
                remedy="set data.packing: false, or model.attention: sdpa; please report the model",
            )
    return max(leaked, moved)


def fusible_head(model: Any, device: torch.device, vocabulary: int) -> HeadForm | None:
    """Form of the logits as a function of `head(decoder(x))`; None if the head must not be fused with the loss.

    Raises:
        RecipeError: the untrained model already computes infinite values.
    """
    ids = torch.cat(_documents(device, vocabulary))[None, :POSITIONS]
    with torch.no_grad(), _in_eval_mode(model):
        form, logits, expected = find_head_form(model, ids)
        if not torch.isfinite(logits).all():
            raise _not_finite(model)
        if form is None or expected is None:
            return None
        # Call the decoder as training does: the model's class may do more than that. Compare hidden states, not logits:
        # a cap computed in bf16 rounds logits by more than such a difference.
        hidden = decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state.float()
    agrees = torch.allclose(hidden, expected.float(), rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    return form if agrees else None


def require_one_score(model: Any, device: torch.device, vocabulary: int) -> None:
    """Check that the model's score is `score(hidden state of the last token)`: pairs are scored that way.

    Raises:
        RecipeError: the score is another function.
    """
    (document,) = _documents(device, vocabulary)[:1]
    with torch.no_grad(), _in_eval_mode(model):
        inputs = {"input_ids": document[None], "use_cache": False}
        expected = model(**inputs).logits.float()
        hidden = decoder_of(model)(**inputs).last_hidden_state
        scores = model.score(hidden[:, -1]).float() if hasattr(model, "score") else expected + torch.nan
    if not torch.isfinite(expected).all():
        raise _not_finite(model)
    if not torch.allclose(scores, expected, rtol=1e-3, atol=1e-3):
        raise RecipeError(
            "this model does not compute its score from the last token alone",
            code="score-not-of-last-token",
            remedy="choose a model whose …ForSequenceClassification class applies `score` to the last token",
        )


def warn_of_shared_frequencies(recipe: Recipe, config: Any) -> None:
    """Warn if rows do not train as they would alone, because of LongRoPE or dynamic NTK."""
    is_alone = recipe.data.packing is False and recipe.batch.micro_batch == 1 and recipe.method.task != "pairs"
    text = config.get_text_config()
    changes, dynamic = lengths_that_change_rope(getattr(text, "rope_parameters", None)), length_of_dynamic_rope(text)
    if dynamic is not None and recipe.data.max_length > dynamic:
        warn(
            f"dynamic NTK: a row of more than {dynamic:,} tokens changes the frequencies of all rows in its "
            "micro-batch, and of long rows after it, so that what is learnt depends on the order of the rows. For rows "
            f"that train as they would alone: data.max_length: {dynamic}"
        )
    if changes and recipe.data.max_length > min(changes) and not is_alone:
        warn(
            f"LongRoPE: a row of more than {min(changes):,} tokens changes the frequencies of all rows in its "
            f"micro-batch. For rows that train as they would alone: data.max_length: {min(changes)}, or data.packing: "
            "false with batch.per_device: 1"
        )


def warn_of_untrained_parts(
    model: Any, recipe: Recipe, config: Any, attention: AttentionChoice, *, is_main: bool
) -> None:
    """Warn of parts of the model that a user may expect to be trained but that are not."""
    if recipe.model.new_tokens and not model.get_input_embeddings().weight.requires_grad:
        warn(
            "the rows of model.new_tokens are frozen as they begin, so the new tokens look alike: "
            "set method.lora.modules_to_save: all-embeddings to train them"
        )
    if not is_main:
        return
    warn_of_rounded_steps(recipe)
    # The trial of a reward model does not include its score head.
    silent = [each for each in attention.support.without_gradient if each != "score.weight"]
    _warn_of_weights_without_gradient(model, silent)
    if getattr(config.get_text_config(), "output_router_logits", False):
        warn(
            "config.json asks for the routers' auxiliary loss (output_router_logits): it is not added here, the "
            "loss is that of the tokens alone"
        )


def warn_of_rounded_steps(recipe: Recipe) -> None:
    """Warn of the size from which on weights trained in 16 bits do not change. DeepSpeed's optimizer has fp32 weights.

    A step of AdamW is about as large as the learning rate. Rounding undoes it if it is less than half of the distance
    between two numbers, which doubles with each power of two.
    """
    dtype = DTYPES.get(recipe.model.dtype, torch.float32)
    is_whole = recipe.method.adapter is None and recipe.parallel.strategy != "deepspeed"
    if dtype == torch.float32 or not is_whole or recipe.optim.optimizer not in ("auto", "adamw"):
        return
    still = 2.0 ** (math.floor(math.log2(2 * recipe.learning_rate / torch.finfo(dtype).eps)) + 1)
    if still < _LARGE_WEIGHT:
        warn(
            f"the weights are trained in {recipe.model.dtype} (model.dtype): those of {still:.2g} and more hardly move "
            f"with a learning rate of {recipe.learning_rate:g}, as rounding cancels its updates. model.dtype: auto "
            "trains them in fp32"
        )


def _warn_of_weights_without_gradient(model: Any, silent: list[str]) -> None:
    """Warn of trained weights without a gradient; an adapter has none if the weight of its layer has none."""
    patterns = {each.removesuffix(".weight") for each in silent}
    names = [
        name
        for name, weight in model.named_parameters()
        if weight.requires_grad
        and layer_pattern(adapted_module(name).replace(".base_layer", "").removesuffix(".weight")) in patterns
    ]
    if names:
        warn(f"no token gives {count_of(len(names), 'weight')} of this model a gradient, first {names[0]}")


def warn_of_long_rows(config: Any, longest: int) -> None:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and longest > positions:
        warn(
            f"the longest row has {longest:,} tokens, the model was made for {positions:,} positions: "
            "set data.max_length lower, or rope scaling in the model's config.json"
        )


def _not_finite(model: Any) -> RecipeError:
    return weights_not_finite(model) or RecipeError(
        "the model computes NaN or infinite values before any training",
        code="logits-not-finite",
        remedy="set precision: bf16 or fp32",
    )


def _documents(device: torch.device, vocabulary: int) -> list[torch.Tensor]:
    # A separate generator: the check must not change the random state that training starts from.
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocabulary, (length,), generator=generator).to(device) for length in _LENGTHS]


def _hidden(model: Any, documents: list[torch.Tensor]) -> torch.Tensor:
    decoder = decoder_of(model)
    with torch.no_grad(), _in_eval_mode(model):
        output = decoder(**_batch(documents).model_inputs())
    hidden: torch.Tensor = output.logits if decoder is model else output.last_hidden_state
    return hidden


def _batch(documents: list[torch.Tensor]) -> DeviceBatch:
    ends = [0]
    for document in documents:
        ends.append(ends[-1] + len(document))
    device = documents[0].device
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    return DeviceBatch(
        input_ids=torch.cat(documents)[None],
        position_ids=torch.cat([torch.arange(len(document), device=device) for document in documents])[None],
        cu_seqlens=tuple(ends),
        cu_seqlens_device=torch.tensor(ends, dtype=torch.int32, device=device),
        target_index=nothing,
        targets=nothing,
    )


@contextmanager
def _in_eval_mode(model: Any) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
