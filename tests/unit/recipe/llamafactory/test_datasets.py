"""dataset_info.json: the translation of an entry, and its faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe

Read = Callable[..., dict[str, Any]]
Write = Callable[..., Path]

TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
OUR_TAGS = {"from": "role", "value": "content", "human": "user", "gpt": "assistant"}


@pytest.mark.parametrize(
    ("stage", "entry", "spec"),
    [
        ("sft", {}, {"format": "alpaca", "columns": {"history": None, "system": None}}),
        (
            "sft",
            {"columns": {"prompt": "q", "response": "a", "system": "system"}},
            {"format": "alpaca", "columns": {"instruction": "q", "input": None, "history": None, "output": "a"}},
        ),
        (
            "sft",
            {"columns": {"query": "q", "response": "a"}},
            {
                "format": "alpaca",
                "columns": {"instruction": "q", "input": None, "history": None, "system": None, "output": "a"},
            },
        ),
        ("sft", {"formatting": "sharegpt"}, {"format": "sharegpt", "columns": {"system": None, "tools": None}}),
        (
            "sft",
            {"formatting": "openai", "columns": {"messages": "messages", "tools": "tools"}, "tags": TAGS},
            {"format": "sharegpt", "columns": {"conversations": "messages", "system": None}, "tags": OUR_TAGS},
        ),
        ("pt", {"columns": {"prompt": "text"}}, {"format": "text"}),
        ("pt", {"columns": {"prompt": "content"}}, {"format": "text", "columns": {"text": "content"}}),
        (
            "dpo",
            {"ranking": True, "columns": {"prompt": "q", "chosen": "good", "rejected": "bad"}},
            {
                "format": "preference",
                "columns": {
                    "prompt": None, "conversations": None, "messages": None, "margin": None, "tools": None,
                    "instruction": "q", "input": None, "history": None, "system": None, "chosen": "good",
                    "rejected": "bad",
                },
            },
        ),
        (
            "kto",
            {"formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"}},
            {
                "format": "unpaired",
                "columns": {
                    "completion": None, "instruction": None, "messages": None, "label": None,
                    "conversations": "messages", "system": None, "tools": None, "kto_tag": "label",
                },
            },
        ),
        (
            "sft",
            {"hf_hub_url": "o/d", "file_name": None, "split": "test", "folder": "zh", "num_samples": 9},
            {"path": "o/d", "split": "test", "subset": "zh", "limit": 9},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_an_entry_becomes_a_data_set(stage: str, entry: dict[str, Any], spec: dict[str, Any], read: Read) -> None:
    values = read({"stage": stage, "dataset": "it"}, {"it": {"file_name": "it.json", **entry}})
    (found,) = values["data"]["train"]
    assert {key: found.get(key) for key in spec} == spec
    assert set(found) <= {"path", *spec} | ({"format", "columns"} if "path" in spec else set())


def test_the_smaller_number_of_rows_counts(read: Read) -> None:
    values = read(
        {"dataset": "it, rows", "max_samples": 5, "default_system": "Be kind."},
        {"it": {"file_name": "f", "num_samples": 3}},
    )
    assert [each["limit"] for each in values["data"]["train"]] == [3, 5]
    assert [each["system"] for each in values["data"]["train"]] == ["Be kind."] * 2


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"hf_hub_url": "o/d", "split": "test[:9]"}, {"split": "test", "limit": 9}),
        ({"file_name": "f", "split": "train[:9]", "num_samples": 4}, {"limit": 4}),
        ({"file_name": "f", "split": "train[:3]", "num_samples": 4}, {"limit": 3}),
    ],
)
def test_slice_of_the_first_rows_is_their_number(entry: dict[str, Any], expected: dict[str, Any], read: Read) -> None:
    (found,) = read({"dataset": "it"}, {"it": entry})["data"]["train"]
    assert {key: found.get(key) for key in expected} == expected and found.get("split") == expected.get("split")


def test_key_that_llamafactory_does_not_read_is_said_to_have_no_effect(write: Write) -> None:
    info = {"it": {"file_name": "it.json", "file_sha1": "0f", "description": "rows"}}
    recipe = Recipe.load(write({"dataset": "it"}, info))
    assert {note.partition(":")[0] for note in recipe.notes if "does not read" in note} == {
        "it.file_sha1",
        "it.description",
    }


def test_names_of_the_hub_need_no_list(read: Read) -> None:
    (found,) = read({"dataset": "someone/rows", "dataset_dir": "ONLINE"})["data"]["train"]
    assert found["path"] == "someone/rows" and found["format"] == "alpaca"


@pytest.mark.parametrize(
    ("stage", "entry", "said", "remedy", "on_line"),
    [
        ("sft", {"promt": "q"}, "unknown key 'it.promt'", "the valid names are: file_name", "promt"),
        ("sft", {"columns": {"promt": "q"}}, "unknown key 'it.columns.promt'", "did you mean 'prompt'?", "promt"),
        ("sft", {"formatting": "sharegtp"}, "it.formatting: sharegtp", "did you mean 'sharegpt'?", "formatting"),
        ("sft", {"columns": ["prompt"]}, "it.columns", "a mapping", "columns"),
        ("sft", {"num_samples": "many"}, "it.num_samples", "whole number", "num_samples"),
        ("sft", {"num_samples": 0}, "it.num_samples", "whole number", "num_samples"),
        ("sft", {"columns": {"tools": "t", "prompt": "q", "response": "a"}}, "tools in rows", "sharegpt", '"tools"'),
        ("sft", {"columns": {"prompt": "q"}}, "columns has no 'response'", "add", "columns"),
        ("sft", {"ranking": True}, "contains pairs, which stage: sft cannot use", "dpo", "ranking"),
        ("dpo", {}, "contains no pairs", "ranking", '"it": {'),
        ("kto", {}, "columns has no 'kto_tag'", "add", '"it": {'),
        ("pt", {}, "takes one column of text", "prompt", '"it": {'),
        ("sft", {"columns": {"messages": "m", "images": "i"}, "formatting": "sharegpt"}, "images", "text", "images"),
        ("sft", {"formatting": "sharegpt", "tags": {"user_tag": "u"}}, "tags has no role_tag", "role_tag", "tags"),
        ("sft", {"split": "train[5:9]"}, "split", "[:N]", "split"),
        ("sft", {"prompt": "q"}, "unknown key 'it.prompt'", "below columns", "prompt"),
        ("sft", {"role_tag": "q"}, "unknown key 'it.role_tag'", "below tags", "role_tag"),
        ("sft", {"script_url": "x", "file_name": ""}, "script_url", "file_name", "script_url"),
        ("sft", {"ms_hub_url": "x", "file_name": ""}, "hub", "hf_hub_url", "ms_hub_url"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_dataset_info_entry_is_refused_with_its_line(
    stage: str, entry: dict[str, Any], said: str, remedy: str, on_line: str, write: Write
) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write({"stage": stage, "dataset": "it"}, {"it": {"file_name": "it.json", **entry}}))
    assert said in caught.value.what and remedy in caught.value.remedy
    path, line = str(caught.value.where).split(":")
    assert on_line in Path(path).read_text().splitlines()[int(line) - 1]


def test_a_name_that_is_not_in_the_list(write: Write) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write({"dataset": "rwos"}))
    assert caught.value.code == "unknown-data-set" and "rwos" in caught.value.what
    assert caught.value.remedy == "did you mean 'rows'?" and caught.value.where == "theirs.yaml:5"


@pytest.mark.parametrize(("asked", "path"), [("1", "AI-ModelScope/it"), ("0", "someone/it")])
def test_each_hub_has_its_name(asked: str, path: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_MODELSCOPE_HUB", asked)
    recipe = Recipe.load(
        write({"dataset": "it"}, {"it": {"ms_hub_url": "AI-ModelScope/it", "hf_hub_url": "someone/it"}})
    )
    assert recipe.data.train[0].path == path


@pytest.mark.parametrize(
    ("asked", "entry", "remedy"),
    [
        ("0", {"ms_hub_url": "a/b"}, "set USE_MODELSCOPE_HUB=1, or give hf_hub_url"),
        ("1", {"hf_hub_url": "a/b"}, "unset USE_MODELSCOPE_HUB, or give ms_hub_url"),
        ("1", {"om_hub_url": "a/b"}, "download it and give file_name, or give ms_hub_url"),
    ],
)
def test_a_name_on_another_hub(
    asked: str, entry: dict[str, str], remedy: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USE_MODELSCOPE_HUB", asked)
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write({"dataset": "it"}, {"it": entry}))
    assert caught.value.code == "recipe-key-missing"
    assert caught.value.remedy == remedy


@pytest.mark.parametrize("directory", ["nowhere", "REMOTE:someone/list"])
def test_missing_dataset_info_names_the_ways_out(directory: str, write: Write) -> None:
    with pytest.raises(RecipeError, match=r"dataset_info\.json|on the hub"):
        Recipe.load(write({"dataset_dir": directory}))


@pytest.mark.parametrize("text", ["", "[]"])
def test_a_list_that_is_none_is_not_called_a_recipe(text: str, write: Write) -> None:
    path = write()
    Path("data/dataset_info.json").write_text(text)
    with pytest.raises(RecipeError, match="the list of data sets is") as caught:
        Recipe.load(path)
    assert "init" not in caught.value.remedy and caught.value.where == "data/dataset_info.json"
