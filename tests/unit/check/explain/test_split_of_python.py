"""Causes behind general lines of Python, data, tokenizers and tensors, told apart by values, frames and neighbours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

_MISSING = "FileNotFoundError: [Errno 2] No such file or directory: "
_DTYPES = "RuntimeError: mat1 and mat2 must have the same dtype, but got "
_STACK = "RuntimeError: stack expects each tensor to be equal size, but got "
_DEVICES = (
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
)
_SHORT = "IndexError: list index out of range"
_NONE = "AttributeError: 'NoneType' object has no attribute "
_BEYOND = "IndexError: index out of range in self"
_DDP = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
_UNDECODABLE = "UnicodeDecodeError: 'utf-8' codec can't decode byte "


def _raised(error: str, code: str = "tide()", file: str = "/x/moon.py", function: str = "rise") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_MISSING + "'/moon/tide'"), "file-missing"),
        (_raised(_MISSING + "'moon/tide.json'"), "path-is-relative"),
        (_raised(_MISSING + "'/moon/tide.json'"), "file-missing"),
        (_raised(_MISSING + "'~/moon/tide.json'"), "path-with-tilde"),
        (_raised(_MISSING + "'/moon/${TIDE}/7.json'"), "path-with-variable"),
        (_raised(_MISSING + "'/path/to/moon'"), "path-is-placeholder"),
        (_raised(_MISSING + "'/moon/model-00003-of-00007.safetensors'"), "shard-of-model-missing"),
        (_raised(_UNDECODABLE + "0x80 in position 0: invalid start byte"), "pickle-read-as-text"),
        (_raised(_UNDECODABLE + "0xff in position 0: invalid start byte"), "utf-16-read-as-utf-8"),
        (_raised(_UNDECODABLE + "0xd6 in position 77: invalid continuation byte"), "gbk-read-as-utf-8"),
        (_raised(_UNDECODABLE + "0x80 in position 77: invalid start byte"), "encoding"),
        (_raised(_SHORT), "list-index"),
        (_raised(_SHORT, "path = sys.argv[1]"), "argument-of-script-missing"),
        (_raised(_SHORT, "first = glob.glob(tide)[0]"), "no-file-found"),
        (_raised(_SHORT, 'answer = moon.split("tide")[1]'), "separator-not-in-text"),
        (_raised("ZeroDivisionError: division by zero"), "division-by-zero"),
        (_raised("ZeroDivisionError: division by zero", "sum(x) / len(x)"), "divided-by-empty-list"),
        (_raised(_NONE + "'tide'"), "none-used"),
        (_raised(_NONE + "'group'"), "no-match-of-pattern"),
        (_raised(_NONE + "'shape'", "h = img.shape[0]"), "image-not-read"),
        (_raised(_NONE + "'pad_token_id'", "x = self.tokenizer.pad_token_id"), "tokenizer-is-none"),
        (
            _raised("AttributeError: 'DistributedDataParallel' object has no attribute 'tide'"),
            "wrapped-model-attribute",
        ),
        (_raised(_DTYPES + "Float and BFloat16"), "linear-input-is-float32"),
        (_raised(_DTYPES + "BFloat16 and Float"), "linear-weights-are-float32"),
        (_raised(_DTYPES + "Float and BFloat16", file="/x/peft/tuners/moon.py"), "adapter-of-other-dtype"),
        (_raised(_DTYPES + "Double and Long"), "dtype-mix"),
        (_raised(_STACK + "[128] at entry 0 and [97] at entry 1"), "rows-of-other-length-stacked"),
        (_raised(_STACK + "[3, 7, 7] at entry 0 and [1, 7, 7] at entry 1"), "images-of-other-channels"),
        (_raised(_STACK + "[3, 7, 7] at entry 0 and [3, 7, 9] at entry 1"), "images-of-other-size"),
        (_raised(_STACK + "[7, 7] at entry 0 and [7, 9] at entry 1"), "collate"),
        (_raised(_DEVICES), "device-mix-named"),
        (_raised(_DEVICES, file="/x/torch/nn/functional.py", function="embedding"), "input-ids-on-cpu"),
        (_raised(_BEYOND, "e = self.wpe(moon)"), "position-beyond-table"),
        (_raised(_BEYOND, "e = self.embed_tokens(moon)"), "token-beyond-embedding"),
        (_raised(_DDP), "ddp-unused"),
        (_raised(f"{_DDP}\nParameters which did not receive grad for rank 7: moon.visual.tide"), "ddp-unused-vision"),
        (_raised(f"{_DDP}\nParameters which did not receive grad for rank 7: moon.tide"), "ddp-unused"),
        (_raised("jinja2.exceptions.TemplateError: System role not supported"), "template-without-system-role"),
    ],
)
def test_cause_behind_a_general_line(explained: Callable[..., Explanation], log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_value_of_the_message_is_in_the_headline(explained: Callable[..., Explanation]) -> None:
    log = _raised("ValueError: invalid literal for int() with base 10: '0,1,2,3'")

    assert "'0,1,2,3' is a list" in explained(log).headline()
