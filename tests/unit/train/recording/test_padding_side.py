"""Rows that are padded on the left, recorded beside the same rows padded on the right."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import ascendtune.align
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from bare_loop import model_of, rows_of

PAD = 5


def recorded(directory: Path, *, is_left: bool, seed: int = 0) -> Path:
    """Three steps of eight rows; directory of the recording."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ascendtune.align.record(model, directory=directory):
        for step in (1, 2, 3):
            rows = [torch.tensor(tokens) for tokens, _ in rows_of(step, seed)]
            longest = max(map(len, rows))
            ids, labels = torch.full((len(rows), longest), PAD), torch.full((len(rows), longest), -100)
            mask = torch.zeros_like(ids)
            for at, row in enumerate(rows):
                where = slice(longest - len(row), None) if is_left else slice(len(row))
                ids[at, where], labels[at, where], mask[at, where] = row, row, 1
                labels[at, where][0] = -100
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            loss = model(input_ids=ids, attention_mask=mask, position_ids=positions, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return directory


def compared(reference: Path, candidate: Path) -> TrainingComparison:
    sides = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(*sides, expected_noise(*sides))


def test_rows_padded_on_the_left_are_aligned_with_a_warning(tmp_path: Path) -> None:
    right, left = (recorded(tmp_path / str(is_left), is_left=is_left) for is_left in (False, True))
    found = compared(right, left)
    assert found.divergence is None and {"backward", "update"} <= found.dumps.agreeing
    warned = [each for each in found.findings if each.status not in ("ok", "unknown")]
    assert [(each.code, each.status) for each in warned] == [("data", "warning")]
    assert warned[0].measured.endswith("padded on another side")
    headers = [
        json.loads((each / "dump" / "step-0000001" / "rank_0.jsonl").read_text().splitlines()[0])
        for each in (right, left)
    ]
    assert headers[0]["row_hashes"] == headers[1]["row_hashes"] and "row_begins" not in headers[0]
    assert min(headers[1]["row_begins"]) == 0 < max(headers[1]["row_begins"])


def test_other_rows_padded_on_the_left_are_other_data(tmp_path: Path) -> None:
    right = recorded(tmp_path / "right", is_left=False)
    found = compared(right, recorded(tmp_path / "left", is_left=True, seed=1))
    assert found.divergence is not None and found.divergence.code == "data"
