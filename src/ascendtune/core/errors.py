"""All errors, as one tree. Every error says what happened and what to do; its class fixes the exit code.

AscendtuneError
├── InputError (2)             usage, recipe or data
│   ├── RecipeError            a key, a type, a value, a contradiction, a path in the recipe
│   └── DataError              a file, a row, a column, a template
├── MachineError (3)           the machine cannot: device, disk, permission, port
├── CheckFailed (1)            training failed, a loss that is not a number, a finding
├── NoVerdict (4)              the question could not be answered
└── Stopped (130 or 143)       SIGINT or SIGTERM, after a checkpoint
"""

from __future__ import annotations

import copyreg
import errno
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

Error = TypeVar("Error", bound="AscendtuneError")


class AscendtuneError(Exception):
    """Something a user can act on.

    Args:
        what: what happened, one sentence. Its wording may change; `code` does not.
        code: the stable name of the cause, such as `unknown-recipe-key`, for programs and tests.
        remedy: what the user can do. Required: an error without a remedy is half an error.
        where: the place of the error, as `file:line` or a path.
        further: other errors of the same check, so that a user corrects them all at once.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        code: str,
        remedy: str,
        where: str | Path | None = None,
        further: Sequence[AscendtuneError] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.code = code
        self.remedy = remedy
        self.where = str(where) if where is not None else None
        self.further = tuple(further)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all attributes: by default an exception is rebuilt from its first argument only."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def __str__(self) -> str:
        place = [f"where: {self.where}"] if self.where else []
        code = [f" code: {self.code}"] if self.code and not isinstance(self, Stopped) else []
        return "\n".join([self.what, f"   do: {self.remedy}", *place, *code, *map(str, self.further)])


class InputError(AscendtuneError):
    exit_code = 2


class RecipeError(InputError):
    pass


class DataError(InputError):
    pass


class MachineError(AscendtuneError):
    exit_code = 3


class CheckFailed(AscendtuneError):
    exit_code = 1


class NoVerdict(AscendtuneError):
    exit_code = 4


class Stopped(AscendtuneError):
    """Training was stopped by a signal; `signal_number` is 2 (SIGINT) or 15 (SIGTERM).

    Attributes:
        step: the last step that is kept; 0 before the first one, None if unknown.
        checkpoint_step: step of the checkpoint that the same command resumes from; None if there is none.
    """

    def __init__(
        self,
        what: str,
        *,
        remedy: str,
        signal_number: int,
        where: str | Path | None = None,
        step: int | None = None,
        checkpoint_step: int | None = None,
    ) -> None:
        super().__init__(what, code="stopped", remedy=remedy, where=where)
        self.exit_code = 128 + signal_number
        self.step, self.checkpoint_step = step, checkpoint_step


def class_of(exit_code: int) -> type[AscendtuneError]:
    """The class of an error in another process."""
    kinds: tuple[type[AscendtuneError], ...] = (InputError, MachineError, NoVerdict)
    return next((kind for kind in kinds if kind.exit_code == exit_code), CheckFailed)


def error_to_json(error: AscendtuneError) -> dict[str, Any]:
    """The error as JSON values, for another process."""
    fields = {"what": error.what, "code": error.code, "remedy": error.remedy, "where": error.where}
    return {**fields, "exit_code": error.exit_code}


def error_of_json(content: Mapping[str, Any]) -> AscendtuneError:
    """The error from the result of `error_to_json`."""
    kind = class_of(content["exit_code"])
    return kind(content["what"], code=content["code"], remedy=content["remedy"], where=content.get("where"))


MOST_ERRORS_SHOWN = 50
"""Further errors would fill the terminal, unread."""


def combined_error(errors: Sequence[Error], *, left_out: int = 0, where: str | None = None) -> Error:
    """The first of several errors of one check, with the others as `further`; very many are truncated.

    Args:
        left_out: number of further errors that `errors` does not contain.
        where: the file that all are in.
    """
    first, *others = errors[:MOST_ERRORS_SHOWN]
    if unshown := left_out + len(errors) - 1 - len(others):
        what = f"{unshown:,} further errors are not shown"
        others.append(type(first)(what, code="further-errors", remedy="correct these first", where=where))
    first.further = (*first.further, *others)
    return first


@contextmanager
def all_errors() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Context in which independent checks all run, and the errors of all are raised together at its end.

    with all_errors() as check:
        for path in paths:
            with check():
                require_readable(path)
    """
    errors: list[AscendtuneError] = []

    @contextmanager
    def check() -> Iterator[None]:
        try:
            yield
        except AscendtuneError as error:
            errors.append(error)

    yield check
    if errors:
        raise combined_error(errors)


