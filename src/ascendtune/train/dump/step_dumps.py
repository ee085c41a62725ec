"""Dumps of a training's steps, as requested by `align.dump_steps`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from ascendtune import __version__
from ascendtune.core.errors import AscendtuneError
from ascendtune.data.plan import PackedSequence
from ascendtune.recipe.sections import AlignSection
from ascendtune.train.dump.hooks import ModuleHooks
from ascendtune.train.dump.names import plain_parameters
from ascendtune.train.dump.record import StepRecord, header_of
from ascendtune.train.strategy.base import Strategy


class StepDumps:
    """Dumps steps; the model has hooks only in dumped steps.

    Args:
        directory: directory of all dumps of the run.
        model: the trained model, sharded or not.
        left_out: modules that are not recorded: a head that is fused with the loss.
    """

    def __init__(
        self,
        directory: Path,
        section: AlignSection,
        strategy: Strategy,
        model: nn.Module,
        left_out: Collection[nn.Module] = (),
    ) -> None:
        self._directory = directory
        self._section = section
        self._strategy = strategy
        self._model = model
        self._left_out = left_out
        self._record: StepRecord | None = None

    @property
    def is_dumping(self) -> bool:
        """Whether the current step is dumped."""
        return self._record is not None

    @contextmanager
    def step(self, number: int, *, again: bool = False) -> Iterator[None]:
        """Context of step `number`: dumps it if the recipe requests it, also if it raises an AscendtuneError.

        Args:
            again: whether the step is repeated for its dump, without an update.
        """
        if not self._section.is_dumped(number) and not again:
            yield
            return
        record = self._record = StepRecord(
            header_of(
                writer=f"ascendtune {__version__}",
                step=number,
                rank=self._strategy.rank,
                world_size=self._strategy.world_size,
                level=self._section.level,
                keeps_tensors=self._section.content == "tensors",
            ),
            wide=torch.float64 if self._strategy.device.supports_fp64 else torch.float32,
            keeps_tensors=self._section.content == "tensors",
        )
        hooks = ModuleHooks(self._model, record, self._left_out) if self._is_requested(self._strategy.rank) else None
        try:
            yield
            if not again:
                self._add_parameters("parameter_after")
        except AscendtuneError:
            self._write(record)
            raise
        else:
            self._write(record)
        finally:
            self._record = None
            if hooks is not None:
                hooks.remove()

    def batch(self, sequences: list[PackedSequence]) -> None:
        """Record the rows of the data in the step."""
        if self._record is not None:
            self._record.header["rows"] = [list(each) for each in sequences]

    def loss(self, value: torch.Tensor, scaler: torch.amp.GradScaler | None = None) -> None:
        """Record the value that the backward pass starts from: () fp32, this rank's share of the mean, unscaled.

        Args:
            scaler: scales the loss; gradients of outputs are recorded unscaled.
        """
        if self._record is not None and self._is_requested(self._strategy.rank):
            self._record.gradient_scale = torch.tensor(scaler.get_scale()) if scaler is not None else None
            self._record.add("loss", "", "loss", "", value, micro_batch=self._record.micro_batch)

    def before_update(self) -> None:
        """Record gradients, complete but not clipped, and parameters. Every rank must call this."""
        if self._record is not None:
            self._add_gradients(self._record)
            self._add_parameters("parameter_before")

    def _add_gradients(self, record: StepRecord) -> None:
        if not self._takes_part():
            return
        for name, parameter in plain_parameters(self._model).items():
            gradient = self._strategy.full_gradient(parameter)
            if gradient is not None and self._writes_whole():
                record.add("gradient", name, "gradient", "", gradient)

    def _add_parameters(self, phase: str) -> None:
        record = self._record
        if record is None or not self._takes_part():
            return
        for name, parameter in plain_parameters(self._model).items():
            whole = self._strategy.full_param(parameter)
            if self._writes_whole():
                record.add(phase, name, "parameter", "", whole)

    def _is_requested(self, rank: int) -> bool:
        return self._section.ranks is None or rank in self._section.ranks

    def _takes_part(self) -> bool:
        """Whether this rank must gather or write: all ranks gather sharded tensors, and rank 0 writes them."""
        return self._is_requested(0 if self._strategy.is_sharded else self._strategy.rank)

    def _writes_whole(self) -> bool:
        return self._strategy.is_main or not self._strategy.is_sharded

    def _write(self, record: StepRecord) -> None:
        if self._is_requested(self._strategy.rank):
            record.write(self._directory)
