from __future__ import annotations

from pathlib import Path

from ascendtune.machine.container import NEEDS
from ascendtune.machine.visible import attached


def test_the_driver_is_always_mounted_and_tools_where_they_are(tmp_path: Path) -> None:
    bare = NEEDS["npu"].mounts(tmp_path)
    assert bare == ("/usr/local/Ascend/driver", "/usr/local/dcmi", "/etc/ascend_install.info")
    tool = tmp_path / "usr/local/sbin/npu-smi"
    tool.parent.mkdir(parents=True)
    tool.touch()
    assert NEEDS["npu"].mounts(tmp_path) == (*bare, "/usr/local/sbin/npu-smi")
    assert NEEDS["cuda"].mounts(tmp_path) == NEEDS["cpu"].mounts(tmp_path) == ()


def test_devices_have_files_of_their_own_and_share_some() -> None:
    shared = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
    assert NEEDS["npu"].device_files(("2", "5")) == ("/dev/davinci2", "/dev/davinci5", *shared)
    assert NEEDS["cpu"].device_files(("0",)) == ()


def test_devices_are_attached_whether_or_not_torch_can_use_them(tmp_path: Path) -> None:
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (tmp_path / name).touch()
    assert attached("npu", {}, tmp_path) == ("0", "1")
    assert attached("npu", {"ASCEND_RT_VISIBLE_DEVICES": "1"}, tmp_path) == ("1",)
    assert attached("cpu", {}, tmp_path) == ()
