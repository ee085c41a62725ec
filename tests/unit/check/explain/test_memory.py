from __future__ import annotations

import pytest

from ascendtune.check.explain.facts.memory import sums_in

_GIB = 1 << 30


def test_old_out_of_memory_message_is_read() -> None:
    sums = sums_in(
        "NPU out of memory. Tried to allocate 20.00 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB already allocated; "
        "49.47 GiB current active; 1.32 GiB free; 57.55 GiB reserved in total by PyTorch)"
    )

    assert sums is not None
    assert sums.tried_bytes == 20 * _GIB
    assert sums.free_bytes == int(1.32 * _GIB)
    assert sums.outside_bytes == pytest.approx((60.96 - 1.32 - 57.55) * _GIB, abs=4)
    assert sums.unused_bytes == pytest.approx((57.55 - 49.47) * _GIB, abs=4)
    assert sums.conclusion is not None
    assert "really fill" in sums.conclusion


def test_new_form_of_cuda_gives_reserved_as_a_sum() -> None:
    sums = sums_in(
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 24.00 GiB of which 0.50 GiB "
        "is free. Including non-PyTorch memory, this process has 22.12 GiB memory in use. Of the allocated memory "
        "20.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but unallocated."
    )

    assert sums is not None
    assert sums.reserved_bytes == 23 * _GIB
    assert sums.conclusion is not None
    assert "fragmented" in sums.conclusion


def test_memory_of_other_processes_is_the_conclusion() -> None:
    sums = sums_in(
        "Tried to allocate 1.00 GiB (NPU 0; 64.00 GiB total capacity; 10.00 GiB already allocated; 0.02 GiB free; "
        "10.65 GiB reserved in total by PyTorch)"
    )

    assert sums is not None
    assert sums.conclusion is not None
    assert "outside of this process" in sums.conclusion


def test_tensor_larger_than_the_device_is_concluded() -> None:
    sums = sums_in("Tried to allocate 900.00 GiB (GPU 0; 24.00 GiB total capacity; 1.00 GiB free)")

    assert sums is not None
    assert sums.conclusion is not None
    assert "one tensor alone" in sums.conclusion


def test_sums_without_numbers_are_unknown() -> None:
    sums = sums_in("Tried to allocate 2.00 GiB")

    assert sums is not None
    assert (sums.total_bytes, sums.outside_bytes, sums.conclusion) == (None, None, None)
    assert sums_in("out of memory") is None


def _shared_device(*held: str) -> str:
    listed = "".join(f"Process {number} has {each} memory in use. " for number, each in enumerate(held, 70))
    return (
        "CUDA out of memory. Tried to allocate 42.00 MiB. GPU 0 has a total capacity of 44.52 GiB of which 2.00 MiB is "
        f"free. {listed}Of the allocated memory 4.92 GiB is allocated by PyTorch, and 134.41 MiB is reserved by "
        "PyTorch but unallocated."
    )


def test_processes_as_large_as_this_one_are_ranks_of_one_job() -> None:
    sums = sums_in(_shared_device("5.57 GiB", "5.35 GiB", "5.75 GiB", "5.49 GiB"))

    assert sums is not None
    assert sums.are_ranks_of_one_job
    assert "4 processes of similar size" in sums.headline()


@pytest.mark.parametrize("held", [(), ("39.00 GiB",), ("38.00 GiB", "0.40 GiB", "5.20 GiB")])
def test_processes_of_other_sizes_are_not_ranks_of_one_job(held: tuple[str, ...]) -> None:
    sums = sums_in(_shared_device(*held))

    assert sums is not None
    assert not sums.are_ranks_of_one_job


@pytest.mark.parametrize(("tried", "alone"), [("11.47", True), ("5.90", False)])
def test_tensor_of_most_of_the_device_is_named_alone(tried: str, alone: bool) -> None:
    sums = sums_in(
        f"CUDA out of memory. Tried to allocate {tried} GiB (GPU 0; 11.99 GiB total capacity; 11.80 GiB already "
        "allocated; 0 bytes free; 11.90 GiB reserved in total by PyTorch)"
    )

    assert sums is not None
    assert sums.is_one_tensor == alone
    assert ("one tensor alone" in sums.headline()) == alone


def test_memory_of_the_process_is_read_from_torch_2_1s_message() -> None:
    sums = sums_in(
        "CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has a total capacty of 80.00 GiB of which 6.00 GiB is "
        "free. Process 7 has 74.00 GiB memory in use. Of the allocated memory 72.00 GiB is allocated by PyTorch, and "
        "1.00 GiB is reserved by PyTorch but unallocated."
    )

    assert sums is not None
    assert sums.headline().endswith("6.0 GiB of 80.0 GiB free: this process itself holds 73.0 GiB")


_OTHERS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.20 GiB is "
    "free. Process 1234 has 70.00 GiB memory in use. Including non-PyTorch memory, this process has 7.80 GiB memory in "
    "use. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but "
    "unallocated."
)


@pytest.mark.parametrize(
    "end", ["unallocated.", "unallocate", "7.80 GiB memory in use", "1234 has 70.00 GiB memory in use"]
)
def test_message_that_is_cut_off_names_the_other_processes_as_the_whole_one_does(end: str) -> None:
    sums = sums_in(_OTHERS[: _OTHERS.index(end) + len(end)])

    assert sums is not None
    assert sums.headline().startswith("other processes hold 70.")
    assert "devices" in sums.first_remedies()[0]


@pytest.mark.parametrize(("rest", "held"), [("; 12.30 MiB free", "hold 59.9 GiB"), ("", "hold at least 39.9 GiB")])
def test_old_message_that_is_cut_off_names_the_other_processes(rest: str, held: str) -> None:
    asked = "2.00 GiB" if rest else "20.00 GiB"
    sums = sums_in(f"Tried to allocate {asked} (NPU 0; 60.97 GiB total capacity; 1.10 GiB already allocated{rest}")

    assert sums is not None
    assert held in sums.headline() and "devices" in sums.first_remedies()[0]


def test_nothing_is_concluded_from_a_message_that_ends_before_its_sums() -> None:
    sums = sums_in("Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB of")

    assert sums is not None and sums.conclusion is None


def test_smaller_batch_is_not_a_remedy_where_others_hold_the_device() -> None:
    usual = ("smaller batch.per_device", "`nvidia-smi`: another process?", "shard")
    others = sums_in(_OTHERS)
    full = sums_in(
        "Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 21.00 GiB already allocated; 1 GiB free"
    )

    assert others is not None and full is not None
    assert others.remedies(usual)[1:] == ("shard",)
    assert full.remedies(usual) == usual
