"""One training step of the recipe's own model, without memory for its tensors: live bytes moment by moment.

The model class, tuner, attention, activation checkpointing, objective, strategy and optimizer are those of training;
tensors are torch's FakeTensors, which have shapes and dtypes but no content. FSDP shards over a process group that
sends nothing. Of repeating layers a few are traced: the bytes of each moment are linear in their number.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.tensor import DTensor

from ascendtune.core.units import count_of
from ascendtune.data.collate import Batch
from ascendtune.hub.adapter_files import is_adapter_weight
from ascendtune.hub.gpu_functions import plain_functions
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.train.attention.recurrence import documents_apart
from ascendtune.train.batch import DeviceBatch, to_device
from ascendtune.train.deferred_weights import may_defer
from ascendtune.train.model import apply_tuner, auto_class, grow_embeddings, recompute_activations, trainable_share
from ascendtune.train.objective.base import make_objective
from ascendtune.train.objective.double_float import DoubleFloat
from ascendtune.train.objective.head import decoder_of
from ascendtune.train.offloaded_activations import saving_all_but_weights
from ascendtune.train.optimizer import make_optimizer, tables_of
from ascendtune.train.plan.live_bytes import Bytes, LiveBytes, StepMemory
from ascendtune.train.plan.modelled_kernels import install_modelled_kernels
from ascendtune.train.plan.planned_device import PlannedDevice
from ascendtune.train.plan.repeated_layers import Repeats, find_repeats, kinds_of
from ascendtune.train.plan.request import DocumentSize
from ascendtune.train.plan.traced_strategies import STRATEGIES, fake_group, gradient_of
from ascendtune.train.plan.training_choices import TrainingChoices
from ascendtune.train.precision import DTYPES, export_dtype, promote_layer_norms
from ascendtune.train.strategy.base import RootModule, Strategy
from ascendtune.train.strategy.fsdp import FsdpStrategy
from ascendtune.train.tuner.freeze import decoder_blocks
from ascendtune.train.tuner.quantised_linear import become_quantised, quantisable_linears, require_no_parameter_adapted

FIRST_UPDATE, FORWARD, LOSS = "first update", "forward", "loss"
BACKWARD, UPDATE, EXPORT = "backward", "update", "export"


def trace_step(setting: TrainingChoices, documents: Sequence[DocumentSize]) -> StepMemory:
    """Trace the steps of one rank.

    Args:
        documents: documents of the largest micro-batch.

    Raises:
        Exception: the model class needs the content of tensors.
    """
    batch = _batch(setting, documents)
    with fake_group(setting.ranks if setting.strategy == "fsdp" else None):
        all_layers = _Steps(setting)
        repeats = find_repeats(kinds_of(list(decoder_blocks(all_layers.model)[1]), setting.config))
        parameters, trainable = all_layers.parameters, all_layers.trainable
        traces = []
        for count in repeats.counts():
            steps = _Steps(setting, repeats, count)
            traces.append((count, *steps.run(batch)))
    count, moments, resting, offloaded = traces[-1]
    if count < repeats.layers:
        ratio = (repeats.layers - count) / (count - traces[0][0])
        moments = {
            name: _extrapolated(traces[0][1][name], moments[name], ratio) for name in moments if name in traces[0][1]
        }
        resting = _extrapolated(traces[0][2], resting, ratio)
        offloaded += round(ratio * (offloaded - traces[0][3]))
    if (copied := _exported_bytes(setting, parameters)) > 0:
        moments[EXPORT] = resting + Counter({"exported copy": copied})
    method = f"{count} of {count_of(repeats.layers, 'layer')} traced"
    return StepMemory(moments, resting, parameters, trainable, repeats.layers, method, offloaded)


def _exported_bytes(setting: TrainingChoices, parameters: int) -> int:
    """Bytes of the main rank's copy in the export dtype, if host memory is the device's memory."""
    recipe, dtype = setting.recipe, export_dtype(setting.recipe, setting.config)
    is_copied = setting.strategy == "fsdp" or dtype != DTYPES[setting.precision.weights]
    if recipe.method.adapter is not None or not setting.device.shares_host_memory or not is_copied:
        return 0
    return parameters * dtype.itemsize


def _extrapolated(smaller: Bytes, larger: Bytes, ratio: float) -> Bytes:
    """Extrapolate from two traces, linearly, to the model's number of layers."""
    return Counter({name: round(larger[name] + ratio * (larger[name] - smaller[name])) for name in larger | smaller})


