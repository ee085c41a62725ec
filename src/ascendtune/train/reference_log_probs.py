"""Log-probabilities under the reference model, computed once before the first step and stored in the run directory.

The reference is the policy before its first step, or another model. A new adapter changes nothing at first, so the
reference is then the base model; if an adapter is trained further, the reference is the base model with this adapter.

A reference never changes, so neither do its log-probabilities: no second model stays in memory while the policy trains,
and further epochs cost nothing. Only rows that the run trains or evaluates on are computed. Batches are stored as a
whole: after an interruption the remaining ones are computed as they would have been without it.
"""

from __future__ import annotations

import gc
import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ascendtune.core.errors import MachineError, RecipeError, Stopped, translated_disk_errors
from ascendtune.core.files import write_atomically
from ascendtune.core.log import say
from ascendtune.core.units import count_of, format_duration
from ascendtune.data.plan import PackedSequence
from ascendtune.data.store import TokenDataset
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import ModelSection
from ascendtune.train.attention.choice import AttentionChoice, choose_attention
from ascendtune.train.batch import Batches, DeviceBatch
from ascendtune.train.model import ModelToLoad, load_in_parts, read_config
from ascendtune.train.model_setup import set_up_recurrent_layers
from ascendtune.train.objective.base import make_objective
from ascendtune.train.objective.double_float import DoubleFloat
from ascendtune.train.objective.preference import PreferenceObjective
from ascendtune.train.precision import Precision
from ascendtune.train.stop_request import StopRequest, agreed_signal, stop_flags
from ascendtune.train.strategy.base import RootModule, Strategy

LogProbs = Callable[[DeviceBatch], DoubleFloat]
"""(documents,) summed log-probabilities of a micro-batch."""

_SAY_SECONDS = 10.0
_KEEP_SECONDS = 30.0
"""Time between two writes: a crash loses at most this much work."""


def add_reference(
    batches: Batches,
    steps: int,
    path: Path,
    *,
    precision: Precision,
    reference: Callable[[], AbstractContextManager[LogProbs]],
    write_heartbeat: Callable[[], None],
    stop: StopRequest,
) -> Batches:
    """`batches` with the log-probabilities under the reference: (rows,) fp64. Every rank must call this.

    Args:
        steps: number of global batches, from the first, whose rows get a value; other rows get NaN. They are computed
            in the run's order: micro-batches have the same rows as in training, so rounding is equal and the first
            loss has its closed form.
        path: the file that stores them; values in it are not computed again.
        reference: returns a context in which the reference model is ready; entered only if values are missing.
        write_heartbeat: called before each global batch.
        stop: checked after each global batch.

    Raises:
        MachineError: the file is damaged or cannot be written.
        Stopped: a signal was received; the computed values are in the file.
    """
    dataset, strategy = batches.dataset, batches.strategy
    needed = [batches.plan.batch(step) for step in range(steps)]
    stored = np.full(len(dataset), np.nan)
    # Another host may not see yet what the main rank has written.
    strategy.fill_on_main(lambda: _read(path, stored), [torch.from_numpy(stored)])
    missing = [each for each in needed if np.isnan(stored[_rows_of(each, dataset)]).any()]
    if not missing:
        return replace(batches, reference=stored)
    if strategy.is_main and len(missing) < len(needed):
        say(
            "reference log-probabilities: "
            f"{len(needed) - len(missing):,} of {count_of(len(needed), 'batch', 'batches')} there already"
        )
    # Of each batch: its rows, and (2, rows) the two parts of each sum, which stay on the device until they are stored.
    computed: list[tuple[tuple[int, ...], torch.Tensor]] = []
    new: list[int] = []
    start = last_logged = last_saved = time.monotonic()
    with reference() as log_probs, torch.no_grad(), precision.autocast():
        for done, sequences in enumerate(missing, 1):
            write_heartbeat()
            for mismatched in (False, True):
                for batch in batches.micro_batches(sequences, mismatched=mismatched):
                    sums = torch.stack(log_probs(batch))
                    if batch.weight:
                        computed.append((batch.rows, sums))
            new += _rows_of(sequences, dataset)
            now = time.monotonic()
            stop_signal, is_time = _agreed(stop.signal_number, now - last_saved > _KEEP_SECONDS, strategy)
            if stop_signal or is_time or done == len(missing):
                _keep(path, stored, computed, new, strategy)
                computed, new, last_saved = [], [], now
            if stop_signal:
                raise _stopped(stop_signal, len(needed) - len(missing) + done, len(needed), path)
            if strategy.is_main and now - last_logged > _SAY_SECONDS:
                last_logged = now
                remaining = format_duration((now - start) / done * (len(missing) - done))
                say(
                    "reference log-probabilities: "
                    f"{done:,} of {count_of(len(missing), 'batch', 'batches')}, {remaining} left"
                )
    # Hooks of sharded modules refer to them: without a collection another model would stay in memory.
    del log_probs
    gc.collect()
    return replace(batches, reference=stored)


