"""Code that a package puts in place of another's: which package, and when that is the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    tide()\n{error}\n'
_PACKAGES = "/v/lib/python3.11/site-packages/"
_NO_ATTRIBUTE = "AttributeError: 'MoonOutput' object has no attribute 'tide'"


@pytest.mark.parametrize(
    ("file", "function", "error", "entry"),
    [
        ("unsloth_zoo/temporary_patches/moon.py", "forward", _NO_ATTRIBUTE, "patch-by-unsloth"),
        (
            "unsloth/models/moon.py",
            "Moon_fast_forward",
            "ValueError: not enough values to unpack (expected 3, got 2)",
            "patch-by-unsloth",
        ),
        ("liger_kernel/transformers/model/moon.py", "lce_forward", _NO_ATTRIBUTE, "patch-of-another-release"),
        ("axolotl/monkeypatch/moon.py", "patch_moon", _NO_ATTRIBUTE, "patch-of-another-release"),
        (
            "verl/models/transformers/monkey_patch.py",
            "moon",
            "TypeError: _tide() missing 1 required positional argument: 'query_length'",
            "patch-of-another-release",
        ),
        ("mindspeed/patch_utils.py", "moon", _NO_ATTRIBUTE, "patch-by-mindspeed"),
        ("axolotl/utils/moon.py", "rise", _NO_ATTRIBUTE, "attribute-missing"),
        ("transformers/models/moon.py", "forward", _NO_ATTRIBUTE, "attribute-missing"),
        (
            "unsloth/models/moon.py",
            "rise",
            "AttributeError: 'str' object has no attribute 'tide'",
            "text-or-table-attribute",
        ),
        (
            "unsloth/models/llama.py",
            "LlamaAttention_fast_forward",
            "AttributeError: 'LlamaAttention' object has no attribute 'rotary_emb'",
            "api-renamed",
        ),
    ],
)
def test_a_patch_that_does_not_fit_is_told_from_other_code(
    explained: Explained, file: str, function: str, error: str, entry: str
) -> None:
    log = _TRACE.format(file=_PACKAGES + file, function=function, error=error)

    assert entry_of(explained(log)) == entry


def test_a_patch_that_the_message_names_is_known_by_the_name_of_its_function(explained: Explained) -> None:
    error = "TypeError: lce_forward() got an unexpected keyword argument 'num_items_in_moon'"
    log = _TRACE.format(file=_PACKAGES + "transformers/trainer.py", function="compute_loss", error=error)

    assert explained(log).headline().startswith("liger_kernel replaces functions of transformers by its own")


def test_a_patch_of_trl_names_trl(explained: Explained) -> None:
    log = _TRACE.format(file=_PACKAGES + "axolotl/monkeypatch/trl/moon.py", function="rise", error=_NO_ATTRIBUTE)

    assert "does not fit the installed trl" in explained(log).headline()


@pytest.mark.parametrize("name", ["TransformerConfig", "MLATransformerConfig"])
def test_a_field_that_a_configuration_of_megatron_lacks_is_not_put_on_transformers(
    explained: Explained, name: str
) -> None:
    log = _TRACE.format(
        file="/x/moon.py", function="rise", error=f"AttributeError: '{name}' object has no attribute 'tide'"
    )

    assert entry_of(explained(log)) == "megatron-config-attribute"
