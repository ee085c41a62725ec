"""Adapters to go on from are looked at before anything starts."""

from __future__ import annotations

import json

import numpy
import pytest
from safetensors.numpy import save_file

from ascendtune.core.errors import InputError, RecipeError
from ascendtune.recipe.method import MethodSection
from ascendtune.train.adapters import find_adapters


@pytest.fixture
def adapter(tmp_path):
    def make(name, **config):
        directory = tmp_path / name
        directory.mkdir(parents=True)
        (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
        tensors = {f"base_model.model.x.lora_{part}.weight": numpy.full((8, 8), len(name)) for part in "AB"}
        save_file(tensors, directory / "adapter_model.safetensors")
        return str(directory)

    return make


def found(*paths, tuner="lora"):
    return find_adapters(MethodSection(tuner=tuner, lora={"start_from": list(paths)}))


def test_adapters_are_found_in_directories_and_runs(adapter, tmp_path):
    one, of_run = adapter("one"), adapter("run/model")
    (tmp_path / "run/run.json").write_text("{}")
    adapters = found(one, str(tmp_path / "run"))
    assert [str(each.path) for each in adapters] == [one, of_run]
    assert adapters[0].digest != adapters[1].digest
    assert found(one, tuner="full") == []


@pytest.mark.parametrize(
    "config", [{"use_dora": True}, {"lora_bias": True}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}]
)
def test_adapters_that_cannot_be_added_are_refused(adapter, config):
    odd, plain = adapter("odd", **config), adapter("plain")
    assert len(found(odd)) == 1
    with pytest.raises(RecipeError) as refused:
        found(odd, plain)
    assert refused.value.code == "adapters-not-combinable" and "ascendtune merge" in refused.value.remedy


def test_the_last_of_several_may_hold_whole_modules(adapter):
    assert len(found(adapter("one"), adapter("two", modules_to_save=["lm_head"]))) == 2


def test_directory_without_a_lora_adapter_is_refused(adapter, tmp_path):
    with pytest.raises(RecipeError) as caught:
        found(adapter("one") + "e")
    assert caught.value.code == "path-missing" and "did you mean" in str(caught.value.remedy)
    with pytest.raises(RecipeError) as caught:
        found(adapter("other", peft_type="IA3"))
    assert caught.value.code == "adapter-not-lora"
    (tmp_path / "other/adapter_config.json").write_text("[]")
    with pytest.raises(RecipeError) as caught:
        found(str(tmp_path / "other"))
    assert caught.value.code == "not-an-object"
    (tmp_path / "other/adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "other/adapter_model.safetensors").unlink()
    with pytest.raises(RecipeError) as caught:
        found(str(tmp_path / "other"))
    assert caught.value.code == "adapter-weights-missing"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text('{"state": "failed"}')
    with pytest.raises(InputError) as caught:
        found(str(tmp_path / "run"))
    assert caught.value.code == "final-weights-missing"
