"""Tables of torch_npu's profiler, written by hand after the headers that torch_npu 2.13 and samples have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.profile import read_profile
from ascendtune.check.profile.show import as_text
from ascendtune.core.errors import AscendtuneError

STEPS = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing\n"
)
KERNELS = "Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num\n"
BASE = 1750000000000000


def kernel(step: int, kind: str, start: float, duration: float) -> str:
    return f"{step},0,aclnn{kind},{kind},AI_CORE,{BASE + start:.3f}\t,{duration}\t,0,20\n"


def write_rank(folder: Path, rank: int, exposed: float = 200.0) -> None:
    output = folder / f"rank_{rank}_1_20261123_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    lines = "".join(
        f"0,{step},600,{exposed},100,{exposed + 100},{400 - exposed},1000,0,{exposed},5\n" for step in (3, 4)
    )
    (output / "step_trace_time.csv").write_text(STEPS + lines)
    (output / "kernel_details.csv").write_text(
        KERNELS
        + "".join(
            kernel(step, "MatMulV2", 0 + at, 300)
            + kernel(step, "FlashAttentionScore", 300 + at, 200)
            + kernel(step, "RmsNorm", 500 + at, 100)
            + kernel(step, "hcom_allReduce_", 500 + at, 300)
            for step, at in ((3, 0), (4, 1000))
        )
    )
    times = {"Communication Time Info": {"Elapse Time(ms)": 0.3, "Wait Time(ms)": 0.1}}
    collective = {"hcom_allReduce__1_0@group": times, "Total Op Info": times}
    (output / "communication.json").write_text(
        json.dumps({f"step{step}": {"p2p": {}, "collective": collective} for step in (3, 4)})
    )


def test_the_parts_of_steps_and_the_kinds_of_kernels(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    (rank,) = read_profile(tmp_path)
    split = rank.split
    assert rank.rank == 0 and split.step_seconds == pytest.approx([1e-3, 1e-3])
    assert split.parts() == pytest.approx(split.total)
    assert dict(split.compute) == pytest.approx({"matmul": 600e-6, "attention": 400e-6, "norm": 200e-6})
    assert dict(split.communication) == pytest.approx({"all-reduce": 400e-6})
    assert dict(split.hidden) == pytest.approx({"all-reduce": 200e-6})
    assert split.gaps == pytest.approx(400e-6)
    assert split.operators["MatMulV2", "matmul"].calls == 2
    assert "all-reduce 20.0" in as_text([rank], [], 100)


def test_without_the_table_of_steps_the_kernels_alone_are_divided(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    output = next(tmp_path.glob("*/ASCEND_PROFILER_OUTPUT"))
    (output / "step_trace_time.csv").unlink()
    (rank,) = read_profile(output)
    # From the first kernel to the end of the last: computing to 600, the collective alone to 800.
    assert rank.split.step_seconds == pytest.approx([800e-6, 800e-6])
    assert rank.split.parts() == pytest.approx(rank.split.total)
    assert sum(rank.split.communication.values()) == pytest.approx(400e-6)


def test_ranks_are_told_by_the_name_of_their_folder(tmp_path: Path) -> None:
    for rank, exposed in ((0, 250.0), (1, 20.0), (2, 240.0)):
        write_rank(tmp_path, rank, exposed)
    ranks = read_profile(tmp_path)
    assert [each.rank for each in ranks] == [0, 1, 2]
    advice = advice_for(ranks)
    assert advice[0].code == "slow-rank"
    assert "for rank 1, which spends 0.225 ms more than they on gaps between kernels" in advice[0].what
    assert advice[0].gain == pytest.approx(225e-6)


def test_a_rank_that_only_begins_late_is_not_given_a_reason(tmp_path: Path) -> None:
    for rank, exposed in ((0, 250.0), (1, 20.0)):
        write_rank(tmp_path, rank, exposed)
        path = next(tmp_path.glob(f"rank_{rank}_*/ASCEND_PROFILER_OUTPUT/step_trace_time.csv"))
        path.write_text(STEPS + f"0,3,600,{exposed},0,{exposed},100,0,0,0,0\n")
    assert "no part of its own steps is longer" in advice_for(read_profile(tmp_path))[0].what


def test_a_rank_without_its_kernels_is_compared_by_all_of_its_computing(tmp_path: Path) -> None:
    for rank, exposed in ((0, 250.0), (1, 20.0)):
        write_rank(tmp_path, rank, exposed)
        output = next(tmp_path.glob(f"rank_{rank}_*/ASCEND_PROFILER_OUTPUT"))
        computed = 850 - exposed
        (output / "step_trace_time.csv").write_text(STEPS + f"0,3,{computed},{exposed},0,{exposed},100,0,0,0,0\n")
    (output / "kernel_details.csv").unlink()
    assert "which spends 0.23 ms more than they on compute" in advice_for(read_profile(tmp_path))[0].what


def test_sending_and_receiving_is_told_from_collectives(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    path = next(tmp_path.glob("*/ASCEND_PROFILER_OUTPUT/communication.json"))
    content = json.loads(path.read_text())
    for step in content.values():
        step["p2p"] = {"hcom_batchSendRecv__128_3_1@group": {"Communication Time Info": {"Elapse Time(ms)": 0.9}}}
    path.write_text(json.dumps(content))
    (rank,) = read_profile(tmp_path)
    assert dict(rank.split.communication) == pytest.approx({"all-reduce": 100e-6, "send and receive": 300e-6})


def test_without_communication_json_collectives_have_the_names_of_their_kernels(tmp_path: Path) -> None:
    write_rank(tmp_path, 0)
    next(tmp_path.glob("*/ASCEND_PROFILER_OUTPUT/communication.json")).unlink()
    (rank,) = read_profile(tmp_path)
    assert dict(rank.split.communication) == pytest.approx({"all-reduce": 400e-6})


def test_a_file_of_the_folder_and_a_copy_of_the_folder_are_read_as_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank(tmp_path, 3)
    output = next(tmp_path.glob("*/ASCEND_PROFILER_OUTPUT"))
    (whole,) = read_profile(tmp_path)
    (output / "trace_view.json").write_text("[]")
    for name in ("trace_view.json", "kernel_details.csv", "step_trace_time.csv"):
        (rank,) = read_profile(output / name)
        assert rank.rank == 3 and rank.split.step_seconds == whole.split.step_seconds
    monkeypatch.chdir(output.rename(tmp_path / "copy"))
    (rank,) = read_profile(Path("kernel_details.csv"))
    assert rank.split.step_seconds == whole.split.step_seconds


def test_the_timeline_alone_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": "17364088836.930", "dur": 1.5}]))
    with pytest.raises(AscendtuneError) as caught:
        read_profile(path)
    assert caught.value.code == "unsupported-trace"


@pytest.mark.parametrize(
    "kernels", ["", KERNELS, KERNELS + "1,0,a,MatMul,AI_CORE,NaN,inf,0\n1,0,a,b,c,1e999999999,1\n", "\0\0,\n1,2\n"]
)
def test_tables_without_a_kernel_are_refused(tmp_path: Path, kernels: str) -> None:
    output = tmp_path / "ASCEND_PROFILER_OUTPUT"
    output.mkdir()
    (output / "kernel_details.csv").write_text(kernels)
    with pytest.raises(AscendtuneError) as caught:
        read_profile(output)
    assert caught.value.code in ("no-profile", "invalid-trace")
