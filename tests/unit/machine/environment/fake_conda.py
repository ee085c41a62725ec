"""A stand-in for conda, which no package index of the tests offers: `env list`, `list`, `create --clone`, `remove`.

Its answers have the form of those of conda's source of August 2026. An environment is a directory with packages.json,
in the form that `conda list --json` prints, and conda-meta/history. FAKE_CONDA_LOSES names a package that a clone
lacks, FAKE_CONDA_FAILS a command that fails, FAKE_CONDA_ANSWER the end of its stdout, FAKE_CONDA_WAITS a pipe that is
read to its end before a clone. Environments elsewhere than in `envs` are not listed, as with `register_envs: false`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path


def main() -> int:
    words, root = sys.argv[1:], Path(os.environ["FAKE_CONDA_ROOT"])
    if words[0] == os.environ.get("FAKE_CONDA_FAILS"):
        print('{"progress": 1}\0' + os.environ.get("FAKE_CONDA_ANSWER", ""))
        print("CondaError: disk quota exceeded", file=sys.stderr)
        return 1
    option = {name: value for name, value in pairwise(words) if name.startswith("--")}
    if words[:2] == ["env", "list"]:
        found = [*sorted((root / "envs").iterdir()), *sorted((root / "envs").glob("*/envs/*"))]
        print(json.dumps({"envs": [str(root), *map(str, found)]}))
    elif words[0] == "list":
        print((Path(option["--prefix"]) / "packages.json").read_text())
    elif words[0] == "create":
        if pipe := os.environ.get("FAKE_CONDA_WAITS"):
            Path(pipe).read_bytes()
        target = Path(option["--prefix"]) if "--prefix" in option else root / "envs" / option["--name"]
        shutil.copytree(option["--clone"], target)
        rows = json.loads((target / "packages.json").read_text())
        kept = [row for row in rows if row["name"] != os.environ.get("FAKE_CONDA_LOSES")]
        (target / "packages.json").write_text(json.dumps(kept))
    elif words[0] == "remove":
        shutil.rmtree(option["--prefix"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
