from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256

import pytest
import yaml

from ascendtune.job.backend.kubernetes import write as write_manifest
from ascendtune.job.backend.slurm import write
from ascendtune.job.backend.submission import job_name
from submissions import RECIPE, in_a_cluster, submission, with_a_limit


@pytest.mark.parametrize(
    ("recipe", "job"),
    [
        ("alpaca", "ascendtune-alpaca"),
        ("Qwen2.5_7B-Instruct", "ascendtune-qwen2-5-7b-instruct"),
        ("_", "ascendtune-run"),
        ("a" * 40, "ascendtune-" + "a" * 40),
        ("微调", "ascendtune-" + sha256("微调".encode()).hexdigest()[:8]),
        ("a" * 30 + "-b" * 6, "ascendtune-" + "a" * 30 + "-" + sha256(b"a" * 30 + b"-b" * 6).hexdigest()[:8]),
    ],
)
def test_every_engine_accepts_the_name(recipe: str, job: str) -> None:
    assert job_name(recipe) == job
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job) and len(job) <= 63 - len("-worker-000")


def test_recipes_whose_names_begin_alike_or_are_not_ascii_get_jobs_of_their_own() -> None:
    long = "qwen2.5-7b-instruct-sft-lora-rank16-lr1e-4-seed"
    recipes = (f"{long}1", f"{long}2", "数学微调", "法律助手", "数学-lora", "法律-lora")
    assert len(set(map(job_name, recipes))) == len(recipes)


def test_hours_are_slurms_days_hours_and_minutes() -> None:
    assert "#SBATCH --time=1-12:30:00" in write(with_a_limit(submission("cpu", 1)))


def test_sbatch_options_of_the_user_come_last() -> None:
    options = [line for line in write(with_a_limit(submission("npu", 1))).splitlines() if line.startswith("#SBATCH")]
    assert options[-1] == "#SBATCH --qos=high"


def test_data_from_the_nodes_of_a_cluster_are_read_only_and_run_directories_are_not() -> None:
    plain = replace(in_a_cluster(submission("cpu", 1)), volumes={})
    [manifest] = [each for each in yaml.safe_load_all(write_manifest(plain, "job", RECIPE)) if each["kind"] == "Job"]
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    read_only = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert read_only["/data/models/qwen"] and read_only["/data/rows.jsonl"]
    assert not read_only["/srv/alpaca/runs"] and not read_only["/srv/alpaca/cache"]
