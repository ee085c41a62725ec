from __future__ import annotations

from typing import Any

import pytest

from ascendtune.check.comm.collective import COLLECTIVES, LARGEST_EXACT
from ascendtune.cli.comm import _OTHER_NAMES, known
from ascendtune.core.errors import InputError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fp32", "float32"),
        ("BF16", "bfloat16"),
        ("float8", "float8_e4m3fn"),
        ("float23", "float32"),
        ("allreduce", "all_reduce"),
        ("all-gather", "all_gather"),
    ],
)
def test_neighbours_names_are_understood(given: str, meant: str) -> None:
    names = (*LARGEST_EXACT, *COLLECTIVES)
    with pytest.raises(InputError) as raised:
        known(names, [given], "name")
    assert raised.value.code == "unknown-name" and raised.value.remedy == f"did you mean '{meant}'?"


def test_every_other_name_leads_to_one_that_exists() -> None:
    assert set(_OTHER_NAMES.values()) <= {*LARGEST_EXACT, *COLLECTIVES}


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("comm bench --collective all_", ["all_reduce", "all_gather", "all_to_all"]),
        ("comm test --collective ba", ["barrier"]),
        ("comm bench --dtype bf", ["bfloat16"]),
        ("doctor npu_", ["npu_smi", "npu_network"]),
    ],
)
def test_a_shell_completes_names(ascendtune: Any, words: str, completed: list[str]) -> None:
    line = f"ascendtune {words}"
    count = str(len(line.split()) - 1)
    asked = ascendtune(_ASCENDTUNE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=count)
    assert sorted(asked.stdout.split()) == sorted(completed)
