"""Copies and renames conda environments: clone, compare the package lists, and only then remove the old one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ascendtune.core.errors import CheckFailed, InputError, MachineError
from ascendtune.core.mask import without_secrets
from ascendtune.core.process import Finished, run
from ascendtune.core.units import count_of

_CLONE_SECONDS = 4 * 3600.0
_LIST_SECONDS = 300.0
_REFUSED_IN_PATHS = re.compile("[ :#]")
"""conda does not create environments at such paths."""
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,127}")


@dataclass(frozen=True)
class Conda:
    """A conda program. `environment`: the variables that it is started with."""

    program: str
    environment: Mapping[str, str]

    @classmethod
    def find(cls, env: Mapping[str, str]) -> Conda:
        """The program in CONDA_EXE, or conda or mamba on the PATH.

        Raises:
            MachineError: there is none.
        """
        given = env.get("CONDA_EXE", "")
        path = env.get("PATH")
        program = given if given and Path(given).is_file() else shutil.which("conda", path=path)
        program = program or shutil.which("mamba", path=path)
        if program is None:
            raise MachineError(
                "conda was not found: no CONDA_EXE, and neither conda nor mamba on the PATH",
                code="program-missing",
                remedy="source miniconda's etc/profile.d/conda.sh, or add its bin directory to PATH",
            )
        return cls(program, env)

    def environments(self) -> dict[str, Path]:
        """Name -> directory of each environment; for one outside of conda's own directories, or with the name of one
        that conda finds first, its path replaces the name.
        """
        answer = self._json(["env", "list", "--json"])
        found: dict[str, Path] = {}
        for each in answer.get("envs", []) if isinstance(answer, dict) else []:
            prefix = Path(str(each))
            name = _name_of(prefix)
            found[str(prefix) if name in found else name] = prefix
        return found

    def prefix_of(self, environment: str) -> Path:
        """The directory of an environment, which is given by its name or its path.

        Raises:
            InputError: it does not exist.
        """
        environments = self.environments()
        if (prefix := _find(environments, environment)) is None:
            raise InputError(
                f"no conda environment {environment}",
                code="unknown-name",
                remedy=f"there are: {', '.join(sorted(environments)) or 'none'}",
            )
        return prefix

    def packages(self, prefix: Path) -> set[tuple[str, str, str, str]]:
        """Name, version, build and channel of each package; packages of pip have the channel `pypi`."""
        answer = self._json(["list", "--prefix", str(prefix), "--json"])
        rows = answer if isinstance(answer, list) else []
        keys = ("name", "version", "build_string", "channel")
        return {tuple(str(row.get(key, "")) for key in keys) for row in rows if isinstance(row, dict)}  # type: ignore[misc]

    def commands(self, old: str, new: str, *, then_remove: bool) -> list[list[str]]:
        """The commands that `clone` and `remove` run, to be shown before.

        Raises:
            InputError: a name is not valid, the old environment does not exist or is in use, or the new one exists.
        """
        environments = self.environments()
        for name in (old, new):
            is_path = name.startswith("/") and (name is old or not _REFUSED_IN_PATHS.search(name))
            if not (_NAME.fullmatch(name) or is_path):
                raise InputError(
                    f"not a name of a conda environment: {name}",
                    code="invalid-value",
                    remedy="letters, digits, '.', '_' and '-'; or an absolute path without ' ', ':' and '#'",
                )
        prefix = self.prefix_of(old)
        if writers := _cloning_into(new):
            raise InputError(
                f"conda is still making the environment {new} (process {', '.join(map(str, writers))})",
                code="target-in-use",
                remedy="an earlier clone that was killed leaves conda running: wait until it ends, then run this again",
            )
        if (copy := _find(environments, new)) is not None:
            raise self._exists(old, prefix, new, copy, then_remove=then_remove)
        if new.startswith("/") and Path(new).exists():
            raise InputError(
                f"{new} exists, and is not a conda environment",
                code="path-exists",
                remedy="choose another path; if a clone that failed left it: look into it, and delete it",
            )
        if then_remove and ("base" in (old, _name_of(prefix)) or self._is_active(prefix)):
            raise InputError(
                f"{old} is the active or the base environment, which conda does not remove",
                code="target-in-use",
                remedy="conda deactivate, then run this from another environment",
            )
        clone = [self.program, "create", "--json", "--yes", *_select(new).split(" ", 1), "--clone", str(prefix)]
        removal = [self.program, *_removal(prefix)]
        return [clone, removal] if then_remove else [clone]

    def clone(self, old: str, new: str) -> int:
        """Clone, and compare both package lists; returns the number of packages.

        Raises:
            MachineError: conda failed.
            CheckFailed: the copy has other packages; both environments are kept.
        """
        source = self.prefix_of(old)
        done = self._run(self.commands(old, new, then_remove=False)[0][1:], _CLONE_SECONDS)
        _require_success(done, "clone", remedy=f"nothing was removed; the incomplete clone may exist as {new}")
        copy = _find(self.environments(), new)
        if copy is None:
            raise MachineError(
                f"conda reports success, but {new} is not in its list",
                code="clone-differs",
                remedy="look at `conda env list`; nothing was removed",
            )
        expected, copied = self.packages(source), self.packages(copy)
        if expected != copied or not expected:
            missing = sorted(f"{name} {version}" for name, version, *_ in expected - copied)
            added = sorted(f"{name} {version}" for name, version, *_ in copied - expected)
            raise CheckFailed(
                f"the copy {new} differs: missing {', '.join(missing[:5]) or 'nothing'}; "
                f"additional {', '.join(added[:5]) or 'nothing'}",
                code="clone-differs",
                remedy=f"{old} was not removed; look at `conda list` of both, then: conda remove {_select(new)} --all",
            )
        return len(expected)

    def remove(self, prefix: Path) -> None:
        """Remove an environment.

        Raises:
            MachineError: conda failed.
        """
        _require_success(self._run(_removal(prefix), _CLONE_SECONDS), "remove", remedy="look at `conda env list`")

    def _exists(self, old: str, source: Path, new: str, copy: Path, *, then_remove: bool) -> InputError:
        """The error for an existing environment: an earlier clone may have completed, or been interrupted."""
        choose = f"choose another name, or, if an interrupted clone left it: conda remove {_select(new)} --all"
        try:
            expected, existing = self.packages(source), self.packages(copy)
        except MachineError:
            return InputError(f"the environment {new} exists", code="path-exists", remedy=choose)
        if expected != existing or not expected:
            shared = f"it has {len(expected & existing)} of the {count_of(len(expected), 'package')} of {old}"
            return InputError(f"the environment {new} exists; {shared}", code="path-exists", remedy=choose)
        remedy = "nothing is left to clone, unless it is another environment with equal packages"
        if then_remove:
            rest = f"conda remove {_select(str(source))} --all"
            remedy = f"an earlier clone was complete; what is left of the renaming: {rest}"
        return InputError(
            f"the environment {new} exists, with all {count_of(len(expected), 'package')} of {old}",
            code="path-exists",
            remedy=remedy,
        )

    def _is_active(self, prefix: Path) -> bool:
        active = self.environment.get("CONDA_PREFIX", "")
        return bool(active) and Path(active).resolve() == prefix.resolve()

    def _json(self, words: list[str]) -> Any:
        done = self._run(words, _LIST_SECONDS)
        _require_success(done, " ".join(words[:2]), remedy="run the command by hand; nothing was removed")
        try:
            return json.loads(done.output)
        except (ValueError, RecursionError) as error:
            raise MachineError(
                f"conda {words[0]} did not print JSON",
                code="invalid-json",
                remedy="run it by hand; a shell start-up file may print, too",
            ) from error

    def _run(self, words: list[str], seconds: float) -> Finished:
        return run([self.program, *words], timeout_seconds=seconds, env=self.environment)


def _name_of(prefix: Path) -> str:
    if (prefix / "condabin").is_dir():
        return "base"
    return prefix.name if prefix.parent.name == "envs" else str(prefix)


def _find(environments: Mapping[str, Path], name: str) -> Path | None:
    """The environment with this name or path; None if there is none."""
    if name in environments or not name.startswith("/"):
        return environments.get(name)
    path = Path(name).resolve()
    listed = next((each for each in environments.values() if each.resolve() == path), None)
    # conda lists no environment that it did not register (register_envs, another user's).
    return listed or (path if (path / "conda-meta/history").is_file() else None)


def _cloning_into(new: str) -> list[int]:
    """Processes of conda that clone into an environment with this name or path.

    A name refers to the directories of the process's user: for other users it means other environments.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
            is_ours = path.stat().st_uid == os.getuid()
        except OSError:
            continue
        if (
            (is_ours or new.startswith("/"))
            and "create" in words
            and "--clone" in words
            and any(option in ("--name", "--prefix", "-n", "-p") and value == new for option, value in pairwise(words))
        ):
            found.append(int(path.parent.name))
    return sorted(found)


