"""Downloads from ModelScope, used when USE_MODELSCOPE_HUB is set, as in LLaMA-Factory; its address for uploads.

They go through modelscope_hub, so its variables work: MODELSCOPE_ENDPOINT, MODELSCOPE_CACHE, MODELSCOPE_API_TOKEN,
proxies.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from ascendtune.core.errors import AscendtuneError, DataError, MachineError, RecipeError, disk_fault
from ascendtune.core.log import warn
from ascendtune.core.mask import without_secrets

RepoType = Literal["model", "dataset"]


def input_error(kind: RepoType) -> type[RecipeError] | type[DataError]:
    return RecipeError if kind == "model" else DataError


def noun(kind: RepoType) -> str:
    return "model" if kind == "model" else "data set"


VARIABLE = "USE_MODELSCOPE_HUB"


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether hub ids are downloaded from ModelScope."""
    return environment.get(VARIABLE, "0").strip().lower() in ("true", "y", "1")


def download(
    name: str,
    kind: RepoType,
    revision: str | None,
    allow_patterns: Sequence[str],
    ignore_patterns: Sequence[str],
    *,
    offline: str | None = None,
) -> Path:
    """The directory of `name`, in its current version from ModelScope, or from the cache.

    Args:
        revision: branch or tag; None: ModelScope's own default, master.
        allow_patterns, ignore_patterns: patterns of the names of files to download, and not to.
        offline: the variable that forbids the network, if it is set: only the cache is used.

    Raises:
        RecipeError, DataError: the model or data set does not exist, or access is denied.
        MachineError: ModelScope cannot be reached, or the disk is full.
    """
    try:
        from modelscope_hub.compat.snapshot_download import snapshot_download
    except ImportError as error:
        raise MachineError(
            f"'{name}' is not a local path, and downloading from ModelScope needs modelscope-hub",
            code="package-missing",
            remedy=f"pip install 'ascendtune[modelscope]'; or give a local path, or unset {VARIABLE}",
        ) from error
    # In addition to the progress bar, it logs a line per file.
    logging.getLogger("modelscope_hub").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    fetch = partial(
        snapshot_download,
        name,
        repo_type=kind,
        revision=revision,
        allow_patterns=list(allow_patterns),
        ignore_patterns=list(ignore_patterns) or None,
        endpoint=endpoint(),
    )
    try:
        return Path(fetch(local_files_only=offline is not None))
    except Exception as error:
        # Whether a data set in the cache is complete is unknown; the files of a model are checked.
        if kind == "model" and offline is None and _is_without_answer(error):
            with suppress(Exception):
                cached = Path(fetch(local_files_only=True))
                warn(f"{shown_endpoint()} cannot be used ({type(error).__name__}): {name} is taken from the cache")
                return cached
        translated = _translated(error, name, kind, offline)
        if translated is None:
            raise
        raise translated from error


def _is_without_answer(error: Exception) -> bool:
    """Whether the hub did not answer at all: if it listed the files, some may have arrived."""
    has_list = getattr(error, "failed_files", None)
    return not has_list and (isinstance(error, ConnectionError) or (_status(error) or 0) >= 500)


def _status(error: Exception) -> int | None:
    """The HTTP status of an error; if several files failed, that of the first one."""
    first = next(iter(getattr(error, "failed_files", {}).values()), error)
    status: int | None = getattr(getattr(first, "response", None), "status_code", None)
    return status or getattr(first, "status_code", None)


def not_in_the_cache(name: str, what: str, variable: str, cache: Path) -> MachineError:
    """The error for a hub id that is not in the cache while a variable forbids the network."""
    return MachineError(
        f"the {what} {name} is neither a local path nor complete in the cache, and {variable} is set",
        code="hub-offline",
        remedy=f"unset {variable}, or download it on another machine and copy {cache} from there",
    )


def _translated(error: Exception, name: str, kind: RepoType, offline: str | None) -> AscendtuneError | None:
    """Our error for one of modelscope_hub or of the network; None for other errors."""
    from modelscope_hub import errors

    if offline and isinstance(error, errors.HubError | OSError | ValueError):
        # A cache that does not exist counts as empty.
        fault = None if isinstance(error, FileNotFoundError) else disk_fault(error, cache(), "downloading")
        return fault or not_in_the_cache(name, noun(kind), offline, cache())
    status = _status(error)
    if isinstance(error, errors.NotExistError) or status == 404:
        return input_error(kind)(
            f"there is no {noun(kind)} {name} on {shown_endpoint()} (or it is private), and no such local path",
            code="not-on-hub",
            remedy=f"check the spelling: names differ between hubs; without {VARIABLE} Hugging Face is used",
        )
    if isinstance(error, errors.AuthenticationError | errors.PermissionDeniedError) or status in (401, 403):
        return input_error(kind)(
            f"{shown_endpoint()} refuses access to {name}",
            code="hub-access-denied",
            remedy="set MODELSCOPE_API_TOKEN to a token that may read it",
        )
    if isinstance(error, errors.HubError | OSError):
        return disk_fault(error, cache(), "downloading") or MachineError(
            f"the {noun(kind)} {name} is not a local path and not in the cache, and {shown_endpoint()} cannot be used "
            f"({status or type(error).__name__})",
            code="hub-unreachable",
            remedy="check network and proxy; or download it on another machine and give its path here",
        )
    return None


def endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """The address of ModelScope, or the one in MODELSCOPE_ENDPOINT."""
    named = environment.get("MODELSCOPE_ENDPOINT") or environment.get("MODELSCOPE_DOMAIN") or "www.modelscope.cn"
    return named if "://" in named else f"https://{named}"


def shown_endpoint() -> str:
    """`endpoint` without a password."""
    return without_secrets(endpoint())


def cache() -> Path:
    """The directory in which ModelScope's client keeps its downloads."""
    return Path(os.environ.get("MODELSCOPE_CACHE", "~/.cache/modelscope")).expanduser()
