"""Training on a simulated Ascend node: the real torch_npu, our simulated CANN libraries, and runs made by the recipe
fixtures of the folder above. Nothing here says anything about a device's numbers or speed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ascend_node.cann.build import why_not
from ascend_node.cann.node import Ended, Node
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.prepare import prepare_run

if TYPE_CHECKING:
    from tests.integration.train.conftest import Trained


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "npu":
            item.add_marker(pytest.mark.simulated_npu)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    if reason := why_not():
        pytest.skip(reason)
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.close()


@pytest.fixture
def prepared(recipe: Callable[..., Recipe]) -> Callable[..., RunDir]:
    """A run directory of the recipe with these changes, ready for its worker."""

    def make(**changes: Any) -> RunDir:
        run = prepare_run(recipe(**changes), {}).run
        assert run is not None
        return run

    return make


@pytest.fixture
def train_on_npu(node: Node, prepared: Callable[..., RunDir]) -> Callable[..., Trained]:
    """Train on one simulated NPU."""

    def start(**changes: Any) -> Trained:
        from tests.integration.train.conftest import Trained

        run = prepared(**changes)
        node.call(train, run.path)
        record = run.read()
        resolved = record["resolved"]
        # CANN's default for convolutions.
        assert record["attempts"][-1]["fp32_products"] == {"matmul": "fp32", "conv": "hf32"}
        assert resolved["device"]["kind"] == "npu" and resolved["attention"]["name"] == "npu_fusion"
        assert resolved["device"]["settings"]["jit_compile"] == "false"
        return Trained(run)

    return start


@pytest.fixture
def train_on_npus(node: Node, prepared: Callable[..., RunDir]) -> Callable[..., Trained]:
    """`train_on_npus(2, …)`: one process per rank, joined by HCCL, with the variables that torchrun sets."""

    def start(world_size: int, **changes: Any) -> Trained:
        from tests.integration.train.conftest import Trained

        run = prepared(**changes)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        world = {"WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environments: list[dict[str, object]] = [
            {**world, "RANK": rank, "LOCAL_RANK": rank, "GLOO_SOCKET_IFNAME": "lo"} for rank in range(world_size)
        ]
        ended = node.run_ranks(train, run.path, environments=environments)
        assert [each.code for each in ended] == [0] * world_size, "\n".join(each.err for each in ended)
        return Trained(run)

    return start


def train(path: Any) -> None:
    """On the node."""
    from ascendtune.core import log
    from ascendtune.train import attempt

    log.set_up()
    attempt.draw = lambda run: None  # type: ignore[assignment]
    attempt.train(RunDir(path), RunDir(path).read())


__all__ = ["Ended"]
