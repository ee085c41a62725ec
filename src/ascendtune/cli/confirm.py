"""Asking before something is changed."""

from __future__ import annotations

import sys

import typer

from ascendtune.core.errors import InputError


def confirm(question: str, *, yes: bool) -> bool:
    """Whether to go on: --yes, or the answer on the terminal.

    Raises:
        InputError: stdin is not a terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InputError(
            "nothing was changed: this needs a confirmation, and stdin is not a terminal",
            code="confirmation-needed",
            remedy="look at what is listed above, then add --yes",
        )
    return typer.confirm(question, err=True)
