from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ascendtune.machine.npu.versions import (
    Toolkit,
    Versions,
    installed_versions,
    read_list,
    read_values,
)

Text = Callable[[str], str]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_version_files_are_read_as_names_and_values(transcript: Text) -> None:
    runtime = read_values(transcript("version_info_runtime_cann8.1"))
    assert runtime["Version"] == "7.7.0.1.238" and runtime["version_dir"] == "8.1.RC1"
    assert runtime["required_driver_ascendhal_version"] == "4.0.0"
    assert runtime["required_opp_abi_version"] == ">=6.3, <=7.7"
    assert read_values(transcript("version_info_atb_cann8.1"))["Ascend-cann-atb Version"] == "8.1.RC1.B150"


def test_driver_and_firmware_say_what_goes_with_them(transcript: Text) -> None:
    driver = read_values(transcript("version_info_driver_23.0.7"))
    assert driver["Version"] == "23.0.7" and read_list(driver["compatible_version_fw"]) == ["7.0.0,7.1.99"]
    firmware = read_values(transcript("version_info_firmware_7.1"))
    assert read_list(firmware["compatible_version_drv"]) == ["23.0.rc3,23.0.rc3.", "23.0.0,23.0.0."]


def test_versions_of_an_installation_are_read(tmp_path: Path, transcript: Text) -> None:
    ascend = tmp_path / "usr/local/Ascend"
    _write(tmp_path / "etc/ascend_install.info", transcript("etc_ascend_install.info"))
    _write(ascend / "driver/version.info", transcript("version_info_driver_23.0.7"))
    _write(ascend / "firmware/version.info", transcript("version_info_firmware_7.1"))
    release = ascend / "ascend-toolkit/8.1.RC1"
    _write(release / "aarch64-linux/ascend_toolkit_install.info", transcript("install_info_toolkit_cann8.1"))
    _write(release / "runtime/version.info", transcript("version_info_runtime_cann8.1"))
    (ascend / "ascend-toolkit/latest").symlink_to(release)
    expected = Toolkit(str(release), "8.1.RC1", "7.7.0.1.238", in_use=False)
    assert installed_versions(tmp_path, {}) == Versions("23.0.7", "7.1.0.11.220", (expected,))
    used = installed_versions(tmp_path, {"ASCEND_HOME_PATH": str(ascend / "ascend-toolkit/latest/aarch64-linux")})
    assert [kit.in_use for kit in used.toolkits] == [True]


def test_a_directory_of_links_is_not_a_toolkit_of_its_own(tmp_path: Path, transcript: Text) -> None:
    toolkits = tmp_path / "usr/local/Ascend/ascend-toolkit"
    _write(toolkits / "8.1.RC1/runtime/version.info", transcript("version_info_runtime_cann8.1"))
    (toolkits / "latest").mkdir()
    (toolkits / "latest/runtime").symlink_to("../8.1.RC1/runtime")
    found = installed_versions(tmp_path, {"ASCEND_TOOLKIT_HOME": str(toolkits / "latest")})
    assert [(Path(kit.path).name, kit.in_use) for kit in found.toolkits] == [("8.1.RC1", True)]


def test_driver_is_found_at_its_install_path(tmp_path: Path, transcript: Text) -> None:
    _write(tmp_path / "etc/ascend_install.info", "Driver_Install_Path_Param=/opt/huawei\n")
    _write(tmp_path / "opt/huawei/driver/version.info", transcript("version_info_driver_23.0.7"))
    assert installed_versions(tmp_path, {}) == Versions("23.0.7", None, ())


def test_versions_are_none_when_nothing_is_installed(tmp_path: Path) -> None:
    assert installed_versions(tmp_path, {}) == Versions(None, None, ())
