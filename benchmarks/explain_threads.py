"""How often `explain` finds the first cause in real failure logs: python benchmarks/explain_threads.py FOLDER

FOLDER holds NNN.log files and index.tsv with the columns id, source, platform, label, guilty. Right is an answer that
shows the line that holds the `guilty` words; how many of them are known by more than their own words is said as well.
Logs in FOLDER/healthy must be called healthy. The logs themselves are other people's text and stay out of the
repository.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.explain import explain


def main(folder: Path) -> int:
    """Print what was missed; returns 1 when anything was."""
    with (folder / "index.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    shown = {row["id"]: explain([str(folder / f"{row['id']}.log")]).verdict.first for row in rows}
    missed = [row for row in rows if not _is_right(shown[row["id"]], row["guilty"])]
    unknown = [row for row in rows if row not in missed and _is_in_its_own_words(shown[row["id"]])]
    healthy = sorted((folder / "healthy").glob("*.log"))
    alarmed = [log for log in healthy if not explain([str(log)]).is_healthy]
    for row in missed:
        print(f"missed {row['id']}: {row['label']}")
    for log in alarmed:
        print(f"alarmed by {log.name}")
    print(f"first causes: {len(rows) - len(missed)} of {len(rows)}, {len(unknown)} of them in their own words only")
    print(f"healthy logs: {len(healthy) - len(alarmed)} of {len(healthy)}")
    return 1 if missed or alarmed else 0


def _is_right(first: Event | None, guilty: str) -> bool:
    return first is not None and guilty in first.text


def _is_in_its_own_words(first: Event | None) -> bool:
    return first is not None and first.hit.entry.kind in ("detail", "unknown")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