def _agreed(signal_number: int, is_time: bool, strategy: Strategy) -> tuple[int, bool]:
    """The signal that reached any rank, and whether it is time to store the values, by the main rank's clock."""
    if strategy.world_size == 1:
        return signal_number, is_time
    *flags, votes = strategy.sum([*stop_flags(signal_number), float(is_time and strategy.is_main)])
    return agreed_signal(flags), votes > 0


def _keep(
    path: Path, reference: NDArray[np.float64], computed: list[tuple[tuple[int, ...], torch.Tensor]], new: list[int],
    strategy: Strategy,
) -> None:  # fmt: skip
    """Write the values of rows `new`, of which each rank has `computed` some, into `reference` and the file."""
    values = torch.zeros((2, len(reference)), dtype=torch.float32, device=strategy.device.torch_device)
    if computed:
        rows = [row for batch, _ in computed for row in batch]
        values[:, torch.tensor(rows, device=values.device)] = torch.cat([sums for _, sums in computed], dim=1)
    strategy.all_reduce(values)
    # Summed on the host: not every device has fp64.
    reference[new] = values.cpu().numpy().astype(np.float64).sum(axis=0)[new]
    if strategy.is_main:
        _write(path, reference)
    # When one rank exits, torchrun ends the others: all ranks wait here until the values are in the file.
    strategy.barrier()


def _stopped(number: int, done: int, needed: int, path: Path) -> Stopped:
    return Stopped(
        f"stopped by {signal.Signals(number).name} before the first step; the reference log-probabilities of "
        f"{done:,} of {count_of(needed, 'batch', 'batches')} are kept",
        remedy="run the same command again to continue from there",
        signal_number=number,
        where=path,
        step=0,
    )


def _rows_of(sequences: list[PackedSequence], dataset: TokenDataset) -> list[int]:
    size = dataset.group_size
    return [group * size + within for sequence in sequences for group in sequence for within in range(size)]


def _read(path: Path, values: NDArray[np.float64]) -> None:
    """Read the file, if there is one, into `values`, (rows,)."""
    if not path.exists():
        return
    content = np.fromfile(path, "<f8")
    if len(content) != len(values):
        raise MachineError(
            "the reference log-probabilities are damaged: "
            f"{count_of(len(content), 'value')} for {count_of(len(values), 'row')}",
            code="reference-damaged",
            remedy="delete this file: they are computed again",
            where=path,
        )
    values[:] = content


def _write(path: Path, values: NDArray[np.float64]) -> None:
    with translated_disk_errors(path, "writing reference log-probabilities"):
        write_atomically(path, values.astype("<f8").tobytes())


