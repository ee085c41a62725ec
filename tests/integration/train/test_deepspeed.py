"""DeepSpeed ZeRO on CPU gives the numbers of one device, whatever is sharded or offloaded."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integration.train.test_equivalence import SHORT, assert_same
from tests.integration.train.test_experts import model_of
from tests.integration.train.test_fsdp import EXACT, go_on, past_the_experts
from tests.integration.train.test_reference import RowsInOrder, pad

from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import compare_trainings
from ascendtune.check.align.training_record import read_training_record
from ascendtune.core.errors import CheckFailed, MachineError, RecipeError
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.deepspeed_config import zero_config
from ascendtune.recipe.deepspeed_keys import KNOWN
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.size import zero_bytes
from ascendtune.train.phases import Phases
from ascendtune.train.prepare import prepare_run
from ascendtune.train.setup import set_up
from ascendtune.train.strategy.deepspeed import DeepSpeedStrategy, require_accepted

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

# Where it can be imported, accelerate and transformers import it too, in every process and with other results: these
# tests have a process of their own, to which `make test` shows DeepSpeed.
pytest.importorskip("deepspeed", reason="DeepSpeed is shown to a process of its own (make deepspeed-tests)")
from deepspeed.runtime.config import DeepSpeedConfig

LORA: dict[str, Any] = {"method": {"tuner": "lora"}}
DORA: dict[str, Any] = {"method": {"tuner": "lora", "lora": {"dora": True}}}
PACKED: dict[str, Any] = {"data": {"packing": True}, "memory": {"gradient_checkpointing": True}}


def deepspeed(**section: Any) -> dict[str, Any]:
    return {"strategy": "deepspeed", "deepspeed": section}


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        pytest.param({"stage": 0}, {}, marks=pytest.mark.soak),
        pytest.param({"stage": 1}, LORA, marks=pytest.mark.soak),
        ({"stage": 2, "offload_optimizer": "cpu"}, PACKED),
        ({"stage": 3}, LORA),
        pytest.param({"stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"}, PACKED, marks=pytest.mark.soak),
    ],
    ids=["0", "1-lora", "2-offload-packed-recomputed", "3-lora", "3-offload-packed-recomputed"],
)
def test_two_ranks_are_one(train: Train, train_on_ranks: Train, section: Any, changes: dict[str, Any]) -> None:
    dumped = {"optim": SHORT, "align": {"dump_steps": "1-2"}, **changes}
    together = train_on_ranks(2, batch={"per_device": 1, "accumulate": 2}, parallel=deepspeed(**section), **dumped)
    alone = train(batch={"per_device": 4}, **dumped)
    assert_same(together, alone)
    # Gradients are gathered from all ranks and complete; parameters are those in fp32.
    one, other = read_training_record(alone.run.path), read_training_record(together.run.path)
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is None, found.divergence
    assert found.dumps.steps == (1, 2) and {"start", "backward", "update"} <= found.dumps.agreeing
    gradients = [row for row in found.dumps.rows if row.key.phase == "gradient"]
    assert len(gradients) == len(alone.weights())


@pytest.mark.parametrize(
    ("stage", "precision", "optimizer", "each"),
    [
        (2, "bf16", "adamw", 14),
        pytest.param(1, "bf16", "sgd", 6, marks=pytest.mark.soak),
        pytest.param(2, "fp32", "adamw", 16, marks=pytest.mark.soak),
        pytest.param(3, "bf16", "adamw", 12, marks=pytest.mark.soak),
        pytest.param(0, "fp32", "adamw", 12, marks=pytest.mark.soak),
    ],
)
def test_bytes_of_a_checkpoint_are_those_that_the_engine_writes(
    train_on_ranks: Train, stage: int, precision: str, optimizer: str, each: int
) -> None:
    run = train_on_ranks(
        2, precision=precision, optim={**SHORT, "optimizer": optimizer}, parallel=deepspeed(stage=stage),
        checkpoint={"every_steps": 1, "keep": 1},
    )  # fmt: skip
    parameters = sum(weight.numel() for weight in run.weights().values())
    recipe = Recipe.load(run.run.recipe)
    assert zero_bytes(recipe.optim, stage, 2 if precision == "bf16" else 4) == each
    [step] = run.run.checkpoint_steps()
    written = sum(file.stat().st_size for file in run.run.checkpoint(step).rglob("*") if file.is_file())
    # Beside the numbers there are names, shapes, and a program of DeepSpeed's.
    assert 0 < written - each * parameters < parameters


@pytest.mark.parametrize(
    ("stage", "method"),
    [pytest.param(2, {}, marks=pytest.mark.soak), pytest.param(3, {}, marks=pytest.mark.soak), (3, DORA)],
)
def test_a_run_continues_bit_by_bit(train_on_ranks: Train, stage: int, method: dict[str, Any]) -> None:
    changes: dict[str, Any] = {
        "optim": {"max_steps": 5, "learning_rate": 0.01},
        "batch": {"per_device": 2},
        "checkpoint": {"every_steps": 2, "keep": 9, "resume": "auto"},
        "memory": {"gradient_checkpointing": True},
        "parallel": deepspeed(stage=stage),
        **method,
    }
    trained = train_on_ranks(2, **changes)
    before, weights = list(trained.run.read_metrics()), trained.weights()
    go_on(trained, partial(train_on_ranks, 2, **changes))
    after = list(trained.run.read_metrics())
    assert [[each[key] for key in EXACT] for each in after] == [[each[key] for key in EXACT] for each in before]
    assert all(torch.equal(weight, weights[name]) for name, weight in trained.weights().items())


@pytest.mark.parametrize("stage", [2, 3])
def test_ranks_whose_tokens_all_go_past_the_experts_train_along(
    train: Train, train_on_ranks: Train, tiny_model: Path, tmp_path: Path, stage: int
) -> None:
    changes = past_the_experts(tiny_model, tmp_path)
    together = train_on_ranks(4, batch={"per_device": 1}, parallel=deepspeed(stage=stage), **changes)
    assert_same(together, train(batch={"per_device": 4}, **changes))


def test_adapters_of_stacked_experts_alone_train_with_zero_3(
    train: Train, train_on_ranks: Train, variant: Callable[..., Path]
) -> None:
    """The inputs of the experts of the first block need no gradient."""
    changes: dict[str, Any] = {
        "model": {"path": str(variant(model_of("Qwen3MoeConfig", {"num_experts": 6}).config))},
        "method": {"tuner": "lora", "lora": {"rank": 3, "target": ["experts.down_proj"]}},
        "optim": SHORT,
    }
    together = train_on_ranks(2, batch={"per_device": 1}, parallel=deepspeed(stage=3), **changes)
    assert_same(together, train(batch={"per_device": 2}, **changes))


def test_a_checkpoint_is_read_by_deepspeed_on_as_many_ranks_only(train_on_ranks: Train) -> None:
    changes: dict[str, Any] = {
        "optim": {"max_steps": 3},
        "checkpoint": {"every_steps": 2, "resume": "auto"},
        **LORA,
    }
    run = train_on_ranks(2, **changes, parallel=deepspeed(stage=1)).run
    shutil.rmtree(run.model)
    run.update(state="running")
    for other, code in (
        (deepspeed(stage=1), "checkpoint-ranks-differ"),
        ({}, "checkpoint-form-differs"),
        (deepspeed(stage=3), "checkpoint-form-differs"),
        (deepspeed(stage=0), "checkpoint-form-differs"),
    ):
        with pytest.raises(AssertionError):
            train_on_ranks(1, **changes, parallel=other)
        assert run.read()["exit_cause"]["code"] == code


def test_a_checkpoint_of_other_groups_is_refused(train_on_ranks: Train, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    changes: dict[str, Any] = {
        "optim": {"max_steps": 2},
        "checkpoint": {"every_steps": 1, "resume": "auto"},
        "parallel": deepspeed(config=str(path)),
    }
    path.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    run = train_on_ranks(1, **changes).run
    shutil.rmtree(run.model)
    run.update(state="running")
    path.write_text(json.dumps({"zero_optimization": {"stage": 3, "sub_group_size": 1000}}))
    with pytest.raises(AssertionError):
        train_on_ranks(1, **changes)
    assert run.read()["exit_cause"]["code"] == "checkpoint-form-differs"


@pytest.mark.soak
def test_the_best_checkpoint_is_exported(train: Train, train_on_ranks: Train, other_rows: Path) -> None:
    """Ten rows in micro-batches of four for two ranks: one of them has nothing to evaluate at the end."""
    changes: dict[str, Any] = {
        "data": {"eval": str(other_rows)},
        # Rises until the weights are thrown about.
        "optim": {"max_steps": 8, "learning_rate": 0.3, "warmup_steps": 8, "max_grad_norm": None},
        "eval": {"every_steps": 1},
        "checkpoint": {"best": True, "keep": 1, "every_steps": 3},
    }
    together = train_on_ranks(2, batch={"per_device": 2}, parallel=deepspeed(stage=3), **changes)
    alone = train(**changes)
    best = [min(each.evaluations(), key=lambda record: record["loss"])["step"] for each in (together, alone)]
    assert 1 < best[0] == best[1] < 8
    for name, weight in together.weights().items():
        torch.testing.assert_close(weight, alone.weights()[name], rtol=1e-3, atol=1e-3)


def test_one_process_in_bf16_keeps_fp32_weights(train: Train, train_on_ranks: Train) -> None:
    optim = {**SHORT, "max_steps": 10}
    found = train_on_ranks(1, optim=optim, precision="bf16", parallel=deepspeed(stage=2))
    # Weights are rounded to bf16 as well, beside fp32 ones that learn.
    assert found.losses() == pytest.approx(train(optim=optim).losses(), rel=1e-2)
    assert {weight.dtype for weight in found.weights().values()} == {torch.float32}


def test_own_deepspeed_json_gives_the_curve_of_one_device(train: Train, train_on_ranks: Train, tmp_path: Path) -> None:
    config = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
    }
    path = tmp_path / "ds_z3_config.json"
    path.write_text(json.dumps(config))
    assert_same(train_on_ranks(1, optim=SHORT, parallel=deepspeed(config=str(path))), train(optim=SHORT))


def test_order_of_gradients_does_not_mix_the_weights(train: Train, train_on_ranks: Train, tmp_path: Path) -> None:
    """LLaMA-Factory's own files of stage 2 have the key."""
    path = tmp_path / "ds_z2_config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2, "round_robin_gradients": True}}))
    own = {"batch": {"per_device": 2}, "parallel": deepspeed(config=str(path))}
    assert_same(train_on_ranks(2, optim=SHORT, **own), train(optim=SHORT))


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"stage": 2, "overlap_com": True}},
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pinmemory": True}}},
        {"zero_optimization": {"stage": 3, "mics_shard_size": 2}},
        {"fp16": {"loss_scales": 128}},
        {"communication_data_type": "f32"},
        {"checkpoint": 7},
    ],
    ids=str,
)
def test_deepspeeds_refusal_is_an_error_of_the_recipe(
    recipe: Callable[..., Recipe], tmp_path: Path, config: dict[str, Any]
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    asked = recipe(parallel=deepspeed(config=str(path)))
    passed = zero_config(asked, compute=None, ranks=None, hidden_size=None)
    with pytest.raises(RecipeError) as raised:
        require_accepted(passed, asked)
    assert raised.value.code == "deepspeed-config-refused" and raised.value.where == str(path)


@pytest.mark.parametrize(
    "config",
    [{"gradient_predivide_factor": 2.0}, {"comet": {"enabled": True}}],
    ids=["refused", "package that is absent"],
)
def test_a_fault_that_deepspeeds_engine_finds_is_an_error_of_the_recipe(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], tmp_path: Path, config: dict[str, Any]
) -> None:
    """It finds some faults only where it makes its engine."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2}, **config}))
    asked = recipe(optim={"max_steps": 1}, parallel=deepspeed(config=str(path)))
    on_ranks(1, partial(_train_with_what_deepspeed_cannot, asked))


def _train_with_what_deepspeed_cannot(asked: Recipe) -> None:
    start = prepare_run(asked, {})
    assert start.run is not None
    with closing(DeepSpeedStrategy(find_device(), asked)) as strategy, pytest.raises(RecipeError) as raised:
        set_up(start.run, start.run.read(), asked, strategy, start.prepared, Phases(None), ExitStack())
    assert raised.value.code == "deepspeed-config-refused"


def test_keys_of_a_json_that_are_known_are_those_that_deepspeed_reads() -> None:
    """A key of a new version of DeepSpeed must be decided on here."""
    read: set[str] = set()

    class Reading(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            read.add(key)
            return super().get(key, default)

        def __contains__(self, key: object) -> bool:
            read.add(str(key))
            return super().__contains__(key)

        def keys(self) -> Any:
            return self

        def __copy__(self) -> Reading:
            return self

    DeepSpeedConfig(Reading(train_micro_batch_size_per_gpu=1, train_batch_size=1))
    assert "tensorboard" in read and "nebula" in read
    assert sorted(read - KNOWN[""]) == []


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.soak), 2, 3])
def test_a_step_that_is_not_a_number_leaves_the_weights(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], stage: int
) -> None:
    asked = recipe(optim={"max_steps": 2}, parallel=deepspeed(stage=stage))
    on_ranks(1, partial(_train_on_what_is_not_a_number, asked))


def _train_on_what_is_not_a_number(asked: Recipe) -> None:
    start = prepare_run(asked, {})
    assert start.run is not None
    with closing(DeepSpeedStrategy(find_device(), asked)) as strategy:
        loop = set_up(start.run, start.run.read(), asked, strategy, start.prepared, Phases(None), ExitStack())
        loop.recorder.callbacks.clear()
        parameters = list(loop.objective.parameters())
        before = [strategy.full_param(each) for each in parameters]
        loop.objective.get_submodule("model.model.norm").register_forward_hook(lambda *it: it[-1] * math.nan)
        with pytest.raises(CheckFailed, match=r"gradient norm (inf|nan): not a number"):
            loop.run()
        assert all(
            torch.equal(strategy.full_param(each), weight) for each, weight in zip(parameters, before, strict=True)
        )


def test_a_disk_that_is_full_at_any_file(
    recipe: Callable[..., Recipe], on_ranks: Callable[..., None], disk: Callable[..., Path]
) -> None:
    place = disk("size=60m,nr_inodes=100")
    asked = recipe(run_dir=str(place / "run"), optim={"max_steps": 1}, parallel=deepspeed(stage=2))
    on_ranks(1, partial(_save_on_a_full_disk, asked, place))


def _save_on_a_full_disk(asked: Recipe, place: Path) -> None:
    start = prepare_run(asked, {})
    assert start.run is not None
    with closing(DeepSpeedStrategy(find_device(), asked)) as strategy:
        loop = set_up(start.run, start.run.read(), asked, strategy, start.prepared, Phases(None), ExitStack())
        loop.recorder.callbacks.clear()
        loop.run()
        checkpointer = loop.checkpointer
        ballast = place / "ballast"
        # A checkpoint has eight files and directories.
        for step, left in enumerate(range(8), 1):
            ballast.mkdir()
            while os.statvfs(place).f_ffree > left:
                (ballast / str(os.statvfs(place).f_ffree)).touch()
            with pytest.raises(MachineError, match="the disk is full while writing"):
                checkpointer.save(step, {})
                checkpointer.wait()
            shutil.rmtree(ballast)
            assert not start.run.checkpoint_steps()
        checkpointer.save(9, {})
        checkpointer.wait()
        assert start.run.checkpoint_steps() == [9]


def test_other_strategies_leave_it_alone(recipe: Callable[..., Recipe]) -> None:
    """Saving a model imports it, and it speaks to stdout by itself."""
    run = prepare_run(recipe(optim={"max_steps": 1}), {}).run
    assert run is not None
    worker = [sys.executable, "-m", "ascendtune.train.worker", run.path]
    ended = subprocess.run(worker, capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout == "" and "DeepSpeed" not in ended.stderr and "accelerator" not in ended.stderr


SCRIPT = """
import json, sys
import deepspeed, torch, torch.distributed as dist
from transformers import AutoModelForCausalLM

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
path, stage, accumulate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
deepspeed.init_distributed("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
groups = [{"params": [each for each in model.parameters() if (each.ndim > 1) == is_matrix], "weight_decay": decay}
          for is_matrix, decay in ((True, 0.1), (False, 0.0))]
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config={
    "train_micro_batch_size_per_gpu": 2 // accumulate, "gradient_accumulation_steps": accumulate,
    "gradient_clipping": 1.0, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
})
if sys.argv[4:]:
    engine.load_checkpoint("checkpoints")
