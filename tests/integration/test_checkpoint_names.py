"""Commands take a checkpoint by its name: its weights are those that training would have exported there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from ascendtune.cli.main import main
from ascendtune.cli.run_names import complete_weights, weights_named
from ascendtune.core.errors import InputError, MachineError, RecipeError
from ascendtune.core.files import digest_of_file
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import checkpoint_weights
from ascendtune.train.fit import fit
from ascendtune.train.run_choice import checkpoint_to_resume

pytestmark = pytest.mark.usefixtures("preloaded")

METHODS: dict[str, dict[str, Any]] = {
    "full": {"tuner": "full"},
    "lora": {"tuner": "lora", "lora": {"rank": 4, "init": "pissa"}},
    "oft": {"tuner": "oft", "oft": {"block_size": 8, "module_dropout": 0.3}},
}


@pytest.fixture(scope="module")
def place(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished run of each method, of six steps, a checkpoint after every other one.

    `full-4` and its like are the same trainings, ended after four steps.
    """
    place = tmp_path_factory.mktemp("runs-of-names")
    rows = [{"instruction": f"What is {n} plus {n}?", "output": f"It is {2 * n}."} for n in range(40)]
    (place / "rows.json").write_text(json.dumps(rows))
    for name, steps in ((name, steps) for name in METHODS for steps in (6, 4)):
        recipe: dict[str, Any] = {
            "name": name if steps == 6 else f"{name}-{steps}",
            "run_dir": str(place / "runs" / "{name}"),
            "model": {"path": str(tiny_model)},
            "data": {"train": str(place / "rows.json"), "max_length": 64, "eval_rows": 8},
            "method": METHODS[name],
            "optim": {"learning_rate": 1e-2, "max_steps": steps, "scheduler": "constant"},
            "checkpoint": {"every_steps": 2, "keep": 9},
            "precision": "bf16",
        }
        fit(Recipe.check(recipe))
    return place


