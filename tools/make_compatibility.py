"""Write machine/compatibility.toml from a table of collected facts: `python tools/make_compatibility.py FACTS.csv`.

The CSV has the columns kind, component, version, requires, required_version, source, notes; only the kinds that the
doctor compares are taken.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src/ascendtune/machine/compatibility.toml"
_FIRST_TORCH = (2, 1)
"""Older pairs are of no use to anybody who trains with this package."""

Row = dict[str, str]


def main() -> None:
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sources = list(
        dict.fromkeys(row["source"] for row in rows if row["kind"] in ("torch_npu", "torch_npu-compat", "cann-driver"))
    )
    parts = [
        "# Which releases go together. Written by tools/make_compatibility.py; `source` counts in `sources` from 0.",
        f"sources = {json.dumps(sources, indent=2, ensure_ascii=False)}",
        *_wheels(rows, sources),
        *_looser(rows, sources),
        *_drivers(rows, sources),
    ]
    TARGET.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _wheels(rows: list[Row], sources: list[str]) -> Iterable[str]:
    wheels: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["kind"] == "torch_npu":
            wheels.setdefault(row["version"], {})[row["requires"]] = row
    for version, needs in wheels.items():
        if not {"torch", "CANN"} <= needs.keys() or not re.fullmatch(r"[\d.]+(\.post\d+)?", version):
            continue
        torch = re.match(r"[\d.]+", needs["torch"]["required_version"])
        if torch is None or tuple(map(int, torch[0].split(".")[:2])) < _FIRST_TORCH:
            continue
        product = re.search(r"(\d[\w.]*)$", needs["torch"]["notes"])
        python = re.findall(r"\d+\.\d+", needs["python"]["required_version"]) if "python" in needs else []
        yield _table(
            "torch_npu",
            version=version,
            torch=torch[0],
            cann=needs["CANN"]["required_version"].removeprefix("CANN "),
            python=python,
            product=product[1] if product else "",
            source=sources.index(needs["CANN"]["source"]),
        )


def _looser(rows: list[Row], sources: list[str]) -> Iterable[str]:
    for row in rows:
        if row["kind"] == "torch_npu-compat":
            cann = [each.strip() for each in row["required_version"].split(",")]
            product = re.search(r"\d[\w.]*", row["version"])
            if product:
                yield _table("also", product=product[0], cann=cann, source=sources.index(row["source"]))


def _drivers(rows: list[Row], sources: list[str]) -> Iterable[str]:
    for row in rows:
        named = re.findall(r"(?<![\w>=.])\d+\.\d+[\w.-]*", row["version"])
        if row["kind"] != "cann-driver" or not named or row["notes"] not in ("paired", "compatible"):
            continue
        drivers = re.findall(r"\d+\.\d+\.\w+(?:\.\w+)*", row["required_version"])
        # Where a release names drivers by product, the first is that of the training servers.
        drivers = drivers[:1] if ";" in row["required_version"] else drivers
        for cann in named:
            if drivers and int(cann.split(".")[0]) >= 8:
                yield _table(
                    "driver", cann=cann, versions=drivers, kind=row["notes"], source=sources.index(row["source"])
                )


def _table(name: str, **values: object) -> str:
    return "\n".join(
        [f"[[{name}]]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())]
    )


if __name__ == "__main__":
    main()
