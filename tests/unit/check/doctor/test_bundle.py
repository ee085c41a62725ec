"""The content of a bundle, and the content that is masked or left out."""

from __future__ import annotations

import errno
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.doctor import bundle
from ascendtune.check.doctor.bundle import collect, masked_words, write_bundle
from ascendtune.check.doctor.check import examine, verdict
from ascendtune.check.doctor.system import System
from ascendtune.core.errors import MachineError


def _read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as bundle:
        files = {each.name: bundle.extractfile(each) for each in bundle.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file}


def test_bundle_holds_logs_and_facts_without_secrets(lay: Callable[..., System], tmp_path: Path) -> None:
    home = tmp_path / "home" / "wanglei"
    log = home / "ascend/log/debug/plog/plog-1_2.log"
    same_name = home / "ascend/log/run/plog/plog-1_2.log"
    for path, text in ((log, "[ERROR] HCCL 10.20.0.11 by wanglei\n"), (same_name, "[EVENT] started\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    system = lay("healthy-910b4", HOME=str(home), HF_TOKEN="hf_abcdefghijklmnop", MASTER_ADDR="10.20.0.11")
    examination = examine(system)
    collected = collect(verdict(examination, system), examination, system)
    assert masked_words(collected).keys() >= {bundle._KINDS[kind] for kind in ("***", "ip", "user")}
    write_bundle(tmp_path / "report.tar.gz", collected)
    files = _read(tmp_path / "report.tar.gz")
    assert "this machine trains on 8 NPU" in files["report/doctor.json"]
    assert '"driver_version": "25.2.0"' in files["report/versions.json"]
    assert "910B4" in files["report/npu-smi.txt"] and "SIMULATED" in files["report/npu-smi.txt"]
    assert files["report/plog/debug/plog/plog-1_2.log"] == "[ERROR] HCCL <ip-1> by <user-1>\n"
    assert files["report/plog/run/plog/plog-1_2.log"] == "[EVENT] started\n"
    assert "HF_TOKEN=***" in files["report/environment.txt"] and "MASTER_ADDR=<ip-1>" in files["report/environment.txt"]
    everything = "".join(files.values())
    assert not [word for word in ("wanglei", "10.20.0.11", "hf_abc") if word in everything]


def test_packages_without_a_name_are_left_out(
    lay: Callable[..., System], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages" / "~orch-2.9.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    system = lay("healthy-910b4")
    assert '"pytest"' in collect("", examine(system, ["limits"]), system)["versions.json"]


def test_bundle_on_a_full_disk_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.tar.gz"
    write_bundle(path, {"a": "text"})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MachineError):
        write_bundle(path, {"a": "another"})
    assert _read(path) == {"report/a": "text"} and list(tmp_path.iterdir()) == [path]


def test_bundle_that_cannot_be_written_raises(lay: Callable[..., System], tmp_path: Path) -> None:
    system = lay("healthy-910b4")
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError):
        write_bundle(tmp_path / "file" / "report.tar.gz", collect("", examine(system, ["limits"]), system))
