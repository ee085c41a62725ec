"""AdamW with a kernel for large tensors: the update of torch's, its state, and a kernel that is not trusted blindly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import OptimSection
from ascendtune.train import adamw
from ascendtune.train.adamw import AdamWSettings, KernelAdamW
from ascendtune.train.kernel import adamw as choice
from ascendtune.train.optimizer import make_optimizer
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import Strategy

RATE = 0.01
SECTION = OptimSection(weight_decay=0.1, beta1=0.8, beta2=0.97, epsilon=1e-6)


def update(
    parameter: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor,
    step: torch.Tensor, factor: torch.Tensor, settings: AdamWSettings,
) -> None:  # fmt: skip
    """What a kernel does, in fp64 on the host."""
    given = [each.double() for each in (parameter, gradient, mean, square)]
    after = choice.formula(*given, step=int(step), factor=float(factor), settings=settings)
    for tensor, value in zip((mean, square, parameter), after, strict=True):
        tensor.copy_(value)


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw, "LARGE", 30)


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A matrix of 40 numbers and one of 12, each with a bias."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 5), nn.Linear(4, 3)).to(dtype)


def optimizer_of(model: nn.Module, *, kernel: bool) -> Any:
    return make_optimizer(SECTION, model.named_parameters(), RATE, fused=True, update=update if kernel else None)


def give_gradients(model: nn.Module, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for each in model.parameters():
        each.grad = torch.randn(each.shape, generator=generator).to(each.dtype)
    return [each.grad for each in model.parameters() if each.grad is not None]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize("limit", [None, 1.0, 1000.0])
def test_steps_are_those_of_torch_with_clipped_gradients(limit: float | None) -> None:
    ours, reference = model(), model()
    by_kernel, by_torch = optimizer_of(ours, kernel=True), optimizer_of(reference, kernel=False)
    assert isinstance(by_kernel, KernelAdamW) and not isinstance(by_torch, KernelAdamW)
    for step in range(4):
        for optimizer in (by_kernel, by_torch):
            for group in optimizer.param_groups:
                group["lr"] = RATE * step
        given = give_gradients(ours, step)
        give_gradients(reference, step)
        if limit is not None:
            norm = torch.nn.utils.get_total_norm(given)
            by_kernel.clip(limit, norm)
            torch.nn.utils.clip_grads_with_norm_(reference.parameters(), limit, norm)
        by_kernel.step()
        by_torch.step()
        torch.testing.assert_close(weights(ours), weights(reference), rtol=1e-6, atol=1e-7)
    assert all(each.grad is not None for each in ours.parameters())
    for one, other in zip(ours.parameters(), reference.parameters(), strict=True):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            found, expected = by_kernel.state[one][key], by_torch.state[other][key]
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_steps_of_all_tensors_are_counted_by_one_operator_for_each_kind() -> None:
    network = nn.Sequential(*(nn.Linear(8, 5) for _ in range(6)))
    optimizer = optimizer_of(network, kernel=True)
    for step in range(2):
        give_gradients(network, step)
        with Additions() as additions:
            optimizer.step()
    # Of the kernel's tensors; of torch's in one group for biases.
    assert additions.names == ["aten::_foreach_add_"] * 2
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


class Additions(TorchDispatchMode):
    """Notes additions to numbers that are alone."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0][0] if args and isinstance(args[0], list) and args[0] else args[0] if args else None
        if "add_" in function._schema.name and isinstance(first, torch.Tensor) and first.ndim == 0:
            self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def test_only_large_contiguous_tensors_are_the_kernels() -> None:
    network, seen = model(), list[tuple[int, ...]]()

    def noting(parameter: torch.Tensor, *rest: Any) -> None:
        seen.append(tuple(parameter.shape))
        update(parameter, *rest)

    optimizer = make_optimizer(SECTION, network.named_parameters(), RATE, fused=True, update=noting)
    give_gradients(network, 0)
    optimizer.step()
    assert seen == [(5, 8)]
    first: Any = network[0]  # type: ignore[index]
    first.weight.grad = torch.randn(8, 5).t()
    before = first.weight.detach().clone()
    optimizer.step()
    assert seen == [(5, 8)] and not torch.equal(first.weight, before)


