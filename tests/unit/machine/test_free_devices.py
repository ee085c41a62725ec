from __future__ import annotations

from typing import Any

import pytest

from ascendtune.core.errors import MachineError
from ascendtune.machine.free_devices import pick_free
from ascendtune.machine.inventory import Accelerator, DeviceProcess

GIB = 1 << 30


def _npu(logical_id: int | None, used: float | None = 3, **more: Any) -> Accelerator:
    used_bytes = None if used is None else int(used * GIB)
    return Accelerator(
        "npu",
        npu_id=logical_id,
        logical_id=logical_id,
        memory_used_bytes=used_bytes,
        memory_total_bytes=64 * GIB,
        **{"health": "OK", **more},
    )


def _picked(devices: list[Accelerator], count: int, **env: str) -> list[int | None]:
    return [device.logical_id for device in pick_free(devices, count, env)]


def test_the_driver_s_own_share_makes_no_difference() -> None:
    assert _picked([_npu(0, 3.1), _npu(1, 2.9), _npu(2, 3.0)], 2) == [0, 1]


def test_less_memory_first_and_ids_ascend() -> None:
    # The Ascend runtime reads its variable only as long as it ascends.
    assert _picked([_npu(0, 9), _npu(1, 3), _npu(2, 3)], 2) == [1, 2]
    assert _picked([_npu(0, 3), _npu(1, 9), _npu(2, 3)], 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (_npu(1, 40), "not visible here"),
        (_npu(1, processes=(DeviceProcess(7, None, "python", GIB),)), "in use by python (pid 7, 1.0 GiB)"),
        (_npu(1, processes=(DeviceProcess(7),)), "in use by a process (pid 7)"),
        (_npu(1, None), "unknown"),
        (_npu(1, health="Critical"), "its health is Critical"),
        (_npu(1, health="Alarm", name="910B4"), "its health is Alarm"),
        (_npu(1, health="Fault"), "its health is Fault"),
        (_npu(None), "its logical id is unknown"),
    ],
)
def test_not_enough_free_devices_names_their_users(device: Accelerator, said: str) -> None:
    with pytest.raises(MachineError) as raised:
        pick_free([_npu(0), device], 2, {})
    assert said in raised.value.what and "1 of 2 free" in raised.value.what and raised.value.exit_code == 3


def test_two_devices_that_look_alike_are_two() -> None:
    with pytest.raises(MachineError) as caught:
        pick_free([_npu(None), _npu(None)], 1, {})
    assert caught.value.code == "too-few-devices" and "0 of 2" in caught.value.what


def test_alarm_is_normal_on_small_boards() -> None:
    assert _picked([_npu(0, health="Alarm", name="310B4")], 1) == [0]


def test_only_what_this_shell_may_use() -> None:
    assert _picked([_npu(0), _npu(1), _npu(2)], 1, ASCEND_RT_VISIBLE_DEVICES="1,2") == [1]
    with pytest.raises(MachineError) as caught:
        pick_free([_npu(0)], 1, {"ASCEND_RT_VISIBLE_DEVICES": ""})
    assert caught.value.code == "no-accelerator"


def _gpu(index: int, **more: Any) -> Accelerator:
    memory = {"memory_used_bytes": 0, "memory_total_bytes": 80 * GIB}
    return Accelerator("cuda", phy_id=index, logical_id=index, uuid=f"GPU-{index}f1a-77", **{**memory, **more})


@pytest.mark.parametrize(
    ("value", "free"),
    [("GPU-1f1a-77", [1]), ("GPU-2f,GPU-0f", [0, 2]), ("1, 2", [1, 2]), ("2,x,0", [2]), ("GPU-2,GPU-9,GPU-0", [2])],
)
def test_gpus_may_be_named_by_their_unique_names(value: str, free: list[int]) -> None:
    gpus = [_gpu(0), _gpu(1), _gpu(2)]
    assert _picked(gpus, len(free), CUDA_VISIBLE_DEVICES=value) == free
    with pytest.raises(MachineError) as caught:
        _picked(gpus, len(free) + 1, CUDA_VISIBLE_DEVICES=value)
    assert caught.value.code == "too-few-devices"


@pytest.mark.parametrize("value", ["", "-1", "GPU-9", "GPU-", "MIG-1f1a", "1,1"])
def test_variable_that_leaves_no_gpu_is_named(value: str) -> None:
    with pytest.raises(MachineError) as caught:
        _picked([_gpu(0), _gpu(1)], 1, CUDA_VISIBLE_DEVICES=value)
    assert caught.value.code == "no-accelerator" and f"CUDA_VISIBLE_DEVICES={value}" in caught.value.what


def test_npus_are_picked_before_gpus() -> None:
    gpu = Accelerator("cuda", phy_id=0, logical_id=0, memory_used_bytes=0, memory_total_bytes=80 * GIB)
    assert [device.kind for device in pick_free([gpu, _npu(0)], 1, {})] == ["npu"]
    assert [device.kind for device in pick_free([gpu], 1, {})] == ["cuda"]
    with pytest.raises(MachineError):
        pick_free([], 1, {})
