"""`ascendtune merge` as it is typed: what it prints, what it refuses, and what a kill leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ascendtune.cli.main import main
from ascendtune.core.rundir import RunDir
from ascendtune.merge.merge import merge


@pytest.fixture
def ascendtune(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def _run_of(adapter: Path, directory: Path) -> RunDir:
    run = RunDir(directory)
    run.create("", {}, {"argv": ["ascendtune", "train", "recipe.yaml"]})
    shutil.copytree(adapter, run.model)
    return run


def test_a_run_is_merged(make_base: Any, make_adapter: Any, tmp_path: Path, ascendtune: Any) -> None:
    run = _run_of(make_adapter(make_base(dtype=torch.bfloat16)), tmp_path / "runs" / "a")
    code, out, err = ascendtune("merge", run.path, "--to", tmp_path / "new" / "merged")
    assert code == 0 and "warning" not in err and "error" not in err
    assert "4 files" in out and "6 of 27 tensors changed" in out and "verified on 3 tokens" in out
    code, out, _ = ascendtune("merge", run.path, "--to", tmp_path / "again", "--no-verify", "--json")
    answer = json.loads(out)
    assert (code, answer["verification"], answer["changed"]) == (0, None, 6)
    assert (tmp_path / "again" / "config.json").is_file()


def _break_config(adapter: Path, **changes: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _break_tensor(adapter: Path, part: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if part in name)
    changed = change(tensors.pop(name))
    save_file(tensors if changed is None else {**tensors, name: changed}, path)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "IA3": (lambda path: _break_config(path, peft_type="IA3"), "this is a IA3 adapter"),
    "no config": (lambda path: (path / "adapter_config.json").write_text("{"), "not readable as JSON"),
    "layers": (lambda path: _break_config(path, layer_replication=[[0, 1]]), "uses layer_replication"),
    "experts": (lambda path: _break_config(path, target_parameters=["w"], r=2), "a parameter of model.layers.0.mlp"),
    "pissa": (lambda path: _break_config(path, init_lora_weights="pissa_niter_4"), "code: adapter-not-mergeable"),
    "base gone": (lambda path: _break_config(path, base_model_name_or_path="/gone"), "the base model of this adapter"),
    "no base": (lambda path: _break_config(path, base_model_name_or_path=None), "does not name its base model"),
    "wrong rank": (lambda path: _break_config(path, r=3), "are not matrices of rank 3"),
    "no rank": (lambda path: _break_config(path, r="four"), 'r is "four"'),
    "no B": (lambda path: _break_tensor(path, "q_proj.lora_B", lambda old: None), "has no lora_B"),
    "not finite": (lambda path: _break_tensor(path, "lora_A", lambda old: old.fill_(torch.nan)), "not finite"),
    "other width": (lambda path: _break_tensor(path, "lora_B", lambda old: old[:-1].clone()), "was made for"),
    "integers": (lambda path: _break_tensor(path, "lora_B", lambda old: old.int()), "code: adapter-not-mergeable"),
    "pickle": (lambda path: (path / "adapter_model.safetensors").rename(path / "adapter_model.bin"), "a pickle"),
    "no weights": (lambda path: (path / "adapter_model.safetensors").unlink(), "has no weights"),
    "cut off": (lambda path: os.truncate(path / "adapter_model.safetensors", 2000), "damaged or cut off"),
    "other names": (
        lambda path: (path / "adapter_model.safetensors").write_bytes(
            (path / "adapter_model.safetensors").read_bytes().replace(b"q_proj", b"q_prok")
        ),
        "which the base does not have",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_bad_adapter_gets_one_message(
    case: str, make_base: Any, make_adapter: Any, tmp_path: Path, ascendtune: Any
) -> None:
    break_it, message = BROKEN[case]
    adapter = make_adapter(make_base())
    break_it(adapter)
    code, out, err = ascendtune("merge", adapter, "--to", tmp_path / "merged")
    assert (code, out) == (2, "")
    assert message in err and err.count("error:") == 1 and "   do: " in err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_bad_bases_and_targets(make_base: Any, make_adapter: Any, tmp_path: Path, ascendtune: Any) -> None:
    def refused(*words: Any, code: int = 2) -> str:
        ended, _, err = ascendtune("merge", *words)
        assert ended == code and err.count("error:") == 1, err
        return str(err)

    base = make_base()
    adapter, dora = make_adapter(base), make_adapter(base, "dora", use_dora=True)
    to = tmp_path / "merged"
    quantised = Path(shutil.copytree(base, tmp_path / "quantised"))
    config = json.loads((base / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    assert "quantised (gptq)" in refused(adapter, "--onto", quantised, "--to", to)
    other = make_base(tie=True)
    assert "which the base does not have" in refused(make_adapter(other, "deeper"), "--onto", base, "--to", to)
    assert "the target exists already" in refused(adapter, "--to", tmp_path)
    # Before anything is looked for.
    assert "the target exists already" in refused(tmp_path / "nowhere", "--to", tmp_path)
    assert "this is a whole model" in refused(base, "--to", to)
    assert "did you mean" in refused(tmp_path / "adaptor", "--to", to)
    assert "cannot be weighted" in refused(f"{dora}=0.5", "--to", to)
    assert "is not a weight" in refused(f"{adapter}=half", "--to", to)
    assert "is a file" in refused(adapter, "--to", base / "config.json" / "x", code=3)
    run = _run_of(adapter, tmp_path / "full")
    (run.model / "adapter_config.json").unlink()
    assert "there is nothing to merge" in refused(run, "--to", to)
    shutil.rmtree(run.model)
    assert "no final weights" in refused(run, "--to", to)
    assert not to.exists()


def test_another_base_is_told(make_base: Any, make_adapter: Any, tmp_path: Path) -> None:
    adapter = make_adapter(make_base())
    other = shutil.copytree(make_base(), tmp_path / "other")
    merged = merge([str(adapter)], tmp_path / "merged", onto=str(other), verify=False)
    assert any("is merged onto" in note for note in merged.notes)
    same = merge([str(adapter)], tmp_path / "same", onto=f"{make_base()}/", verify=False)
    assert not same.notes


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize(
    ("before", "at"),
    [("write.write_header", 1), ("write._write", 4), ("write.write_json", 1),
     ("files.sync_tree", 1), ("files.sync_path", 1)],
)  # fmt: skip
def test_killed_anywhere_the_target_is_absent_or_whole(
    before: str, at: int, make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    adapter = make_adapter(make_base())
    target, reached = tmp_path / "merged", tmp_path / "reached"
    program = str(Path(__file__).with_name("stopped_merge.py"))
    child = subprocess.Popen([sys.executable, program, str(adapter), str(target), before, str(at), str(reached)])
    deadline = time.monotonic() + 60
    while not reached.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reached.exists()
    child.send_signal(signal.SIGKILL)
    child.wait()
    merge([str(adapter)], tmp_path / "whole", verify=False)
    # What is left to do after the rename is to make it durable.
    assert target.exists() == (before == "files.sync_path")
    if not target.exists():
        merge([str(adapter)], target, verify=False)
    assert _contents(target) == _contents(tmp_path / "whole")
    assert not (tmp_path / ".merged.merging").exists()


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}
