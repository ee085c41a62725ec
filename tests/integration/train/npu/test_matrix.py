"""The matrix on a simulated Ascend node: every loss on one NPU, and strategies on two that HCCL joins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from matrix.cells import LOSSES, WAYS, Way, asked, write_rows

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

_ALONE = WAYS[0]
_SHARED = [way for way in WAYS if way.ranks == 2 and way.parallel.get("strategy") in ("ddp", "fsdp")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_on_an_npu_is_that_of_the_cpu(
    train: Train, train_on_npu: Train, files: dict[str, Path], tiny_model: Path, tmp_path: Path, loss: str
) -> None:
    on_cpu, on_npu = (
        start(**asked(loss, "lora", _ALONE, files, tiny_model, tmp_path / where))
        for start, where in ((train, "cpu"), (train_on_npu, "npu"))
    )
    _same(on_npu, on_cpu)


@pytest.mark.parametrize("way", _SHARED, ids=str)
@pytest.mark.parametrize("loss", ["kto", "reward"])
def test_two_npus_are_one(
    train_on_npu: Train,
    train_on_npus: Train,
    files: dict[str, Path],
    tiny_model: Path,
    tmp_path: Path,
    loss: str,
    way: Way,
) -> None:
    alone = train_on_npu(**asked(loss, "full", _ALONE, files, tiny_model, tmp_path))
    _same(train_on_npus(2, **asked(loss, "full", way, files, tiny_model, tmp_path)), alone)


def _same(found: Trained, expected: Trained) -> None:
    for key in ("loss", "grad_norm"):
        assert found.curve(key) == pytest.approx(expected.curve(key), rel=1e-5, abs=1e-6), key
