"""The names in the file against those in the model: which part differs, and how to rename."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.state_dict import names_in

_LEAD = "RuntimeError: Error(s) in loading state_dict for Moon:"


def _said(missing: tuple[str, ...] = (), unexpected: tuple[str, ...] = ()) -> str:
    lines = [_LEAD]
    for word, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            listed = ", ".join(f'"{name}"' for name in names)
            lines.append(f"\t{word} key(s) in state_dict: {listed}.")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("missing", "unexpected", "part", "is_in_file"),
    [
        (("tide.weight", "tide.bias"), ("module.tide.weight", "module.tide.bias"), "module", True),
        (("module.tide.weight",), ("tide.weight",), "module", False),
        (("tide.weight",), ("_orig_mod.tide.weight",), "_orig_mod", True),
        (("sea.0.tide.weight",), ("sea.0._checkpoint_wrapped_module.tide.weight",), "_checkpoint_wrapped_module", True),
        (("tide.weight",), ("base_model.model.tide.weight",), "base_model.model", True),
        ((), ("module.tide.weight", "module.tide.bias"), "module", True),
    ],
)
def test_part_by_which_the_names_differ(
    missing: tuple[str, ...], unexpected: tuple[str, ...], part: str, is_in_file: bool
) -> None:
    names = names_in(_said(missing, unexpected))

    assert names is not None
    assert names.inserted == (part, is_in_file)
    assert part in names.headline()


def test_names_that_have_nothing_in_common_have_no_renaming() -> None:
    names = names_in(_said(("tide.weight",), ("cheese.bias",)))

    assert names is not None
    assert names.inserted is None
    assert names.remedy() is None
    assert "tide.weight" in names.headline() and "cheese.bias" in names.headline()


@pytest.mark.parametrize(
    ("missing", "unexpected", "code"),
    [
        (("tide.weight",), ("module.tide.weight",), "k.removeprefix('module.')"),
        (("module.tide.weight",), ("tide.weight",), "'module.' + k"),
        (("sea.tide.weight",), ("sea.module.tide.weight",), "k.replace('.module.', '.')"),
        (("sea.module.tide.weight",), ("sea.tide.weight",), "sea.tide.weight → sea.module.tide.weight"),
    ],
)
def test_renaming_is_the_first_remedy(
    explained: Callable[..., Explanation], missing: tuple[str, ...], unexpected: tuple[str, ...], code: str
) -> None:
    explanation = explained(_said(missing, unexpected))

    assert explanation.verdict.certainty == "cause"
    assert code in explanation.remedies()[0]


def test_an_adapter_is_told_from_a_model(explained: Callable[..., Explanation]) -> None:
    explanation = explained(_said(("tide.weight",), ("base_model.model.tide.lora_A.weight",)))

    assert "the file is an adapter" in explanation.headline()
    assert "PeftModel.from_pretrained" in explanation.remedies()[0]


def test_tables_that_older_releases_stored_are_left_out(explained: Callable[..., Explanation]) -> None:
    explanation = explained(_said((), ("text_model.embeddings.position_ids",)))

    assert "text_model.embeddings.position_ids" in explanation.headline()
    assert "strict=False" in explanation.remedies()[0]


def test_text_without_names_has_none() -> None:
    assert names_in("Error(s) in loading state_dict for Moon: nothing else") is None
