"""A run goes on with the config.json that it began with: the same weights with another one are another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.train.recorded_config import hashes_of_configs, require_recorded_configs, require_same_config


def model(directory: Path, **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    config = {"model_type": "llama", "rope_theta": 10_000.0, "rms_norm_eps": 1e-6, **fields}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    "change",
    [{"rope_theta": 500_000.0}, {"rms_norm_eps": 1e-5}, {"sliding_window": None}, {"text_config": {"hidden_size": 8}}],
    ids=json.dumps,
)
def test_config_with_which_the_weights_are_another_model_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    record = {"config_hashes": hashes_of_configs(model(tmp_path / "model"), None)}
    require_recorded_configs(record)
    changed = hashes_of_configs(model(tmp_path / "model", **change), None)
    for look in (lambda: require_recorded_configs(record), lambda: require_same_config(record, changed)):
        with pytest.raises(RecipeError) as refused:
            look()
        assert refused.value.code == "base-model-changed"
        assert refused.value.where == str(tmp_path / "model/config.json")


def test_copy_of_a_model_that_another_release_saved_is_the_same(tmp_path: Path) -> None:
    record = {"config_hashes": hashes_of_configs(model(tmp_path / "one"), None)}
    copy = model(tmp_path / "two", transformers_version="5.0.0", use_cache=False, _name_or_path="one")
    require_same_config(record, hashes_of_configs(copy, None))


def test_reference_may_be_another_one_beside_the_checkpoint_of_another_run_and_not_within_one(tmp_path: Path) -> None:
    trained, reference = model(tmp_path / "one"), model(tmp_path / "two")
    record = {"config_hashes": hashes_of_configs(trained, reference)}
    model(reference, rope_theta=1.0)
    require_same_config(record, hashes_of_configs(trained, reference))
    with pytest.raises(RecipeError) as refused:
        require_recorded_configs(record)
    assert refused.value.where == str(reference / "config.json")
