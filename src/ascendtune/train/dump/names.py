"""Names of modules and parameters in the plain transformers model, without those of wrappers."""

from __future__ import annotations

from torch import nn

# Added by FSDP1, torch's checkpoint wrapper, torch.compile.
_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})


def plain_name(name: str) -> str:
    """`name` without the parts that DDP, FSDP, torch.compile, checkpointing and PEFT add.

    `module.base_model.model.model.layers.0.q_proj.base_layer.weight` is `model.layers.0.q_proj.weight`. LoRA matrices
    keep their part of the name: `model.layers.0.q_proj.lora_A.default.weight`.
    """
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while parts and parts[0] == "module":
        del parts[0]
    if parts[:1] == ["base_model"]:
        # The PeftModel's `base_model`, and the tuner's `model`.
        del parts[:2]
    if "modules_to_save" in parts:
        # `lm_head.modules_to_save.default.weight` becomes `lm_head.weight`.
        at = parts.index("modules_to_save")
        del parts[at : at + 2]
    return ".".join(part for part in parts if part != "base_layer")


def plain_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of `model` by plain name; if several have the same, the innermost.

    Base layers below an adapter are excluded: the layer's result is that of the wrapper. So are the originals of
    modules that PEFT trains as copies.
    """
    modules = {}
    for name, module in model.named_modules():
        parts = name.split(".")
        if "base_layer" not in parts and "original_module" not in parts:
            modules[plain_name(name)] = module
    return modules


def plain_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters of `model` by plain name, tied ones once."""
    return {plain_name(name): each for name, each in model.named_parameters() if each.requires_grad}
