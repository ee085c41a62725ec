"""Dumps of a training, alone and on several ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ascendtune.core.rundir import RunDir

Rows = dict[tuple[Any, ...], dict[str, Any]]


def read_dump(run: RunDir, step: int, rank: int = 0) -> tuple[dict[str, Any], Rows]:
    lines = (run.dumps / f"step-{step:07d}" / f"rank_{rank}.jsonl").read_text().splitlines()
    header, *rows = map(json.loads, lines)
    assert [row["order"] for row in rows] == list(range(len(rows)))
    by_name = {(row["phase"], row["micro_batch"], row["name"], row["slot"]): row for row in rows}
    assert len(by_name) == len(rows), "a name stands twice"
    return header, by_name


def test_named_steps_are_dumped_and_training_is_the_same(train: Any) -> None:
    # Padded, as a run with dumps is: another layout rounds otherwise on some processors.
    plain = train(optim={"max_steps": 4}, align={"pad": True})
    dumped = train(optim={"max_steps": 4}, align={"dump_steps": "1-2,4"})
    assert dumped.losses() == plain.losses()
    assert not plain.run.dumps.exists()
    assert sorted(each.name for each in dumped.run.dumps.iterdir()) == ["step-0000001", "step-0000002", "step-0000004"]
    header, rows = read_dump(dumped.run, 2)
    assert (header["step"], header["world_size"], header["content"], header["complete"]) == (2, 1, "statistics", True)
    assert {phase for phase, *_ in rows} == {
        "forward", "backward", "loss", "gradient", "parameter_before", "parameter_after",
    }  # fmt: skip
    assert rows["loss", 0, "", "loss"]["mean"] == pytest.approx(dumped.losses()[1], rel=1e-6)
    # The head is fused with the loss: its result never exists.
    assert not any(name == "lm_head" for _, _, name, _ in rows)
    before, after = (read_dump(dumped.run, step)[1] for step in (1, 2))
    name = "model.layers.1.mlp.down_proj.weight"
    assert (
        before["parameter_after", None, name, "parameter"]["hash"]
        == (after["parameter_before", None, name, "parameter"]["hash"])
    )
    assert (
        after["parameter_before", None, name, "parameter"]["hash"]
        != (after["parameter_after", None, name, "parameter"]["hash"])
    )


def test_gradients_are_those_before_clipping(train: Any) -> None:
    run = train(optim={"max_steps": 1, "max_grad_norm": 1e-3}, align={"dump_steps": 1})
    _, rows = read_dump(run.run, 1)
    norms = [row["l2"] for (phase, *_), row in rows.items() if phase == "gradient"]
    assert sum(each**2 for each in norms) ** 0.5 == pytest.approx(run.curve("grad_norm")[0], rel=1e-5)


def test_tensors_are_kept_whole_beside_their_statistics(train: Any) -> None:
    run = train(optim={"max_steps": 1}, align={"dump_steps": 1, "content": "tensors"}).run
    header, rows = read_dump(run, 1)
    tensors = load_file(run.dumps / "step-0000001" / "rank_0.safetensors")
    assert header["content"] == "tensors" and len(tensors) == len(rows)
    for row in rows.values():
        tensor = tensors[str(row["order"])]
        assert list(tensor.shape) == row["shape"] and row["l2"] == pytest.approx(float(tensor.double().norm()))


def test_recomputed_activations_and_lora_are_dumped_once(train: Any) -> None:
    adapter = {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.0}}
    changes = {"optim": {"max_steps": 1}, "align": {"dump_steps": 1}, "batch": {"per_device": 2, "accumulate": 2}}
    _, plain = read_dump(train(**changes, method=adapter).run, 1)
    _, again = read_dump(train(**changes, method=adapter, memory={"gradient_checkpointing": True}).run, 1)
    # Recomputation makes the embeddings' result require a gradient, so more gradients are known.
    assert set(plain) <= set(again) and {key[0] for key in set(again) - set(plain)} <= {"backward"}
    assert [key for key, row in plain.items() if row["hash"] != again[key]["hash"]] == []
    assert {number for _, number, *_ in plain} == {0, 1, None}
    assert ("gradient", None, "model.layers.0.self_attn.q_proj.lora_B.default.weight", "gradient") in plain
    assert not any("base_layer" in name for _, _, name, _ in plain)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_and_parameters_of_two_ranks_equal_those_of_one(
    train: Any, train_on_ranks: Any, strategy: str
) -> None:
    changes = {"optim": {"max_steps": 2}, "align": {"dump_steps": "1-2"}}
    one = train(**changes).run
    two = train_on_ranks(2, **changes, batch={"per_device": 2}, parallel={"strategy": strategy}).run
    for step in (1, 2):
        _, alone = read_dump(one, step)
        header, first = read_dump(two, step)
        assert header["world_size"] == 2
        whole = {key for key in alone if key[1] is None}
        assert whole == {key for key in first if key[1] is None}
        for key in whole:
            assert first[key]["shape"] == alone[key]["shape"]
            # Adam divides small gradients by themselves: rounding moves weights by up to a learning rate.
            assert first[key]["l2"] == pytest.approx(alone[key]["l2"], rel=1e-3, abs=1e-6), key
            if step == 1 and key[0] == "parameter_before":
                assert first[key]["hash"] == alone[key]["hash"]
        # The other rank has its own rows, and under FSDP no whole parameters.
        _, second = read_dump(two, step, rank=1)
        forward = {key for key in first if key[0] == "forward"}
        assert forward == {key for key in second if key[0] == "forward"}
        assert (
            first["forward", 0, "model.norm", "output"]["hash"] != second["forward", 0, "model.norm", "output"]["hash"]
        )
        assert any(key[1] is None for key in second) == (strategy == "ddp")


def test_only_named_ranks_write(train_on_ranks: Any) -> None:
    run = train_on_ranks(2, optim={"max_steps": 1}, align={"dump_steps": 1, "ranks": [1]}).run
    assert [each.name for each in (run.dumps / "step-0000001").iterdir()] == ["rank_1.jsonl"]


def test_torch_generator_is_not_touched(train: Any) -> None:
    adapter = {"tuner": "lora", "lora": {"rank": 4, "dropout": 0.3}}
    changes = {"optim": {"max_steps": 3}, "method": adapter, "memory": {"gradient_checkpointing": True}}
    threads = torch.get_num_threads()
    # Rows that are not packed are padded where steps are dumped; dropout draws for padding, too.
    padded = train(**changes, align={"pad": True}).losses()
    assert padded == train(**changes, align={"dump_steps": "1-3"}).losses()
    assert train(**changes).losses() == train(**changes, align={"dump_steps": "1-3", "pad": False}).losses() != padded
    assert torch.get_num_threads() == threads


def test_hash_of_the_start_depends_on_weights_only(train: Any, train_on_ranks: Any) -> None:
    def start(run: RunDir) -> dict[str, Any]:
        found = json.loads(run.start_weights.read_text())
        assert found["hash"] == run.read()["resolved"]["weights_hash"]
        return dict(found)

    once = {"optim": {"max_steps": 1}}
    alone = start(train(**once).run)
    assert alone["ranks"] == [alone["hash"]] and "model.layers.0.mlp.up_proj.weight" in alone["parameters"]
    assert start(train(**once, model={"dtype": "bf16"}, precision="bf16").run)["hash"] != alone["hash"]
    for strategy in ("ddp", "fsdp"):
        two = start(train_on_ranks(2, **once, batch={"per_device": 2}, parallel={"strategy": strategy}).run)
        assert two == {**alone, "ranks": [alone["hash"]] * 2}
    other = start(train(**once, seed=43, model={"init": "random"}).run)
    assert set(other["parameters"]) == set(alone["parameters"]) and other["hash"] != alone["hash"]


def test_hash_of_the_start_stays_when_a_run_resumes(train: Any) -> None:
    changes = {"optim": {"max_steps": 4}, "checkpoint": {"every_steps": 2, "keep": 5}}
    first = train(**changes).run
    expected = first.start_weights.read_text()
    first.start_weights.unlink()
    train(**changes | {"checkpoint": {"every_steps": 2, "resume": str(first.checkpoint(2))}})
    assert first.start_weights.read_text() == expected
