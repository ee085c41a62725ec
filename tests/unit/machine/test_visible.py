from __future__ import annotations

import random
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from ascendtune.machine.inventory import Accelerator, visible_among
from ascendtune.machine.vendor import cuda, npu
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import VisibleDevices, attached, visible_devices


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty /dev; GPUs are counted by their files; torch_npu and a CUDA build of torch are there."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(npu, "find_spec", lambda name: object())
    monkeypatch.setattr(cuda, "cuda_of_torch", lambda directory: "12.8")
    return tmp_path


def _gpus(monkeypatch: pytest.MonkeyPatch, *uuids: str) -> tuple[Accelerator, ...]:
    found = tuple(Accelerator("cuda", logical_id=index, uuid=uuid) for index, uuid in enumerate(uuids))
    monkeypatch.setattr("ascendtune.machine.cuda.gpus", lambda: (found, None, ()))
    return found


def _add(dev: Path, *names: str) -> None:
    for name in names:
        (dev / name).touch()


def test_only_cpu_is_visible_without_device_files(dev: Path) -> None:
    _add(dev, "null", "davinci_manager", "nvidiactl", "nvidia-uvm")
    assert visible_devices({}, dev) == VisibleDevices("cpu", ("0",))


def test_ids_are_logical_whatever_the_numbers_of_the_files(dev: Path) -> None:
    _add(dev, "davinci_manager", "davinci4", "davinci5", "davinci10")
    assert visible_devices({}, dev) == VisibleDevices("npu", ("0", "1", "2"))


@pytest.mark.parametrize(
    ("variable", "ids"),
    [("1,3", ("1", "3")), ("0,1,x,2", ("0", "1")), ("1, 2,3", ("1",)), ("2,9,3", ("2",)), ("1,1", ("1",))],
)
def test_reading_stops_at_the_first_name_that_does_not_exist(dev: Path, variable: str, ids: tuple[str, ...]) -> None:
    _add(dev, "davinci0", "davinci1", "davinci2", "davinci3")
    found = visible_devices({"ASCEND_RT_VISIBLE_DEVICES": variable}, dev)
    assert (found.kind, found.ids) == ("npu", ids)
    # All but the first name devices that the runtime leaves out, without a message.
    assert (found.note is None) == (variable == "1,3")


@pytest.mark.parametrize("value", ["9", "x", "0,0", "GPU-0123"])
def test_a_variable_that_leaves_no_device_is_noted(dev: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    _gpus(monkeypatch, "GPU-8f1a")
    _add(dev, "nvidia0")
    found = visible_devices({"CUDA_VISIBLE_DEVICES": value}, dev)
    assert found.kind == "cpu" and found.note and f"CUDA_VISIBLE_DEVICES={value} leaves no GPU" in found.note
    # Without a GPU it is left over, and hides none.
    (dev / "nvidia0").unlink()
    assert visible_devices({"CUDA_VISIBLE_DEVICES": value}, dev).note is None


@pytest.mark.parametrize("variable", ["", "-1"])
def test_devices_can_be_hidden(dev: Path, variable: str) -> None:
    _add(dev, "nvidia0", "nvidia1")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": variable}, dev) == VisibleDevices("cpu", ("0",))


def test_gpus_may_have_unique_names(dev: Path) -> None:
    _add(dev, "nvidia0", "nvidia1")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "GPU-8f1a,GPU-0c"}, dev) == VisibleDevices(
        "cuda", ("GPU-8f1a", "GPU-0c")
    )
    # torch, as CUDA, stops at a name of the other kind.
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "GPU-8f1a,1"}, dev).ids == ("GPU-8f1a",)


def test_unique_names_are_those_of_gpus_that_are_here(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _add(dev, "nvidia0", "nvidia1", "nvidia2")
    cuda, drawn = pytest.importorskip("torch").cuda, random.Random(11)
    uuids = ["GPU-8f1a-01", "GPU-8f1b-02", "GPU-0c33-03"]
    gpus = _gpus(monkeypatch, *uuids)
    names = [*uuids, "GPU-8f1a", "GPU-8f1", "GPU-0", "GPU-", "GPU-8f1a-01x", "GPU-9", "GPU-0c33-03 "]
    for _ in range(1000):
        value = ",".join(drawn.choices(names, k=drawn.randint(1, 4)))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        ordinals = cuda._transform_uuid_to_ordinals(cuda._parse_visible_devices(), uuids)
        kept = attached(vendor_of("cuda"), {"CUDA_VISIBLE_DEVICES": value}, dev)
        assert kept == tuple(value.split(",")[: len(ordinals)]), value
        among = visible_among(gpus, vendor_of("cuda"), value)
        assert [device.logical_id for device in among] == ordinals, value


@pytest.mark.parametrize("value", ["3,1", "0,2,1", "0,0", "10", "-0"])
def test_npus_are_visible_as_long_as_their_ids_ascend(dev: Path, value: str) -> None:
    _add(dev, "davinci0", "davinci1", "davinci2", "davinci3")
    kept = {"3,1": ("3",), "0,2,1": ("0", "2"), "0,0": ("0",)}.get(value, ())
    assert attached(vendor_of("npu"), {"ASCEND_RT_VISIBLE_DEVICES": value}, dev) == kept


def test_gpus_are_visible_as_torch_reads_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = pytest.importorskip("torch").cuda
    drawn, vendor, ids = random.Random(7), vendor_of("cuda"), ["0", "1", "2", "3"]
    names = ["0", "1", "2", "3", "4", " 1", "2 ", "+3", "-1", "", "x", "2x", "01", "GPU-a", "GPU-b", " GPU-a", "MIG-a"]
    for _ in range(2000):
        value = ",".join(drawn.choices(names, k=drawn.randint(1, 4)))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        read = cuda._parse_visible_devices()
        # An ordinal that does not exist ends the list, too: torch.cuda._device_count_nvml.
        seen = tuple(map(str, takewhile(lambda each: isinstance(each, str) or each < len(ids), read)))
        assert vendor.visible(ids, value) == seen, value


def test_unusable_devices_are_noted(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _add(dev, "nvidia0")
    monkeypatch.setattr(cuda, "cuda_of_torch", lambda directory: None)
    found = visible_devices({}, dev)
    assert found.kind == "cpu" and found.note and "built without CUDA" in found.note
    _add(dev, "davinci0")
    monkeypatch.setattr(npu, "find_spec", lambda name: None)
    found = visible_devices({}, dev)
    assert found.kind == "cpu" and found.note and "torch_npu is not installed" in found.note


def test_devices_are_attached_whether_or_not_torch_can_use_them(tmp_path: Path) -> None:
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (tmp_path / name).touch()
    assert attached(vendor_of("npu"), {}, tmp_path) == ("0", "1")
    assert attached(vendor_of("npu"), {"ASCEND_RT_VISIBLE_DEVICES": "1"}, tmp_path) == ("1",)
    assert attached(vendor_of("cpu"), {}, tmp_path) == ()
