"""The table of commands; each is imported when it is called."""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """`target` is "module:function": its signature defines the options, its docstring the help text."""

    target: str
    help: str
    starts_another: bool = False
    """Whether everything after the first argument, including options, belongs to the program that the command
    starts."""


GROUPS = {
    "align": "Compare two trainings; record data for it.",
    "code": "Clone repositories, merge upstream and pull requests.",
    "comm": "Test and measure the links between devices.",
    "data": "Look at the rows that a recipe trains on.",
    "env": "Set up this machine: CANN, mirrors, packages, caches.",
    "jobs": "List, watch and stop your jobs.",
    "recipe": "Check or convert a recipe, or print the schema.",
    "runs": "Look at run directories, and clean them up.",
    "track": "Send records to trackers, import them; log in.",
    "migrate": "Move code written for CUDA to Ascend.",
}

DEFAULTS = {"align": "compare"}
"""The default command of a group, if its first word names none: `align A B` is `align compare A B`."""

COMMANDS = {
    "quickstart": CommandEntry(
        "ascendtune.cli.quickstart.command:quickstart", "Train a small model on a small task; no network."
    ),
    "init": CommandEntry("ascendtune.cli.init:init", "Write a commented recipe for a model and data."),
    "fetch": CommandEntry("ascendtune.cli.fetch:fetch", "Fetch models and data sets through mirrors; verify them."),
    "train": CommandEntry("ascendtune.cli.train:train", "Train the model that a recipe describes."),
    "plan": CommandEntry("ascendtune.cli.plan:plan", "Estimate a recipe's memory, and find changes that make it fit."),
    "profile": CommandEntry(
        "ascendtune.cli.profile:profile", "Show how the time of a step is spent, and what to change."
    ),
    "bench": CommandEntry("ascendtune.cli.bench:bench", "Measure how much faster a recipe trains on more devices."),
    "launch": CommandEntry(
        "ascendtune.cli.launch:launch",
        "Start any program once per device, like a training job.",
        starts_another=True,
    ),
    "submit": CommandEntry("ascendtune.cli.submit:submit", "Train a recipe with Docker, Compose, Slurm or Kubernetes."),
    "merge": CommandEntry("ascendtune.cli.merge:merge", "Merge an adapter into its base model."),
    "push": CommandEntry("ascendtune.cli.push:push", "Upload a run's final weights to a hub, with a model card."),
    "chat": CommandEntry("ascendtune.cli.chat:chat", "Chat with a run's final weights, or with any model."),
    "generate": CommandEntry(
        "ascendtune.cli.generate:generate", "Generate answers with a run's final weights, or any model."
    ),
    "devices": CommandEntry("ascendtune.cli.devices:devices", "Show the accelerators and the host; pick free ones."),
    "doctor": CommandEntry("ascendtune.cli.doctor:doctor", "Find the problems that prevent training, and their fixes."),
    "env export": CommandEntry("ascendtune.cli.env:export", "Print the shell lines that load CANN and set defaults."),
    "env mirrors": CommandEntry(
        "ascendtune.cli.env:mirrors", "Show, change or compare mirrors of pip, conda, hubs, git."
    ),
    "env install-plan": CommandEntry(
        "ascendtune.cli.env:install_plan", "Name the packages for this CANN; install them."
    ),
    "env conda": CommandEntry("ascendtune.cli.env:conda", "Clone or rename a conda environment, and compare it."),
    "env caches": CommandEntry("ascendtune.cli.env_machine:caches", "List and remove caches of compilers and hubs."),
    "env mount": CommandEntry("ascendtune.cli.env_machine:mount", "Check the mounts of directories, and measure them."),
    "env permissions": CommandEntry("ascendtune.cli.env_machine:permissions", "Check and repair permissions."),
    "code clone": CommandEntry("ascendtune.cli.code:clone", "Clone a repository, through proxies where needed."),
    "code sync-upstream": CommandEntry(
        "ascendtune.cli.code:sync_upstream", "Merge the official repository into your fork."
    ),
    "code merge-pr": CommandEntry("ascendtune.cli.code:merge_pr", "Merge a pull request locally, and run your tests."),
    "comm test": CommandEntry("ascendtune.cli.comm:test", "Run every collective, and compare every element."),
    "comm bench": CommandEntry("ascendtune.cli.comm:bench", "Measure collectives and links, like nccl-tests."),
    "align compare": CommandEntry("ascendtune.cli.align:align", "Compare two trainings, and find where they diverge."),
    "align bisect": CommandEntry("ascendtune.cli.align_bisect:bisect", "Find what in a recipe makes two runs diverge."),
    "align nan": CommandEntry("ascendtune.cli.align_nan:nan", "Name the module that produced the first NaN of a run."),
    "align record": CommandEntry(
        "ascendtune.cli.align_record:record",
        "Run any torch training, and record what `align` compares.",
        starts_another=True,
    ),
    "align tasks": CommandEntry("ascendtune.cli.align_tasks:tasks", "Compare two models' benchmark scores."),
    "explain": CommandEntry("ascendtune.cli.explain:explain", "Find the first cause of a failure in logs."),
    "data show": CommandEntry(
        "ascendtune.cli.data_show:show", "Show rows as they are trained on: tokens, labels, cuts."
    ),
    "jobs list": CommandEntry("ascendtune.cli.jobs:list_jobs", "List your jobs: state, devices, time, step."),
    "jobs show": CommandEntry("ascendtune.cli.jobs:show", "Show one job: processes, devices, logs, why it ended."),
    "jobs logs": CommandEntry("ascendtune.cli.jobs:logs", "Print the output of a job's processes."),
    "jobs stop": CommandEntry("ascendtune.cli.jobs:stop", "Stop a job after a checkpoint, and verify that it is gone."),
    "jobs cleanup": CommandEntry(
        "ascendtune.cli.jobs_cleanup:cleanup", "Find and end leftover processes of earlier jobs."
    ),
    "jobs stacks": CommandEntry("ascendtune.cli.jobs:stacks", "Show where each rank of a running job is."),
    "recipe check": CommandEntry("ascendtune.cli.recipe:check", "Check a recipe without starting anything."),
    "recipe convert": CommandEntry("ascendtune.cli.recipe:convert", "Convert a LLaMA-Factory recipe."),
    "recipe schema": CommandEntry("ascendtune.cli.recipe:schema", "Print the JSON schema of recipes, for editors."),
    "runs list": CommandEntry("ascendtune.cli.runs:list_runs", "List runs: state, step, loss, speed, age."),
    "runs show": CommandEntry("ascendtune.cli.runs:show", "Show one run: data, versions, choices, checkpoints."),
    "runs clean": CommandEntry(
        "ascendtune.cli.runs_clean:clean", "Show disk space of runs; remove unneeded checkpoints."
    ),
    "runs compare": CommandEntry("ascendtune.cli.runs_compare:compare", "Compare runs: losses, recipes, data."),
    "track send": CommandEntry("ascendtune.cli.track:send", "Send runs to wandb, swanlab, mlflow or trackio."),
    "track sync": CommandEntry("ascendtune.cli.track:sync", "Upload offline runs of wandb."),
    "track import": CommandEntry("ascendtune.cli.track:import_events", "Import TensorBoard events as runs."),
    "track login": CommandEntry("ascendtune.cli.track:login", "Log in to wandb or swanlab with their own client."),
    "migrate check": CommandEntry("ascendtune.cli.migrate:check", "List code that does not run on Ascend unchanged."),
    "migrate run": CommandEntry(
        "ascendtune.cli.migrate:run", "Run an unmodified CUDA script on NPUs.", starts_another=True
    ),
}
