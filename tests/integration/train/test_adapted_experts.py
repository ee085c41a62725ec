"""LoRA on stacked experts as grouped low-rank products, held against PEFT's forward."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.integration.train.test_experts import (
    BF16,
    CALLS,
    FP32,
    MLA,
    SHAPE,
    assert_same_gradients,
    loss_and_gradients,
    model_of,
)
from tests.integration.train.test_experts import kernel as kernel
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.kernel import adapted_experts
from ascendtune.train.kernel.adapted_experts import AdaptedExperts, find_adapted_experts
from ascendtune.train.kernel.experts import grouped_mm
from ascendtune.train.kernel.install import install_kernels
from ascendtune.train.precision import Precision
from ascendtune.train.tuner.lora import train_in_fp32

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

QWEN: tuple[str, dict[str, Any]] = ("Qwen3MoeConfig", {"num_experts": 6})
GPT_OSS: tuple[str, dict[str, Any]] = ("GptOssConfig", {"num_local_experts": 6})
"""Stored transposed, with biases."""
FAMILIES = [
    QWEN,
    ("Qwen3MoeConfig", {"num_experts": 4, "experts_implementation": "eager"}),
    ("MixtralConfig", {"num_local_experts": 4, "intermediate_size": 32}),  # down_proj is square
    ("DeepseekV3Config", MLA),
    GPT_OSS,
]
BOTH = ["experts.gate_up_proj", "experts.down_proj"]


def adapted(
    family: tuple[str, dict[str, Any]], *, dtype: torch.dtype = torch.float32, targets: list[str] = BOTH, **keys: Any
) -> Any:
    """A model by PEFT with fp32 adapters that change its output."""
    return with_adapters(model_of(*family, dtype=dtype), targets, **keys)


def with_adapters(model: Any, targets: list[str] = BOTH, **keys: Any) -> Any:
    config = LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj", "q_b_proj"], target_parameters=targets,
        **{"r": 3, "lora_alpha": 7, **keys},
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        tuned = get_peft_model(model, config)
        train_in_fp32(tuned)
        with torch.no_grad():
            for name, parameter in tuned.named_parameters():
                if ".lora_B." in name:
                    parameter.normal_(std=0.1)
    return tuned


def install(tuned: Any, precision: Precision = FP32) -> int:
    """The number of adapted experts that do not use PEFT's forward."""
    install_kernels(tuned.get_base_model(), "auto", find_device(), precision)
    return sum(each.is_replaced for each in find_adapted_experts(tuned))


def loss_of(tuned: Any) -> float:
    ids = torch.arange(3, 43)[None] * 7 % 512
    with torch.no_grad():
        loss: float = tuned(input_ids=ids, labels=ids, use_cache=False).loss.item()
    return loss


def require_same(tuned: Any, *, layers: int) -> None:
    """Loss and gradients are PEFT's, to rounding, and grouped products compute them."""
    expected = loss_and_gradients(tuned, FP32)
    assert install(tuned) == layers
    CALLS.clear()
    found = loss_and_gradients(tuned, FP32)
    assert len(CALLS) == layers * (2 + 2 * sum(each in BOTH for each in tuned.peft_config["default"].target_parameters))
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert_same_gradients(found[1], expected[1], 1e-5)
    with tuned.disable_adapter():
        assert abs(loss_of(tuned) - expected[0]) > 1e-4


@pytest.mark.parametrize("family", FAMILIES, ids=[f"{name[:-6]}-{at}" for at, (name, _) in enumerate(FAMILIES)])
@pytest.mark.parametrize("keys", [{}, {"r": 8}, {"r": 9, "use_rslora": True}], ids=["3", "8", "rslora"])
def test_adapters_of_each_family_agree_with_peft(family: tuple[str, dict[str, Any]], keys: dict[str, Any]) -> None:
    require_same(adapted(family, **keys), layers=1 if family[1] is MLA else 2)


@pytest.mark.parametrize("targets", [[BOTH[0]], [BOTH[1]], BOTH[::-1]], ids=["gate and up", "down", "reversed"])
@pytest.mark.parametrize("family", [QWEN, GPT_OSS], ids=["qwen3_moe", "gpt_oss"])
def test_one_of_the_matrices_may_have_an_adapter(family: tuple[str, dict[str, Any]], targets: list[str]) -> None:
    require_same(adapted(family, targets=targets), layers=2)


def test_a_and_b_may_follow_an_order_that_is_not_that_of_the_weights() -> None:
    """PEFT believes weights of classes without `is_transposed` to be (experts, out, in)."""
    model = model_of(*GPT_OSS[:1], {**GPT_OSS[1], "experts_implementation": "eager"})
    for layer in model.model.layers:
        layer.mlp.experts.is_transposed = False
    tuned = with_adapters(model)
    assert tuned.get_submodule("base_model.model.model.layers.0.mlp.experts").lora_A.default.in_features in (16, 32)
    require_same(tuned, layers=2)