class OfDivided(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            self.names.append(function._schema.name)
            return NotImplemented
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kernel", [True, False])
def test_divided_weights_are_updated_as_torch_does_without_operations_of_dtensor(fused: bool, kernel: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = [each.detach() for each in model().parameters()]
        ours, theirs = (
            [nn.Parameter(distribute_tensor(each.clone(), mesh, [Shard(0)])) for each in whole] for _ in range(2)
        )
        named = ((f"{number}", each) for number, each in enumerate(ours))
        optimizer = make_optimizer(SECTION, named, RATE, fused=fused, update=update if kernel else None)
        betas = SECTION.beta1, SECTION.beta2
        groups = [
            {"params": [each for each in theirs if each.ndim == size], "weight_decay": 0.1 * (size - 1)}
            for size in (2, 1)
        ]
        reference = torch.optim.AdamW(groups, lr=RATE, betas=betas, eps=SECTION.epsilon, fused=fused)
        generator = torch.Generator().manual_seed(0)
        for step in range(3):
            for one, other, shape in zip(ours, theirs, whole, strict=True):
                one.grad = distribute_tensor(torch.randn(shape.shape, generator=generator), mesh, [Shard(0)])
                other.grad = one.grad.clone()
            with OfDivided() as operations:
                optimizer.step()
            reference.step()
            # State is made in the first step, divided as the weights are.
            assert set(operations.names) == ({"aten::zeros_like"} if step == 0 else set())
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.to_local(), other.to_local(), rtol=1e-6 * kernel, atol=1e-7 * kernel)
            assert isinstance(optimizer.state[one]["exp_avg"], DTensor)
    finally:
        dist.destroy_process_group()


def test_weights_without_gradients_and_their_state_stay() -> None:
    network = model()
    optimizer = optimizer_of(network, kernel=True)
    before = weights(network).clone()
    optimizer.step()
    assert torch.equal(weights(network), before) and not optimizer.state


@pytest.mark.parametrize("first", [True, False])
def test_state_continues_with_the_kernel_or_without(first: bool) -> None:
    """A checkpoint of one form is continued in the other."""
    network, reference = model(), model()
    optimizer, by_torch = optimizer_of(network, kernel=first), optimizer_of(reference, kernel=False)
    for step in range(5):
        if step == 2:
            state = optimizer.state_dict()
            optimizer = optimizer_of(network, kernel=not first)
            optimizer.load_state_dict(state)
        give_gradients(network, step)
        give_gradients(reference, step)
        optimizer.step()
        by_torch.step()
    torch.testing.assert_close(weights(network), weights(reference), rtol=1e-6, atol=1e-7)


def test_bf16_state_is_bf16() -> None:
    network = model(torch.bfloat16)
    optimizer = optimizer_of(network, kernel=True)
    give_gradients(network, 0)
    optimizer.step()
    kinds = {key: value.dtype for state in optimizer.state.values() for key, value in state.items()}
    assert kinds == {"step": torch.float32, "exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}


class WithKernel(CpuDevice):
    kernels = "cuda"


def chosen(monkeypatch: pytest.MonkeyPatch, found: Any, compute: str = "bf16", **changes: Any) -> choice.AdamWChoice:
    def resolve(name: str) -> Any:
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(choice, "resolve_name", resolve)
    recipe = Recipe.check({"model": {"path": "moon"}, "data": {"train": [{"path": "tide.jsonl"}]}, **changes})
    precision = Precision(compute, "fp32", "as asked", "cpu")
    return choice.choose_adamw(recipe, Strategy(WithKernel()), precision)


def test_right_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, update)
    assert found.update is update and found.operator == "update"


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"weight_decay": 0.0}, "weight"),
        ({"learning_rate": 0.011}, "weight"),
        ({"beta1": 0.901}, "exp_avg"),
        ({"beta2": 0.99}, "exp_avg_sq"),
        ({"epsilon": 1e-4}, "weight"),
    ],
)
def test_kernel_that_computes_something_else_is_left(
    changed: dict[str, float], word: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(*given: Any) -> None:
        update(*given[:-1], replace(given[-1], **changed))

    found = chosen(monkeypatch, wrong)
    assert found.update is None and word in found.description
    assert "kernel.adamw is not used" in caplog.text


def test_kernel_that_cuts_off_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16 it would shrink every weight by a quarter of a percent in each step."""

    def cutting(parameter: torch.Tensor, *rest: Any) -> None:
        exact = parameter.double()
        update(exact, *rest)
        near = exact.to(parameter.dtype)
        toward_zero = torch.nextafter(near, torch.zeros_like(near))
        parameter.copy_(torch.where(near.double().abs() > exact.abs(), toward_zero, near))

    found = chosen(monkeypatch, cutting)
    assert found.update is None and "weight in torch.bfloat16" in found.description


def test_kernel_that_fails_on_one_rank_is_left_on_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Copies of a weight that two operators update would part in their last digits."""
    monkeypatch.setattr(Strategy, "gather", lambda self, text: [text, text, "fails: no C compiler"])
    monkeypatch.setattr(Strategy, "__init__", _on_three_ranks)
    found = chosen(monkeypatch, update)
    assert found.update is None and found.description == "torch's: the kernel fails: no C compiler (rank 2)"
    assert "fails: no C compiler (rank 2)" in caplog.text


def _on_three_ranks(self: Strategy, device: CpuDevice) -> None:
    self.device, self.rank, self.world_size = device, 0, 3


@pytest.mark.parametrize("number", [4, 5])
def test_kernel_that_ignores_step_or_factor_is_left(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any) -> None:
        update(*given[:number], torch.tensor(2.0), *given[number + 1 :])

    assert chosen(monkeypatch, wrong).update is None


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'triton'"), RuntimeError("no C compiler")])
def test_kernel_that_fails_is_left(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, error)
    assert found.update is None and str(error) in found.description


@pytest.mark.parametrize(
    ("compute", "changes"),
    [
        ("fp16", {}),
        ("bf16", {"kernel": "off"}),
        ("bf16", {"kernel": {"adamw": False}}),
        ("bf16", {"optim": {"optimizer": "sgd"}}),
    ],
)
def test_kernel_is_not_asked_for(compute: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, AssertionError("asked"), compute, **changes).update is None
