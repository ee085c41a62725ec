"""Stop tokens of other programs after training with a template whose turn end differs from the base's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.data.stop_ids import add_stop_ids
from ascendtune.data.tokenizer import Tokenizer

_CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def _model(make_model: Callable[..., Path], listed: object, template: str | None) -> tuple[Path, int, int]:
    """A directory, and the ids of </s> and <|im_end|>; `listed` names them by `e` and `t`."""
    directory = make_model(chat_template=template)
    tokenizer = Tokenizer.load(directory)
    numbers = {text: tokenizer.id_of(text) for text in ("</s>", "<|im_end|>")}
    end, turn = numbers["</s>"], numbers["<|im_end|>"]
    assert end is not None and turn is not None
    ids = {"e": end, "t": turn}
    given = [ids[each] for each in listed] if isinstance(listed, list) else ids.get(str(listed))
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": given}))
    return directory, end, turn


@pytest.mark.parametrize(
    ("listed", "expected"), [("e", "et"), (["e"], "et"), (None, "te"), (["t", "e"], "te"), (["e", "t"], "et")]
)
def test_turn_end_is_added_to_the_tokens_that_end_a_text(
    listed: object, expected: str, make_model: Callable[..., Path]
) -> None:
    directory, end, turn = _model(make_model, listed, _CHATML)
    before = (directory / "generation_config.json").read_bytes()
    add_stop_ids(directory)
    found = json.loads((directory / "generation_config.json").read_text())
    assert found == {"temperature": 0.6, "eos_token_id": [{"e": end, "t": turn}[each] for each in expected]}
    if isinstance(listed, list) and len(listed) == 2:
        assert (directory / "generation_config.json").read_bytes() == before


@pytest.mark.parametrize("template", [None, "{{ broken"])
def test_config_stays_without_a_template_that_can_be_used(
    template: str | None, make_model: Callable[..., Path]
) -> None:
    directory, end, _ = _model(make_model, "e", template)
    add_stop_ids(directory)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == end


def test_model_that_generates_nothing_gets_no_config(make_model: Callable[..., Path]) -> None:
    directory = make_model(chat_template=_CHATML)
    add_stop_ids(directory)
    assert not (directory / "generation_config.json").exists()
