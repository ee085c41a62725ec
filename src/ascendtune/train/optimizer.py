"""The optimizer, its parameter groups, and the learning rate of each step."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, assert_never

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ascendtune.core.errors import MachineError
from ascendtune.recipe.sections import OptimSection
from ascendtune.train.adamw import AdamWUpdate, KernelAdamW, LocalAdamW

_NORM = re.compile(r"norm(\.modules_to_save\.\w+)?$", re.IGNORECASE)
"""Ending of the names of normalisation layers, also of those that PEFT trains as a whole."""


def make_optimizer(
    section: OptimSection,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    learning_rate: float,
    *,
    fused: bool,
    update: AdamWUpdate | None = None,
    plus_ratio: float | None = None,
    tables: Collection[nn.Parameter] = (),
) -> torch.optim.Optimizer:
    """Make the optimizer of the trainable parameters; weight decay applies to matrices, not to biases and norms.

    The learning rate of a group is that of the step times the group's `learning_rate_factor`.

    Args:
        fused: whether AdamW makes its whole step in one kernel.
        update: the device's kernel for AdamW's large tensors, if all parameters are on the device.
        tables: two-dimensional parameters that muon leaves to AdamW; see `tables_of`.
        plus_ratio: LoRA+ (Hayou et al. 2024, arXiv:2402.12354): the learning rate factor of adapters' B matrices.
    """
    groups = parameter_groups(named_parameters, section.weight_decay, plus_ratio or 1.0)
    for group in groups:
        group["lr"] = learning_rate * group["learning_rate_factor"]
    match section.optimizer:
        case "auto" | "adamw":
            if update is not None:
                return KernelAdamW(section, groups, update)
            is_divided = any(isinstance(each, DTensor) for group in groups for each in group["params"])
            return (LocalAdamW if is_divided else torch.optim.AdamW)(
                groups,
                lr=learning_rate,
                betas=(section.beta1, section.beta2),
                eps=section.epsilon,
                # torch._fused_adamw_ runs on Ascend too, also on sharded tensors. torch_npu's own NpuFusedAdamW keeps
                # views of the first gradients: when gradients are set to None, it continues with those stale ones.
                fused=fused,
            )
        case "sgd":
            return torch.optim.SGD(groups, lr=learning_rate)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=learning_rate)
        case "muon":
            return MuonWithAdamW(section, groups, learning_rate, tables)
        case _:
            assert_never(section.optimizer)


class MuonWithAdamW(torch.optim.Optimizer):
    """torch.optim.Muon for the matrices of a model, AdamW for everything else, over one set of groups and states.

    Muon is by Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon), with the scale of Liu et al. 2025,
    arXiv:2502.16982, equation 4: an update is 0.2 · sqrt(max(rows, columns)) times the learning rate, so that one rate
    suits both parts.

    Args:
        groups: from `parameter_groups`.
        tables: two-dimensional parameters that are not matrices of the model.

    Raises:
        MachineError: this torch has no Muon.
    """

    def __init__(
        self,
        section: OptimSection,
        groups: list[dict[str, Any]],
        learning_rate: float,
        tables: Collection[nn.Parameter] = (),
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise MachineError(
                f"torch {torch.__version__} has no Muon, which optim.optimizer: muon needs",
                code="package-too-old",
                remedy="install torch 2.9 or newer, or set optim.optimizer: adamw",
            )
        table_ids = {id(each) for each in tables}
        divided = []
        for group in groups:
            matrices = [each for each in group["params"] if each.ndim == 2 and id(each) not in table_ids]
            others = [each for each in group["params"] if each.ndim != 2 or id(each) in table_ids]
            divided += [{**group, "params": matrices, "is_muon": True}, {**group, "params": others, "is_muon": False}]
        super().__init__([group for group in divided if group["params"]], {})
        of_muon, of_adamw = (
            [group for group in self.param_groups if group["is_muon"] is kind] for kind in (True, False)
        )
        # The parts write their defaults into the groups, which are shared.
        self._parts: dict[bool, torch.optim.Optimizer] = {}
        if of_muon:
            self._parts[True] = torch.optim.Muon(
                of_muon, lr=learning_rate, momentum=section.muon_momentum, adjust_lr_fn="match_rms_adamw"
            )
        betas = section.beta1, section.beta2
        if of_adamw:
            self._parts[False] = torch.optim.AdamW(of_adamw, lr=learning_rate, eps=section.epsilon, betas=betas)
        self._share()

    def _share(self) -> None:
        """Pass this optimizer's groups and states to the parts: loading a checkpoint replaces them."""
        for kind, part in self._parts.items():
            part.param_groups = [group for group in self.param_groups if group["is_muon"] is kind]
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # the loop never gives a closure
        """Make one step of each part. Parameters without a gradient are left out."""
        self._share()
        for part in self._parts.values():
            part.step()


