"""From a request to an answer: the search for changes, offloading, and models that cannot be traced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.attention.choice import AttentionChoice, AttentionSupport
from ascendtune.train.plan import estimate, traced_step, training_choices
from ascendtune.train.plan.request import DocumentSize, Estimate, EstimateRequest, Target
from ascendtune.train.strategy import deepspeed

_GIB = 2**30
_ZERO = {"strategy": "deepspeed", "deepspeed": {"stage": 2}}
"""Estimated at once, by arithmetic."""
_CONFIG = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def request_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a model whose layers are not all traced."""
    return _requests(tmp_path_factory.mktemp("model"), layers=9)


@pytest.fixture(scope="module")
def shallow_request_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a model of two layers, for tests of several estimates."""
    return _requests(tmp_path_factory.mktemp("model"), layers=2)


def _requests(directory: Path, layers: int) -> Any:
    (directory / "config.json").write_text(json.dumps({**_CONFIG, "num_hidden_layers": layers}))

    def make(memory: int = _GIB, devices: int = 1, kind: str = "npu", **keys: Any) -> EstimateRequest:
        values = {"model": {"path": str(directory)}, "data": {"train": [{"path": "x.jsonl"}]}, **keys}
        recipe = Recipe.check(values).model_dump(mode="json")
        return EstimateRequest(recipe, str(directory), Target(kind, kind, memory, devices), 0, 0)

    return make


@pytest.fixture(scope="module")
def usual(request_of: Any) -> Estimate:
    """Of the request without further keys."""
    return Estimate.of(estimate.answer(request_of(), search=False)["estimate"])


def test_a_request_survives_its_json(request_of: Any) -> None:
    request = request_of()
    assert EstimateRequest.from_json(request.to_json()) == request
    with_rows = replace(
        request, documents=(DocumentSize(5, 3), DocumentSize(4, 3)), padded_documents=(DocumentSize(6, 3),),
        single=(DocumentSize(5, 3),), padded_single=(DocumentSize(4, 2),), adapters=("a", "b"),
    )  # fmt: skip
    assert EstimateRequest.from_json(with_rows.to_json()) == with_rows


@pytest.mark.long
def test_a_run_that_fits_needs_no_change(request_of: Any) -> None:
    answer = estimate.answer(request_of(), search=True)
    found = Estimate.of(answer["estimate"])
    assert found.fits(_GIB) is True and answer["changes"] == []
    assert found.facts["how"] == "5 of 9 layers traced"
    assert sum(found.at_peak.values()) == found.expected == max(found.moments.values())


@pytest.mark.parametrize(
    ("keys", "padding_free"),
    [({}, True), ({"align": {"dump_steps": 1}}, True), ({"data": {"packing": False}}, True),
     ({"data": {"packing": False}, "align": {"dump_steps": 1}}, False)],
    ids=["packed", "packed and dumped", "not packed", "not packed and dumped"],
)  # fmt: skip
def test_rows_are_padded_where_dumps_want_them_padded(
    shallow_request_of: Any, keys: dict[str, Any], *, padding_free: bool
) -> None:
    data = {"train": [{"path": "x.jsonl"}], **keys.get("data", {})}
    request = shallow_request_of(**{**keys, "data": data, "batch": {"per_device": 2}})
    rows = {
        "documents": (DocumentSize(30, 3), DocumentSize(30, 3)),
        "padded_documents": (DocumentSize(40, 3), DocumentSize(4, 3)),
    }
    found = estimate.answer(replace(request, **rows), search=False)["estimate"]["facts"]
    assert (found["padding_free"], found["tokens"]) == (padding_free, 60 if padding_free else 80)


@pytest.mark.parametrize(
    ("keys", "alone"),
    [
        ({"batch": {"per_device": 1}}, True),
        ({"batch": {"per_device": 2}}, False),
        ({"batch": {"per_device": 1}, "method": {"stage": "preference"}}, False),
    ],
    ids=["one row", "two rows", "one pair"],
)
def test_one_row_is_taken_as_training_takes_it(shallow_request_of: Any, keys: dict[str, Any], *, alone: bool) -> None:
    request = shallow_request_of(**keys, data={"train": "x.jsonl", "packing": False}, parallel=_ZERO)
    assert estimate.answer(request, search=False)["estimate"]["facts"]["padding_free"] is not alone


@pytest.fixture
def support_is(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """What is found of the model's attention."""

    def give(**fields: bool) -> None:
        choice = AttentionChoice("sdpa", "", AttentionSupport("sdpa", why_padded="of the test", **fields))
        monkeypatch.setattr(training_choices, "choose_attention", lambda *_: choice)
        training_choices._of_model.cache_clear()

    yield give
    training_choices._of_model.cache_clear()


