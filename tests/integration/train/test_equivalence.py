"""Packing, accumulation, the number of ranks and recomputed activations do not change the numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ascendtune.core.errors import CheckFailed
from ascendtune.data.collate import collate
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train import model_checks, setup
from ascendtune.train.batch import to_device
from ascendtune.train.loop import Loop

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

# Sums are added in another order: a few units in the last place of fp32, grown over the steps.
TOLERANCE = 1e-5
SHORT = {"max_steps": 6, "weight_decay": 0.1, "scheduler": "linear", "warmup_steps": 2}


def assert_same(one: Trained, other: Trained) -> None:
    for key in ("loss", "grad_norm"):
        assert one.curve(key) == pytest.approx(other.curve(key), rel=TOLERANCE), key
    for key in ("learning_rate", "batch_hash", "tokens_seen", "labelled_tokens"):
        assert one.curve(key) == other.curve(key), key
    ours, theirs = one.weights(), other.weights()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        # AdamW divides by the gradient's size: where a gradient is nearly nothing, rounding decides the step.
        torch.testing.assert_close(
            weight, theirs[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_accumulation_does_not_change_the_step(train: Train) -> None:
    """Rows differ in length and labels, so a mean of means would show."""
    assert_same(train(batch={"per_device": 1, "accumulate": 4}, optim=SHORT), train(optim=SHORT))


def test_accumulation_of_packed_sequences(train: Train) -> None:
    data = {"packing": True}
    one = train(data=data, batch={"per_device": 1, "accumulate": 3}, optim=SHORT)
    assert_same(one, train(data=data, batch={"per_device": 3}, optim=SHORT))


def test_two_ranks_are_one(train: Train, train_on_ranks: Train) -> None:
    together = train_on_ranks(2, batch={"per_device": 1, "accumulate": 2}, optim=SHORT)
    assert_same(together, train(optim=SHORT))


def test_two_ranks_under_a_torchrun_of_ones_own(train: Train, start_by_torchrun: Train) -> None:
    batch = {"per_device": 1, "accumulate": 2}
    together = start_by_torchrun(2, batch=batch, optim={**SHORT, "max_steps": 2}, data={"packing": True})
    alone = train(batch={"per_device": 4}, optim={**SHORT, "max_steps": 2}, data={"packing": True})
    assert_same(together, alone)


def test_rank_whose_attention_keeps_no_documents_apart_pads_with_all_others(
    train: Train, train_on_ranks: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank would have a plan of its own, train on other rows, and divide by the tokens of others."""
    usual = setup.isolates
    monkeypatch.setattr(setup, "isolates", lambda *each: usual(*each) and os.environ.get("RANK") != "1")
    batch = {"per_device": 1, "accumulate": 2}
    together = train_on_ranks(2, batch=batch, data={"packing": "auto"}, optim=SHORT)
    assert_same(together, train(batch={"per_device": 4}, optim=SHORT))


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_a_rank_without_work(train: Train, train_on_ranks: Train, tuner: str) -> None:
    """78 rows in batches of 12: the last one of the epoch has 4 rows for rank 0, 2 for rank 1 and none for rank 2."""
    changes: dict[str, Any] = {"optim": {**SHORT, "max_steps": 8}, "method": {"tuner": tuner}}
    together = train_on_ranks(3, **changes)
    alone = train(batch={"per_device": 12}, **changes)
    assert_same(together, alone)


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_recomputed_activations_change_nothing(train: Train, tuner: str) -> None:
    method = {"tuner": tuner}
    kept = train(method=method, optim=SHORT)
    recomputed = train(method=method, optim=SHORT, memory={"gradient_checkpointing": True})
    assert kept.losses() == recomputed.losses() and kept.curve("grad_norm") == recomputed.curve("grad_norm")


def test_packed_is_padded_token_by_token(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop(data={"packing": True})
    rows = [5, 0, 9, 3, 14]

    def losses(sequences: list[tuple[int, ...]], *, padding_free: bool) -> torch.Tensor:
        batch = to_device(collate(loop.batches.dataset, sequences, padding_free=padding_free, pad_id=0), find_device())
        logits = loop.model(**batch.model_inputs()).logits.flatten(0, 1)[batch.target_index]
        return cross_entropy(logits, batch.targets, reduction="none")

    packed, padded = losses([tuple(rows)], padding_free=True), losses([(row,) for row in rows], padding_free=False)
    assert len(packed) == sum(loop.batches.dataset.label_counts[rows])
    torch.testing.assert_close(packed, padded, rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("stage", ["sft", "preference"])
def test_rows_that_are_not_packed_train_without_padding_as_with_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    changes: dict[str, Any] = {"optim": SHORT, "method": {"stage": stage}}
    if stage == "preference":
        pairs = tmp_path / "pairs.jsonl"
        drawn = [{"prompt": "the sun " * (i % 5 + 1), "chosen": "is big", "rejected": "no " * i} for i in range(1, 30)]
        pairs.write_text("".join(json.dumps(pair) + "\n" for pair in drawn))
        changes |= {"data": {"train": str(pairs)}}
    flat = train(**changes)
    monkeypatch.setattr(setup, "isolates", lambda *_: False)
    padded = train(**changes)
    one, other = (each.run.read()["resolved"] for each in (flat, padded))
    assert (one["packing"], one["padding_free"], one["padding_ratio"]) == (False, True, 0.0)
    assert (other["packing"], other["padding_free"]) == (False, False) and other["padding_ratio"] > 0.1
    assert_same(flat, padded)


def test_rows_that_are_not_packed_are_padded_for_dumps(train: Train) -> None:
    run = train(optim={"max_steps": 1}, align={"dump_steps": 1}).run
    assert run.read()["resolved"]["padding_free"] is False


def test_rows_that_are_not_packed_are_padded_where_the_model_does_not_isolate_them(
    train: Train, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leak(*_: Any, **__: Any) -> float:
        raise CheckFailed("documents attend to each other", code="documents-not-isolated", remedy="report it")

    monkeypatch.setattr(model_checks, "prove_isolation", leak)
    run = train(optim={"max_steps": 1}).run
    assert run.read()["resolved"]["padding_free"] is False
    assert "rows are padded: documents attend to each other" in caplog.text
    with pytest.raises(CheckFailed):
        train(optim={"max_steps": 1}, data={"packing": "auto"})


def test_a_record_of_several_steps_is_the_mean_over_their_tokens(train: Train) -> None:
    optim = {"max_steps": 5}
    every, some = train(optim=optim), train(optim=optim, track={"every_steps": 2})
    assert some.curve("step") == [2, 4, 5]
    counts, losses = every.curve("labelled_tokens"), every.losses()
    pairs = [(0, 2), (2, 4), (4, 5)]
    expected = [
        sum(loss * count for loss, count in zip(losses[a:b], counts[a:b], strict=True)) / sum(counts[a:b])
        for a, b in pairs
    ]
    assert some.losses() == pytest.approx(expected, rel=1e-6)
    assert some.curve("grad_norm") == [every.curve("grad_norm")[b - 1] for _, b in pairs]


def test_bf16_follows_fp32(train: Train) -> None:
    """Eight bits of mantissa in the products, fp32 everywhere else: 0.1 % of the loss, 1 % of the gradient's norm."""
    optim = {**SHORT, "max_steps": 10}
    exact, rounded = train(optim=optim), train(optim=optim, precision="bf16")
    assert rounded.losses() == pytest.approx(exact.losses(), rel=1e-3)
    assert rounded.curve("grad_norm") == pytest.approx(exact.curve("grad_norm"), rel=1e-2)
    assert rounded.losses() != exact.losses()
