"""A transformers model, ready for its tuner: right type, our attention, room for new tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import AscendtuneError, RecipeError
from ascendtune.core.foreign_json import first_line
from ascendtune.hub.loaded_weights import require_all_weights, without_own_implementations
from ascendtune.hub.model_config import read_model_config
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.precision import DTYPES, Precision


def read_config(section: ModelSection, directory: Path) -> Any:
    """The model's config.

    Raises:
        RecipeError: transformers does not know the architecture, or it needs code that may not run.
    """
    from transformers import AutoConfig

    read_model_config(directory / "config.json")
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=section.trust_remote_code)
    except Exception as error:  # transformers raises what its classes happen to raise on values that cannot be
        remedy = "upgrade transformers, or check config.json"
        if "trust_remote_code" in str(error):
            remedy = "read the model's Python files, then set model.trust_remote_code: true"
        elif section.trust_remote_code and ".py" in str(error):
            remedy = "copy the model's Python files into the folder, from where the model came from"
        raise RecipeError(
            f"the model cannot be read: {first_line(error)}",
            code="model-not-readable",
            remedy=remedy,
            where=directory,
        ) from error
    return without_own_implementations(config)


def score_once(config: Any, pad_id: int) -> None:
    """Make `config` that of a reward model: one score, at the last token that is no padding."""
    config.num_labels = 1
    config.get_text_config().pad_token_id = pad_id


def load_model(
    section: ModelSection,
    stage: str,
    directory: Path,
    config: Any,
    *,
    precision: Precision,
    implementation: str,
    vocabulary: int,
    seed: int,
) -> Any:
    """A causal language model (a model with one score, for stage reward) on the CPU, in training mode.

    Args:
        implementation: of attention, by a name that transformers knows.
        vocabulary: tokens of the tokenizer; the embeddings grow when they have fewer rows.
        seed: for `init: random`, and for a score that the files do not hold.

    Raises:
        RecipeError: weights are missing or do not fit the architecture.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    dtype, kind = DTYPES[precision.weights], class_of(stage)
    verbosity = logging.get_verbosity()
    # Its report of keys is for programmers, and calls a score that is yet to be learnt missing.
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
    except AscendtuneError:
        raise
    except Exception as error:  # transformers raises what its classes happen to raise on values that cannot be
        raise _unusable(error, directory) from error
    finally:
        logging.set_verbosity(verbosity)
    grow_embeddings(model, vocabulary)
    model.train()
    return model


def class_of(stage: str) -> Any:
    """The class that makes a model for a stage."""
    # Imported one by one: each costs the first step some time.
    if stage == "reward":
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def _load_weights(
    section: ModelSection, kind: Any, config: Any, directory: Path, dtype: torch.dtype, implementation: str
) -> Any:
    model, report = kind.from_pretrained(
        directory,
        config=config,
        dtype=dtype,
        attn_implementation=implementation,
        trust_remote_code=section.trust_remote_code,
        use_safetensors=True,
        output_loading_info=True,
        # They are an error, with names and shapes, two lines below.
        ignore_mismatched_sizes=True,
    )
    scores = kind is class_of("reward")
    require_all_weights(
        report,
        directory,
        config,
        drawn=("score.weight",) if scores else (),
        left_out=("lm_head.weight",) if scores else (),
    )
    return model


def _unusable(error: Exception, directory: Path) -> RecipeError:
    if isinstance(error, ImportError):
        return RecipeError(
            f"the model's own code cannot run: {first_line(error)}",
            code="model-code-failed",
            remedy="install what it names; code that was written for another version of transformers needs that one",
            where=directory,
        )
    return RecipeError(
        f"the weights cannot be loaded: {first_line(error)}",
        code="weights-not-loadable",
        remedy="check that the folder holds the safetensors of this config.json, complete",
        where=directory,
    )


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
