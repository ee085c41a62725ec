"""The results of a run: evaluations, the best weights, adapters, new tokens, reproducible bits."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ascendtune.core import progress_bar
from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.data.prepare import open_prepared
from ascendtune.data.store import TokenDataset
from ascendtune.train import FitResult, Recipe, attempt, fit
from ascendtune.train.loop import Loop
from ascendtune.train.prepare import prepare_run
from ascendtune.train.strategy import base

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

LORA = {"tuner": "lora", "lora": {"rank": 4, "alpha": 16}}
BEST_IN_BETWEEN: dict[str, Any] = {
    # Rises until the weights are thrown about.
    "optim": {"max_steps": 8, "learning_rate": 0.3, "warmup_steps": 8, "max_grad_norm": None},
}


def load(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def load_adapter(base: Path, trained: Trained) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(load(base), trained.run.model).eval()


@torch.no_grad()
def mean_loss(model: Any, trained: Trained) -> float:
    """Over the evaluation data, row by row, with the model's own logits."""
    prepared = open_prepared(cache_directory() / "tokens" / trained.run.read()["data_hash"])
    assert prepared.eval is not None
    dataset = TokenDataset.open(prepared.eval)
    total, count = 0.0, 0
    for number in range(len(dataset)):
        ids, labels = (torch.tensor(each.tolist()) for each in dataset.row(number))
        total += cross_entropy(model(input_ids=ids[None]).logits[0, :-1], labels[1:], reduction="sum").item()
        count += int((labels[1:] != -100).sum())
    return total / count


@pytest.mark.parametrize("packing", [False, True])
def test_evaluation_is_the_mean_over_labelled_tokens(train: Train, other_rows: Path, packing: bool) -> None:
    trained = train(
        data={"eval": str(other_rows), "packing": packing},
        optim={"max_steps": 3},
        eval={"every_steps": 2},
        batch={"per_device": 3},
    )
    evaluations = trained.evaluations()
    assert [each["step"] for each in evaluations] == [2, 3]
    assert evaluations[-1]["loss"] == pytest.approx(mean_loss(load(trained.run.model), trained), rel=1e-5)


def test_evaluation_is_without_dropout(train: Train, other_rows: Path, tiny_model: Path) -> None:
    trained = train(
        data={"eval": str(other_rows)},
        method={"tuner": "lora", "lora": {"rank": 4, "dropout": 0.5}},
        optim={"max_steps": 2, "learning_rate": 0.02},
        eval={"every_steps": 1},
    )
    expected = mean_loss(load_adapter(tiny_model, trained), trained)
    assert trained.evaluations()[-1]["loss"] == pytest.approx(expected, rel=1e-5)


def test_evaluating_changes_nothing_in_training(train: Train, other_rows: Path) -> None:
    changes: dict[str, Any] = {
        "method": {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.5}},
        "optim": {"max_steps": 4},
    }
    with_evaluation = train(data={"eval": str(other_rows)}, eval={"every_steps": 1}, **changes)
    assert with_evaluation.losses() == train(**changes).losses()


