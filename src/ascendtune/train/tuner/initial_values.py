"""Initial values of adapters that depend on the weights: DoRA's magnitudes, and the factors of PiSSA.

Those of a layer whose weight is still in its file are computed when the weight has been read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ascendtune.recipe.method import MethodSection
from ascendtune.train.deferred_weights import is_unread
from ascendtune.train.tuner.frozen_adapters import TRAINED, Compute, set_to_principal_parts


def computing_initial_values(
    tuned: Any, section: MethodSection, fill: Callable[[nn.Module], None], compute: Compute
) -> Callable[[nn.Module], None]:
    """`fill`, which reads the weights of a module and its submodules, extended by the initial values of their adapters.

    Args:
        tuned: a PeftModel, whose adapters have initial values where weights are not in files; or a model without.
        compute: computes those that must be equal on all ranks.
    """
    lora = section.lora
    if section.tuner != "lora" or lora.start_from or not (lora.dora or lora.init == "pissa"):
        return fill
    layers = {
        layer.get_base_layer(): layer
        for layer in tuned.modules()
        if TRAINED in getattr(layer, "lora_variant" if lora.dora else "lora_A", ())
        if is_unread(layer.get_base_layer().weight)
    }

    def fill_and_compute(module: nn.Module) -> None:
        fill(module)
        read = [layers.pop(each) for each in module.modules() if each in layers]
        if lora.dora:
            for layer in read:
                _set_magnitude(layer, tuned.peft_config[TRAINED])
        if lora.init == "pissa" and read:
            set_to_principal_parts(tuned, read, compute)

    return fill_and_compute


def _set_magnitude(layer: Any, config: Any) -> None:
    """Set DoRA's magnitude to the norms of the weight, computed as PEFT does when it adds an adapter."""
    module = layer.lora_magnitude_vector[TRAINED]
    factors = [each[TRAINED] for each in (layer.lora_A, layer.lora_B) if TRAINED in each]
    parameters = [each.weight for each in factors] or [layer.lora_embedding_A[TRAINED], layer.lora_embedding_B[TRAINED]]
    trained = [each.data for each in parameters]
    with torch.no_grad():
        for each in parameters:
            # A new adapter has the dtype of the weight; it is trained in a wider one.
            each.data = each.data.to(layer.get_base_layer().weight.dtype)
        layer.lora_variant[TRAINED].init(layer, adapter_name=TRAINED, config=config)
        for each, data in zip(parameters, trained, strict=True):
            each.data = data
        computed = layer.lora_magnitude_vector[TRAINED].weight
        module.weight.data = computed.detach().to(module.weight.dtype)
    # The module that the strategy knows.
    layer.lora_magnitude_vector[TRAINED] = module
