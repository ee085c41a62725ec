"""Packages of a log whose versions do not fit each other: of a crash without a message, and of a failed import."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.facts import of_log
from ascendtune.check.explain.facts.misfits import misfits_in

_CRASH = "Segmentation fault (core dumped)\n"
_OPERATOR = (
    'Traceback (most recent call last):\n  File "/x/torchvision/_meta_registrations.py", line 7, in rise\n'
    "    tide()\nRuntimeError: operator torchvision::nms does not exist\n"
)


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("torch==2.1.0\ntorchvision==0.20.1", "'torchvision==0.16.*'"),
        ("torch==1.13.1+cu117\ntorchaudio==2.0.2", "'torchaudio==0.13.*'"),
        ("PyTorch version: 2.4.0\n[pip3] triton==2.3.1", "'triton==3.0.*'"),
        ("torch==2.1.0\ntorchaudio==0.12.1", "'torchaudio==2.1.*'"),
        ("torch==2.1.0\ntriton==2.1", ""),
        ("torch 2.1.0\nnumpy 2.1.3", "'numpy<2'"),
        (
            "torch==2.4.0+cu121 torchvision==0.19.0+cu118",
            "torchvision --index-url https://download.pytorch.org/whl/cu121",
        ),
        ("torch==2.5.1\nflash_attn==2.5.8+cu122torch2.3cxx11abifalse", "flash-attn (its wheel for torch 2.5)"),
        ("torch.__version__\n'1.4.0'\ntransformers version is 4.18.0", "sentencepiece==0.1.91"),
        ("torch 1.4.0+cu100\nsentencepiece==0.1.92\n", "sentencepiece==0.1.91"),
        ("torch==2.4.0+cu121 torchvision==0.19.0+cu121 triton==3.0.0 numpy==2.1.0", ""),
        ("torch==2.1.0 torchvision==0.20.1 torch_npu==2.1.0", ""),
        ("torch==2.1.0 torch==2.4.0 torchvision==0.20.1", ""),
        ("torch==2.99.0 torchvision==0.20.1", ""),
        ("torch 1.4.0\nsentencepiece==0.1.91 transformers 2.9.1", ""),
    ],
)
def test_misfit_is_read_from_the_versions_of_a_log(text: str, use: str) -> None:
    versions = {name.removeprefix("version."): shown for name, shown in of_log([text]).items()}
    found = [misfit.use for misfit in misfits_in(versions)]

    assert found == ([use] if use else [])


@pytest.mark.parametrize(
    ("log", "is_told"),
    [
        (f"torch 1.4.0\ntransformers 2.9.1\n{_CRASH}", True),
        (f"torch==2.1.0\ntorchvision==0.20.1\n{_CRASH}", True),
        (f"torch==2.1.0\ntorchvision==0.20.1\n{_OPERATOR}", True),
        (f"torch==2.1.0\ntorchvision==0.16.0\n{_CRASH}", False),
        # The traceback does not concern torchaudio.
        (f"torch==2.1.0\ntorchaudio==2.5.1\n{_OPERATOR}", False),
        ("torch==2.1.0\ntorchvision==0.20.1\nFileNotFoundError: [Errno 2] No such file or directory: '/x/a'\n", False),
    ],
)
def test_headline_and_first_remedy_tell_the_misfit_of_a_crash_or_a_failed_call(
    explained: Callable[..., Explanation], log: str, is_told: bool
) -> None:
    explanation = explained(log)

    assert ("which do not fit each other" in explanation.headline()) == is_told
    assert ("these do not fit each other: pip install" in explanation.remedies()[0]) == is_told
