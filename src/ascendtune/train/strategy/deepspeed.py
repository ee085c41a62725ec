"""DeepSpeed ZeRO: optimizer state, gradients and weights are sharded, on the devices or offloaded.

The engine runs the backward pass and the step; loop, divisor, schedule and optimizer are those of all strategies.
"""

from __future__ import annotations

import copy
import logging
import os
import pickle
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import InputError, MachineError, RecipeError
from ascendtune.core.files import probe_disk
from ascendtune.core.ownership import require_own
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.deepspeed_config import (
    Config,
    parts_on_disk,
    require_deepspeed,
    silence_deepspeed,
    stage_of,
    zero_config,
)
from ascendtune.recipe.parallel import STAGE_0_REMEDY, STAGE_0_ROUNDS
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.content import (
    CheckpointContent,
    damaged_checkpoint,
    digests_of_ranks,
    write_files,
)
from ascendtune.train.checkpoint.size import zero_bytes
from ascendtune.train.dump.whole_tensors import EngineTensors
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import GroupStrategy, MakeOptimizer, RootModule, Strategy
from ascendtune.train.strategy.deepspeed_disk import SwappedState, fit_buffers, require_disk, swap_directories
from ascendtune.train.tuner.mixtures import bypassed_experts, listed_experts

# Its directory inside a checkpoint.
_TAG = "zero"
_FORCE, _FORCE_NO = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_STARTED = False


class DeepSpeedStrategy(GroupStrategy):
    name = "deepspeed"
    updates_on_device = False

    def __init__(self, device: Device, recipe: Recipe, reason: str = "as asked") -> None:
        global _STARTED
        if _STARTED:
            raise MachineError(
                "DeepSpeed can be started only once per process",
                code="deepspeed-started-twice",
                remedy="start each training run in its own process, as `ascendtune train` does",
            )
        _STARTED = True
        self._deepspeed = _import()
        super().__init__(device, recipe, reason)
        config = zero_config(recipe, compute=None, ranks=None, hidden_size=None)
        require_accepted(config, recipe)
        self._stage = stage_of(config)
        self._swaps = bool(parts_on_disk(config))
        self._stack = ExitStack()
        # At stage 0 the engine steps like torch's optimizers.
        self.clips_in_step = self.is_sharded = self._stage > 0

    def prepare(
        self, root: RootModule, precision: Precision, make_optimizer: MakeOptimizer
    ) -> tuple[nn.Module, Optimizer]:
        config = zero_config(
            self.recipe, compute=precision.compute, ranks=self.world_size, hidden_size=_hidden_size(root)
        )
        require_divisible(root.model, precision, stage=self._stage, ranks=self.world_size)
        if self._stage > 0 and self.world_size > 1:
            _use_bypassed_experts(root, stage=self._stage)
        if self._stage == 3:
            _pass_gradients_to_adapted_experts(root)
        if self._swaps:
            require_disk(config, compute=precision.compute)
            fit_buffers(config, root, ranks=self.world_size)
            self._stack.enter_context(swap_directories(config))
        # torchrun sets it; DeepSpeed does not start without it.
        os.environ.setdefault("LOCAL_RANK", "0")
        with _refusals(self.recipe):
            engine, *_ = self._deepspeed.initialize(
                model=root, optimizer=make_optimizer(), config=config, dist_init_required=False
            )
        self._tensors = EngineTensors(engine)
        if self._stage == 3:
            # The loss multiplies with the head's weight without calling the head.
            for weight in _head_weights(root):
                self._deepspeed.zero.register_external_parameter(root, weight)
        return engine, EngineOptimizer(engine)

    def loop_precision(self, precision: Precision) -> Precision:
        """The engine has weights in the compute dtype, fp32 ones in its optimizer, and scales fp16 losses itself."""
        return replace(precision, compute="fp32", skips_overflows=precision.compute == "fp16")

    @contextmanager
    def no_sync(self, module: nn.Module) -> Iterator[None]:
        engine: Any = module
        engine.set_gradient_accumulation_boundary(False)
        yield
        engine.set_gradient_accumulation_boundary(True)

    def backward(self, module: nn.Module, loss: torch.Tensor) -> None:
        engine: Any = module
        engine.backward(loss)

    def grad_norm(self, module: nn.Module, parameters: list[nn.Parameter]) -> torch.Tensor:
        if not self.clips_in_step:
            return super().grad_norm(module, parameters)
        engine: Any = module
        return torch.as_tensor(engine.get_global_grad_norm(), dtype=torch.float32, device=self.device.torch_device)

    def full_param(self, parameter: nn.Parameter) -> torch.Tensor:
        """The full value of a parameter, any shape, in fp32 if it is trained."""
        return self._tensors.parameter(parameter)

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        return self._tensors.gradient(parameter)

    def checkpoint_content(self, model: nn.Module, optimizer: Optimizer) -> CheckpointContent:
        assert isinstance(optimizer, EngineOptimizer)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # A sharded weight is empty and stores its size.
        size = sum(
            getattr(each, "ds_numel", each.numel()) * zero_bytes(self.recipe.optim, self._stage, each.element_size())
            for each in trained
        )
        kind = SwappedState if self._swaps else EngineState
        return kind(optimizer.engine, size, self)

    def close(self, *, together: bool = True) -> None:
        self._stack.close()
        super().close(together=together)


