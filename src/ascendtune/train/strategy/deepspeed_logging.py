"""DeepSpeed's logger, reduced to errors: on import, also by accelerate, it prints about the host to stdout."""

from __future__ import annotations

import logging


def silence_deepspeed() -> None:
    """Call this before DeepSpeed is imported: it sets the level of its logger itself, but keeps a filter."""
    logging.getLogger("DeepSpeed").addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
