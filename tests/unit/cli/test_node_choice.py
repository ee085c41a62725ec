from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.cli.node_choice import ChosenNodes, require_one_starter
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.rundir import RunDir
from ascendtune.job.nodes import shared_run
from ascendtune.job.spec import NodePlace

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


@pytest.mark.parametrize("part", ["", "recipe.yaml", "run.json"])
def test_node_does_not_join_a_run_that_other_users_may_write(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "a")
    run.create("name: a\n", {}, {"data_hash": "1"})
    monkeypatch.setattr(shared_run, "receive_run", lambda runs, place: run.path)
    node = ChosenNodes(NodePlace(2, 1, "10.0.0.1", 29500))
    assert node.agree_on(None, tmp_path, "1").path == run.path
    (run.path / part).chmod(0o777)
    with pytest.raises(MachineError) as caught:
        node.agree_on(None, tmp_path, "1")
    assert caught.value.code == "writable-by-others"
