"""The submissions for every engine and kind of device, on one node and on two; `make golden` writes some of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from ascendtune.job.backend import compose, docker, kubernetes, slurm
from ascendtune.job.backend.submission import ContainerMount, Submission
from ascendtune.machine.visible import Kind

GOLDEN = Path(__file__).parent / "golden" / "submit"
RECIPE = "name: alpaca\nmodel: {path: /data/models/qwen}\ndata: {train: /data/rows.jsonl}\n"
KINDS: tuple[Kind, ...] = ("cpu", "cuda", "npu")
_SHOWN = ("cuda_1", "npu_2", "hours")
"""Of each engine; the other pairs of kind and nodes bring no line of their own, and are held against schemas."""


def submission(kind: Kind, nodes: int, directory: str = "/srv/alpaca", program: str = "ascendtune") -> Submission:
    here = Path(directory)
    return Submission(
        name="ascendtune-alpaca",
        argv=(program, "train", f"{directory}/recipe.yaml", "optim.epochs=2", "--devices", "2"),
        directory=here,
        kind=kind,
        device_ids=("0", "1"),
        nodes=nodes,
        mounts=(
            ContainerMount(Path("/data/models/qwen")),
            ContainerMount(Path("/data/rows.jsonl")),
            ContainerMount(here / "cache", writable=True),
            ContainerMount(here / "runs", writable=True),
        ),
        inherited=("HF_TOKEN",),
        variables={"XDG_CACHE_HOME": f"{directory}/cache"},
        image="registry.example.com/ascendtune:1",
    )


@cache
def written() -> dict[str, str]:
    """File name -> content."""
    return dict(_written())


def _written() -> Iterator[tuple[str, str]]:
    nowhere = Path("/no/such/root")
    for kind in KINDS:
        for nodes in (1, 2):
            plain = submission(kind, nodes)
            which = f"{kind}_{nodes}"
            yield f"docker_{which}.sh", docker.write(plain, nowhere)
            yield f"compose_{which}.yaml", compose.write(plain, nowhere)
            yield f"slurm_{which}.sbatch", slurm.write(plain)
            for name in kubernetes.KINDS:
                yield f"{name}_{which}.yaml", kubernetes.write(in_a_cluster(plain), name, RECIPE)
    limited = with_a_limit(submission("cpu", 2))
    yield "slurm_hours.sbatch", slurm.write(limited)
    for name in kubernetes.KINDS:
        yield f"{name}_hours.yaml", kubernetes.write(in_a_cluster(limited), name, RECIPE)


def golden() -> dict[str, str]:
    """Those that are compared word by word: file name -> content."""
    return {name: text for name, text in written().items() if name.partition("_")[2].partition(".")[0] in _SHOWN}


def in_a_cluster(plain: Submission) -> Submission:
    claims = {Path("/data"): "data"}
    return replace(plain, variables={}, recipe=plain.directory / "recipe.yaml", volumes=claims, namespace="team")


def with_a_limit(plain: Submission) -> Submission:
    return replace(plain, hours=36.5, partition="main", sbatch=("--qos=high",))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, text in golden().items():
        (GOLDEN / name).write_text(text)