def test_packing_that_training_refuses_is_refused(shallow_request_of: Any, support_is: Callable[..., None]) -> None:
    support_is(packed=False)
    for packing in (True, "auto"):
        request = shallow_request_of(data={"train": "x.jsonl", "packing": packing}, parallel=_ZERO)
        if packing == "auto":
            assert estimate.answer(request, search=False)["estimate"]["facts"]["padding_free"] is False
            continue
        with pytest.raises(RecipeError) as caught:
            estimate.answer(request, search=False)
        assert caught.value.code == "packing-unsupported"


def test_rows_that_cannot_be_padded_are_refused_and_auto_takes_one(
    shallow_request_of: Any, support_is: Callable[..., None]
) -> None:
    support_is(packed=False, padded=False)
    with pytest.raises(RecipeError) as caught:
        estimate.answer(shallow_request_of(batch={"per_device": 2}, parallel=_ZERO), search=False)
    assert caught.value.code == "rows-need-padding"
    request = shallow_request_of(memory=64 * _GIB, batch={"per_device": "auto"}, parallel=_ZERO)
    assert estimate.answer(request, search=False)["per_device"] == 1


@pytest.mark.long
def test_every_change_that_is_offered_fits_by_the_same_estimate(request_of: Any, usual: Estimate) -> None:
    request = request_of(memory=int(usual.expected * 0.6))
    changes = estimate.answer(request, search=True)["changes"]
    assert changes
    for each in changes:
        assert each["high"] <= request.target.memory_bytes
    assert not any(one["keys"].items() < other["keys"].items() for one in changes for other in changes)


@pytest.mark.long
def test_offloading_moves_what_rests_to_the_host(shallow_request_of: Any) -> None:
    fsdp = {"strategy": "fsdp"}
    kept = Estimate.of(estimate.answer(shallow_request_of(devices=2, parallel=fsdp), search=False)["estimate"])
    request = shallow_request_of(devices=2, parallel={**fsdp, "fsdp": {"offload": True}})
    moved = Estimate.of(estimate.answer(request, search=False)["estimate"])
    assert moved.expected < kept.expected
    assert moved.host > kept.host


