from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.unit.train.table_model import MakeLoop, make_table_loop


@pytest.fixture
def make_loop(tmp_path: Path) -> MakeLoop:
    return partial(make_table_loop, tmp_path)