def attention_of_reference(recipe: Recipe, directory: str, device: Device) -> AttentionChoice:
    """The attention of the reference model in `directory`."""
    section, config = section_of_reference(recipe, Path(directory))
    choice = choose_attention(section, "preference", config, device.attention)
    if not choice.support.padded:
        raise RecipeError(
            f"padding changes the outputs of the reference model: {choice.support.why_padded}",
            code="rows-need-padding",
            remedy="choose another method.preference.reference",
            where=directory,
        )
    return choice


def reference_model(
    recipe: Recipe,
    directory: str | None,
    attention: AttentionChoice | None,
    objective: PreferenceObjective,
    root: RootModule,
    strategy: Strategy,
    precision: Precision,
    tokens: int,
) -> Callable[[], AbstractContextManager[LogProbs]]:
    """Return a factory of contexts in which the reference computes log-probabilities.

    Args:
        directory: of the reference model, if the recipe names one.
        attention: of the model in `directory`.
        objective: the objective around the policy before its first step.
        root: gathers the policy's weights.
        tokens: size of the vocabulary that the data use.
    """
    if directory is not None:
        assert attention is not None
        return lambda: _another_model(recipe, Path(directory), attention, strategy, precision, tokens)
    return lambda: _policy_itself(objective, root)


def reference_key(recipe: Recipe, record: dict[str, Any], precision: Precision, attention: str) -> str:
    """A hash of everything that the reference's log-probabilities depend on: data, weights, and how they are computed.

    Args:
        record: run.json; all ranks read it, so all compute the same key.
    """
    decisive = {
        "data": record["data_hash"],
        "model": recipe.model.model_dump(mode="json"),
        "seed": recipe.seed if recipe.model.init == "random" else None,
        "weights": record.get("weights_hash"),
        "configs": [*record.get("config_hashes", {}).values()],
        "adapters": record.get("adapters"),
        "computed": [precision.compute, precision.weights, attention],
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


@contextmanager
def _policy_itself(objective: PreferenceObjective, root: RootModule) -> Iterator[LogProbs]:
    was_training = objective.training
    objective.eval()
    yield lambda batch: root(objective.log_probs, batch)
    objective.train(was_training)


@contextmanager
def _another_model(
    recipe: Recipe,
    directory: Path,
    attention: AttentionChoice,
    strategy: Strategy,
    precision: Precision,
    tokens: int,
) -> Iterator[LogProbs]:
    section, config = section_of_reference(recipe, directory)
    # It is not trained, so its weights need no more precision than its products have.
    as_computed = Precision(precision.compute, precision.compute, precision.reason, precision.device_type)
    with strategy.uneven_work("loads the reference model"):
        wanted = ModelToLoad(
            section, "preference", directory, config,
            precision=as_computed, implementation=attention.implementation(), vocabulary=0, seed=recipe.seed,
        )  # fmt: skip
        model, fill = load_in_parts(wanted, stays=strategy.keeps_host_weights)
    if (rows := model.get_input_embeddings().weight.shape[0]) < tokens:
        raise RecipeError(
            f"the reference model has {rows:,} tokens, the trained model {tokens:,}",
            code="reference-tokenizer-differs",
            remedy="use a reference with the same tokenizer",
            where=directory,
        )
    set_up_recurrent_layers(model, strategy)
    root = RootModule(model.requires_grad_(False))
    # Apart from the work above, whose duration differs between hosts: ranks of fsdp synchronise before they fill.
    with strategy.uneven_work("loads the reference model"):
        strategy.shard_frozen(root, as_computed, fill)
    objective = make_objective(model, recipe, head_form=None, mean_over_ranks=strategy.mean).eval()
    assert isinstance(objective, PreferenceObjective)
    yield partial(root, objective.log_probs)


def section_of_reference(recipe: Recipe, directory: Path) -> tuple[ModelSection, Any]:
    """The model section of a reference, and its config."""
    section = recipe.model.model_copy(
        update={"path": str(directory), "init": "pretrained", "new_tokens": [], "new_layers": 0}
    )
    return section, read_config(section, directory)
