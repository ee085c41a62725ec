"""Frozen adapters beside the one that trains; all leave as one plain LoRA adapter that gives the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TRAINED = "default"
"""PEFT's name of the adapter that trains."""
Pair = tuple[torch.Tensor, torch.Tensor]
"""A (rank, in) and B (out, rank); the scale is in B already."""


def companions(tuned: Any) -> list[str]:
    """Names of the frozen adapters."""
    return [name for name in tuned.peft_config if name != TRAINED]


def remember_companions(tuned: Any) -> None:
    """Keep a copy of the frozen adapters on the host: a strategy may divide their weights among ranks."""
    from peft import get_peft_model_state_dict

    tuned.companions = [
        _pairs(tuned, get_peft_model_state_dict(tuned, adapter_name=name, save_embedding_layers=False), name)
        for name in companions(tuned)
    ]


def fold(tuned: Any, directory: Path) -> None:
    """Rewrite the adapter that PEFT saved in `directory`: add to it what stands frozen beside it in `tuned`.

    Does nothing where it stands alone.
    """
    from peft import LoraConfig
    from safetensors.torch import load_file, save_file

    if not companions(tuned):
        return
    file = directory / "adapter_model.safetensors"
    trained = load_file(file)
    terms = [_pairs(tuned, trained, TRAINED), *tuned.companions]
    layers = sorted(set().union(*terms))
    rank = max(sum(len(term[layer][0]) for term in terms if layer in term) for layer in layers)
    folded = {key: tensor for key, tensor in trained.items() if ".lora_" not in key}
    for layer in layers:
        a, b = add([term[layer] for term in terms if layer in term], rank)
        folded |= {f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}
    save_file(folded, file, metadata={"format": "pt"})
    config = LoraConfig.from_pretrained(directory)
    config.r, config.lora_alpha, config.use_rslora = rank, rank, False
    config.rank_pattern, config.alpha_pattern = {}, {}
    if any(set(term) != set(layers) for term in terms):
        config.target_modules = [layer.removeprefix("base_model.model.") for layer in layers]
    config.save_pretrained(directory)


def add(pairs: list[Pair], rank: int) -> Pair:
    """One pair of `rank` with the sum of the products of `pairs`, in fp32.

    The sum is decomposed anew rather than set side by side: where two terms all but cancel each other (PiSSA), the
    matrices become as small as their difference, and survive being cast to bf16 by whoever serves them.
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
    """Layer name -> its pair, from a state dict in PEFT's naming."""
    found = {}
    for key, a in tensors.items():
        if key.endswith(".lora_A.weight"):
            layer = key.removesuffix(".lora_A.weight")
            b = tensors[f"{layer}.lora_B.weight"] * tuned.get_submodule(layer).scaling[adapter]
            found[layer] = a.detach().float().cpu(), b.detach().float().cpu()
    return found
