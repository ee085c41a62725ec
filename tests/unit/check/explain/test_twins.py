"""Packages that go together in one release on Ascend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


def _trace(error: str, *frames: tuple[str, str]) -> str:
    rows = "".join(f'  File "{file}", line 7, in rise\n    {code}\n' for file, code in frames)
    return f"Traceback (most recent call last):\n{rows}{error}\n"


@pytest.mark.parametrize(
    ("before", "library", "position"),
    [
        ("/usr/local/Ascend/ascend-toolkit/latest on Ascend910B1\n", "vllm", 0),
        ("", "vllm", 2),
        ("cuda_version: 12.8\n", "vllm", None),
        ("/usr/local/Ascend/ascend-toolkit/latest on Ascend910B1\n", "transformers", None),
    ],
)
def test_on_ascend_no_package_of_a_pair_is_upgraded_alone(
    explained: Explained, before: str, library: str, position: int | None
) -> None:
    error = {
        "vllm": "ModuleNotFoundError: No module named 'vllm.lora.lora_model'",
        "transformers": "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'eval_strategy'",
    }[library]

    remedies = explained(before + _trace(error, ("/me/tide.py", "moon()"))).remedies()

    told = [index for index, remedy in enumerate(remedies) if f"do not change {library} alone" in remedy]
    assert told == ([] if position is None else [position])
