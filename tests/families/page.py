"""docs/models.md: a line for each model type."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from families.measure import OWN_ERRORS, STEP_TOLERANCE, STEPS, TOLERANCE, TUNERS, Family, Tried

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def write_page(families: list[Family], not_tried: Iterable[str]) -> None:
    import torch
    import transformers

    version = torch.__version__.partition("+")[0]
    families = sorted(families, key=lambda family: family.name)
    made = [family for family in families if not family.cannot_be_made]
    reasons: dict[str, int] = {}
    rows = [_row(family, reasons) for family in made]
    cannot = [f"- `{family.name}`: {family.cannot_be_made}" for family in families if family.cannot_be_made]
    wrong = [
        f"`{family.name}` ({tuner})"
        for family in made
        for tuner, tried in zip(TUNERS, family.tried(), strict=True)
        if _mark(tried, {}) == "✗"
    ]
    different = ", ".join(wrong) or "none"
    PAGE.write_text(
        f"""# Models

Written by `make families` with transformers {transformers.__version__} and torch {version}, on CPU in fp32.

Every model type that transformers loads as a causal language model is made as a tiny random model, with weights that
make soft caps, scales and windows visible, and trained in full, with LoRA and with OFT. Losses and the gradients of
all weights are held against the model's own eager attention, which gets one row at a time without padding, in fp64
where the model computes in it (tolerance {TOLERANCE:g}, or {OWN_ERRORS:.0f} times what the model's own fp32 is off).
Then come {STEPS} steps of AdamW, whose losses must be those of the reference in fp32 or in fp64 (tolerance
{STEP_TOLERANCE:g}, or what these two are apart), the exported files loaded by transformers and PEFT, `merge`,
and answers in a batch and one by one.

✓: all of it agrees. A number: refused in words, by training, `merge` or `generate`, for the reason below.
✗: something differs.
!: training agrees; PEFT loads other weights from the exported adapter, and the run says so.
`packed`: rows share a sequence. `padded`: each row is a sequence of its own, which takes more time for short rows.
`fused`: the head is computed together with the loss, at labelled positions only.

{len(made)} types: {sum("✓ | ✓ |" in row for row in rows)} right in full and with LoRA. Silently different: {different}.
{_of_oft(made)}

| type | {" | ".join(TUNERS)} | rows | attention | loss |
| --- | {"--- | " * len(TUNERS)}--- | --- | --- |
"""
        + "\n".join(rows)
        + "\n\n## Reasons\n\n"
        + "\n".join(f"{number}. {reason}" for reason, number in reasons.items())
        + "\n\n## Not tried\n\nTypes that read images or sound, which are out of scope: "
        + ", ".join(f"`{name}`" for name in not_tried)
        + ".\n\nTypes of which this version of transformers makes no tiny model that computes:\n\n"
        + "\n".join(cannot)
        + "\n"
    )


def _of_oft(made: list[Family]) -> str:
    measured = [family.oft for family in made if family.oft is not None]
    right = sum(_mark(each, {}) == "✓" for each in measured)
    rest = "" if len(measured) == len(made) else f" of {len(measured)} that were measured; an empty field is not"
    return f"{right}{rest} right with OFT."


def _row(family: Family, reasons: dict[str, int]) -> str:
    marks = [_mark(tried, reasons) for tried in family.tried()]
    right = next((tried for tried in family.tried() if tried and tried.attention), None)
    how = ["", "", ""]
    if right is not None:
        how = [
            "packed" if right.packed else "padded",
            right.attention,
            "fused" if "fused" in right.loss else "own logits",
        ]
    return f"| {' | '.join([family.name, *marks, *how])} |"


def _mark(tried: Tried | None, reasons: dict[str, int]) -> str:
    if tried is None:
        return ""
    if tried.failed or tried.different:
        return "!" if any("of this adapter differently" in said for said in tried.said) else "✗"
    return str(reasons.setdefault(tried.refused, len(reasons) + 1)) if tried.refused else "✓"
