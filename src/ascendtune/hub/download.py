"""Resolves a path or a hub id to a local path, downloading if needed.

Downloads go through huggingface_hub, so its variables work: HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME, HF_TOKEN, proxies.
If USE_MODELSCOPE_HUB is set, `modelscope` is used instead; `hf:OWNER/NAME` and `modelscope:OWNER/NAME` select a hub.
HF_HUB_OFFLINE applies to both.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ascendtune.core.dataset_card import CARD, ChosenFiles, choose_files
from ascendtune.core.errors import (
    AscendtuneError,
    DataError,
    InputError,
    MachineError,
    combined_error,
    disk_fault,
    errors_as_ours,
)
from ascendtune.core.files import expanded
from ascendtune.core.log import say
from ascendtune.core.mask import without_secrets
from ascendtune.core.suggest import closest_path, path_suggestion
from ascendtune.hub import modelscope
from ascendtune.hub.modelscope import RepoType, input_error, noun
from ascendtune.hub.verify import check_model_directory

HUB_ID = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?", re.ASCII)
_HUBS = ("hf", "modelscope")
_DATA_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".txt")
# Without pickled weights: they are never loaded, so they are not downloaded.
_MODEL_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.tiktoken", "*.jinja", "*.py"]
# Copies of the weights in other layouts, for other programs.
MODEL_COPIES = ["original/*", "onnx/*", "openvino/*", "gguf/*", "consolidated*.safetensors"]
_FITS: dict[RepoType, Callable[[Path], bool]] = {"model": Path.is_dir, "dataset": Path.exists}
"""Whether a local path can be a repository's."""


def fetch_model(path_or_id: str, revision: str | None = None, *, weights_needed: bool = True) -> Path:
    """The directory of a model in Hugging Face format; downloaded if it is a hub id.

    Args:
        revision: branch, tag or commit of a hub id.
        weights_needed: False for random initialisation; then they are not downloaded.

    Raises:
        RecipeError: the path or model does not exist, access is denied, or the model is incomplete.
        MachineError: the hub cannot be reached, or the disk is full.
    """
    path = find_local(path_or_id, "model")
    if path is None:
        files = [each for each in _MODEL_FILES if weights_needed or each != "*.safetensors"]
        path = _download(path_or_id, "model", revision, files, MODEL_COPIES)
    check_model_directory(path, weights_needed=weights_needed)
    return path


def fetch_weights(path_or_id: str) -> Path:
    """The directory of a model or an adapter; downloaded if it is a hub id. The caller checks its contents.

    Raises:
        RecipeError: the path or model does not exist, or access is denied.
        MachineError: the hub cannot be reached, or the disk is full.
    """
    return find_local(path_or_id, "model") or _download(path_or_id, "model", None, _MODEL_FILES, MODEL_COPIES)


def fetch_dataset(
    path_or_id: str, revision: str | None = None, *, split: str | None = None, subset: str | None = None
) -> Path:
    """The file or directory of a data set; downloaded if it is a hub id.

    Args:
        revision: branch, tag or commit of a hub id.
        split: for a hub id, only files of this split, according to its card or the files' names, are downloaded.
        subset: likewise.

    Raises:
        DataError: the path or data set does not exist, or access is denied.
        MachineError: the hub cannot be reached, or the disk is full.
    """
    path = find_local(path_or_id, "dataset")
    if path is not None:
        return path
    words = [word for word in (subset, split) if word]
    chosen = _files_of_card(path_or_id, revision, subset, split)
    # Without a card, files are selected by their names.
    of_card, by_name = _patterns_of_data(chosen.patterns if chosen else ()), ["*".join(["", *words, ""])]
    path = _download(path_or_id, "dataset", revision, of_card or _patterns_of_data(by_name), [], has_notice=False)
    if not any(file.name != CARD for file in path.rglob("*") if not file.is_dir()):
        if variable := offline_variable(os.environ):
            # An interrupted download may have left only the card.
            cache = modelscope.cache() if is_of_modelscope(path_or_id) else _cache()
            raise modelscope.not_in_the_cache(path_or_id, noun("dataset"), variable, cache)
        after = f" named after {' and '.join(words)}" if words else ""
        raise DataError(
            f"the data set {path_or_id} has no data file{after}",
            code="data-file-missing",
            remedy=f"look at the names of its files on the hub: they must end in {', '.join(_DATA_SUFFIXES)} (or .gz)",
        )
    return path


