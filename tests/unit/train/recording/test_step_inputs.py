"""The hash of a recorded step's token ids, and the number format of its products."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from ascendtune.train.recording.step_inputs import StepInputs, hash_of_parts

ROWS = [[5, 6, 7, 8], [9, 5, 70000], [3, 3, 4, 1, 2], [11, 12]]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions, self.embed = nn.Embedding(16, 4), nn.Embedding(1 << 17, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1])[None]
        return self.head(self.positions(places) + self.embed(input_ids))


def padded(rows: Sequence[list[int]], pad: int, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    ids, mask = torch.full((len(rows), longest), pad), torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(longest - len(row), None) if left else slice(len(row))
        ids[number, place], mask[number, place] = torch.tensor(row), 1
    return ids, mask


def step(batches: Sequence[Sequence[list[int]]], *, pad: int = 0, left: bool = False, mask: bool = True) -> list[float]:
    """One rank's part of a step of several micro-batches."""
    model = Model()
    inputs = StepInputs(model)
    for rows in batches:
        ids, of_tokens = padded(rows, pad, left=left)
        model(ids, attention_mask=of_tokens if mask else None)
    with torch.no_grad():
        model(torch.tensor([[42, 43]]))
    return inputs.end_step()


def test_hash_is_that_of_the_tokens_however_they_are_divided() -> None:
    whole = hash_of_parts([step([ROWS])])
    assert whole is not None and whole.startswith("tokens-")
    for of_ranks in (
        [step([ROWS[::-1]])],
        [step([ROWS[:2], ROWS[2:]])],
        [step([ROWS[:1]]), step([ROWS[1:3], ROWS[3:]])],
        [step([ROWS], pad=99)],
        [step([ROWS], pad=99, left=True)],
        [step([ROWS], mask=False)],
        # Packed into one row.
        [step([[[each for row in ROWS for each in row]]])],
        # A rank without rows.
        [step([ROWS]), step([])],
    ):
        assert hash_of_parts(of_ranks) == whole


@pytest.mark.parametrize(
    "rows", [ROWS[1:], [*ROWS[:3], [11, 13]], [*ROWS[1:], ROWS[1]], [*ROWS[:1], [9, 5, 70000 - (1 << 16)], *ROWS[2:]]]
)
def test_other_tokens_have_another_hash(rows: list[list[int]]) -> None:
    assert hash_of_parts([step([rows])]) != hash_of_parts([step([ROWS])])


def test_every_step_has_its_own_hash() -> None:
    model = Model()
    inputs = StepInputs(model)
    found = []
    for rows in (ROWS, ROWS[:1], ROWS):
        model(padded(rows, 0, left=False)[0])
        found.append(hash_of_parts([inputs.end_step()]))
    assert found[0] == found[2] != found[1]
    inputs.remove()
    model(padded(ROWS, 0, left=False)[0])
    assert hash_of_parts([inputs.end_step()]) is None


def test_model_without_token_ids_has_no_hash() -> None:
    model = nn.Linear(4, 1)
    inputs = StepInputs(model)
    model(torch.ones(2, 4))
    assert hash_of_parts([inputs.end_step()]) is None
    assert inputs.precision == "fp32"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None])
def test_precision_is_the_coarsest_of_the_products(dtype: torch.dtype | None) -> None:
    model = Model()
    inputs = StepInputs(model)
    assert inputs.precision is None
    # The embeddings stay in fp32.
    with torch.autocast("cpu", dtype) if dtype else nullcontext():
        model(padded(ROWS, 0, left=False)[0])
    assert inputs.precision == {torch.bfloat16: "bf16", torch.float16: "fp16", None: "fp32"}[dtype]
