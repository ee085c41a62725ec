from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.machine.vendor.find import ACCELERATORS, CPU, vendor_of


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_link_peak_is_unknown_where_nothing_is_published(kind: str) -> None:
    peak = vendor_of(kind).link_peak(("0", "1"))
    assert peak.bytes_per_second is None and peak.what


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_container_without_npus_mounts_nothing(kind: str, tmp_path: Path) -> None:
    assert vendor_of(kind).container.mounts(tmp_path) == ()
    assert vendor_of(kind).container.device_files(("0",)) == ()


def test_npus_are_chosen_before_gpus_and_an_unknown_kind_is_a_cpu() -> None:
    assert [vendor.kind for vendor in ACCELERATORS] == ["npu", "cuda"]
    assert vendor_of("cuda").noun == "GPU" and vendor_of("abacus") is CPU