@contextmanager
def errors_as_ours(translated: Callable[[Exception], AscendtuneError | None]) -> Iterator[None]:
    """Context in which errors of a library are raised as errors of ascendtune.

    Args:
        translated: our error for an exception of the library; None for other exceptions, which are raised unchanged.
    """
    try:
        yield
    except AscendtuneError:
        raise
    except Exception as error:
        if (translation := translated(error)) is None:
            raise
        raise translation from error


_DOTTED_KEY = re.compile(r"\b[a-z]\w*(?:\.[a-z]\w*)+\b")


@contextmanager
def with_other_names(names: Mapping[str, str]) -> Iterator[None]:
    """Add to the remedy of an error how the user's file calls the keys that the error names.

    Args:
        names: key -> its name in the file.
    """
    try:
        yield
    except AscendtuneError as error:
        for each in (error, *error.further):
            keys = dict.fromkeys(_DOTTED_KEY.findall(f"{each.what} {each.remedy}"))
            known = [f"{key} is {names[key]}" for key in keys if key in names]
            if known:
                each.remedy += f" (in this file {', '.join(known)})"
        raise


_FULL = "free space there, or put the directory on another disk"
_NOT_OURS = "choose a directory that you may write, or change its owner"
_WRITE_FAULTS = {
    errno.ENOSPC: ("disk-full", "the disk is full", _FULL),
    errno.EDQUOT: ("disk-quota-exceeded", "the disk quota is used up", _FULL),
    errno.EROFS: ("read-only-file-system", "the file system is read-only", "choose a directory that can be written"),
    errno.EACCES: ("permission-denied", "permission is denied", _NOT_OURS),
    errno.EPERM: ("operation-not-permitted", "the operation is not permitted", _NOT_OURS),
    errno.ENOENT: ("path-missing", "nothing can be created there", "choose a directory that can be written"),
    errno.EEXIST: ("path-exists", "a file of that name exists", "choose another path, or remove it"),
    errno.EISDIR: ("not-a-file", "a directory of that name exists", "choose another path"),
    errno.ENOTDIR: ("not-a-directory", "a part of the path is a file, not a directory", "choose another path"),
    errno.EIO: ("input-output-error", "the disk reports an input/output error", "look at `dmesg`; choose another disk"),
    errno.EFBIG: (
        "file-too-large",
        "the file reached the largest size that is allowed",
        "raise the limit: ulimit -f unlimited",
    ),
    errno.ENAMETOOLONG: ("name-too-long", "the name of a file is too long", "choose a shorter name or path"),
    errno.ELOOP: (
        "symbolic-link-loop",
        "the path is a symbolic link that is not followed, or refers to itself",
        "remove the link, or choose another path",
    ),
    errno.EMFILE: ("too-many-open-files", "too many files are open", "raise the limit: ulimit -n 65536"),
}
_READ_FAULTS = {
    errno.EACCES: (
        "permission-denied",
        "permission is denied",
        "check its permissions, and those of the directories above it",
    ),
    errno.EPERM: ("operation-not-permitted", "the operation is not permitted", "check its permissions and attributes"),
    errno.EIO: ("input-output-error", "the disk reports an input/output error", "look at `dmesg`"),
    errno.ESTALE: ("file-handle-stale", "the file server has forgotten the file", "mount the file system again"),
}
_WRONG_PATHS = {
    errno.ENOENT: ("path-missing", "it does not exist", "check the path"),
    errno.EISDIR: ("not-a-file", "it is a directory", "give a file"),
    errno.ENOTDIR: ("not-a-directory", "a part of the path is a file, not a directory", "check the path"),
    errno.ENAMETOOLONG: ("name-too-long", "its name is too long", "check the path"),
    errno.ELOOP: ("symbolic-link-loop", "a symbolic link leads to itself", "check the path"),
}


