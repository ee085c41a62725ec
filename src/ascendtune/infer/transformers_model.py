"""Generation by transformers: token ids in, token ids out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.foreign_json import bad_field, first_line
from ascendtune.core.log import warn
from ascendtune.hub.adapter_files import PREFIX, WEIGHTS, read_adapter_config, require_all_adapter_weights
from ascendtune.hub.loaded_weights import (
    require_all_weights,
    resize_embeddings,
    weights_not_finite,
    without_own_implementations,
)
from ascendtune.hub.model_config import lengths_that_change_rope, unknown_name_fault
from ascendtune.hub.safetensors_header import read_safetensors_header
from ascendtune.infer.engine import Sampling, Weights
from ascendtune.machine.torch_backend.device import Device

# Lengths of the prompts that test padding, and new tokens for each: recurrent state is carried between tokens.
_TRIAL_LENGTHS, _TRIAL_TOKENS = (9, 4), 3
# Tolerated rounding of logits, relative to the largest.
_ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}

_LEAST_TEMPERATURE = 1e-5
"""At a lower one the logits, divided by it, may exceed the range of fp32; the most likely token is chosen instead."""


class TransformersModel:
    """A causal language model on a device, optionally with an adapter."""

    def __init__(self, model: Any, device: Device) -> None:
        self.model = model
        self.device = device
        config = model.config.get_text_config()
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        """Largest number of tokens of prompt and answer together; None if the model has no limit."""
        self._pads: bool | None = None

    @classmethod
    def load(
        cls, weights: Weights, device: Device, *, vocabulary: int, trust_remote_code: bool = False
    ) -> TransformersModel:
        """Load the weights in the dtype that they were saved in if the device supports it, else in fp32.

        Args:
            vocabulary: size of the tokenizer; an adapter trained with more tokens includes their embeddings.

        Raises:
            InputError: transformers or PEFT cannot load the files.
        """
        from transformers.utils import logging

        logging.disable_progress_bar()
        model = _read(weights.model, device, trust_remote_code)
        # Before the adapter: PEFT stores prepare_inputs_for_generation.
        if _counts_positions_itself(model):
            _leave_positions_to(model)
        if weights.adapter is not None:
            _resize_embeddings(model, weights.adapter, vocabulary)
            model = _with_adapter(model, weights.adapter)
        return cls(model.to(device.torch_device).eval(), device)

    def generate(
        self,
        prompts: Sequence[list[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        pad_id: int,
        is_ended: Callable[[list[int]], bool] | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> list[list[int]]:
        """Continue each prompt up to its first stop token, which is not returned.

        Args:
            is_ended: a further stopping condition, called with the tokens generated so far.
            on_token: called with each new token; only for a single prompt.

        Raises:
            InputError: a prompt fills the model's context, or the model computes NaN or infinite values.
        """
        from transformers import LogitsProcessorList

        rooms = [self._room(len(prompt), sampling.max_new_tokens) for prompt in prompts]
        target = self.device.torch_device
        accelerators = [] if target.index is None else [target.index]
        answers: list[list[int]] = [[] for _ in prompts]
        with torch.random.fork_rng(accelerators, device_type=target.type), torch.inference_mode():
            torch.manual_seed(sampling.seed)
            for numbers in self._batches(prompts, rooms, pad_id):
                batch = [prompts[number] for number in numbers]
                width = max(map(len, batch))
                output = self.model.generate(
                    **self._padded(batch, pad_id),
                    generation_config=self._settings(
                        replace(sampling, max_new_tokens=rooms[numbers[0]]), stop_ids, pad_id
                    ),
                    logits_processor=LogitsProcessorList([self._require_finite]),
                    stopping_criteria=[_Ended(is_ended, width)] if is_ended else None,
                    streamer=_Streamer(on_token) if on_token else None,
                )
                for number, row in zip(numbers, output[:, width:].tolist(), strict=True):
                    answers[number] = _up_to_stop(row, stop_ids)
        return answers

    def _require_finite(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """transformers' logits processor: raise instead of choosing a token by NaN.

        Args:
            input_ids: (rows, tokens) int64.
            logits: (rows, vocabulary) float32; a padded vocabulary may have -inf.
        """
        # The largest of several numbers is NaN if one of them is.
        if logits.amax(-1).isfinite().all():
            return logits
        raise weights_not_finite(self.model) or InputError(
            f"the model computes NaN or infinite values in {str(self.model.dtype).removeprefix('torch.')}",
            code="logits-not-finite",
            remedy='write "dtype": "float32" into its config.json, so that it computes in fp32; if it does, copy or '
            "download it again",
        )

    def _batches(self, prompts: Sequence[list[int]], rooms: Sequence[int], pad_id: int) -> list[list[int]]:
        """Indices of the prompts that are answered together; each has the same answer as if answered alone.

        Args:
            rooms: maximum number of new tokens for each prompt; equal for those of a batch.
        """
        batches = []
        for room in dict.fromkeys(rooms):
            numbers = [number for number, each in enumerate(rooms) if each == room]
            lengths = {len(prompts[number]) for number in numbers}
            is_one = len(lengths) == 1 or (self._has_one_rope(lengths, room) and self._can_pad(pad_id))
            batches += [numbers] if is_one else [[number] for number in numbers]
        return batches

    def _has_one_rope(self, lengths: Collection[int], room: int) -> bool:
        """Whether prompts of these lengths have the same rotary frequencies throughout their answers.

        With LongRoPE (Phi-3) these change at a length, and the longest prompt of a batch decides for all.
        """
        changes = lengths_that_change_rope(getattr(self.model.config.get_text_config(), "rope_parameters", None))
        return all(min(lengths) > change or max(lengths) + room <= change for change in changes)

    def _padded(self, prompts: Sequence[list[int]], pad_id: int) -> dict[str, torch.Tensor]:
        """input_ids and attention_mask: (prompts, longest) int64, padded on the left: answers start in one column."""
        width, target = max(map(len, prompts)), self.device.torch_device
        ids = [[pad_id] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        return {
            "input_ids": torch.tensor(ids, device=target),
            "attention_mask": torch.tensor(mask, device=target),
        }

    def _can_pad(self, pad_id: int) -> bool:
        """Whether padded prompts have the same answers as unpadded ones; tested once, when needed."""
        if self._pads is None:
            with torch.inference_mode():
                self._pads = self._is_same_padded(pad_id)
            if not self._pads:
                warn("padding changes the answers of this model: prompts are answered one at a time")
        return self._pads

    def _is_same_padded(self, pad_id: int) -> bool:
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        others = [token for token in range(min(vocabulary, 64)) if token != pad_id]
        prompts = [(others * length)[: 7 * length : 7] for length in _TRIAL_LENGTHS]
        # The continuations are forced to the same tokens, both alone and in the batch.
        together = self._continued(prompts, others, pad_id)
        for row, prompt in enumerate(prompts):
            alone = self._continued([prompt], others, pad_id)[:, 0]
            difference = float((together[:, row] - alone).abs().max())
            if not difference <= _ROUNDING[self.model.dtype] * float(alone.abs().max()):
                return False
        return True

    def _continued(self, prompts: list[list[int]], forced: list[int], pad_id: int) -> torch.Tensor:
        """Logits of each next token when the tokens of `forced` are chosen: (steps, rows, vocabulary) float32."""
        width = max(map(len, prompts))
        settings = self._settings(Sampling(_TRIAL_TOKENS), [], pad_id)
        settings.output_logits = settings.return_dict_in_generate = True
        output = self.model.generate(
            **self._padded(prompts, pad_id),
            generation_config=settings,
            prefix_allowed_tokens_fn=lambda row, ids: [forced[len(ids) - width]],
        )
        return torch.stack(output.logits).float()

    def _settings(self, sampling: Sampling, stop_ids: Sequence[int], pad_id: int) -> Any:
        from transformers import GenerationConfig

        # The model's generation_config.json is ignored: it contains preferences, not weights.
        self.model.generation_config = GenerationConfig()
        is_drawn = sampling.temperature > _LEAST_TEMPERATURE
        drawing = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0} if is_drawn else {}
        return GenerationConfig(
            max_new_tokens=sampling.max_new_tokens,
            do_sample=is_drawn,
            eos_token_id=list(stop_ids) or None,
            pad_token_id=pad_id,
            use_cache=True,
            **drawing,
        )

    def _room(self, length: int, max_new_tokens: int) -> int:
        if self.context is None:
            return max_new_tokens
        if length >= self.context:
            raise InputError(
                f"the conversation has {length:,} tokens, the model's context has {self.context:,}",
                code="prompt-too-long",
                remedy="shorten it; /clear begins a new conversation in `ascendtune chat`",
            )
        return min(max_new_tokens, self.context - length)


class _Ended:
    """transformers' stopping criterion: (rows,) bool."""

    def __init__(self, is_ended: Callable[[list[int]], bool], prompt_length: int) -> None:
        self._is_ended = is_ended
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        rows = input_ids[:, self._prompt_length :].tolist()
        return torch.tensor([self._is_ended(row) for row in rows], device=input_ids.device)


