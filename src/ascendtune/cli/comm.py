"""`ascendtune comm test` and `ascendtune comm bench`"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from ascendtune.cli.options import AsJson, DeviceIds, Hosts, RankCount, RankDirectory, RankTimeout
from ascendtune.cli.terminal import print_findings
from ascendtune.core.errors import InputError
from ascendtune.core.suggest import require_known

_OTHER_NAMES = {
    "fp64": "float64", "double": "float64", "fp32": "float32", "float": "float32", "fp16": "float16",
    "half": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "float8": "float8_e4m3fn", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "long": "int64", "int": "int32", "short": "int16", "byte": "uint8", "boolean": "bool",
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "sendreceive": "send_recv", "bcast": "broadcast",
}  # fmt: skip
"""Names in other libraries, without separators -> torch's name."""


def known(names: Collection[str], given: list[str] | None, what: str) -> list[str]:
    """The given names, or all of `names`.

    Raises:
        InputError: a name is unknown; the remedy suggests the nearest one.
    """
    for name in given or ():
        usual = _OTHER_NAMES.get(name.lower().replace("_", "").replace("-", ""))
        if name not in names and usual in names:
            raise InputError(f"unknown {what} '{name}'", code="unknown-name", remedy=f"did you mean '{usual}'?")
    require_known(given or (), names, what)
    return list(dict.fromkeys(given or names))


def complete_collective(incomplete: str) -> list[str]:
    """Collectives of `comm bench`."""
    from ascendtune.check.comm.collective import COLLECTIVES

    return [name for name in COLLECTIVES if name.startswith(incomplete)]


def complete_tested(incomplete: str) -> list[str]:
    """Collectives of `comm test`."""
    from ascendtune.check.comm.collective import BARRIER, COLLECTIVES

    return [name for name in (*COLLECTIVES, BARRIER) if name.startswith(incomplete)]


def complete_dtype(incomplete: str) -> list[str]:
    from ascendtune.check.comm.collective import LARGEST_EXACT

    return [name for name in LARGEST_EXACT if name.startswith(incomplete)]


def test(
    devices: RankCount = None,
    device_ids: DeviceIds = None,
    nodes: Hosts = None,
    collective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this one, e.g. all_reduce or barrier; repeatable.",
            autocompletion=complete_tested,
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this one, e.g. bfloat16; repeatable.", autocompletion=complete_dtype),
    ] = None,
    timeout: RankTimeout = 120.0,
    directory: RankDirectory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with the received values.")] = False,
) -> int:
    """Run every collective with every dtype on real ranks, and compare each element with the expected value.

    \b
    ascendtune comm test
    ascendtune comm test --collective all_reduce --devices 8
    ascendtune comm test --nodes node1,node2

    One rank per device, connected by HCCL, NCCL or gloo. Ranks with wrong values and missing ranks are named. Dtypes
    that the backend does not support are listed with its reason. Exit code 1: at least one collective failed.
    """
    from ascendtune.check.comm.collective import BARRIER, COLLECTIVES, LARGEST_EXACT
    from ascendtune.check.comm.judge import judge, results, verdict
    from ascendtune.check.finding import exit_code
    from ascendtune.cli.comm_ranks import choose_ranks, run
    from ascendtune.core import log

    log.set_up()
    collectives = known((*COLLECTIVES, BARRIER), collective, "collective")
    dtypes = known(LARGEST_EXACT, dtype, "dtype")
    ranks = choose_ranks(devices, device_ids, nodes)
    work = {"task": "test", "collectives": collectives, "dtypes": dtypes, "timeout_seconds": timeout}
    ran = run(work, ranks, directory, steps=len(collectives) * len(dtypes))
    findings = judge(ran, collectives, timeout)
    print_findings(
        verdict(ran, findings), findings, as_json=as_json, ranks=ranks.count, kind=ranks.kind, results=results(ran)
    )
    return exit_code(findings)


