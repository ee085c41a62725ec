"""Translates the data sets of a LLaMA-Factory recipe, as described in dataset_info.json, into native data sets."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.document import Document, Path_, read_document
from ascendtune.core.errors import RecipeError, combined_error
from ascendtune.core.files import expanded
from ascendtune.core.suggest import closest, did_you_mean

KEYS = (
    "file_name", "hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name",
    "formatting", "ranking", "subset", "split", "folder", "num_samples", "columns", "tags",
)  # fmt: skip
_MEDIA = ("images", "videos", "audios")
COLUMNS = {
    "prompt": "instruction", "query": "input", "response": "output", "history": None,
    "messages": "conversations", "system": None, "tools": None,
    "chosen": None, "rejected": None, "kto_tag": None, **dict.fromkeys(_MEDIA),
}  # fmt: skip
"""Column -> its default name for an entry without `columns`. With `columns`, unlisted columns do not exist."""
TAGS = {
    "role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt",
    "observation_tag": "observation", "function_tag": "function_call", "system_tag": "system",
}  # fmt: skip
"""Tag -> native name. Likewise, with `tags` unlisted tags do not exist."""
_FORMATTING = ("alpaca", "sharegpt", "openai")
_HUBS = ("hf_hub_url", "ms_hub_url", "om_hub_url")


class DatasetInfoEntry:
    """One data set of dataset_info.json.

    Args:
        stage: LLaMA-Factory's stage, which decides the required columns of a row.

    Attributes:
        columns: LLaMA-Factory's column -> its name in the file, or None.
        errors: the errors found.
        not_read: keys such as file_sha1 and description, which LLaMA-Factory does not read.
    """

    def __init__(self, info: Document, name: str, stage: str) -> None:
        self._info, self.name, self.stage = info, name, stage
        found = info.values.get(name)
        self.values: dict[str, Any] = found if isinstance(found, dict) else {}
        given = self.values.get("columns")
        self.columns = {key: given.get(key) for key in COLUMNS} if isinstance(given, dict) else dict(COLUMNS)
        self.formatting = self.values.get("formatting") or "alpaca"
        self.errors: list[RecipeError] = []
        self.not_read: list[str] = []

    def place(self, *path: str) -> str:
        return self._info.place((self.name, *path))

    @property
    def is_on_hub(self) -> bool:
        return any(self.values.get(key) for key in _HUBS)

    @property
    def has_turns(self) -> bool:
        """Whether a row is a list of turns, not an instruction."""
        return self.formatting != "alpaca"

    @property
    def split(self) -> str:
        """The split, without a slice of its first rows."""
        return re.sub(r"\[:\d+\]$", "", str(self.values.get("split") or "train"))

    @property
    def limit(self) -> int | None:
        """Number of rows to read, from `train[:N]` and `num_samples`; None for all."""
        first = re.search(r"\[:(\d+)\]$", str(self.values.get("split") or ""))
        return min(filter(None, (first and int(first[1]), self.values.get("num_samples"))), default=None)

    def check(self, place: str, *, modelscope: bool) -> bool:
        """Whether the entry is valid; errors are added to `errors`.

        Args:
            place: the place of the list of names in the recipe.
            modelscope: whether data sets on a hub come from ModelScope.
        """
        if self.name not in self._info.values:
            remedy = _suggestion(self.name, self._info.values)
            self.errors.append(
                RecipeError(
                    f"dataset_info.json has no data set '{self.name}'",
                    code="unknown-data-set",
                    remedy=remedy,
                    where=place,
                )
            )
            return False
        if not isinstance(self._info.values[self.name], dict):
            self._add_error(
                (),
                f"'{self.name}' is not a mapping",
                "write its keys: file_name, columns, …",
                code="invalid-value",
            )
            return False
        self._require_known()
        self._require_types()
        if not self.errors:
            self._require_a_source(modelscope)
            self._require_supported()
            self._require_columns()
        return not self.errors

    def _add_error(self, path: Path_, what: str, remedy: str, *, code: str) -> None:
        self.errors.append(RecipeError(what, code=code, remedy=remedy, where=self._info.place((self.name, *path))))

    def _refuse(self, path: Path_, what: str, remedy: str) -> None:
        self._add_error(path, f"{what} is not supported in this version", remedy, code="not-in-this-version")

    def _require_known(self) -> None:
        for part, valid in (("columns", COLUMNS), ("tags", TAGS)):
            inner = self.values.get(part)
            for key in inner if isinstance(inner, dict) else ():
                if key not in valid:
                    self._add_error(
                        (part, key),
                        f"unknown key '{self.name}.{part}.{key}'",
                        _suggestion(key, valid),
                        code="unknown-recipe-key",
                    )
        for key in self.values:
            if key in KEYS:
                continue
            if closest(key, (*KEYS, *COLUMNS, *TAGS), cutoff=0.75) is None:
                self.not_read.append(key)
                continue
            inner = "columns" if key in COLUMNS else "tags" if key in TAGS else None
            remedy = f"write it below {inner}" if inner else _suggestion(key, KEYS)
            self._add_error((key,), f"unknown key '{self.name}.{key}'", remedy, code="unknown-recipe-key")

    def _require_types(self) -> None:
        for key in (key for key in self.values if key in KEYS):
            value = self.values[key]
            if value is not None and (expected := _mismatch(key, value)):
                self._add_error(
                    (key,),
                    f"'{self.name}.{key}: {value}' is not valid",
                    f"write {expected}",
                    code="invalid-value",
                )
        if self.formatting not in _FORMATTING:
            what = f"'{self.name}.formatting: {self.formatting}' is not valid"
            self._add_error(("formatting",), what, _suggestion(str(self.formatting), _FORMATTING), code="invalid-value")

    def _require_a_source(self, modelscope: bool) -> None:
        values, name = self.values, self.name
        instead = "download it and give file_name"
        if self.is_on_hub:
            needed = "ms_hub_url" if modelscope else "hf_hub_url"
            if not values.get(needed):
                key = next(key for key in _HUBS if values.get(key))
                switch = {"ms_hub_url": "set USE_MODELSCOPE_HUB=1", "hf_hub_url": "unset USE_MODELSCOPE_HUB"}.get(key)
                what = f"{name}: it is not on the selected hub, and {needed} is not given"
                self._add_error((key,), what, f"{switch or instead}, or give {needed}", code="recipe-key-missing")
            return
        for key in ("script_url", "cloud_file_name"):
            if values.get(key):
                self._refuse((key,), f"{name}: {key}", f"{instead}, or give hf_hub_url")
                return
        if not values.get("file_name"):
            self._add_error(
                (), f"{name}: neither file_name nor hf_hub_url is given", "add one of them", code="recipe-key-missing"
            )

    def _require_supported(self) -> None:
        values, name = self.values, self.name
        for word in _MEDIA:
            if self.columns[word]:
                what = f"{name}: images, video and sound are not supported in this version"
                self._add_error(
                    ("columns", word), what, "use a data set that contains text only", code="not-in-this-version"
                )
        if "[" in self.split:
            self._add_error(
                ("split",),
                f"{name}: of the slices of a split only the first rows are supported in this version",
                "write [:N], or cut the file",
                code="not-in-this-version",
            )
        if values.get("subset") and values.get("folder"):
            what = f"{name}: subset and folder together are not supported in this version"
            self._add_error(("folder",), what, "keep one of them", code="not-in-this-version")
        if not self.has_turns and self.columns["tools"]:
            what = f"{name}: tools in rows of instructions are not supported in this version"
            self._add_error(("columns", "tools"), what, "use formatting: sharegpt", code="not-in-this-version")
        if self.has_turns and (tags := values.get("tags")):
            for tag in ("role_tag", "content_tag"):
                if not tags.get(tag):
                    what = f"{name}: tags has no {tag}: with `tags` given, a tag that is not listed has no default"
                    self._add_error(("tags",), what, f'add it, e.g. "{tag}": "{TAGS[tag]}"', code="recipe-key-missing")

    def _require_columns(self) -> None:
        """Require the columns of the stage: without them LLaMA-Factory drops every row or stops midway."""
        name, stage, columns = self.name, self.stage, self.columns
        at = ("columns",) if "columns" in self.values else ()
        wants_pairs = stage in ("rm", "dpo")
        if wants_pairs and not self.values.get("ranking"):
            remedy = (
                'name another data set; or, if it has pairs, add "ranking": true, and chosen and rejected to "columns"'
            )
            self._add_error(
                at, f"{name} contains no pairs, which stage: {stage} needs", remedy, code="data-format-mismatch"
            )
            return
        if self.values.get("ranking") and not wants_pairs:
            what = f"{name} contains pairs, which stage: {stage} cannot use"
            self._add_error(("ranking",), what, "use stage dpo or rm, or another data set", code="data-format-mismatch")
            return
        if stage == "pt" and (self.has_turns or columns["query"] or columns["history"]):
            what = f"{name}: stage pt takes one column of text"
            self._add_error(
                at, what, 'name that column, e.g. "columns": {"prompt": "text"}', code="data-format-mismatch"
            )
            return
        for word in self._needed():
            if not columns[word]:
                what = f"{name}: columns has no '{word}': LLaMA-Factory would drop every row, or stop"
                self._add_error(at, what, f'add "{word}": the name of the column', code="recipe-key-missing")

    def _needed(self) -> list[str]:
        if self.stage == "pt":
            return ["prompt"]
        question = ["messages"] if self.has_turns else [] if self.columns["query"] else ["prompt"]
        if self.stage in ("rm", "dpo"):
            return [*question, "chosen", "rejected"]
        answer = [] if self.has_turns else ["response"]
        return [*question, *answer, *(["kto_tag"] if self.stage == "kto" else [])]


def _suggestion(word: str, valid: Collection[str]) -> str:
    return did_you_mean(word, valid, f"the valid names are: {', '.join(list(valid)[:20])}")


def _mismatch(key: str, value: Any) -> str | None:
    """The expected value, or None if `value` is valid."""
    match key:
        case "columns" | "tags":
            right = isinstance(value, dict) and all(isinstance(each, str | None) for each in value.values())
            return None if right else "a mapping of names to names"
        case "ranking":
            return None if isinstance(value, bool) else "true or false"
        case "num_samples":
            right = isinstance(value, int) and not isinstance(value, bool) and value > 0
            return None if right else "a whole number above 0"
        case _:
            return None if isinstance(value, str) else "text"


# LLaMA-Factory's column -> native name, by the kind of row.
_IN_INSTRUCTIONS = {"prompt": "instruction", "query": "input", "history": "history", "system": "system"}
_IN_TURNS = {"messages": "conversations", "system": "system", "tools": "tools"}
# Native column names that a format would read from the file by itself, instead of or in addition to those above.
_RIVALS = {
    "preference": ("prompt", "conversations", "messages", "margin", "tools"),
    "unpaired": ("completion", "instruction", "messages", "label"),
}
_FORMATS = {"pt": "text", "rm": "preference", "dpo": "preference", "kto": "unpaired"}


@dataclass
class DataSets:
    """Native data sets, and the places of their keys."""

    specs: list[dict[str, Any]] = field(default_factory=list)
    places: list[dict[str, str]] = field(default_factory=list)
    """For each data set, key -> place; the place of the data set itself has an empty key."""
    notes: list[str] = field(default_factory=list)
    has_tools: bool = False
    """Whether rows may have tools."""


def data_sets(names: list[str], directory: str, stage: str, place: str, *, modelscope: bool) -> DataSets:
    """The data sets `names` of the dataset_info.json in `directory`.

    Args:
        directory: `dataset_dir` of the recipe.
        stage: LLaMA-Factory's stage, which decides the required columns of a row.
        place: the place of the list of names.
        modelscope: whether data sets on a hub should come from ModelScope.

    Raises:
        RecipeError: unknown list, data sets or keys, or unsupported features; all at once.
    """
    info = _list_of(names, directory, place)
    result, errors = DataSets(), list[RecipeError]()
    for name in names:
        entry = DatasetInfoEntry(info, name, stage)
        if entry.check(place, modelscope=modelscope):
            source = ("ms_hub_url" if modelscope else "hf_hub_url") if entry.is_on_hub else "file_name"
            result.specs.append(_spec(entry, directory, source))
            result.places.append({"": place, **_places(entry, source)})
            result.notes += _notes(entry)
            result.has_tools |= bool(entry.columns["tools"])
        errors += entry.errors
    if errors:
        raise combined_error(errors)
    return result


def _list_of(names: list[str], directory: str, place: str) -> Document:
    if directory == "ONLINE":
        return Document({name: {"hf_hub_url": name, "ms_hub_url": name} for name in names}, place)
    if directory.startswith("REMOTE:"):
        raise RecipeError(
            f"dataset_dir: {directory} is a list of data sets on the hub, which is not read in this version",
            code="not-in-this-version",
            remedy="download its dataset_info.json and the files that it names, and give their directory",
            where=place,
        )
    path = expanded(directory) / "dataset_info.json"
    if not path.is_file():
        raise RecipeError(
            f"{path}, the list of data sets, does not exist",
            code="dataset-info-missing",
            remedy="set dataset_dir to the directory that contains it; a relative path starts at the working directory",
            where=place,
        )
    return read_document(path, "list of data sets")


def _spec(entry: DatasetInfoEntry, directory: str, source: str) -> dict[str, Any]:
    values = entry.values
    path = values[source] if entry.is_on_hub else str(Path(directory) / values[source])
    spec: dict[str, Any] = {"path": path, "format": _format(entry)}
    if entry.is_on_hub and entry.split != "train":
        spec["split"] = entry.split
    if subset := values.get("subset") or values.get("folder"):
        spec["subset"] = subset
    if entry.limit:
        spec["limit"] = entry.limit
    if columns := _columns(entry):
        spec["columns"] = columns
    if entry.has_turns and (tags := values.get("tags")):
        spec["tags"] = {TAGS[tag]: word for tag, word in tags.items() if word is not None}
    return spec


def _format(entry: DatasetInfoEntry) -> str:
    return _FORMATS.get(entry.stage) or ("sharegpt" if entry.has_turns else "alpaca")


def _columns(entry: DatasetInfoEntry) -> dict[str, str | None]:
    """Native name -> the file's column; None for a native column in the file that LLaMA-Factory does not read."""
    columns = entry.columns
    if entry.stage == "pt":
        return {} if columns["prompt"] == "text" else {"text": columns["prompt"]}
    words = dict(_IN_TURNS if entry.has_turns else _IN_INSTRUCTIONS)
    if entry.stage in ("rm", "dpo"):
        words |= {"chosen": "chosen", "rejected": "rejected"}
    else:
        words |= {} if entry.has_turns else {"response": "output"}
        words |= {"kto_tag": "kto_tag"} if entry.stage == "kto" else {}
    own = {native: columns[original] for original, native in words.items()}
    if own.get("instruction", "") is None:
        # The question may be in `query` only.
        own |= {"instruction": own["input"], "input": None}
    rivals: dict[str, str | None] = dict.fromkeys(_RIVALS.get(_format(entry), ()))
    return {native: column for native, column in (rivals | own).items() if column != native}


def _places(entry: DatasetInfoEntry, source: str) -> dict[str, str]:
    """Native key -> its line in dataset_info.json."""
    native = {"path": source, "format": "formatting", "columns": "columns", "tags": "tags", "split": "split"}
    return {key: entry.place(original) for key, original in native.items() if original in entry.values}


def _notes(entry: DatasetInfoEntry) -> list[str]:
    notes = [f"{entry.name}.{key}: no effect: LLaMA-Factory does not read it" for key in entry.not_read]
    if number := entry.values.get("num_samples"):
        notes.append(
            f"{entry.name}: num_samples takes the first {number:,} rows; LLaMA-Factory draws them at random, and some "
            "again where there are fewer"
        )
    if entry.formatting == "openai":
        notes.append(
            f"{entry.name}: the system message 'detailed thinking off', which LLaMA-Factory adds to rows with "
            "formatting: openai, is not added"
        )
    return notes
