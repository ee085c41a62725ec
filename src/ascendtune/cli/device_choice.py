"""Checks `--devices N` and `--device-ids 0,1` against the devices of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.units import count_of
from ascendtune.machine.vendor.find import CPU
from ascendtune.machine.visible import Kind, VisibleDevices

# Each takes about a gigabyte, so more processes than cores soon exceed the memory of a host without accelerators.
_MOST_ON_CPU = 64


@dataclass(frozen=True)
class Devices:
    """The devices of a job."""

    kind: Kind
    count: int
    ids: tuple[str, ...] | None = None
    """Only these; None: the first `count` visible ones."""
    warning: str | None = None


def choose(visible: VisibleDevices, *, count: int | None, ids: str | None, cores: int) -> Devices:
    """The devices for a job.

    Args:
        count: `--devices`; by default all accelerators, or one process on the CPU.
        ids: `--device-ids`.
        cores: number of cores of this machine, for the warning.

    Raises:
        InputError: both were given, or the ids are not a list of different names.
        MachineError: more devices, or other ones, than there are.
    """
    if ids is not None:
        if count is not None:
            raise InputError(
                "--devices and --device-ids contradict each other",
                code="conflicting-options",
                remedy="keep one of them",
            )
        return _by_ids(visible, ids)
    if not visible.vendor.is_accelerator:
        warning, most = None, max(_MOST_ON_CPU, cores)
        if count is not None and count > most:
            raise MachineError(
                f"{count:,} processes on {count_of(cores, 'core')} would exhaust the memory of this machine",
                code="too-many-processes",
                remedy=f"use --devices {cores}; the limit is {most}",
            )
        if count is not None and count > cores:
            warning = f"{count} processes share {count_of(cores, 'core')}: slower than {cores}"
        return Devices(CPU.kind, count or 1, warning=warning)
    available = len(visible.ids)
    if count is not None and count > available:
        raise MachineError(
            f"{count_of(count, 'device')} requested, {available} {visible.vendor.noun} visible",
            code="too-few-devices",
            remedy=f"use --devices {available}, or look at {visible.vendor.visible_variable}",
        )
    return Devices(visible.kind, count or available)


def _by_ids(visible: VisibleDevices, text: str) -> Devices:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise InputError(
            f"--device-ids {text} is not a list of different devices",
            code="invalid-option-value",
            remedy="write it as --device-ids 0,1",
        )
    if not visible.vendor.is_accelerator:
        raise MachineError(
            "--device-ids names accelerators, and none is visible",
            code="no-accelerator",
            remedy="use --devices N for N processes on the CPU" if visible.note is None else visible.note,
        )
    if missing := [name for name in names if name not in visible.ids]:
        raise MachineError(
            f"{visible.vendor.noun} {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not visible",
            code="device-not-visible",
            remedy=f"choose from {', '.join(visible.ids)}, or look at {visible.vendor.visible_variable}",
        )
    # The Ascend runtime reads its variable only as long as it ascends.
    return Devices(visible.kind, len(names), tuple(sorted(names, key=visible.ids.index)))
