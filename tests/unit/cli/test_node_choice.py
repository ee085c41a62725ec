from __future__ import annotations

import pytest

from ascendtune.cli.node_choice import require_one_starter
from ascendtune.core.errors import InputError

_TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    "env",
    [_TORCHRUN, {"RANK": "0", "WORLD_SIZE": "2"}, {**_TORCHRUN, "NNODES": "2"}],
    ids=["torchrun", "a scheduler", "torchrun on a node"],
)
def test_one_of_many_starters_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        require_one_starter(env)
    assert caught.value.code == "started-by-launcher"


@pytest.mark.parametrize(
    "env",
    [{}, {**_TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "1", "WORLD_SIZE": "2", "NNODES": "2"}],
    ids=["alone", "torchrun with one process", "one node of several"],
)
def test_one_starter_on_a_node_is_fine(env: dict[str, str]) -> None:
    require_one_starter(env)
