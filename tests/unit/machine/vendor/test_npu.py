"""Facts about NPUs without torch: published speeds of links, near cores, needs of a container."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

import pytest

from ascendtune.machine.npu.smi import NpuSmi
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.vendor.npu import NpuVendor

FIXTURES = Path(__file__).parents[3] / "fixtures" / "ascend"


@pytest.fixture
def smi(tmp_path: Path) -> Callable[[str, str], NpuSmi]:
    """npu-smi as a script that prints these transcripts for `info` and `info -t topo`."""

    def make(info: str, topology: str) -> NpuSmi:
        files = [shlex.quote(str(FIXTURES / f"{name}.txt")) for name in (info, topology)]
        program = tmp_path / "npu-smi"
        program.write_text(
            f'#!/bin/sh\ncase "$*" in\ninfo) cat {files[0]};;\n"info -t topo") cat {files[1]};;\n*) exit 1;;\nesac\n'
        )
        program.chmod(0o755)
        return NpuSmi(env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, root=tmp_path)

    return make


def test_peak_of_hccs_between_910b_is_known(
    smi: Callable[[str, str], NpuSmi], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    peak = NpuVendor().link_peak(("0", "7"), smi=smi("info_910b1_23.0.rc2_elided", "topo_910b1_hccs"))
    assert peak.bytes_per_second == 28e9 and "HCCS" in peak.what


@pytest.mark.parametrize(
    ("info", "topology", "ids", "why"),
    [
        ("info_950", "topo_950_ub", ("0", "1"), "no published speed of UB"),
        ("info_950", "topo_950_ub", ("0", "1", "2"), "no published speed of SYS, UB"),
        ("info_910a_1.9.3_container", "topo_910b1_hccs", ("0", "1"), "no published speed of HCCS"),
        ("info_910b_22.0.4.1_first_generation", "topo_910b1_hccs", ("0", "1"), "no published speed of HCCS"),
        ("info_910b1_23.0.rc2_elided", "topo_910b1_hccs", ("0", "9"), "does not show the NPUs 0, 9"),
        ("info_910b1_23.0.rc2_elided", "info_950", ("0", "1"), "does not report the topology"),
    ],
)
def test_peak_is_none_when_unpublished(
    smi: Callable[[str, str], NpuSmi],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    info: str,
    topology: str,
    ids: tuple[str, ...],
    why: str,
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    peak = NpuVendor().link_peak(ids, smi=smi(info, topology))
    assert peak.bytes_per_second is None and why in peak.what


def test_npu_smi_tells_which_cores_are_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    program = tmp_path / "npu-smi"
    program.write_text(f"#!/bin/sh\ncat {shared}/fixtures/ascend/topo_910B1_23.0.rc2.txt\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    cores = NpuVendor().near_cores(["0", "1", "9"])
    assert cores == [set(range(144, 168)), set(range(24)), set()]


def test_the_driver_is_always_mounted_and_tools_where_they_are(tmp_path: Path) -> None:
    bare = NpuVendor.container.mounts(tmp_path)
    assert bare == ("/usr/local/Ascend/driver", "/usr/local/dcmi", "/etc/ascend_install.info")
    tool = tmp_path / "usr/local/sbin/npu-smi"
    tool.parent.mkdir(parents=True)
    tool.touch()
    assert NpuVendor.container.mounts(tmp_path) == (*bare, "/usr/local/sbin/npu-smi")


def test_devices_have_files_of_their_own_and_share_some() -> None:
    shared = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
    assert NpuVendor.container.device_files(("2", "5")) == ("/dev/davinci2", "/dev/davinci5", *shared)


def test_code_for_cuda_gets_an_entry_point_that_torch_finds() -> None:
    """As torch looks for it, before the user's own places; torch's switch is on, whatever the user has set."""
    found = NpuVendor().cuda_environment({"PYTHONPATH": "/mine", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    place, mine = found["PYTHONPATH"].split(os.pathsep)
    (backend,) = (each for dist in distributions(path=[place]) for each in dist.entry_points)
    assert mine == "/mine" and found["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"
    assert (backend.group, backend.value) == ("torch.backends", "ascendtune_transfer_to_npu:autoload")
    assert (Path(place) / "ascendtune_transfer_to_npu.py").is_file()
    assert NpuVendor().cuda_environment({})["PYTHONPATH"] == place


def test_device_files_of_a_host_with_a_gap_are_those_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in (*(f"davinci{number}" for number in (0, 1, 2, 4, 10)), "davinci_manager"):
        (tmp_path / "dev" / name).touch()
    numbers = NpuVendor.container.file_numbers
    assert numbers(("0", "3", "4"), tmp_path) == ("0", "4", "10")
    # For another host, which has more.
    assert numbers(("2", "5"), tmp_path) == ("2", "5")
    assert vendor_of("cpu").container.file_numbers(("0",), tmp_path) == ("0",)
