"""Rows for preference and reward learning, written from a seed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

WORDS = ["atom", "balanced", "capital", "clips", "diet", "friends", "healthy", "Paris", "sleep", "tips", "天气", "公园"]


def write_pairs(path: Path, count: int, *, margins: bool = False) -> Path:
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        row: dict[str, Any] = {"prompt": _text(draw, 4), "chosen": "good " + _text(draw, 5), "rejected": _text(draw, 7)}
        rows.append(row | ({"margin": draw.random()} if margins else {}))
    return _write(path, rows)


def write_singles(path: Path, count: int) -> Path:
    draw = random.Random(1)
    rows = [
        {"prompt": _text(draw, 4), "completion": _text(draw, 6), "label": draw.random() < 0.6} for _ in range(count)
    ]
    return _write(path, rows)


def _text(draw: random.Random, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