class EngineState(CheckpointContent):
    """Checkpoints that the engine writes and reads itself."""

    supports_any_rank_count = False

    def __init__(self, engine: Any, size_bytes: int, strategy: Strategy) -> None:
        # Stages 1 and 2 write the same files; stages 0 and 3 write others, and DeepSpeed fails if they are missing.
        stage = int(engine.zero_optimization_stage())
        self.form = "zero" if stage in (1, 2) else f"zero-{stage}"
        self._engine = engine
        self._size_bytes = size_bytes
        self._strategy = strategy

    def size_bytes(self) -> int:
        return self._size_bytes

    def write(self, directory: Path, files: Mapping[str, bytes]) -> Future[dict[str, str]]:
        self._strategy.barrier()  # the directory exists
        digests = write_files(directory, files)
        try:
            self._engine.save_checkpoint(str(directory), tag=_TAG, save_latest=False, exclude_frozen_parameters=True)
        except RuntimeError:
            # torch's writer raises this for any error: write to the disk to find its error.
            probe_disk(directory)
            raise
        rank = self._strategy.rank
        own = [path for path in (directory / _TAG).iterdir() if _writer_of(path.name) == rank]
        if self._strategy.is_main:
            # DeepSpeed's script that joins the shards.
            own += [path for path in directory.iterdir() if path.is_file() and path.name not in digests]
        written: Future[dict[str, str]] = Future()
        written.set_result(digests_of_ranks(directory, digests, own, self._strategy.gather))
        return written

    def read(self, directory: Path) -> None:
        try:
            with _plain_pickles_only():
                self._engine.load_checkpoint(str(directory), tag=_TAG, load_module_strict=False)
            if self._engine.zero_optimization_partition_weights():
                # Loading leaves small weights gathered; shard them as at a new start: ZeRO-3 records that a module
                # reads the weight of another one (DoRA) only if that is sharded at its first use. A weight that it has
                # not recorded is missing when activations are recomputed.
                self._engine.optimizer.checkpoint_event_prologue()
        except pickle.UnpicklingError as error:
            # torch's own message recommends to allow code.
            raise damaged_checkpoint(
                directory, "DeepSpeed's files contain more than tensors and plain values"
            ) from error
        except (ValueError, AssertionError) as error:
            raise InputError(
                f"DeepSpeed cannot read this checkpoint with the present configuration: {error}",
                code="checkpoint-form-differs",
                remedy="resume with the DeepSpeed JSON that wrote it; or start over: checkpoint.resume=never",
                where=directory,
            ) from error


def _writer_of(name: str) -> int:
    """The rank that writes DeepSpeed's file `name`; the main rank for files of no particular rank."""
    match = re.search(r"zero_pp_rank_(\d+)_", name)
    return int(match[1]) if match else 0


@contextmanager
def _plain_pickles_only() -> Iterator[None]:
    """Context in which `torch.load` accepts tensors, plain values and DeepSpeed's own metadata, and runs no code.

    DeepSpeed calls `torch.load(weights_only=False)`; torch's environment variable overrides the argument.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORCE_NO)}
    os.environ[_FORCE] = "1"
    try:
        with torch.serialization.safe_globals([DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        del os.environ[_FORCE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


class EngineOptimizer(Optimizer):
    """The engine's optimizer in the interface of the loop. From stage 1 on the engine clips in its step.

    It skips a step if gradients are not finite, leaving the weights unchanged.
    """

    def __init__(self, engine: Any) -> None:
        # `Optimizer.__init__` is not called: the engine has the parameters and the state.
        self.engine = engine

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        groups: list[dict[str, Any]] = self.engine.optimizer.param_groups
        return groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return getattr(self.engine.optimizer, "state", {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.engine.zero_grad()


def _import() -> Any:
    require_deepspeed()
    # Operators that DeepSpeed compiles; not in torch's common directory, where an interrupted build leaves a lock.
    operators = cache_directory() / "torch_extensions"
    if os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(operators)) == str(operators):
        operators.mkdir(0o755, parents=True, exist_ok=True)
        # They are loaded as libraries, so they are code.
        require_own(operators, operators, remedy="remove it: they are built again")
    silence_deepspeed()
    import deepspeed

    for handler in logging.getLogger("DeepSpeed").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # It lets ranks on one CPU host sum through shared memory; it takes minutes to compile, and Gloo sums as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def require_accepted(config: Config, recipe: Recipe) -> None:
    """Raise RecipeError if DeepSpeed refuses keys of the user's JSON, such as a misspelt key of a section."""
    from deepspeed.runtime.config import DeepSpeedConfig

    with _refusals(recipe):
        DeepSpeedConfig(copy.deepcopy(config))