class _Streamer:
    """transformers' streamer: it receives the prompt first, then every new token."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token = on_token
        self._is_prompt = True

    def put(self, tokens: torch.Tensor) -> None:
        if not self._is_prompt:
            for token in tokens.flatten().tolist():
                self._on_token(token)
        self._is_prompt = False

    def end(self) -> None:
        """Called by transformers; no token is buffered."""


def _up_to_stop(ids: list[int], stop_ids: Sequence[int]) -> list[int]:
    end = next((at for at, token in enumerate(ids) if token in stop_ids), len(ids))
    return ids[:end]


def _read(directory: Path, device: Device, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    # Our report of missing keys replaces transformers'.
    logging.set_verbosity_error()
    try:
        found = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        config = without_own_implementations(found)
        model, report = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=_dtype(config, device),
            generation_config=GenerationConfig(),
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # transformers raises any exception on invalid values
        if fault := unknown_name_fault(directory / "config.json", error):
            raise fault from error
        remedy = "check that the directory contains config.json and its safetensors files"
        if "trust_remote_code" in str(error):
            remedy = "read the model's Python files, then add --trust-remote-code"
        raise InputError(
            f"the model cannot be loaded: {first_line(error)}",
            code="model-not-loadable",
            remedy=remedy,
            where=directory,
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    require_all_weights(report, directory, config)
    return model


def _counts_positions_itself(model: Any) -> bool:
    """Whether positions start after the padding token's number, as in RoBERTa and related models."""
    return any(
        name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
        for name, module in model.named_modules()
    )


