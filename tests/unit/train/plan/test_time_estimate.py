"""The time of a run, against written-out sums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.flops import ModelFlops, Passes
from ascendtune.train.plan.count_work import count_work
from ascendtune.train.plan.device_table import Speed
from ascendtune.train.plan.history import Features, PastRun, new_run, tuner_of
from ascendtune.train.plan.offload import Offload
from ascendtune.train.plan.request import DocumentSize, Target
from ascendtune.train.plan.rows import steps_of_full_rows
from ascendtune.train.plan.time_estimate import (
    TimeEstimate,
    TimeRange,
    communication,
    estimate_time,
    features_of,
    gloo_bytes,
)
from ascendtune.train.plan.training_choices import TrainingChoices
from ascendtune.train.plan.work import Steps, Transfer, Work

_FLOPS = ModelFlops(Passes(2e6, 4e6, 2e6), Passes(1e6, 2e6), ((None, Passes(10.0, 20.0, 10.0)),), True)
_WORK = Work(_FLOPS, (), 8_000_000, 300, 100, "bf16", "llama")
_STEPS = Steps(100, 4000.0, 1000.0, {100: 40}, 0.2, 0.5)
_SPEED = Speed(flops=1e12, memory=1e9, link=1e9, power=100.0)
_FEATURES = Features("llama", 1_000_000, 1_000_000, "sft", "full", "bf16", "single", False, 5000, 1)
_TARGET = Target("cuda", "card", 2**30, 1)
_PAIRS = 40 * 100 * 101 / 2
_COMPUTED = 8e6 * 5000 + 3e6 * 1000 + 40 * _PAIRS
_USEFUL = 6e6 * 4000 + 3e6 * 1000 + 30 * _PAIRS


def _recipe(**keys: Any) -> Recipe:
    return Recipe.check({"model": {"path": "x"}, "data": {"train": [{"path": "x.jsonl"}]}, **keys})


def _estimate(
    work: Work = _WORK,
    target: Target = _TARGET,
    speed: Speed = _SPEED,
    features: Features = _FEATURES,
    history: Sequence[PastRun] = (),
    *,
    steps: Steps = _STEPS,
    network: float | None = None,
    **keys: Any,
) -> TimeEstimate:
    found = estimate_time(
        work, steps, _recipe(**keys), target, replace(speed, network=network), features, history
    )  # fmt: skip
    assert isinstance(found, TimeEstimate), found
    return found


_MODEL = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
_BLOCKS = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 176 + 2 * 64)
_ALL = 2 * 512 * 64 + _BLOCKS + 64


def _work(directory: Path, ranks: int = 1, vocabulary: int = 0, new_tokens: Sequence[str] = (), **keys: Any) -> Work:
    (directory / "config.json").write_text(json.dumps(_MODEL))
    recipe = _recipe(**{"precision": "fp32", **keys, "model": {"path": str(directory), "new_tokens": list(new_tokens)}})
    return count_work(TrainingChoices.of(recipe, directory, CpuDevice(), ranks=ranks, vocabulary=vocabulary, pad_id=0))


def test_step_is_computation_at_the_assumed_share_and_the_update() -> None:
    found = _estimate()
    update = 8e6 / (1e9 * 0.8)
    assert found.step_seconds.expected == pytest.approx(_COMPUTED / (0.45 * 1e12) + update)
    assert found.step_seconds.low == pytest.approx(_COMPUTED / (0.55 * 1e12) + update)
    assert found.step_seconds.high == pytest.approx(_COMPUTED / (0.35 * 1e12) + update)
    assert found.mfu == pytest.approx(_USEFUL / found.step_seconds.expected / 1e12)
    assert found.tokens_per_second == pytest.approx(4000 / found.step_seconds.expected)
    assert "assumption" in found.basis


def test_run_is_its_steps_with_energy_and_disk() -> None:
    found = _estimate(checkpoint={"keep": 3})
    assert found.seconds is not None
    assert found.seconds.expected == pytest.approx(100 * found.step_seconds.expected)
    assert found.energy_joules == pytest.approx(100 * found.seconds.expected)
    # One after every 20 of 100 steps: while the last one is written three still stand.
    assert found.disk_bytes == 4 * 300 + 100
    # After step 60 and the last one.
    assert _estimate(checkpoint={"every_steps": 60}).disk_bytes == 2 * 300 + 100
    assert _estimate(checkpoint={"every_steps": 101}).disk_bytes == 100


@pytest.mark.parametrize(
    ("keep", "every", "evaluates", "written"),
    # Of 100 steps in 2 epochs: 60 and the last one; 50 and the last one; 40, 60, 80 and the last one.
    [(9, 60, 100, 2), (9, 100, None, 2), (9, 60, 40, 4), (2, 60, 40, 4), (9, 20, 20, 5)],
)
def test_best_checkpoints_of_evaluations_take_space(keep: int, every: int, evaluates: int | None, written: int) -> None:
    found = _estimate(
        steps=replace(_STEPS, per_epoch=50),
        data={"train": "x.jsonl", "eval_rows": 3},
        eval={"every_steps": evaluates},
        checkpoint={"keep": keep, "every_steps": every, "best": True},
    )
    assert found.disk_bytes == written * 300 + 100


def test_checkpoint_of_deepspeed_has_the_weights_of_the_engine_too(tmp_path: Path) -> None:
    zero = {"strategy": "deepspeed", "deepspeed": {"stage": 2}}
    assert _work(tmp_path, ranks=2, parallel=zero).checkpoint_bytes == (4 + 12) * _ALL
    assert _work(tmp_path, ranks=2, parallel=zero, precision="bf16").checkpoint_bytes == (2 + 12) * _ALL
    assert _work(tmp_path, ranks=2, parallel={"strategy": "fsdp"}).checkpoint_bytes == 12 * _ALL


def test_adapter_takes_its_grown_tables_along(tmp_path: Path) -> None:
    lora = {"method": {"tuner": "lora", "lora": {"rank": 4}}}
    work, grown = (_work(tmp_path, vocabulary=each, new_tokens=["<moon>"], **lora) for each in (0, 600))
    alone = _work(tmp_path, **lora)
    adapters = 3 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 176))
    assert alone.model_bytes == 4 * adapters and alone.checkpoint_bytes == 3 * 4 * adapters
    assert work.model_bytes == 4 * (adapters + 2 * 512 * 64)
    assert grown.model_bytes == 4 * (adapters + 2 * 600 * 64)
    assert grown.checkpoint_bytes == alone.checkpoint_bytes


def test_the_reference_model_answers_once_before_the_steps() -> None:
    found, without = _estimate(method={"stage": "preference"}), _estimate()
    assert found.seconds is not None and without.seconds is not None
    forward = (2e6 + 10.0) / (8e6 + 40.0) * 0.5 * 100 * without.step_seconds.expected
    assert found.seconds.expected - without.seconds.expected == pytest.approx(forward)


def test_past_runs_replace_the_assumption() -> None:
    past = new_run(
        "card", "cuda", _FEATURES, flops_per_second=2e11, step_seconds=1.0, predicted_seconds=None, peak_bytes=None,
        predicted_bytes=None,
    )  # fmt: skip
    found = _estimate(history=[past])
    assert found.step_seconds.expected == pytest.approx(_COMPUTED / 2e11)
    assert "1 past run" in found.basis and found.parts == {"compute": found.step_seconds.expected}


def test_an_unknown_device_gives_a_reason_and_no_time() -> None:
    found = estimate_time(_WORK, _STEPS, _recipe(), _TARGET, Speed(), _FEATURES)
    assert isinstance(found, str) and "--tflops" in found and "speed in bf16" in found


def test_time_of_a_run_is_unknown_without_its_steps() -> None:
    found = _estimate(steps=replace(_STEPS, steps=None))
    assert (found.seconds, found.energy_joules, found.tokens) == (None, None, None)


def _ranks(number: int, *, nodes: int = 1) -> Target:
    return replace(_TARGET, devices=number, nodes=nodes)


_ALL_REDUCE = Transfer("all_reduce", (8_000_000,), of_micro_batch=False, in_forward=False)
_GATHER = Transfer("all_gather", (4_000_000,), of_micro_batch=True, in_forward=True)


def test_bytes_on_the_link_are_those_of_nccl_tests() -> None:
    assert _ALL_REDUCE.bus_bytes(4) == 2 * 3 / 4 * 8_000_000
    assert _GATHER.bus_bytes(4) == 3 / 4 * 4_000_000


def test_gathering_is_done_for_each_micro_batch_and_reducing_once_a_step() -> None:
    work = replace(_WORK, transfers=(_ALL_REDUCE, _GATHER))
    found = communication(work, _recipe(batch={"accumulate": 3}), _ranks(4), _SPEED)
    assert found is not None
    assert found.in_backward == pytest.approx(12e6 / 0.7e9)
    assert found.in_both == pytest.approx(3 * 3e6 / 0.7e9)


_MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "calls", "bytes_of_all_reduce"),
    [
        ("all_reduce", (8 * _MIB,), 8 * _MIB + 0.8e6),
        ("all_reduce", (64 * _MIB,), 64 * _MIB + 0.8e6),
        ("all_gather", (24 * _MIB,), 1.7 * 12 * _MIB + 0.8e6),
        ("all_gather", (32 * _MIB,), 1.7 * 16 * _MIB + 0.8 * 32 * _MIB + 0.8e6),
        ("reduce_scatter", (24 * _MIB, 8 * _MIB), 3.1 * 16 * _MIB + 1.6e6),
        ("reduce_scatter", (24 * _MIB, 64 * _MIB), 3.1 * 44 * _MIB + 0.8 * 64 * _MIB + 1.6e6),
    ],
)
def test_gloo_copies_what_it_gathers_and_takes_large_copies_anew(
    name: str, calls: tuple[int, ...], bytes_of_all_reduce: float
) -> None:
    transfer = Transfer(name, calls, of_micro_batch=False, in_forward=False)
    assert gloo_bytes(transfer, 2) == pytest.approx(bytes_of_all_reduce)
    found = communication(replace(_WORK, transfers=(transfer,)), _recipe(), Target("cpu", "host", 2**30, 2), _SPEED)
    # The link of a host is measured: no share of it is taken.
    assert found is not None and found.total == pytest.approx(bytes_of_all_reduce / 1e9)


def test_a_mesh_sends_to_all_others_at_once_and_nodes_over_the_network() -> None:
    work, recipe = replace(_WORK, transfers=(_ALL_REDUCE,)), _recipe()
    mesh = communication(work, recipe, _ranks(4), replace(_SPEED, link_is_mesh=True))
    alone = communication(work, recipe, _ranks(4), _SPEED)
    nodes = communication(work, recipe, _ranks(4, nodes=2), replace(_SPEED, network=1e8))
    assert mesh is not None and alone is not None and nodes is not None
    assert mesh.total == pytest.approx(alone.total / 3)
    # Two rings of two devices on each node: over the network each sends half of the bytes.
    assert nodes.total == pytest.approx(10 / 2 * alone.total)
    assert communication(work, recipe, _ranks(4, nodes=2), _SPEED) is None
    assert communication(work, recipe, _ranks(4), replace(_SPEED, link=None)) is None


def test_expected_time_hides_what_fits_beside_computation_and_the_high_one_nothing() -> None:
    target, features = replace(_TARGET, devices=2), replace(_FEATURES, ranks=2, strategy="ddp")
    without = _estimate(target=target, features=features)
    small = replace(_WORK, transfers=(replace(_ALL_REDUCE, calls=(1000,)),))
    found = _estimate(work=small, target=target, features=features)
    assert found.parts["exposed"] == 0
    assert found.step_seconds.expected == pytest.approx(without.step_seconds.expected)
    assert found.step_seconds.high - without.step_seconds.high == pytest.approx(found.parts["communication"])
    large = replace(_WORK, transfers=(replace(_ALL_REDUCE, calls=(10**9,)),))
    found = _estimate(work=large, target=target, features=features)
    backward = (4e6 + 2e6) / 8e6 * found.parts["compute"]
    assert found.parts["communication"] - found.parts["exposed"] == pytest.approx(0.9 * backward)


def test_small_micro_batches_on_an_accelerator_are_said_to_lack_the_time_of_launches() -> None:
    def is_said(**changes: Any) -> bool:
        return any("launches" in note for note in _estimate(**changes).notes)

    # 0.12 s of computation in one micro-batch, 0.03 s in each of four.
    assert not is_said()
    assert is_said(batch={"accumulate": 4})
    assert not is_said(batch={"accumulate": 4}, target=replace(_TARGET, kind="cpu"))


_OFFLOAD = Offload(copied_of_micro_batch=2_100_000, copied_of_step=700_000, updated=7_500_000_000)
_HOST_LINK = replace(_SPEED, host_link=1e7)


def test_offloading_adds_copies_that_computation_does_not_hide_and_the_update_on_the_host() -> None:
    plain, found = _estimate(), _estimate(work=replace(_WORK, offload=_OFFLOAD), speed=_HOST_LINK)
    # 0.7 of the link is taken; two ranks of a host share its memory, of which 75 GB/s are expected.
    of_micro_batch, of_step, update = 2.1e6 / 7e6, 0.7e6 / 7e6, 7.5e9 / 75e9
    hidden = 0.9 * plain.parts["compute"]
    added = of_micro_batch - hidden + of_step + update
    assert found.step_seconds.expected == pytest.approx(plain.step_seconds.expected + added)
    assert found.step_seconds.high == pytest.approx(plain.step_seconds.high + of_micro_batch + of_step + 7.5e9 / 40e9)
    assert found.step_seconds.low == pytest.approx(plain.step_seconds.low + 7.5e9 / 150e9)
    assert found.parts["host_copies"] == pytest.approx(of_micro_batch + of_step)
    assert found.parts["host_update"] == pytest.approx(update)
    two = _estimate(work=replace(_WORK, offload=_OFFLOAD), speed=_HOST_LINK, target=replace(_TARGET, devices=2))
    assert two.parts["host_update"] == pytest.approx(2 * update)
    apart = replace(_TARGET, devices=2, nodes=2)
    of_two_hosts = _estimate(work=replace(_WORK, offload=_OFFLOAD), speed=_HOST_LINK, target=apart)
    assert of_two_hosts.parts["host_update"] == pytest.approx(update)
    four = _estimate(work=replace(_WORK, offload=_OFFLOAD), speed=_HOST_LINK, batch={"accumulate": 4})
    assert four.parts["host_copies"] == pytest.approx(4 * of_micro_batch + of_step)


def test_uncounted_costs_of_offloading_are_noted() -> None:
    def notes(offload: Offload, **changes: Any) -> str:
        return "\n".join(_estimate(work=replace(_WORK, offload=offload), **changes).notes)

    assert "between host and device is not public" in notes(_OFFLOAD)
    assert "not public: copies" not in notes(_OFFLOAD, speed=_HOST_LINK)
    assert "copies of activations" in notes(Offload(activations=True))
    assert "reading and writing 7.6 MiB on the disk" in notes(Offload(on_disk=8_000_000))
    assert "offloading" not in notes(_OFFLOAD, target=replace(_TARGET, kind="cpu"))


def test_fsdp_copies_its_shard_to_the_device_for_each_gather_and_gradients_back(tmp_path: Path) -> None:
    keys = {"parallel": {"strategy": "fsdp", "fsdp": {"offload": True}}}
    found = _work(tmp_path, 2, **keys)
    assert found.offload == Offload(copied_of_micro_batch=3 * 4 * _ALL // 2, updated=10 * 4 * _ALL // 2)
    assert found.updated_bytes == 0
    kept = {"parallel": {"strategy": "fsdp", "fsdp": {"offload": True, "reshard": False}}}
    assert _work(tmp_path, 2, **kept).offload == replace(found.offload, copied_of_micro_batch=2 * 4 * _ALL // 2)
    of_step = {"strategy": "fsdp", "fsdp": {"offload": True, "sync_each_batch": False}}
    assert _work(tmp_path, 2, parallel=of_step, batch={"accumulate": 4}).offload == replace(
        found.offload, copied_of_micro_batch=2 * 4 * _ALL // 2, copied_of_step=4 * _ALL // 2
    )
    assert _work(tmp_path, 2, parallel={"strategy": "fsdp"}).offload is None
    with_activations = _work(tmp_path, 2, **keys, memory={"offload_activations": True})
    assert with_activations.offload == replace(found.offload, activations=True)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"stage": 3}, None),
        (
            {"stage": 2, "offload_optimizer": "cpu"},
            Offload(copied_of_micro_batch=2 * _ALL, copied_of_step=2 * _ALL, updated=10 * 2 * _ALL),
        ),
        (
            {"stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
            Offload(copied_of_micro_batch=6 * _ALL, copied_of_step=2 * _ALL, updated=10 * 2 * _ALL),
        ),
        (
            {"stage": 3, "offload_optimizer": "nvme", "nvme_path": "disk"},
            Offload(
                copied_of_micro_batch=2 * _ALL, copied_of_step=2 * _ALL, updated=10 * 2 * _ALL, on_disk=2 * 3 * 2 * _ALL
            ),
        ),
    ],
)
def test_zero_copies_gradients_and_weights_of_a_rank(
    tmp_path: Path, keys: dict[str, Any], expected: Offload | None
) -> None:
    """fp32 on two ranks: 4 bytes a weight, half of the weights a rank."""
    found = _work(tmp_path, 2, parallel={"strategy": "deepspeed", "deepspeed": keys})
    assert found.offload == expected
    assert found.updated_bytes == (0 if expected else 10 * 2 * _ALL)


@pytest.mark.parametrize(("device", "offloads"), [("cpu", True), ("none", False), (None, False)])
def test_work_knows_what_a_deepspeed_json_offloads(tmp_path: Path, device: str | None, *, offloads: bool) -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": device}} if device else {"stage": 2}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": zero}))
    parallel = {"strategy": "deepspeed", "deepspeed": {"config": str(file)}}
    assert (_work(tmp_path, 2, parallel=parallel).offload is not None) == offloads


def test_communication_over_unknown_links_is_said_not_to_count() -> None:
    work, target = replace(_WORK, transfers=(_ALL_REDUCE,)), replace(_TARGET, devices=2)
    found = _estimate(work=work, target=target, speed=replace(_SPEED, link=None, memory=None))
    assert "--link" in found.notes[-1]
    found = _estimate(work=work, target=replace(target, nodes=2))
    assert any("--network" in each for each in found.notes)


def test_adamw_moves_each_trained_weight_ten_times(tmp_path: Path) -> None:
    assert _work(tmp_path).updated_bytes == 10 * 4 * _ALL
    assert _work(tmp_path, optim={"optimizer": "sgd", "max_grad_norm": None}).updated_bytes == 3 * 4 * _ALL
    assert _work(tmp_path).checkpoint_bytes == 3 * 4 * _ALL


def test_strategies_send_gradients_or_gather_weights(tmp_path: Path) -> None:
    (reduced,) = _work(tmp_path, 2, parallel={"strategy": "ddp"}).transfers
    assert (reduced.name, reduced.size_bytes, reduced.of_micro_batch) == ("all_reduce", 4 * _ALL, False)
    assert len(reduced.calls) == 1
    gathered, scattered = _work(tmp_path, 2, parallel={"strategy": "fsdp"}).transfers
    assert (gathered.name, gathered.size_bytes) == ("all_gather", 4 * (2 * _BLOCKS + _ALL - _BLOCKS))
    assert (scattered.name, scattered.size_bytes) == ("reduce_scatter", 4 * _ALL)
    # A call for each of three blocks, in each direction, and one for what lies outside.
    outside = _ALL - _BLOCKS
    assert gathered.calls == (*6 * (4 * _BLOCKS // 3,), 4 * outside)
    assert scattered.calls == (*3 * (4 * _BLOCKS // 3,), 4 * outside)
    kept, _ = _work(tmp_path, 2, parallel={"strategy": "fsdp", "fsdp": {"reshard": False}}).transfers
    assert kept.size_bytes == 4 * _ALL


def test_copies_gather_among_their_ranks_and_sum_gradients_over_copies(tmp_path: Path) -> None:
    parallel = {"strategy": "fsdp", "fsdp": {"replicas": 2}, "reduce_dtype": "bf16"}
    gathered, scattered, summed = _work(tmp_path, 8, parallel=parallel).transfers
    assert (gathered.ranks, scattered.ranks, summed.ranks) == (4, 4, 2)
    assert (scattered.size_bytes, summed.name, summed.size_bytes) == (2 * _ALL, "all_reduce", 2 * _ALL // 4)
    assert summed.bus_bytes(8) == summed.size_bytes and scattered.bus_bytes(8) == 0.75 * scattered.size_bytes


def test_only_the_sum_over_copies_takes_the_network(tmp_path: Path) -> None:
    recipe, speed = _recipe(), _SPEED
    work = _work(tmp_path, 8, parallel={"strategy": "fsdp", "fsdp": {"replicas": 2}})
    slow = communication(work, recipe, _ranks(8, nodes=2), replace(speed, network=1e6))
    fast = communication(work, recipe, _ranks(8, nodes=2), replace(speed, network=1e9))
    assert slow is not None and fast is not None
    assert slow.in_both == fast.in_both and slow.in_backward > 100 * fast.in_backward


def test_rings_between_nodes_share_the_networks_of_a_nodes_devices() -> None:
    def seconds(ranks: int, nodes: int, network: float, transfer: Transfer = _ALL_REDUCE) -> float:
        work = replace(_WORK, transfers=(transfer,))
        found = communication(work, _recipe(), _ranks(ranks, nodes=nodes), replace(_SPEED, network=network))
        assert found is not None
        return found.total * 0.7

    # 2 nodes of 8: 8 networks of 25 MB/s. nccl-tests' busbw over n ranks: 2(n-1)/n of the size.
    assert seconds(16, 2, 25e6) == pytest.approx(2 * 15 / 16 * 8e6 / 200e6)
    # One device a node has its own network only, and many of a node no more than the links between them.
    assert seconds(2, 2, 25e6) == pytest.approx(8e6 / 25e6)
    assert seconds(16, 2, 1e9) == pytest.approx(2 * 15 / 16 * 8e6 / 1e9)
    # One rank of each node: the network of one device.
    assert seconds(16, 2, 25e6, replace(_ALL_REDUCE, ranks=2, spread=True)) == pytest.approx(8e6 / 25e6)
    # Four copies on two nodes: two ranks of a node are in each sum.
    assert seconds(16, 2, 25e6, replace(_ALL_REDUCE, ranks=4, spread=True)) == pytest.approx(1.5 * 8e6 / 50e6)
    # Within a node no network is taken.
    assert seconds(16, 2, 1.0, replace(_ALL_REDUCE, ranks=8)) == pytest.approx(2 * 7 / 8 * 8e6 / 1e9)


def test_gradients_that_wait_are_sent_once_a_step(tmp_path: Path) -> None:
    keys = {"strategy": "fsdp", "fsdp": {"sync_each_batch": False}}
    _, scattered = _work(tmp_path, 2, parallel=keys, batch={"accumulate": 2}).transfers
    assert not scattered.of_micro_batch


def test_dora_is_another_tuner_for_past_runs() -> None:
    keys = {"name": "x", "model": {"path": "m"}, "data": {"train": "d.json"}}
    tuners = [
        tuner_of(Recipe.model_validate({**keys, "method": method}))
        for method in ({}, {"tuner": "lora"}, {"tuner": "lora", "lora": {"dora": True}})
    ]
    assert tuners == ["full", "lora", "dora"]


def test_work_survives_json(tmp_path: Path) -> None:
    work = _work(tmp_path, 2, parallel={"strategy": "fsdp"})
    assert Work.of(json.loads(json.dumps(asdict(work)))) == work


def test_full_rows_stand_for_data_that_are_not_known() -> None:
    recipe = _recipe(batch={"accumulate": 3}, optim={"max_steps": 7})
    found = steps_of_full_rows(recipe, (DocumentSize(10, 9), DocumentSize(10, 9)), 2)
    assert (found.steps, found.tokens, found.labels, found.lengths) == (7, 120, 108, {10: 2})
    features = features_of(
        _WORK, found, recipe, replace(_TARGET, devices=2), {"parameters": 5, "trainable": 5, "strategy": "ddp"}
    )
    assert (features.positions, features.ranks) == (20, 2)


def test_a_range_keeps_its_order() -> None:
    assert TimeRange(1, 2, 3).times(2).plus(1) == TimeRange(3, 5, 7)


def test_reference_of_kto_answers_for_the_mismatched_answers_too() -> None:
    """The work counts the forward pass of the answers with a gradient alone, which are half of the rows."""

    def of_reference(loss: str) -> float:
        found = _estimate(method={"stage": "preference", "preference": {"loss": loss}})
        assert found.seconds is not None and found.steps is not None
        return found.seconds.expected - found.steps * found.step_seconds.expected

    assert of_reference("kto") == pytest.approx(2 * of_reference("sigmoid"))
    assert of_reference("sigmoid") > 0
