"""Variables that contradict each other, do nothing here, or cost speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok

CODE = "environment"

Env = Mapping[str, str]

_SLOW: dict[str, Callable[[str], bool]] = {
    "ASCEND_LAUNCH_BLOCKING": lambda value: value == "1",
    "CUDA_LAUNCH_BLOCKING": lambda value: value == "1",
    "ASCEND_GLOBAL_LOG_LEVEL": lambda value: value in ("0", "1"),
    "HCCL_ENTRY_LOG_ENABLE": lambda value: value == "1",
}
"""For finding faults; left on, they cost much of the speed (vendor's documentation of each)."""


def _look(outside: Outside) -> Iterator[Finding]:
    env = outside.env
    found = list(_slow(env))
    if outside.has_npus:
        found += [*_allocator(env), *_ranks(env), *_hccl(env), *_overflow(env), *_logs(env), *_ignored(env)]
    yield from found
    if not found:
        yield ok(CODE, "no contradiction among the variables that are known here")


def _warning(measured: str, expected: str, remedy: str) -> Finding:
    return Finding(CODE, "warning", measured, expected=expected, remedy=remedy)


def _slow(env: Env) -> Iterator[Finding]:
    for name, is_slow in _SLOW.items():
        if is_slow(env.get(name, "")):
            yield _warning(f"{name}={env[name]} makes training slow", "set only to find a fault", f"unset {name}")


def _allocator(env: Env) -> Iterator[Finding]:
    value = env.get("PYTORCH_NPU_ALLOC_CONF", "")
    options = dict(part.partition(":")[::2] for part in value.split(",") if part)
    clash = [name for name in ("max_split_size_mb", "garbage_collection_threshold") if name in options]
    if options.get("expandable_segments", "").lower() == "true" and clash:
        yield _warning(
            f"PYTORCH_NPU_ALLOC_CONF has expandable_segments:True and {clash[0]}",
            "one of the two; several torch_npu releases refuse both",
            "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
        )
    if value and env.get("PYTORCH_ALLOC_CONF"):
        yield _warning(
            "PYTORCH_NPU_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set",
            "one of them; torch_npu 26.2 raises for both",
            "unset PYTORCH_ALLOC_CONF",
        )


def _ranks(env: Env) -> Iterator[Finding]:
    if env.get("RANK_TABLE_FILE"):
        yield _warning(
            f"RANK_TABLE_FILE={env['RANK_TABLE_FILE']} is set: HCCL takes addresses from it, not from torchrun",
            "unset; a stale table is a classic cause of EI0004 and EI0014",
            "unset RANK_TABLE_FILE",
        )


def _hccl(env: Env) -> Iterator[Finding]:
    if env.get("HCCL_WHITELIST_DISABLE") == "0" and not env.get("HCCL_WHITELIST_FILE"):
        yield _warning(
            "HCCL_WHITELIST_DISABLE=0 without HCCL_WHITELIST_FILE: no peer is allowed",
            "both, or neither",
            "unset HCCL_WHITELIST_DISABLE",
        )
    if env.get("HCCL_INTRA_ROCE_ENABLE") == "1" and env.get("HCCL_INTRA_PCIE_ENABLE") == "1":
        yield _warning(
            "HCCL_INTRA_ROCE_ENABLE=1 and HCCL_INTRA_PCIE_ENABLE=1",
            "one way within a server; the documentation has no such pair",
            "export HCCL_INTRA_PCIE_ENABLE=0",
        )


def _overflow(env: Env) -> Iterator[Finding]:
    if env.get("INF_NAN_MODE_ENABLE") == "0":
        yield _warning(
            "INF_NAN_MODE_ENABLE=0: overflows become the largest number, and loss scaling does not see them",
            "1, the default of 910B and A3, which refuse 0 unless it is forced",
            "unset INF_NAN_MODE_ENABLE INF_NAN_MODE_FORCE_DISABLE",
        )


def _logs(env: Env) -> Iterator[Finding]:
    if env.get("ASCEND_SLOG_PRINT_TO_STDOUT") == "1":
        yield _warning(
            "ASCEND_SLOG_PRINT_TO_STDOUT=1: CANN writes no log files (plog), which a diagnosis needs",
            "unset",
            "unset ASCEND_SLOG_PRINT_TO_STDOUT",
        )


def _ignored(env: Env) -> Iterator[Finding]:
    ours = [name for name in sorted(env) if name.startswith("NCCL_") or name == "PYTORCH_CUDA_ALLOC_CONF"]
    if ours:
        yield _warning(
            f"{', '.join(ours)}: not read on Ascend",
            "HCCL_* and PYTORCH_NPU_ALLOC_CONF",
            f"unset {' '.join(ours)}",
        )


CHECK = Check(
    CODE,
    what="Looks through the environment for pairs that exclude each other, for settings that only serve to find "
    "faults, and for variables that another vendor's runtime reads.",
    why="Variables are copied from script to script and outlive their reason. Most are read without a complaint, "
    "whatever they say; exporting PYTORCH_NPU_ALLOC_CONF twice replaces the first, it does not add.",
    fix="Unset what the finding names. Keep settings in the job script, not in ~/.bashrc.",
    look=_look,
)
