"""A model small enough to be made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Merges are learnt from this; any text works, a byte-level vocabulary spells the rest.
_CORPUS = [
    "Give three tips for staying healthy. Eat a balanced diet, exercise regularly and get enough sleep.",
    "What is the capital of France? The capital of France is Paris.",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "Describe the structure of an atom. An atom is made up of a nucleus which contains protons and neutrons.",
    "user assistant system: hello, who are you? I am a small assistant, trained to answer questions.",
    "将下面的句子翻译成英文。今天的天气很好，我们去公园散步吧。",
] * 4


def write_tiny_model(directory: Path) -> Path:
    """A random Qwen2 (hidden 64, 2 layers, 512 tokens) with a ChatML tokenizer, in Hugging Face format."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(directory)
    _write_weights(directory)
    return directory


def _write_tokenizer(directory: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    # The pipeline that transformers puts into every Qwen2 tokenizer, whatever tokenizer.json says.
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    assert tokenizer.get_vocab_size() == 512
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "add_prefix_space": False,
        "pad_token": "<|endoftext|>",
        "chat_template": CHATML,
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def _write_weights(directory: Path) -> None:
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    # No sampling parameters: tests that generate want the same text every time.
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0, do_sample=False)
    model.save_pretrained(directory)
