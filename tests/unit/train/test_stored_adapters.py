"""Adapters to continue from are checked before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from ascendtune.core.errors import InputError, RecipeError
from ascendtune.recipe.method import MethodSection
from ascendtune.train.stored_adapters import find_adapters, require_recorded_adapters, require_same_adapters


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


def found(*paths, tuner="lora", quantised=False, **keys):
    return find_adapters(
        MethodSection(tuner=tuner, **{"oft" if tuner == "oft" else "lora": {"start_from": paths, **keys}}),
        quantised=quantised,
    )


def test_adapters_are_found_in_directories_and_runs(adapter, tmp_path):
    one, of_run = adapter("one"), adapter("run/model")
    (tmp_path / "run/run.json").write_text("{}")
    adapters = found(one, str(tmp_path / "run"))
    assert [str(each.path) for each in adapters] == [one, of_run]
    assert adapters[0].digest != adapters[1].digest
    assert found(one, tuner="full") == []


def test_another_adapter_at_the_same_path_is_refused_when_it_is_read(adapter):
    """On another host, or at a restart: frozen ones are no part of checkpoints."""
    path = adapter("one")
    record = {"adapters": [each.to_json() for each in found(path)]}
    require_recorded_adapters(record)
    save_file({"x": numpy.zeros(1)}, f"{path}/adapter_model.safetensors")
    with pytest.raises(RecipeError) as refused:
        require_recorded_adapters(record)
    assert refused.value.code == "adapter-changed" and refused.value.where == path


@pytest.mark.parametrize(
    "changed",
    [{"lora_alpha": 32}, {"use_rslora": True}, {"alpha_pattern": {"x": 4}}, {"target_modules": ["x", "y", "z"]}],
    ids=json.dumps,
)
def test_adapter_whose_config_computes_something_else_is_refused(adapter, changed):
    path = adapter("one", lora_alpha=16, target_modules=["x", "y"])
    record = {"adapters": [each.to_json() for each in found(path)]}
    rewrite_config(path, changed)
    for look in (require_recorded_adapters, lambda record: require_same_adapters(record, found(path))):
        with pytest.raises(RecipeError) as refused:
            look(record)
        assert refused.value.code == "adapter-changed"


def test_copy_of_an_adapter_is_the_same_whatever_its_config_says_of_base_and_training(adapter):
    path = adapter("one", base_model_name_or_path="base", target_modules=["x", "y"], lora_dropout=0.1)
    record = {"adapters": [each.to_json() for each in found(path)]}
    same = {"base_model_name_or_path": "copy", "lora_dropout": 0.5, "target_modules": ["y", "x"], "revision": None}
    rewrite_config(path, same)
    require_recorded_adapters(record)


def rewrite_config(adapter, changes):
    path = Path(adapter) / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_checkpoint_that_was_trained_beside_other_adapters_is_refused(adapter):
    one, two = found(adapter("one")), found(adapter("other"))
    record = {"adapters": [each.to_json() for each in one]}
    require_same_adapters(record, one)
    for other in (two, [*one, *two], []):
        with pytest.raises(RecipeError) as refused:
            require_same_adapters(record, other)
        assert refused.value.code == "adapter-changed"


@pytest.mark.parametrize(
    "config", [{"use_dora": True}, {"lora_bias": True}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}]
)
def test_adapters_that_cannot_be_added_are_refused(adapter, config):
    odd, plain = adapter("odd", **config), adapter("plain")
    assert len(found(odd)) == 1
    with pytest.raises(RecipeError) as refused:
        found(odd, plain)
    assert refused.value.code == "adapters-not-combinable" and "ascendtune merge" in refused.value.remedy


def test_dora_is_not_a_start_over_a_quantised_base(adapter):
    """As `method.lora.dora` is none."""
    odd, plain = adapter("odd", use_dora=True), adapter("plain")
    assert len(found(plain, quantised=True)) == 1
    with pytest.raises(RecipeError) as refused:
        found(odd, quantised=True)
    assert refused.value.code == "adapter-form-mismatch" and "model.quantization" in refused.value.remedy


def test_the_last_of_several_may_hold_whole_modules(adapter):
    assert len(found(adapter("one"), adapter("two", modules_to_save=["lm_head"]))) == 2


def test_adapter_of_a_module_that_the_last_one_replaces_is_refused(adapter):
    """PEFT's LoRA does not wrap a module that modules_to_save has wrapped."""
    one, two, whole = adapter("one"), adapter("two"), adapter("whole", modules_to_save=["lm_head", "x"])
    assert len(found(whole)) == 1
    with pytest.raises(RecipeError) as refused:
        found(one, two, whole)
    assert refused.value.code == "adapters-not-combinable" and "it changes 'x'" in refused.value.what
    assert refused.value.where == f"{whole}/adapter_config.json"


@pytest.fixture
def rotations(tmp_path):
    def make(name, **config):
        directory = tmp_path / name
        directory.mkdir()
        config = {"peft_type": "OFT", "peft_version": "0.21.0", "oft_block_size": 4, **config}
        (directory / "adapter_config.json").write_text(json.dumps(config))
        tensors = {"base_model.model.x.oft_R.weight": numpy.zeros((2, 6), dtype="float32")}
        save_file(tensors, directory / "adapter_model.safetensors")
        return str(directory)

    return make


def test_adapter_of_the_other_tuner_is_refused_with_the_key_that_takes_it(adapter, rotations):
    turned = rotations("turned")
    assert [str(each.path) for each in found(turned, tuner="oft")] == [turned]
    with pytest.raises(RecipeError) as caught:
        found(turned)
    assert caught.value.code == "adapter-type-mismatch" and "method.oft.start_from" in caught.value.remedy
    with pytest.raises(RecipeError) as caught:
        found(adapter("plain"), tuner="oft")
    assert caught.value.code == "adapter-type-mismatch" and "method.lora.start_from" in caught.value.remedy


@pytest.mark.parametrize(("of_file", "of_recipe"), [(True, False), (False, True)])
def test_constrained_rotations_are_continued_by_a_recipe_that_says_so(rotations, of_file, of_recipe):
    turned = rotations("turned", coft=of_file)
    assert len(found(turned, tuner="oft", coft=of_file)) == 1
    with pytest.raises(RecipeError) as caught:
        found(turned, tuner="oft", coft=of_recipe)
    assert caught.value.code == "adapter-form-mismatch"
    assert caught.value.remedy == f"set method.oft.coft: {str(of_file).lower()}"


def test_rotations_of_an_older_peft_are_not_continued(rotations):
    with pytest.raises(RecipeError) as caught:
        found(rotations("old", peft_version="0.17.1"), tuner="oft")
    assert caught.value.code == "adapter-not-mergeable"


def test_directory_without_a_lora_adapter_is_refused(adapter, tmp_path):
    with pytest.raises(RecipeError) as caught:
        found(adapter("one") + "e")
    assert caught.value.code == "path-missing" and "did you mean" in str(caught.value.remedy)
    with pytest.raises(RecipeError) as caught:
        found(adapter("other", peft_type="IA3"))
    assert caught.value.code == "adapter-type-mismatch"
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
