"""Tokenizers small enough to train on the spot, in the two families that spell text differently."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from ascendtune.data.tokenizer import Tokenizer

CORPUS = [
    "What is the capital of France? The capital of France is Paris.",
    "Write a short story about a cat. Once upon a time there was a cat, and the cat was happy.",
    '<tool_call> {"name": "weather", "arguments": {"city": "Oslo"}} </tool_call> system user assistant',
    "天气很好。今天是星期五。 Größe naïve café, 1,234.56 and 7890!",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n",
] * 5
SPECIAL = [
    "<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
]  # fmt: skip


def _byte_level() -> Backend:
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=_special(), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _metaspace() -> Backend:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=_special(), unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _prepending() -> Backend:
    """As Llama 2: no pre-tokenizer, a space before every piece of text, bytes for unknown letters."""
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    spelled = [*_special(), *(f"<0x{number:02X}>" for number in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=spelled, show_progress=False, max_token_length=6)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _special() -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False) for text in SPECIAL]


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A directory with a tokenizer: `make_model("byte_level", eos_token="</s>", …)`; options go into its config."""
    kinds = {"byte_level": _byte_level(), "metaspace": _metaspace(), "prepending": _prepending()}

    def make(kind: str = "byte_level", **config: object) -> Path:
        directory = tmp_path_factory.mktemp(kind)
        kinds[kind].save(str(directory / "tokenizer.json"))
        given = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **config}
        (directory / "tokenizer_config.json").write_text(json.dumps(given))
        return directory

    return make


@pytest.fixture(scope="session", params=["byte_level", "metaspace", "prepending"])
def any_tokenizer(request: pytest.FixtureRequest, make_model: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.load(make_model(request.param, eos_token="<|im_end|>"))
