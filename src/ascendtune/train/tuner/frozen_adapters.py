"""Frozen adapters beside the trained one; all are exported as one plain LoRA adapter that results in the same model.

The frozen ones are those of `start_from`, and that of PiSSA, whose trained adapter starts as the principal part of each
weight (Meng et al. 2024, arXiv:2404.02948). The paper splits W into W - s·B₀A₀, frozen, and s·BA, trained. Here the
base stays W and a second, frozen adapter subtracts s·B₀A₀: the same function and the same gradients. W is never rounded
again, and the exported adapter fits the model on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.errors import RecipeError
from ascendtune.train.deferred_weights import is_unread

TRAINED = "default"
"""Name of the trained adapter in PEFT."""
Pair = tuple[torch.Tensor, torch.Tensor]
"""A (rank, in) and B (out, rank), which includes the scale."""
Compute = Callable[[Callable[[], None], Sequence[torch.Tensor]], None]
"""Calls a function that fills tensors, each of any shape; with several ranks one calls it, and all get its values."""

# Up to this size a full decomposition is fast; that of an 11008 × 4096 weight takes 50 s on a core, and a model has
# hundreds. Larger weights: subspace iteration (the paper's fast variant, with its 16 iterations).
_WHOLE_UP_TO = 1024
_ITERATIONS = 16
_SEED = 0
"""Of the subspace iteration: with one seed for all matrices the order in which they are decomposed has no effect."""
_START = "start"


def frozen_adapters(tuned: Any) -> list[str]:
    """Names of the frozen adapters."""
    return [name for name in tuned.peft_config if name != TRAINED]


def keep_frozen_adapters(tuned: Any) -> None:
    """Store a copy of the frozen adapters on the host, as a strategy may shard their weights.

    Nothing is stored if they are on the meta device: such a model is planned, and never exported.
    """
    from peft import get_peft_model_state_dict

    names = frozen_adapters(tuned)
    if any(each.is_meta and any(f".{own}." in name for own in names) for name, each in tuned.named_parameters()):
        return
    tuned.frozen_pairs = [
        _pairs(tuned, get_peft_model_state_dict(tuned, adapter_name=name, save_embedding_layers=False), name)
        for name in names
    ]


def write_sum(tuned: Any, directory: Path) -> None:
    """Add the frozen adapters of `tuned`, if any, to the adapter that PEFT has saved in `directory`, and rewrite it."""
    from peft import LoraConfig
    from safetensors.torch import load_file, save_file

    if not frozen_adapters(tuned):
        return
    file = directory / "adapter_model.safetensors"
    trained = load_file(file)
    terms = [_pairs(tuned, trained, TRAINED), *tuned.frozen_pairs]
    layers = sorted(set().union(*terms))
    rank = max(sum(len(term[layer][0]) for term in terms if layer in term) for layer in layers)
    folded = {key: tensor for key, tensor in trained.items() if ".lora_" not in key}
    for layer in layers:
        a, b = sum_pairs([term[layer] for term in terms if layer in term], rank)
        folded |= {f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}
    save_file(folded, file, metadata={"format": "pt"})
    config = LoraConfig.from_pretrained(directory)
    config.r, config.lora_alpha, config.use_rslora = rank, rank, False
    config.rank_pattern, config.alpha_pattern = {}, {}
    if any(set(term) != set(layers) for term in terms):
        config.target_modules = [layer.removeprefix("base_model.model.") for layer in layers]
    config.save_pretrained(directory)


def bytes_of_sum(tuned: Any) -> int:
    """Bytes of the adapter that `write_sum` writes for `tuned`: for each layer A (rank, in) and B (out, rank), fp32,
    with the largest sum of ranks of all adapters of a layer.
    """
    layers = [module for module in tuned.modules() if len(getattr(module, "lora_A", ()))]
    pairs = [(list(layer.lora_A.values()), list(layer.lora_B.values())) for layer in layers]
    rank: int = max(sum(a.weight.shape[0] for a in of_layer) for of_layer, _ in pairs)
    width: int = sum(a[0].weight.shape[1] + b[0].weight.shape[0] for a, b in pairs)
    return 4 * rank * width


def sum_pairs(pairs: list[Pair], rank: int) -> Pair:
    """A (rank, in) and B (out, rank), fp32, with B·A = Σ Bᵢ·Aᵢ over `pairs`, whose sum has at most that rank.

    The sum is decomposed again instead of concatenated: if two terms nearly cancel each other (PiSSA), the matrices
    become as small as their difference, which then survives the cast to bf16 at inference.
    """
    left = torch.cat([b for _, b in pairs], dim=1).double()
    right = torch.cat([a for a, _ in pairs], dim=0).double()
    (q_left, r_left), (q_right, r_right) = torch.linalg.qr(left), torch.linalg.qr(right.T)
    u, s, vh = torch.linalg.svd(r_left @ r_right.T, full_matrices=False)
    root = s.sqrt()
    a, b = right.new_zeros(rank, right.shape[1]), left.new_zeros(len(left), rank)
    a[: len(s)], b[:, : len(s)] = root[:, None] * vh @ q_right.T, q_left @ u * root
    return a.float(), b.float()


def _pairs(tuned: Any, tensors: dict[str, torch.Tensor], adapter: str) -> dict[str, Pair]:
    """Layer name -> its pair, from a state dict with PEFT's names."""
    pairs = {}
    for key, a in tensors.items():
        if key.endswith(".lora_A.weight"):
            layer = key.removesuffix(".lora_A.weight")
            pairs[layer] = _pair(a, tensors[f"{layer}.lora_B.weight"], tuned.get_submodule(layer).scaling[adapter])
    return pairs


