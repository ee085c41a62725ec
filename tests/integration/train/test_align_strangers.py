"""Trainings of other loops, recorded, beside ours: harder pairs than a plain SFT. Each honest, and with one fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integration.train.test_recorded_beside_ours import by_trainer
from tests.integration.train.test_reference import RowsInOrder, base_model, pad
from torch import nn
from torch.nn.utils import clip_grad_norm_

from ascendtune.align import record
from ascendtune.check.align.noise import expected_noise
from ascendtune.check.align.side import read_side
from ascendtune.check.align.stages import Comparison, compare
from ascendtune.core.rundir import RunDir

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

RATE = 1e-3
Groups = Sequence[Sequence[dict[str, torch.Tensor]]]
"""The micro-batches of a step, and rows of each."""


def asking(steps: int, dumped: str = "1-3", **changes: Any) -> dict[str, Any]:
    """A recipe with the optimizer of `bare_loop`."""
    optim = {"max_steps": steps, "learning_rate": RATE, "scheduler": "constant", "weight_decay": 0.1}
    return {"optim": optim, "align": {"dump_steps": dumped}, **changes}


def micro_batches(run: RunDir, steps: int, size: int) -> Iterable[Groups]:
    """The rows of each step of `run`, in its order, `size` at a time."""
    end = 0
    for number in range(steps):
        begin, end = end, len(RowsInOrder(run, number + 1))
        rows = RowsInOrder(run, number + 1)
        of_step = [rows[at] for at in range(begin, end)]
        yield [of_step[at : at + size] for at in range(0, len(of_step), size)]


def bare_loop(
    model: Any, groups: Iterable[Groups], divisor: Callable[[int, int], float] = lambda tokens, batches: tokens
) -> None:
    """AdamW and the mean over the labelled tokens of a step.

    Args:
        divisor: of the sum of a step's loss, from its labelled tokens and its number of micro-batches.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    decayed, others = ([each for each in trained if (each.ndim > 1) == wide] for wide in (True, False))
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=RATE
    )
    for of_step in groups:
        tokens = sum(int((row["labels"][1:] != -100).sum()) for rows in of_step for row in rows)
        for rows in of_step:
            batch = pad(list(rows))
            labels = batch.pop("labels")[:, 1:].flatten()
            logits = model(**batch).logits[:, :-1].flatten(0, 1)
            total = nn.functional.cross_entropy(logits, labels, reduction="sum")
            (total / divisor(tokens, len(of_step))).backward()
        clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def aligned(reference: Path, candidate: Path) -> Comparison:
    one, other = read_side(reference), read_side(candidate)
    return compare(one, other, expected_noise(one, other))


def place_of(found: Comparison) -> tuple[str, int, str, str]:
    """Stage, step, phase and module."""
    place = found.dumps.place
    assert place is not None and found.parted is not None, found.findings
    return found.parted.code, place.step, place.row.key.phase, place.module


def assert_aligned(found: Comparison, steps: tuple[int, ...]) -> None:
    assert found.parted is None, found.parted
    assert found.dumps.steps == steps and {"backward", "update"} <= found.dumps.agreeing
    # Attention computes other values at padding; they are not trained on.
    assert {each.code for each in found.findings if each.status not in ("ok", "unknown")} <= {"forward"}