@pytest.mark.long
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("needs the content of a tensor"),
        # Raised here, so outside the package, as by a model's class.
        AttributeError("the model's own"),
        RecipeError("no list of layers", code="layers-unknown", remedy=""),
    ],
)
def test_a_model_that_cannot_be_traced_gets_a_wider_estimate_and_says_so(
    request_of: Any, usual: Estimate, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(estimate, "trace_step", refuse)
    found = Estimate.of(estimate.answer(request_of(), search=False)["estimate"])
    assert found.facts["how"] == "arithmetic" and found.notes
    assert found.high / found.low > usual.high / usual.low
    assert found.low < usual.expected < found.high


@pytest.mark.parametrize("name", ["copy", "find_repeats", "_batch"])
def test_an_error_of_this_program_is_not_taken_for_the_models(
    request_of: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(traced_step, name)
    with pytest.raises(NameError):
        estimate.answer(request_of(), search=False)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_is_arithmetic_that_divides_by_stage(request_of: Any, stage: int) -> None:
    request = request_of(devices=4, precision="fp32", parallel={"strategy": "deepspeed", "deepspeed": {"stage": stage}})
    found = Estimate.of(estimate.answer(request, search=False)["estimate"]).at_peak
    whole = found["weights"] * (4 if stage == 3 else 1)
    assert found["gradients"] == pytest.approx(whole / (4 if stage >= 2 else 1), rel=0.01)
    # From stage 1 on with a second copy of the weights, also in fp32.
    assert found["optimizer"] == pytest.approx(3 * whole / 4 if stage >= 1 else 2 * whole, rel=0.01)


@pytest.mark.parametrize(
    ("stage", "offloaded", "on_device", "on_host"),
    # Bytes of a parameter on each of 4 devices: weights, gradients, optimizer state; and beside it.
    [
        (1, {}, (2, 2, 12 / 4), 0),
        (2, {}, (2, 2 / 4, 12 / 4), 0),
        (3, {}, (2 / 4, 2 / 4, 12 / 4), 0),
        (1, {"offload_optimizer": "cpu"}, (2, 2, 0), 12 / 4),
        (2, {"offload_optimizer": "cpu"}, (2, 0, 0), 14 / 4),
        (3, {"offload_optimizer": "cpu", "offload_param": "cpu"}, (0, 0, 0), 16 / 4),
        (3, {"offload_optimizer": "nvme", "nvme_path": "/disk"}, (2 / 4, 0, 0), 0),
    ],
)
def test_deepspeed_in_bf16_holds_two_bytes_of_weights_and_what_it_does_not_offload(
    request_of: Any, stage: int, offloaded: dict[str, str], on_device: tuple[float, ...], on_host: float
) -> None:
    section = {"strategy": "deepspeed", "deepspeed": {"stage": stage, **offloaded}}
    request = request_of(devices=4, precision="bf16", parallel=section)
    request = replace(request, target=replace(request.target, kind="npu", bf16=True))
    found = Estimate.of(estimate.answer(request, search=False)["estimate"])
    parameters = found.facts["parameters"]
    shares = tuple(found.at_peak.get(name, 0) / parameters for name in ("weights", "gradients", "optimizer"))
    assert shares == pytest.approx(on_device, rel=0.01)
    assert found.host / parameters == pytest.approx(on_host, rel=0.01)


@pytest.mark.parametrize("tuner", ["lora", "oft"])
def test_arithmetic_counts_adapters_beside_the_model_and_new_rows_in_it(request_of: Any, tuner: str) -> None:
    section = {"strategy": "deepspeed", "deepspeed": {"stage": 2}}
    keys = {"precision": "bf16", "parallel": section, "devices": 4}
    found, of_model, grown = (
        Estimate.of(estimate.answer(replace(each, vocabulary=rows), search=False)["estimate"]).facts
        for each, rows in (
            (request_of(method={"tuner": tuner}, **keys), 0),
            (request_of(**keys), 0),
            (request_of(**keys), 600),
        )
    )
    assert found["parameters"] == of_model["parameters"] + found["trainable"] and found["trainable"] > 0
    assert grown["parameters"] > of_model["parameters"]


def test_a_recipe_that_training_refuses_is_refused(request_of: Any, tmp_path: Path) -> None:
    directory = tmp_path / "unknown"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "no such model"}))
    request = replace(request_of(model={"path": str(directory)}), model_directory=str(directory))
    with pytest.raises(RecipeError):
        estimate.answer(request, search=False)
    assert estimate.main([str(_written(tmp_path, request)), str(tmp_path / "answer.json")]) == 0
    assert json.loads((tmp_path / "answer.json").read_text())["refusal"]["code"]


@pytest.mark.parametrize("fields", [{"hidden_act": "new"}, {"rope_parameters": {"rope_type": "new"}}])
def test_name_that_transformers_does_not_know_is_refused_with_its_field(
    request_of: Any, tmp_path: Path, fields: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**_CONFIG, "num_hidden_layers": 2, **fields}))
    request = replace(request_of(model={"path": str(tmp_path)}), model_directory=str(tmp_path))
    with pytest.raises(RecipeError) as caught:
        estimate.answer(request, search=False)
    assert caught.value.code == "invalid-field" and next(iter(fields)) in caught.value.what


