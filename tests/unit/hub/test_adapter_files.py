"""An adapter's config and weights are checked as files, against the base where it is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from ascendtune.core.errors import RecipeError
from ascendtune.hub.adapter_files import check_adapter, require_all_adapter_weights
from ascendtune.hub.peft_adapter import read_adapter

_MODULE = "base_model.model.model.layers.0.q_proj"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    directory = tmp_path / "adapter"
    directory.mkdir()
    _configure(directory)
    _save(directory, (2, 8), (6, 2))
    return directory


def _configure(directory: Path, **changes: Any) -> None:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **changes}
    (directory / "adapter_config.json").write_text(json.dumps(config))


def _save(directory: Path, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    tensors = {f"{_MODULE}.lora_A.weight": numpy.zeros(a), f"{_MODULE}.lora_B.weight": numpy.zeros(b)}
    save_file(tensors, directory / "adapter_model.safetensors")


def _base(tmp_path: Path, name: str = "model.layers.0.q_proj.weight", shape: tuple[int, ...] = (6, 8)) -> Path:
    save_file({name: numpy.zeros(shape)}, tmp_path / "model.safetensors")
    return tmp_path


def _rotations(directory: Path, shape: tuple[int, ...], **config: Any) -> None:
    settings = {"peft_type": "OFT", "r": 0, "oft_block_size": 4, "peft_version": "0.18.0", **config}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    save_file({f"{_MODULE}.oft_R.weight": numpy.zeros(shape)}, directory / "adapter_model.safetensors")


def test_rotations_fit_the_inputs_of_their_module(adapter: Path, tmp_path: Path) -> None:
    base = _base(tmp_path)
    _rotations(adapter, (2, 6))
    check_adapter(adapter, base)
    _rotations(adapter, (1, 6), block_share=True)
    check_adapter(adapter, base)
    for shape, config in (((1, 6), {}), ((3, 6), {}), ((2, 6), {"block_share": True}), ((2, 3), {})):
        _rotations(adapter, shape, **config)
        with pytest.raises(RecipeError) as refused:
            check_adapter(adapter, base)
        assert refused.value.code == "adapter-base-mismatch"
    _base(tmp_path, shape=())
    _rotations(adapter, (2, 6))
    with pytest.raises(RecipeError) as refused:
        check_adapter(adapter, base)
    assert refused.value.code == "adapter-base-mismatch"
    _rotations(adapter, (2, 7))
    with pytest.raises(RecipeError) as refused:
        check_adapter(adapter)
    assert refused.value.code == "adapter-damaged"


@pytest.mark.parametrize(
    "config",
    [
        {"r": -1}, {"oft_block_size": "4"}, {"oft_block_size": 10**9}, {"num_cayley_neumann_terms": 10**9},
        {"coft": "yes"}, {"eps": "1"}, {"block_share": 1}, {"use_cayley_neumann": "no"}, {"module_dropout": []},
    ],
    ids=str,
)  # fmt: skip
def test_rotations_with_impossible_fields_are_refused(adapter: Path, config: dict[str, Any]) -> None:
    _rotations(adapter, (2, 6), **config)
    with pytest.raises(RecipeError) as refused:
        check_adapter(adapter)
    assert next(iter(config)) in refused.value.what


def test_adapter_that_fits_its_base_passes(adapter: Path, tmp_path: Path) -> None:
    check_adapter(adapter)
    check_adapter(adapter, _base(tmp_path))
    # A base that was saved without its head.
    check_adapter(adapter, _base(tmp_path, "layers.0.q_proj.weight"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("r", value) for value in (0, -1, "2", 2.0, None, 10**30)),
        *(("lora_alpha", value) for value in ("4", float("nan"), 10**400, [])),
        *(("rank_pattern", value) for value in ([], {"q_proj": 0}, {"q_proj": "2"})),
        *(("target_modules", value) for value in (1, {}, [1])),
        *(("modules_to_save", value) for value in ("lm_head", [None])),
        *(("base_model_name_or_path", value) for value in (1, [], {})),
        *(("use_dora", value) for value in ("yes", 1)),
        *((key, r"(\w+\.?)+!") for key in ("target_modules", "exclude_modules", "layers_pattern")),
        *((key, {r"(\w+\.?)+!": 2}) for key in ("rank_pattern", "alpha_pattern")),
        ("modules_to_save", [r"(\w+\.?)+!"]),
        ("megatron_config", {"megatron_core": "megatron.core"}),
        ("peft_type", ["LORA"]),
    ],
)
def test_impossible_field_is_named(adapter: Path, key: str, value: Any) -> None:
    _configure(adapter, **{key: value})
    with pytest.raises(RecipeError, match=f"{key}|has no peft_type") as raised:
        check_adapter(adapter)
    assert raised.value.where == str(adapter / "adapter_config.json")


def test_other_rank_is_named(adapter: Path) -> None:
    _save(adapter, (3, 8), (6, 3))
    with pytest.raises(RecipeError) as caught:
        check_adapter(adapter)
    assert caught.value.code == "adapter-config-mismatch" and "[3, 8]" in caught.value.what
    _configure(adapter, rank_pattern={"q_proj": 3})
    check_adapter(adapter)


def test_other_base_is_named(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        check_adapter(adapter, _base(tmp_path, shape=(6, 9)))
    assert (
        caught.value.code == "adapter-base-mismatch" and "[6, 9]" in caught.value.what and "[6, 8]" in caught.value.what
    )
    with pytest.raises(RecipeError) as caught:
        check_adapter(adapter, _base(tmp_path, "model.layers.0.k_proj.weight"))
    assert caught.value.code == "adapter-base-mismatch" and "model.layers.0.q_proj" in caught.value.what


def test_weight_that_found_no_place_is_named(adapter: Path) -> None:
    names = {f"{_MODULE}.lora_A.weight", f"{_MODULE}.lora_B.weight"}
    require_all_adapter_weights(names, names, adapter)
    with pytest.raises(RecipeError) as caught:
        require_all_adapter_weights(names, names - {f"{_MODULE}.lora_B.weight"}, adapter)
    assert caught.value.code == "adapter-base-mismatch" and "lora_B" in caught.value.what


@pytest.mark.parametrize("version", ["9" * 5000 + ".1", "0.17.9", "none"])
def test_rotations_of_another_version_are_not_merged(adapter: Path, version: str) -> None:
    _rotations(adapter, (2, 6), peft_version=version)
    with pytest.raises(RecipeError) as refused:
        read_adapter(adapter)
    assert refused.value.code == "adapter-not-mergeable"


@pytest.mark.parametrize("read", [check_adapter, read_adapter])
@pytest.mark.parametrize(
    ("version", "rows", "is_refused"),
    [("0.19.0", 6, True), ("0.17.1", 6, True), ("0.19.1", 6, False), ("0.21.0", 6, False), (None, 6, False),
     ("0.19.0", 2, False)],
)  # fmt: skip
def test_stacked_experts_of_a_version_that_exchanged_their_inputs_and_outputs_are_refused(
    adapter: Path, read: Callable[[Path], object], version: str | None, rows: int, *, is_refused: bool
) -> None:
    _configure(adapter, target_parameters=["experts.gate_up_proj"], peft_version=version)
    _save(adapter, (rows, 8), (6, rows))
    if not is_refused:
        read(adapter)
        return
    with pytest.raises(RecipeError) as refused:
        read(adapter)
    assert refused.value.code == "adapter-layout-unsupported" and f"PEFT {version}" in refused.value.what
