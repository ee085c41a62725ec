"""The devices of a plan."""

from __future__ import annotations

from collections import Counter

import pytest

from ascendtune.core.errors import InputError
from ascendtune.train.plan.device_table import bytes_of, named_target, table


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


def test_an_unknown_device_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError) as caught:
        named_target("910b33", 1)
    assert caught.value.code == "unknown-device"
    assert "910b3" in caught.value.remedy


@pytest.mark.parametrize(("text", "size"), [("64GiB", 64 * 2**30), ("80GB", 80 * 10**9), ("1.5 gib", 3 * 2**29)])
def test_memory_size_is_parsed_as_bytes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["64", "GiB", "-1GiB", "0GiB", "1e9GiB", "64 parsecs", f"{'9' * 400}GiB", "１６GiB"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        bytes_of(text)
    assert caught.value.code == "invalid-value"
