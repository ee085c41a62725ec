"""Trainings of other loops, recorded, beside ours: harder pairs than a plain SFT. Each honest, and with one fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integration.train import test_trl
from tests.integration.train.pairs import write_pairs, write_singles
from tests.integration.train.test_reference import RowsInOrder, base_model, pad
from torch import nn
from torch.nn.utils import clip_grad_norm_

from ascendtune.align import record
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from ascendtune.core.rundir import RunDir

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

RATE = 1e-3
EMBEDDING = "model.embed_tokens.weight"
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


def aligned(reference: Path, candidate: Path) -> TrainingComparison:
    one, other = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(one, other, expected_noise(one, other))


def place_of(found: TrainingComparison) -> tuple[str, int, str, str]:
    """Stage, step, phase and module."""
    place = found.dumps.place
    assert place is not None and found.divergence is not None, found.findings
    return found.divergence.code, place.step, place.row.key.phase, place.module


def assert_aligned(found: TrainingComparison, steps: tuple[int, ...], warned: str = "forward") -> None:
    """The stage of the only warning is `forward` where attention computes other values at padding."""
    assert found.divergence is None, found.divergence
    assert found.dumps.steps == steps and {"backward", "update"} <= found.dumps.agreeing
    assert {each.code for each in found.findings if each.status not in ("ok", "unknown")} <= {warned}


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
    found = aligned(tmp_path / "recorded", run.path)
    assert found.divergence is not None and (found.divergence.code, found.step) == ("update", 5)
    assert "the optimizer's state was lost" in found.divergence.measured


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
    path = variant(
        Qwen2Config(vocab_size=512, num_key_value_heads=2, tie_word_embeddings=False, pad_token_id=0, **shape)
    )
    lora = {"rank": 4, "alpha": 4, "modules_to_save": ["lm_head"]}
    run = train(**asking(3, model={"path": str(path)}, method={"tuner": "lora", "lora": lora})).run

    def compared(name: str, edit: Callable[[Any], object] = lambda model: None, **options: Any) -> TrainingComparison:
        model = _with_adapter(path, run.read()["seed"], **options)
        edit(model)
        with record(model, steps="1-3", directory=tmp_path / name):
            bare_loop(model, micro_batches(run, 3, 4))
        return aligned(tmp_path / name, run.path)

    assert_aligned(compared("honest", modules_to_save=["lm_head"]), (1, 2, 3))
    head = ("backward", 1, "gradient", "lm_head.weight")
    assert place_of(compared("zeroed", _zeroed("modules_to_save"), modules_to_save=["lm_head"])) == head
    # The head stays as it is: one side alone trains it.
    frozen = compared("frozen")
    assert place_of(frozen) == head
    assert frozen.divergence is not None and "only one side" in frozen.divergence.measured


def test_ragged_last_group_of_three_micro_batches(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    """78 rows are six groups of three micro-batches of four rows, and one of four and of two."""
    run = train(**asking(7, "6-7", batch={"per_device": 4, "accumulate": 3})).run
    assert [len(each) for each in micro_batches(run, 7, 4)] == [3] * 6 + [2]

    def compared(name: str, size: int, **options: Any) -> TrainingComparison:
        model = base_model(tiny_model)
        with record(model, steps="6-7", directory=tmp_path / name):
            bare_loop(model, micro_batches(run, 7, size), **options)
        return aligned(tmp_path / name, run.path)

    assert_aligned(compared("honest", 4), (6, 7))
    assert_aligned(compared("whole", 12), (6, 7))
    always_three = compared("always three", 4, divisor=lambda tokens, batches: tokens * 3 / batches)
    assert place_of(always_three) == ("forward", 7, "loss", "")
    # Of whole batches gradients alone can be compared: all are too large by the same factor.
    steps = iter(range(1, 8))
    whole = compared("last too small", 12, divisor=lambda tokens, _: tokens * (1.5 if next(steps) == 7 else 1))
    assert place_of(whole)[:3] == ("backward", 7, "gradient") and whole.dumps.place is not None
    assert whole.dumps.place.ratio == pytest.approx(1.5, rel=1e-3)


def test_mixture_of_experts(train: Train, variant: Callable[..., Path], tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig

    shape = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
    path = variant(Qwen3MoeConfig(vocab_size=512, num_experts=4, num_experts_per_tok=2, **shape, **heads))
    run = train(**asking(3, model={"path": str(path)})).run

    def compared(name: str, edit: Callable[[Any], object] = lambda model: None) -> TrainingComparison:
        model = base_model(path)
        edit(model)
        with record(model, steps="1-3", directory=tmp_path / name):
            bare_loop(model, micro_batches(run, 3, 4))
        return aligned(tmp_path / name, run.path)

    def with_one_expert(model: Any) -> None:
        model.model.layers[1].mlp.gate.top_k = 1

    def with_another_expert(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.experts.down_proj[2].mul_(1.001)

    assert_aligned(compared("honest"), (1, 2, 3))
    fewer = compared("fewer", with_one_expert)
    assert place_of(fewer) == ("forward", 1, "forward", "model.layers.1.mlp.experts")
    assert fewer.divergence is not None and "router" in str(fewer.divergence.remedy)
    weights = "model.layers.1.mlp.experts.down_proj"
    assert place_of(compared("other", with_another_expert)) == ("start", 1, "parameter_before", weights)


def _by_trl(
    trainer: str, run: RunDir, make: Callable[..., Any], model: Any, tiny_model: Path, directory: Path, **options: Any
) -> TrainingComparison:
    """One of TRL's trainers on the batches of `run`, recorded and compared with it."""
    import trl

    rows = {"prompt": ["Paris"] * 4}
    kto = {"completion": ["tips"] * 4, "label": [True, False] * 2}
    rows |= kto if trainer == "KTO" else {"chosen": ["tips"] * 4, "rejected": ["diet"] * 4}  # type: ignore[arg-type]
    with record(model, steps="1-3", directory=directory / "recorded"):
        test_trl._losses_of(
            *(getattr(trl, f"{trainer}{each}") for each in ("Trainer", "Config")),
            test_trl._batches(run, make), model, tiny_model, directory, rows, **options,
        )  # fmt: skip
    return aligned(directory / "recorded", run.path)


