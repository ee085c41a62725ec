"""Lists the files of a repository and their URLs: Hugging Face's protocol and ModelScope's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from ascendtune.core.errors import InputError
from ascendtune.core.foreign_json import value_at
from ascendtune.core.http import Fault, get_json
from ascendtune.core.mask import without_secrets
from ascendtune.hub import modelscope
from ascendtune.hub.modelscope import RepoType

HUGGING_FACE = "https://huggingface.co"
_MIRRORS = {"hf": HUGGING_FACE, "hf-mirror": "https://hf-mirror.com"}
_MOST_FILES = 100_000
_MOST_PAGES = 10_000
_MODELSCOPE_PAGE = 200
_REVISION = re.compile(r"[\w][\w./-]{0,255}", re.ASCII)
_TOO_LONG = f"the list of files does not end, or has more than {_MOST_FILES:,}"
_HASHES = {"sha256": 64, "git_sha1": 40}


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        size: bytes.
        sha256: hash of the content, in hexadecimal; None if the hub lists only `git_sha1`.
        git_sha1: git's hash of this content: SHA-1 of `blob SIZE\\0CONTENT`.
    """

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True)
class Listing:
    """The files of one revision; `commit` identifies it permanently if the hub has commits."""

    commit: str
    files: tuple[RemoteFile, ...]


