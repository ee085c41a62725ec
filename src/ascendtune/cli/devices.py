"""`ascendtune devices`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.options import AsJson

if TYPE_CHECKING:
    from ascendtune.machine.snapshot import Snapshot


def devices(
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks with --watch.", min=0.5)] = 2.0,
    free: Annotated[
        int | None,
        typer.Option(help="Print the ids of N free devices, for ASCEND_RT_VISIBLE_DEVICES.", min=1),
    ] = None,
    topology: Annotated[bool, typer.Option("--topology", help="Print the links between devices.")] = False,
) -> int:
    """Show the accelerators and the host. Needs no torch.

    \b
    ascendtune devices
    ascendtune devices --json
    export ASCEND_RT_VISIBLE_DEVICES=$(ascendtune devices --free 4)

    Exit code 3: the vendor's tool failed, or fewer devices are free.
    """
    from ascendtune.core.errors import InputError

    if sum((free is not None, topology, watch)) > 1 or (as_json and (free is not None or topology)):
        raise InputError(
            "--free, --topology and --watch exclude each other; --json goes with --watch alone",
            code="contradicting-options",
            remedy="keep one",
        )
    if topology:
        return _show_topology()
    if watch:
        return _watch(interval, as_json)
    snapshot = _look()
    if free is not None:
        _print_free(snapshot, free)
        return 0
    _print_snapshot(snapshot, as_json)
    return 3 if snapshot.is_blind else 0


def _look() -> Snapshot:
    """A snapshot; what went wrong in taking it goes to stderr."""
    from ascendtune.cli.complain import warn
    from ascendtune.machine.snapshot import take_snapshot

    snapshot = take_snapshot()
    for trouble in snapshot.troubles:
        warn(f"{trouble.what}\n     do: {trouble.remedy}")
    return snapshot


def _print_snapshot(snapshot: Snapshot, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        import json

        print(json.dumps(snapshot.as_json(), indent=indent), flush=True)
    else:
        from ascendtune.cli.device_table import picture

        print(picture(snapshot), flush=True)


def _watch(interval: float, as_json: bool) -> int:
    """One picture after the other, in place on a terminal; with --json one line each."""
    import sys
    import time

    from ascendtune.core.terminal_text import control
    from ascendtune.machine.snapshot import take_snapshot

    clears = sys.stdout.isatty() and not as_json
    snapshot = _look()
    while True:
        if clears:
            print(control("[H", sys.stdout) + control("[2J", sys.stdout), end="")
        _print_snapshot(snapshot, as_json, indent=None)
        if not as_json and not clears:
            print()
        time.sleep(interval)
        snapshot = take_snapshot()


def _print_free(snapshot: Snapshot, count: int) -> None:
    import os

    from ascendtune.machine.free import pick_free

    print(",".join(str(device.logical_id) for device in pick_free(snapshot.devices, count, os.environ)))


def _show_topology() -> int:
    from ascendtune.cli.complain import warn
    from ascendtune.cli.device_table import topology_picture
    from ascendtune.machine.host import numa_nodes
    from ascendtune.machine.npu.smi import NpuSmi

    smi = NpuSmi()
    topology = smi.topology()
    for trouble in smi.troubles:
        warn(f"{trouble.what}\n     do: {trouble.remedy}")
    if topology is None:
        print(
            "no topology: "
            + ("npu-smi does not report it" if smi.is_there else "npu-smi is not here or does not answer")
        )
        return 3 if smi.troubles else 0
    print(topology_picture(topology, numa_nodes()))
    return 0
