"""Remedies of general messages follow the owner of the code that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.answer.remedies_by_owner import is_of_line
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.knowledge.entries import entries, raised_entries
from ascendtune.core import language

Explained = Callable[..., Explanation]

_OWN = '  File "/home/me/job/train.py", line 7, in main\n    tide(x)\n'
_CALLER = '  File "/v/lib/python3.11/site-packages/moonlib/cli.py", line 3, in main\n    rise(x)\n'
_LIBRARY = '  File "/v/lib/python3.11/site-packages/moonlib/tide.py", line 77, in rise\n    ebb(x)\n'
_TORCH = '  File "/v/lib/python3.11/site-packages/torch/moon.py", line 9, in cat\n    return _cat(x)\n'
_NARROW = "RuntimeError: start (0) + length (77) exceeds dimension size (7).\n"
_NO_GRAPH = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n"


def _raised(error: str, *frames: str) -> str:
    return f"Traceback (most recent call last):\n{''.join(frames)}{error}"


@pytest.mark.parametrize(
    ("frames", "place", "first"),
    [
        ((_OWN,), "", "code of your own: `print(x.shape, dim, start, length)`"),
        ((_OWN, _TORCH), "", "code of your own: `print(x.shape, dim, start, length)`"),
        ((_OWN, _LIBRARY), " (in rise of moonlib)", "moonlib failed in its own code (moonlib/tide.py:77 in rise)"),
        ((_OWN, _LIBRARY, _TORCH), " (in rise of moonlib)", "moonlib failed in its own code (moonlib/tide.py:77"),
        ((_CALLER, _LIBRARY), " (in rise of moonlib)", "no line of this traceback is your own code: moonlib failed"),
    ],
)
def test_owner_of_failed_line_decides_the_first_remedy(
    explained: Explained, frames: tuple[str, ...], place: str, first: str
) -> None:
    explanation = explained(_raised(_NARROW, *frames))
    assert explanation.headline().endswith(f"only 7 there{place}")
    assert explanation.remedies()[0].startswith(first)


def test_missing_graph_of_own_tensor_is_traced_back_and_that_of_a_trainer_is_counted(explained: Explained) -> None:
    backward = '  File "/v/lib/python3.6/site-packages/torch/tensor.py", line 102, in backward\n    moon(self)\n'
    trainer = '  File "/v/lib/python3.11/site-packages/transformers/trainer.py", line 7, in training_step\n    tide()\n'
    own = explained(_raised(_NO_GRAPH, '  File "test.py", line 13, in <module>\n    c.sum().backward()\n', backward))
    assert own.remedies()[0].startswith("code of your own: `print(loss.requires_grad, loss.grad_fn)`")
    of_package = explained(_raised(_NO_GRAPH, _OWN, trainer, backward))
    assert of_package.remedies()[0].startswith("count the parameters that require gradients")


def test_setting_and_package_remedies_stay_first_in_a_library(explained: Explained) -> None:
    explanation = explained(_raised("ValueError: invalid literal for int() with base 10: ''\n", _CALLER, _LIBRARY))
    assert entry_of(explanation) == "number-is-empty"
    assert "`env | grep" in explanation.remedies()[0]


@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_library_is_asked_about_in_place_of_a_look_at_its_line(
    explained: Explained, tongue: Literal["en", "zh"]
) -> None:
    error = "RuntimeError: The size of tensor a (7) must match the size of tensor b (9) at non-singleton dimension 1\n"
    with language.using(tongue):
        first, second, *_ = explained(_raised(error, _CALLER, _LIBRARY)).remedies()
    assert "moonlib/tide.py:77" in first
    assert "config.json" in second


def test_no_general_entry_is_left_without_a_remedy(explained: Explained) -> None:
    general = [entry for entry in (*entries(), *raised_entries()) if is_of_line(entry)]
    assert len(general) > 50
    for entry in general[::7]:
        for frames in ((_OWN,), (_OWN, _LIBRARY), (_CALLER, _LIBRARY)):
            explanation = explained(_raised(entry.test.splitlines()[-1] + "\n", *frames))
            assert explanation.remedies(), entry.id
            if entry_of(explanation) == entry.id and _LIBRARY in frames:
                assert not any(remedy.startswith("code of your own") for remedy in explanation.remedies())


_FRAME = '  File "{}", line 7, in {}\n    {}\n'
_TOPK = "RuntimeError: selected index k out of range\n"
_NO_MEMORY = "RuntimeError: CUDA error: out of memory\n"
_NO_GENERATOR = "IndexError: tuple index out of range\n"
_GENERATOR = _FRAME.format("/v/torch/cuda/random.py", "cb", "default_generator = torch.cuda.default_generators[i]")
_NAME_REFUSED = "wandb.errors.UsageError: Invalid project name 'a/b': cannot contain characters '/,?', found '/'\n"
_NO_KEY = "TypeError: list indices must be integers or slices, not str\n"
_SITE = "/v/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        # A slice beyond its tensor.
        (_raised(_NARROW, _FRAME.format("/x/sglang/srt/layers/linear.py", "weight_loader_v2", "t()")), "of-weight"),
        (_raised(_NARROW, _FRAME.format("/x/zero_to_fp32.py", "_merge", "t()")), "fragment-beyond-flat-state"),
        (_raised(_NARROW, _LIBRARY), "torch-narrow-beyond"),
        # Too many to pick.
        (_raised(_TOPK, _FRAME.format("/x/moe.py", "f", "torch.topk(p, k=capacity, dim=0)")), "capacity-beyond-tokens"),
        (_raised(_TOPK, _FRAME.format("/x/sample.py", "f", "torch.topk(logits, top_k)")), "topk-beyond-values"),
        # No memory at the first call, and later.
        (_raised(_NO_MEMORY, _FRAME.format("/v/torch/cuda/__init__.py", "set_device", "t()")), "oom-at-first-call"),
        (_raised(_NO_MEMORY, _FRAME.format("/v/torch/cuda/__init__.py", "_lazy_init", "t()")), "oom-at-first-call"),
        (
            "iteration 7 loss 2.1\n"
            + _raised(_NO_MEMORY, _FRAME.format("/v/torch/distributed/distributed_c10d.py", "barrier", "t()")),
            "oom-outside-torch",
        ),
        (_raised(_NO_MEMORY, _FRAME.format("/x/net.py", "forward", "t()")), "oom-outside-torch"),
        # GPUs that were counted before.
        (_raised(_NO_GENERATOR, _GENERATOR), "gpus-counted-before-hidden"),
        ("ray::Moon.rise()\n" + _raised(_NO_GENERATOR, _GENERATOR), "gpus-counted-before-hidden-by-ray"),
        (_raised(_NO_GENERATOR, _OWN), "list-index"),
        # Settings of W&B.
        (
            _raised(_NAME_REFUSED, _FRAME.format("/x/wandb/sdk/wandb_settings.py", "_parse_system_settings", "t()")),
            "settings-file-refused",
        ),
        (_raised(_NAME_REFUSED, _FRAME.format("/x/wandb/sdk/wandb_init.py", "init", "t()")), "wandb-project-name"),
        # A part that an installed package lacks.
        (
            _raised(
                "ModuleNotFoundError: No module named 'flashy.experimental'\n",
                _FRAME.format(f"{_SITE}/moonlib-1.0-py3.10.egg/moonlib/ebb.py", "<module>", "from flashy import x"),
            ),
            "module-of-optional-package",
        ),
        (_raised("ModuleNotFoundError: No module named 'flashy.tide'\n", _OWN), "module-of-installed-package"),
        # Who handed over the list.
        (_raised(_NO_KEY, _CALLER, _LIBRARY), "within-package"),
        (_raised(_NO_KEY, _OWN, _LIBRARY), "by-package"),
        (_raised(_NO_KEY, _FRAME.format(f"{_SITE}/other/a.py", "f", "t()"), _CALLER, _LIBRARY), "by-package"),
        # The norm right after the embedding.
        (
            _raised(
                "torch.AcceleratorError: CUDA error: device-side assert triggered\n",
                _FRAME.format("/x/torch/nn/functional.py", "layer_norm", "return torch.layer_norm(x)"),
            ),
            "device-assert-after-embedding",
        ),
    ],
)
def test_frames_tell_causes_of_a_general_message_apart(explained: Explained, log: str, entry: str) -> None:
    assert str(entry_of(explained(log))).endswith(entry)


def test_list_that_was_read_by_a_key_is_in_the_headline(explained: Explained) -> None:
    code = _FRAME.format(f"{_SITE}/moonlib/tide.py", "rise", 'kv_caches["key_cache"][layer],')
    assert "(kv_caches)" in explained(_raised(_NO_KEY, _CALLER, code)).headline()


def test_arguments_of_a_dictionary_ask_for_another_class_before_another_release(explained: Explained) -> None:
    call = _FRAME.format("/w/verl/verl/models/mcore/moon.py", "make", "return TransformerConfig(**settings)")
    error = "TypeError: TransformerConfig.__init__() got an unexpected keyword argument '{}'\n"
    unknown = explained(_raised(error.format("moon_rank"), call))
    assert "another class of megatron-core may be the one" in unknown.headline()
    assert "grep -rnw moon_rank" in unknown.remedies()[0]
    latent = explained(_raised(error.format("kv_lora_rank"), call))
    assert entry_of(latent) == "megatron-mla-config"
    assert "MLATransformerConfig" in latent.headline()


def test_frame_shown_is_of_the_actor_and_not_of_the_process_that_waited_for_it(explained: Explained) -> None:
    log = _raised(
        "ValueError: moon\n",
        _OWN,
        "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::Moon.rise()\x1b[39m (pid=7)\n",
        _FRAME.format("/home/me/job/worker.py", "rise", "tide()"),
    )
    first = explained(log).verdict.first
    assert first is not None and first.trace is not None
    assert first.trace.files == ("/home/me/job/worker.py",)


def test_distribution_of_a_module_is_named_for_pip(explained: Explained) -> None:
    numpy = _FRAME.format(f"{_SITE}/numpy/__init__.py", "__getattr__", "raise AttributeError(")
    megatron = _FRAME.format(f"{_SITE}/megatron/core/moon.py", "tide", "n = np.product(shape)")
    error = "AttributeError: module 'numpy' has no attribute 'product'\n"
    assert "pip show numpy megatron-core`" in explained(_raised(error, megatron, numpy)).remedies()[0]
