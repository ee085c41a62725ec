"""Shell lines that load CANN and nnal and set a job's defaults, for `eval "$(ascendtune env export)"`."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ascendtune.core.errors import InputError, MachineError
from ascendtune.machine.compatibility import is_release, release_key
from ascendtune.machine.environment.mirrors import shell_variables
from ascendtune.machine.npu.versions import Toolkit, ascend_homes, installed_versions, set_env_script
from ascendtune.machine.vendor.find import vendor_of

_VENDOR_USER = "HwHiAiUser"
"""The account that CANN's installer uses."""


def export_lines(
    env: Mapping[str, str], *, root: Path = Path("/"), release: str | None = None, has_npus: bool = False
) -> list[str]:
    """Shell lines, each ended with ';' so that they also work if `$(…)` is not quoted.

    Settings that the environment already has are skipped: a loaded toolkit, and variables that the user has set.

    Args:
        release: the CANN release to load, such as 8.1.RC1 (default: the newest).
        has_npus: whether a missing toolkit is an error.

    Raises:
        InputError: `release` is not installed, or another release is loaded.
        MachineError: no toolkit on a machine with NPUs, or other users may change a script.
    """
    cann = _cann(env, root, release, has_npus=has_npus)
    scripts = [cann] if cann is not None else []
    atb = [home / "nnal/atb/set_env.sh" for home in ascend_homes(root, env)]
    if not env.get("ATB_HOME_PATH") and (scripts or _loaded(env, root)):
        scripts += [path for path in atb if path.is_file()][:1]
    for script in scripts:
        _require_safe(script)
    variables = shell_variables()
    if has_npus:
        variables |= vendor_of("npu").environment(env)
    lines = [f". {shlex.quote(str(script))};" for script in scripts]
    return lines + [f"export {name}={shlex.quote(value)};" for name, value in variables.items() if name not in env]


def _cann(env: Mapping[str, str], root: Path, release: str | None, *, has_npus: bool) -> Path | None:
    """The script of the release to load; None if one is loaded, or there is none."""
    kits = installed_versions(root, env).toolkits
    if (loaded := _loaded(env, root)) is not None:
        if release is not None and not is_release(loaded.version or "", release):
            raise InputError(
                f"this shell has loaded CANN {loaded.version}; two releases in one environment do not work",
                code="conflicting-options",
                remedy="open a new shell, and load the other release there",
                where=loaded.path,
            )
        return None
    matching = [kit for kit in kits if release is None or is_release(kit.version or "", release)]
    if release is not None and not matching:
        remedy = "install it first: no CANN was found in /usr/local/Ascend, in ~/Ascend or at ASCEND_HOME_PATH"
        if kits:
            remedy = f"choose from: {', '.join(kit.version or kit.path for kit in kits)}"
        raise InputError(f"CANN {release} is not installed", code="unknown-name", remedy=remedy)
    if not matching and has_npus:
        raise MachineError(
            "no CANN toolkit in /usr/local/Ascend, in ~/Ascend or at ASCEND_HOME_PATH",
            code="cann-missing",
            remedy="install Ascend-cann-toolkit and the kernels (8.5 and later: ops) package of the chip; "
            "`ascendtune env install-plan` names the release",
        )
    if not matching:
        return None
    kit = max(matching, key=lambda each: release_key(each.version or ""))
    script = set_env_script(kit, kits)
    if script is None:
        raise MachineError(
            f"CANN {kit.version} has no set_env.sh",
            code="cann-missing",
            remedy="install the toolkit again",
            where=kit.path,
        )
    return script


def _loaded(env: Mapping[str, str], root: Path) -> Toolkit | None:
    return next((kit for kit in installed_versions(root, env).toolkits if kit.in_use), None)


def _require_safe(script: Path) -> None:
    """Raise if a user other than root, this one or the vendor's may change a script that the shell runs."""
    owners = {0, os.geteuid()}
    with suppress(KeyError):
        owners.add(pwd.getpwnam(_VENDOR_USER).pw_uid)
    for path in (script, script.parent):
        facts = path.stat()
        if facts.st_uid not in owners:
            raise MachineError(
                f"this belongs to another user (uid {facts.st_uid}), and the shell would run it",
                code="owned-by-another-user",
                remedy="load the toolkit by hand if you trust that user",
                where=path,
            )
        if facts.st_mode & stat.S_IWOTH:
            raise MachineError(
                "every user can change this file, and the shell would run it",
                code="writable-by-others",
                remedy=f"sudo chmod o-w {shlex.quote(str(path))}",
                where=path,
            )
