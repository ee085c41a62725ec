"""Every stage and loss against `tests/reference/stages.py`: fp64, one row at a time, written without our code.

A step holds all rows, so that the reference needs no plan: packing, padding, accumulation and ranks must not show.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.reference import stages

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

WORDS = ["atom", "balanced", "capital", "clips", "diet", "friends", "healthy", "Paris", "sleep", "tips", "天气", "公园"]
ROWS, STEPS, RATE, BETA = 8, 6, 1e-3, 0.1
DIVISIONS: dict[str, dict[str, Any]] = {
    "padded": {"batch": {"per_device": ROWS}},
    "accumulated": {"batch": {"per_device": 2, "accumulate": ROWS // 2}},
    "packed": {"batch": {"per_device": ROWS}, "data": {"packing": True}},
}
PAIRED: dict[str, dict[str, float]] = {
    "sigmoid": {"label_smoothing": 0.1, "sft_weight": 0.2}, "hinge": {}, "ipo": {}, "orpo": {}, "simpo": {},
}  # fmt: skip


def _config(kind: str, **more: Any) -> Any:
    from transformers import AutoConfig

    sizes = {
        "vocab_size": 512, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192,
        "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    return AutoConfig.for_model(kind, **{**sizes, **more})


MODELS: dict[str, tuple[str, dict[str, Any], float]] = {
    # (type, config, factor of the embeddings and the head: 20 makes logits of dozens)
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}, 1),
    "qwen2 tied, large logits": ("qwen2", {"tie_word_embeddings": True}, 20),
    "llama untied": ("llama", {"tie_word_embeddings": False}, 1),
    "llama untied, large logits": ("llama", {"tie_word_embeddings": False}, 20),
    "qwen3 tied, large logits": ("qwen3", {"tie_word_embeddings": True, "head_dim": 12}, 20),
    "mistral, window, large logits": ("mistral", {"tie_word_embeddings": False, "sliding_window": 4096}, 20),
    "phi3, large logits": ("phi3", {"tie_word_embeddings": False}, 20),
    "olmo2, large logits": ("olmo2", {"tie_word_embeddings": False}, 20),
}


def _divided(name: str) -> list[tuple[str, str]]:
    """A model with every division but the packed one."""
    return [(name, division) for division in DIVISIONS if division != "packed"]


def _texts(draw: random.Random, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


def _write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _tokenizer(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def _make(variant: Callable[..., Path], name: str) -> Path:
    kind, more, factor = MODELS[name]

    def enlarge(model: Any) -> None:
        model.get_output_embeddings().weight.mul_(factor)

    return variant(_config(kind, **more), enlarge)


def _changes(directory: Path, data: str, division: str, **more: Any) -> dict[str, Any]:
    chosen = DIVISIONS[division]
    return {
        "model": {"path": str(directory)},
        "optim": {"learning_rate": RATE, "max_steps": STEPS, "scheduler": "constant"},
        "batch": chosen["batch"],
        "data": {"train": data, "max_length": 256, **chosen.get("data", {})},
        **more,
    }


def _agree(found: Trained, expected: stages.Curve, *, first: float = 1e-6, later: float = 1e-5) -> None:
    for name, ours, theirs in (
        ("loss", found.losses(), expected.losses),
        ("grad_norm", found.curve("grad_norm"), expected.grad_norms),
    ):
        print(name, [f"{abs(one - other) / abs(other):.1e}" for one, other in zip(ours, theirs, strict=True)])
        assert ours[0] == pytest.approx(theirs[0], rel=first if name == "loss" else 10 * first), name
        assert ours == pytest.approx(theirs, rel=later if name == "loss" else 10 * later), name


def _conversations() -> list[list[dict[str, Any]]]:
    draw, found = random.Random(3), []
    for number in range(ROWS):
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}] if number % 3 == 0 else []
        for turn in range(1 + number % 3):
            messages.append({"role": "user", "content": _texts(draw, 5)})
            answer: dict[str, Any] = {"role": "assistant", "content": _texts(draw, 8)}
            messages.append(answer | ({"weight": 0} if number % 3 == 2 and turn == 0 else {}))
        found.append(messages)
    return found


@pytest.mark.parametrize(("name", "division"), [*((name, "packed") for name in MODELS), *_divided("llama untied")])
def test_sft_is_the_reference(
    train: Train, variant: Callable[..., Path], tmp_path: Path, name: str, division: str
) -> None:
    directory, conversations = _make(variant, name), _conversations()
    data = _write(tmp_path / "rows.jsonl", [{"messages": each} for each in conversations])
    tokenizer = _tokenizer(directory)
    rows = [stages.chatml_row(tokenizer, each) for each in conversations]
    expected = stages.train(stages.load(directory), stages.token_loss(rows), steps=STEPS, learning_rate=RATE)
    _agree(train(**_changes(directory, data, division)), expected)


@pytest.mark.parametrize("division", DIVISIONS)
def test_pretraining_is_the_reference(
    train: Train, variant: Callable[..., Path], tmp_path: Path, division: str
) -> None:
    directory, draw = _make(variant, "llama untied, large logits"), random.Random(4)
    texts = [_texts(draw, 30) for _ in range(ROWS)]
    data = _write(tmp_path / "texts.jsonl", [{"text": each} for each in texts])
    tokenizer = _tokenizer(directory)
    rows = [stages.text_row(tokenizer, each) for each in texts]
    expected = stages.train(stages.load(directory), stages.token_loss(rows), steps=STEPS, learning_rate=RATE)
    _agree(train(**_changes(directory, data, division, method={"stage": "pretrain"})), expected)


def _pairs(draw: random.Random, most: int = 12) -> list[dict[str, Any]]:
    return [
        {"prompt": _texts(draw, 5), "chosen": _texts(draw, most), "rejected": _texts(draw, most), "margin": 0.1 * at}
        for at in range(ROWS)
    ]


def _rows_of_pairs(directory: Path, pairs: list[dict[str, Any]]) -> list[tuple[stages.Row, stages.Row]]:
    tokenizer = _tokenizer(directory)
    return [
        (
            stages.answer_row(tokenizer, pair["prompt"], pair["chosen"]),
            stages.answer_row(tokenizer, pair["prompt"], pair["rejected"]),
        )
        for pair in pairs
    ]


@pytest.mark.parametrize(("name", "division"), [("qwen2 tied", "packed"), *_divided("llama untied")])
def test_reward_is_the_reference(
    train: Train, variant: Callable[..., Path], tmp_path: Path, name: str, division: str
) -> None:
    directory, pairs = _make(variant, name), _pairs(random.Random(5))
    data = _write(tmp_path / "pairs.jsonl", pairs)
    method = {"stage": "reward", "reward": {"centring": 0.01}}
    found = train(**_changes(directory, data, division, method=method))
    loss = stages.reward_loss(_rows_of_pairs(directory, pairs), [each["margin"] for each in pairs], centring=0.01)
    model = stages.load(directory, scores=True, seed=found.run.read().get("seed", 0))
    _agree(found, stages.train(model, loss, steps=STEPS, learning_rate=RATE))


@pytest.mark.parametrize(
    ("name", "division"), [("qwen2 tied, large logits", "packed"), ("llama untied", "accumulated")]
)
@pytest.mark.parametrize("loss", PAIRED)
def test_preference_is_the_reference(
    train: Train, variant: Callable[..., Path], tmp_path: Path, loss: str, name: str, division: str
) -> None:
    directory, pairs = _make(variant, name), _pairs(random.Random(6))
    data = _write(tmp_path / "pairs.jsonl", pairs)
    options = PAIRED[loss]
    method = {"stage": "preference", "preference": {"loss": loss, "beta": BETA, **options}}
    found = train(**_changes(directory, data, division, method=method))
    expected = stages.preference_loss(
        loss, _rows_of_pairs(directory, pairs), stages.load(directory), beta=BETA,
        smoothing=options.get("label_smoothing", 0.0), sft_weight=options.get("sft_weight", 0.0),
    )  # fmt: skip
    _agree(found, stages.train(stages.load(directory), expected, steps=STEPS, learning_rate=RATE))


@pytest.mark.parametrize(("name", "division"), [("qwen2 tied, large logits", "packed"), *_divided("llama untied")])
def test_kto_is_the_reference(
    train: Train, variant: Callable[..., Path], tmp_path: Path, name: str, division: str
) -> None:
    directory, draw = _make(variant, name), random.Random(7)
    singles = [{"prompt": _texts(draw, 5), "completion": _texts(draw, 12), "label": at % 3 != 0} for at in range(ROWS)]
    data = _write(tmp_path / "singles.jsonl", singles)
    found = train(**_changes(directory, data, division, method={"stage": "preference", "preference": {"loss": "kto"}}))
    tokenizer, others = _tokenizer(directory), [singles[-1], *singles[:-1]]
    loss = stages.kto_loss(
        [stages.answer_row(tokenizer, each["prompt"], each["completion"]) for each in singles],
        [
            stages.answer_row(tokenizer, each["prompt"], other["completion"])
            for each, other in zip(singles, others, strict=True)
        ],
        [each["label"] for each in singles], stages.load(directory), beta=BETA,
    )  # fmt: skip
    assert max(found.curve("kl")) > 0
    _agree(found, stages.train(stages.load(directory), loss, steps=STEPS, learning_rate=RATE))


@pytest.mark.parametrize("loss", PAIRED)
def test_preference_of_long_answers_with_another_reference(
    train: Train, variant: Callable[..., Path], tmp_path: Path, loss: str
) -> None:
    """Of about 400 and 1,500 tokens, where sums in fp32 have few digits left."""
    directory = _make(variant, "llama untied")
    other = tmp_path / "other"
    directory.rename(other)
    model = stages.load(other).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * parameter.abs().mean() * torch.randn(parameter.shape)
    directory.mkdir()
    for file in other.iterdir():
        if file.suffix != ".safetensors":
            (directory / file.name).write_bytes(file.read_bytes())
    model.save_pretrained(directory)
    draw = random.Random(8)

    def long(words: int) -> str:
        return " ".join(draw.choices(WORDS, k=words))

    pairs = [{"prompt": "tips", "chosen": long(1000), "rejected": long(250)}]
    rows = _rows_of_pairs(directory, pairs)
    assert max(len(ids) for pair in rows for ids, _ in pair) > 1400
    data = _write(tmp_path / "long.jsonl", pairs)
    options: dict[str, Any] = {"loss": loss, "beta": BETA}
    if loss not in ("orpo", "simpo"):
        options["reference"] = str(other)
    changes = _changes(directory, data, "padded", method={"stage": "preference", "preference": options})
    changes["data"]["max_length"] = 8192
    changes["optim"]["max_steps"] = 1
    found = train(**changes)
    expected = stages.preference_loss(loss, rows, stages.load(other), beta=BETA)
    _agree(found, stages.train(stages.load(directory), expected, steps=1, learning_rate=RATE), first=1e-5)
