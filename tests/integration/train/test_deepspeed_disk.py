"""DeepSpeed with state on a disk: the numbers are those of memory, also after a stop, and no file outlives the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integration.train.test_fsdp import EXACT, go_on

from ascendtune.core.errors import RecipeError
from ascendtune.train.strategy.deepspeed_disk import require_disk

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

pytest.importorskip("deepspeed", reason="DeepSpeed is shown to a process of its own (make deepspeed-tests)")
BOTH = ("offload_optimizer", "offload_param")
BUILD = "from deepspeed.ops.op_builder import AsyncIOBuilder; AsyncIOBuilder().load()"
BUILT = Path(__file__).parents[3] / ".venv-deepspeed/torch_extensions"


def deepspeed(**section: Any) -> dict[str, Any]:
    return {"strategy": "deepspeed", "deepspeed": {"stage": 3, **section}}


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's operator for files, built once for all tests: it takes minutes."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible():
        pytest.skip("the headers of libaio are not installed")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(BUILT))
    subprocess.run([sys.executable, "-c", BUILD], check=True, capture_output=True, timeout=900)


@pytest.fixture
def wide_model(variant: Callable[..., Path]) -> Path:
    """Two ranks have more than 1 MiB of each of its larger weights: less DeepSpeed keeps in memory."""
    from transformers import Qwen2Config

    return variant(
        Qwen2Config(
            vocab_size=512,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
        )
    )


@pytest.mark.soak
@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    ("parts", "precision", "ranks"),
    [(BOTH[:1], "fp32", 2), (BOTH[1:], "bf16", 1), (BOTH, "bf16", 1), (BOTH, "bf16", 2)],
)
def test_a_run_continues_bit_by_bit(
    start_by_torchrun: Train, wide_model: Path, tmp_path: Path, parts: tuple[str, ...], precision: str, ranks: int
) -> None:
    (swap := tmp_path / "swap").mkdir()
    changes: dict[str, Any] = {
        "model": {"path": str(wide_model)},
        "optim": {"max_steps": 5, "learning_rate": 1e-3},
        "batch": {"per_device": 4 // ranks},
        "precision": precision,
        "checkpoint": {"every_steps": 2, "keep": 9, "resume": "auto"},
    }
    on_disk = deepspeed(nvme_path=str(swap), **dict.fromkeys(parts, "nvme"))
    in_host = deepspeed(**dict.fromkeys(parts, "cpu"))
    in_memory = start_by_torchrun(ranks, name="in-memory", parallel=in_host, **changes)
    trained = start_by_torchrun(ranks, name="on-disk", parallel=on_disk, **changes)
    before, weights = list(trained.run.read_metrics()), trained.weights()
    assert [each["loss"] for each in before] == [each["loss"] for each in in_memory.run.read_metrics()]
    assert all(torch.equal(weight, weights[name]) for name, weight in in_memory.weights().items())

    go_on(trained, partial(start_by_torchrun, ranks, name="on-disk", parallel=on_disk, **changes))
    after = list(trained.run.read_metrics())
    assert [[each[key] for key in EXACT] for each in after] == [[each[key] for key in EXACT] for each in before]
    assert all(torch.equal(weight, weights[name]) for name, weight in trained.weights().items())
    assert not list(swap.glob("ascendtune-swap-*"))


def test_weights_that_deepspeed_would_round_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.accelerator import get_accelerator

    # Some CPUs have fp16.
    monkeypatch.setattr(type(get_accelerator()), "is_fp16_supported", lambda accelerator: False)
    config = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}
    with pytest.raises(RecipeError, check=lambda error: error.code == "offload-rounds-weights"):
        require_disk(config, compute="fp32")
