"""Names of arguments and options in help texts."""

from __future__ import annotations

from typing import Any

_TYPES = {"int": "N", "int range": "N", "float": "NUMBER", "float range": "NUMBER", "path": "PATH"}


def use_common_names(command: Any) -> None:
    """Use names as in other programs, `RECIPE [KEY=VALUE]...`, `--seed N`; typer shows Python's types, as `<str>`."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            _name_argument(parameter)
        elif not parameter.is_flag and parameter.metavar is None:
            kind = parameter.display_type(None).strip("<>")
            parameter.metavar = kind if "|" in kind else _TYPES.get(kind, "TEXT")


def _name_argument(argument: Any) -> None:
    argument.metavar = argument.metavar or argument.name.upper()
    usage = argument.metavar if argument.required else f"[{argument.metavar}]"
    argument.get_usage_pieces = lambda ctx: [usage + ("..." if argument.nargs == -1 else "")]
    argument.display_type_rich = lambda ctx: None
