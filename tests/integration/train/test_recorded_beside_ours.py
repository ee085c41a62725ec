"""A training that transformers.Trainer or a bare loop made is aligned with ours; planted faults are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integration.train.test_reference import RowsInOrder, base_model, pad
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import SequentialSampler

from ascendtune.align import record
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from ascendtune.core.rundir import RunDir

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

STEPS, ROWS, RATE = 3, 4, 1e-3
OURS: dict[str, Any] = {
    "optim": {"max_steps": STEPS, "learning_rate": RATE, "scheduler": "constant", "weight_decay": 0.1},
    "align": {"dump_steps": "1-3"},
}
Edit = Callable[[Any], object]


def by_trainer(run: RunDir, model: Any, directory: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

    asked = TrainingArguments(
        output_dir=str(directory),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        learning_rate=RATE,
        weight_decay=0.1,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    InOrder(model=model, args=asked, train_dataset=RowsInOrder(run), data_collator=pad).train()


def by_bare_loop(run: RunDir, model: Any, directory: Path, **adam: Any) -> None:
    rows = RowsInOrder(run)
    decayed = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, **{"lr": RATE, **adam})
    for step in range(STEPS):
        batch = pad([rows[step * ROWS + at] for at in range(ROWS)])
        labels = batch.pop("labels")[:, 1:].flatten()
        logits = model(**batch).logits[:, :-1].flatten(0, 1)
        nn.functional.cross_entropy(logits, labels).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def recorded(loop: Callable[..., None], run: RunDir, model: Any, directory: Path, **adam: Any) -> TrainingComparison:
    """Recorded as the reference, beside our run."""
    with record(model, steps="1-3", directory=directory / "recorded"):
        loop(run, model, directory, **adam)
    one, other = read_training_record(directory / "recorded"), read_training_record(run.path)
    return compare_trainings(one, other, expected_noise(one, other))


@pytest.mark.parametrize("loop", [by_trainer, by_bare_loop])
def test_another_loop_is_aligned_with_ours(
    train: Train, tiny_model: Path, tmp_path: Path, loop: Callable[..., None]
) -> None:
    found = recorded(loop, train(**OURS).run, base_model(tiny_model), tmp_path)
    assert found.divergence is None, found.divergence
    assert not found.dumps.obstacle and found.dumps.steps == (1, 2, 3)
    assert {"start", "backward", "update"} <= found.dumps.agreeing
    # Attention computes other values at padding; they are not trained on.
    warned = [each for each in found.findings if each.status not in ("ok", "unknown")]
    assert [(each.code, each.status) for each in warned] == [("forward", "warning")]


def _other_epsilon(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-3


def _zeroed_gradient(model: Any) -> None:
    model.get_parameter("model.layers.0.mlp.up_proj.weight").register_hook(torch.zeros_like)


FAULTS: dict[str, tuple[Edit, tuple[str, int, str]]] = {
    "RMSNorm epsilon": (_other_epsilon, ("forward", 1, "model.layers.0.input_layernorm")),
    "zeroed gradient": (_zeroed_gradient, ("backward", 1, "model.layers.0.mlp.up_proj.weight")),
}


@pytest.mark.parametrize(("edit", "expected"), FAULTS.values(), ids=FAULTS)
def test_fault_of_another_loop_is_named(
    train: Train, tiny_model: Path, tmp_path: Path, edit: Edit, expected: tuple[str, int, str]
) -> None:
    model = base_model(tiny_model)
    edit(model)
    place = recorded(by_bare_loop, train(**OURS).run, model, tmp_path).dumps.place
    assert place is not None and (place.stage, place.step) == expected[:2]
    assert expected[2] in place.module


def test_other_settings_of_another_loops_optimizer_are_named(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    found = recorded(by_bare_loop, train(**OURS).run, base_model(tiny_model), tmp_path, betas=(0.9, 0.9))
    asked, updated = (next(each for each in found.findings if each.code == code) for code in ("question", "update"))
    assert asked.status == "failure" and "beta2: 0.9, 0.999" in asked.measured
    assert updated.status == "failure" and updated.measured == "step 2: beta2: 0.9 and 0.999"