def test_all_active_adapters_are_added() -> None:
    tuned = adapted(QWEN)
    tuned.add_adapter("other", deepcopy(tuned.peft_config["default"]))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if ".lora_B.other" in name:
                parameter.normal_(std=0.1)
    alone = loss_and_gradients(tuned, FP32)[0]
    tuned.base_model.set_adapter(["default", "other"])
    expected = loss_and_gradients(tuned, FP32)
    assert install(tuned) == 2
    found = loss_and_gradients(tuned, FP32)
    assert found[0] == pytest.approx(expected[0], rel=1e-6) and abs(alone - expected[0]) > 1e-4
    assert_same_gradients(found[1], expected[1], 1e-5)


class LargestResults(TorchDispatchMode):
    """Results of operators as large as `size` numbers that are not in the memory of `model`."""

    def __init__(self, model: Any, size: int) -> None:
        super().__init__()
        self._own = {each.untyped_storage().data_ptr() for each in model.parameters()}
        self._size, self.found = size, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor) and each.device.type == "cpu" and each.ndim == 3:
                is_own = each.untyped_storage().data_ptr() in self._own
                if each.numel() >= self._size and not is_own:
                    self.found.append(f"{func} {tuple(each.shape)}")
        return result


@pytest.mark.parametrize("family", [QWEN, GPT_OSS], ids=["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
def test_nothing_of_the_size_of_the_weights_is_computed(
    family: tuple[str, dict[str, Any]], precision: Precision
) -> None:
    dtype = torch.bfloat16 if precision is BF16 else torch.float32
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "intermediate_size": 64, "vocab_size": 64}
    name, changes = family
    tuned = adapted((name, {**changes, **sizes, "num_experts": 64, "num_local_experts": 64}), dtype=dtype, r=8)
    stack = min(each.numel() for each in tuned.parameters() if each.ndim == 3)

    def large_results() -> list[str]:
        ids = torch.arange(3, 33)[None]
        with LargestResults(tuned, stack) as seen, precision.autocast():
            tuned(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        return seen.found

    assert large_results()
    assert install(tuned, precision) == 2
    assert large_results() == []


@pytest.mark.parametrize("family", [QWEN, GPT_OSS], ids=["qwen3_moe", "gpt_oss"])
def test_in_bf16_results_are_about_as_exact_as_those_of_peft(family: tuple[str, dict[str, Any]]) -> None:
    tuned = adapted(family, dtype=torch.bfloat16)
    exact = loss_and_gradients(deepcopy(tuned).float(), FP32)[1]
    own = loss_and_gradients(tuned, BF16)[1]
    assert install(tuned, BF16) == 2
    found = loss_and_gradients(tuned, BF16)[1]
    assert found.keys() == own.keys() == exact.keys()
    errors = [
        torch.stack([(each[name] - exact[name]).norm() / exact[name].norm() for name in exact]).mean()
        for each in (found, own)
    ]
    assert errors[0] < 1.25 * errors[1]
    assert all(gradient.dtype == torch.float32 for gradient in found.values())


@pytest.mark.parametrize("rank", [3, 8])
def test_grouped_product_of_torch_accepts_the_layouts(rank: int, kernel: Callable[..., None]) -> None:
    """CUDA's needs strides of a multiple of 16 bytes."""

    def checked(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        for each in (rows, weight):
            assert 1 in each.stride()[-2:] and all(stride == 1 or stride % 8 == 0 for stride in each.stride())
        return grouped_mm(rows, weight, counts)

    kernel(checked)
    tuned = adapted(QWEN, dtype=torch.bfloat16, r=rank)
    expected = loss_of(tuned.float())
    tuned = adapted(QWEN, dtype=torch.bfloat16, r=rank)
    assert install(tuned, BF16) == 2
    assert loss_and_gradients(tuned, BF16)[0] == pytest.approx(expected, rel=5e-3)


def test_changes_below_the_precision_of_the_weights_are_not_lost() -> None:
    """bf16 weights of 1 plus 1/1000 are 1: PEFT's sum has no effect."""
    outputs = []
    for replaced in (False, True):
        tuned = adapted(QWEN, dtype=torch.bfloat16)
        with torch.no_grad():
            for name, parameter in tuned.named_parameters():
                if ".lora_" in name:
                    parameter.zero_()
                    if ".experts." in name:
                        parameter.fill_(0.015)
                elif parameter.ndim == 3:
                    parameter.fill_(1.0)
                    parameter[..., ::2] = -1.0
        experts = tuned.get_submodule("base_model.model.model.layers.0.mlp.experts")
        if replaced:
            assert install(tuned, BF16) == 2
        arguments = torch.ones(1, 32), torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.5]])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found = experts(*arguments)
            plain = experts.get_base_layer()(*arguments)
        outputs.append(bool((found == plain).all()))
    assert outputs == [True, False]


