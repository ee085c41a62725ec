"""Reward and preference runs: what the first loss must be, and that no way of sharing the work changes the curve."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.integration.train.pairs import write_pairs, write_singles
from tests.integration.train.test_architectures import SHAPE, config_of
from tests.integration.train.test_chosen_attention import LINEAR, draw_large_weights
from torch.distributed.tensor import DTensor
from transformers import AutoConfig

from ascendtune.core.errors import RecipeError, Stopped
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.changes import ResumeOptions
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import attempt
from ascendtune.train.objective.preference import PreferenceObjective
from ascendtune.train.prepare import prepare_run
from ascendtune.train.strategy.fsdp import FsdpStrategy

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

ROWS = 22
"""Five steps of four rows; the sixth has two."""
BETA = 0.1
AT_FIRST = {"sigmoid": math.log(2), "hinge": 1.0, "ipo": 1 / (4 * BETA**2), "kto": 0.5}

Asking = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("preferences")
    return {
        "pairs": write_pairs(directory / "pairs.jsonl", ROWS, margins=True),
        "singles": write_singles(directory / "singles.jsonl", ROWS),
    }


@pytest.fixture
def asking(files: dict[str, Path]) -> Asking:
    """Changes to the recipe for a loss (or `reward`), on its data."""

    def make(loss: str, **changes: Any) -> dict[str, Any]:
        stage = {"stage": "reward"} if loss == "reward" else {"stage": "preference", "preference": {"loss": loss}}
        method = {**stage, **changes.pop("method", {})}
        data = {"train": str(files["singles" if loss == "kto" else "pairs"]), **changes.pop("data", {})}
        return {"method": method, "data": data, "optim": {"learning_rate": 1e-3, "epochs": 1}, **changes}

    return make


@pytest.mark.parametrize("tuner", ["full", "lora"])
@pytest.mark.parametrize("loss", AT_FIRST)
def test_the_first_loss_is_the_closed_form(train: Train, asking: Asking, loss: str, tuner: str) -> None:
    for packing in (True, False):
        run = train(**asking(loss, method={"tuner": tuner}, data={"packing": packing}, name=f"{loss}-{packing}"))
        assert run.losses()[0] == pytest.approx(AT_FIRST[loss], rel=1e-6)
        assert len(run.losses()) == 6 and min(run.losses()) < AT_FIRST[loss]


@pytest.mark.parametrize("loss", ["sigmoid", "orpo", "simpo", "reward"])
def test_learning_tells_the_answers_apart(train: Train, asking: Asking, loss: str) -> None:
    changes = asking(loss)
    run = train(**(changes | {"optim": {"learning_rate": 3e-3, "epochs": 8}}))
    accuracy, margin = run.curve("accuracy"), run.curve("margin")
    assert sum(accuracy[-6:]) / 6 > 0.9 and margin[-1] > margin[0]
    assert run.losses()[-1] < run.losses()[0]
    assert sum(run.curve("groups")) == 8 * ROWS


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "orpo", "simpo", "reward"])
def test_packing_accumulation_and_ranks_do_not_change_the_curve(
    train: Train, train_on_ranks: Any, asking: Asking, loss: str
) -> None:
    # In a second epoch ranks meet rows whose reference another rank has computed.
    optim = {"learning_rate": 1e-3, "epochs": 2 if loss == "sigmoid" else 1}
    whole = train(**asking(loss) | {"optim": optim})
    others = [
        train(**asking(loss, data={"packing": True}, name="packed") | {"optim": optim}),
        train(**asking(loss, batch={"per_device": 1, "accumulate": 4}, name="accumulated") | {"optim": optim}),
        train_on_ranks(2, **asking(loss, batch={"per_device": 2}, name="ranks") | {"optim": optim}),
    ]
    for each in others:
        _same(each, whole)


def test_kto_is_the_same_however_a_step_is_divided(
    train: Train, train_on_ranks: Any, asking: Asking, files: dict[str, Path]
) -> None:
    """The divergence is a mean over the whole step, and in an evaluation over all of its rows."""
    changes = asking("kto", data={"eval": str(files["singles"])}, eval={"every_steps": 6})
    # Far from the reference, where the divergence decides.
    changes |= {"optim": {"learning_rate": 1e-2, "epochs": 2, "scheduler": "constant"}}

    def asked(name: str, **more: Any) -> dict[str, Any]:
        return {**changes, "data": changes["data"] | more.pop("data", {}), "name": name, **more}

    whole = train(**asked("whole"))
    assert max(whole.curve("kl")) > 0.5
    others = [
        train(**asked("one", batch={"per_device": 1, "accumulate": 4})),
        train(**asked("two", batch={"per_device": 2, "accumulate": 2})),
        train(**asked("packed", data={"packing": True})),
        train_on_ranks(2, **asked("ranks", batch={"per_device": 2})),
        train_on_ranks(2, **asked("both", batch={"per_device": 1, "accumulate": 2})),
    ]
    assert not others[2].run.read()["resolved"]["packing"], "answers stay beside their mismatched ones"
    for each in others:
        _same(each, whole)
        assert [one["kl"] for one in each.evaluations()] == pytest.approx(
            [one["kl"] for one in whole.evaluations()], rel=1e-5
        )
        # As long as the weights are the same, so is the loss.
        assert each.losses()[:2] == pytest.approx(whole.losses()[:2], rel=1e-6)


@pytest.mark.parametrize("packing", [True, False])
def test_the_cross_entropy_beside_kto_is_that_of_good_answers(
    train: Train, asking: Asking, files: dict[str, Path], tmp_path: Path, packing: bool
) -> None:
    """The same answers as pairs and one by one: there their mean is over the pairs, here over twice as many rows."""
    pairs = [json.loads(line) for line in files["pairs"].read_text().splitlines()]
    rows = [
        {"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}
        for pair in pairs
        for side in ("chosen", "rejected")
    ]
    singles = tmp_path / "both.jsonl"
    singles.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def first_loss(loss: str, data: Path, count: int) -> float:
        preference = {"loss": loss, "sft_weight": 0.5}
        changes = asking(loss, method={"preference": preference}, batch={"per_device": count}, name=f"{loss}-sft")
        run = train(**changes | {"data": {"train": str(data), "packing": packing}, "optim": {"max_steps": 1}})
        return run.losses()[0] - AT_FIRST[loss]

    expected = first_loss("sigmoid", files["pairs"], len(pairs))
    assert expected > 1
    assert 2 * first_loss("kto", singles, len(rows)) == pytest.approx(expected, rel=1e-5)


def _same(found: Trained, expected: Trained) -> None:
    for key in ("loss", "grad_norm", *(name for name in ("margin", "kl") if name in next(expected.run.read_metrics()))):
        # A step may have rows of one kind only, and then no margin.
        curves = [[math.nan if value is None else value for value in each.curve(key)] for each in (found, expected)]
        assert curves[0] == pytest.approx(curves[1], rel=1e-5, abs=1e-6, nan_ok=True), key


@pytest.mark.parametrize("loss", ["sigmoid", "kto", "reward"])
def test_answers_are_apart_in_layers_with_a_state(
    train: Train, asking: Asking, variant: Any, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """Also in the reference model, which has the same layers, and where the forward pass is repeated."""
    model = str(variant(config_of("Qwen3NextConfig", **SHAPE, **LINEAR), draw_large_weights))
    method: dict[str, Any] = {} if loss == "reward" else {"preference": {"loss": loss, "reference": model}}
    data, memory = {"packing": True}, {"gradient_checkpointing": True}
    changes = asking(loss, method=method, model={"path": model}, data=data, memory=memory)
    short = changes | {"optim": {"learning_rate": 1e-4, "max_steps": 3}}
    together = train(**short, name="together")
    monkeypatch.setattr("ascendtune.train.model_setup.may_isolate", lambda *_, **__: False)
    padded = train(**short, name="padded")
    for key in ("loss", "grad_norm"):
        assert together.curve(key) == pytest.approx(padded.curve(key), rel=1e-4)


def test_another_reference_model_changes_the_loss(train: Train, asking: Asking, variant: Any, tiny_model: Path) -> None:
    other = variant(AutoConfig.from_pretrained(tiny_model), lambda model: model.lm_head.weight.mul_(1.5))
    itself = train(**asking("sigmoid"))
    compared = train(**asking("sigmoid", method={"preference": {"reference": str(other)}}, name="other"))
    assert compared.losses()[0] != pytest.approx(itself.losses()[0], rel=1e-3)
    same = train(**asking("sigmoid", method={"preference": {"reference": str(tiny_model)}}, name="same"))
    assert same.losses() == pytest.approx(itself.losses(), rel=1e-5)


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_another_reference_model_is_sharded_with_fsdp(
    train: Train, train_on_ranks: Any, asking: Asking, variant: Any, monkeypatch: pytest.MonkeyPatch, tiny_model: Path,
    tuner: str,
) -> None:  # fmt: skip
    reference = variant(AutoConfig.from_pretrained(tiny_model), lambda model: model.lm_head.weight.mul_(1.5))
    method = {"tuner": tuner, "preference": {"reference": str(reference)}}
    alone = train(**asking("sigmoid", method=method, name="alone"))
    shard_frozen = FsdpStrategy.shard_frozen

    def require_shares(strategy: FsdpStrategy, root: Any, *options: Any) -> None:
        assert all(each.untyped_storage().nbytes() == each.itemsize for each in root.parameters()), "still in files"
        shard_frozen(strategy, root, *options)
        assert all(isinstance(each, DTensor) for each in root.parameters())

    monkeypatch.setattr(FsdpStrategy, "shard_frozen", require_shares)
    fsdp = {"parallel": {"strategy": "fsdp"}, "batch": {"per_device": 2}}
    _same(train_on_ranks(2, **asking("sigmoid", method=method, name="ranks", **fsdp)), alone)


def test_a_resumed_run_keeps_its_reference(recipe: Callable[..., Recipe], train: Train, asking: Asking) -> None:
    """The weights of a resumed run are no reference any more: what was computed at first is kept."""
    whole = train(**asking("sigmoid", checkpoint={"every_steps": 2}))
    changes = asking("sigmoid", checkpoint={"every_steps": 2, "resume": "auto"}, name="again")
    short = {"learning_rate": 1e-3, "epochs": None, "max_steps": 6}
    run = prepare_run(recipe(**(changes | {"optim": short})), {}).run
    assert run is not None
    attempt.train(run, run.read())
    (kept,) = run.path.glob("reference_train_*.f64")
    before = kept.read_bytes()
    run.update(state="stopped", resume_from=str(run.checkpoint(4)))
    attempt.train(run, run.read())
    assert kept.read_bytes() == before
    assert [each["loss"] for each in RunDir(run.path).read_metrics()] == whole.losses()


def _interrupt(after: int, number: signal.Signals = signal.SIGTERM) -> Callable[[], int]:
    """Lets a signal come when log-probabilities are computed for the `after`-th time; returns what counts the times."""
    log_probs, times = PreferenceObjective.log_probs, count(1)

    def interrupted(self: Any, batch: Any) -> torch.Tensor:
        if next(times) == after:
            signal.raise_signal(number)
        return log_probs(self, batch)

    PreferenceObjective.log_probs = interrupted  # type: ignore[method-assign]
    return lambda: next(times) - 1


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], int]]:
    monkeypatch.setattr(PreferenceObjective, "log_probs", PreferenceObjective.log_probs)
    return _interrupt


def test_a_stop_keeps_what_is_computed_of_the_reference(
    recipe: Callable[..., Recipe], train: Train, asking: Asking, interrupt: Any, files: dict[str, Path]
) -> None:
    changes = asking("sigmoid", data={"eval": str(files["pairs"])}, checkpoint={"resume": "auto"})
    whole = train(**changes, name="whole")
    asked = recipe(**changes, name="stopped")
    for after, rows in ((3, (24, None)), (5, (44, 16))):
        run = prepare_run(asked, {}).run
        assert run is not None
        interrupt(after)
        with pytest.raises(Stopped, match=r"stopped by SIGTERM before the first step.* batches are kept"):
            attempt.train(run, run.read())
        assert run.read()["state"] == "stopped" and run.read()["exit_cause"]["exit_code"] == 143
        assert (_known(run, "train"), _known(run, "eval")) == rows
    start = prepare_run(asked, {})
    assert start.run is not None and start.run.path == run.path and "starting over" in start.messages[0]
    times = interrupt(0)
    attempt.train(run, run.read())
    # Four of six evaluation batches, then six steps and an evaluation of six batches.
    assert times() == 4 + 6 + 6
    for part in ("train", "eval"):
        (kept,), (expected,) = (each.path.glob(f"reference_{part}_*.f64") for each in (run, whole.run))
        assert kept.read_bytes() == expected.read_bytes()
    assert [each["loss"] for each in run.read_metrics()] == whole.losses()


def _known(run: RunDir, part: str) -> int | None:
    """Rows of which something is kept."""
    values = [np.fromfile(path, "<f8") for path in run.path.glob(f"reference_{part}_*.f64")]
    return int((~np.isnan(values[0])).sum()) if values else None


def test_a_stop_of_one_rank_is_a_stop_of_all(
    recipe: Callable[..., Recipe], train: Train, on_ranks: Callable[..., None], asking: Asking
) -> None:
    changes = asking("sigmoid", checkpoint={"resume": "auto"}, batch={"per_device": 2})
    run = prepare_run(recipe(**changes, name="stopped"), {}).run
    assert run is not None
    on_ranks(2, partial(_train_until_rank_1_is_stopped, run))
    assert run.read()["state"] == "stopped" and _known(run, "train") == 16
    on_ranks(2, partial(attempt.train, run, run.read()))
    whole = train(**asking("sigmoid", name="whole"))
    assert [each["loss"] for each in run.read_metrics()] == pytest.approx(whole.losses(), rel=1e-5)


def _train_until_rank_1_is_stopped(run: RunDir) -> None:
    if os.environ["RANK"] == "1":
        _interrupt(after=2, number=signal.SIGINT)
    with pytest.raises(Stopped, match="stopped by SIGINT"):
        attempt.train(run, run.read())


def test_ranks_use_the_reference_file_that_the_main_rank_sees(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of NFS may still say that it does not exist; then only some ranks would compute the reference."""
    exists = Path.exists

    def exists_on_main_rank(path: Path) -> bool:
        return exists(path) and (path.suffix != ".f64" or os.environ["RANK"] == "0")

    asked = recipe(**asking("sigmoid", batch={"per_device": 2}, parallel={"strategy": "fsdp"}))
    run = prepare_run(asked, {}).run
    assert run is not None
    on_ranks(2, partial(attempt.train, run, run.read()))
    losses = [each["loss"] for each in run.read_metrics()]
    run.update(state="running")
    monkeypatch.setattr(Path, "exists", exists_on_main_rank)
    monkeypatch.setattr(
        "ascendtune.train.reference_log_probs._write", lambda path, values: pytest.fail("computed again")
    )
    on_ranks(2, partial(attempt.train, run, run.read()))
    assert [(each["attempt"], each["loss"]) for each in run.read_metrics()] == [(2, loss) for loss in losses]