def _files_of_card(name: str, revision: str | None, subset: str | None, split: str | None) -> ChosenFiles | None:
    """The files of a subset and split according to the card of a data set on a hub; None if it lists none."""
    try:
        directory = _download(name, "dataset", revision, [CARD], [])
    except MachineError as error:
        # A cache may contain the rows without the card.
        if type(error.__cause__).__name__ != "IncompleteSnapshotError":
            raise
        return None
    return choose_files(directory, subset, split)


def _patterns_of_data(patterns: Iterable[str]) -> list[str]:
    """Patterns for a hub, whose `*` crosses directories, of the data files that match `patterns`."""
    suffixes = tuple(f"{suffix}{packed}" for suffix in _DATA_SUFFIXES for packed in ("", ".gz"))
    found: list[str] = []
    for pattern in patterns:
        name = pattern.replace("**/", "*")
        if name.endswith("*"):
            found += [f"{name}{suffix}" for suffix in suffixes]
        elif name.endswith(suffixes):
            found.append(name)
    return found


def find_local(text: str, kind: RepoType) -> Path | None:
    """The path, or None if `text` is a hub id.

    Raises:
        RecipeError, DataError: `text` looks like a path and does not exist.
    """
    hub, name = split_hub(text)
    if hub is not None:
        if not HUB_ID.fullmatch(name):
            raise input_error(kind)(
                f"'{text}' does not name a {noun(kind)} of a hub",
                code="invalid-hub-id",
                remedy=f"write it as {hub}:OWNER/NAME",
            )
        return None
    path = expanded(text)
    if path.exists():
        return path
    if _has_form_of_path(text):
        remedy = path_suggestion(path, "check the path; it starts at the working directory", fits=_FITS[kind])
        raise input_error(kind)(f"no such {noun(kind)} path", code="path-missing", remedy=remedy, where=text)
    return None


def require_local_paths(sources: Iterable[tuple[str, RepoType]]) -> None:
    """Raise one error for all paths that do not exist. Text that looks like a hub id is not checked.

    Args:
        sources: paths or hub ids, with their types.

    Raises:
        RecipeError, DataError: a path does not exist.
    """
    errors: list[AscendtuneError] = []
    for text, kind in dict.fromkeys(sources):
        try:
            find_local(text, kind)
        except InputError as error:
            errors.append(error)
    if errors:
        raise combined_error(errors)


def split_hub(text: str) -> tuple[str | None, str]:
    """("hf", "Qwen/Qwen3-8B") for `hf:Qwen/Qwen3-8B`; no hub for an id or a path without one."""
    hub, colon, name = text.partition(":")
    return (hub, name) if colon and hub in _HUBS else (None, text)


def _has_form_of_path(text: str) -> bool:
    has_folder = "/" in text and Path(text).parent.is_dir()
    is_file = text.removesuffix(".gz").endswith(_DATA_SUFFIXES)
    return text.startswith(("/", "~", ".")) or has_folder or is_file or not HUB_ID.fullmatch(text)


def _download(
    name: str,
    kind: RepoType,
    revision: str | None,
    allow_patterns: Sequence[str],
    ignore_patterns: Sequence[str],
    *,
    has_notice: bool = True,
) -> Path:
    if has_notice:
        place = modelscope.shown_endpoint() if is_of_modelscope(name) else shown_endpoint()
        where = "in the cache" if offline_variable(os.environ) else f"in the cache and on {place}"
        say(f"looking for the {noun(kind)} {split_hub(name)[1]} {where}")
    try:
        return _download_from_hub(name, kind, revision, allow_patterns, ignore_patterns)
    except AscendtuneError as error:
        if error.code in ("not-on-hub", "hub-unreachable", "hub-offline"):
            error.remedy = _local_path_meant(name, kind) + error.remedy
        raise


def _local_path_meant(name: str, kind: RepoType) -> str:
    """Beginning of the remedy for a hub id, if a local path may have been meant; otherwise empty."""
    if split_hub(name)[0] is not None:
        return ""
    if nearest := closest_path(Path(name), fits=_FITS[kind]):
        return f"did you mean the path '{nearest}'? If not: "
    # Most models on hubs have the form OWNER/NAME.
    return "" if "/" in name else "if it is a path: it starts at the working directory; else: "


def is_of_modelscope(name: str) -> bool:
    """Whether the model or data set with this hub id is loaded from ModelScope."""
    hub, _ = split_hub(name)
    return hub == "modelscope" or (hub is None and modelscope.is_wanted(os.environ))


