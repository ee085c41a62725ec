# ruff: noqa: E501
"""Builds and launches that fail, and what other processes say because of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation

_BUILD = (
    "FAILED: moon.o\n{error}\nninja: build stopped: subcommand failed.\n"
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/opt/torch/utils/cpp_extension.py", line 2104, in _run_ninja_build\n[rank0]:     run(\n'
    "[rank0]: subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
    "[rank0]: RuntimeError: Error building extension 'cpu_adam'\n"
)
_LOADED = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/opt/train.py", line 30, in <module>\n[rank1]:     opt = DeepSpeedCPUAdam(weights)\n'
    "[rank1]: ImportError: /root/.cache/torch_extensions/py310/cpu_adam/cpu_adam.so: cannot open shared object file: "
    "No such file or directory\n"
)


@pytest.mark.parametrize(
    ("error", "entry"),
    [
        ("moon.cpp:12:10: fatal error: Python.h: No such file or directory", "python-header-missing"),
        ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found", "nvcc-missing"),
        ("/bin/sh: nvcc: command not found", "nvcc-not-on-path"),
        ("sh: 1: g++: not found", "command-not-found"),
        ("/bin/sh: 1: /opt/ccec_compiler/bin/ccec: not found", "command-not-found"),
        ("/usr/bin/ld: cannot find -lcurand", "linker-without-curand"),
    ],
)
def test_error_of_a_build_is_the_cause_of_what_every_rank_says_then(
    explained: Callable[..., Explanation], error: str, entry: str
) -> None:
    build = _BUILD.format(error=error)

    for logs in ({"job": build}, {"job": build + _LOADED}, {"rank_0": build, "rank_1": _LOADED}):
        first = explained(**logs).verdict.first
        assert first is not None and first.hit.entry.id == entry


def test_extension_that_is_not_there_is_the_cause_where_no_build_is_seen(
    explained: Callable[..., Explanation],
) -> None:
    first = explained(_LOADED).verdict.first

    assert first is not None and first.hit.entry.id == "deepspeed-extension-not-built"


def test_command_of_a_script_that_is_missing_is_not_the_cause_of_another_failure(
    explained: Callable[..., Explanation],
) -> None:
    first = explained(
        "train.sh: line 3: make: command not found\nTraceback (most recent call last):\n"
        "  File \"/opt/train.py\", line 30, in <module>\n    moon()\nKeyError: 'tide_level'\n"
    ).verdict.first

    assert first is not None and "tide_level" in first.text


_TRACE = 'Traceback (most recent call last):\n  File "train.py", line 120, in <module>\n    model = model.to(device)\n'


@pytest.mark.parametrize(
    "raised",
    [
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
        "of which 1.10 GiB is free. Process 1 has 19.30 GiB memory in use. Process 2 has 19.30 GiB memory in use. Process "
        "3 has 19.30 GiB memory in use. Including non-PyTorch memory, this process has 19.30 GiB memory in use.",
        "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity; 14.10 GiB "
        "already allocated; 14.10 GiB current active; 700.00 MiB free; 15.2 GiB reserved in total by PyTorch)",
        "RuntimeError: ACL error: device memory: EL0004: Failed to allocate memory.",
        "RuntimeError: The server socket has failed to bind to [::]:29511 (errno: 98 - Address already in use).",
    ],
)
def test_processes_that_believe_to_be_alone_are_in_each_others_way(
    explained: Callable[..., Explanation], raised: str
) -> None:
    asked, alone = "+ torchrun --nproc_per_node=8 train.py\n", "world_size: 1, rank: 0, local_rank: 0\n" * 8

    explanation = explained(asked + alone + _TRACE + raised)

    assert explanation.verdict.first is not None and explanation.verdict.first.hit.entry.id == "world-of-one"
    assert explanation.verdict.rank is None and explanation.sureness.startswith("certain")
    assert not any(" end them" in remedy or "kill" in remedy for remedy in explanation.remedies())


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-29 10:00:01 [parallel_state.py:1200] world_size=1 rank=0 local_rank=0 init_method=env:// backend=nccl",
        "tp_world_size: 1, dp_world_size: 8",
        "tensor parallel world size: 1",
    ],
)
def test_world_of_one_of_a_subgroup_or_an_engine_is_none(explained: Callable[..., Explanation], line: str) -> None:
    raised = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

    first = explained(f"+ torchrun --nproc_per_node=8 train.py\n{line}\n{_TRACE}{raised}").verdict.first

    assert first is not None and "world-of-one" not in first.hit.entry.id


def test_remedies_for_ranks_of_one_job_on_one_device_do_not_end_them(explained: Callable[..., Explanation]) -> None:
    held = "".join(f"Process {number} has 19.30 GiB memory in use. " for number in (1001, 1002, 1003))

    explanation = explained(
        f"{_TRACE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        f"79.15 GiB of which 1.10 GiB is free. {held}Including non-PyTorch memory, this process has 19.30 GiB memory in use."
    )

    assert "3 processes of similar size" in explanation.headline()
    assert not any("end them" in remedy for remedy in explanation.remedies())
