"""Generation by transformers: token ids in, token ids out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import InputError
from ascendtune.infer.weights import Weights
from ascendtune.machine.device import Device


class TransformersModel:
    """A causal language model on a device, perhaps with an adapter."""

    def __init__(self, model: Any, device: Device) -> None:
        self.model = model
        self.device = device
        config = model.config.get_text_config()
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        """Tokens that prompt and answer may have together, where the model limits them."""

    @classmethod
    def load(
        cls, weights: Weights, device: Device, *, vocabulary: int, trust_remote_code: bool = False
    ) -> TransformersModel:
        """Read the weights, in the type that they were saved in where the device has it, else in fp32.

        Args:
            vocabulary: tokens of the tokenizer; an adapter that was trained with more of them brings their embeddings.

        Raises:
            InputError: the files are not a model that transformers can load.
        """
        from transformers.utils import logging

        logging.disable_progress_bar()
        model = _read(weights.model, device, trust_remote_code)
        if weights.adapter is not None:
            if vocabulary > model.get_input_embeddings().weight.shape[0]:
                model.resize_token_embeddings(vocabulary, mean_resizing=False)
            model = _with_adapter(model, weights.adapter)
        return cls(model.to(device.torch_device).eval(), device)

    def generate(
        self,
        prompts: Sequence[list[int]],
        max_new_tokens: int,
        *,
        temperature: float,
        top_p: float,
        seed: int,
        stop_ids: Sequence[int],
        pad_id: int,
        is_ended: Callable[[list[int]], bool] | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> list[list[int]]:
        """Continue each prompt up to its first stop token, which is not returned.

        Args:
            is_ended: a further sign of the end, asked with what has been generated so far.
            on_token: called with each new token; only for a single prompt.

        Raises:
            InputError: a prompt leaves no room in the model's context.
        """
        longest = max(map(len, prompts))
        settings = self._settings(self._room(longest, max_new_tokens), temperature, top_p, stop_ids, pad_id)
        target = self.device.torch_device
        # Padding on the left, so that every answer begins in the same column.
        ids = torch.tensor([[pad_id] * (longest - len(prompt)) + prompt for prompt in prompts], device=target)
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=target)
        accelerators = [] if target.index is None else [target.index]
        with torch.random.fork_rng(accelerators, device_type=target.type), torch.inference_mode():
            torch.manual_seed(seed)
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=settings,
                stopping_criteria=[_Ended(is_ended, longest)] if is_ended else None,
                streamer=_Streamer(on_token) if on_token else None,
            )
        return [_up_to_stop(row, stop_ids) for row in output[:, longest:].tolist()]

    def _settings(
        self, max_new_tokens: int, temperature: float, top_p: float, stop_ids: Sequence[int], pad_id: int
    ) -> Any:
        from transformers import GenerationConfig

        # What stands in the model's generation_config.json is a taste, not a part of the weights: it has no say.
        self.model.generation_config = GenerationConfig()
        sampling = {"temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {}
        return GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=temperature > 0,
            eos_token_id=list(stop_ids) or None,
            pad_token_id=pad_id,
            use_cache=True,
            **sampling,
        )

    def _room(self, longest: int, max_new_tokens: int) -> int:
        if self.context is None:
            return max_new_tokens
        if longest >= self.context:
            raise InputError(
                f"the conversation has {longest:,} tokens, the model's context holds {self.context:,}",
                remedy="make it shorter; /reset begins a new conversation in `ascendtune chat`",
            )
        return min(max_new_tokens, self.context - longest)


class _Ended:
    """transformers' stopping criterion: a truth value for each row."""

    def __init__(self, is_ended: Callable[[list[int]], bool], prompt_length: int) -> None:
        self._is_ended = is_ended
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        rows = input_ids[:, self._prompt_length :].tolist()
        return torch.tensor([self._is_ended(row) for row in rows], device=input_ids.device)


class _Streamer:
    """transformers hands over the prompt first, then every new token."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token = on_token
        self._is_prompt = True

    def put(self, tokens: torch.Tensor) -> None:
        if not self._is_prompt:
            for token in tokens.flatten().tolist():
                self._on_token(token)
        self._is_prompt = False

    def end(self) -> None:
        """Nothing is held back."""


def _up_to_stop(ids: list[int], stop_ids: Sequence[int]) -> list[int]:
    end = next((at for at, token in enumerate(ids) if token in stop_ids), len(ids))
    return ids[:end]


def _read(directory: Path, device: Device, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        model, loading = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=_dtype(config, device),
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        remedy = "check that the folder holds config.json and the safetensors that belong to it"
        if "trust_remote_code" in str(error):
            remedy = "read the model's Python files, then add --trust-remote-code"
        first_line = str(error).strip().splitlines()[0]
        raise InputError(f"the model cannot be loaded: {first_line}", remedy=remedy, where=directory) from error
    if missing := sorted(loading["missing_keys"]):
        raise InputError(
            f"{len(missing)} weights are missing from the files, first {missing[0]}",
            remedy="download or export the model again",
            where=directory,
        )
    return model


def _with_adapter(model: Any, adapter: Path) -> Any:
    from peft import PeftModel

    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return PeftModel.from_pretrained(model, adapter)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise InputError(
            f"the adapter cannot be loaded: {first_line}",
            remedy="check that it was trained on this base model, and that adapter_model.safetensors is whole",
            where=adapter,
        ) from error


def _dtype(config: Any, device: Device) -> torch.dtype:
    saved = getattr(config, "dtype", None)
    if (saved == torch.bfloat16 and device.supports_bf16) or (saved == torch.float16 and device.supports_fp16):
        assert isinstance(saved, torch.dtype)
        return saved
    return torch.float32
