"""Packages that run from a checkout, and functions of packages: neither is upgraded or corrected as one's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.written_trace import PACKAGES, written_trace

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_GPUS = "TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'"
_LIGHTNING = (f"{PACKAGES}/pytorch_lightning/utilities/argparse.py", "return fn(self, **kwargs)")


@pytest.mark.parametrize(
    ("file", "root"),
    [
        ("/home/me/git/moon/moon/train.py", "/home/me/git/moon"),
        ("/data/Moon-MM/src/moon_mm/core/train.py", "/data/Moon-MM"),
    ],
)
def test_checkout_is_pulled_and_no_package_of_its_name_is_installed(explained: Explained, file: str, root: str) -> None:
    remedies = " ".join(explained(written_trace(_GPUS, (file, "trainer = Trainer("), _LIGHTNING)).remedies())

    assert f"git -C {root} pull; its newest commit" in remedies
    assert f"`pip show pytorch-lightning; git -C {root} log -1`" in remedies
    assert "-U moon" not in remedies


def test_installed_package_is_upgraded_by_pip(explained: Explained) -> None:
    remedies = explained(written_trace(_GPUS, (f"{PACKAGES}/moon/train.py", "Trainer("), _LIGHTNING)).remedies()

    assert "pip install -U moon;" in remedies[0]
    assert "git -C" not in " ".join(remedies)


def test_checkouts_of_an_image_that_fit_each_other_are_not_pulled_alone(explained: Explained) -> None:
    file = "/vllm-workspace/vllm/vllm/v1/moon.py"
    remedies = explained(written_trace(_GPUS, (file, "trainer = Trainer("), _LIGHTNING)).remedies()

    assert "git -C" not in " ".join(remedies)


def test_path_that_a_shell_would_not_read_as_one_word_is_not_in_a_command(explained: Explained) -> None:
    file = "/home/me/$(rm moon)/moon/moon/train.py"
    remedies = explained(written_trace(_GPUS, (file, "trainer = Trainer("), _LIGHTNING)).remedies()

    assert "$(rm" not in " ".join(remedies)


@pytest.mark.parametrize(
    ("error", "caller", "headline"),
    [
        (
            "TypeError: _run_hydra() missing 1 required positional argument: 'args'",
            ("/data/Moon/moon/core/runner.py", "_run_hydra("),
            "_run_hydra() (of hydra) was called (by moon) without 'args', which it requires: moon is older than hydra",
        ),
        (
            "TypeError: _flash_attn_rise() got an unexpected keyword argument 'tide'",
            (f"{PACKAGES}/moon/attention.py", "out = _flash_attn_rise(q, tide=1)"),
            "_flash_attn_rise() (of flash_attn) does not know the argument tide (passed by moon)",
        ),
        (
            "TypeError: _make_tide() takes 1 positional argument but 2 were given",
            (f"{PACKAGES}/moon/tides.py", "out = _make_tide(x, y)"),
            "_make_tide() takes 1 positional arguments and was given 2 (by moon): a fault of this moon",
        ),
    ],
)
def test_private_function_that_a_package_calls_is_not_code_of_the_user(
    explained: Explained, error: str, caller: tuple[str, str], headline: str
) -> None:
    explanation = explained(written_trace(error, ("/me/tide.py", "main()"), caller))

    assert headline in explanation.headline()
    assert "code of yours" not in " ".join(explanation.remedies())


def test_private_method_that_a_package_calls_may_be_one_s_own(explained: Explained) -> None:
    caller = (f"{PACKAGES}/transformers/trainer.py", "out = self._pad_tide(x)")
    error = "TypeError: _pad_tide() missing 1 required positional argument: 'moon'"

    assert "most likely your own code" in explained(written_trace(error, ("/me/tide.py", "main()"), caller)).headline()


def test_releases_of_a_checkout_are_commits(explained: Explained) -> None:
    error = "TypeError: '>=' not supported between instances of 'tuple' and 'Version'"
    explanation = explained(written_trace(error, ("/me/t.py", "main()"), ("/data/moon/moon/a.py", "if x >= y:")))

    assert "`git -C /data/moon log -1; git -C /data/moon ls-remote origin HEAD`" in explanation.remedies()[0]


def test_directory_above_several_projects_is_not_a_checkout(explained: Explained) -> None:
    remedies = explained(written_trace(_GPUS, ("/home/xxx/moon/src/moon/a.py", "Trainer("), _LIGHTNING)).remedies()
    shortened = explained(written_trace(_GPUS, ("/home/xxx/vllm_ascend/a.py", "Trainer("), _LIGHTNING)).remedies()

    assert "git -C /home/xxx/moon pull" in remedies[0]
    assert "git -C" not in " ".join(shortened)


_TOO_SHORT = "IndexError: list index out of range"


@pytest.mark.parametrize(
    ("files", "root", "name"),
    [
        (("/home/me/ComfyUI/main.py", "/home/me/ComfyUI/comfy/moon.py"), "/home/me/ComfyUI", "ComfyUI"),
        (("/x/ComfyUI/main.py", "/x/ComfyUI/custom_nodes/Moon-Node/a.py"), "/x/ComfyUI/custom_nodes/Moon-Node", "Moon"),
        (("/w/Megatron-LM/pretrain_gpt.py", "/w/Megatron-LM/tools/moon.py"), "/w/Megatron-LM", "megatron"),
        (("/w/MindSpeed-LLM/pretrain.py", "/w/MindSpeed-LLM/mindspeed_llm/a.py"), "/w/MindSpeed-LLM", "mindspeed_llm"),
        (("/x/LLaMA-Factory/src/train.py",), "/x/LLaMA-Factory", "llamafactory"),
        (("/root/transformers/examples/pytorch/run_moon.py",), "/root/transformers", "transformers"),
        (("/data/Qwen2.5-VL-main/finetune.py",), "/data/Qwen2.5-VL", "Qwen2.5-VL"),
    ],
)
def test_clone_of_a_public_project_is_looked_at_for_changes_before_its_code_is_called_one_s_own(
    explained: Explained, files: tuple[str, ...], root: str, name: str
) -> None:
    frames = [(file, "tide = tides[7]") for file in files]

    remedies = explained(written_trace(_TOO_SHORT, *frames)).remedies()

    assert remedies[0].startswith(f"`git -C {root}")
    assert f"not listed: {name}" in remedies[0]


@pytest.mark.parametrize(
    "file",
    [
        "/home/qwen/exp/train.py",
        "/data/qwen_exp/train.py",
        "/home/me/my-verl/train.py",
        "/home/me/proj/src/server/train.py",
        "/opt/conda/envs/verl/lib/python3.11/json/decoder.py",
        "/c/modules/transformers_modules/Qwen/moon.py",
    ],
)
def test_other_directories_are_not_clones_of_a_public_project(explained: Explained, file: str) -> None:
    explanation = explained(written_trace(_TOO_SHORT, (file, "tide = tides[7]")))

    assert "git -C" not in " ".join(explanation.remedies())


@pytest.mark.parametrize(
    ("call", "is_own"),
    [
        ("out = Moon(tide=7)", False),
        ("out = ops.Moon(tide=7)", False),
        ("out = self.Moon(tide=7)", True),
        ("out = make(tide=7)", True),
    ],
)
def test_class_that_a_package_calls_by_name_is_not_one_s_own(explained: Explained, call: str, is_own: bool) -> None:
    error = "TypeError: Moon.__init__() got an unexpected keyword argument 'tide'"
    explanation = explained(written_trace(error, ("/me/t.py", "main()"), (f"{PACKAGES}/moonlib/a.py", call)))

    assert ("most likely your own code" in explanation.headline()) is is_own


def test_package_called_from_a_clone_has_no_function_of_one_s_own(explained: Explained) -> None:
    error = "TypeError: rise() got an unexpected keyword argument 'tide'"
    frames = (("/w/verl/verl/trainer/main.py", "run()"), (f"{PACKAGES}/moonlib/a.py", "out = self.rise(tide=7)"))

    explanation = explained(written_trace(error, *frames))

    assert "your own code" not in explanation.headline()
    assert "its arguments are not those of the call" in explanation.headline()
    assert "a function or class of yours that moonlib was given" in " ".join(explanation.remedies())


def test_remedy_for_one_s_own_code_is_not_the_first_one_in_a_package(explained: Explained) -> None:
    error = "UnboundLocalError: local variable 'tide' referenced before assignment"
    own = explained(written_trace(error, ("/me/t.py", "return tide")))
    of_package = explained(written_trace(error, ("/me/t.py", "main()"), ("/w/moonlib/moonlib/a.py", "return tide")))

    assert own.remedies()[0].startswith("the frame shown is code of yours")
    assert of_package.remedies()[0].startswith("it is in a package: `git -C /w/moonlib log -1`")


def test_copy_that_ray_made_of_the_directory_of_a_job_is_not_a_checkout(explained: Explained) -> None:
    file = "/tmp/ray/session_7/runtime_resources/working_dir_files/_ray_pkg_77ab/verl/workers/moon.py"

    assert "git -C" not in " ".join(explained(written_trace(_TOO_SHORT, (file, "tide = tides[7]"))).remedies())
