"""The database of torch_npu's profiler, with the tables of its public description."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ascendtune.check.profile import ascend_database
from ascendtune.check.profile.profile import read_profile
from ascendtune.core.errors import AscendtuneError

NAMES = ("MatMulV2", "RmsNorm", "hcom_allReduce__1_0", "MEMCPY_ASYNC", "AI_CORE", "hcom_allGather__1_0")
SCHEMA = """
CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER,
  globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER);
CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER PRIMARY KEY, blockDim INTEGER, mixBlockDim INTEGER,
  taskType INTEGER, opType INTEGER);
CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER,
  groupName INTEGER, opId INTEGER PRIMARY KEY);
CREATE TABLE STEP_TIME (id INTEGER, startNs INTEGER, endNs INTEGER);
"""
BEGIN = 1_700_000_000_000_000_000


def write_database(path: Path, *, steps: int = 2, extra: Sequence[str] = ()) -> Path:
    """Steps of 1,000 µs: a product of 400, a norm of 100, all-reduce from 450 to 700, a copy of 50 after it."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        database.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", enumerate(NAMES))
        task = 0
        for step in range(2):
            zero = BEGIN + step * 1_000_000
            for start, lasts, name in ((0, 400, 0), (400, 100, 1)):
                values = (zero + start * 1000, zero + (start + lasts) * 1000, 0, task, task, 1, 4, 0, 7, task, 0)
                database.execute("INSERT INTO TASK VALUES (?,?,?,?,?,?,?,?,?,?,?)", values)
                database.execute("INSERT INTO COMPUTE_TASK_INFO VALUES (?,?,1,1,4,?)", (name, task, name))
                task += 1
            values = (zero + 700_000, zero + 750_000, 0, task, task, 1, 3, 0, 7, task, 0)
            database.execute("INSERT INTO TASK VALUES (?,?,?,?,?,?,?,?,?,?,?)", values)
            database.execute(
                "INSERT INTO COMMUNICATION_OP VALUES (2, ?, ?, 0, 0, ?)", (zero + 450_000, zero + 700_000, task)
            )
            task += 1
            if step < steps:
                database.execute("INSERT INTO STEP_TIME VALUES (?, ?, ?)", (step + 5, zero, zero + 1_000_000))
        for each in extra:
            database.execute(each)
        database.commit()
    return path


def test_the_steps_of_a_database_are_divided(tmp_path: Path) -> None:
    path = write_database(tmp_path / "ascend_pytorch_profiler_0.db")
    before = path.read_bytes()
    (rank,) = read_profile(path)
    split = rank.split
    assert split.step_seconds == pytest.approx([1e-3, 1e-3])
    assert split.parts() == pytest.approx(split.total)
    assert dict(split.compute) == pytest.approx({"matmul": 800e-6, "norm": 200e-6})
    # From 500 to 700 nothing is computed meanwhile; 50 are behind the norm.
    assert dict(split.communication) == pytest.approx({"all-reduce": 400e-6})
    assert dict(split.hidden) == pytest.approx({"all-reduce": 100e-6})
    assert sum(split.copies.values()) == pytest.approx(100e-6)
    assert split.gaps == pytest.approx(500e-6)
    assert split.operators["MatMulV2", "matmul"].calls == 2
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == [path]


def test_a_database_without_steps_is_one_step_of_its_kernels(tmp_path: Path) -> None:
    (rank,) = read_profile(write_database(tmp_path / "one.db", steps=0))
    assert rank.split.step_seconds == pytest.approx([1750e-6])


def test_the_name_of_a_kernel_stands_for_a_type_that_was_not_recorded(tmp_path: Path) -> None:
    extra = ("INSERT INTO STRING_IDS VALUES (99, 'N/A')", "UPDATE COMPUTE_TASK_INFO SET opType = 99")
    (rank,) = read_profile(write_database(tmp_path / "ascend_pytorch_profiler_5.db", extra=extra))
    assert rank.rank == 5
    assert dict(rank.split.compute) == pytest.approx({"matmul": 800e-6, "norm": 200e-6})


def test_a_folder_without_tables_is_read_from_its_database(tmp_path: Path) -> None:
    output = tmp_path / "rank_3_x_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    write_database(output / "ascend_pytorch_profiler_3.db")
    (rank,) = read_profile(tmp_path)
    assert rank.rank == 3 and rank.split.steps == 2


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        (["DROP TABLE TASK", "DROP TABLE COMMUNICATION_OP"], "invalid-trace"),
        (["DELETE FROM TASK", "DELETE FROM COMMUNICATION_OP"], "no-profile"),
        ([f"UPDATE TASK SET endNs = {1 << 62}"], "invalid-trace"),
        (["ALTER TABLE TASK RENAME COLUMN startNs TO begin"], "invalid-trace"),
    ],
)
def test_a_damaged_database_is_refused(tmp_path: Path, extra: list[str], code: str) -> None:
    with pytest.raises(AscendtuneError) as caught:
        read_profile(write_database(tmp_path / "damaged.db", extra=extra))
    assert caught.value.code == code


def test_values_that_are_not_times_are_left_out(tmp_path: Path) -> None:
    extra = [
        "INSERT INTO COMMUNICATION_OP VALUES (2, 'soon', NULL, 0, 0, 99)",
        "INSERT INTO COMMUNICATION_OP VALUES (2, 9, 3, 0, 0, 98)",
        f"INSERT INTO STEP_TIME VALUES (9, 0, {1 << 62})",
    ]
    (rank,) = read_profile(write_database(tmp_path / "odd.db", extra=extra))
    assert rank.split.step_seconds == pytest.approx([1e-3, 1e-3])


def test_a_view_that_never_ends_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS startNs, 0 AS endNs FROM n"
    views = ["DROP TABLE COMMUNICATION_OP", f"CREATE VIEW COMMUNICATION_OP AS {endless}"]
    (rank,) = read_profile(write_database(tmp_path / "view.db", extra=views))
    assert not rank.split.collectives
    monkeypatch.setattr(ascend_database, "_MOST_INSTRUCTIONS", 0)
    monkeypatch.setattr(ascend_database, "_INSTRUCTIONS_BETWEEN", 10)
    with pytest.raises(AscendtuneError) as caught:
        read_profile(tmp_path / "view.db")
    assert caught.value.code == "invalid-trace"


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 500, b"{}"])
def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "not.db").write_bytes(content)
    with pytest.raises(AscendtuneError) as caught:
        read_profile(tmp_path / "not.db")
    assert caught.value.code == "invalid-trace"


def test_a_pipe_in_place_of_a_database_is_not_waited_for(tmp_path: Path) -> None:
    output = tmp_path / "ASCEND_PROFILER_OUTPUT"
    output.mkdir()
    os.mkfifo(output / "ascend_pytorch_profiler_0.db")
    with pytest.raises(AscendtuneError) as caught:
        read_profile(tmp_path)
    assert caught.value.code == "not-a-regular-file"
