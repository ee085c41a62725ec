"""Phase of a rank at its last line, and the remedy for it."""

from __future__ import annotations

import re

FINISHED, SETTING_UP = "finished", "setting up the process group"
_PHASES = (
    (
        FINISHED,
        re.compile(
            # After transformers' "Training completed. Do not forget …" rank 0 still saves the model.
            r"\btraining (?:has |is |was )?(?:successfully )?(?:finished|completed?|done|ended)\b"
            r"(?! (?:for |of )?(?:step|epoch|iter)| *:? *\d+ *(?:/|of\b)|\.? *Do not forget)|"
            r"\bfinished training\b(?! (?:step|epoch|iter))",
            re.IGNORECASE,
        ),
    ),
    (
        "preparing data",
        re.compile(r"token(?:iz|is)|\bMap(?:\s*\(|:)|preprocess|Generating train split|packing|Grouping texts", re.I),
    ),
    ("saving a checkpoint", re.compile(r"sav(?:e|ing)\b.*(?:checkpoint|model|optimizer|state)|checkpoint.*sav", re.I)),
    ("loading the model", re.compile(r"load(?:ing)?\b.*(?:checkpoint|weights|shards|model|safetensors)", re.I)),
    ("compiling", re.compile(r"compil|building extension|ninja|\bTBE\b|triton.*cache", re.I)),
    ("evaluating", re.compile(r"\beval|\bvalidat|\bgenerat(?:e|ing)\b", re.I)),
    ("downloading", re.compile(r"download|fetching \d+ files", re.I)),
    (
        SETTING_UP,
        re.compile(r"init_process_group|rendezvous|communicator|initializ.*distrib", re.I),
    ),
    ("reading data", re.compile(r"data ?loader|\bdataset\b|\breading\b", re.I)),
    ("training", re.compile(r"\bloss\b|\bstep\b|\bit/s\b|\bepoch\b", re.I)),
)
REMEDIES = {
    "preparing data": "tokenise before the job starts: `ascendtune train RECIPE --prepare`",
    "saving a checkpoint": "save to a faster disk, or in shards from every rank",
    "loading the model": "load from a local disk, or on one rank a node at a time",
    "compiling": "build kernels once before the job starts, and share their cache directory",
    "evaluating": "evaluate on every rank, or end evaluation with a barrier that all ranks reach",
    "downloading": "download before the job starts: `ascendtune fetch`, HF_HUB_OFFLINE=1",
    SETTING_UP: "check that every rank uses the same MASTER_ADDR, MASTER_PORT and world size",
}
"""Remedies for phases in which the other ranks wait."""
_STEP = re.compile(r"\bstep[ :=]{1,2}[1-9]|\bloss['\"]?[ :=]{1,2}\d")


def phase_of(text: str) -> str | None:
    """Phase of a rank when it wrote `text`; None if unknown."""
    return next((phase for phase, pattern in _PHASES if pattern.search(text)), None)


def tells_a_step(text: str) -> bool:
    """Whether a log contains a training step: the ranks had connected."""
    return _STEP.search(text) is not None
