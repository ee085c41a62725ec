"""Real data sets, a model of 15 million parameters: the loss falls, the report's numbers are right, the model loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import worker
from ascendtune.train.prepare import prepare_run

pytestmark = pytest.mark.usefixtures("preloaded")

MAX_LENGTH = 512
VOCABULARY = 8192
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Data:
    file: str
    rows: int
    conversation: Callable[[dict[str, Any]], tuple[Messages, list[Any] | None]]
    """Messages and tools of a row, written down here once more."""
    spec: dict[str, Any]
    steps: int = 6


def _alpaca(row: dict[str, Any]) -> tuple[Messages, None]:
    question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}], None


def _gsm8k(row: dict[str, Any]) -> tuple[Messages, None]:
    return [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}], None


def _glaive(row: dict[str, Any]) -> tuple[Messages, list[Any]]:
    messages: Messages = []
    for turn in row["conversations"]:
        match turn["from"]:
            case "function_call":
                call = {"type": "function", "function": json.loads(turn["value"])}
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            case speaker:
                role = {"human": "user", "gpt": "assistant", "observation": "tool"}[speaker]
                messages.append({"role": role, "content": turn["value"]})
    return messages, [{"type": "function", "function": tool} for tool in json.loads(row["tools"])]


GSM8K = {"format": "prompt_completion", "columns": {"prompt": "question", "completion": "answer"}}
DATA = {
    "alpaca": Data("alpaca_en_demo.json", 999, _alpaca, {}),
    "identity": Data("identity.json", 91, _alpaca, {}),
    "glaive": Data("glaive_toolcall_en_demo.json", 300, _glaive, {}),
    "gsm8k": Data("gsm8k_train.jsonl", 7473, _gsm8k, GSM8K),
    "gsm8k test": Data("gsm8k_test.jsonl", 1319, _gsm8k, GSM8K),
}


def _rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


@pytest.fixture(scope="module")
def model_15m(shared: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of 15M parameters and a byte-level BPE of 8,192 tokens, learnt from the data sets."""
    import torch
    from tokenizers import Tokenizer, models, trainers
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directory = tmp_path_factory.mktemp("model-15m")
    # The tiny model's pipeline with a vocabulary of its own.
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    pieces = tokenizer.pre_tokenizer, tokenizer.normalizer, tokenizer.decoder
    special = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    alphabet = [text for text in tokenizer.get_vocab() if len(text) == 1]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.normalizer, tokenizer.decoder = pieces
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    texts = [
        str(value) for data in DATA.values() for row in _rows(shared / "data" / data.file) for value in row.values()
    ]
    tokenizer.train_from_iterator(texts[:12_000], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text((tiny_model / "tokenizer_config.json").read_text())
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1728, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    assert 14e6 < sum(each.numel() for each in model.parameters()) < 16e6
    model.save_pretrained(directory)
    return directory


@pytest.fixture
def train(model_15m: Path, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunDir]:
    monkeypatch.chdir(tmp_path)

    def start(data: Data, *overrides: str) -> RunDir:
        values = {
            "model": {"path": str(model_15m)},
            "data": {
                "train": [{"path": str(shared / "data" / data.file), **data.spec}],
                "template": "qwen",
                "max_length": MAX_LENGTH,
            },
            "optim": {"learning_rate": 1e-3, "max_steps": data.steps, "scheduler": "constant"},
            "batch": {"per_device": 2},
            "track": {"tensorboard": False},
        }
        Path("r.yaml").write_text(yaml.safe_dump(values))
        run = prepare_run(*Recipe.load_with_origins("r.yaml", overrides)).run
        assert run is not None
        assert worker.main([str(run)]) == 0
        return run

    return start


@pytest.mark.parametrize(
    "name", [name if name == "gsm8k test" else pytest.param(name, marks=pytest.mark.soak) for name in DATA]
)
def test_loss_falls_on_real_rows_and_the_report_counts_them(
    train: Callable[..., RunDir], shared: Path, name: str
) -> None:
    from transformers import AutoModelForCausalLM

    data = DATA[name]
    run = train(data)
    losses = [record["loss"] for record in run.read_metrics()]
    assert len(losses) == data.steps
    assert losses[0] == pytest.approx(9.0, abs=0.3) and losses[-1] < losses[0] - 0.7
    report = json.loads(run.data_report.read_text())["train"]
    found = {key: report[key] for key in ("rows_read", "rows_kept", "unlabelled_rows", "truncated_rows")}
    found |= {key: report[key] for key in ("truncated_tokens", "tokens", "labelled_tokens", "longest")}
    assert found == _counted_again(run.model, shared / "data" / data.file, data)
    assert report["rows_read"] == data.rows
    assert sum(count for _, count in report["length_histogram"]) == report["rows_kept"]
    model, loading = AutoModelForCausalLM.from_pretrained(run.model, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert model.get_input_embeddings().weight.shape == (VOCABULARY, 256)


def _counted_again(model: Path, file: Path, data: Data) -> dict[str, int]:
    """The report's figures from transformers' tokenizer with the exported template, and from nothing of ours."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [data.conversation(row) for row in _rows(file)]
    texts = [tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) for messages, tools in rows]
    start, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    assistant = tokenizer("assistant\n")["input_ids"]
    found = dict.fromkeys(
        ("rows_kept", "unlabelled_rows", "truncated_rows", "truncated_tokens", "tokens", "labelled_tokens"), 0
    )
    longest = 0
    for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
        longest = max(longest, len(ids))
        labelled, learning = 0, False
        for at, token in enumerate(ids[:MAX_LENGTH]):
            labelled += learning
            if token == end:
                learning = False
            begins = at - len(assistant)
            if begins >= 0 and ids[begins] == start and ids[begins + 1 : at + 1] == assistant:
                learning = True
        if not labelled:
            found["unlabelled_rows"] += 1
            continue
        found["rows_kept"] += 1
        found["labelled_tokens"] += labelled
        found["tokens"] += min(len(ids), MAX_LENGTH)
        found["truncated_rows"] += len(ids) > MAX_LENGTH
        found["truncated_tokens"] += max(0, len(ids) - MAX_LENGTH)
    return {"rows_read": len(rows), **found, "longest": longest}


@pytest.mark.soak
@pytest.mark.parametrize("name", ["alpaca", "gsm8k"])
def test_loss_falls_over_a_whole_epoch(train: Callable[..., RunDir], name: str) -> None:
    """A 15M-parameter model with random weights: it begins at the entropy of a guess and learns words from there."""
    run = train(DATA[name], "optim.max_steps=null", "optim.epochs=1", "data.eval_fraction=0.05", "name=epoch")
    losses = [record["loss"] for record in run.read_metrics()]
    before, after = sum(losses[:3]) / 3, sum(losses[-10:]) / 10
    assert len(losses) > 100 and after < before - 2
    assert list(run.read_evaluations())[-1]["loss"] < before - 2
