from __future__ import annotations

from typing import Any

import pytest

from ascendtune.cli.device_choice import Devices, choose
from ascendtune.core.errors import InputError, MachineError
from ascendtune.machine.visible import VisibleDevices

CPU = VisibleDevices("cpu", ("0",))
NPU = VisibleDevices("npu", ("0", "1", "2", "3"))


def _choose(visible: VisibleDevices, count: int | None = None, ids: str | None = None) -> Devices:
    return choose(visible, count=count, ids=ids, cores=2)


@pytest.mark.parametrize(
    ("visible", "given", "chosen"),
    [
        (CPU, {}, Devices("cpu", 1)),
        (CPU, {"count": 2}, Devices("cpu", 2)),
        (NPU, {}, Devices("npu", 4)),
        (NPU, {"count": 2}, Devices("npu", 2)),
        (NPU, {"ids": "3,1"}, Devices("npu", 2, ("1", "3"))),
    ],
)
def test_devices_are_chosen_by_count_and_ids(visible: VisibleDevices, given: dict[str, Any], chosen: Devices) -> None:
    assert _choose(visible, **given) == chosen


def test_more_processes_than_cores_is_a_warning() -> None:
    chosen = _choose(CPU, count=3)
    assert chosen.count == 3 and chosen.warning == "3 processes share 2 cores: slower than 2"


@pytest.mark.parametrize(("visible", "given"), [(NPU, {"count": 5}), (NPU, {"ids": "1,4"}), (CPU, {"ids": "0"})])
def test_devices_that_are_not_there_are_the_machines_fault(visible: VisibleDevices, given: dict[str, Any]) -> None:
    with pytest.raises(MachineError) as raised:
        _choose(visible, **given)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("given", [{"count": 1, "ids": "0"}, {"ids": "0,0"}, {"ids": "0,"}])
def test_contradictions_are_the_users(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        _choose(NPU, **given)


def test_more_processes_than_a_host_can_hold_are_refused() -> None:
    assert _choose(CPU, count=64).count == 64
    with pytest.raises(MachineError) as caught:
        _choose(CPU, count=65)
    assert caught.value.code == "too-many-processes"
