"""The devices of a plan."""

from __future__ import annotations

from collections import Counter

import pytest

from ascendtune.core.errors import InputError
from ascendtune.train.plan.device_table import bytes_of, computes_bf16, known_name, named_target, speed_of, table


def test_names_are_unique_and_every_figure_has_a_source() -> None:
    names = Counter(name for entry in table().values() for name in entry["names"])
    assert set(names.values()) == {1}
    for entry in table().values():
        assert "https://" in entry["source"]
        assert entry["kind"] in ("npu", "cuda") and 8 <= entry["memory_gib"] <= 256


@pytest.mark.parametrize(("name", "memory"), [("910B3", 64), ("Ascend910B4", 32), ("h200", 139)])
def test_device_name_gives_its_memory(name: str, memory: int) -> None:
    target = named_target(name, 8)
    assert (target.memory_bytes, target.devices) == (memory * 2**30, 8)


def test_a_prefix_of_several_device_names_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        named_target("910B", 8)
    assert (
        all(name in caught.value.remedy for name in ("910b2", "910b3", "910b4")) and "a100" not in caught.value.remedy
    )


def test_an_unknown_device_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError) as caught:
        named_target("910b33", 1)
    assert caught.value.code == "unknown-device"
    assert "910b3" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64GiB", 64 * 2**30), ("80GB", 80 * 10**9), ("1.5 gib", 3 * 2**29), ("64Gi", 64 * 2**30), ("64G", 64 * 2**30),
        ("512M", 512 * 2**20), ("512MB", 512 * 10**6), ("1T", 2**40),
    ],
)  # fmt: skip
def test_memory_size_is_parsed_as_bytes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["64", "GiB", "-1GiB", "0GiB", "1e9GiB", "64 parsecs", f"{'9' * 400}GiB", "１６GiB"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        bytes_of(text)
    assert caught.value.code == "invalid-value"


def test_every_figure_of_speed_has_a_source_and_a_unit() -> None:
    for entry in table().values():
        speed = entry.get("speed", {"sources": "https://"})
        assert "https://" in speed["sources"]
        assert all(1e13 < each < 1e16 for each in speed.get("flops", {}).values())
        assert 1e11 < speed.get("memory_bytes_per_second", 1e12) < 1e13
        assert 1e10 < speed.get("link_bytes_per_second", 1e11) < 1e12
        assert 50 < speed.get("power_watts", 100) < 2000


@pytest.mark.parametrize(
    ("reported", "title"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80 GB"), ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40 GB"), ("NVIDIA A800-SXM4-80GB", "NVIDIA A800 80 GB"),
        ("Ascend910B4-1", "Ascend 910B4-1 (Atlas A2)"), ("Ascend910B4", "Ascend 910B4 (Atlas A2)"),
        ("Ascend910_9392", "one die of Ascend 910C (Atlas A3)"), ("910B3", "Ascend 910B3 (Atlas A2)"),
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"),
        ("NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 D"), ("Ascend910", "one die of Ascend 910C (Atlas A3)"),
        ("Ascend910A", "Ascend 910A"), ("910A", "Ascend 910A"), ("Ascend910B1", "Ascend 910B1 (Atlas A2)"),
        ("Ascend310P3", "Ascend310P3"),
    ],
)  # fmt: skip
def test_a_reported_name_leads_to_the_device_of_the_table(reported: str, title: str) -> None:
    assert known_name(reported) == title


def test_an_unpublished_figure_is_none() -> None:
    assert speed_of("NVIDIA H200", "bf16").flops == 989e12
    assert speed_of("Ascend910ProB", "bf16").flops is None
    mesh = speed_of("Ascend910B3", "bf16")
    assert mesh.memory is None and mesh.link_among(8) == 7 * 28e9


@pytest.mark.parametrize(
    ("reported", "has_bf16"),
    [
        ("Ascend910", True), ("Ascend910_9382", True), ("910B1", True), ("Ascend910B4-1", True), ("910A", False),
        ("910B", False), ("Ascend910B", False), ("910ProB", False), ("Ascend910ProA", False),
    ],
)  # fmt: skip
def test_chips_of_the_first_generation_have_no_bf16(reported: str, has_bf16: bool) -> None:
    """npu-smi's Ascend910 is an A3, its 910B without a digit the first generation."""
    assert computes_bf16(reported) is has_bf16