@pytest.mark.parametrize("fault", ["half of it", "fails"])
def test_a_wrong_product_is_found_and_the_forward_of_peft_stays(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add = adapted_experts._add_product

    def wrong(kernel: Any, wrapper: Any, output: torch.Tensor, *rest: Any, **keys: Any) -> torch.Tensor:
        if fault == "fails":
            raise RuntimeError("aclnnGroupedMatmulV5 is not supported")
        return output + (add(kernel, wrapper, output.clone(), *rest, **keys) - output) / 2

    tuned = adapted(QWEN)
    expected = loss_and_gradients(tuned, FP32)
    monkeypatch.setattr(adapted_experts, "_add_product", wrong)
    assert install(tuned) == 0
    assert "kernel.experts: adapters of experts are computed by PEFT" in caplog.text
    found = loss_and_gradients(tuned, FP32)
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert_same_gradients(found[1], expected[1], 1e-5)


def test_merging_and_files_stay_those_of_peft() -> None:
    tuned, other = adapted(GPT_OSS), adapted(GPT_OSS)
    assert install(tuned) == 2
    assert {name: tuple(each.shape) for name, each in tuned.state_dict().items()} == {
        name: tuple(each.shape) for name, each in other.state_dict().items()
    }
    before = loss_of(tuned)
    merged, expected = (each.merge_and_unload() for each in (tuned, other))
    assert loss_of(merged) == pytest.approx(before, rel=1e-5)
    for name, weight in expected.state_dict().items():
        assert torch.equal(merged.state_dict()[name], weight), name


def test_merged_and_disabled_adapters_are_left_to_peft() -> None:
    tuned = adapted(QWEN)
    assert install(tuned) == 2
    with_it = loss_of(tuned)
    with tuned.disable_adapter():
        without = loss_of(tuned)
    assert without == loss_of(model_of(*QWEN))
    tuned.merge_adapter()
    assert loss_of(tuned) == pytest.approx(with_it, rel=1e-5) and abs(with_it - without) > 1e-4
    tuned.unmerge_adapter()
    assert loss_of(tuned) == pytest.approx(with_it, rel=1e-5)


def test_hooks_of_parts_that_are_not_called_are_heeded_by_the_forward_of_peft() -> None:
    tuned = adapted(QWEN)
    assert install(tuned) == 2
    inner = [each.module.base_layer for each in find_adapted_experts(tuned)]
    calls: list[str] = []
    for each in inner:
        each.register_forward_hook(lambda *_: calls.append("inner"))
    CALLS.clear()
    loss_and_gradients(tuned, FP32)
    assert calls == ["inner"] * 2 and len(CALLS) == 2 * 2


def test_a_copy_computes_with_its_own_weights() -> None:
    tuned = adapted(QWEN)
    assert install(tuned) == 2
    before = loss_and_gradients(tuned, FP32)[0]
    other = deepcopy(tuned)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if ".experts." in name and ".lora_B." in name:
                parameter.zero_()
    assert abs(loss_and_gradients(other, FP32)[0] - before) > 1e-4
    assert loss_and_gradients(tuned, FP32)[0] == before


def test_the_test_at_load_takes_few_experts_and_leaves_the_module_as_it_was() -> None:
    tuned = adapted(("Qwen3MoeConfig", {"num_experts": 12}))
    before = {name: each.clone() for name, each in tuned.state_dict().items()}
    assert install(tuned) == 2
    for experts in find_adapted_experts(tuned):
        assert isinstance(experts, AdaptedExperts)
        hidden, _, _, gate_up, *_ = experts.samples(torch.device("cpu"), torch.float32)
        assert hidden.shape[1] == SHAPE["hidden_size"] and len(gate_up) == 4
        assert experts.module.num_experts == experts.module.get_base_layer().num_experts == 12
    assert all(torch.equal(each, before[name]) for name, each in tuned.state_dict().items())


@pytest.mark.parametrize("family", [QWEN, GPT_OSS], ids=["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_two_ranks_that_recompute_train_as_peft_on_one_device(
    train: Train, train_on_ranks: Train, variant: Callable[..., Path], family: tuple[str, dict[str, Any]], strategy: str
) -> None:
    path = variant(model_of(*family).config)
    changes = {
        "model": {"path": str(path)},
        "method": {"tuner": "lora", "lora": {"rank": 3, "target": ["all-linear", "all-experts"]}},
        "optim": {"max_steps": 3, "learning_rate": 0.01},
    }
    alone = train(name="alone", **changes, kernel="off", batch={"per_device": 2})
    both = train_on_ranks(
        2, name="both", **changes, batch={"per_device": 1}, memory={"gradient_checkpointing": True},
        parallel={"strategy": strategy},
    )  # fmt: skip
    found = both.run.read()["resolved"]["kernel"]["experts"]
    assert found == "2 of 2 modules, grouped; in 2 of 2 for adapters, too"
    assert both.losses() == pytest.approx(alone.losses(), rel=1e-5)
    assert both.curve("grad_norm") == pytest.approx(alone.curve("grad_norm"), rel=1e-4)
    ours, theirs = both.weights(), alone.weights()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-3, atol=1e-4)
