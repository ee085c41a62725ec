"""xformers lists a reason for each of its attention operators: the nearest operator's tells what to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_HEADER = (
    "NotImplementedError: No operator found for `memory_efficient_attention_{}` with inputs:\n"
    "     query       : shape=(2, 77, 7, 64) (torch.{})\n"
    "     key         : shape=(2, 77, 7, 64) (torch.{})\n"
    "     attn_bias   : <class 'NoneType'>\n"
    "     p           : 0.0\n"
)
_OLD = "requires device with capability >= (8, 0) but your GPU has capability (7, 0) (too old)"
_BF16 = "bf16 is only supported on A100+ GPUs"
_GROUPED = "operator does not support BMGHK format"
_FP32 = "dtype=torch.float32 (supported: {torch.bfloat16, torch.float16})"
_NOT_BUILT = "operator wasn't built - see `python -m xformers.info` for more info"
_LARGE = "max(query.shape[-1], value.shape[-1]) > 256"
_BIAS = "attn_bias.stride(-2) % 8 != 0 (attn_bias.stride() = (77, 77, 77, 1))"


def _refused(dtype: str, direction: str = "forward", **operators: tuple[str, ...]) -> str:
    rows = (f"`{name}@0.7` is not supported because:\n    " + "\n    ".join(each) for name, each in operators.items())
    return _HEADER.format(direction, dtype, dtype) + "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_refused("bfloat16", fa2F=(_OLD, _BF16), cutlassF=(_BF16,)), "xformers-bf16-on-older-gpu"),
        (_refused("bfloat16", cutlassF=(_BF16,), smallkF=(_LARGE, _BF16)), "xformers-bf16-on-older-gpu"),
        (_refused("float16", "backward", fa2B=(_OLD, _GROUPED), cutlassB=(_GROUPED,)), "xformers-grouped-heads"),
        (_refused("float16", fa3F=("requires device with capability <= (9, 0) but your GPU has capability (12, 0)",)),
         "xformers-gpu-capability"),
        (_refused("float16", fa2F=(_LARGE,), cutlassF=(_GROUPED, _BIAS)), "xformers-inputs"),
        (_refused("bfloat16", cutlassF=(_GROUPED, _BF16)), "xformers-bf16-on-older-gpu"),
        (_refused("float32", fa2F=(_FP32,), smallkF=(_LARGE, "triton is not available")), "xformers-inputs"),
        (_refused("float16", fa2F=(_OLD, _LARGE), cutlassF=(_BIAS,)), "xformers-inputs"),
        (_refused("float16", fa2F=(_NOT_BUILT,), cutlassF=(_BIAS, _LARGE)), "xformers-inputs"),
        (_refused("float16", fa2F=(_OLD, _NOT_BUILT), cutlassF=(_NOT_BUILT,), smallkF=(_LARGE,)), "xformers-not-built"),
        (_refused("float32", cutlassF=("device=cpu (supported: {'cuda'})",), smallkF=(_LARGE,)), "xformers-on-cpu"),
        (_HEADER.format("forward", "float16", "float16"), "attention-kernel"),
        ("ValueError: Operator `memory_efficient_attention` does not support inputs:\n"
         "     query       : shape=(2, 77, 7, 64) (torch.bfloat16)\n"
         f"`fa2F@0.7` is not supported because:\n    {_OLD}\n    {_BF16}\n", "xformers-bf16-on-older-gpu"),
    ],
)  # fmt: skip
def test_nearest_operator_decides(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_headline_names_the_capability_or_the_reason(explained: Explained) -> None:
    old = explained(_refused("bfloat16", fa2F=(_OLD, _BF16), cutlassF=(_BF16,)))
    bias = explained(_refused("float16", fa2F=(_OLD, _LARGE), cutlassF=(_BIAS,)))

    assert "capability 7.0" in old.headline()
    assert "float16 instead of bfloat16" in old.remedies()[0]
    assert "cutlassF@0.7" in bias.headline()
    assert "stride(-2) % 8 != 0" in bias.headline()
    assert "capability" not in bias.headline()


def test_reasons_behind_a_rank_are_read(explained: Explained) -> None:
    lines = _refused("bfloat16", fa2F=(_OLD, _BF16), cutlassF=(_BF16,)).splitlines()

    explanation = explained("".join(f"[rank3]: {line}\n" for line in lines))

    assert entry_of(explanation) == "xformers-bf16-on-older-gpu"
