"""The files with the versions of driver, firmware and CANN.

A CANN release has three numbers: its name (8.1.RC1), that of its packages (7.7.0.1.238) and an inner one
(V100R001C21SPC001B238). `version.info` of a package writes the second as `Version` and the first as `version_dir`;
`ascend_*_install.info` writes the first as `version` and the third as `innerversion`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.files import text_of

_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_DEFAULT_HOME = Path("usr/local/Ascend")
_INSTALLED = Path("etc/Ascend/ascend_cann_install.info")
"""Where the installer notes the path that root gave with --install-path."""


@dataclass(frozen=True)
class Toolkit:
    """An installed CANN toolkit. `in_use`: whether its set_env.sh was read in this environment."""

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
    """The versions installed below `root`. Unreadable and absent files result in None."""
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


def ascend_homes(root: Path, env: Mapping[str, str]) -> list[Path]:
    """The directories that CANN and nnal are installed in: by root, by root with a path of its own, by this user."""
    given = read_values(text_of(root / _INSTALLED)).get("Install_Path", "").strip("/")
    home = env.get("HOME", "")
    own = [Path(home) / "Ascend"] if home.startswith("/") else []
    return list(dict.fromkeys([root / _DEFAULT_HOME, *([root / given] if given else []), *own]))


def set_env_script(kit: Toolkit, kits: Sequence[Toolkit]) -> Path | None:
    """The script that loads `kit`, one of the installed `kits`; None if it has none."""
    return next((path for path in _scripts(kit, kits) if path.is_file()), None)


def read_values(text: str) -> dict[str, str]:
    """`key=value` and `key : value` lines (version.info, *_install.info, ATB's version.info); quotes are removed."""
    lines = re.finditer(r"^[ \t]*([A-Za-z][\w .\t-]*)[=:](.*)$", text, re.MULTILINE)
    return {line[1].rstrip(): line[2].strip().strip('"') for line in lines}


def read_list(value: str) -> list[str]:
    """ "[V100R001C29],[V100R001C30]" -> its parts; a part may itself be a range "7.0.0,7.1.99"."""
    return re.findall(r"\[([^\]]*)\]", value)


def runtime_infos(toolkit: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """The runtime's information in the CANN directory `toolkit`, from each path where releases have it."""
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
    # CANN 8.5 and later are in cann-8.5.0, to which `cann` leads.
    patterns = ("ascend-toolkit/*", "cann*")
    placed = [each for base in ascend_homes(root, env) for pattern in patterns for each in sorted(base.glob(pattern))]
    found: dict[Path, Toolkit] = {}
    for place in (*placed, *sorted(used)):
        path = _resolved(place)
        version, package = _toolkit_version(path)
        if path not in found and (version or package):
            found[path] = Toolkit(str(path), version, package, path in used)
    return list(found.values())


def _scripts(kit: Toolkit, kits: Sequence[Toolkit]) -> Iterator[Path]:
    """Where releases have their script; `ascend-toolkit/set_env.sh` loads the release that `latest` leads to."""
    path = Path(kit.path)
    yield path / "set_env.sh"
    latest = path.parent / "latest"
    is_latest = latest.exists() and (latest.resolve() == path or (latest / "runtime").resolve().parent == path)
    if is_latest or sum(Path(each.path).parent == path.parent for each in kits) == 1:
        yield path.parent / "set_env.sh"
    yield path / "bin/setenv.bash"


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