def bench(
    devices: RankCount = None,
    device_ids: DeviceIds = None,
    nodes: Hosts = None,
    collective: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The collective (default: all_reduce).", autocompletion=complete_collective),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dtype (default: float32).", autocompletion=complete_dtype)
    ] = None,
    min_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The first size; sizes double from there (default: 8).")
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="The last size (default: 1G, limited by half of the free memory; --pairs: 16M)."
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Samples per size (default: 20, fewer if they take over 20 s)."),
    ] = None,
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="Send messages between all pairs of ranks: a heat map, and the slowest link."),
    ] = False,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="GB/s|peak", help="Compare the best bandwidth with a number, or with the links' published peak."
        ),
    ] = None,
    profile_step: Annotated[
        Path | None,
        typer.Option(
            metavar="RECIPE|RUN",
            help="Train a few steps of this instead, and report where their time goes.",
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also save a plot.")] = None,
    timeout: RankTimeout = 120.0,
    directory: RankDirectory = None,
    as_json: AsJson = False,
) -> int:
    """Measure a collective over sizes, like nccl-tests; or every link, or a training step.

    \b
    ascendtune comm bench
    ascendtune comm bench --collective all_gather
    ascendtune comm bench --pairs --png links.png
    ascendtune comm bench --nodes node1,node2 --pairs
    ascendtune comm bench --min-bytes 64M --expect 150
    ascendtune comm bench --profile-step recipe.yaml

    Sizes and busbw are defined as in nccl-tests; 1 GB is 10^9 bytes. The time is the slowest rank's median. all_reduce
    and broadcast work in place, as in torch; the others do not. #wrong counts wrong elements, compared before timing.
    --profile-step trains a few steps normally and a few without overlap of compute and communication; nothing is saved.
    """
    from ascendtune.check.comm.sweep import bytes_of, expected_of
    from ascendtune.cli.comm_ranks import choose_ranks, run
    from ascendtune.cli.comm_report import Report, measure_step
    from ascendtune.core import log
    from ascendtune.core.directories import require_place_for

    log.set_up()
    if profile_step is not None:
        if pairs or collective or dtype or min_bytes or max_bytes or iterations or expect or png:
            raise InputError(
                "--profile-step measures training: the options for collectives and links do not apply to it",
                code="conflicting-options",
                remedy="keep --devices, --device-ids, --timeout, --directory and --json only",
            )
        return measure_step(profile_step, choose_ranks(devices, device_ids, nodes), directory, timeout, is_json=as_json)
    if pairs and (collective or dtype or min_bytes):
        raise InputError(
            "--pairs sends messages of one size: --collective, --dtype and --min-bytes do not apply to it",
            code="conflicting-options",
            remedy="remove them; --max-bytes sets the size",
        )
    if expect is not None:
        expected_of(expect)
    if png is not None:
        require_place_for(png)
    if pairs:
        work: dict[str, Any] = {"task": "pairs", "bytes": bytes_of(max_bytes or "16M", "--max-bytes")}
    else:
        work = _sweep(collective or "all_reduce", dtype or "float32", min_bytes or "8", max_bytes or "1G")
    ranks = choose_ranks(devices, device_ids, nodes)
    steps = ranks.count * (ranks.count - 1) if pairs else (work["max_bytes"] // work["min_bytes"]).bit_length()
    ran = run({**work, "iterations": iterations or 20, "timeout_seconds": timeout}, ranks, directory, steps=steps)
    report = Report(ran, expect, png, as_json, timeout)
    return report.links() if pairs else report.rows(work)


def _sweep(collective: str, dtype: str, min_bytes: str, max_bytes: str) -> dict[str, Any]:
    """The task of the ranks that measures a collective over sizes.

    Raises:
        InputError: an unknown name, not a size, or no size between the two.
    """
    from ascendtune.check.comm.collective import COLLECTIVES, LARGEST_EXACT
    from ascendtune.check.comm.sweep import bytes_of

    known(COLLECTIVES, [collective], "collective")
    known(LARGEST_EXACT, [dtype], "dtype")
    first, last = bytes_of(min_bytes, "--min-bytes"), bytes_of(max_bytes, "--max-bytes")
    if first > last:
        raise InputError(
            f"--min-bytes {min_bytes} is larger than --max-bytes {max_bytes}",
            code="invalid-option-value",
            remedy="swap them",
        )
    return {"task": "sizes", "collective": collective, "dtype": dtype, "min_bytes": first, "max_bytes": last}
