"""The result of a reward run: scores, read as in the message that refuses `chat`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tests.integration.train.pairs import write_pairs

from ascendtune.cli.main import main
from ascendtune.core.errors import InputError
from ascendtune.infer.engine import load
from ascendtune.train.fit import FitResult

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_reward_model_scores_and_does_not_chat(
    tuner: str, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    pairs = write_pairs(tmp_path / "pairs.jsonl", 8)
    trained = train(
        method={"stage": "reward", "tuner": tuner},
        data={"train": str(pairs), "eval": str(pairs)},
        optim={"max_steps": 4},
        name="scores",
    )
    said = capfd.readouterr().err
    assert "MISSING" not in said, "the score is yet to be learnt"
    assert "a reward model" in said and "accuracy" in said and "ascendtune chat" not in said

    with pytest.raises(InputError) as refused:
        load(trained.run.path)
    assert refused.value.code == "reward-model-cannot-generate"
    monkeypatch.chdir(tmp_path)
    scorer = str(trained.run.model)
    if tuner == "lora":
        _, *words = shlex.split(refused.value.remedy.split("`")[1])
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert not ended.value.code
        scorer = "scorer"
        with pytest.raises(InputError, match="reward model"):
            load(scorer)
    assert f"AutoModelForSequenceClassification.from_pretrained('{scorer}')" in refused.value.remedy

    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(scorer), AutoTokenizer.from_pretrained(scorer)
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    means = []
    for side in ("chosen", "rejected"):
        scores = []
        for row in rows:
            turns = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[side]}]
            ids = tokenizer.apply_chat_template(turns, return_tensors="pt", return_dict=False)
            with torch.no_grad():
                scores.append(model(ids).logits[0, 0])
        means.append(float(torch.stack(scores).mean()))
    with torch.no_grad():
        loaded = FitResult(trained.run, 4, None, None, trained.run.model).load_model()
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    last = trained.evaluations()[-1]
    assert means == pytest.approx([last["chosen_reward"], last["rejected_reward"]], abs=1e-4)


@pytest.mark.parametrize("config", ["GPTNeoXConfig", "PhiConfig"])
def test_a_head_of_another_name_is_left_out(
    train: Train, variant: Callable[..., Path], tmp_path: Path, config: str
) -> None:
    """Pythia's is `embed_out`; that of Phi has a bias."""
    import transformers

    sizes = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64}
    model = variant(getattr(transformers, config)(**sizes, num_hidden_layers=2, num_attention_heads=4))
    trained = train(
        model={"path": str(model)},
        method={"stage": "reward"},
        data={"train": str(write_pairs(tmp_path / "pairs.jsonl", 4))},
        optim={"max_steps": 1},
    )
    assert "score.weight" in trained.weights()
    assert not trained.weights().keys() & {"embed_out.weight", "lm_head.weight", "lm_head.bias"}