def translated_disk_errors(path: str | Path, doing: str = "") -> AbstractContextManager[None]:
    """Translate errors of the operating system into a MachineError that contains the path and a remedy.

    Args:
        path: the file or directory that is being written.
        doing: the action for the message, as in "writing the checkpoint"; empty if nothing has begun.
    """
    return errors_as_ours(partial(disk_fault, path=path, doing=doing))


def disk_fault(error: BaseException, path: str | Path, doing: str) -> MachineError | None:
    """The MachineError for `error`, or None if it is not a fault of disk or permission.

    A write often reads other files: a file that cannot be read is named instead of `path`.
    """
    if not isinstance(error, OSError) or error.errno is None:
        return None
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    if named is not None and error.errno == errno.EACCES and _is_unreadable(named):
        return read_fault(error, named)
    if named is not None and error.errno == errno.ENOENT and not named.parent.exists():
        remedy = f"create it: mkdir -p {shlex.quote(str(named.parent))}"
        return MachineError("the directory does not exist", code="path-missing", remedy=remedy, where=named.parent)
    if error.errno not in _WRITE_FAULTS:
        return None
    code, what, remedy = _WRITE_FAULTS[error.errno]
    return MachineError(f"{what} while {doing}" if doing else what, code=code, remedy=remedy, where=path)


def read_fault(error: BaseException, path: str | Path) -> MachineError | None:
    """The MachineError for a file that could not be read, or None if `error` is not a fault of disk or permission."""
    number = getattr(error, "errno", None)
    if number not in _READ_FAULTS:
        return None
    code, what, remedy = _READ_FAULTS[number]
    return MachineError(f"cannot be read: {what}", code=code, remedy=remedy, where=path)


def uncaught_os_error(error: OSError) -> AscendtuneError | None:
    """Our error for an OSError that no caller translated. Code that writes files translates its own errors, so a file
    was being read, or standard output written."""
    if error.filename is None:
        return _lost_working_directory(error) or disk_fault(error, "standard output", "writing")
    path = os.fsdecode(error.filename)
    if error.errno in _WRONG_PATHS:
        code, what, remedy = _WRONG_PATHS[error.errno]
        return InputError(f"cannot be read: {what}", code=code, remedy=remedy, where=path)
    # `disk_fault` checks whether the file exists and cannot be read.
    return disk_fault(error, path, "writing")


def _lost_working_directory(error: OSError) -> InputError | None:
    """The error for a working directory that was deleted while a shell uses it; None for other faults."""
    if not isinstance(error, FileNotFoundError):
        return None
    try:
        Path.cwd()
    except FileNotFoundError:
        return InputError(
            "the working directory does not exist any more",
            code="working-directory-missing",
            remedy="change to a directory that exists: cd; if it was created again: cd .",
        )
    return None


def out_of_host_memory(error: MemoryError) -> MachineError:
    """The MachineError for a MemoryError: the host is out of memory, or a limit of the user or the container is
    reached."""
    words = " ".join(str(error).split())
    return MachineError(
        f"out of host memory: {words}" if words else "out of host memory",
        code="out-of-memory",
        remedy="`free -h`, `ulimit -v` and the container's limit show the host's limits: raise the limit, end other "
        "programs, or read less at once (fewer workers, smaller files)",
    )


def _is_unreadable(path: Path) -> bool:
    """Whether `path` exists, or lies in a directory that may not be entered, and cannot be read."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)
