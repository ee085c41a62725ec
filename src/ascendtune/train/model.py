"""A transformers model, ready for its tuner: right type, our attention, room for new tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import RecipeError
from ascendtune.train.attention.interface import choose, register
from ascendtune.train.precision import DTYPES, Precision
from ascendtune.train.sections import ModelSection


def read_config(section: ModelSection, directory: Path) -> Any:
    """The model's config.

    Raises:
        RecipeError: transformers does not know the architecture, or it needs code that may not run.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=section.trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        remedy = "upgrade transformers, or check config.json"
        if "trust_remote_code" in str(error):
            remedy = "read the model's Python files, then set model.trust_remote_code: true"
        elif section.trust_remote_code and ".py" in str(error):
            remedy = "copy the model's Python files into the folder, from where the model came from"
        first_line = str(error).strip().splitlines()[0]
        raise RecipeError(f"the model cannot be read: {first_line}", remedy=remedy, where=directory) from error


def score_once(config: Any, pad_id: int) -> None:
    """Make `config` that of a reward model: one score, at the last token that is no padding."""
    config.num_labels = 1
    config.get_text_config().pad_token_id = pad_id


def choose_attention(section: ModelSection, config: Any, device_default: str) -> tuple[str, str]:
    """Name of the attention and the reason for it."""
    return choose(config, section.attention, device_default)


def load_model(
    section: ModelSection,
    stage: str,
    directory: Path,
    config: Any,
    *,
    precision: Precision,
    attention: str,
    vocabulary: int,
    seed: int,
) -> Any:
    """A causal language model (a model with one score, for stage reward) on the CPU, in training mode.

    Args:
        attention: a name from the attention table.
        vocabulary: tokens of the tokenizer; the embeddings grow when they have fewer rows.
        seed: for `init: random`, and for a score that the files do not hold.

    Raises:
        RecipeError: weights are missing or do not fit the architecture.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    dtype, implementation = DTYPES[precision.weights], register(attention)
    kind = _class_of(stage)
    verbosity = logging.get_verbosity()
    if stage == "reward":
        # Its report calls the score, which is yet to be learnt, missing. What is really missing is told by us.
        logging.set_verbosity_error()
    # Decides random weights, and a score that the files do not hold.
    torch.manual_seed(seed)
    try:
        if section.init == "random":
            model = kind.from_config(
                config, dtype=dtype, attn_implementation=implementation, trust_remote_code=section.trust_remote_code
            )
        else:
            model = _load_weights(section, kind, config, directory, dtype, implementation)
    except ValueError as error:
        if "does not support an attention implementation" not in str(error):
            raise
        raise RecipeError(
            f"{config.model_type} models compute attention in code of their own, which cannot be replaced",
            remedy="choose a model whose class in transformers uses its attention interface",
            where=directory,
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    grow_embeddings(model, vocabulary)
    model.train()
    return model


def _class_of(stage: str) -> Any:
    # Imported one by one: each costs the first step some time.
    if stage == "reward":
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def _load_weights(
    section: ModelSection, kind: Any, config: Any, directory: Path, dtype: torch.dtype, implementation: str
) -> Any:
    try:
        model, loading = kind.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            attn_implementation=implementation,
            trust_remote_code=section.trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    except ImportError as error:
        first_line = str(error).strip().splitlines()[0]
        raise RecipeError(
            f"the model's own code cannot run: {first_line}",
            remedy="install what it names; code that was written for another version of transformers needs that one",
            where=directory,
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        if "does not support an attention implementation" in str(error):
            raise
        first_line = str(error).strip().splitlines()[0]
        raise RecipeError(
            f"the weights cannot be loaded: {first_line}",
            remedy="check that the folder holds the safetensors of this config.json, complete",
            where=directory,
        ) from error
    missing = sorted(set(loading["missing_keys"]) - {"score.weight"})
    if missing:
        # transformers fills these with random numbers and says so in a warning that scrolls by.
        raise RecipeError(
            f"{len(missing)} weights are missing from the files, first {missing[0]}",
            remedy="download the model again; `model.init: random` starts from random weights on purpose",
            where=directory,
        )
    return model


def grow_embeddings(model: Any, vocabulary: int) -> int:
    """Add rows for new tokens, each the mean of the old rows; returns how many. Never shrinks."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    if vocabulary <= rows:
        return 0
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    tables = [model.get_input_embeddings().weight]
    if (head := model.get_output_embeddings()) is not None and head.weight is not tables[0]:
        tables.append(head.weight)
    with torch.no_grad():
        for table in tables:
            table[rows:] = table[:rows].float().mean(0).to(table.dtype)
    return vocabulary - rows