def _removal(prefix: Path) -> list[str]:
    return ["remove", "--json", "--yes", "--prefix", str(prefix), "--all"]


def _select(name: str) -> str:
    return f"--prefix {name}" if name.startswith("/") else f"--name {name}"


def _require_success(done: Finished, what: str, *, remedy: str) -> None:
    if done.exit_code != 0:
        raise MachineError(
            f"conda {what} ended with code {done.exit_code}: {without_secrets(_reason(done))[:500]}",
            code="conda-failed",
            remedy=remedy,
        )


def _reason(done: Finished) -> str:
    """The messages in conda's JSON; the last lines of its output if there is none."""
    try:
        # The progress of downloads precedes it, each part followed by a NUL.
        answer = json.loads(done.output.rpartition("\0")[2])
    except (ValueError, RecursionError):
        answer = None
    errors = answer.get("errors") if isinstance(answer, dict) else []
    found = errors if isinstance(errors, list) else [answer]
    # An error of conda itself has no message, but its exception in `error`.
    messages = [str(each.get("message") or each.get("error") or "") for each in found if isinstance(each, dict)]
    messages = [" ".join(each.split()) for each in messages if each not in ("", "()")]
    lines = [line for line in (done.error or done.output).splitlines() if line.strip()]
    return "; ".join(messages) or " ".join(lines[-3:])