def test_kto_by_trl(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    singles = write_singles(tmp_path / "singles.jsonl", 4 * test_trl.STEPS)
    method = {"stage": "preference", "preference": {"loss": "kto", "desirable_weight": 1.5, "undesirable_weight": 0.5}}
    run = train(**test_trl._asking(method, singles), align={"dump_steps": "1-3"}).run

    def compared(name: str, **changes: Any) -> TrainingComparison:
        model, reference = base_model(tiny_model), base_model(tiny_model)
        options = {"beta": test_trl.BETA, "desirable_weight": 1.5, "undesirable_weight": 0.5, **changes}
        return _by_trl("KTO", run, test_trl._as_kto, model, tiny_model, tmp_path / name, ref_model=reference, **options)

    assert_aligned(compared("honest"), (1, 2, 3))
    # At the start policy and reference are the same: the first loss does not depend on beta.
    assert place_of(compared("beta", beta=0.2)) == ("backward", 1, "backward", "model.norm")
    assert place_of(compared("weight", undesirable_weight=1.0)) == ("forward", 1, "loss", "")


def test_reward_by_trl(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from transformers import AutoConfig, AutoModelForSequenceClassification

    pairs = write_pairs(tmp_path / "pairs.jsonl", 4 * test_trl.STEPS, margins=True)
    method = {"stage": "reward", "reward": {"centring": 0.01}}
    run = train(**test_trl._asking(method, pairs), align={"dump_steps": "1-3"}).run
    config = AutoConfig.from_pretrained(tiny_model, num_labels=1, pad_token_id=0)

    def compared(name: str, centring: float) -> TrainingComparison:
        torch.manual_seed(run.read()["seed"])
        model = AutoModelForSequenceClassification.from_pretrained(tiny_model, config=config, dtype=torch.float32)
        options = {"center_rewards_coefficient": centring}
        return _by_trl("Reward", run, test_trl._as_reward, model, tiny_model, tmp_path / name, **options)

    # All chosen rows come first there, ours alternate.
    assert_aligned(compared("honest", 0.01), (1, 2, 3), warned="data")
    assert place_of(compared("centring", 1.0)) == ("backward", 1, "gradient", EMBEDDING)


def _shard_and_train(run: RunDir, model: Path, directory: Path, edit: Callable[[Any], object]) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sharded = base_model(model)
    edit(sharded)
    for layer in sharded.model.layers:
        fully_shard(layer)
    fully_shard(sharded)
    steps = [of_step[0] for of_step in micro_batches(run, 3, 4)]
    labelled = iter([sum(int((row["labels"][1:] != -100).sum()) for row in rows) for rows in steps])
    with record(sharded, steps="1-3", directory=directory):
        # FSDP divides gradients by the number of ranks.
        bare_loop(sharded, [[rows[dist.get_rank() :: 2]] for rows in steps], lambda *_: next(labelled) / 2)
    dist.destroy_process_group()


def test_tied_embeddings_on_two_ranks_of_fsdp(
    train: Train, on_ranks: Callable[..., None], tiny_model: Path, tmp_path: Path
) -> None:
    run = train(**asking(3)).run

    def compared(name: str, edit: Callable[[Any], object] = lambda model: None) -> TrainingComparison:
        on_ranks(2, partial(_shard_and_train, run, tiny_model, tmp_path / name, edit))
        return aligned(tmp_path / name, run.path)

    def untie(model: Any) -> None:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())

    assert_aligned(compared("honest"), (1, 2, 3))
    untied = compared("untied", untie)
    assert place_of(untied) == ("backward", 1, "gradient", EMBEDDING)
