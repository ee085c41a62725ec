"""A bundle for bug reports: one file, with private data masked."""

from __future__ import annotations

import getpass
import io
import json
import platform
import socket
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path

from ascendtune import __version__
from ascendtune.check.doctor.check import Examination
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.table import as_json
from ascendtune.core.errors import translated_disk_errors
from ascendtune.core.mask import Mask

_LOGS, _LOG_BYTES = 8, 200_000
"""Number of CANN log files, the newest first, and bytes from the end of each."""
_FILES = (
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/firmware/version.info",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
    "/etc/os-release",
    "/proc/meminfo",
)


def write_bundle(path: Path, verdict: str, examination: Examination, outside: Outside) -> None:
    """Write `path` (.tar.gz): findings, versions, environment, the vendor's version files and the newest plogs.

    Raises:
        MachineError: `path` cannot be written.
    """
    mask = _mask(outside)
    with translated_disk_errors(path, "writing the bundle"), tarfile.open(path, "w:gz") as bundle:
        for name, text in _contents(verdict, examination, outside, mask):
            data = text.encode()
            entry = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            bundle.addfile(entry, io.BytesIO(data))


def _contents(verdict: str, examination: Examination, outside: Outside, mask: Mask) -> Iterator[tuple[str, str]]:
    further = {"ascendtune": __version__, "not_applicable": list(examination.not_applicable)}
    yield "doctor.json", mask.text(as_json(verdict, examination.findings, **further))
    yield "versions.json", mask.text(json.dumps(_versions(outside), indent=2))
    yield "environment.txt", mask.environment(outside.env)
    yield "npu-smi.txt", mask.text(outside.ask_npu_smi("info"))
    for name in _FILES:
        if text := outside.text(name):
            yield f"files{name}", mask.text(text)
    for log in _newest_logs(outside):
        yield f"plog/{log.name}", mask.text(_tail(log))


def _versions(outside: Outside) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "ascend": asdict(outside.versions),
        "packages": dict(sorted((each.metadata["Name"], each.version) for each in distributions())),
    }


def _newest_logs(outside: Outside) -> list[Path]:
    home = Path(outside.env.get("HOME", "/root"))
    given = outside.env.get("ASCEND_PROCESS_LOG_PATH") or outside.env.get("ASCEND_WORK_PATH")
    logs = [path for path in Path(given or home / "ascend/log").glob("**/plog-*.log") if path.is_file()]
    return sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True)[:_LOGS]


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return file.read().decode(errors="replace")


def _mask(outside: Outside) -> Mask:
    home = outside.env.get("HOME", "")
    users = {outside.env.get("USER", ""), Path(home).name, _user()} - {""}
    known = outside.versions
    versions = [known.driver_version, known.firmware_version, *(kit.package_version for kit in known.toolkits)]
    versions += [each.version for each in distributions()]
    hosts = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    return Mask(users=users, hosts=sorted(hosts, key=len, reverse=True), versions=[each for each in versions if each])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
