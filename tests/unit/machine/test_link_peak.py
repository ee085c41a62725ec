"""Published speeds of links, and only those."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.machine.link_peak import link_peak
from ascendtune.machine.npu.smi import NpuSmi

FIXTURES = Path(__file__).parents[2] / "fixtures" / "ascend"


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


def test_hccs_between_910b(smi: Callable[[str, str], NpuSmi], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    peak = link_peak("npu", ("0", "7"), smi=smi("info_910b1_23.0.rc2_elided", "topo_910b1_hccs"))
    assert peak.bytes_per_second == 56e9 and "HCCS" in peak.what


@pytest.mark.parametrize(
    ("info", "topology", "ids", "why"),
    [
        ("info_950", "topo_950_ub", ("0", "1"), "no published speed of UB"),
        ("info_950", "topo_950_ub", ("0", "1", "2"), "no published speed of SYS, UB"),
        ("info_910a_1.9.3_container", "topo_910b1_hccs", ("0", "1"), "no published speed of HCCS"),
        ("info_910b1_23.0.rc2_elided", "topo_910b1_hccs", ("0", "9"), "does not show the NPUs 0, 9"),
        ("info_910b1_23.0.rc2_elided", "info_950", ("0", "1"), "does not tell the topology"),
    ],
)
def test_what_is_not_published_is_unknown(
    smi: Callable[[str, str], NpuSmi],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    info: str,
    topology: str,
    ids: tuple[str, ...],
    why: str,
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    peak = link_peak("npu", ids, smi=smi(info, topology))
    assert peak.bytes_per_second is None and why in peak.what


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_other_kinds(kind: str) -> None:
    peak = link_peak(kind, ("0", "1"))  # type: ignore[arg-type]
    assert peak.bytes_per_second is None and peak.what
