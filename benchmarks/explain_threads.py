"""How often `explain` finds the first cause in real failure logs: python benchmarks/explain_threads.py FOLDER

FOLDER holds NNN.log files and index.tsv with the columns id, source, platform, label, guilty. Right is an answer that
knows something about the failure and shows the line that holds the `guilty` words. Logs in FOLDER/healthy must be
called healthy. The logs themselves are other people's text and stay out of the repository.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from ascendtune.check.explain.explain import explain


def main(folder: Path) -> int:
    """Print what was missed; returns 1 when anything was."""
    with (folder / "index.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    missed = [row for row in rows if not _is_right(folder / f"{row['id']}.log", row["guilty"])]
    healthy = sorted((folder / "healthy").glob("*.log"))
    alarmed = [log for log in healthy if not explain([str(log)]).is_healthy]
    for row in missed:
        print(f"missed {row['id']}: {row['label']}")
    for log in alarmed:
        print(f"alarmed by {log.name}")
    print(f"first causes: {len(rows) - len(missed)} of {len(rows)}")
    print(f"healthy logs: {len(healthy) - len(alarmed)} of {len(healthy)}")
    return 1 if missed or alarmed else 0


def _is_right(log: Path, guilty: str) -> bool:
    first = explain([str(log)]).verdict.first
    return first is not None and first.hit is not None and guilty in first.text


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
