"""transformers' own decorator around a function of a model, with a package for GPUs and without."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

from ascendtune.hub.gpu_functions import missing_packages, plain_functions, use_plain_functions


def on_gpus_only(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    raise RuntimeError("Expected x.is_cuda() to be true")


def model_of(monkeypatch: pytest.MonkeyPatch, package: str) -> Any:
    """A model whose file has the function `scan`, which `package` computes where it is installed."""
    file: Any = ModuleType("modeling_moon")

    @use_kernel_func_from_hub_with_fallback("scan", package)
    def scan(x: torch.Tensor, factor: float = 3.0) -> torch.Tensor:
        return x * factor

    class Moon(torch.nn.Module):
        def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
            return file.scan(x, **options)  # type: ignore[no-any-return]

    file.scan, Moon.__module__ = scan, file.__name__
    monkeypatch.setitem(sys.modules, file.__name__, file)
    return torch.nn.Sequential(Moon())


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    package: Any = ModuleType("moon_ssm")
    package.scan = on_gpus_only
    monkeypatch.setitem(sys.modules, "moon_ssm", package)
    return model_of(monkeypatch, "moon_ssm")


def test_in_the_context_the_function_is_the_plain_one(installed: Any) -> None:
    x = torch.ones(2)
    with plain_functions(installed):
        assert torch.equal(installed(x), 3 * x)
        # What the plain function does not take is left out, as transformers does; packed documents are refused.
        assert torch.equal(installed[0](x, factor=2.0, scale=5.0), 2 * x)
        with pytest.raises(ValueError, match="can't keep packed sequences apart"):
            installed[0](x, cu_seqlens=(0, 2))
    with pytest.raises(RuntimeError, match="is_cuda"):
        installed(x)
    use_plain_functions(installed)
    assert torch.equal(installed(x), 3 * x)


def test_packages_that_are_not_installed_are_named(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages(installed) == []
    for package, name in (("fla", "flash-linear-attention"), ("moon_without", "moon_without")):
        monkeypatch.setitem(sys.modules, package, None)
        assert missing_packages(model_of(monkeypatch, package)) == [name]
    assert missing_packages(torch.nn.Sequential(torch.nn.Linear(2, 2))) == []
