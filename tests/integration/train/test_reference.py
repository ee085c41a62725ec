"""The same loss, step by step, as transformers.Trainer: same weights, same rows, same order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset, SequentialSampler

from ascendtune.core.directories import cache_directory
from ascendtune.core.rundir import RunDir
from ascendtune.data.plan import BatchPlan
from ascendtune.data.prepare import open_prepared
from ascendtune.data.store import TokenDataset

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

STEPS = 20
DECAY = 0.1
TOLERANCE = 1e-5


class RowsInOrder(Dataset[dict[str, torch.Tensor]]):
    """The rows of a run, in the order in which its plan shows them."""

    def __init__(self, run: RunDir, steps: int = STEPS) -> None:
        record = run.read()
        self.dataset = TokenDataset.open(open_prepared(cache_directory() / "tokens" / record["data_hash"]).train)
        plan = BatchPlan(
            self.dataset.lengths,
            self.dataset.label_counts,
            capacity=None,
            global_batch=record["global_batch"],
            seed=record["seed"],
        )
        self._rows = [row for step in range(steps) for (row,) in plan.batch(step)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, labels = self.dataset.row(self._rows[index])
        return {"input_ids": torch.tensor(ids.tolist()), "labels": torch.tensor(labels.tolist())}


def pad(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Written apart from our collate: padded on the right, with a mask, labels not shifted."""
    from torch.nn.utils.rnn import pad_sequence

    return {
        "input_ids": pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=0),
        "labels": pad_sequence([row["labels"] for row in rows], batch_first=True, padding_value=-100),
        "attention_mask": pad_sequence([torch.ones_like(row["labels"]) for row in rows], batch_first=True),
    }


def reference(run: RunDir, model: Any, directory: Path, **arguments: Any) -> tuple[list[float], list[float]]:
    """(losses, gradient norms) of transformers.Trainer over the rows of `run`."""
    from transformers import Trainer, TrainingArguments

    class Recording(Trainer):
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def training_step(self, *positional: Any, **named: Any) -> torch.Tensor:
            loss = super().training_step(*positional, **named)
            step = self.state.global_step
            losses.setdefault(step, []).append(float(loss))
            return loss

        def log(self, logs: dict[str, float], *_: Any) -> None:
            if "grad_norm" in logs:
                norms.append(float(logs["grad_norm"]))

    losses: dict[int, list[float]] = {}
    norms: list[float] = []
    given = TrainingArguments(
        output_dir=str(directory),
        use_cpu=True,
        max_steps=STEPS,
        weight_decay=DECAY,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **arguments,
    )
    Recording(model=model, args=given, train_dataset=RowsInOrder(run), data_collator=pad).train()
    return [sum(losses[step]) for step in sorted(losses)], norms


def base_model(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa")


@pytest.mark.parametrize(
    ("optim", "arguments"),
    [
        pytest.param(
            {"scheduler": "linear", "warmup_steps": 3, "max_grad_norm": 0.5},
            {"lr_scheduler_type": "linear", "warmup_steps": 3, "max_grad_norm": 0.5},
            id="linear",
        ),
        pytest.param(
            {"scheduler": "cosine", "warmup_ratio": 0.1, "max_grad_norm": 1.0},
            {"lr_scheduler_type": "cosine", "warmup_steps": 2, "max_grad_norm": 1.0},
            id="cosine",
        ),
    ],
)
@pytest.mark.parametrize(
    ("per_device", "accumulate"), [pytest.param(4, 1, id="4x1"), pytest.param(2, 2, id="accumulated")]
)
def test_full_training_follows_the_reference(
    train: Train,
    tiny_model: Path,
    tmp_path: Path,
    optim: dict[str, Any],
    arguments: dict[str, Any],
    per_device: int,
    accumulate: int,
) -> None:
    ours = train(
        optim={**optim, "weight_decay": DECAY, "max_steps": STEPS},
        batch={"per_device": per_device, "accumulate": accumulate},
    )
    losses, norms = reference(
        ours.run,
        base_model(tiny_model),
        tmp_path,
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=accumulate,
        learning_rate=1e-3,
        **arguments,
    )
    assert_same(ours, losses, norms)


@pytest.mark.parametrize("rslora", [False, True])
def test_lora_training_follows_the_reference(train: Train, tiny_model: Path, tmp_path: Path, rslora: bool) -> None:
    from peft import LoraConfig, get_peft_model

    # A scale at which training is stable: an unstable one grows differences of rounding to 1e-5 within 20 steps.
    lora = {"rank": 4, "alpha": 4, "rslora": rslora}
    ours = train(
        method={"tuner": "lora", "lora": lora},
        optim={"learning_rate": 3e-3, "scheduler": "linear", "weight_decay": DECAY, "max_steps": STEPS},
    )
    model = base_model(tiny_model)
    torch.manual_seed(ours.run.read()["seed"])
    config = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4, lora_alpha=4, use_rslora=rslora)
    losses, norms = reference(
        ours.run,
        get_peft_model(model, config),
        tmp_path,
        per_device_train_batch_size=4,
        lr_scheduler_type="linear",
        learning_rate=3e-3,
    )
    assert_same(ours, losses, norms)


def assert_same(ours: Trained, losses: list[float], norms: list[float]) -> None:
    for name, found, expected in (("loss", ours.losses(), losses), ("grad_norm", ours.curve("grad_norm"), norms)):
        assert len(found) == len(expected) == STEPS
        worst = max(abs(one / other - 1) for one, other in zip(found, expected, strict=True))
        print(f"{name}: largest relative difference {worst:.2e}")
        assert worst <= TOLERANCE
    assert losses[-1] < 0.98 * losses[0]
