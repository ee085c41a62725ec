"""The table of commands: what exists can be read here, and is imported when it is called."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """`target` is "module:function"; the function's signature is the command's, its docstring the help."""

    target: str
    help: str
    starts_another: bool = False
    """Whatever follows its first argument belongs to the program that it starts, options too."""


GROUPS = {
    "comm": "Test and measure the links between devices.",
    "jobs": "List, watch and end your jobs.",
    "recipe": "Check or convert a recipe, or print the schema of all recipes.",
    "runs": "Look at run directories.",
    "migrate": "Move code that was written for CUDA to Ascend.",
}

COMMANDS = {
    "quickstart": Entry("ascendtune.cli.quickstart.command:quickstart", "Teach a small model a skill; no network."),
    "init": Entry("ascendtune.cli.init:init", "Write a commented recipe for a model and data."),
    "train": Entry("ascendtune.cli.train:train", "Train the model that a recipe describes."),
    "launch": Entry(
        "ascendtune.cli.launch:launch",
        "Start any program once per device, as training is started.",
        starts_another=True,
    ),
    "submit": Entry("ascendtune.cli.submit:submit", "Let Docker, Compose, Slurm or Kubernetes train a recipe."),
    "merge": Entry("ascendtune.cli.merge:merge", "Write the model that a LoRA adapter makes of its base."),
    "chat": Entry("ascendtune.cli.chat:chat", "Talk to a run's final weights, or to any model."),
    "generate": Entry("ascendtune.cli.generate:generate", "Let a run's final weights, or any model, answer prompts."),
    "devices": Entry("ascendtune.cli.devices:devices", "Show the accelerators and the host; pick free ones."),
    "doctor": Entry("ascendtune.cli.doctor:doctor", "Say what keeps this machine from training, and what to do."),
    "comm test": Entry("ascendtune.cli.comm_test:test", "Try every collective, compare every element."),
    "comm bench": Entry("ascendtune.cli.comm_bench:bench", "Measure collectives and links as nccl-tests does."),
    "align": Entry("ascendtune.cli.align:align", "Say whether two trainings agree, or where they part."),
    "explain": Entry("ascendtune.cli.explain:explain", "Find the first cause of a failure in logs."),
    "jobs list": Entry("ascendtune.cli.jobs_list:list_jobs", "List your jobs: state, devices, time, step."),
    "jobs show": Entry("ascendtune.cli.jobs_show:show", "Show one job: processes, devices, logs, why it ended."),
    "jobs logs": Entry("ascendtune.cli.jobs_logs:logs", "Print what the processes of a job say."),
    "jobs stop": Entry("ascendtune.cli.jobs_stop:stop", "End a job, after a checkpoint; look whether all is gone."),
    "jobs reap": Entry("ascendtune.cli.jobs_cleanup:reap", "Find and end processes that earlier jobs left behind."),
    "jobs stacks": Entry("ascendtune.cli.jobs_stacks:stacks", "Show where each rank of a running job is."),
    "recipe check": Entry("ascendtune.cli.recipe_check:check", "Check a recipe without starting anything."),
    "recipe convert": Entry("ascendtune.cli.recipe_convert:convert", "Print a LLaMA-Factory recipe as one of ours."),
    "recipe schema": Entry("ascendtune.cli.recipe_schema:schema", "Print the JSON schema that editors complete from."),
    "runs list": Entry("ascendtune.cli.runs_list:list_runs", "List runs: state, step, loss, speed, age."),
    "runs show": Entry("ascendtune.cli.runs_show:show", "Show one run: data, versions, choices, checkpoints."),
    "runs compare": Entry("ascendtune.cli.runs_compare:compare", "Compare runs: losses, recipes, data."),
    "migrate check": Entry("ascendtune.cli.migrate_check:check", "List what in a code base will not move to Ascend."),
    "migrate run": Entry(
        "ascendtune.cli.migrate_run:run", "Run an unmodified CUDA script on NPUs.", starts_another=True
    ),
}
