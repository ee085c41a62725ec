"""The tables against what was noted of LLaMA-Factory's own declarations."""

from __future__ import annotations

import ast
import csv
from pathlib import Path
from typing import Any

import pytest

from ascendtune.recipe.llamafactory.ignored_keys import IGNORED_KEYS
from ascendtune.recipe.llamafactory.keys import TRANSLATED
from ascendtune.recipe.llamafactory.unsupported import UNSUPPORTED_KEYS

# transformers itself names a run without a name; and whoever writes gradient_checkpointing: false is told that it does
# not turn recomputing off, in theirs as in ours.
_OTHERWISE = {"output_dir", "gradient_checkpointing"}


@pytest.fixture(scope="session")
def declared(shared: Path) -> dict[str, Any]:
    """Key -> default, of every key that the examples of v0 use."""
    with (shared / "knowledge" / "llamafactory-keys.tsv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["schema"] == "v0"]
    return {row["key"]: ast.literal_eval(row["default"]) for row in rows}


def test_every_key_of_their_examples_is_in_one_table(declared: dict[str, Any]) -> None:
    assert len(declared) > 100
    for key in declared:
        assert sum(key in table for table in (TRANSLATED, IGNORED_KEYS, UNSUPPORTED_KEYS)) == 1, key


def test_their_defaults_are_theirs(declared: dict[str, Any]) -> None:
    ours = {
        **{key: found.default for key, found in TRANSLATED.items()},
        **{key: default for key, (default, _) in IGNORED_KEYS.items()},
        **{key: found.default for key, found in UNSUPPORTED_KEYS.items()},
    }
    different = {key: (ours[key], default) for key, default in declared.items() if ours[key] != default}
    assert set(different) <= _OTHERWISE, different
