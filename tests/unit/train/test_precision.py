import pytest
import torch

from ascendtune.core.errors import MachineError
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.precision import choose_precision, promote_layer_norms


def device(*, bf16: bool, fp16: bool, emulates: bool = False) -> CpuDevice:
    """A CPU that claims the abilities of another chip."""
    abilities = {"supports_bf16": bf16, "computes_bf16": bf16 or emulates, "supports_fp16": fp16, "name": "a chip"}
    return type("Chip", (CpuDevice,), abilities)()


def recipe(precision: str = "auto", tuner: str = "full", dtype: str = "auto") -> Recipe:
    return Recipe.check(
        {
            "model": {"path": "m", "dtype": dtype},
            "data": {"train": "d.json"},
            "method": {"tuner": tuner},
            "precision": precision,
        }
    )


@pytest.mark.parametrize(
    ("chip", "expected"),
    [
        (device(bf16=True, fp16=True), "bf16"),
        (device(bf16=False, fp16=True), "fp16"),  # Ascend 910A, V100
        (device(bf16=False, fp16=False, emulates=True), "fp32"),  # a CPU without bf16 instructions
    ],
)
def test_auto_is_the_best_that_the_device_has(chip, expected):
    assert choose_precision(recipe(), chip).compute == expected


def test_an_unsupported_precision_is_refused():
    with pytest.raises(MachineError) as caught:
        choose_precision(recipe("bf16"), device(bf16=False, fp16=True))
    assert caught.value.code == "bf16-unsupported"
    with pytest.raises(MachineError) as caught:
        choose_precision(recipe("fp16"), device(bf16=True, fp16=False))
    assert caught.value.code == "fp16-unsupported"
    assert choose_precision(recipe("bf16"), device(bf16=False, fp16=False, emulates=True)).compute == "bf16"


def test_trained_weights_are_fp32_and_frozen_ones_as_the_products():
    chip = device(bf16=True, fp16=True)
    assert choose_precision(recipe(tuner="full"), chip).weights == "fp32"
    assert choose_precision(recipe(tuner="lora"), chip).weights == "bf16"
    assert choose_precision(recipe(tuner="lora", dtype="fp32"), chip).weights == "fp32"


def test_only_fp16_scales_its_loss():
    chip = device(bf16=True, fp16=True)
    assert choose_precision(recipe("fp16"), chip).scaler(chip) is not None
    assert choose_precision(recipe("bf16"), chip).scaler(chip) is None
    with choose_precision(recipe("bf16"), chip).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with choose_precision(recipe("fp32"), chip).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_layer_norms_widen_their_weights_to_wider_inputs_and_never_narrow_them():
    torch.manual_seed(0)
    norm, wide = torch.nn.LayerNorm(8), torch.randn(3, 8)
    torch.nn.init.normal_(norm.weight)
    model = torch.nn.Sequential(norm)
    promote_layer_norms(model)
    with torch.autocast("cpu", torch.bfloat16):
        of_narrow_inputs = model(wide.bfloat16())
        assert of_narrow_inputs.dtype == torch.bfloat16
        model.bfloat16()
        found = model(wide)
    weight, bias = norm.weight.float(), norm.bias.float()
    torch.testing.assert_close(found, torch.nn.functional.layer_norm(wide, (8,), weight, bias), rtol=0, atol=0)


def test_the_scale_of_gradients_in_host_memory_is_there_itself() -> None:
    """What is queued from a device to the host has not come when the host divides by it."""
    chip = device(bf16=False, fp16=True)
    scaler = choose_precision(recipe("fp16"), chip).scaler(chip, on_host=True)
    assert scaler is not None
    scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0})
    # A loss on another device than the gradients.
    assert scaler.scale(torch.ones((), device="meta")).is_meta and scaler._scale.device.type == "cpu"
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([8.0, 16.0])
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [1.0, 2.0]
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.0, -1.0] and scaler.get_scale() == 8.0