class _Steps:
    """The model of a setting, with all or with `count` layers, and its steps."""

    def __init__(self, setting: TrainingChoices, repeats: Repeats | None = None, count: int = 0) -> None:
        self._setting, self._repeats, self._count = setting, repeats, count
        self._fake, self._live = FakeTensorMode(allow_non_fake_inputs=True), LiveBytes()
        with torch.device("meta"):
            self.model = self._make()
        device = setting.device
        if isinstance(device, PlannedDevice) and device.kernels is not None:
            install_modelled_kernels(self.model, setting.recipe.kernel, device.kernels)
        self.trainable, self.parameters = trainable_share(self.model)
        self._offloaded = 0

    def _make(self) -> Any:
        setting = self._setting
        section, method, config = setting.recipe.model, setting.recipe.method, copy.deepcopy(setting.config)
        model = auto_class(method.stage).from_config(
            config, dtype=DTYPES[setting.precision.weights], attn_implementation=setting.implementation(),
            trust_remote_code=section.trust_remote_code,
        )  # fmt: skip
        grow_embeddings(model, setting.vocabulary)
        model.train()
        linears = quantisable_linears(model, section)
        tuned = apply_tuner(model, method, setting.adapters)
        require_no_parameter_adapted(tuned, linears)
        for linear in linears:
            become_quantised(linear, section, torch.device("meta"))
        if self._repeats is not None:
            blocks = decoder_blocks(model)[1]
            layers = [blocks[number] for number in self._repeats.kept(self._count)]
            del blocks[:]
            blocks.extend(layers)
            for each in {id(each): each for each in (config, config.get_text_config(), model.config)}.values():
                # Some configs refuse it (ProphetNet's, which has another name for its decoder's layers).
                with suppress(NotImplementedError):
                    each.num_hidden_layers = self._count
        promote_layer_norms(model)
        recompute_activations(model, setting.recipe.memory)
        return model

    def run(self, host: Batch) -> tuple[dict[str, Bytes], Bytes, int]:
        """Peaks by moment, live bytes between two steps, and bytes of saved tensors in host memory."""
        self._replace_by_fakes()
        # FakeTensors have no memory that functions of packages for GPUs could read.
        of_gpus, of_documents = plain_functions(self.model), documents_apart(self.model)
        with of_gpus, of_documents, self._fake, self._live, self._live.follow_resizing():
            return self._run(host)

    def _replace_by_fakes(self) -> None:
        """Replace weights and buffers on the meta device by FakeTensors on the device; tied ones stay tied."""
        fakes: dict[torch.Tensor, torch.Tensor] = {}
        for module in self.model.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = fakes.setdefault(tensor, self._faked(tensor))
        setting = self._setting
        # FSDP moves weights to an accelerator block by block, and can also read them from the files that way.
        is_whole = setting.device.shares_host_memory and not may_defer(setting.recipe.model)
        if setting.strategy != "fsdp" or is_whole:
            self._count_weights(self.model)
        for each in self.model.buffers():
            self._live.add(each, "weights")

    def _count_weights(self, module: nn.Module) -> None:
        for name, weight in module.named_parameters():
            self._live.add(weight, "adapters" if is_adapter_weight(name) else "weights")

    def _count_gradients(self, trained: list[nn.Parameter]) -> None:
        for weight in trained:
            if weight.grad is not None:
                self._live.add(weight.grad, "gradients")

    def _faked(self, tensor: torch.Tensor) -> torch.Tensor:
        content = tensor if tensor.is_meta else tensor.detach().to("meta")
        faked = FakeTensor(self._fake, content.detach(), self._setting.device.torch_device)
        return nn.Parameter(faked, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else faked

    def _run(self, host: Batch) -> tuple[dict[str, Bytes], Bytes, int]:
        setting, live = self._setting, self._live
        recipe, device, precision = setting.recipe, setting.device, setting.precision
        live.enter("sharding", "weights")
        strategy: Strategy = STRATEGIES[setting.strategy](setting)
        root = RootModule(self.model)
        strategy.shard(root, precision, self._count_weights)
        objective = make_objective(
            self.model, recipe, head_form=setting.head_form, mean_over_ranks=lambda total, count: total / count
        )
        module, optimizer = strategy.prepare(
            root, precision,
            lambda: make_optimizer(
                recipe.optim, self.model.named_parameters(), recipe.learning_rate,
                fused=device.fuses_optimizer(precision.compute), plus_ratio=recipe.method.lora.plus_ratio,
                tables=tables_of(self.model),
            ),
        )  # fmt: skip
        trained = [each for each in objective.parameters() if each.requires_grad]
        self._count_weights(self.model)
        live.enter(FIRST_UPDATE, "gradients")
        for weight in trained:
            if weight.grad is None:
                weight.grad = gradient_of(strategy, weight)
        self._update(strategy, module, optimizer, trained)
        full_gradients = []
        if recipe.batch.accumulate > 1:
            # All micro-batches but the first add to existing gradients.
            live.enter("accumulating", "gradients")
            if isinstance(strategy, FsdpStrategy) and strategy.reduces_once:
                full_gradients = [
                    torch.empty(weight.shape, dtype=torch.float32, device=weight.device) for weight in trained
                ]
            else:
                for weight in trained:
                    weight.grad = gradient_of(strategy, weight)
        with self._moments(trained):
            batch = _on_device(host, setting, self._fake)
            live.enter(FORWARD, "activations")
            with precision.autocast():
                objective.begin([batch] if recipe.method.task == "singles" else [], root)
            shared = strategy.shares_casts(recipe.batch.accumulate)
            with precision.shared_casts() if shared else nullcontext():
                with self._offloading(), precision.autocast():
                    loss, _ = module(objective, batch)
                live.enter("backward begins", "backward")
                (loss * 1.0).backward()
                del loss
        full_gradients.clear()
        live.enter(UPDATE, "optimizer")
        self._update(strategy, module, optimizer, trained)
        live.enter("resting")
        return live.peaks, live.now(), self._offloaded

    def _offloading(self) -> AbstractContextManager[Any]:
        """The context of `activation_store`, without memory."""
        setting = self._setting
        if not setting.recipe.memory.offload_activations or setting.device.shares_host_memory:
            return nullcontext()

        def pack(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
            self._offloaded += tensor.numel() * tensor.element_size()
            return tensor.size(), tensor.dtype, tensor.device

        def unpack(metadata: tuple[torch.Size, torch.dtype, torch.device]) -> torch.Tensor:
            size, dtype, device = metadata
            return torch.empty(size, dtype=dtype, device=device)

        return saving_all_but_weights(self.model, pack, unpack)

    def _update(
        self, strategy: Strategy, module: nn.Module, optimizer: torch.optim.Optimizer, trained: list[nn.Parameter]
    ) -> None:
        self._count_gradients(trained)
        self._live.enter(UPDATE, "optimizer")
        norm = strategy.grad_norm(module, trained)
        if (limit := self._setting.recipe.optim.max_grad_norm) is not None:
            strategy.clip(trained, limit, norm)
        # Adafactor reads norms and the step number on the host.
        with self._live.reading_one():
            optimizer.step()
        optimizer.zero_grad()

    @contextmanager
    def _moments(self, trained: list[nn.Parameter]) -> Iterator[None]:
        """Context in which forward and backward pass are divided into moments, block by block."""
        live, handles = self._live, []
        repeats = self._repeats
        assert repeats is not None

        def before(label: str | None, *_: Any) -> None:
            live.enter(f"{FORWARD} {label}")

        def begin_backward(label: str | None) -> None:
            # Gradients that FSDP has reduced since the last block.
            self._count_gradients(trained)
            live.enter(f"{BACKWARD} {label}", "backward")

        def after(label: str | None, _module: nn.Module, _arguments: Any, outcome: Any) -> None:
            hidden = outcome[0] if isinstance(outcome, tuple) else outcome
            if isinstance(hidden, torch.Tensor) and hidden.requires_grad:
                hidden.register_hook(lambda _: begin_backward(label))

        def ends(*_: Any) -> None:
            live.enter(LOSS, "loss")

        for position, block in enumerate(decoder_blocks(self.model)[1]):
            label = repeats.label(position, self._count)
            handles.append(block.register_forward_pre_hook(partial(before, label)))
            handles.append(block.register_forward_hook(partial(after, label)))
        handles.append(decoder_of(self.model).register_forward_hook(ends))
        handles += [
            weight.register_post_accumulate_grad_hook(lambda weight: live.add(weight.grad, "gradients"))
            for weight in trained
            if not isinstance(weight, DTensor)
        ]
        try:
            yield
        finally:
            for each in handles:
                each.remove()


def _batch(setting: TrainingChoices, documents: Sequence[DocumentSize]) -> Batch:
    """A micro-batch of documents of these sizes; the last tokens of each count in the loss."""
    lengths = [each.tokens for each in documents]
    longest = max(lengths)
    starts = np.cumsum([0, *lengths[:-1]]) if setting.padding_free else np.arange(len(lengths)) * longest
    index = [
        np.arange(start + each.tokens - 1 - min(each.labels, each.tokens - 1), start + each.tokens - 1)
        for start, each in zip(starts.tolist(), documents, strict=True)
    ]
    positions = np.concatenate(index).astype(np.int64)
    shape = (1, sum(lengths)) if setting.padding_free else (len(lengths), longest)
    batch = Batch(
        input_ids=np.zeros(shape, np.int64),
        position_ids=np.concatenate([np.arange(each) for each in lengths])[None] if setting.padding_free else None,
        cu_seqlens=(0, *np.cumsum(lengths).tolist()) if setting.padding_free else None,
        target_index=positions,
        targets=np.zeros(len(positions), np.int64),
        tokens=sum(lengths),
        attention_mask=None if setting.padding_free else np.ones(shape, np.int64),
    )
    if setting.recipe.method.stage not in ("reward", "preference"):
        return batch
    size = 1 if setting.recipe.method.task == "singles" else 2
    return replace(
        batch,
        documents=len(lengths),
        target_document=np.repeat(np.arange(len(index)), [len(each) for each in index]),
        last_index=(starts + np.array(lengths) - 1).astype(np.int64),
        values=np.zeros(len(lengths) // size, np.float32),
        rows=tuple(range(len(lengths))),
    )


def _on_device(host: Batch, setting: TrainingChoices, fake: FakeTensorMode) -> DeviceBatch:
    reference = np.zeros(host.documents) if setting.recipe.method.needs_reference else None
    with unset_fake_temporarily():
        batch = to_device(host, CpuDevice(), reference, masked=setting.attention.is_own)

    def without_content(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return fake.from_tensor(value)
        if isinstance(value, DoubleFloat):
            return DoubleFloat(*map(without_content, value))
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: without_content(getattr(value, each.name)) for each in fields(value)})
        return value

    faked: DeviceBatch = without_content(batch)
    return faked
