"""Uploads a model to a repository of Hugging Face's hub, in one commit; files that it already has are not sent.

Uploads go through huggingface_hub, so its variables work: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, proxies.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ascendtune.core.errors import AscendtuneError, InputError, MachineError, errors_as_ours
from ascendtune.core.foreign_json import first_line
from ascendtune.hub.download import endpoint, http_status, is_of_http_client, offline_variable, shown_endpoint
from ascendtune.hub.upload_files import UploadFile


@dataclass(frozen=True)
class Repository:
    """A repository of models on a hub, in its state before the upload."""

    name: str
    """OWNER/NAME."""
    url: str
    is_private: bool | None = None
    """None: it does not exist yet, or this user may not see it."""
    commit: str | None = None


def new_repository(name: str) -> Repository:
    """A repository about which nothing is known; sends no request."""
    return Repository(name, f"{shown_endpoint()}/{name}")


def find_repository(name: str) -> Repository:
    """The repository, if it exists.

    Raises:
        InputError: access is denied.
        MachineError: the hub cannot be used.
    """
    with _translated(name):
        from huggingface_hub import errors

        try:
            found = _client().model_info(name)
        except errors.RepositoryNotFoundError:
            return new_repository(name)
        # Without this field the repository may be visible to others.
        return replace(new_repository(name), is_private=found.private is True, commit=found.sha)


def upload(to: Repository, files: Sequence[UploadFile], *, public: bool, message: str) -> str | None:
    """Upload the files in one commit; the repository is created if it does not exist.

    Args:
        public: visibility of a new repository; that of an existing one is not changed.

    Returns:
        The commit; None if every file exists already with this content.

    Raises:
        InputError: access is denied.
        MachineError: the hub cannot be used, or it refused a file.
    """
    with _translated(to.name):
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()
        client = _client()
        if to.is_private is None:
            # Not exist_ok: a repository that is created meanwhile may be public.
            client.create_repo(to.name, private=not public)
        operations = [
            huggingface_hub.CommitOperationAdd(
                path_in_repo=each.name,
                path_or_fileobj=each.source if isinstance(each.source, bytes) else str(each.source),
            )
            for each in files
        ]
        with _warnings_hidden():
            commit = client.create_commit(to.name, operations, commit_message=message)
        return None if commit.oid == to.commit else str(commit.oid)


@contextmanager
def _warnings_hidden() -> Iterator[None]:
    """Context without huggingface_hub's warning that nothing has changed: the caller reports it."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _client() -> Any:
    import huggingface_hub

    return huggingface_hub.HfApi(endpoint=endpoint())


def _translated(name: str) -> AbstractContextManager[None]:
    """Context in which errors of huggingface_hub and of the network are raised as ours."""
    return errors_as_ours(partial(_our_error, name=name))


def _our_error(error: Exception, name: str) -> AscendtuneError | None:
    if isinstance(error, ImportError):
        return MachineError(
            "uploading needs huggingface_hub", code="package-missing", remedy="pip install 'ascendtune[train]'"
        )
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        variable = offline_variable(os.environ) or "HF_HUB_OFFLINE"
        return MachineError(f"{variable} is set", code="hub-offline", remedy="unset it to upload")
    status = http_status(error)
    if isinstance(error, errors.RepositoryNotFoundError | errors.GatedRepoError) or status in (401, 403):
        return access_denied(shown_endpoint(), name, token="HF_TOKEN", log_in="hf auth login")
    if isinstance(error, STRANGE_ANSWER) or (status is None and is_of_http_client(error)):
        return hub_unreachable(shown_endpoint(), error)
    if isinstance(error, errors.HfHubHTTPError | ValueError | RuntimeError | OSError):
        # A limit of the hub's, or a card with metadata that it refuses.
        return upload_failed(name, first_line(error))
    return None


STRANGE_ANSWER = (json.JSONDecodeError, TypeError, AttributeError, LookupError)
"""Raised by a hub's client if another server answers, such as the log-in page of a proxy."""
_AGAIN = "repeat the command: files that arrived are not sent again"


def access_denied(hub: str, name: str, *, token: str, log_in: str) -> InputError:
    return InputError(
        f"{hub} does not let you write to {name}",
        code="hub-access-denied",
        remedy=f"set {token} to a token that may write to it, or `{log_in}`; check the owner's name",
    )


def hub_unreachable(hub: str, error: Exception) -> MachineError:
    reason = "the answer is not from a hub" if isinstance(error, STRANGE_ANSWER) else type(error).__name__
    return MachineError(
        f"{hub} cannot be used ({reason})",
        code="hub-unreachable",
        remedy=f"check network and proxy, and {_AGAIN}",
    )


def upload_failed(name: str, cause: str) -> MachineError:
    return MachineError(f"the upload to {name} failed: {cause}", code="upload-failed", remedy=_AGAIN)