for batch in json.load(open("batches.json"))[engine.global_steps:]:
    count = sum(each != -100 for row in batch["labels"] for each in row[1:])
    own = {key: torch.tensor(rows).chunk(world)[rank] for key, rows in batch.items()}
    for at in range(accumulate):
        part = {key: rows.chunk(accumulate)[at] for key, rows in own.items()}
        labels = part.pop("labels")[:, 1:].flatten()
        logits = engine(**part).logits[:, :-1].flatten(0, 1)
        engine.backward(torch.nn.functional.cross_entropy(logits, labels, reduction="sum") * world * accumulate / count)
        engine.step()
    if engine.global_steps == 2 and not sys.argv[4:]:
        engine.save_checkpoint("checkpoints")
dist.destroy_process_group()
"""


def record(directory: Path, model: Path, stage: int, accumulate: int, *words: str, resumes: bool = False) -> None:
    """Record SCRIPT on two ranks into `directory`/recorded; it reads batches.json."""
    (directory / "script.py").write_text(SCRIPT)
    option = ["--resume"] if resumes else []
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "ascendtune", "align", "record", "--steps", "1-3", *option, "--"),
            *(sys.executable, "-m", *launcher, str(model), str(stage), str(accumulate), *words),
        ],
        cwd=directory, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def write_batches(directory: Path, rows: RowsInOrder) -> None:
    """Four rows for each of three steps."""
    batches = [pad([rows[step * 4 + at] for at in range(4)]) for step in range(3)]
    (directory / "batches.json").write_text(
        json.dumps([{key: each.tolist() for key, each in batch.items()} for batch in batches])
    )


@pytest.mark.parametrize(
    ("stage", "accumulate"),
    [
        pytest.param(0, 1, marks=pytest.mark.soak),
        (2, 2),
        pytest.param(3, 1, marks=pytest.mark.soak),
    ],
)
def test_recorded_engine_is_aligned_with_ours(
    train: Train, tiny_model: Path, tmp_path: Path, stage: int, accumulate: int
) -> None:
    optim = {"max_steps": 3, "learning_rate": 1e-3, "scheduler": "constant", "weight_decay": 0.1}
    run = train(optim=optim, align={"dump_steps": "1-3"}).run
    write_batches(tmp_path, RowsInOrder(run))
    record(tmp_path, tiny_model, stage, accumulate)
    one, other = read_training_record(run.path), read_training_record(tmp_path / "recorded")
    found = compare_trainings(one, other, expected_noise(one, other))
    assert found.divergence is None, found.divergence
    assert found.dumps.steps == (1, 2, 3) and {"start", "backward", "update"} <= found.dumps.agreeing
    phases = [row.key.phase for row in found.dumps.rows]
    assert phases.count("gradient") == phases.count("parameter_after") == len(one.start_weights["parameters"])


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.soak), 2, pytest.param(3, marks=pytest.mark.soak)])
def test_resumed_engine_continues_with_its_recording(
    train: Train, tiny_model: Path, tmp_path: Path, stage: int
) -> None:
    write_batches(tmp_path, RowsInOrder(train(optim={"max_steps": 3}).run))
    record(tmp_path, tiny_model, stage, 1)
    files = ["metrics.jsonl", *(f"dump/step-0000003/rank_{rank}.jsonl" for rank in range(2))]
    expected = [(tmp_path / "recorded" / file).read_text() for file in files]
    record(tmp_path, tiny_model, stage, 1, "resumed", resumes=True)
    assert [(tmp_path / "recorded" / file).read_text() for file in files] == expected
    assert json.loads((tmp_path / "recorded" / "recorded.json").read_text())["resumed_at"] == [3]
