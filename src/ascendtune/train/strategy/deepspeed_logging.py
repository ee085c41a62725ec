"""DeepSpeed says errors only: whoever imports it (accelerate does) is told on stdout what it thinks of the host."""

from __future__ import annotations

import logging


def hush_deepspeed() -> None:
    """To be called before anything may import DeepSpeed. It sets its logger's level itself; a filter stays."""
    logging.getLogger("DeepSpeed").addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
