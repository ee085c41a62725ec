"""`ascendtune comm test`"""

from __future__ import annotations

from typing import Annotated

import typer

from ascendtune.cli.comm_names import complete_dtype, complete_tested, known
from ascendtune.cli.options import DeviceIds, Hosts, RankCount, RankDirectory, RankTimeout


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the values that were seen.")] = False,
) -> int:
    """Try every collective with every dtype on real ranks, and compare each element with what must arrive.

    \b
    ascendtune comm test
    ascendtune comm test --collective all_reduce --devices 8
    ascendtune comm test --nodes node1,node2

    One rank a device, joined by HCCL, NCCL or gloo. A rank that is wrong or does not come is named. Dtypes that the
    backend does not take are listed with its reason. Exit code 1: something is wrong.
    """
    import sys

    from ascendtune.check.comm.collective import BARRIER, COLLECTIVES
    from ascendtune.check.comm.dtype import LARGEST_EXACT
    from ascendtune.check.comm.judge import judge, results, verdict
    from ascendtune.check.finding import exit_code
    from ascendtune.check.table import as_json as findings_as_json
    from ascendtune.check.table import as_text
    from ascendtune.cli.comm_ranks import choose_ranks, run
    from ascendtune.cli.terminal import paint, width
    from ascendtune.core import log

    log.set_up()
    collectives = known((*COLLECTIVES, BARRIER), collective, "collective")
    dtypes = known(LARGEST_EXACT, dtype, "dtype")
    ranks = choose_ranks(devices, device_ids, nodes)
    work = {"task": "test", "collectives": collectives, "dtypes": dtypes, "timeout_seconds": timeout}
    ran = run(work, ranks, directory, steps=len(collectives) * len(dtypes))
    findings = judge(ran, collectives, timeout)
    sentence = verdict(ran, findings)
    if as_json:
        print(findings_as_json(sentence, findings, ranks=ranks.count, kind=ranks.kind, results=results(ran)))
    else:
        print(as_text(sentence, findings, columns=width(sys.stdout), paint=paint))
    return exit_code(findings)
