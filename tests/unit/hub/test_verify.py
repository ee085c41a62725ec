from __future__ import annotations

import ast
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.hub.verify import check_model_directory, require_unquantised

_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
_WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(_WEIGHTS)
    return folder


def test_a_whole_model_passes(model: Path) -> None:
    check_model_directory(model, weights_needed=True)


def test_a_model_written_by_transformers_passes(tiny_model: Path) -> None:
    check_model_directory(tiny_model, weights_needed=True)


def _shards(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def _adapter(model: Path) -> None:
    (model / "config.json").rename(model / "adapter_config.json")


def _run_with_adapter(run: Path) -> None:
    (run / "model").mkdir()
    (run / "config.json").rename(run / "model" / "adapter_config.json")


def _one_level_up(model: Path) -> None:
    inner = model / "checkpoint"
    inner.mkdir()
    shutil.move(model / "config.json", inner / "config.json")


_DAMAGES: dict[str, tuple[Any, ...]] = {
    "no config": (lambda m: (m / "config.json").unlink(), "model-config-missing"),
    "adapter": (_adapter, "model-config-missing", "this is an adapter"),
    "run with an adapter": (_run_with_adapter, "model-config-missing", "`ascendtune merge ", "then give merged"),
    "one level up": (_one_level_up, "model-config-missing", "checkpoint"),
    "config is no JSON": (lambda m: (m / "config.json").write_text("{"), "invalid-json"),
    "config without type": (lambda m: (m / "config.json").write_text("{}"), "model-type-missing"),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), "tokenizer-missing"),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "weights-missing"),
    "only pickles": (lambda m: (m / "model.safetensors").rename(m / "pytorch_model.bin"), "pickled-weights"),
    "cut off": (lambda m: (m / "model.safetensors").write_bytes(_WEIGHTS[:-1]), "weight-file-damaged"),
    "empty weights": (lambda m: (m / "model.safetensors").write_bytes(b""), "weight-file-damaged"),
    "not weights": (lambda m: (m / "model.safetensors").write_bytes(b"<html>" * 9), "weight-file-damaged"),
    "LFS pointer": (
        lambda m: (m / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "git-lfs-pointer",
    ),
    "missing shard": (_shards, "weights-missing", "model-00002-of-00002.safetensors"),
}


def test_conversion_of_pickles_is_one_command_for_a_directory_of_any_name(model: Path) -> None:
    hostile = model.rename(model.with_name('it\'s "$(reboot)"'))
    (hostile / "model.safetensors").rename(hostile / "pytorch_model.bin")
    with pytest.raises(RecipeError) as caught:
        check_model_directory(hostile, weights_needed=True)
    python, option, code, *_ = shlex.split(caught.value.remedy.partition("once: ")[2].partition(" and copy")[0])
    assert (python, option) == ("python", "-c")
    assert str(hostile) in {each.value for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Constant)}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_damaged_model_directory_is_refused_with_its_place(model: Path, damage: str) -> None:
    spoil, code, *named = _DAMAGES[damage]
    spoil(model)
    with pytest.raises(RecipeError) as raised:
        check_model_directory(model, weights_needed=True)
    assert raised.value.code == code and all(each in f"{raised.value}" for each in named)
    assert raised.value.where and raised.value.where.startswith(str(model))


def test_random_weights_need_none(model: Path) -> None:
    (model / "model.safetensors").unlink()
    check_model_directory(model, weights_needed=False)


def test_a_file_is_not_a_model(model: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        check_model_directory(model / "config.json", weights_needed=True)
    assert caught.value.code == "not-a-directory"


def test_quantised_weights_are_not_trained_on(model: Path) -> None:
    require_unquantised(model)
    (model / "config.json").write_text('{"model_type": "qwen2", "quantization_config": {"quant_method": "gptq"}}')
    check_model_directory(model, weights_needed=True)
    with pytest.raises(RecipeError) as caught:
        require_unquantised(model)
    assert caught.value.code == "quantised-model" and "gptq" in caught.value.what


@pytest.mark.parametrize("dtype", ["I32", "U8", "I64", "BOOL"])
def test_integer_weights_are_refused_and_named(model: Path, dtype: str) -> None:
    size = 2 * {"I32": 4, "U8": 1, "I64": 8, "BOOL": 1}[dtype]

    def write(name: str) -> None:
        header = json.dumps({name: {"dtype": dtype, "shape": [2], "data_offsets": [0, size]}}).encode()
        (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))

    write("model.layers.0.mlp.up_proj.weight")
    with pytest.raises(RecipeError) as refused:
        check_model_directory(model, weights_needed=True)
    assert refused.value.code == "integer-weights"
    assert f"model.layers.0.mlp.up_proj.weight ({dtype})" in refused.value.what
    for name in ("transformer.h.0.attn.bias", "embeddings.position_ids"):
        write(name)
        check_model_directory(model, weights_needed=True)