def _download_from_hub(
    name: str, kind: RepoType, revision: str | None, allow_patterns: Sequence[str], ignore_patterns: Sequence[str]
) -> Path:
    hub_id = split_hub(name)[1]
    if is_of_modelscope(name):
        offline = offline_variable(os.environ)
        return modelscope.download(hub_id, kind, revision, allow_patterns, ignore_patterns, offline=offline)
    try:
        import huggingface_hub
        import huggingface_hub.utils
    except ImportError as error:
        raise MachineError(
            f"'{hub_id}' is not a local path, and downloading needs huggingface_hub",
            code="package-missing",
            remedy="pip install 'ascendtune[train]', or give a local path",
        ) from error
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    with errors_as_ours(partial(_translated, name=hub_id, kind=kind, revision=revision)):
        return Path(
            huggingface_hub.snapshot_download(
                hub_id,
                repo_type=kind,
                revision=revision,
                allow_patterns=list(allow_patterns),
                ignore_patterns=list(ignore_patterns) or None,
            )
        )


def _translated(error: BaseException, name: str, kind: RepoType, revision: str | None) -> AscendtuneError | None:
    """Our error for one of huggingface_hub or of the network; None for other errors."""
    from huggingface_hub import errors

    refused, what = input_error(kind), noun(kind)
    url = f"{shown_endpoint()}/{'datasets/' if kind == 'dataset' else ''}{name}"
    if isinstance(error, errors.GatedRepoError):
        return refused(
            f"the {what} {name} is gated: access must be granted first",
            code="hub-access-denied",
            remedy=f"ask for access on {url}, then set HF_TOKEN",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return refused(
            f"there is no {what} {name} on {shown_endpoint()} (or it is private), and no such local path",
            code="not-on-hub",
            remedy="check the spelling; a private one needs HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return refused(
            f"{name} has no revision '{revision}'",
            code="hub-revision-missing",
            remedy=f"choose one that is listed on {url}/tree/main",
        )
    if isinstance(error, errors.HFValidationError):
        return refused(
            f"'{name}' is neither a local path nor a hub id: {error}",
            code="invalid-hub-id",
            remedy="check the spelling",
        )
    if http_status(error) in (401, 403):
        return refused(
            f"{shown_endpoint()} refuses access to {name}",
            code="hub-access-denied",
            remedy="set HF_TOKEN to a token that may read it",
        )
    is_of_hub = isinstance(error, errors.LocalEntryNotFoundError | errors.HfHubHTTPError | errors.FileMetadataError)
    # The server may not be a hub but, for example, a proxy: huggingface_hub then misses keys in the answer.
    if is_of_hub or is_of_http_client(error) or isinstance(error, OSError | _StrangeAnswer):
        fault = None if is_of_hub else disk_fault(error, _cache(), "downloading")
        return fault or _unreachable(error, name, what)
    return None


_StrangeAnswer = LookupError | TypeError | AttributeError | ValueError


def _unreachable(error: BaseException, name: str, what: str) -> MachineError:
    if variable := offline_variable(os.environ):
        return modelscope.not_in_the_cache(name, what, variable, _cache())
    reason = http_status(error) or type(error.__cause__ or error).__name__
    if isinstance(error, _StrangeAnswer):
        reason = "the answer is not from a hub"
    return MachineError(
        f"the {what} {name} is not a local path and not in the cache, and {shown_endpoint()} cannot be used ({reason})",
        code="hub-unreachable",
        remedy="check network and proxy; set HF_ENDPOINT to a mirror that you can reach; or download it on another "
        "machine and give its path here",
    )


def offline_variable(environment: Mapping[str, str]) -> str | None:
    """The variable that forbids the network, as huggingface_hub reads it; None if the network may be used."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if value := environment.get(variable):
            return variable if value.upper() in ("1", "ON", "YES", "TRUE") else None
    return None


def is_of_http_client(error: BaseException) -> bool:
    """Whether the HTTP client of huggingface_hub raised `error`."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2")


def http_status(error: BaseException) -> int | None:
    """The HTTP status of an error, or of its cause."""
    for each in (error, error.__cause__):
        response: Any = getattr(each, "response", None)
        if response is not None:
            return int(response.status_code)
    return None


def endpoint() -> str:
    """The address of Hugging Face's hub, or of the mirror in HF_ENDPOINT."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def shown_endpoint() -> str:
    """`endpoint` without a password."""
    return without_secrets(endpoint())


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
