"""The same loss, step by step, as TRL's trainers: same weights, same tokens, same order.

TRL's orpo is not here: its cross-entropy counts the tokens of the prompt, the paper's (and ours) those of the answer.
Nor is label smoothing: TRL's sigmoid leaves it out, whatever its value.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integration.train.pairs import write_pairs, write_singles
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from ascendtune.core.directories import cache_directory
from ascendtune.core.rundir import RunDir
from ascendtune.data.plan import BatchPlan
from ascendtune.data.prepare import open_prepared
from ascendtune.data.store import TokenDataset

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

STEPS = 20
# Small enough that the hinge stays far from zero, where the difference of large numbers would lose its digits.
RATE = 2e-4
TOLERANCE = 1e-5
BETA = 0.1

pytest.importorskip("trl")


@pytest.mark.parametrize("loss", ["sigmoid", "hinge", "ipo"])
def test_dpo_follows_trl(train: Train, tiny_model: Path, tmp_path: Path, loss: str) -> None:
    from transformers import AutoModelForCausalLM
    from trl import DPOConfig, DPOTrainer

    pairs = write_pairs(tmp_path / "pairs.jsonl", 4 * STEPS)
    ours = train(**_asking({"stage": "preference", "preference": {"loss": loss}}, pairs))
    model, reference = (AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32) for _ in range(2))
    theirs = _losses_of(
        DPOTrainer, DPOConfig, _batches(ours.run, _as_dpo), model, tiny_model, tmp_path,
        {"prompt": ["Paris"], "chosen": ["tips"], "rejected": ["diet"]},
        ref_model=reference, loss_type=[loss], beta=BETA,
    )  # fmt: skip
    assert ours.losses() == pytest.approx(theirs, rel=TOLERANCE)


def test_kto_follows_trl(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM
    from trl import KTOConfig, KTOTrainer

    singles = write_singles(tmp_path / "singles.jsonl", 4 * STEPS)
    options = {"loss": "kto", "desirable_weight": 1.5, "undesirable_weight": 0.5}
    ours = train(**_asking({"stage": "preference", "preference": options}, singles))
    model, reference = (AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32) for _ in range(2))
    told: dict[str, list[float]] = {}
    theirs = _losses_of(
        KTOTrainer, KTOConfig, _batches(ours.run, _as_kto), model, tiny_model, tmp_path,
        {"prompt": ["Paris"] * 4, "completion": ["tips"] * 4, "label": [True, False] * 2},
        told=told, ref_model=reference, beta=BETA, desirable_weight=1.5, undesirable_weight=0.5,
    )  # fmt: skip
    assert ours.losses() == pytest.approx(theirs, rel=TOLERANCE)
    assert max(ours.curve("kl")) > 0, "the divergence has a part in it"
    # Theirs are the steps that have rows of the kind.
    for key, name in (("chosen_reward", "rewards/chosen"), ("rejected_reward", "rewards/rejected")):
        assert [each for each in ours.curve(key) if each is not None] == pytest.approx(told[name], rel=1e-3, abs=1e-6)


def test_simpo_follows_trl(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    pairs = write_pairs(tmp_path / "pairs.jsonl", 4 * STEPS)
    ours = train(**_asking({"stage": "preference", "preference": {"loss": "simpo", "simpo_gamma": 0.7}}, pairs))
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    theirs = _losses_of(
        CPOTrainer, CPOConfig, _batches(ours.run, _as_cpo), model, tiny_model, tmp_path,
        {"prompt": ["Paris"], "chosen": ["tips"], "rejected": ["diet"]},
        loss_type="simpo", beta=BETA, simpo_gamma=0.7, cpo_alpha=0.0,
    )  # fmt: skip
    assert ours.losses() == pytest.approx(theirs, rel=TOLERANCE)


def test_reward_follows_trl(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    pairs = write_pairs(tmp_path / "pairs.jsonl", 4 * STEPS, margins=True)
    method = {"stage": "reward", "reward": {"centring": 0.01}}
    ours = train(**_asking(method, pairs))
    config = AutoConfig.from_pretrained(tiny_model, num_labels=1, pad_token_id=0)
    torch.manual_seed(ours.run.read()["seed"])
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, config=config, dtype=torch.float32)
    theirs = _losses_of(
        RewardTrainer, RewardConfig, _batches(ours.run, _as_reward), model, tiny_model, tmp_path,
        {"prompt": ["Paris"], "chosen": ["tips"], "rejected": ["diet"]},
        center_rewards_coefficient=0.01,
    )  # fmt: skip
    assert ours.losses() == pytest.approx(theirs, rel=TOLERANCE)


def _asking(method: dict[str, Any], file: Path) -> dict[str, Any]:
    optim = {"learning_rate": RATE, "max_steps": STEPS, "scheduler": "linear"}
    return {"method": method, "data": {"train": str(file)}, "optim": optim}


def _losses_of(
    trainer: Any, config: Any, batches: list[dict[str, Any]], model: Any, directory: Path, scratch: Path,
    rows: dict[str, list[Any]], told: dict[str, list[float]] | None = None, **options: Any,
) -> list[float]:  # fmt: skip
    """Losses of one of TRL's trainers on batches made here; `rows` only satisfy its constructor.

    Args:
        told: takes what else it notes of its steps, by name.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer

    losses: list[float] = []

    class Given(trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> DataLoader[dict[str, Any]]:
            return DataLoader(batches, collate_fn=lambda items: items[0])  # type: ignore[arg-type]

        def training_step(self, *positional: Any, **named: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(*positional, **named)
            losses.append(float(loss))
            if told is not None:
                told.update({name: list(values) for name, values in self._metrics["train"].items()})
            return loss

    reference = {"ref_model": options.pop("ref_model")} if "ref_model" in options else {}
    arguments = config(
        output_dir=str(scratch / "theirs"), max_steps=STEPS, learning_rate=RATE, lr_scheduler_type="linear",
        per_device_train_batch_size=4, logging_steps=STEPS + 1, report_to=[], save_strategy="no", disable_tqdm=True,
        use_cpu=True, bf16=False, gradient_checkpointing=False, weight_decay=0.0, max_grad_norm=1.0, **options,
    )  # fmt: skip
    Given(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(rows),
        processing_class=AutoTokenizer.from_pretrained(directory),
        **reference,
    ).train()
    return losses


def _batches(run: RunDir, make: Any) -> list[dict[str, Any]]:
    """The rows of each step of `run`, in its order."""
    record = run.read()
    dataset = TokenDataset.open(open_prepared(cache_directory() / "tokens" / record["data_hash"]).train)
    plan = BatchPlan(
        dataset.lengths, dataset.label_counts,
        capacity=None, global_batch=record["global_batch"], seed=record["seed"], group_size=2,
    )  # fmt: skip
    return [make(dataset, [group for (group,) in plan.batch(step)]) for step in range(STEPS)]


def _padded(dataset: TokenDataset, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(input_ids, attention_mask, completion_mask), padded on the right."""
    found = [dataset.row(row) for row in rows]
    ids = [torch.tensor(each.tolist()) for each, _ in found]
    learnt = [torch.tensor((labels != -100).tolist()).long() for _, labels in found]
    ones = [torch.ones_like(each) for each in ids]
    return (
        pad_sequence(ids, batch_first=True),
        pad_sequence(ones, batch_first=True),
        pad_sequence(learnt, batch_first=True),
    )


def _as_dpo(dataset: TokenDataset, groups: list[int]) -> dict[str, Any]:
    ids, attention, learnt = _padded(dataset, [2 * group for group in groups] + [2 * group + 1 for group in groups])
    return {"input_ids": ids, "attention_mask": attention, "completion_mask": learnt}


def _as_kto(dataset: TokenDataset, groups: list[int]) -> dict[str, Any]:
    ids, attention, learnt = _padded(dataset, [2 * group for group in groups])
    kl_ids, kl_attention, kl_learnt = _padded(dataset, [2 * group + 1 for group in groups])
    return {
        "input_ids": ids, "attention_mask": attention, "completion_mask": learnt,
        "KL_input_ids": kl_ids, "KL_attention_mask": kl_attention, "KL_completion_mask": kl_learnt,
        "label": torch.tensor([dataset.values[group] == 1 for group in groups]),
    }  # fmt: skip


def _as_cpo(dataset: TokenDataset, groups: list[int]) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for name, within in (("chosen", 0), ("rejected", 1)):
        ids, attention, learnt = _padded(dataset, [2 * group + within for group in groups])
        batch[f"{name}_input_ids"], batch[f"{name}_attention_mask"] = ids, attention
        batch[f"{name}_labels"] = ids.masked_fill(learnt == 0, -100)
    return batch


def _as_reward(dataset: TokenDataset, groups: list[int]) -> dict[str, Any]:
    ids, attention, _ = _padded(dataset, [2 * group for group in groups] + [2 * group + 1 for group in groups])
    return {"input_ids": ids, "attention_mask": attention, "margin": torch.tensor(dataset.values[groups].tolist())}
