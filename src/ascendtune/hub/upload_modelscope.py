"""Uploads a model to a repository of ModelScope; files that it has with the same content are not sent again.

Uploads go through modelscope_hub, so its variables work: MODELSCOPE_ENDPOINT, MODELSCOPE_API_TOKEN, proxies.
"""

from __future__ import annotations

import hashlib
import io
import logging
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ascendtune.core.errors import AscendtuneError, MachineError, errors_as_ours
from ascendtune.core.foreign_json import first_line
from ascendtune.hub.modelscope import endpoint, shown_endpoint
from ascendtune.hub.upload import STRANGE_ANSWER, Repository, access_denied, hub_unreachable, upload_failed
from ascendtune.hub.upload_files import UploadFile

_REVISION = "master"


def new_repository(name: str) -> Repository:
    """A repository about which nothing is known; sends no request."""
    return Repository(name, f"{shown_endpoint()}/models/{name}")


def find_repository(name: str) -> Repository:
    """The repository, if it exists.

    Raises:
        InputError: access is denied.
        MachineError: ModelScope cannot be used.
    """
    with _translated(name):
        from modelscope_hub import errors

        try:
            found = _client().get_repo(name, "model")
        except errors.NotExistError:
            return new_repository(name)
        # `internal` repositories are visible to others, and so may be one without this field.
        label = getattr(found.visibility, "label", None)
        return replace(new_repository(name), is_private=label == "private")


def upload(to: Repository, files: Sequence[UploadFile], *, public: bool, message: str) -> str | None:
    """Upload the files that the repository lacks; the repository is created if it does not exist.

    Args:
        public: visibility of a new repository; that of an existing one is not changed.

    Returns:
        The branch, because the client does not return the commit; None if every file exists already with this content.

    Raises:
        InputError: access is denied.
        MachineError: ModelScope cannot be used, or it refused a file.
    """
    reports = list[dict[str, Any]]()
    with _translated(to.name, reports):
        client = _client()
        if to.is_private is None:
            client.create_repo(to.name, "model", visibility="public" if public else "private")
            hashes = dict[str, str | None]()
        else:
            hashes = {each.path: each.sha256 for each in client.list_repo_files(to.name, "model", revision=_REVISION)}
        missing = [each for each in files if hashes.get(each.name) != _sha256(each.source)]
        if not missing:
            return None
        # A single call for all files makes one commit; it takes a directory.
        with tempfile.TemporaryDirectory(prefix="ascendtune-push-") as staging, redirect_stdout(io.StringIO()):
            for each in missing:
                if isinstance(each.source, bytes):
                    (Path(staging) / each.name).write_bytes(each.source)
                else:
                    (Path(staging) / each.name).symlink_to(each.source.resolve())
            client.upload_folder(
                to.name, "model", staging, commit_message=message, revision=_REVISION, use_cache=False,
                disable_tqdm=not sys.stderr.isatty(), progress_callback=reports.append,
            )  # fmt: skip
        return _REVISION


def _sha256(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _client() -> Any:
    from modelscope_hub import HubApi, HubConfig

    # It logs each batch and each retry; final failures are raised.
    logging.getLogger("modelscope_hub").setLevel(logging.CRITICAL)
    return HubApi(HubConfig(endpoint=endpoint()))


def _translated(name: str, reports: Sequence[dict[str, Any]] = ()) -> AbstractContextManager[None]:
    """Context in which errors of modelscope_hub and of the network are raised as ours.

    Args:
        reports: reports of the client's batches, added meanwhile: its last error has only the number of files.
    """
    return errors_as_ours(partial(_our_error, name=name, reports=reports))


def _our_error(error: Exception, name: str, reports: Sequence[dict[str, Any]]) -> AscendtuneError | None:
    if isinstance(error, ImportError):
        return MachineError(
            "uploading to ModelScope needs modelscope-hub",
            code="package-missing",
            remedy="pip install 'ascendtune[modelscope]'",
        )
    from modelscope_hub import errors

    if isinstance(error, errors.AuthenticationError | errors.PermissionDeniedError):
        return access_denied(shown_endpoint(), name, token="MODELSCOPE_API_TOKEN", log_in="modelscope login")
    if isinstance(error, (errors.NetworkError, *STRANGE_ANSWER)):
        return hub_unreachable(shown_endpoint(), error)
    if isinstance(error, errors.HubError | ValueError | RuntimeError | OSError):
        causes = [first_line(error), *(str(each["error"]) for each in reports if each.get("error"))]
        return upload_failed(name, causes[-1].splitlines()[0])
    return None
