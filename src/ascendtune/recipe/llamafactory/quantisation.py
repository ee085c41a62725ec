"""LLaMA-Factory's keys for a quantised base, which have nearly the same names in both forms of its recipes."""

from __future__ import annotations

from ascendtune.recipe.llamafactory.llamafactory_recipe import LlamaFactoryRecipe, NativeRecipe

_LESS_MEMORY = "remove it: lora with a frozen bf16 base (bf16: true) needs no quantisation"


def translate_quantisation(
    recipe: LlamaFactoryRecipe, native: NativeRecipe, *, section: str = "", by_default: int | None = None
) -> None:
    """Translate four bits in NF4 into `model.quantization`; everything else is an error.

    Args:
        section: prefix of the keys' names.
        by_default: number of bits if the recipe does not set it.
    """
    bit, kind, double = (
        f"{section}{name}" for name in ("quantization_bit", "quantization_type", "double_quantization")
    )
    bits = by_default if recipe[bit] is None else recipe[bit]
    if bits is None:
        for key in (kind, double):
            if recipe.given(key):
                native.note_ignored(key, f"it belongs to {bit}, which is not set")
        return
    if bits != 4:
        remedy = f"set {bit}: 4; or {_LESS_MEMORY}"
        recipe.refuse(bit, f"{bit}: {bits}", remedy)
        return
    if recipe[kind] != "nf4":
        recipe.refuse(kind, f"{kind}: {recipe[kind]}", "remove it: nf4 is nearer to the weights")
        return
    native.put("model.quantization", recipe[kind], recipe.place(bit))
    native.put("model.double_quantization", recipe[double], recipe.place(double if recipe.given(double) else bit))
