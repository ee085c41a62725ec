"""The estimator is a separate process, which several tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.distributed.tensor import debug


@pytest.fixture(autouse=True)
def no_layouts_of_a_fake_group() -> Iterator[None]:
    """Forget how DTensors of rank 0 were laid out: torch keeps that by shape, and ranks forked later would take it."""
    yield
    debug._clear_sharding_prop_cache()
