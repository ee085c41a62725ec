"""The variables that limit which cards a process sees."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok

CODE = "visible_devices"

_NPU, _CUDA, _CONTAINER = "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"
_MISSPELT = ("ASCEND_RT_VISIBLE_DEVICE", "ASCEND_RT_VISIABLE_DEVICES", "NPU_VISIBLE_DEVICES")
"""Seen in public scripts; nothing reads them."""


def _look(outside: Outside) -> Iterator[Finding]:
    env, npus, gpus = outside.env, len(outside.npu_nodes), len(outside.gpus[0])
    found: list[Finding] = []
    if npus and _NPU in env:
        found += _npu(env[_NPU], npus)
    if gpus and _CUDA in env:
        found += _cuda(env[_CUDA], gpus)
    if npus:
        found += _confused(outside)
    yield from found
    if (npus and _NPU in env) or (gpus and _CUDA in env):
        if not found:
            name = _NPU if npus and _NPU in env else _CUDA
            yield ok(CODE, f"{name}={env[name]}")
    elif (npus or gpus) and not found:
        yield ok(CODE, f"all {npus or gpus} devices are visible")


def _npu(value: str, count: int) -> Iterator[Finding]:
    names = value.split(",")
    problem = _problem(names, count, ascending=True)
    if problem:
        kept = _kept(names, count)
        yield Finding(
            CODE,
            "failure" if not kept else "warning",
            f"{_NPU}={value!r}: {problem}; a process sees {', '.join(kept) or 'no NPU at all'}",
            expected=f"ids 0 to {count - 1}, ascending, with commas and no blanks",
            remedy=f"export {_NPU}={_repaired(names, count)}",
        )


def _cuda(value: str, count: int) -> Iterator[Finding]:
    names = value.split(",")
    if any(name.startswith(("GPU-", "MIG-")) for name in names):
        return
    if problem := _problem([name.strip() for name in names], count, ascending=False):
        yield Finding(
            CODE,
            "warning",
            f"{_CUDA}={value!r}: {problem}",
            expected=f"ids 0 to {count - 1}",
            remedy=f"export {_CUDA}={_repaired(names, count)}",
        )


def _problem(names: list[str], count: int, *, ascending: bool) -> str | None:
    if names == [""]:
        return "it is empty"
    if any(name != name.strip() for name in names):
        return "blanks end the list"
    strange = [name for name in names if not name.isdecimal()]
    if strange:
        return f"{strange[0]!r} is no id"
    ids = [int(name) for name in names]
    absent = [each for each in ids if each >= count]
    if absent:
        return f"there is no device {absent[0]}"
    if len(set(ids)) < len(ids):
        return "an id stands twice"
    if ascending and ids != sorted(ids):
        return "the runtime wants them ascending"
    return None


def _kept(names: list[str], count: int) -> list[str]:
    """What the runtime takes: everything before the first entry that it cannot use."""
    kept: list[str] = []
    for name in names:
        if not name.isdecimal() or int(name) >= count or (kept and int(name) <= int(kept[-1])):
            break
        kept.append(name)
    return kept


def _repaired(names: list[str], count: int) -> str:
    ids = sorted({int(name) for name in map(str.strip, names) if name.isdecimal() and int(name) < count})
    return ",".join(map(str, ids or range(count)))


def _confused(outside: Outside) -> Iterator[Finding]:
    for name in _MISSPELT:
        if name in outside.env:
            yield Finding(
                CODE,
                "warning",
                f"{name}={outside.env[name]} is set; the runtime does not read it",
                expected=_NPU,
                remedy=f"export {_NPU}={outside.env[name]}; unset {name}",
            )
    if _CONTAINER in outside.env and _NPU not in outside.env and not outside.in_container:
        yield Finding(
            CODE,
            "warning",
            f"{_CONTAINER}={outside.env[_CONTAINER]} has no effect outside a container's start",
            expected=f"{_NPU} to choose cards for a process",
            remedy=f"export {_NPU}={outside.env[_CONTAINER]}; unset {_CONTAINER}",
        )
    if _CUDA in outside.env and _NPU not in outside.env:
        yield Finding(
            CODE,
            "warning",
            f"{_CUDA}={outside.env[_CUDA]} does not limit NPUs",
            expected=_NPU,
            remedy=f"export {_NPU}={outside.env[_CUDA]}",
        )


CHECK = Check(
    CODE,
    what="Reads ASCEND_RT_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES as the runtimes do, and looks for names that are "
    "mistaken for them.",
    why="The runtime stops reading at the first entry that it cannot use, without a word: of `1, 2,3` only card 1 is "
    "left. It wants ids ascending. ASCEND_VISIBLE_DEVICES is read by the container runtime alone.",
    fix="Set ids with commas and without blanks, ascending, each once. Ids are logical and counted from 0 within the "
    "container.",
    look=_look,
)
