"""Data sets in configurations of axolotl, TRL and ms-swift, as arguments of `ascendtune init`."""

from __future__ import annotations

from typing import Any

from ascendtune.recipe.other_command_names import READERS


def data_sets(data: Any) -> list[dict[str, Any]]:
    """Path or hub id of each data set, with subset, split and number of rows if they are given."""
    if isinstance(data, dict):
        # TRL's dataset_mixer: path -> share of the rows.
        data = [{"path": path, "weight": share} for path, share in data.items()]
    sets = []
    for each in data if isinstance(data, list) else [data]:
        if isinstance(each, str):
            sets.append(_of_ms_swift(each))
        elif isinstance(each, dict) and isinstance(each.get("path"), str):
            sets += _of_mapping(each)
    return sets


def _of_ms_swift(text: str) -> dict[str, Any]:
    """Parse `HF::path:subset#500`, of which only the path is required."""
    hub, separator, path = text.partition("::")
    path, _, rows = (path if separator and hub.lower() in ("hf", "ms") else text).partition("#")
    path, _, subset = path.partition(":")
    return {
        "path": path,
        **({"subset": subset} if subset and "/" not in subset else {}),
        **({"limit": rows} if rows.isdecimal() and int(rows) else {}),
    }


def _of_mapping(values: dict[str, Any]) -> list[dict[str, Any]]:
    """A data set of axolotl or TRL."""
    path, files = values["path"], values.get("data_files")
    if path in READERS and files:
        return [{"path": str(file)} for file in (files if isinstance(files, list) else [files])]
    split = values.get("split", values.get("train_on_split"))
    own = {
        "subset": values.get("name"),
        "split": split if isinstance(split, str) and split.isidentifier() and split != "train" else None,
        "revision": values.get("revision"),
        "weight": values.get("weight") if values.get("weight") != 1 else None,
    }
    return [{"path": path, **{key: value for key, value in own.items() if isinstance(value, str | int | float)}}]


def text_column(data: Any) -> str | None:
    """The column of the texts, if all data sets have axolotl's type of whole texts; otherwise None."""
    sets = [each if isinstance(each, dict) else {} for each in data] if isinstance(data, list) else []
    columns = {(str(each.get("type")), str(each.get("field") or "text")) for each in sets}
    kind, column = columns.pop() if len(columns) == 1 else ("", "")
    return column if kind == "completion" else None


_READ = frozenset(("path", "name", "train_on_split", "revision", "weight", "ds_type", "trust_remote_code"))
"""Keys that the commands express, or that only affect how the files are read."""
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "roles_to_train": (["assistant"], ["assistant", "gpt"], ["gpt"]),
    "train_on_eos": ("turn",),
    "field_messages": ("messages", "conversations"),
    "message_field_role": ("role", "from"),
    "message_field_content": ("content", "value"),
    "message_property_mappings": ({"role": "role", "content": "content"}, {"role": "from", "content": "value"}),
    "chat_template": ("tokenizer_default",),
}
"""Values of axolotl's keys for which rows are read and trained on as here."""


def left_out_of_data(data: Any) -> list[str]:
    """Keys of axolotl's and TRL's data sets that choose rows or write prompts, and that the commands do not express."""
    return [
        f"datasets.{number}.{key}"
        for number, each in enumerate(data if isinstance(data, list) else [])
        for key in (each if isinstance(each, dict) else ())
        if key not in _READ and each[key]
        if not (key == "split" and str(each[key]).isidentifier())
        if each[key] not in _DEFAULTS.get(key, ())
        if not (key == "data_files" and each.get("path") in READERS)
        if not (key == "type" and str(each[key]).startswith("chat_template"))
        if not (key in ("type", "field") and text_column(data))
    ]
