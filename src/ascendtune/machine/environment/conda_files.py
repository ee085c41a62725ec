"""conda's configuration files: those that it reads, the channels in them, and changes of the user's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ascendtune.core.errors import MachineError
from ascendtune.machine.environment.user_files import config_home, home, read_if_readable, read_user_file

CONDA_DEFAULTS = "https://repo.anaconda.com/pkgs"
_KEYS = ("channels", "default_channels", "custom_channels")


def all_settings(env: Mapping[str, str], root: Path = Path("/")) -> dict[Path, dict[str, Any]]:
    """File -> its settings, for files with channels, by decreasing precedence.

    Args:
        root: root of the paths /etc and /var.

    Raises:
        MachineError: a file cannot be read as conda's configuration.
    """
    found = {path: conda_settings(path, own=path == conda_file(env)) for path in dict.fromkeys(_files(env, root))}
    return {path: found[path] for path in reversed(found) if any(key in found[path] for key in _KEYS)}


def merged(settings: Mapping[Path, dict[str, Any]]) -> dict[str, Any]:
    """The channels of all files: conda joins lists, and for a name the file with the highest precedence decides."""
    lists = {key: [each for one in settings.values() for each in listed(one, key)] for key in _KEYS[:2]}
    custom = {
        name: address
        for one in reversed(list(settings.values()))
        if isinstance(mapping := one.get("custom_channels"), dict)
        for name, address in mapping.items()
    }
    return {**{key: list(dict.fromkeys(values)) for key, values in lists.items()}, "custom_channels": custom}


def listed(settings: Mapping[str, Any], key: str) -> list[str]:
    """The names below `key`; empty if it is not a list."""
    found = settings.get(key)
    return [str(each) for each in found] if isinstance(found, list) else []


def _files(env: Mapping[str, str], root: Path) -> Iterator[Path]:
    """In conda's order (conda/base/constants.py, SEARCH_PATH), the last one has the highest precedence."""
    places = [root / "etc/conda", root / "var/lib/conda"]
    program = Path(env.get("CONDA_EXE", ""))
    # ROOT/bin/conda
    places += [program.parent.parent] if program.is_absolute() else []
    places += [config_home(env) / "conda", home(env) / ".config/conda", home(env) / ".conda"]
    for place in places:
        yield from _configuration_files(place)
    yield home(env) / ".condarc"
    if prefix := env.get("CONDA_PREFIX"):
        yield from _configuration_files(Path(prefix))
    if given := env.get("CONDARC"):
        yield Path(given)


def _configuration_files(place: Path) -> Iterator[Path]:
    yield place / ".condarc"
    yield place / "condarc"
    yield from sorted((place / "condarc.d").glob("*.y*ml"))


def conda_file(env: Mapping[str, str]) -> Path:
    given = env.get("CONDARC", "")
    return Path(given) if given else home(env) / ".condarc"


def conda_settings(path: Path, *, own: bool = True) -> dict[str, Any]:
    """The settings in a file; `own`: whether it is the file that is changed here, and must be readable.

    Raises:
        MachineError: it cannot be read as conda's configuration.
    """
    try:
        content = yaml.safe_load((read_user_file(path) if own else read_if_readable(path)) or "")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise MachineError("not valid YAML", code="invalid-yaml", remedy="correct or remove it", where=path) from error
    if content is not None and not isinstance(content, dict):
        raise MachineError(
            "conda needs a mapping here, with keys such as channels",
            code="not-a-mapping",
            remedy="correct or remove it",
            where=path,
        )
    return content or {}


def conda_channels(settings: Mapping[str, Any]) -> list[str]:
    """The addresses of the channels that conda searches; `default_channels` replaces only `defaults`."""
    named, defaults, custom = (settings.get(key) for key in ("channels", "default_channels", "custom_channels"))
    found: list[str] = []
    for channel in map(str, named if isinstance(named, list) and named else ["defaults"]):
        if channel == "defaults":
            found += map(str, defaults) if isinstance(defaults, list) and defaults else [CONDA_DEFAULTS]
        elif "://" in channel or not (isinstance(custom, dict) and channel in custom):
            found.append(channel)
        else:
            found.append(f"{str(custom[channel]).rstrip('/')}/{channel}")
    return found


def with_channels(text: str | None, now: dict[str, Any], site: str | None) -> str | None:
    """.condarc with the channels of a site; other keys are unchanged."""
    kept = {key: value for key, value in now.items() if key not in ("default_channels", "custom_channels")}
    others = now.get("custom_channels")
    custom = {key: value for key, value in others.items() if key != "conda-forge"} if isinstance(others, dict) else {}
    if site is None and "default_channels" not in now and not isinstance(others, dict):
        return text
    if site is not None:
        kept["default_channels"] = [f"{site}/pkgs/main", f"{site}/pkgs/r"]
        custom["conda-forge"] = f"{site}/cloud"
    if custom:
        kept["custom_channels"] = custom
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True) if kept else ""