class HubClient(Protocol):
    """A hub, or a mirror of one."""

    @property
    def endpoint(self) -> str: ...

    def listing(self, name: str, kind: RepoType, revision: str | None) -> Listing:
        """All files of a repository.

        Raises:
            Fault: the hub does not answer, or its answer has another form.
        """

    def url(self, name: str, kind: RepoType, commit: str, file: str) -> str: ...

    def headers(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class _Hub:
    endpoint: str
    token: str | None = None

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class HuggingFace(_Hub):
    def listing(self, name: str, kind: RepoType, revision: str | None) -> Listing:
        base = f"{self.endpoint}/api/{kind}s/{quote(name)}"
        info, _ = get_json(f"{base}/revision/{quote(revision or 'main', safe='')}", self.headers())
        commit = value_at(info, "sha")
        if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise Fault("the answer names no commit")
        files: list[RemoteFile] = []
        query: dict[str, str] = {"recursive": "true"}
        for _ in range(_MOST_PAGES):
            page, headers = get_json(f"{base}/tree/{commit}?{urlencode(query)}", self.headers())
            files += _checked(_entry_of_hugging_face(each) for each in _listed(page) if each.get("type") == "file")
            cursor = _next_cursor(headers.get("Link", ""))
            if cursor is None:
                return Listing(commit, tuple(files))
            if len(files) > _MOST_FILES or cursor == query.get("cursor"):
                break
            query["cursor"] = cursor
        raise Fault(_TOO_LONG)

    def url(self, name: str, kind: RepoType, commit: str, file: str) -> str:
        prefix = "datasets/" if kind == "dataset" else ""
        return f"{self.endpoint}/{prefix}{quote(name)}/resolve/{commit}/{quote(file)}"


class ModelScope(_Hub):
    """Revisions are branches or tags there: the state of a download is identified by the hashes of its files."""

    def listing(self, name: str, kind: RepoType, revision: str | None) -> Listing:
        revision = revision or "master"
        files: list[RemoteFile] = []
        page = 1
        while True:
            query = {"Revision": revision, "Recursive": "true", "PageNumber": page, "PageSize": _MODELSCOPE_PAGE}
            end = "files" if kind == "model" else "tree"
            url = f"{self.endpoint}/api/v1/{kind}s/{quote(name)}/repo/{end}?{urlencode(query)}"
            answer, _ = get_json(url, self.headers())
            entries = _listed(value_at(answer, "Data", "Files"))
            known = {each.path for each in files}
            new = [
                each
                for each in _checked(_entry_of_modelscope(entry) for entry in entries if entry.get("Type") == "blob")
                if each.path not in known
            ]
            files += new
            # Models are listed on one page, whatever page size is requested.
            if len(entries) < _MODELSCOPE_PAGE or not new:
                return Listing(revision, tuple(files))
            if len(files) > _MOST_FILES:
                raise Fault(_TOO_LONG)
            page += 1

    def url(self, name: str, kind: RepoType, commit: str, file: str) -> str:
        query = urlencode({"Revision": commit, "FilePath": file})
        return f"{self.endpoint}/api/v1/{kind}s/{quote(name)}/repo?{query}"


def choose_hubs(names: Sequence[str], environment: Mapping[str, str]) -> list[HubClient]:
    """The hubs to try, in this order.

    Args:
        names: `hf`, `hf-mirror`, `modelscope` or a URL of a mirror of Hugging Face; empty: HF_ENDPOINT if it is set,
            then Hugging Face, then hf-mirror.

    Raises:
        InputError: an unknown name, or ModelScope with another hub: their repositories differ.
    """
    if "modelscope" in names:
        if set(names) != {"modelscope"}:
            raise InputError(
                "--from modelscope cannot be combined with other hubs: its repositories differ from Hugging Face's",
                code="conflicting-options",
                remedy="use only --from modelscope",
            )
        named = modelscope.endpoint(environment).rstrip("/")
        remedy = "give the address of ModelScope, such as https://www.modelscope.cn, or unset it"
        _require_hub(named, "MODELSCOPE_ENDPOINT", remedy)
        return [ModelScope(named, environment.get("MODELSCOPE_API_TOKEN"))]
    own = environment.get("HF_ENDPOINT", "").rstrip("/")
    chosen = list(names) or [*([own] if own else []), "hf", "hf-mirror"]
    endpoints = list(dict.fromkeys(_MIRRORS.get(each, each.rstrip("/")) for each in chosen))
    remedy = f"choose {', '.join((*_MIRRORS, 'modelscope'))}, or give the URL of a mirror of Hugging Face"
    for each in endpoints:
        _require_hub(each, "--from", remedy)
    # A token opens private repositories: it is sent only to the hub that issued it and to the one that the user set.
    token = _hugging_face_token(environment)
    return [HuggingFace(each, token if each in (HUGGING_FACE, own) else None) for each in endpoints]


def _require_hub(address: str, source: str, remedy: str) -> None:
    if "@" in address:
        # Endpoints are printed and recorded.
        raise InputError(
            f"the address of a hub contains a user name or a password: {without_secrets(address)}",
            code="invalid-option-value",
            remedy="give the address without them; HF_TOKEN (MODELSCOPE_API_TOKEN) contains the key",
        )
    if not _is_http_url(address):
        raise InputError(f"{source} {address} is not a hub", code="invalid-option-value", remedy=remedy)


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # A port that is not a number, or too large, is detected when it is read.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _hugging_face_token(environment: Mapping[str, str]) -> str | None:
    if token := environment.get("HF_TOKEN", "").strip():
        return token
    home = environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    try:
        return Path(environment.get("HF_TOKEN_PATH") or Path(home) / "token").read_text().strip() or None
    except (OSError, ValueError):
        return None


def _next_cursor(link: str) -> str | None:
    """The cursor of the next page; None on the last page.

    Mirrors link to the next page on the hub that they mirror, so only the cursor is used.
    """
    following = re.search(r'<([^<>]*)>;\s*rel="next"', link)
    if following is None:
        return None
    try:
        cursors = parse_qs(urlsplit(following[1]).query).get("cursor")
    except ValueError as error:
        raise Fault("the address of the next page is not a URL") from error
    return cursors[0] if cursors else None


def _listed(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise Fault("the answer is not a list of files")
    return content


def _entry_of_hugging_face(entry: dict[str, Any]) -> RemoteFile:
    lfs = entry.get("lfs")
    if isinstance(lfs, dict):
        return RemoteFile(entry.get("path", ""), lfs.get("size", -1), sha256=lfs.get("oid"))
    return RemoteFile(entry.get("path", ""), entry.get("size", -1), git_sha1=entry.get("oid"))


def _entry_of_modelscope(entry: dict[str, Any]) -> RemoteFile:
    return RemoteFile(entry.get("Path", ""), entry.get("Size", -1), sha256=entry.get("Sha256") or None)


def _checked(files: Iterator[RemoteFile]) -> Iterator[RemoteFile]:
    for file in files:
        if not isinstance(file.path, str) or not is_safe_path(file.path):
            raise Fault(f"the repository contains a file that must not be written: {str(file.path)[:100]!r}")
        if not isinstance(file.size, int) or isinstance(file.size, bool) or file.size < 0:
            raise Fault(f"the answer has no size of {file.path}")
        for name, length in _HASHES.items():
            value = getattr(file, name)
            if value is not None and not (isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{length}}}", value)):
                raise Fault(f"the answer has no valid hash of {file.path}")
        yield file


def checked_revision(revision: str) -> str:
    """The name of a branch, a tag or a commit.

    Raises:
        ValueError: it has another form; the message is the remedy.
    """
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision) or ".." in revision:
        raise ValueError("give a branch, a tag or a commit")
    return revision


def is_safe_path(path: str) -> bool:
    """Whether a path in an untrusted repository stays inside the directory that it is written into.

    Paths with `.`, `//` or a trailing slash are refused, because no pattern expects them, and those in `.git`, where
    git looks for programs to run.
    """
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and path == "/".join(parts)
        and not path.startswith(("/", "~", ".ascendtune-fetch"))
        and "\\" not in path
        and path.isprintable()
        and all(part != ".." and part.lower() != ".git" and len(os.fsencode(part)) <= 255 for part in parts)
    )