def test_two_ranks_evaluate_as_one(train: Train, train_on_ranks: Train, other_rows: Path) -> None:
    changes: dict[str, Any] = {
        "data": {"eval": str(other_rows)},
        "optim": {"max_steps": 2},
        "eval": {"every_steps": 1},
    }
    together = train_on_ranks(2, **changes, batch={"per_device": 2})
    alone = train(**changes)
    for one, other in zip(together.evaluations(), alone.evaluations(), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["labelled_tokens"] == other["labelled_tokens"]


def test_early_stop_counts_evaluations_without_improvement(train: Train, other_rows: Path) -> None:
    trained = train(
        data={"eval": str(other_rows)},
        optim={"max_steps": 12},
        eval={"every_steps": 2, "early_stop": {"patience": 2, "min_improvement": 100}},
    )
    # The first evaluation is an improvement, the second and the third are lower, but not by as much.
    losses = {each["step"]: each["loss"] for each in trained.evaluations()}
    assert list(losses) == [2, 4, 6] and losses[6] < losses[4] < losses[2]
    assert trained.run.read()["ended_because"] == "no improvement of 100 in 2 evaluations; the best was step 6"


def test_best_is_the_lowest_loss_whatever_counts_as_improvement(train: Train, other_rows: Path) -> None:
    trained = train(
        data={"eval": str(other_rows)},
        **BEST_IN_BETWEEN,
        eval={"every_steps": 1, "early_stop": {"patience": 8, "min_improvement": 100}},
        checkpoint={"best": True, "keep": 1, "every_steps": 3},
    )
    losses = {each["step"]: each["loss"] for each in trained.evaluations()}
    best = min(losses, key=lambda step: losses[step])
    assert 1 < best < 8
    assert mean_loss(load(trained.run.model), trained) == pytest.approx(losses[best], rel=1e-5)


@pytest.mark.parametrize("lost", [False, True])
def test_resume_keeps_the_best_checkpoint(
    recipe: Callable[..., Recipe], train: Train, other_rows: Path, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trained = train(
        data={"eval": str(other_rows)},
        **BEST_IN_BETWEEN,
        eval={"every_steps": 1},
        checkpoint={"best": True, "keep": 9, "every_steps": 1},
    )
    run, weights = trained.run, trained.weights()
    losses = {each["step"]: each["loss"] for each in trained.evaluations()}
    best = min(losses, key=lambda step: losses[step])
    assert best < 5
    for step in (6, 7, 8, *([best] if lost else [])):
        run.remove_checkpoint(step)
    run.recipe.write_text(run.recipe.read_text().replace("keep: 9", "keep: 1"))
    run.update(state="running")
    attempt.train(run, run.read())
    assert [each["loss"] for each in trained.evaluations()] == list(losses.values())
    if lost:
        assert f"the checkpoint of step {best}, the best so far, is gone" in caplog.text
        best = min(range(6, 9), key=lambda step: losses[step])
        assert mean_loss(load(run.model), trained) == pytest.approx(losses[best], rel=1e-5)
    else:
        assert run.checkpoint_steps() == [best, 8]
        assert all(torch.equal(weight, weights[name]) for name, weight in trained.weights().items())


def test_export_is_completed_after_a_signal_which_is_told_so(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    said, export = list[str](), attempt.export_model

    def interrupted(*arguments: Any, **named: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        export(*arguments, **named)

    monkeypatch.setattr("ascendtune.train.stop_request.say_in_handler", said.append)
    monkeypatch.setattr(attempt, "export_model", interrupted)
    trained = train(optim={"max_steps": 1})
    assert trained.run.read()["state"] == "finished" and trained.run.model.is_dir()
    assert said == ["SIGTERM: stopping, with the exported model (Ctrl-C again: at once)"]


def test_run_from_a_checkpoint_of_another_run_looks_for_a_best_of_its_own(
    train: Train, other_rows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    common: dict[str, Any] = {"data": {"eval": str(other_rows)}, **BEST_IN_BETWEEN, "eval": {"every_steps": 1}}
    first = train(**common, checkpoint={"best": True, "keep": 9, "every_steps": 1})
    source = first.run.checkpoint(6)
    again = train(**common, name="again", checkpoint={"best": True, "keep": 9, "every_steps": 1, "resume": str(source)})
    assert again.run.path != first.run.path and [each["step"] for each in again.evaluations()] == [7, 8]
    losses = {each["step"]: each["loss"] for each in again.evaluations()}
    assert mean_loss(load(again.run.model), again) == pytest.approx(min(losses.values()), rel=1e-5)
    assert "is gone" not in caplog.text


def test_the_best_checkpoint_is_what_comes_out(train: Train, other_rows: Path) -> None:
    from safetensors.torch import load_file

    trained = train(
        data={"eval": str(other_rows)},
        **BEST_IN_BETWEEN,
        eval={"every_steps": 1},
        checkpoint={"best": True, "keep": 1, "every_steps": 3},
    )
    losses = {each["step"]: each["loss"] for each in trained.evaluations()}
    best = min(losses, key=lambda step: losses[step])
    assert 1 < best < 8
    assert mean_loss(load(trained.run.model), trained) == pytest.approx(losses[best], rel=1e-5)
    kept = load_file(trained.run.checkpoint(best) / "tensors_rank_0.safetensors")
    for name, weight in trained.weights().items():
        assert torch.equal(weight, kept[f"model.{name}"]), name


def test_a_step_without_learning_rate_changes_no_weight(train: Train, tiny_model: Path) -> None:
    from safetensors.torch import load_file

    trained = train(optim={"max_steps": 1, "warmup_steps": 1, "weight_decay": 0.1})
    before, after = load_file(tiny_model / "model.safetensors"), trained.weights()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_first_loss_with_a_zero_head_is_the_log_of_the_vocabulary(train: Train, variant: Callable[..., Path]) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    directory = variant(config, edit=lambda model: model.lm_head.weight.zero_())
    trained = train(model={"path": str(directory)}, optim={"max_steps": 1})
    assert trained.losses()[0] == pytest.approx(math.log(512), rel=1e-7)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 16 / 4), (True, 16 / 4**0.5)])
def test_exported_adapter_gives_the_logits_of_the_trained_model(
    train: Train, tiny_model: Path, exported: list[Any], rslora: bool, scale: float
) -> None:
    method = {"tuner": "lora", "lora": {**LORA["lora"], "rslora": rslora}}
    trained = train(method=method, optim={"max_steps": 4, "learning_rate": 0.01})
    base = load(tiny_model)
    ids = torch.arange(5, 45)[None]

    with torch.no_grad():
        reloaded = load_adapter(tiny_model, trained)
        expected = exported[0].eval()(input_ids=ids).logits
        assert not torch.allclose(expected, base(input_ids=ids).logits, atol=1e-2)
        torch.testing.assert_close(reloaded(input_ids=ids).logits, expected, rtol=1e-5, atol=1e-5)

        adapter = trained.weights()
        for name, weight in base.named_parameters():
            prefix = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            if f"{prefix}A.weight" in adapter:
                weight += scale * adapter[f"{prefix}B.weight"] @ adapter[f"{prefix}A.weight"]
        torch.testing.assert_close(base(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
        assert len(adapter) == 2 * 7 * 2, "all seven linear layers of both blocks, A and B"


def test_exported_adapter_over_new_tokens_gives_the_same_logits(
    train: Train, tiny_model: Path, exported: list[Any]
) -> None:
    from peft import PeftModel

    trained = train(model={"new_tokens": ["<tool>"]}, method=LORA, optim={"max_steps": 3, "learning_rate": 0.01})
    base = load(tiny_model)
    base.resize_token_embeddings(513, mean_resizing=False)
    ids = torch.arange(473, 513)[None]
    with torch.no_grad():
        expected = exported[0].eval()(input_ids=ids).logits
        found = PeftModel.from_pretrained(base, trained.run.model).eval()(input_ids=ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_alpha_is_twice_the_rank(train: Train) -> None:
    optim = {"max_steps": 2, "learning_rate": 0.01}
    left_open, given = ({"rank": 4}, {"rank": 4, "alpha": 8})
    runs = [train(method={"tuner": "lora", "lora": lora}, optim=optim) for lora in (left_open, given)]
    assert runs[0].losses() == runs[1].losses()


def test_new_adapter_changes_nothing(train: Train, tiny_model: Path) -> None:
    adapted = train(method=LORA, optim={"max_steps": 1, "warmup_steps": 1})
    full = train(optim={"max_steps": 1, "warmup_steps": 1})
    assert adapted.losses() == full.losses()
    assert all(weight.count_nonzero() == 0 for name, weight in adapted.weights().items() if "lora_B" in name)


def test_new_tokens_add_rows_and_leave_the_others_unchanged(train: Train, tiny_model: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    words = ["<thought>", "</thought>", "<tool>"]
    trained = train(model={"new_tokens": words}, optim={"max_steps": 1, "warmup_steps": 1})
    before = load_file(tiny_model / "model.safetensors")["model.embed_tokens.weight"]
    after = trained.weights()["model.embed_tokens.weight"]
    assert torch.equal(after[:512], before)
    for row in after[512:]:
        torch.testing.assert_close(row, before.mean(0), rtol=1e-6, atol=1e-7)
    tokenizer, model = AutoTokenizer.from_pretrained(trained.run.model), load(trained.run.model)
    assert len(tokenizer) == len(after) == model.config.vocab_size == 515
    assert tokenizer("<tool>a</thought>")["input_ids"][::2] == [514, 513]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"model": {"init": "random"}}, id="random weights"),
        pytest.param({"method": {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.2}}}, id="dropout"),
    ],
)
def test_a_seed_decides_every_bit(train: Train, changes: dict[str, Any]) -> None:
    optim = {"max_steps": 3}
    one, same, other = (train(**changes, optim=optim, seed=seed) for seed in (1, 1, 2))
    assert one.losses() == same.losses() and one.curve("grad_norm") == same.curve("grad_norm")
    assert all(torch.equal(weight, same.weights()[name]) for name, weight in one.weights().items())
    assert one.losses() != other.losses() and one.curve("batch_hash") != other.curve("batch_hash")


def test_deterministic_allows_only_deterministic_operations(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    run_loop, is_deterministic = Loop.run, []

    def run(loop: Loop) -> str:
        is_deterministic.append(torch.are_deterministic_algorithms_enabled())
        return run_loop(loop)

    monkeypatch.setattr(Loop, "run", run)
    for packing in (False, True):
        train(deterministic=True, data={"packing": packing}, optim={"max_steps": 2})
    assert is_deterministic == [True, True]
    assert not torch.are_deterministic_algorithms_enabled()


def test_fit_is_the_command_as_a_function(recipe: Callable[..., Recipe], other_rows: Path) -> None:
    result = fit(recipe(data={"eval": str(other_rows)}, optim={"max_steps": 2}, eval={"every_steps": 1}))
    assert isinstance(result, FitResult)
    records = list(result.run.read_metrics())
    assert (result.steps, result.loss) == (2, records[-1]["loss"])
    assert result.best_evaluation_loss == min(each["loss"] for each in result.run.read_evaluations())
    assert result.run.read()["state"] == "finished" and load(result.model)


def test_ranks_wait_for_an_export_that_takes_longer_than_a_collective_may(
    train_on_ranks: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk a large model takes more than the half hour after which a rank gives up a collective."""
    export = attempt.export_model

    def export_slowly(*arguments: Any, **named: Any) -> None:
        time.sleep(9)
        export(*arguments, **named)

    monkeypatch.setattr(attempt, "export_model", export_slowly)
    monkeypatch.setattr(base, "TIMEOUT", timedelta(seconds=6))
    monkeypatch.setattr(base, "_GOES_ON_SECONDS", 1.0)
    trained = train_on_ranks(2, optim={"max_steps": 1}, parallel={"strategy": "ddp"})
    assert trained.run.read()["state"] == "finished" and trained.weights()


def test_time_out_of_a_collective_is_told_and_recorded_as_one(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that hangs records nothing: without the record of the others the first to give up would be to blame."""
    run = prepare_run(recipe(batch={"per_device": 2}, parallel={"strategy": "ddp"}), {}).run
    assert run is not None
    monkeypatch.setattr(base, "TIMEOUT", timedelta(seconds=4))
    update = Loop._update

    def late(loop: Loop) -> None:
        time.sleep(7 if os.environ["RANK"] == "1" and loop.counters.step == 1 else 0)
        update(loop)

    monkeypatch.setattr(Loop, "_update", late)

    def train() -> None:
        code = "collective-timed-out" if os.environ["RANK"] == "0" else "connection-lost"
        with pytest.raises(MachineError) as caught:
            attempt.train(run, run.read())
        assert caught.value.code == code

    on_ranks(2, train)
    record = run.read()
    assert record["state"] == "failed" and record["exit_cause"]["code"] == "collective-timed-out"


def test_failure_right_after_the_ranks_met_ends_the_attempt_that_the_main_rank_begins(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main rank may still be writing run.json, on a file server, when another one fails."""
    run = prepare_run(recipe(batch={"per_device": 2}, parallel={"strategy": "ddp"}), {}).run
    assert run is not None
    begin = RunDir.begin_attempt

    def begin_slowly(run: RunDir, facts: dict[str, Any]) -> int:
        time.sleep(1 if os.environ["RANK"] == "0" else 0)
        return begin(run, facts)

    def fail(*_: object) -> None:
        raise ValueError(f"rank {os.environ['RANK']}")

    monkeypatch.setattr(RunDir, "begin_attempt", begin_slowly)
    monkeypatch.setattr(attempt, "set_up", fail)

    def train() -> None:
        with pytest.raises(ValueError, match="rank"):
            attempt.train(run, run.read())

    on_ranks(2, train)
    record = run.read()
    (begun,) = record["attempts"]
    assert begun["device"] and begun["state"] == record["state"] == "failed"


def test_rank_that_fails_alone_does_not_wait_for_the_others(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's communicators end together: the others, which wait in a collective, would not end theirs."""
    run = prepare_run(recipe(batch={"per_device": 2}, parallel={"strategy": "ddp"}), {}).run
    assert run is not None

    loops: list[Loop] = []

    def fail(loop: Loop) -> None:
        loops.append(loop)
        if os.environ["RANK"] == "1":
            raise ValueError("rank 1")
        loop.strategy.barrier()

    monkeypatch.setattr(Loop, "_update", fail)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: pytest.fail("it waits"))

    def train() -> None:
        with pytest.raises(ValueError if os.environ["RANK"] == "1" else MachineError):
            attempt.train(run, run.read())
        assert loops[0].stop.has_failed

    on_ranks(2, train)
    cause = run.read()["exit_cause"]
    assert cause["rank"] == 1 and "ValueError: rank 1" in cause["what"]


def _read(screen: int) -> bytes:
    """The next characters of a terminal; none when its other end is closed."""
    with suppress(OSError):
        return os.read(screen, 65536)
    return b""


def test_a_terminal_shows_what_a_start_waits_for(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, terminal = os.openpty()
    monkeypatch.setattr(progress_bar, "_SILENT_SECONDS", 0)
    monkeypatch.setattr(progress_bar, "_REFRESH_SECONDS", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    parts: list[bytes] = []
    # A terminal holds a few thousand characters: more would block the training.
    reader = threading.Thread(target=lambda: parts.extend(iter(partial(_read, screen), b"")))
    reader.start()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        train(optim={"max_steps": 1})
    reader.join()
    os.close(screen)
    shown = b"".join(parts).decode()
    assert shown.index("loading the model") < shown.index("step 1/1") < shown.index("drawing the loss")
