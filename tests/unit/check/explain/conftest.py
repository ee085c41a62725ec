from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.explain.explain import Explanation, explain


@pytest.fixture
def explained(tmp_path: Path) -> Callable[..., Explanation]:
    """explained(text) or explained(name=text, …): write logs and explain them."""

    def write_and_explain(text: str | None = None, **named: str) -> Explanation:
        logs = {"job.log": text, **{f"{name}.log": each for name, each in named.items()}}
        paths = []
        for name, content in logs.items():
            if content is not None:
                paths.append(tmp_path / name)
                paths[-1].write_text(content)
        return explain([str(path) for path in paths])

    return write_and_explain
