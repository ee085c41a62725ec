"""Caller and library that do not fit: excerpts without frames, and the package on each side of a call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.written_trace import PACKAGES, written_trace

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.traceback.code_of_frame import none_in
from ascendtune.check.explain.traceback.package_of_frame import framework_of

Explained = Callable[..., Explanation]

_NO_ATTRIBUTE = "AttributeError: 'NoneType' object has no attribute 'tide'"
_NO_SUBSCRIPT = "TypeError: 'NoneType' object is not subscriptable"
_NOT_GIVEN = "missing 1 required positional argument: 'tide'"


def _text(explanation: Explanation) -> str:
    return " ".join(as_text(explanation, columns=None, paint=lambda text, *_: text, everything=True).split())


@pytest.mark.parametrize(
    ("log", "expression"),
    [
        (f"line 7, in rise\n    height=moon_config.tide,\n{_NO_ATTRIBUTE}\n", "moon_config"),
        (f"    height=moon_config.tide,\n\n{_NO_ATTRIBUTE}\n", "moon_config"),
        (f"model: moon\nmoon_config.tide: 7\n{_NO_ATTRIBUTE}\n", ""),
        (f"config:\n    moon_config.tide: 7\n{_NO_ATTRIBUTE}\n", ""),
        (
            f"[rank3]:     low = moon.sea[..., :-1, :].ebb()\n[rank3]:           ~~~~~~~~^^^^^^^^^^^^^\n"
            f"[rank3]: {_NO_SUBSCRIPT}\n",
            "moon.sea",
        ),
        (f"the tide of the moon\n{_NO_ATTRIBUTE}\n", ""),
        (f"[rank1]:     height=moon.tide,\n[rank0]: {_NO_ATTRIBUTE}\n", ""),
    ],
)
def test_line_of_code_above_an_exception_without_frames_names_what_is_none(
    explained: Explained, log: str, expression: str
) -> None:
    headline = explained(log).headline()

    assert f"({expression})" in headline if expression else "was expected:" in headline


@pytest.mark.parametrize(
    ("code", "message", "expression"),
    [
        ("low = moon.sea[..., :-1, :].ebb()", _NO_SUBSCRIPT, "moon.sea"),
        ("low = moon.sea[0][1]", _NO_SUBSCRIPT, ""),
        ("self.moon.rise(7)", "'NoneType' object is not callable", "self.moon.rise"),
        ("self.moon(rise(7))", "'NoneType' object is not callable", ""),
    ],
)
def test_one_use_in_a_line_of_code_tells_what_is_none(code: str, message: str, expression: str) -> None:
    assert none_in(code, message) == expression


def test_python_s_marks_tell_which_of_two_uses_is_meant(explained: Explained) -> None:
    code = "low = moon.sea[0] + sun.sea[1]\n                        ~~~~~~~^^^"

    assert "(sun.sea)" in explained(written_trace(_NO_SUBSCRIPT, ("/me/tide.py", code))).headline()


def test_the_frame_that_a_remedy_speaks_of_is_said_to_be_missing(explained: Explained) -> None:
    assert "frame not in this log" in _text(explained(f"    height=moon.tide,\n{_NO_ATTRIBUTE}\n"))


def test_the_line_of_a_package_that_failed_stands_beside_one_s_own(explained: Explained) -> None:
    own, package = ("/me/tide.py", "moon()"), (f"{PACKAGES}/moon/sea.py", "x = None.tide")

    assert "frame /me/tide.py:7 in rise, which led to moon/sea.py:7 in rise" in _text(
        explained(written_trace("AttributeError: 'Moon' object has no attribute 'tide'", own, package))
    )


@pytest.mark.parametrize(
    ("error", "package", "words"),
    [
        ("AttributeError: type object 'TrainingArguments' has no attribute '_T'", "trl", "`pip show trl transformers`"),
        (f"TypeError: QwenMoon.forward() {_NOT_GIVEN}", "vllm_ascend", "`pip show vllm_ascend vllm`"),
        (f"TypeError: TrainingArguments.rise() {_NOT_GIVEN}", "transformers", "grep -rn 'class TrainingArguments'"),
        (f"TypeError: LlamaForCausalLM.rise() {_NOT_GIVEN}", "lmdeploy", "grep -rn 'class LlamaForCausalLM'"),
        ("AttributeError: 'MoonTide' object has no attribute 'tide'", "trl", "'class MoonTide|self.tide ='"),
    ],
)
def test_library_of_the_class_that_another_package_used(
    explained: Explained, error: str, package: str, words: str
) -> None:
    log = written_trace(error, ("/me/tide.py", "moon()"), (f"{PACKAGES}/{package}/sea.py", "moon.tide"))

    assert words in explained(log).remedies()[0]


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("sglang/srt/managers/moon.py", "sglang"),
        ("/sgl-workspace/sglang/python/sglang/srt/moon.py", "sglang"),
        ("/vllm-workspace/vllm/v1/core/moon.py", "vllm"),
        ("/me/vllm/moon.py", ""),
        ("moon/srt/tide.py", ""),
    ],
)
def test_framework_is_known_by_the_directories_within_it(file: str, package: str) -> None:
    assert framework_of(file) == package


_VLLM = ("/w/vllm/vllm/v1/worker/moon.py", "self.builder.build(moon)")
_VLLM_ASCEND = ("/w/vllm-ascend/vllm_ascend/worker/moon.py", "common = CommonAttentionMetadata(")
_UNKNOWN = "got an unexpected keyword argument 'moon_tide'"


@pytest.mark.parametrize(
    ("error", "frame", "headline", "remedy"),
    [
        (
            "TypeError: XPOTrainer.rise() takes 3 positional arguments but 4 were given",
            (f"{PACKAGES}/transformers/trainer.py", "loss = self.training_step(model, inputs, moon)"),
            "was given 4 (by transformers): trl is older than transformers",
            "pip install -U trl;",
        ),
        (
            f"TypeError: QwenForCausalLM.__init__() {_UNKNOWN}",
            (f"{PACKAGES}/transformers/modeling_utils.py", "model = cls(config, *model_args, **model_kwargs)"),
            "(of transformers) does not know the argument moon_tide (passed by swift)",
            "install the transformers that the requirements of swift name",
        ),
        (
            f"TypeError: QwenForCausalLM.forward() {_UNKNOWN}",
            (f"{PACKAGES}/torch/nn/modules/module.py", "return forward_call(*args, **kwargs)"),
            "(passed by swift)",
            "grep -rn 'class QwenForCausalLM'",
        ),
    ],
)
def test_caller_and_library_of_a_call_that_does_not_fit(
    explained: Explained, error: str, frame: tuple[str, str], headline: str, remedy: str
) -> None:
    log = written_trace(error, (f"{PACKAGES}/swift/llm/train.py", "moon()"), frame)
    explanation = explained(log.replace('module.py", line 7, in rise', 'module.py", line 7, in _call_impl'))

    assert headline in explanation.headline()
    assert remedy in explanation.remedies()[0]


def test_class_that_vllm_takes_from_its_plugin_is_of_vllm_ascend(explained: Explained) -> None:
    error = "AttributeError: 'AscendTide' object has no attribute 'moon_tide'"

    headline = explained(written_trace(error, (f"{PACKAGES}/vllm/v1/tide.py", "tide.moon_tide"))).headline()

    assert headline.endswith("(of vllm-ascend) has no moon_tide (asked for by vllm): vllm-ascend is older than vllm")


@pytest.mark.parametrize(
    ("versions", "mismatch"),
    [
        ("", "the two are of releases that do not fit each other"),
        ("vllm 0.11.0\nvllm_ascend==0.10.2rc1\n", "vllm_ascend is older than vllm"),
        ("vllm==0.9.1\nvllm-ascend==0.11.0\n", "vllm is older than vllm_ascend"),
    ],
)
def test_versions_in_the_log_tell_which_of_a_pair_is_older(explained: Explained, versions: str, mismatch: str) -> None:
    error = f"TypeError: CommonAttentionMetadata.__init__() {_UNKNOWN}"
    explanation = explained(f"{versions}{written_trace(error, _VLLM, _VLLM_ASCEND)}")

    assert (
        f"(of vllm) does not know the argument moon_tide (passed by vllm_ascend): {mismatch}" in explanation.headline()
    )
    assert "pip install vllm==VERSION vllm_ascend==VERSION" in explanation.remedies()[0]
    assert "-U" not in " ".join(explanation.remedies())


def test_argument_that_own_code_misspells_is_said_to_be_of_the_library(explained: Explained) -> None:
    config = explained(written_trace("TypeError: LoraConfig.__init__() got an unexpected keyword argument 'lora_alfa'"))
    zeros = written_trace(f"TypeError: zeros() {_UNKNOWN}", ("/me/tide.py", "torch.zeros(3, moon_tide=7)"))

    assert "LoraConfig.__init__() (of peft) does not know the argument lora_alfa: it is misspelt" in config.headline()
    assert "zeros() (of torch)" in explained(zeros).headline()


_MODEL_CODE = ("/c/modules/transformers_modules/moon/modeling_moon.py", "self.rise(tide)")
_TRANSFORMERS = (f"{PACKAGES}/transformers/modeling_utils.py", "model.moon()")


@pytest.mark.parametrize(
    ("error", "frames", "headline", "remedy"),
    [
        (
            "AttributeError: 'MoonForCausalLM' object has no attribute 'get_head_mask'",
            (_TRANSFORMERS, _MODEL_CODE),
            "transformers removed it in 5.0: the code that asks for it is older",
            "pip install 'transformers<5.0'",
        ),
        (
            "AttributeError: 'DynamicCache' object has no attribute 'seen_tokens'",
            (_TRANSFORMERS, _MODEL_CODE),
            "(trust_remote_code) is older than the installed transformers, which has get_seq_length()",
            "pip install 'transformers<4.54'",
        ),
        (
            "ImportError: cannot import name 'auto_docstring' from 'transformers.utils' (/x/transformers/utils.py)",
            (_TRANSFORMERS, _MODEL_CODE),
            "(trust_remote_code) is newer than the installed transformers",
            "pip install -U 'transformers>=4.52'",
        ),
        (
            "TypeError: MoonForCausalLM.moon() got an unexpected keyword argument 'tide'",
            (_MODEL_CODE, _TRANSFORMERS),
            "does most likely not fit the installed transformers (unexpected keyword argument 'tide')",
            "pip install 'transformers<5'",
        ),
    ],
)
def test_code_that_a_model_brings_is_older_or_newer_than_transformers(
    explained: Explained, error: str, frames: tuple[tuple[str, str], ...], headline: str, remedy: str
) -> None:
    explanation = explained(written_trace(error, ("/me/tide.py", "moon()"), *frames))

    assert headline in explanation.headline()
    assert remedy in explanation.remedies()[0]


def test_model_code_that_only_led_to_a_failure_elsewhere_is_not_the_cause(explained: Explained) -> None:
    error = "AttributeError: 'MoonEngine' object has no attribute 'tide'"
    log = written_trace(error, _MODEL_CODE, (f"{PACKAGES}/deepspeed/runtime/moon.py", "self.engine.tide()"))

    assert "MoonEngine has no tide (asked for by deepspeed)" in explained(log).headline()


def test_transformers_5_in_the_log_confirms_that_model_code_is_of_the_time_of_4(explained: Explained) -> None:
    error = "AttributeError: 'MoonForCausalLM' object has no attribute 'num_tides'"
    explanation = explained(f"transformers==5.2.0\n{written_trace(error, _TRANSFORMERS, _MODEL_CODE)}")

    assert "transformers 5.2.0, which is installed: it was written for transformers 4" in explanation.headline()
    assert "pip install 'transformers<5'" in explanation.remedies()[0]


def test_import_between_two_packages_names_both(explained: Explained) -> None:
    error = "ImportError: cannot import name 'tide_of_moon' from 'vllm.utils' (/w/vllm/vllm/utils/__init__.py)"
    of_package = explained(written_trace(error, _VLLM_ASCEND))
    own = explained(written_trace(error, ("/me/tide.py", "from vllm.utils import tide_of_moon")))

    assert "(by vllm_ascend): the two are of releases that do not fit each other" in of_package.headline()
    assert "pip install vllm==VERSION vllm_ascend==VERSION" in of_package.remedies()[0]
    assert "another copy of it is found first" in own.headline()
    assert "pip install 'vllm==VERSION'" in own.remedies()[0]


@pytest.mark.parametrize(
    ("error", "headline", "remedy"),
    [
        (
            f"TypeError: reward() {_UNKNOWN}",
            "reward() (of most likely your own code)",
            "give it moon_tide, or **kwargs",
        ),
        (
            f"TypeError: Moon.on_step_end() {_UNKNOWN}",
            "(of most likely your own code)",
            "give it moon_tide, or **kwargs",
        ),
        (f"TypeError: collate() {_NOT_GIVEN}", "collate() (of most likely your own code)", "give 'tide' a default"),
    ],
)
def test_function_of_one_s_own_that_a_package_calls_is_not_a_matter_of_releases(
    explained: Explained, error: str, headline: str, remedy: str
) -> None:
    loader = (f"{PACKAGES}/torch/utils/data/dataloader.py", "data = self._next_data()")
    explanation = explained(written_trace(error, ("/me/tide.py", "trainer.train()"), loader, _TRANSFORMERS))

    assert headline in explanation.headline()
    assert "its arguments are not those of the call" in explanation.headline()
    assert remedy in explanation.remedies()[0]
    assert "your own code" not in " ".join(explanation.remedies())


def test_package_that_only_hands_on_a_request_does_not_make_it(explained: Explained) -> None:
    getter = f'  File "{PACKAGES}/peft/moon.py", line 7, in __getattr__\n    return getattr(self.model, name)\n'
    log = written_trace(
        "AttributeError: 'LlamaForCausalLM' object has no attribute 'num_tides'", ("/me/t.py", "moon.x")
    )
    explanation = explained(log.replace("AttributeError", f"{getter}AttributeError"))

    assert explanation.headline().startswith("LlamaForCausalLM has no num_tides")


@pytest.mark.parametrize(
    ("error", "frames", "headline"),
    [
        # https://github.com/hiyouga/LlamaFactory/issues/8207
        (
            "TypeError: CustomMoonTrainer.rise() takes 1 positional argument but 2 were given",
            (("/app/src/llamafactory/train/moon.py", "trainer.train()"), _TRANSFORMERS),
            "(of llamafactory) takes 1 positional arguments and was given 2 (by transformers): llamafactory is older",
        ),
        (
            f"TypeError: EngineArgs.__init__() {_UNKNOWN}",
            ((f"{PACKAGES}/verl/workers/moon.py", "LLM("), (f"{PACKAGES}/vllm/entrypoints/llm.py", "EngineArgs(")),
            "EngineArgs.__init__() (of vllm) does not know the argument moon_tide (passed by verl)",
        ),
        (
            f"TypeError: EngineArgs.__init__() {_UNKNOWN}",
            (("/me/tide.py", "LLM("), (f"{PACKAGES}/vllm/entrypoints/llm.py", "EngineArgs(")),
            "(of vllm) does not know the argument moon_tide: it is misspelt",
        ),
    ],
)
def test_class_that_no_table_knows_is_of_the_package_that_handed_it_over(
    explained: Explained, error: str, frames: tuple[tuple[str, str], ...], headline: str
) -> None:
    assert headline in explained(written_trace(error, *frames)).headline()