@pytest.fixture
def runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the runs, below the working directory."""
    monkeypatch.chdir(place)
    return Path("runs")


def weights_in(directory: Path) -> dict[str, torch.Tensor]:
    [file] = directory.glob("*model.safetensors")
    return load_file(file)


@pytest.mark.parametrize("name", METHODS)
def test_weights_of_a_checkpoint_are_those_that_training_exports_from_it(name: str, runs: Path) -> None:
    exported = weights_in(runs / f"{name}-4" / "model")
    found = weights_in(Path(weights_named(f"{name}@4")))
    assert exported.keys() == found.keys()
    assert all(torch.equal(tensor, found[key]) for key, tensor in exported.items())
    assert weights_named(f"{name}@6") == weights_named(f"{name}@best") == str(runs / name / "model")


def test_an_export_is_made_once(runs: Path) -> None:
    first = Path(weights_named("lora@4"))
    written = (first / "adapter_model.safetensors").stat().st_mtime_ns
    assert weights_named("lora@4") == str(first)
    assert (first / "adapter_model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("name", ["lora", "oft"])
def test_generate_and_merge_take_a_checkpoint(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", f"{name}@4", "What is 1 plus 1?", "--max-new-tokens", "4", "--json"])
    assert ended.value.code == 0 and "answer" in json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit) as ended:
        main(["merge", f"{name}@4", "--to", str(tmp_path / "merged"), "--no-verify"])
    assert ended.value.code == 0 and (tmp_path / "merged" / "model.safetensors").is_file()


def test_push_takes_a_checkpoint_and_its_card_names_the_step(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["push", "lora@4", "o/m", "--base", "o/base", "--dry-run"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and "adapter_model.safetensors" in shown
    assert "These are the weights of step 4." in shown and "at step 4." in shown


def test_a_checkpoint_that_training_removes_meanwhile_is_not_called_damaged(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = runs / "oft" / "checkpoints" / "step_2"
    load = checkpoint_weights.load_model

    def load_slowly(*given: Any, **named: Any) -> Any:
        checkpoint.rename(checkpoint.with_name("elsewhere"))
        return load(*given, **named)

    monkeypatch.setattr(checkpoint_weights, "load_model", load_slowly)
    with pytest.raises(InputError) as caught:
        weights_named("oft@2")
    checkpoint.with_name("elsewhere").rename(checkpoint)
    assert caught.value.code == "checkpoint-missing" and "oft@last" in caught.value.remedy


def test_a_damaged_checkpoint_is_refused(runs: Path) -> None:
    [file] = (runs / "full" / "checkpoints" / "step_2").glob("tensors_rank_*.safetensors")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(MachineError) as caught:
        weights_named("full@2")
    file.write_bytes(content)
    assert caught.value.code == "checkpoint-damaged"


def test_a_checkpoint_with_a_pipe_in_it_is_not_waited_for(runs: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(runs / "full", foreign, ignore=shutil.ignore_patterns("exported"))
    checkpoint = foreign / "checkpoints" / "step_4"
    for file in ("digests.json", next(checkpoint.glob("tensors_rank_*.safetensors")).name):
        content = (checkpoint / file).read_bytes()
        (checkpoint / file).unlink()
        os.mkfifo(checkpoint / file)
        with pytest.raises(MachineError) as caught:
            weights_named(f"{foreign}@4")
        assert caught.value.code == ("not-a-regular-file" if file == "digests.json" else "checkpoint-damaged")
        (checkpoint / file).unlink()
        (checkpoint / file).write_bytes(content)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("checkpoints/step_4/digests.json", "[" * 100_000),
        ("checkpoints/step_4/digests.json", '["state.json"]'),
        ("checkpoints/step_4/state.json", "5"),
        *(("run.json", changes) for changes in (
            {"model_directory": None}, {"model_directory": 5}, {"resolved": {"precision": {"weights": ["fp32"]}}},
            {"resolved": {}}, {"config_hashes": None, "adapters": [5]}, {"adapters": {"path": "a"}},
        )),
    ],
)  # fmt: skip
def test_damaged_records_of_a_foreign_run_are_named(
    file: str, content: str | dict[str, Any], runs: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(runs / "full", foreign, ignore=shutil.ignore_patterns("exported"))
    if isinstance(content, dict):
        content = json.dumps({**json.loads((foreign / file).read_text()), **content})
    (foreign / file).write_text(content)
    with pytest.raises(MachineError) as caught:
        weights_named(f"{foreign}@4")
    assert caught.value.code in ("record-damaged", "checkpoint-damaged")


@pytest.mark.parametrize(
    "changes",
    [{"adapters": [{"path": "a\0b", "digest": ""}]}, {"config_hashes": {"a\ud800b": ""}}, {"model_directory": "a\0b"}],
)
def test_path_in_a_foreign_record_that_no_file_can_have_is_named(
    changes: dict[str, Any], runs: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(runs / "full", foreign, ignore=shutil.ignore_patterns("exported"))
    record = json.loads((foreign / "run.json").read_text())
    (foreign / "run.json").write_text(json.dumps({**record, **changes}))
    with pytest.raises(RecipeError) as caught:
        weights_named(f"{foreign}@4")
    assert caught.value.code in ("file-unreadable", "tokenizer-missing")


def test_checkpoint_with_a_link_to_a_file_of_the_kernel_is_not_waited_for(runs: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(runs / "full", foreign, ignore=shutil.ignore_patterns("exported"))
    [file] = (foreign / "checkpoints" / "step_4").glob("tensors_rank_*.safetensors")
    file.unlink()
    file.symlink_to("/proc/version")
    digests = file.with_name("digests.json")
    expected = json.loads(digests.read_text())
    digests.write_text(json.dumps({**expected, file.name: digest_of_file(Path("/proc/version"))}))
    with pytest.raises(MachineError, match="is not as it was written") as caught:
        weights_named(f"{foreign}@4")
    assert caught.value.code == "checkpoint-damaged"


def test_export_does_not_follow_what_others_may_have_put_into_a_run(runs: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(runs / "full", foreign, ignore=shutil.ignore_patterns("exported"))
    (foreign / "exported").mkdir()
    (foreign / "exported").chmod(0o777)
    with pytest.raises(MachineError) as caught:
        weights_named(f"{foreign}@4")
    assert caught.value.code == "writable-by-others"


def test_code_that_a_run_of_another_user_trusts_does_not_run(runs: Path, tiny_model: Path, tmp_path: Path) -> None:
    foreign, model = tmp_path / "foreign", tmp_path / "model"
    shutil.copytree(runs / "full", foreign, ignore=shutil.ignore_patterns("exported"))
    shutil.copytree(tiny_model, model)
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "code.OwnConfig"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    record = json.loads((foreign / "run.json").read_text())
    (foreign / "run.json").write_text(json.dumps({**record, "model_directory": str(model)}))
    recipe = yaml.safe_load((foreign / "recipe.yaml").read_text())
    recipe["model"]["trust_remote_code"] = True
    (foreign / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(InputError) as caught:
        weights_named(f"{foreign}@4")
    assert caught.value.code == "model-code-not-trusted" and not (tmp_path / "ran").exists()


def test_a_command_for_runs_says_that_it_takes_no_checkpoint(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["runs", "show", "lora@2"])
    assert ended.value.code == InputError.exit_code and "checkpoint-not-taken" in capsys.readouterr().err


def test_the_shell_completes_checkpoints(runs: Path) -> None:
    assert [name for name, _ in complete_weights("lora@")] == ["lora@6", "lora@4", "lora@2", "lora@best", "lora@last"]
    assert [name for name, _ in complete_weights("lora@b")] == ["lora@best"]
    assert [name for name, _ in complete_weights("lo")] == ["lora-4", "lora"]


def test_resume_takes_a_checkpoint_name(runs: Path) -> None:
    values = {"model": {"path": "m"}, "data": {"train": "rows.json"}, "checkpoint": {"resume": "lora@4"}}
    recipe = Recipe.check({**values, "name": "other"})
    assert checkpoint_to_resume(recipe) == RunDir(runs / "lora").checkpoint(4)


@pytest.mark.parametrize("name", METHODS)
def test_push_takes_all_that_a_training_exports(name: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["push", name, "owner/model", "--base", "owner/base", "--dry-run"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--json"])
    pushed = json.loads(capsys.readouterr().out)
    assert left.value.code == 0 and pushed["left_out"] == []
    exported = {each.name for each in (runs / name / "model").iterdir()}
    assert {each["name"] for each in pushed["files"]} == exported | {"README.md", "loss.png"}
    with pytest.raises(SystemExit):
        main(words)
    shown = capsys.readouterr().out
    assert "base_model: owner/base" in shown and "More Information Needed" not in shown
    assert str(runs.resolve().parent) not in shown