def _written(directory: Path, request: EstimateRequest) -> Path:
    (directory / "request.json").write_text(request.to_json())
    return directory / "request.json"


@pytest.mark.long
def test_auto_batch_is_the_largest_power_of_two_that_fits(shallow_request_of: Any) -> None:
    keys = {"data": {"train": [{"path": "x.jsonl"}], "max_length": 64}}
    sizes = {
        size: Estimate.of(
            estimate.answer(shallow_request_of(batch={"per_device": size}, **keys), search=False)["estimate"]
        )
        for size in (2, 4)
    }
    memory = (sizes[2].high + sizes[4].high) // 2
    found = estimate.answer(shallow_request_of(memory=memory, batch={"per_device": "auto"}, **keys), search=False)
    assert found["per_device"] == 2
    assert Estimate.of(found["estimate"]) == sizes[2]


@pytest.mark.long
def test_auto_batch_is_one_where_nothing_fits(request_of: Any) -> None:
    found = estimate.answer(request_of(memory=1000, batch={"per_device": "auto"}), search=False)
    assert found["per_device"] == 1
    assert Estimate.of(found["estimate"]).fits(1000) is False


def test_changes_are_estimated_with_the_rows_of_the_data(
    shallow_request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full rows are 16 times as long."""
    monkeypatch.setattr(estimate, "_ENOUGH", 1)
    rows = (DocumentSize(512, 511),)

    def request(per_device: int, accumulate: int, memory: int = _GIB) -> EstimateRequest:
        keys = {"batch": {"per_device": per_device, "accumulate": accumulate}, "parallel": {"strategy": "deepspeed"}}
        data = {"train": "x.jsonl", "max_length": 8192, "packing": False}
        made = shallow_request_of(memory, 4, data=data, **keys)
        known = rows * per_device
        return replace(made, documents=known, padded_documents=known, single=rows, padded_single=rows)

    many, one = (
        Estimate.of(estimate.answer(request(*each), search=False)["estimate"]) for each in ((2048, 1), (1, 2048))
    )
    offered = estimate.answer(request(2048, 1, (one.high + many.low) // 2), search=True)["changes"]
    assert offered[0]["keys"] == {"batch.per_device": 1, "batch.accumulate": 2048}
    assert offered[0]["expected"] == one.expected


@pytest.mark.parametrize(("stage", "code"), [(0, "zero-stage-0-precision"), (3, "experts-not-divisible")])
def test_zero_stages_that_would_fail_at_the_start_are_refused(
    shallow_request_of: Any, monkeypatch: pytest.MonkeyPatch, stage: int, code: str
) -> None:
    monkeypatch.setattr(deepspeed, "listed_experts", lambda model: [model])
    request = shallow_request_of(devices=2, parallel={"strategy": "deepspeed", "deepspeed": {"stage": stage}})
    with pytest.raises(RecipeError) as refused:
        estimate.answer(request, search=False)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("freeze", "layers"),
    [({"last_layers": 2}, 2), ({"first_layers": 1}, 9), ({"extra": ["lm_head"]}, 0), ({"extra": ["embed_tokens"]}, 9)],
    ids=str,
)
def test_arithmetic_keeps_no_activations_below_the_first_layer_that_trains(
    request_of: Any, freeze: dict[str, Any], layers: int
) -> None:
    keys = {"precision": "fp32", "parallel": _ZERO}
    activations = [
        estimate.answer(request_of(**keys, **each), search=False)["estimate"]["at_peak"].get("activations", 0)
        for each in ({}, {"method": {"tuner": "freeze", "freeze": freeze}})
    ]
    assert activations[1] * 9 == activations[0] * layers


@pytest.mark.long
def test_a_change_of_a_frozen_model_is_found(request_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "_ENOUGH", 1)
    keys = {"method": {"tuner": "freeze", "freeze": {"last_layers": 1}}, "batch": {"per_device": 4}}
    one = Estimate.of(
        estimate.answer(request_of(**{**keys, "batch": {"per_device": 1, "accumulate": 4}}), search=False)["estimate"]
    )
    found = estimate.answer(request_of(memory=one.high + 1, **keys), search=True)["changes"]
    assert found[0]["keys"] == {"batch.per_device": 1, "batch.accumulate": 4}


def _with_memory_section(request: EstimateRequest, offload: bool) -> EstimateRequest:
    section = {**request.recipe["memory"], "offload_activations": offload}
    return replace(request, recipe={**request.recipe, "memory": section})


@pytest.mark.parametrize("kind", ["npu", "cpu"])
def test_arithmetic_moves_activations_to_the_host_where_the_recipe_does(shallow_request_of: Any, kind: str) -> None:
    stays, moves = (
        Estimate.of(
            estimate.answer(_with_memory_section(shallow_request_of(kind=kind, parallel=_ZERO), each), search=False)[
                "estimate"
            ]
        )
        for each in (False, True)
    )
    left = stays.at_peak["activations"] - moves.at_peak["activations"]
    # One of the two layers.
    assert left == moves.host - stays.host == (0 if kind == "cpu" else stays.at_peak["activations"] // 2)


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_gets_the_model_whole_on_each_device(shallow_request_of: Any, stage: int) -> None:
    parallel = {"strategy": "deepspeed", "deepspeed": {"stage": stage, "offload_optimizer": "cpu"}}
    request = shallow_request_of(devices=64, precision="bf16", parallel=parallel, kind="npu")
    found = Estimate.of(estimate.answer(request, search=False)["estimate"])
    assert found.moments["loading"] == pytest.approx(4 * found.facts["parameters"], abs=8), "in fp32"


@pytest.mark.parametrize("changes", [{"init": "random"}, {"init": "pretrained"}])
@pytest.mark.parametrize("kind", ["cpu", "npu"])
def test_random_weights_are_made_whole_in_host_memory(
    shallow_request_of: Any, kind: str, changes: dict[str, Any]
) -> None:
    request = shallow_request_of(devices=64, precision="bf16", parallel={"strategy": "fsdp"}, kind=kind)
    request = replace(request, recipe={**request.recipe, "model": {**request.recipe["model"], **changes}})
    found = Estimate.of(estimate.answer(request, search=False)["estimate"])
    whole = 4 * found.facts["parameters"]
    assert (found.host >= whole) == (kind == "npu" and changes["init"] == "random")


@pytest.mark.parametrize("strategy", ["zero-2", "zero-3", "fsdp"])
def test_another_reference_model_counts_before_the_first_step(
    shallow_request_of: Any, tmp_path: Path, strategy: str
) -> None:
    """Whole on each device, and with fsdp a share of it and what is gathered."""
    config = {**_CONFIG, "num_hidden_layers": 2, "vocab_size": 100_000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    dpo = {"stage": "preference", "preference": {"reference": str(tmp_path)}}
    parallel = {"strategy": "deepspeed", "deepspeed": {"stage": int(strategy[-1])}} if "zero" in strategy else {}
    request = shallow_request_of(
        devices=4, precision="bf16", parallel=parallel or {"strategy": "fsdp"}, method=dpo
    )  # fmt: skip
    alone, beside = (
        Estimate.of(estimate.answer(replace(request, reference=each), search=False)["estimate"])
        for each in (None, str(tmp_path))
    )
    weights = alone.facts["parameters"] * 2 // (4 if strategy == "zero-3" else 1)
    of_reference = 2 * (alone.facts["parameters"] + 2 * 64 * (100_000 - 512))
    if strategy == "fsdp":
        # A quarter of the weights, in fp32; of the reference a quarter, its two tables and norm, and both blocks.
        weights, of_reference = alone.facts["parameters"], of_reference // 4 + of_reference
    # With fsdp the buffers of the rotations are traced.
    buffers = 128 if strategy == "fsdp" else 8
    assert beside.moments["reference answers"] == pytest.approx(weights + of_reference, abs=buffers)
    assert {**beside.moments, "reference answers": 0} == {**alone.moments, "reference answers": 0}