def test_another_model_has_another_reference(
    recipe: Callable[..., Recipe], asking: Asking, interrupt: Any, tiny_model: Path, tmp_path: Path
) -> None:
    """A run that never made a step may start over with other weights under the same tokenizer."""
    other = shutil.copytree(tiny_model, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    save_file({name: 1.5 * each for name, each in weights.items()}, other / "model.safetensors", {"format": "pt"})
    changes = asking("sigmoid", checkpoint={"resume": "auto"})
    run = prepare_run(recipe(**changes), {}).run
    assert run is not None
    interrupt(4)
    with pytest.raises(Stopped):
        attempt.train(run, run.read())
    again = prepare_run(recipe(**changes, model={"path": str(other)}), {}).run
    assert again is not None and again.path == run.path
    attempt.train(run, run.read())
    assert next(run.read_metrics())["loss"] == pytest.approx(math.log(2), rel=1e-6)


def test_other_data_have_another_reference(
    recipe: Callable[..., Recipe], asking: Asking, files: dict[str, Path], tmp_path: Path
) -> None:
    """As many rows, other texts: what the reference said of the old ones must not be taken for them."""
    rows = tmp_path / "pairs.jsonl"
    rows.write_text(files["pairs"].read_text())
    changes = asking("sigmoid", data={"train": str(rows)}, checkpoint={"every_steps": 2, "resume": "auto"})
    asked = recipe(**changes)
    run = prepare_run(asked, {}).run
    assert run is not None
    attempt.train(run, run.read())
    (before,) = run.path.glob("reference_train_*.f64")
    rows.write_text(rows.read_text().replace("good", "diet"))
    run.update(state="stopped")
    assert prepare_run(asked, {}, resume_options=ResumeOptions(["data"])).run is not None
    attempt.train(run, run.read())
    after = next(path for path in run.path.glob("reference_train_*.f64") if path != before)
    assert after.stat().st_size == before.stat().st_size and after.read_bytes() != before.read_bytes()


def test_evaluation_tells_accuracy(train: Train, asking: Asking, files: dict[str, Path]) -> None:
    run = train(**asking("sigmoid", data={"eval": str(files["pairs"])}, eval={"every_steps": 3}))
    evaluations = run.evaluations()
    assert [each["step"] for each in evaluations] == [3, 6]
    assert all(0 <= each["accuracy"] <= 1 and math.isfinite(each["loss"]) for each in evaluations)


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_a_reward_model_is_loaded_by_its_class(train: Train, asking: Asking, tuner: str, tiny_model: Path) -> None:
    from peft import AutoPeftModelForSequenceClassification
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run = train(**asking("reward", method={"tuner": tuner})).run
    if tuner == "full":
        model = AutoModelForSequenceClassification.from_pretrained(run.model)
    else:
        model = AutoPeftModelForSequenceClassification.from_pretrained(run.model, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    batch = tokenizer(["good diet", "sleep tips atom clips"], return_tensors="pt", padding=True)
    model.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        scores = model.eval()(**batch).logits
    assert scores.shape == (2, 1) and torch.isfinite(scores).all()


def test_reference_with_fewer_tokens_is_refused(train: Train, asking: Asking, variant: Any, tiny_model: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(tiny_model)
    config.vocab_size = 100
    small = variant(config)
    with pytest.raises(RecipeError, match="the reference model has 100 tokens"):
        train(**asking("sigmoid", method={"preference": {"reference": str(small)}}))