def test_run_that_was_resumed_twice(
    train: Train, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last attempt has the moments of the second one, which has those of the first."""
    asked = asking(6, "5-6", checkpoint={"every_steps": 2, "keep": 9})

    def resumed(at: int) -> RunDir:
        return train(**{**asked, "checkpoint": {**asked["checkpoint"], "resume": str(run.checkpoint(at))}}).run

    run = train(**asked).run
    with record(base := base_model(tiny_model), steps="5-6", directory=tmp_path / "recorded"):
        bare_loop(base, micro_batches(run, 6, 4))
    run = resumed(2)
    run = resumed(4)
    assert len(run.read()["attempts"]) == 3
    assert_aligned(aligned(tmp_path / "recorded", run.path), (5, 6))
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Optimizer, "load_state_dict", lambda *_: None)
        run = resumed(4)
    stage, step, phase, _ = place_of(aligned(tmp_path / "recorded", run.path))
    assert (stage, step, phase) == ("update", 5, "parameter_after")


def _with_adapter(model: Path, seed: int, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    asked: dict[str, Any] = {"task_type": "CAUSAL_LM", "target_modules": "all-linear", "r": 4, "lora_alpha": 4}
    return get_peft_model(base_model(model), LoraConfig(**{**asked, **options}))


def _zeroed(name: str) -> Callable[[Any], object]:
    def edit(model: Any) -> None:
        (found,) = (each for key, each in model.named_parameters() if name in key)
        found.register_hook(torch.zeros_like)

    return edit


def test_modules_to_save_beside_lora(train: Train, variant: Callable[..., Path], tmp_path: Path) -> None:
    from transformers import Qwen2Config

    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(
        vocab_size=512, num_key_value_heads=2, tie_word_embeddings=False, pad_token_id=0, eos_token_id=2, **shape
    )
    path = variant(config)
    lora = {"rank": 4, "alpha": 4, "modules_to_save": ["lm_head"]}
    run = train(**asking(3, model={"path": str(path)}, method={"tuner": "lora", "lora": lora})).run

    def compared(name: str, edit: Callable[[Any], object] = lambda model: None, **options: Any) -> Comparison:
        model = _with_adapter(path, run.read()["seed"], **options)
        edit(model)
        with record(model, steps="1-3", directory=tmp_path / name):
            bare_loop(model, micro_batches(run, 3, 4))
        return aligned(tmp_path / name, run.path)

    assert_aligned(compared("honest", modules_to_save=["lm_head"]), (1, 2, 3))
    found = compared("zeroed", _zeroed("modules_to_save"), modules_to_save=["lm_head"])
    print(place_of(found))
    found = compared("frozen")
    print(place_of(found), found.findings)


def test_ragged_last_group_of_three_micro_batches(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    """78 rows are six groups of three micro-batches of four rows, and one of four and of two."""
    run = train(**asking(7, "6-7", batch={"per_device": 4, "accumulate": 3})).run
    assert [len(each) for each in micro_batches(run, 7, 4)] == [3] * 6 + [2]

    def compared(name: str, size: int, **options: Any) -> Comparison:
        model = base_model(tiny_model)
        with record(model, steps="6-7", directory=tmp_path / name):
            bare_loop(model, micro_batches(run, 7, size), **options)
        return aligned(tmp_path / name, run.path)

    assert_aligned(compared("honest", 4), (6, 7))
    assert_aligned(compared("whole", 12), (6, 7))
    found = compared("always three", 4, divisor=lambda tokens, batches: tokens * 3 / batches)
    print(place_of(found), found.dumps.place)


def test_mixture_of_experts(train: Train, variant: Callable[..., Path], tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig

    shape = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 2}
    path = variant(Qwen3MoeConfig(vocab_size=512, num_experts=4, num_experts_per_tok=2, **shape, **heads))
    run = train(**asking(3, model={"path": str(path)})).run

    def compared(name: str, edit: Callable[[Any], object] = lambda model: None) -> Comparison:
        model = base_model(path)
        edit(model)
        with record(model, steps="1-3", directory=tmp_path / name):
            bare_loop(model, micro_batches(run, 3, 4))
        return aligned(tmp_path / name, run.path)

    assert_aligned(compared("honest"), (1, 2, 3))

    def one_expert(model: Any) -> None:
        print([n for n, _ in model.named_modules()])
        model.model.layers[1].mlp.gate.top_k = 1

    found = compared("one", one_expert)
    print(place_of(found), found.dumps.place)

    def perturbed(model: Any) -> None:
        print([(n, p.shape) for n, p in model.named_parameters() if "expert" in n])

    compared("pert", perturbed)
