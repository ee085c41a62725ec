"""A bundle for bug reports: one file, with private data masked."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import stat
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path

from ascendtune import __version__
from ascendtune.check.doctor.check import Examination
from ascendtune.check.doctor.system import System
from ascendtune.check.table import as_json
from ascendtune.core.directories import WRITTEN_BY
from ascendtune.core.errors import MachineError
from ascendtune.core.files import open_regular, walk, write_atomically
from ascendtune.core.mask import Mask

_LOGS, _LOG_BYTES = 8, 200_000
"""Number of CANN log files, the newest first, and bytes from the end of each."""
_MOST_LOGS = 20_000
_MASKED = re.compile(r"\*\*\*|<(user|host|ip|mac|mail)-\d+>")
_KINDS = {
    "***": "{count} {count:secret|secrets}",
    "user": "{count} user {count:name|names}",
    "host": "{count} host {count:name|names}",
    "ip": "{count} {count:address|addresses}",
    "mac": "{count} hardware {count:address|addresses}",
    "mail": "{count} e-mail {count:address|addresses}",
}
_FILES = (
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/firmware/version.info",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
    "/etc/os-release",
    "/proc/meminfo",
)


def collect(verdict: str, examination: Examination, system: System) -> dict[str, str]:
    """Name -> masked text: findings, versions, environment, the vendor's version files and the newest plogs."""
    return dict(_contents(verdict, examination, system, _mask(system)))


def masked_words(files: dict[str, str]) -> dict[str, int]:
    """Template for the kind of masked text (secrets, users, hosts, addresses) -> number of replacements."""
    found = Counter(kind for text in files.values() for kind in _MASKED.findall(text))
    return {_KINDS[kind or "***"]: count for kind, count in sorted(found.items())}


def write_bundle(path: Path, files: dict[str, str]) -> None:
    """Write `path` (.tar.gz) with the texts of `collect`.

    Raises:
        MachineError: `path` cannot be written.
    """
    content = io.BytesIO()
    comment = {"comment": f"{WRITTEN_BY} doctor`"}
    with tarfile.open(fileobj=content, mode="w:gz", pax_headers=comment) as bundle:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            bundle.addfile(entry, io.BytesIO(data))
    write_atomically(path, content.getvalue())


def _contents(verdict: str, examination: Examination, system: System, mask: Mask) -> Iterator[tuple[str, str]]:
    further = {"ascendtune": __version__, "not_applicable": list(examination.not_applicable)}
    yield "doctor.json", mask.text(as_json(verdict, examination.findings, **further))
    yield "versions.json", mask.text(json.dumps(_versions(system), indent=2))
    yield "environment.txt", mask.environment(system.env)
    yield "npu-smi.txt", mask.text(system.query_npu_smi("info"))
    for name in _FILES:
        if text := system.text(name):
            yield f"files{name}", mask.text(text)
    for log in _newest_logs(system):
        # With its directory: debug/plog and run/plog have files of the same names.
        if (tail := _tail(log)) is not None:
            yield mask.text(f"plog/{log.relative_to(system.cann_logs)}"), mask.text(tail)


def _versions(system: System) -> dict[str, object]:
    # Of a package whose removal was interrupted there may be a directory without a name.
    packages = {name: each.version for each in distributions() if (name := each.metadata["Name"])}
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "ascend": asdict(system.versions),
        "packages": dict(sorted(packages.items())),
    }


def _newest_logs(system: System) -> list[Path]:
    # In a directory that other users may write a link could lead to any file of this user.
    names = (directory / name for directory, _, others in walk(system.cann_logs) for name in others)
    found = (path for path in names if fnmatchcase(path.name, "plog-*.log"))
    logs = []
    for path in islice(found, _MOST_LOGS):
        # CANN removes old ones meanwhile, and those of others may not be looked at.
        with suppress(OSError):
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode):
                logs.append((facts.st_mtime, path))
    return [path for _, path in sorted(logs, reverse=True)[:_LOGS]]


def _tail(path: Path) -> str | None:
    """The end of a file; None if it cannot be read: it was removed meanwhile, or belongs to another user."""
    try:
        with open_regular(path, follow_links=False) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read(_LOG_BYTES).decode(errors="replace")
    except (OSError, MachineError):
        return None


def _mask(system: System) -> Mask:
    known = system.versions
    versions = [known.driver_version, known.firmware_version, *(kit.package_version for kit in known.toolkits)]
    versions += [each.version for each in distributions()]
    return Mask.of_this_machine(system.env, versions=[each for each in versions if each])