@contextmanager
def _refusals(recipe: Recipe) -> Iterator[None]:
    """Context in which DeepSpeed's errors about a user's JSON are raised as RecipeError."""
    from deepspeed.runtime.config import DeepSpeedConfigError
    from pydantic import ValidationError

    try:
        yield
    except (DeepSpeedConfigError, ValueError, TypeError, AttributeError, AssertionError, ImportError) as error:
        file = recipe.parallel.deepspeed.config
        # Without a JSON, the recipe's own keys were translated wrongly: a bug of this program.
        if file is None:
            raise
        reasons = [str(error)]
        if isinstance(error, ValidationError):
            # The title of a ValidationError is a class, such as DeepSpeedZeroConfig.
            reasons = [f"{'.'.join(map(str, each['loc']))} ({error.title}): {each['msg']}" for each in error.errors()]
        raise RecipeError(
            f"DeepSpeed refuses this: {'; '.join(reasons)}",
            code="deepspeed-config-refused",
            remedy="install it, or remove what needs it" if isinstance(error, ImportError) else "correct or remove it",
            where=file,
        ) from error


def require_divisible(model: nn.Module, precision: Precision, *, stage: int, ranks: int) -> None:
    """Raise if `model` cannot be trained with this stage.

    Raises:
        RecipeError: the stage would round the weights; or the experts of the model are modules in a list: ranks may use
            different ones, but DeepSpeed gathers weights, or sums gradients, of each one.
    """
    if stage == 0 and precision.compute != "fp32":
        raise RecipeError(
            f"precision is {precision.compute}: {STAGE_0_ROUNDS}",
            code="zero-stage-0-precision",
            remedy=STAGE_0_REMEDY,
        )
    experts = listed_experts(model) if stage > 0 and ranks > 1 else []
    if any(each.requires_grad or stage == 3 for expert in experts for each in expert.parameters()):
        raise RecipeError(
            "the experts of this model are modules in a list, and ranks may use different ones: ZeRO would wait for "
            "weights or gradients that some ranks do not send",
            code="experts-not-divisible",
            remedy="use parallel.strategy: fsdp or ddp",
        )


def _use_bypassed_experts(root: RootModule, *, stage: int) -> None:
    """Give experts without tokens on this rank gradients of zeros, and make each of them one module to ZeRO-3.

    Without the zeros ranks would sum tensors of different sizes. ZeRO-3 compares the modules that the ranks call; more
    submodules are called if more experts are used.
    """
    from deepspeed.utils import set_z3_leaf_module

    def add_nothing(module: nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
        trained = [each for each in module.parameters(recurse=False) if each.requires_grad]
        return output + sum(each.flatten()[0] * 0 for each in trained)

    for module in bypassed_experts(root.model):
        # The engine's own hooks, which shard weights again after a call, are registered later and run after this one.
        module.register_forward_hook(add_nothing)
        if stage == 3:
            set_z3_leaf_module(module, True)


def _pass_gradients_to_adapted_experts(root: RootModule) -> None:
    """Let the inputs of adapted stacks of experts need a gradient, in the first block, too.

    ZeRO-3 follows the gradients of a module's inputs and outputs. PEFT's wrapper of stacked experts reads the weights
    of other modules; if its own inputs need no gradient, they are empty when their gradients are added.
    """
    from peft.tuners.lora.layer import ParamWrapper

    def need_gradient(module: nn.Module, _: Any, output: torch.Tensor) -> None:
        if torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_(True)

    if any(isinstance(module, ParamWrapper) for module in root.modules()):
        root.model.get_input_embeddings().register_forward_hook(need_gradient)


def _hidden_size(root: nn.Module) -> int | None:
    configs = (getattr(module, "config", None) for module in root.modules())
    return next((size for each in configs if (size := getattr(each, "hidden_size", None)) is not None), None)


def _head_weights(root: nn.Module) -> list[torch.Tensor]:
    """Weights of heads that are plain linear layers: a loss may use them without calling the head."""
    models: list[Any] = [module for module in root.modules() if hasattr(module, "get_output_embeddings")]
    heads = (model.get_output_embeddings() for model in models)
    return list(dict.fromkeys(head.weight for head in heads if type(head) is nn.Linear))
