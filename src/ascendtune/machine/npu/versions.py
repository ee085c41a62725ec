"""The files by which driver, firmware and CANN say their versions.

A CANN release has three numbers: its name (8.1.RC1), that of its packages (7.7.0.1.238) and an inner one
(V100R001C21SPC001B238). `version.info` of a package writes the second as `Version` and the first as `version_dir`;
`ascend_*_install.info` writes the first as `version` and the third as `innerversion`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.files import text_of

_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_DEFAULT_HOME = Path("usr/local/Ascend")


@dataclass(frozen=True)
class Toolkit:
    """An installed CANN toolkit. `in_use`: set_env.sh of this one was read in this environment."""

    path: str
    version: str | None
    package_version: str | None
    in_use: bool


@dataclass(frozen=True)
class Versions:
    driver_version: str | None
    firmware_version: str | None
    toolkits: tuple[Toolkit, ...]


def installed_versions(root: Path = Path("/"), env: Mapping[str, str] | None = None) -> Versions:
    """What is installed below `root`. Unreadable and absent files give None."""
    env = os.environ if env is None else env
    install = read_values(text_of(root / "etc/ascend_install.info"))
    homes = [
        root / install.get(key, "").lstrip("/") for key in ("Driver_Install_Path_Param", "Firmware_Install_Path_Param")
    ]
    driver, firmware = (
        _first_version(kind, home if home != root else root / _DEFAULT_HOME, root / _DEFAULT_HOME)
        for kind, home in zip(("driver", "firmware"), homes, strict=True)
    )
    return Versions(driver, firmware, tuple(_toolkits(root, env)))


def read_values(text: str) -> dict[str, str]:
    """`key=value` and `key : value` lines (version.info, *_install.info, ATB's version.info); quotes are taken off."""
    lines = re.finditer(r"^\s*([A-Za-z][\w .-]*?)\s*[=:]\s*(.*?)\s*$", text, re.MULTILINE)
    return {line[1]: line[2].strip('"') for line in lines}


def read_list(value: str) -> list[str]:
    """ "[V100R001C29],[V100R001C30]" -> its parts; a part may itself be a range "7.0.0,7.1.99"."""
    return re.findall(r"\[([^\]]*)\]", value)


def runtime_infos(toolkit: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """What the runtime of the CANN in the directory `toolkit` says of itself, at each place where releases have it."""
    places = (toolkit / "runtime/version.info", toolkit / "share/info/runtime/version.info")
    for file in (*places, *toolkit.glob("*/runtime/version.info")):
        if values := read_values(text_of(file)):
            yield file, values


def _first_version(kind: str, *homes: Path) -> str | None:
    for home in homes:
        if version := read_values(text_of(home / kind / "version.info")).get("Version"):
            return version
    return None


def _toolkits(root: Path, env: Mapping[str, str]) -> list[Toolkit]:
    """One for each directory with a version; links to the same directory count once."""
    used = {_resolved(Path(env[name])) for name in _HOMES if env.get(name)}
    base = root / _DEFAULT_HOME
    places = [*sorted(base.glob("ascend-toolkit/*")), *sorted(base.glob("cann*")), *sorted(used)]
    found: dict[Path, Toolkit] = {}
    for place in places:
        path = _resolved(place)
        version, package = _toolkit_version(path)
        if path not in found and (version or package):
            found[path] = Toolkit(str(path), version, package, path in used)
    return list(found.values())


def _toolkit_version(path: Path) -> tuple[str | None, str | None]:
    """Release name and package version of the toolkit in `path`, a release directory or its `aarch64-linux`."""
    release = package = None
    for file in (*path.glob("*_toolkit_install.info"), *path.glob("*-linux/*_toolkit_install.info")):
        release = release or read_values(text_of(file)).get("version")
    for _, values in runtime_infos(path):
        release, package = release or values.get("version_dir"), package or values.get("Version")
    return release, package


def _resolved(path: Path) -> Path:
    """The release directory itself. set_env.sh points to `latest` (a link, or a directory of links to its parts) or
    to its part for this architecture.
    """
    path = path.resolve()
    path = path.parent if path.name.endswith("-linux") else path
    runtime = path / "runtime"
    return runtime.resolve().parent if runtime.is_symlink() else path
