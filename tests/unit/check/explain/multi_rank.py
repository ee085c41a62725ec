# ruff: noqa: E501
"""Directories of logs of jobs with 2 to 64 ranks, put together from lines of public logs by a seed.

Lines of the watchdog: github.com/verl-project/verl/issues/1158 and github.com/pytorch/pytorch/issues/97191; of HCCL:
github.com/hiyouga/LlamaFactory/issues/5071 and github.com/hicann/hccl, fault_diagnosis; the others as the named tools
print them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

_SIZES = (2, 3, 4, 8, 8, 16, 32, 64)

_WAITING = {
    "nccl": (
        "[rank{rank}]:[E419 10:42:28.858931807 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=4486, OpType=ALLTOALL, NumelIn=46684160, NumelOut=46684160, "
        "Timeout(ms)=600000) ran for 600013 milliseconds before timing out.",
        "[rank{rank}]:[E419 10:42:28.861967180 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 9 Rank {rank}] Exception "
        "(either an error or timeout) detected by watchdog at work: 4486, last enqueued NCCL work: 4489, last completed "
        "NCCL work: 4485.",
        "[rank{rank}]:[E419 10:42:29.003292273 ProcessGroupNCCL.cpp:1834] [PG ID 2 PG GUID 9 Rank {rank}] Timeout at NCCL "
        "work: 4486, last enqueued NCCL work: 4489, last completed NCCL work: 4485.",
    ),
    "hccl-link": (
        "EI0006: 2024-08-05-18:15:21.270.506 Getting socket times out. Reason: Remote Rank did not send the data in time. "
        "Please check the reason for the rank being stuck",
        "RuntimeError: [ERROR] HCCL function error: HcclCommInitRootInfo(numRanks, &rootInfo, rank, "
        "&(comm->hcclComm_)), error code is 9",
    ),
    "hccl-notify": (
        "EI0002: [PID: 7277] 2024-11-28-11:59:30.645.648 The wait execution of the Notify register times out. Reason: The "
        "Notify register has not received the Notify record from remote rank [unknown].",
    ),
}
_LAST_LINES = {
    "preparing data": "Running tokenizer on dataset (num_proc=16):  43%|####3     | 21500/50000 [17:10<22:45, 20.9 examples/s]",
    "saving a checkpoint": "Saving model checkpoint to saves/qwen2-7b/full/sft/checkpoint-500",
    "loading the model": "Loading checkpoint shards:  50%|#####     | 2/4 [11:12<11:30, 345.1s/it]",
    "compiling": "Using /root/.cache/torch_extensions/py310_cpu as PyTorch extensions root... building extension module npu_ops",
    "evaluating": "***** Running Evaluation *****",
    "downloading": "Fetching 17 files:  35%|###5      | 6/17 [08:17<15:02, 82.1s/it]",
}
_FAILURES = {
    "oom-backward": [
        "Traceback (most recent call last):",
        '  File "/data/train.py", line 218, in <module>',
        "    loss.backward()",
        "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 1; 60.96 GiB total capacity; 55.11 GiB already "
        "allocated; 55.11 GiB current active; 2.45 GiB free; 57.02 GiB reserved in total by PyTorch)",
    ],
    "disk-full-of-checkpoints": [
        "Traceback (most recent call last):",
        '  File "/opt/conda/lib/python3.10/site-packages/torch/serialization.py", line 850, in save',
        "    _save(obj, opened_zipfile, pickle_module, pickle_protocol)",
        "OSError: [Errno 28] No space left on device",
    ],
    "known-package-missing": [
        "Traceback (most recent call last):",
        '  File "/data/train.py", line 3, in <module>',
        "    import deepspeed",
        "ModuleNotFoundError: No module named 'deepspeed'",
    ],
    "python-exception": [
        "Traceback (most recent call last):",
        '  File "/data/collate.py", line 31, in __call__',
        '    raise OddBatch("row 1213 has no image")',
        "collate.OddBatch: row 1213 has no image",
    ],
}


_LABELS = (
    *("[rank {rank}] ", "{rank}: ", "[{rank}] ", "Rank {rank}: ", "(rank {rank}) ", "rank={rank} ", "worker-{rank} | "),
    *("[1,{rank}]<stderr>:", "node{node}: [rank{rank}] ", "[default{local}]:", "{node}: [default{local}]:"),
    *("(RayTrainWorker pid=7{rank}, rank={rank}) ", "2026-11-29 10:00:00,123 - INFO - [rank{rank}] "),
)
"""What launchers and collectors of logs put before each line."""
_WAITING_AMONG = (
    "[rank{rank}]:[E1129 10:42:28.858931807 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=7, Timeout(ms)=600000) ran for 600013 milliseconds",
    "[E ProcessGroupNCCL.cpp:475] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE, NumelIn=7, Timeout(ms)=600000) ran for 600013 milliseconds",
    "[ERROR] 2026-11-29-10:40:07 (PID:70{rank}, Device:{local}, RankID:{rank}) ERR02200 DIST call hccl api failed.\n"
    "EI0002: [PID: 70{rank}] 2026-11-29-10:40:33.120.331 The wait execution of the Notify register times out.",
    '[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/x/t.py", line 3, in <module>\n'
    "[rank{rank}]:     dist.barrier()\n"
    "[rank{rank}]: torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0/0",
)


@dataclass(frozen=True)
class Expected:
    """What an explanation has to name: the rank, and a failure's id or what a missing rank was doing."""

    rank: int
    entry: str | None = None
    phase: str | None = None
    is_silent: bool = False