def _leave_positions_to(model: Any) -> None:
    """Drop the positions of transformers' `generate`, which start at 0: the model's own forward numbers them
    differently."""
    prepare = model.prepare_inputs_for_generation

    # `generate` inspects the signature.
    @wraps(prepare)
    def without_positions(*given: Any, **named: Any) -> Any:
        inputs = prepare(*given, **named)
        inputs.pop("position_ids", None)
        return inputs

    model.prepare_inputs_for_generation = without_positions


def _resize_embeddings(model: Any, adapter: Path, vocabulary: int) -> None:
    """Enlarge the model's embeddings to the number that the adapter has.

    Raises:
        InputError: new tokens have no embeddings in the adapter: they would be random.
    """
    present = model.get_input_embeddings().weight.shape[0]
    stored = _rows_of_embeddings(model, adapter)
    # The adapter's table may be padded to more rows than the tokenizer has ids, or have fewer than the base's.
    rows = max(vocabulary, next(filter(None, stored), present))
    if rows > present and not all(stored):
        raise InputError(
            f"the adapter is for {rows:,} tokens, the base has embeddings for {present:,}, and those of the others are "
            f"{'only partly ' if any(stored) else 'not '}in the adapter",
            code="adapter-embeddings-missing",
            remedy="save it again with save_embedding_layers=True, and what that leaves out in modules_to_save; "
            "without new tokens, remove its tokenizer: that of the base is used",
            where=adapter,
        )
    if rows != present:
        resize_embeddings(model, rows)


def _rows_of_embeddings(model: Any, adapter: Path) -> list[int | None]:
    """Rows of the whole input and output embeddings in the adapter, once if they are tied; None for missing ones."""
    stored = read_safetensors_header(adapter / WEIGHTS).tensors
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    found: dict[int, int | None] = {}
    for name, module in model.named_modules():
        if module in tables:
            names = [f"{PREFIX}{name}{inner}.weight" for inner in ("", ".base_layer", ".token_adapter.base_layer")]
            rows = next((stored[each].shape[0] for each in names if each in stored), None)
            found[id(module.weight)] = found.get(id(module.weight)) or rows
    return list(found.values())


def _with_adapter(model: Any, adapter: Path) -> Any:
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftModel, get_peft_model_state_dict, load_peft_weights
    from peft.utils.transformers_weight_conversion import convert_peft_adapter_state_dict_for_transformers

    config = adapter / "adapter_config.json"
    if (kind := read_adapter_config(config).get("peft_type")) not in PEFT_TYPE_TO_CONFIG_MAPPING:
        raise bad_field(config, "peft_type", kind, "a type of adapter that this version of PEFT has")
    try:
        with warnings.catch_warnings(action="ignore"):
            adapted = PeftModel.from_pretrained(model, adapter)
            # Otherwise PEFT would query the hub for the base model's vocabulary.
            loaded = get_peft_model_state_dict(adapted, save_embedding_layers=False)
            names = convert_peft_adapter_state_dict_for_transformers(
                adapted, adapted.peft_config["default"], load_peft_weights(str(adapter), device="cpu")
            )
        require_all_adapter_weights(names, loaded, adapter)
    except AscendtuneError:
        raise
    except Exception as error:  # PEFT raises any exception on invalid values
        raise InputError(
            f"the adapter cannot be loaded: {first_line(error)}",
            code="adapter-not-loadable",
            remedy="check that it was trained on this base model, and that adapter_model.safetensors is complete",
            where=adapter,
        ) from error
    return adapted


def _dtype(config: Any, device: Device) -> torch.dtype:
    saved = getattr(config, "dtype", None)
    if (saved == torch.bfloat16 and device.supports_bf16) or (saved == torch.float16 and device.supports_fp16):
        assert isinstance(saved, torch.dtype)
        return saved
    return torch.float32
