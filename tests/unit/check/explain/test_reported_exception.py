"""A report of an error that names the exception above its frames, as ComfyUI writes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_NODE = "/x/ComfyUI/custom_nodes/Moon-Node/tide.py"
_FRAMES = (
    '\n## Stack Trace\n\n  File "/x/ComfyUI/execution.py", line 7, in execute\n    rise()\n\n'
    f'  File "{_NODE}", line 77, in rise\n    out = mask.reshape(7)\n          ^^^^^^^^^^^^\n'
)
_NONE = "'NoneType' object has no attribute 'reshape'"


def _report(message: str, rest: str, kind: str = "AttributeError") -> str:
    fields = f"- **Node Type:** Moon\n- **Exception Type:** {kind}\n- **Exception Message:** {message}\n"
    return f"# ComfyUI Error Report\n## Error Details\n{fields}{_FRAMES}{rest}"


@pytest.mark.parametrize("message", [_NONE, f"AttributeError: {_NONE}"])
@pytest.mark.parametrize("rest", ["", "\n## System Information\n- **OS:** posix\n"])
@pytest.mark.parametrize("before", ["", "loading tide\n" * 60])
def test_exception_of_a_report_has_the_frames_below_it(
    explained: Explained, message: str, rest: str, before: str
) -> None:
    first = explained(before + _report(message, rest)).verdict.first

    assert first is not None and first.trace is not None
    assert first.trace.text == f"AttributeError: {_NONE}"
    assert first.trace.frames[-1] == (_NODE, 77, "rise")


def test_type_in_a_module_is_read_with_its_message(explained: Explained) -> None:
    kind, message = "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB."

    assert entry_of(explained(_report(message, "\n## Logs\n", kind))) in ("cuda-oom", "memory-of-comfyui")


def test_message_without_a_type_above_it_does_not_begin_a_traceback(explained: Explained) -> None:
    first = explained(f"## Moon\n- **Exception Message:** AttributeError: {_NONE}\n{_FRAMES}\n## Logs\n").verdict.first

    assert first is not None and first.is_quoted and first.trace is None