def write(directory: Path, seed: int) -> Expected:
    """Write the logs of one job into `directory`; how they look follows from `seed` alone."""
    dice = random.Random(f"multi-rank {seed}")
    size = dice.choice(_SIZES)
    guilty = dice.randrange(size)
    waiting = _WAITING[dice.choice(sorted(_WAITING))]
    in_files = seed % 2 == 0
    logs = {rank: _healthy(rank, dice) for rank in range(size)}
    kind = ("fails", "missing", "silent", "fails", "missing")[seed % 5]
    expected = Expected(guilty)
    if kind == "fails":
        entry = sorted(_FAILURES)[seed // 5 % len(_FAILURES)]
        logs[guilty] += _FAILURES[entry]
        expected = Expected(guilty, entry=entry)
    elif kind == "missing":
        phase = sorted(_LAST_LINES)[seed // 5 % len(_LAST_LINES)]
        logs[guilty].append(_LAST_LINES[phase])
        expected = Expected(guilty, phase=phase)
    else:
        del logs[guilty]
        expected = Expected(guilty, is_silent=True)
    for rank in logs.keys() - {guilty}:
        logs[rank] += [line.format(rank=rank) for line in waiting]
        if size == 2 or dice.random() < 0.5:
            logs[rank].append("torch.distributed.DistNetworkError: Connection reset by peer, recvValue failed")
    if in_files:
        # Clocks of the hosts differ by hours.
        offsets = {rank: dice.randrange(-5, 6) for rank in logs}
        for rank, lines in logs.items():
            stamped = [f"2026-11-20 {10 + offsets[rank]:02d}:00:00,000 - INFO - start, world size: {size}", *lines]
            (directory / f"rank_{rank}.log").write_text("\n".join(stamped) + "\n")
    else:
        (directory / "job.log").write_text("\n".join(_interleaved(logs, size, dice)) + "\n")
    if dice.random() < 0.5:
        (directory / "launcher.log").write_text(_launcher(size, dice.choice(sorted(logs.keys() - {guilty}))))
    return expected


def write_labelled(directory: Path, seed: int) -> tuple[tuple[int, ...], str]:
    """Write the logs of a job of one or several nodes, in one file or one for each node; the missing ranks and what they
    were doing."""
    dice = random.Random(f"labelled {seed}")
    nodes, each = dice.choice(((1, 4), (1, 8), (1, 16), (2, 4), (2, 8), (4, 2), (4, 8)))
    size, label, waits = nodes * each, _LABELS[seed % len(_LABELS)], dice.choice(_WAITING_AMONG)
    # Without the label of a node, local ranks are told apart by files only.
    is_by_node = nodes > 1 and (("{local}" in label and "{node}" not in label) or dice.random() < 0.5)
    gone = dice.randrange(nodes)
    missing = tuple(range(gone * each, gone * each + each)) if nodes == 4 else (dice.randrange(size - 1),)
    phase = dice.choice(sorted(_LAST_LINES))
    steps, ends = {}, {}
    for rank in range(size):
        names = {"rank": rank, "local": rank % each, "node": rank // each}
        trained = [f"step {step} loss {2 - step / 100:.4f}" for step in range(3)]
        ended = _LAST_LINES[phase] if rank in missing else waits.format(**names)
        told = [f"world_size: {size}"] if seed % 2 else []
        steps[rank] = [label.format(**names) + line for line in told + trained]
        ends[rank] = [label.format(**names) + line for line in ended.split("\n")]
    for node in range(nodes if is_by_node else 1):
        own = [rank for rank in range(size) if not is_by_node or rank // each == node]
        # A time-out comes long after the last step.
        lines = [line for part in (steps, ends) for line in _shuffled({rank: part[rank] for rank in own}, dice)]
        (directory / f"node{node}.log").write_text("\n".join(lines) + "\n")
    return missing, phase


def _healthy(rank: int, dice: random.Random) -> list[str]:
    return [f"step {step} loss {2 - step / 100:.4f} lr 1e-05 rank-time {dice.random():.3f}" for step in range(12)]


def _interleaved(logs: dict[int, list[str]], size: int, dice: random.Random) -> list[str]:
    """Lines of all ranks by turns, each with torch's prefix where it has none of its own."""
    labelled = {
        rank: [line if line.startswith("[rank") else f"[rank{rank}]: {line}" for line in own]
        for rank, own in logs.items()
    }
    return [f"+ torchrun --nproc_per_node={size} train.py", *_shuffled(labelled, dice)]


def _shuffled(logs: dict[int, list[str]], dice: random.Random) -> list[str]:
    """Lines of all ranks by turns."""
    lines = []
    left = {rank: list(own) for rank, own in logs.items()}
    while left:
        rank = dice.choice(sorted(left))
        lines.append(left[rank].pop(0))
        if not left[rank]:
            del left[rank]
    return lines


def _launcher(size: int, victim: int) -> str:
    """torchrun's log, which names a victim: the rank whose process it saw end first."""
    ended = "".join(
        f"W1120 10:11:12.000000 140 torch/distributed/elastic/multiprocessing/api.py:897] "
        f"Sending process {700 + rank} closing signal SIGTERM\n"
        for rank in range(size)
        if rank != victim
    )
    return ended + (
        "E1120 10:11:14.246000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) "
        f"local_rank: {victim} (pid: {700 + victim}) of binary: /usr/bin/python3\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_10:11:12\n  host      : node7\n"
        f"  rank      : {victim} (local_rank: {victim})\n  exitcode  : -6 (pid: {700 + victim})\n"
        f"  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID {700 + victim}\n"
    )
