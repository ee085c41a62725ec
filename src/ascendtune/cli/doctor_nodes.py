"""`ascendtune doctor --nodes`: the doctor on several machines at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS
from ascendtune.check.doctor.check import DEEP_LIMIT_SECONDS, examine
from ascendtune.check.doctor.nodes import NODES_ALIKE, NODES_ANSWER
from ascendtune.check.doctor.nodes_npu_network import NODES_NPU_NETWORK
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import exit_code
from ascendtune.check.nodes.compare import compare_nodes
from ascendtune.check.nodes.language import say
from ascendtune.check.nodes.query import query_nodes
from ascendtune.check.nodes.summary import as_json, as_text, summary
from ascendtune.cli.terminal import paint, print_json_text, width
from ascendtune.core import language
from ascendtune.core.errors import combined_error
from ascendtune.core.progress_bar import ProgressBar
from ascendtune.job.nodes.cluster_spec import hosts_of
from ascendtune.job.nodes.connection import portable_environment

_LIMIT_SECONDS = 30.0
"""Time for an answer: the connection, Python's start, and the slowest check."""


def doctor_nodes(text: str, codes: Sequence[str], *, deep: bool, json: bool) -> int:
    """Print the differences between the hosts in `text`; returns the exit code.

    Args:
        codes: the checks to run, empty for all.

    Raises:
        InputError: the hosts cannot be parsed.
        MachineError: no host answers.
    """
    hosts = hosts_of(text)
    chosen = [*(codes or (*CHECKS, *NODE_CHECKS)), *(DEEP_CHECKS if deep else ())]
    look = {
        "env": portable_environment(os.environ),
        "directory": str(Path.cwd()),
        "codes": [code for code in chosen if code not in NODE_CHECKS],
        "facts": NODES_ALIKE in chosen,
        "ports": NODES_NPU_NETWORK in chosen,
        "language": language.current(),
    }
    is_deep = bool(DEEP_CHECKS.keys() & set(chosen))
    with ProgressBar(sys.stderr) as progress:
        nodes = query_nodes(
            hosts,
            look,
            limit_seconds=_LIMIT_SECONDS + (DEEP_LIMIT_SECONDS if is_deep else 0),
            # Without a total: the time left does not depend on how many have answered.
            show=lambda done, total: progress.show(say("nodes that answered"), done, total),
        )
    if not nodes.answers:
        raise combined_error(list(nodes.silent.values()))
    comparison = compare_nodes(nodes.answers)
    # Whether they answer is always reported.
    own_checks = [NODES_ANSWER, *(code for code in chosen if code in NODE_CHECKS)]
    own_findings = examine(System(nodes=nodes), own_checks).findings
    sentence = summary(nodes, comparison, own_findings)
    code = exit_code([*own_findings, *(each for answer in nodes.answers.values() for each in answer.findings)])
    if json:
        print_json_text(as_json(sentence, code, nodes, comparison, own_findings))
    else:
        beside = [each for each in own_findings if each.status == "ok" or each.code != NODES_ALIKE]
        print(as_text(sentence, nodes, comparison, beside, columns=width(sys.stdout), paint=paint))
    return code
