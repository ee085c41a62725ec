"""The condition under which documents are trained on without padding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ascendtune.core.errors import CheckFailed, MachineError, RecipeError
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import model_checks, model_setup
from ascendtune.train.attention.choice import AttentionChoice, AttentionSupport
from ascendtune.train.model_setup import check_head, isolates, set_up_model, set_up_recurrent_layers
from ascendtune.train.precision import DTYPES, choose_precision

_PAIRS, _SINGLES = {"stage": "preference"}, {"stage": "preference", "preference": {"loss": "kto"}}


class Model:
    def get_input_embeddings(self) -> Any:
        return SimpleNamespace(weight=torch.zeros(8, 2))


def isolated(packing: Any, *, batch: int = 2, keeps_apart: bool = True, **keys: Any) -> bool:
    data = {"train": [{"path": "x.jsonl"}], "packing": packing}
    recipe = Recipe.check({"model": {"path": "m"}, "data": data, "batch": {"per_device": batch}, **keys})
    strategy: Any = SimpleNamespace(is_main=True, device=CpuDevice())
    support = AttentionSupport("sdpa", packed=keeps_apart, why_padded=None if keeps_apart else "it counts tokens")
    attention = AttentionChoice("sdpa", "as asked", support)
    return isolates(Model(), recipe, strategy, choose_precision(recipe, CpuDevice()), attention)


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors that the proof of isolation raises."""
    errors: list[Exception] = []

    def prove(*_: Any, **__: Any) -> float:
        if errors:
            raise errors[0]
        return 0.0

    monkeypatch.setattr(model_checks, "prove_isolation", prove)
    return errors


@pytest.mark.usefixtures("proof")
@pytest.mark.parametrize(
    ("packing", "batch", "keys", "expected"),
    [
        ("auto", 1, {}, True),
        ("auto", 2, {"align": {"dump_steps": 1}}, True),
        (False, 2, {}, True),
        (False, 1, {}, False),
        (False, 1, {"method": _PAIRS}, True),
        (False, 1, {"method": _SINGLES}, False),
        (False, 2, {"align": {"dump_steps": 1}}, False),
    ],
)
def test_rows_are_padded_where_none_is_needed_or_dumps_are_compared(
    packing: Any, batch: int, keys: dict[str, Any], *, expected: bool
) -> None:
    assert isolated(packing, batch=batch, **keys) == expected


@pytest.mark.usefixtures("proof")
def test_a_model_that_sees_other_documents_pads_and_is_refused_only_where_packing_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not isolated(False, keeps_apart=False) and not caplog.text
    assert not isolated("auto", keeps_apart=False) and "it counts tokens" in caplog.text
    with pytest.raises(RecipeError) as caught:
        isolated(True, keeps_apart=False)
    assert caught.value.code == "packing-unsupported"


