"""A manifest for kubectl: the recipe as a ConfigMap, then what runs it."""

from __future__ import annotations

from pkgutil import resolve_name

from ascendtune.job.backend.kubernetes.pod import config_map
from ascendtune.job.backend.submission import HEADER, Submission, to_yaml

_ROOM = "ascendtune.job.backend.kubernetes"

KINDS = {
    "job": f"{_ROOM}.job:objects",
    "volcano": f"{_ROOM}.volcano:objects",
    "pytorchjob": f"{_ROOM}.pytorchjob:objects",
    "trainjob": f"{_ROOM}.trainjob:objects",
}
"""What `--kind` takes."""


def write(submission: Submission, kind: str, recipe_text: str) -> str:
    """The manifest.

    Args:
        kind: a key of `KINDS`.
        recipe_text: content of `submission.recipe`.
    """
    objects = [config_map(submission, recipe_text), *resolve_name(KINDS[kind])(submission)]
    where = f" -n {submission.namespace}" if submission.namespace else ""
    comments = [
        f"# {HEADER}: {submission.places}.",
        f"#   kubectl{where} apply -f {submission.name}.kubernetes.yaml",
        f"#   kubectl{where} logs -f -l app.kubernetes.io/instance={submission.name}",
        f"#   kubectl{where} delete -f {submission.name}.kubernetes.yaml   # with a checkpoint; applied again, resumes",
    ]
    if submission.inherited:
        values = " ".join(f'--from-literal={name}="${name}"' for name in submission.inherited)
        comments += [f"#   kubectl{where} create secret generic {submission.secret} {values}    # once, before"]
    return "\n".join([*comments, "---", to_yaml(*objects)])
