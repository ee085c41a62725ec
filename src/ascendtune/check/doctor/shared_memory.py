"""/dev/shm, through which data loaders and process groups pass tensors."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.core.units import format_bytes

CODE = "shared_memory"

_ENOUGH_BYTES = 1 << 30
"""Docker's default is 64 MiB; several workers with batches of text stay far below a GiB a card."""


def _look(outside: Outside) -> Iterator[Finding]:
    place = outside.path("/dev/shm")
    try:
        free, total = outside.space(place)
    except OSError as error:
        yield unknown(CODE, f"/dev/shm: {error.strerror}", remedy="mount a tmpfs at /dev/shm")
        return
    if free < _ENOUGH_BYTES:
        yield Finding(
            CODE,
            "warning",
            f"/dev/shm has {format_bytes(free)} free of {format_bytes(total)}",
            expected=f"{format_bytes(_ENOUGH_BYTES)} or more",
            remedy="start the container with --shm-size=16g"
            if outside.in_container
            else "delete leftovers in /dev/shm, or: sudo mount -o remount,size=50% /dev/shm",
        )
    else:
        yield ok(CODE, f"/dev/shm has {format_bytes(free)} free of {format_bytes(total)}")


CHECK = Check(
    CODE,
    what="Looks how much of /dev/shm is free.",
    why="A container gets 64 MiB by default. Data loader workers and process groups then die with a bus error "
    "(SIGBUS) that says nothing about shared memory. Crashed jobs leave files there.",
    fix="Start the container with `--shm-size`; on a host remove leftover files or enlarge the tmpfs.",
    look=_look,
)