def test_a_failed_proof_pads_rows_that_are_not_packed_and_stops_others(
    proof: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    proof.append(CheckFailed("documents attend to each other", code="documents-not-isolated", remedy="report it"))
    assert not isolated(False) and "rows are padded" in caplog.text
    for packing in ("auto", True):
        with pytest.raises(CheckFailed):
            isolated(packing)


@pytest.mark.parametrize(
    ("kind", "length", "keys", "said"),
    [
        ("longrope", 8192, {}, True),
        ("longrope", 4096, {}, False),
        ("default", 8192, {}, False),
        ("longrope", 8192, {"batch": {"per_device": 1}, "packing": False}, False),
        ("longrope", 8192, {"batch": {"per_device": 1}, "packing": False, "method": {"stage": "reward"}}, True),
        ("dynamic", 8192, {}, True),
        ("dynamic", 8192, {"batch": {"per_device": 1}, "packing": False}, True),
        ("dynamic", 4096, {}, False),
    ],
)
def test_rows_that_change_each_others_frequencies_are_told(
    kind: str, length: int, keys: dict[str, Any], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keys = dict(keys)
    data = {"train": "x.jsonl", "max_length": length, "packing": keys.pop("packing", "auto")}
    recipe = Recipe.check({"model": {"path": "m"}, "data": data, **keys})
    rope = {"rope_type": kind, "original_max_position_embeddings": 4096}
    text = SimpleNamespace(rope_parameters=rope, max_position_embeddings=4096)
    model_checks.warn_of_shared_frequencies(recipe, SimpleNamespace(get_text_config=lambda: text))
    assert (f"{'LongRoPE' if kind == 'longrope' else 'dynamic NTK'}: a row of more than 4,096" in caplog.text) == said


@pytest.mark.parametrize("fails", [torch.bfloat16, torch.float32])
def test_a_model_that_cannot_compute_in_bf16_is_told_from_one_that_cannot_compute(
    fails: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def head(*_: Any) -> None:
        # Both fail in bf16; one of them in fp32, too.
        if torch.is_autocast_enabled("cpu") or fails == torch.float32:
            raise RuntimeError("source and destination dtypes match\nat XMOD")

    monkeypatch.setattr(model_checks, "fusible_head", head)
    recipe = Recipe.check({"model": {"path": "m"}, "data": {"train": "x.jsonl"}, "precision": "bf16"})
    strategy: Any = SimpleNamespace(device=CpuDevice())
    with pytest.raises(RecipeError if fails == torch.bfloat16 else RuntimeError) as caught:
        check_head(Model(), recipe, strategy, choose_precision(recipe, CpuDevice()))
    if isinstance(caught.value, RecipeError):
        assert caught.value.code == "model-without-mixed-precision" and "XMOD" not in caught.value.what


class WithoutHostScale(CpuDevice):
    def gradient_scaler(self, *, on_host: bool = False) -> torch.amp.GradScaler:
        assert on_host
        raise MachineError("no such scale", code="fp16-unsupported", remedy="use precision: bf16")

    @property
    def supports_fp16(self) -> bool:
        return True


def test_fp16_that_cannot_be_scaled_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(model_setup, "read_config")
    recipe = Recipe.check({"model": {"path": "m"}, "data": {"train": [{"path": "x.jsonl"}]}, "precision": "fp16"})
    device = WithoutHostScale()
    strategy: Any = SimpleNamespace(device=device, loop_precision=lambda precision: precision, updates_on_device=False)
    prepared: Any = None
    with pytest.raises(MachineError) as caught:
        set_up_model({"model_directory": "m"}, recipe, strategy, prepared)
    assert caught.value.code == "fp16-unsupported"


@pytest.mark.parametrize(("dtype", "rate"), [("bf16", 1e-5), ("bf16", 2e-4), ("fp16", 1e-5)])
def test_weights_that_rounding_holds_in_place_are_told(
    dtype: str, rate: float, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = Recipe.check({
        "model": {"path": "m", "dtype": dtype}, "data": {"train": "x"}, "optim": {"learning_rate": rate},
    })  # fmt: skip
    model_checks.warn_of_rounded_steps(recipe)
    still = float(caplog.text.partition("those of ")[2].partition(" and more")[0])
    weights = torch.tensor([0.6, 0.9, 1.1, 1.5, 4.0]).mul(still).to(DTYPES[dtype])
    moved = weights.clone().requires_grad_()
    moved.grad = torch.ones_like(weights)
    torch.optim.AdamW([moved], lr=rate, weight_decay=0.0).step()
    assert (moved != weights).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"path": "m"}},
        {"optim": {"learning_rate": 0.1}},
        {"method": {"tuner": "lora"}},
        {"parallel": {"strategy": "deepspeed"}},
    ],
)
def test_weights_that_move_are_not_warned_of(changes: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    model_checks.warn_of_rounded_steps(
        Recipe.check({"model": {"path": "m", "dtype": "bf16"}, "data": {"train": "x"}, "precision": "bf16", **changes})
    )
    assert not caplog.text


@pytest.mark.parametrize(("on_gpu", "is_main", "said"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_packages_for_gpus_that_are_missing_are_named_on_gpus(
    on_gpu: bool, is_main: bool, said: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ascendtune.train.model_setup.missing_packages", lambda model: ["causal-conv1d", "mamba-ssm"])
    device = SimpleNamespace(shares_host_memory=False, runs_gpu_packages=on_gpu)
    strategy: Any = SimpleNamespace(device=device, is_main=is_main)
    set_up_recurrent_layers(torch.nn.Linear(2, 2), strategy)
    found = [each.message for each in caplog.records if "install causal-conv1d and mamba-ssm" in each.message]
    assert len(found) == said
