"""`ascendtune push` as a user gives it, to a hub on loopback."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import yaml
from huggingface_hub import ModelCard, ModelCardData
from safetensors.torch import save_file

from ascendtune.cli import main as command_line
from ascendtune.cli.push import push
from ascendtune.core.errors import AscendtuneError, InputError, MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.train.report.model_card import base_on_hub, model_card
from hub_server import Hub, serving

_TOKEN = "hf_" + "a" * 34
_RECIPE = {
    "model": {"path": "/home/alice/models/base"},
    "data": {"train": [{"path": "/home/alice/rows.jsonl"}, {"path": "hf:owner/rows"}], "max_length": 512},
    "method": {"stage": "sft", "tuner": "full", "lora": {"rank": 8}},
    "optim": {"learning_rate": 1e-4, "epochs": 2},
    "track": {"host": f"https://alice:{_TOKEN}@example.com"},
}
_REPORT = {
    "train": {
        "datasets": [{"path": "/home/alice/rows.jsonl", "format": "messages", "rows_trained": 1234, "tokens": 56789}],
        "rows_kept": 1234, "tokens": 5678, "labelled_tokens": 910,
    },
    "eval": None,
}  # fmt: skip


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub({})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", _TOKEN)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        yield hub


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "qa")
    run.create(yaml.safe_dump(_RECIPE), {}, {
        "model_directory": "/home/alice/models/base", "directory": "/home/alice", "host": "secret-host",
        "versions": {"torch": "2.13.0"}, "argv": ["ascendtune", "train", "/home/alice/recipe.yaml"],
        "resolved": {"global_batch": 8, "total_steps": 30, "parameters": 1000, "trainable": 1000,
                     "device": {"name": "Ascend 910B", "world_size": 8}},
    })  # fmt: skip
    run.update(state="finished")
    run.data_report.write_text(json.dumps(_REPORT))
    run.metrics.write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n{"step": 30, "loss": 0.5}\n')
    run.evaluations.write_text("".join(f'{{"step": {step}, "loss": {10 / step}}}\n' for step in range(1, 31)))
    (run.path / "loss.png").write_bytes(b"a picture")
    run.model.mkdir()
    save_file({"w": torch.zeros(4)}, run.model / "model.safetensors")
    (run.model / "config.json").write_text('{"model_type": "qwen2", "_name_or_path": "/home/alice/models/base"}')
    (run.model / "tokenizer.json").write_text("{}")
    (run.model / "optimizer.pt").write_bytes(b"state")
    (run.model / "vocab.json").symlink_to("/etc/passwd")
    return run


def _push(run: RunDir, *, public: bool = False) -> None:
    push(run.path, "o/m", public=public, yes=True)


def test_new_repository_is_private_and_gets_the_allowed_files_only(hub: Hub, run: RunDir) -> None:
    _push(run)
    assert hub.private is True
    assert sorted(hub.files) == ["README.md", "config.json", "loss.png", "model.safetensors", "tokenizer.json"]
    assert hub.files["model.safetensors"] == (run.model / "model.safetensors").read_bytes()
    assert json.loads(hub.files["config.json"]) == {"model_type": "qwen2"}
    assert {*hub.tokens} == {f"Bearer {_TOKEN}"}
    everything = b"".join(hub.files.values())
    assert not any(each in everything for each in (b"/home/alice", _TOKEN.encode(), b"secret-host", b"root:"))


def test_same_content_again_makes_no_commit(hub: Hub, run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    _push(run)
    _push(run)
    assert len(hub.commits) == 1 and "nothing new" in capsys.readouterr().out
    with (run.metrics).open("a") as metrics:
        metrics.write('{"step": 31, "loss": 0.25}\n')
    _push(run)
    assert hub.commits[1:] == [["README.md"]]


def test_weights_that_arrived_are_not_sent_again_after_a_failed_commit(hub: Hub, run: RunDir) -> None:
    hub.refuses_commits = [500]
    with pytest.raises(MachineError) as caught:
        _push(run)
    assert caught.value.code == "upload-failed" and len(hub.stored) == 1
    hub.stored = dict.fromkeys(hub.stored, b"sent before")
    _push(run)
    assert hub.files["model.safetensors"] == b"sent before"


def test_public_repository_is_refused_without_public(hub: Hub, run: RunDir) -> None:
    hub.private = False
    with pytest.raises(InputError) as caught:
        _push(run)
    assert caught.value.code == "repository-public" and not hub.commits
    _push(run, public=True)
    assert len(hub.commits) == 1


def test_repository_needs_an_owner(hub: Hub, run: RunDir) -> None:
    with pytest.raises(InputError) as refused:
        push(run.path, "my-model", yes=True)
    assert refused.value.code == "invalid-hub-id" and "OWNER/my-model" in str(refused.value.remedy)
    assert not hub.tokens and hub.private is None


def test_public_is_refused_for_a_private_repository(hub: Hub, run: RunDir) -> None:
    hub.private = True
    with pytest.raises(InputError) as caught:
        _push(run, public=True)
    assert caught.value.code == "repository-private" and not hub.commits


def test_nothing_is_sent_without_an_answer(hub: Hub, run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command_line.main(["push", str(run), "o/m"])
    shown = capsys.readouterr()
    assert left.value.code == 2 and "confirmation-needed" in shown.err
    assert hub.private is None and not hub.commits
    assert "stays here: optimizer.pt, vocab.json" in shown.out and "a new private repository" in shown.out


def test_missing_token_and_dead_hub_are_told_apart(
    hub: Hub, run: RunDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(AscendtuneError) as caught:
        _push(run)
    assert caught.value.code == "hub-access-denied"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(AscendtuneError) as caught:
        _push(run)
    assert caught.value.code == "hub-unreachable"


@pytest.mark.parametrize("answer", [b"null", b"[1, 2]", b"7", b"", b"<html>Log in</html>", b'{"id": '])
def test_an_answer_that_is_not_from_a_hub_is_reported(
    hub: Hub, run: RunDir, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    # huggingface_hub would keep such an answer as its list of agents, for a day.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True)

    def strange(handler: Any) -> None:
        handler._answer(200, answer, {"Content-Type": "application/json"})

    monkeypatch.setattr("hub_server._Handler.do_GET", strange)
    with pytest.raises(MachineError) as caught:
        _push(run)
    assert caught.value.code == "hub-unreachable" and "the answer is not from a hub" in caught.value.what


def _make_adapter(run: RunDir) -> None:
    for file in run.model.iterdir():
        file.unlink()
    save_file({"w": torch.zeros(4)}, run.model / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "/home/alice/models/base"}
    (run.model / "adapter_config.json").write_text(json.dumps(config))


def test_adapter_names_its_base_on_the_hub(hub: Hub, run: RunDir) -> None:
    _make_adapter(run)
    with pytest.raises(InputError) as caught:
        _push(run)
    assert caught.value.code == "base-model-unknown" and not hub.commits
    push(run.path, "o/m", base="Qwen/Qwen3-8B", yes=True)
    assert json.loads(hub.files["adapter_config.json"])["base_model_name_or_path"] == "Qwen/Qwen3-8B"
    assert b'AutoPeftModelForCausalLM.from_pretrained("o/m")' in hub.files["README.md"]
    assert b"base_model: Qwen/Qwen3-8B\nbase_model_relation: adapter\n" in hub.files["README.md"]


@pytest.mark.parametrize(("base", "revision"), [(None, "step3000"), ("Qwen/Qwen3-8B", "step3000"), ("me/copy", None)])
def test_adapter_names_the_revision_of_its_base(hub: Hub, run: RunDir, base: str | None, revision: str | None) -> None:
    _make_adapter(run)
    recipe = {**_RECIPE, "model": {"path": "Qwen/Qwen3-8B", "revision": "step3000"}}
    run.recipe.write_text(yaml.safe_dump(recipe))
    run.update(model_directory="/home/alice/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123")
    push(run.path, "o/m", base=base, yes=True)
    config = json.loads(hub.files["adapter_config.json"])
    assert (config["base_model_name_or_path"], config.get("revision")) == (base or "Qwen/Qwen3-8B", revision)


@pytest.mark.parametrize("entry", ["", "This one likes cats.\n"])
def test_form_of_peft_is_replaced_and_a_card_of_the_user_is_kept(hub: Hub, run: RunDir, entry: str) -> None:
    _make_adapter(run)
    form = ModelCard.from_template(ModelCardData())
    form.data["base_model"] = "/home/alice/models/base"
    text = f"{form}\n{entry}### Framework versions\n\n- PEFT 0.21.2"
    (run.model / "README.md").write_text(text)
    push(run.path, "o/m", base="Qwen/Qwen3-8B", yes=True)
    assert (hub.files["README.md"].decode() == text) == bool(entry)


def test_card_has_data_settings_curve_evaluation_and_versions(run: RunDir) -> None:
    card = model_card(run, "hf:o/m", None, with_picture=True)
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert metadata["datasets"] == ["owner/rows"] and "base_model" not in metadata
    for part in ("| `rows.jsonl` | `messages` | 1,234 | 56,789 |", "| `optim.learning_rate` | `0.0001` |", "(loss.png)",
                 "from 2.5 at step 1 to 0.5 at step 30", "| 1 | 10 |", "| 30 | 0.3333 |", "| `torch` | `2.13.0` |",
                 "| devices | 8 × `Ascend 910B` |"):  # fmt: skip
        assert part in card
    assert card.count("\n| ") < 45 and "lora" not in card and "track" not in card


def test_card_of_weights_from_before_the_last_step_ends_with_their_step(run: RunDir) -> None:
    run.update(exported_step=30)
    assert "weights of step" not in model_card(run, "hf:o/m", None, with_picture=False)
    run.metrics.write_text('{"step": 1, "loss": 2.5}\n{"step": 12, "loss": 1.5}\n{"step": 30, "loss": 0.5}\n')
    run.update(exported_step=12)
    card = model_card(run, "hf:o/m", None, with_picture=False)
    assert "These are the weights of step 12." in card and "to 1.5 at step 12." in card
    assert "| 12 | 0.8333 |" in card and "| 30 | 0.3333 |" not in card


def test_card_has_no_evaluations_of_other_rows(run: RunDir) -> None:
    run.evaluations.write_text(
        '{"step": 10, "loss": 0.1, "data_hash": "a"}\n{"step": 30, "loss": 0.7, "data_hash": "b"}\n'
    )
    card = model_card(run, "hf:o/m", None, with_picture=False)
    assert "| 30 | 0.7 |" in card and "| 10 |" not in card


def test_base_is_known_only_where_the_hub_s_cache_says_so(run: RunDir) -> None:
    run.rewrite_recipe(yaml.safe_dump({"model": {"path": "Qwen/Qwen3-8B"}}), {})
    assert base_on_hub(run) is None, "a relative directory may have this name"
    run.update(model_directory="/home/alice/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123")
    assert base_on_hub(run) == "Qwen/Qwen3-8B"


def test_values_of_a_foreign_run_cannot_become_markup(run: RunDir) -> None:
    report = {"train": {"datasets": [{"path": "a|`<img>\n# b", "format": _TOKEN, "rows_trained": "<b>"}]}}
    run.data_report.write_text(json.dumps(report))
    card = model_card(run, "hf:o/m", None, with_picture=False)
    assert "| `a  <img> # b` | `***` | - |" in card


def test_half_a_surrogate_pair_in_a_foreign_run_does_not_end_the_upload(hub: Hub, run: RunDir) -> None:
    run.update(versions={"torch": "2.13\ud800"})
    _push(run)
    assert "| `torch` | `2.13` |" in hub.files["README.md"].decode()


@pytest.fixture
def modelscope(clients: None, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", _TOKEN)
    # Where its client looks for a log-in.
    monkeypatch.setenv("MODELSCOPE_HOME", str(tmp_path / "modelscope"))
    return hub


def test_modelscope_gets_the_files_in_one_commit_and_changes_only_afterwards(
    modelscope: Hub, run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    run.rewrite_recipe(yaml.safe_dump({"model": {"path": "modelscope:Qwen/Qwen3-8B"}}), {})
    push(run.path, "modelscope:o/m", yes=True)
    assert modelscope.private is True and len(modelscope.commits) == 1
    assert sorted(modelscope.files) == ["README.md", "config.json", "loss.png", "model.safetensors", "tokenizer.json"]
    assert modelscope.files["model.safetensors"] == (run.model / "model.safetensors").read_bytes()
    card = modelscope.files["README.md"].decode()
    assert "(https://www.modelscope.cn/models/Qwen/Qwen3-8B)" in card and "ascendtune chat modelscope:o/m" in card
    shown = capsys.readouterr().out
    assert shown.rstrip().endswith(f"uploaded: {modelscope.endpoint}/models/o/m") and "Upload Report" not in shown
    everything = b"".join(modelscope.files.values())
    assert not any(each in everything for each in (b"/home/alice", _TOKEN.encode(), b"secret-host", b"root:"))
    push(run.path, "modelscope:o/m", yes=True)
    assert len(modelscope.commits) == 1 and "nothing new" in capsys.readouterr().out
    with (run.metrics).open("a") as metrics:
        metrics.write('{"step": 31, "loss": 0.25}\n')
    push(run.path, "modelscope:o/m", yes=True)
    assert modelscope.commits[1:] == [["README.md"]]


def test_weights_that_modelscope_stored_are_not_sent_again_after_a_refused_commit(modelscope: Hub, run: RunDir) -> None:
    modelscope.refuses_commits = [422] * 9
    with pytest.raises(MachineError) as caught:
        push(run.path, "modelscope:o/m", yes=True)
    assert caught.value.code == "upload-failed" and "422" in caught.value.what and _TOKEN not in str(caught.value)
    modelscope.refuses_commits.clear()
    modelscope.stored = dict.fromkeys(modelscope.stored, b"sent before")
    push(run.path, "modelscope:o/m", yes=True)
    assert modelscope.files["model.safetensors"] == b"sent before"


def test_public_repository_of_modelscope_is_refused_without_public(modelscope: Hub, run: RunDir) -> None:
    modelscope.private = False
    with pytest.raises(InputError) as caught:
        push(run.path, "modelscope:o/m", yes=True)
    assert caught.value.code == "repository-public" and not modelscope.commits


def test_modelscope_tells_a_missing_token_a_dead_hub_and_a_missing_client_apart(
    modelscope: Hub, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code() -> str:
        with pytest.raises(AscendtuneError) as caught:
            push(run.path, "modelscope:o/m", yes=True)
        return caught.value.code

    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "")
    assert code() == "hub-access-denied" and modelscope.private is None
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    assert code() == "hub-unreachable"
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    assert code() == "package-missing"


def test_adapter_for_modelscope_is_loaded_through_modelscope_s_own_download(run: RunDir) -> None:
    _make_adapter(run)
    card = model_card(run, "modelscope:o/m", "Qwen/Qwen3-8B", with_picture=False)
    assert 'AutoPeftModelForCausalLM.from_pretrained(snapshot_download("o/m"))' in card
    assert "from modelscope import snapshot_download\n" in card


def test_variable_that_forbids_the_network_is_named(hub: Hub, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    # huggingface_hub reads the variables when it is imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    with pytest.raises(MachineError, match="TRANSFORMERS_OFFLINE is set"):
        _push(run)