def tables_of(model: nn.Module) -> list[nn.Parameter]:
    """Two-dimensional weights that are not matrices between hidden states.

    Embeddings, (entries, hidden), the head, a reward model's score head, and parameters for which `is_vector` is true.
    """
    modules: list[Any] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    head = getattr(model, "get_output_embeddings", lambda: None)() or getattr(model, "score", None)
    tables = [parameter for module in (*modules, *([head] if head else [])) for parameter in module.parameters()]
    return tables + [parameter for name, parameter in model.named_parameters() if is_vector(name)]


def states_per_parameter(section: OptimSection) -> int:
    """Approximate number of the optimizer's tensors per parameter; `state_numbers` is exact for each parameter.

    Adafactor stores a row and a column for each matrix; they count as 0. Muon stores one tensor for each matrix; the
    second one of embeddings and head is left out.
    """
    match section.optimizer:
        case "auto" | "adamw":
            return 2
        case "muon":
            return 1
        case "sgd" | "adafactor":
            return 0
        case _:
            assert_never(section.optimizer)


def state_numbers(section: OptimSection, shape: Sequence[int], *, is_table: bool) -> int:
    """Numbers in the optimizer's state of a parameter of `shape`, without its step counter.

    Args:
        is_table: whether the parameter is one of `tables_of`.
    """
    size = math.prod(shape)
    match section.optimizer:
        case "muon":
            return size if len(shape) == 2 and not is_table else 2 * size
        case "adafactor":
            # Means over the last dimension and over the one before it.
            return size // shape[-1] + size // shape[-2] if len(shape) > 1 else size
        case _:
            return states_per_parameter(section) * size


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float, plus_ratio: float = 1.0
) -> list[dict[str, Any]]:
    """Groups with weight decay (two or more dimensions) and without (vectors, see `is_vector`), B matrices apart."""
    trainable = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    groups = []
    for factor in sorted({1.0, plus_ratio}):
        members = [each for each in trainable if factor == (plus_ratio if _is_b(each[0]) else 1.0)]
        matrices, others = (
            [each for name, each in members if (each.ndim >= 2 and not is_vector(name)) is kind]
            for kind in (True, False)
        )
        groups += [
            {"params": matrices, "weight_decay": weight_decay, "learning_rate_factor": factor},
            {"params": others, "weight_decay": 0.0, "learning_rate_factor": factor},
        ]
    return [group for group in groups if group["params"]]


def _is_b(name: str) -> bool:
    """Whether the parameter is the B matrix of an adapter of a linear layer or embedding, or its bias."""
    return not {"lora_B", "lora_embedding_B"}.isdisjoint(name.split("."))


def is_vector(name: str) -> bool:
    """Whether a parameter of this name is a vector: a bias, a norm, a scale, or a state space's decay.

    Some have two dimensions: biases of stacked experts, (experts, hidden), norms of Cohere's heads, (heads, width),
    and Mamba's A_log, (channels, states), which its authors exempt from weight decay, together with D.
    """
    owner, _, leaf = name.rpartition(".")
    return "bias" in leaf or leaf in ("A_log", "D", "scale") or bool(_NORM.search(owner))


class Schedule:
    """Linear warm-up from 0, then constant, linear or cosine down to `min_learning_rate_ratio`: transformers' formulas.

    Args:
        section: scheduler, warm-up and floor.
        peak: learning rate at the end of the warm-up.
        total_steps: steps of the whole run.
    """

    def __init__(self, section: OptimSection, peak: float, total_steps: int) -> None:
        self._shape = section.scheduler
        self._floor = section.min_learning_rate_ratio
        self._peak = peak
        self.total_steps = total_steps
        steps = section.warmup_steps
        self.warmup_steps = math.ceil(total_steps * section.warmup_ratio) if steps is None else steps

    def learning_rate(self, step: int) -> float:
        """Learning rate of `step`, counted from 0."""
        if step < self.warmup_steps:
            return self._peak * step / self.warmup_steps
        if self._shape == "constant":
            return self._peak
        progress = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        share = max(0.0, 1 - progress if self._shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))
        return self._peak * (self._floor + (1 - self._floor) * share)
