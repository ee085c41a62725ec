"""LLaMA-Factory's data sets by name, described in a dataset_info.json, as data sets of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.document import Document, read_document
from ascendtune.core.errors import RecipeError, together
from ascendtune.core.files import expanded
from ascendtune.recipe.llamafactory.dataset_entry import TAGS, Entry

# Their column -> our word, by what a row is.
_IN_INSTRUCTIONS = {"prompt": "instruction", "query": "input", "history": "history", "system": "system"}
_IN_TURNS = {"messages": "conversations", "system": "system", "tools": "tools"}
# Words of ours that a format would take from the file by itself, before those above or beside them.
_RIVALS = {
    "preference": ("prompt", "conversations", "messages", "margin", "tools"),
    "unpaired": ("completion", "instruction", "messages", "label"),
}
_FORMATS = {"pt": "text", "rm": "preference", "dpo": "preference", "kto": "unpaired"}


@dataclass
class DataSets:
    """Data sets of ours, and where what they say stands."""

    specs: list[dict[str, Any]] = field(default_factory=list)
    places: list[dict[str, str]] = field(default_factory=list)
    """For each, key -> place; the data set itself under an empty key."""
    notes: list[str] = field(default_factory=list)


def data_sets(names: list[str], directory: str, stage: str, place: str, *, modelscope: bool) -> DataSets:
    """The data sets `names` of the dataset_info.json in `directory`.

    Args:
        directory: their dataset_dir.
        stage: their stage, which decides what a row must hold.
        place: of the list of names.
        modelscope: whether data sets on a hub should come from ModelScope.

    Raises:
        RecipeError: no such list or data set, unknown keys, or something that is not here; all at once.
    """
    info = _list_of(names, directory, place)
    made, complaints = DataSets(), list[RecipeError]()
    for name in names:
        entry = Entry(info, name, stage)
        if entry.check(place, modelscope=modelscope):
            source = ("ms_hub_url" if modelscope else "hf_hub_url") if entry.is_on_hub else "file_name"
            made.specs.append(_spec(entry, directory, source))
            made.places.append({"": place, **_places(entry, source)})
            made.notes += _notes(entry)
        complaints += entry.complaints
    if complaints:
        raise together(complaints)
    return made


def _list_of(names: list[str], directory: str, place: str) -> Document:
    if directory == "ONLINE":
        return Document({name: {"hf_hub_url": name, "ms_hub_url": name} for name in names}, place)
    if directory.startswith("REMOTE:"):
        raise RecipeError(
            f"dataset_dir: {directory} is a list of data sets on the hub, which is not read in this version",
            remedy="download its dataset_info.json and the files that it names, and give their directory",
            where=place,
        )
    path = expanded(directory) / "dataset_info.json"
    if not path.is_file():
        raise RecipeError(
            f"there is no {path}, which says what the data sets are",
            remedy="set dataset_dir to the directory that holds it; it starts at the working directory",
            where=place,
        )
    return read_document(path, "list of data sets")


def _spec(entry: Entry, directory: str, source: str) -> dict[str, Any]:
    values = entry.values
    path = values[source] if entry.is_on_hub else str(Path(directory) / values[source])
    spec: dict[str, Any] = {"path": path, "format": _format(entry)}
    if entry.is_on_hub and values.get("split") not in (None, "train"):
        spec["split"] = values["split"]
    if subset := values.get("subset") or values.get("folder"):
        spec["subset"] = subset
    if values.get("num_samples"):
        spec["limit"] = values["num_samples"]
    if columns := _columns(entry):
        spec["columns"] = columns
    if entry.has_turns and (tags := values.get("tags")):
        spec["tags"] = {TAGS[tag]: word for tag, word in tags.items() if word is not None}
    return spec


def _format(entry: Entry) -> str:
    return _FORMATS.get(entry.stage) or ("sharegpt" if entry.has_turns else "alpaca")


def _columns(entry: Entry) -> dict[str, str | None]:
    """Our word -> the file's column; null where the file may have one of that name, which theirs leaves alone."""
    columns = entry.columns
    if entry.stage == "pt":
        return {} if columns["prompt"] == "text" else {"text": columns["prompt"]}
    words = dict(_IN_TURNS if entry.has_turns else _IN_INSTRUCTIONS)
    if entry.stage in ("rm", "dpo"):
        words |= {"chosen": "chosen", "rejected": "rejected"}
    else:
        words |= {} if entry.has_turns else {"response": "output"}
        words |= {"kto_tag": "kto_tag"} if entry.stage == "kto" else {}
    found = {ours: columns[theirs] for theirs, ours in words.items()}
    if found.get("instruction", "") is None:
        # A question may stand in `query` alone.
        found |= {"instruction": found["input"], "input": None}
    rivals: dict[str, str | None] = dict.fromkeys(_RIVALS.get(_format(entry), ()))
    return {ours: column for ours, column in (rivals | found).items() if column != ours}


def _places(entry: Entry, source: str) -> dict[str, str]:
    """Key of ours -> the line of the list that says it."""
    ours = {"path": source, "format": "formatting", "columns": "columns", "tags": "tags", "split": "split"}
    return {key: entry.place(theirs) for key, theirs in ours.items() if theirs in entry.values}


def _notes(entry: Entry) -> list[str]:
    notes = []
    if number := entry.values.get("num_samples"):
        notes.append(f"{entry.name}: num_samples takes the first {number:,} rows; in theirs they are drawn at random")
    if entry.formatting == "openai":
        notes.append(
            f"{entry.name}: the system message 'detailed thinking off', which theirs adds to rows with formatting: "
            "openai, is not added"
        )
    return notes
