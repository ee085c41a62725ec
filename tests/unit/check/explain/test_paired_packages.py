"""Packages that go together in one release on Ascend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.knowledge.paired_packages import with_check, with_notes, with_pairs

Explained = Callable[..., Explanation]


def _trace(error: str, *frames: tuple[str, str]) -> str:
    rows = "".join(f'  File "{file}", line 7, in rise\n    {code}\n' for file, code in frames)
    return f"Traceback (most recent call last):\n{rows}{error}\n"


@pytest.mark.parametrize(
    ("before", "library", "position"),
    [
        ("/usr/local/Ascend/ascend-toolkit/latest on Ascend910B1\n", "vllm", 0),
        ("", "vllm", 2),
        ("cuda_version: 12.8\n", "vllm", None),
        ("/usr/local/Ascend/ascend-toolkit/latest on Ascend910B1\n", "transformers", None),
    ],
)
def test_on_ascend_no_package_of_a_pair_is_upgraded_alone(
    explained: Explained, before: str, library: str, position: int | None
) -> None:
    error = {
        "vllm": "ModuleNotFoundError: No module named 'vllm.lora.lora_model'",
        "transformers": "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'eval_strategy'",
    }[library]

    remedies = explained(before + _trace(error, ("/me/tide.py", "moon()"))).remedies()

    told = [index for index, remedy in enumerate(remedies) if f"do not change {library} alone" in remedy]
    assert told == ([] if position is None else [position])


@pytest.mark.parametrize(
    ("remedy", "command"),
    [
        ("pip install -U 'triton>=3.4'", "pip install triton-ascend==VERSION"),
        ("pip install triton in the version that torch names", "pip install triton-ascend==VERSION in the version"),
        ("pip install -U torch torchvision", "pip install torch==VERSION torch-npu==VERSION torchvision"),
        ("pip install -U 'vllm<0.9' in a new place", "pip install 'vllm<0.9' vllm-ascend==VERSION in a new place"),
        ("pip install -U tokenizers vllm", "pip install vllm==VERSION vllm-ascend==VERSION"),
        (
            "pip install -U torch torchvision --index-url https://download.pytorch.org/whl/cu128",
            "pip install torch==VERSION torch-npu==VERSION torchvision",
        ),
        ("pip install --force-reinstall torch==2.7.1", "pip install --force-reinstall torch==2.7.1"),
        ("pip install torchcodec in the release for torch", "pip install torchcodec in the release for torch"),
    ],
)
def test_on_ascend_commands_install_both_packages_of_a_pair(remedy: str, command: str) -> None:
    assert command in with_pairs((remedy,), (), {}, names_ascend=True)[-1]
    assert with_pairs((remedy,), ("cuda",), {}, names_ascend=False) == (remedy,)


@pytest.mark.parametrize("package", ["flash-attn", "xformers", "transformer-engine"])
def test_on_ascend_packages_for_cuda_are_not_advised_alone(package: str) -> None:
    remedies = with_pairs((f"pip install -U {package}",), (), {}, names_ascend=True)

    assert remedies[0].startswith(f"on Ascend {package} does not run")


@pytest.mark.parametrize(
    ("file", "is_asked_for"), [(".../flag_gems/ops/tide.py", True), ("/x/site-packages/moon/tide.py", False)]
)
def test_code_for_many_vendors_gets_the_question_for_its_triton_first(
    explained: Explained, file: str, is_asked_for: bool
) -> None:
    error = "ModuleNotFoundError: No module named 'triton.knobs'"

    remedies = explained(_trace(error, (file, "from triton.knobs import tide"))).remedies()

    assert ("flagtree" in remedies[0]) == is_asked_for
    assert ("`pip show triton flag_gems`" in " ".join(remedies)) == is_asked_for


@pytest.mark.parametrize(
    ("remedy", "is_checked"),
    [
        ("pip install -U transformers", True),
        ("`pip show torch`: pip install --upgrade torch, or eager attention", True),
        ("pip install -U transformers; pip check", False),
        ("pip install -U 'transformers<5'", False),
        ("pip install -U --no-deps transformers", False),
        ("pip install -U moonlight", False),
        ("pip install transformers==4.57.1", False),
    ],
)
def test_the_newest_release_of_what_others_need_is_checked_after_it(remedy: str, is_checked: bool) -> None:
    (found,) = with_check((remedy,))

    assert found.startswith(remedy)
    assert ("`pip check`: does it name" in found) == is_checked


def test_only_the_first_such_remedy_says_how_to_check() -> None:
    found = with_check(("a smaller batch", "pip install -U torch", "pip install -U vllm"))

    assert ["does it name" in remedy for remedy in found] == [False, True, False]


def test_flash_attention_is_a_wheel_on_a_gpu_and_nothing_for_ascend() -> None:
    remedies = ("`pip show flash-attn`: pip install -U flash-attn --no-build-isolation", "smaller inputs")

    on_gpu = with_notes(remedies, (), {"accelerator": ("nvidia",)}, names_ascend=False)
    on_ascend = with_notes(remedies, (), {"accelerator": ("ascend",)}, names_ascend=True)
    on_both = with_notes(remedies, (), {"accelerator": ("ascend", "nvidia")}, names_ascend=True)

    assert on_gpu[0].startswith(remedies[0])
    assert "/releases" in on_gpu[0]
    assert on_ascend[0].startswith("on Ascend flash-attn does not run")
    assert on_ascend[1:] == ("smaller inputs",)
    assert on_both == on_gpu
    assert with_notes(("smaller inputs",), (), {}, names_ascend=True) == ("smaller inputs",)


def test_a_note_on_ascend_does_not_repeat_the_remedy() -> None:
    remedies = ("on NPU flash_attn cannot be installed: sdpa", "on CUDA: pip install flash-attn")

    assert with_notes(remedies, (), {}, names_ascend=True) == remedies[:1]
    assert "/releases" not in with_notes(("a wheel: pip install flash-attn",), (), {}, names_ascend=False)[0]


def test_a_remedy_beside_one_that_names_the_pair_installs_both_too() -> None:
    remedies = ("pip install vllm==VERSION vllm-ascend==VERSION", "else: pip install 'vllm==0.9'")

    assert with_pairs(remedies, (), {}, names_ascend=True) == (
        remedies[0],
        "else: pip install 'vllm==0.9' vllm-ascend==VERSION",
    )
