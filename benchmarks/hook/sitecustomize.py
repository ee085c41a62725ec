"""Python imports this at start-up in every measured process: notes what was spent at the end of each optimizer step,
and between the first call of datasets' load_dataset and the end of the last map.

It waits for the modules that matter to be imported, so it costs nothing where they are not. Any tool that steps a torch
optimizer is measured the same way; tokens are counted where transformers.Trainer takes a batch.
"""

import importlib.abc
import importlib.util
import json
import os
import resource
import sys
import time

NOTES = os.environ.get("BENCHMARK_NOTES")
tokens = 0
began = None


def cpu_seconds():
    """Of this process, its children, and its ancestors up to the benchmark."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(each.ru_utime + each.ru_stime for each in usage)
    parent, root = os.getppid(), int(os.environ["BENCHMARK_PID"])
    while parent not in (root, 1, 0):
        with open(f"/proc/{parent}/stat") as file:  # noqa: PTH123  # pathlib takes time to import
            fields = file.read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        parent = int(fields[1])
    return total


def note(*_):
    step = {
        "cpu_seconds": cpu_seconds(),
        "seconds": time.time() - float(os.environ["BENCHMARK_BEGAN"]),
        "tokens": tokens,
    }
    with open(NOTES, "a") as file:  # noqa: PTH123
        file.write(json.dumps(step) + "\n")


def watch_optimizers(module):
    module.register_optimizer_step_post_hook(note)


def count_tokens(module):
    inner = module.Trainer.training_step

    def training_step(self, model, inputs, *rest, **named):
        global tokens
        for key in ("input_ids", "chosen_input_ids"):
            if key in inputs:
                tokens += int((inputs[key] != int(os.environ["BENCHMARK_PAD_ID"])).sum())
        return inner(self, model, inputs, *rest, **named)

    module.Trainer.training_step = training_step


def watch_loading(module):
    inner = module.load_dataset

    def load_dataset(*rest, **named):
        global began
        began = cpu_seconds() if began is None else began
        return inner(*rest, **named)

    module.load_dataset = load_dataset


def watch_maps(module):
    inner = module.Dataset.map

    def map(self, *rest, **named):
        result = inner(self, *rest, **named)
        with open(NOTES + ".data", "w") as file:  # noqa: PTH123
            file.write(str(cpu_seconds() - began if began is not None else 0.0))
        return result

    module.Dataset.map = map


class Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: calls a function when one of these modules has been imported."""

    waiting = {
        "torch.optim.optimizer": watch_optimizers,
        "transformers.trainer": count_tokens,
        "datasets.load": watch_loading,
        "datasets.arrow_dataset": watch_maps,
    }

    def find_spec(self, name, path, target=None):
        if name not in self.waiting:
            return None
        then = self.waiting.pop(name)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            then(module)

        spec.loader.exec_module = exec_module
        return spec


if NOTES:
    sys.meta_path.insert(0, Finder())