def _pair(a: torch.Tensor, b: torch.Tensor, scaling: float) -> Pair:
    return a.detach().float().cpu(), (b * scaling).detach().float().cpu()


def compute_here(fill: Callable[[], None], tensors: Sequence[torch.Tensor]) -> None:
    """`Compute` of a single process: call `fill`, which fills `tensors`, each of any shape."""
    fill()


def init_pissa(tuned: Any, compute: Compute) -> None:
    """Set the adapter of `tuned` (a PeftModel) to the principal part of each weight, and add a frozen one to undo it.

    Adapters of weights that are still in their files are left as they are: `set_to_principal_parts` sets them later.

    Raises:
        RecipeError: the rank is larger than a weight has singular values.
    """
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    config = tuned.peft_config[TRAINED]
    # Dropout in the frozen adapter would keep it from cancelling the start. The class for sequence classification would
    # add a score head of its own for this adapter, so the plain class's method is called.
    PeftModel.add_adapter(tuned, _START, replace(config, lora_dropout=0.0, modules_to_save=None))
    layers = []
    for name, layer in tuned.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if TRAINED not in layer.lora_A:
            raise RecipeError(
                f"method.lora.init: pissa supports linear layers only, and {name} is not one",
                code="pissa-needs-linear",
                remedy="name linear layers in method.lora.target, or use init: zero",
            )
        weight, rank = layer.get_base_layer().weight, layer.r[TRAINED]
        if rank > min(weight.shape):
            raise RecipeError(
                f"method.lora.rank: {rank} is larger than the smaller dimension of {name} "
                f"({weight.shape[0]} × {weight.shape[1]}), the limit of init: pissa",
                code="lora-rank-too-large",
                remedy=f"set method.lora.rank to {min(weight.shape)} or less, or use init: zero",
            )
        if not weight.is_meta and not is_unread(weight):
            layers.append(layer)
    set_to_principal_parts(tuned, layers, compute)


def set_to_principal_parts(tuned: Any, layers: Sequence[Any], compute: Compute) -> None:
    """Set the adapters of `layers`, layers of `tuned`, to the principal parts of their weights, which have been read.

    Args:
        compute: computes them; all ranks must call this with the same layers.
    """
    factors = [each[name].weight.data for layer in layers for each in (layer.lora_A, layer.lora_B) for name in each]
    compute(lambda: _decompose(layers), factors)
    if stored := getattr(tuned, "frozen_pairs", None):
        names = {module: name for name, module in tuned.named_modules()}
        for layer in layers:
            a, b = layer.lora_A[_START].weight, layer.lora_B[_START].weight
            stored[0][names[layer]] = _pair(a, b, layer.scaling[_START])


def _decompose(layers: Sequence[Any]) -> None:
    for layer in layers:
        weight, rank = layer.get_base_layer().weight, layer.r[TRAINED]
        a, b = principal_part(weight.detach(), rank, layer.scaling[TRAINED])
        for adapter, sign in ((TRAINED, 1), (_START, -1)):
            layer.lora_A[adapter].weight.data.copy_(a)
            layer.lora_B[adapter].weight.data.copy_(sign * b)


def principal_part(weight: torch.Tensor, rank: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A (rank, in) and B (out, rank), fp32 on the host, such that scale·BA is the best approximation of that rank.

    Always computed on the host and with the host's random numbers, so that a run resumed elsewhere starts from the same
    values.
    """
    matrix = weight.to("cpu", torch.float32)
    if min(matrix.shape) <= _WHOLE_UP_TO:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    else:
        state = torch.random.get_rng_state()
        torch.random.default_generator.manual_seed(_SEED)
        u, s, v = torch.svd_lowrank(matrix, q=rank, niter=_ITERATIONS)
        torch.random.set_rng_state(state)
        vh = v.T
    root = (s[:rank] / scale).sqrt()
    return root[:, None] * vh[:rank], u[:, :rank] * root
