"""Exceptions that loggers write as fields of JSON objects. The forms are those of the libraries' sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.traceback.exception_fields import traceback_of_fields

Explained = Callable[..., Explanation]

_SIZES = "The size of tensor a (4096) must match the size of tensor b (2048) at non-singleton dimension 1"
_TRACEBACK = ["Traceback (most recent call last):", '  File "/x/tide.py", line 7, in rise', f"RuntimeError: {_SIZES}"]
_STACK = '  File "/x/tide.py", line 7, in rise\n    moon(7)\n'
_FRAME = {"filename": "/x/tide.py", "lineno": 7, "name": "rise", "locals": {"moon": "<function moon at 0x7f>"}}
_OF_STRUCTLOG = {
    "exc_type": "RuntimeError",
    "exc_value": _SIZES,
    "exc_notes": [],
    "syntax_error": None,
    "is_cause": False,
    "frames": [_FRAME],
}


@pytest.mark.parametrize(
    "fields",
    [
        # structlog.processors.dict_tracebacks
        {"event": "training failed", "level": "error", "exception": [_OF_STRUCTLOG]},
        {"event": "training failed", "exception": [_OF_STRUCTLOG]},
        # python-json-logger, exc_info_as_array
        {"levelname": "ERROR", "message": "training failed", "exc_info": _TRACEBACK},
        # ecs-logging
        {
            "@timestamp": "2026",
            "log.level": "error",
            "message": "training failed",
            "error": {"message": _SIZES, "stack_trace": _STACK, "type": "RuntimeError"},
        },
        # AWS Powertools
        {
            "level": "ERROR",
            "message": "training failed",
            "stack_trace": {
                "type": "RuntimeError",
                "value": _SIZES,
                "module": "builtins",
                "frames": [{"file": "/x/tide.py", "line": 7, "function": "rise", "statement": "moon(7)"}],
            },
        },
        # Sentry's events
        {
            "level": "error",
            "exception": {
                "values": [
                    {
                        "type": "RuntimeError",
                        "value": _SIZES,
                        "stacktrace": {"frames": [{**_FRAME, "function": "rise"}]},
                    }
                ]
            },
        },
        # logging-json
        {"message": "training failed", "exception": {"type": "RuntimeError", "message": _SIZES, "stack": _STACK}},
    ],
)
def test_exception_is_read_from_the_fields_of_a_logger(explained: Explained, fields: dict[str, Any]) -> None:
    news = json.dumps({"event": "started", "level": "info", "message": "started"})
    explanation = explained(f"{news}\n{json.dumps(fields)}\n")
    first = explanation.verdict.first

    assert explanation.headline().startswith("tensors have shapes that do not go together: The size of tensor a (4096)")
    assert first is not None and first.number == 2 and first.trace is not None
    assert first.trace.place == ("/x/tide.py", 7, "rise")


@pytest.mark.parametrize(("is_cause", "link"), [(True, "direct cause"), (False, "another exception occurred")])
def test_exception_that_led_to_another_stands_before_it(is_cause: bool, link: str) -> None:
    """structlog begins with the exception that was caught."""
    later = {**_OF_STRUCTLOG, "exc_type": "TideError", "exc_value": "the tide is out"}
    lines = traceback_of_fields(json.dumps({"exception": [later, {**_OF_STRUCTLOG, "is_cause": is_cause}]}))

    assert lines[2] == f"RuntimeError: {_SIZES}" and link in lines[4] and lines[-1] == "TideError: the tide is out"


@pytest.mark.parametrize(
    "text",
    [
        '{"stack": ["a", "b"], "type": "moon", "message": "tide"}',
        '{"stack_trace": null, "type": "moon", "message": "tide"}',
        '{"stack": "docker", "name": "moon", "message": "tide"}',
        '{"stack_trace": {"frames": [7]}, "type": "moon", "value": "tide"}',
        '{"exception": [{"exc_type": 7}]}',
        '{"exception": [',
        "[" * 100_000,
    ],
)
def test_other_objects_hold_no_exception(explained: Explained, text: str) -> None:
    assert traceback_of_fields(text) == []


def test_news_with_a_stack_is_healthy(explained: Explained) -> None:
    assert explained('{"level": "info", "message": "deployed", "stack": "moon", "name": "tide"}\n').is_healthy
