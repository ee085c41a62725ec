"""Packages of releases that do not fit each other: the frame, the name or the line beside tells which is to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.answer.json_form import fields_of
from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log.frame import frame_of

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in rise\n    {code}\n{error}\n'
_GENERATED = "/kaggle/working/unsloth_compiled_cache/UnslothMoonTrainer.py"
_PACKAGED = "/v/lib/python3.7/site-packages/moon/tide.py"
_LIST = "TypeError: list indices must be integers or slices, not str"


def _raised(error: str, file: str = "/home/me/moon.py", code: str = "rise(tide)") -> str:
    return _TRACE.format(file=file, code=code, error=error)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_LIST, _GENERATED), "generated-trainer-of-other-trl"),
        (_raised("TypeError: rise() got an unexpected keyword argument 'tide'", _GENERATED),
         "generated-trainer-of-other-trl"),
        (_raised("NameError: name 'tide' is not defined", r"C:\me\unsloth_compiled_cache\UnslothMoonTrainer.py"),
         "name-missing-in-unsloth"),
        (_raised("KeyError: 'tide'", _GENERATED), "key-missing"),
        (_raised("TypeError: Unsloth: the moon is in bfloat16 and not set", _GENERATED, "if x: raise TypeError('…')"),
         "python-exception"),
        (_raised(_LIST, _PACKAGED), "list-read-as-dictionary-by-package"),
        (_raised(_LIST), "list-read-as-dictionary"),
        (f"{_LIST}\n", "list-read-as-dictionary"),
    ],
)  # fmt: skip
def test_fault_of_a_library_is_not_blamed_on_the_data(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_a_list_that_is_read_like_a_dictionary_is_not_called_the_fault_of_the_data(explained: Explained) -> None:
    for log in (_raised(_LIST), _raised(_LIST, _PACKAGED)):
        explanation = explained(log)
        assert " data" not in explanation.headline()
        assert explanation.sureness == "certain what broke; why: one of several known causes"


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ('/moon/tide.py", line 7, in rise', ("/moon/tide.py", 7, "rise")),
        ('le "C:\\moon\\tide.py", line 7, in <module>', ("C:\\moon\\tide.py", 7, "<module>")),
        ('see "/moon/tide.py", line 7, in rise', None),
        ('moon/tide.py", line 7', None),
    ],
)
def test_frame_that_was_cut_on_the_left_is_a_frame(line: str, frame: tuple[str, int, str] | None) -> None:
    assert frame_of(line) == frame


def test_traceback_that_begins_within_a_frame_is_read(explained: Explained) -> None:
    explanation = explained(f'{_GENERATED[8:]}", line 7, in rise\n    tide["moon"]\n{_LIST}\n')

    assert entry_of(explanation) == "generated-trainer-of-other-trl"
    assert "UnslothMoonTrainer.py:7" in explanation.headline()


_DESCRIPTOR = "/v/site-packages/google/protobuf/descriptor.py"
_PROTO = (
    'Traceback (most recent call last):\n  File "/v/site-packages/moon/sea_pb2.py", line 7, in <module>\n    rise()\n'
    f'  File "{_DESCRIPTOR}", line 561, in __new__\n    _message.rise()\n'
    "TypeError: Descriptors cannot be created directly.\n"
)
_UNKNOWN_TYPE = (
    'Traceback (most recent call last):\n  File "/home/me/moon.py", line 7, in <module>\n    rise()\n'
    '  File "/v/site-packages/transformers/models/auto/configuration_auto.py", line 7, in __getitem__\n'
    "    raise KeyError(key)\nKeyError: '{}'\n"
)


def test_owner_of_generated_code_is_the_package_that_brings_it(explained: Explained) -> None:
    explanation = explained(_PROTO)

    assert entry_of(explanation) == "protobuf-version"
    assert "too new" in explanation.headline()
    assert "(of moon)" in explanation.headline()


@pytest.mark.parametrize("name", ["builder", "runtime_version"])
def test_name_that_protobuf_lacks_shows_that_it_is_older(explained: Explained, name: str) -> None:
    module = "google.protobuf.internal" if name == "builder" else "google.protobuf"

    explanation = explained(_raised(f"ImportError: cannot import name '{name}' from '{module}'", _PACKAGED))

    assert entry_of(explanation) == "api-added"
    assert "protobuf" in explanation.headline()


@pytest.mark.parametrize(("kind", "release"), [("qwen3_moe", "4.51"), ("gemma3", "4.50"), ("moon7", "")])
def test_release_that_knows_a_model_type_is_told(explained: Explained, kind: str, release: str) -> None:
    explanation = explained(_UNKNOWN_TYPE.format(kind))

    assert entry_of(explanation) == "unknown-model-type"
    assert (f"transformers {release} on" in explanation.headline()) is bool(release)
    assert "transformers transformers" not in " ".join(explanation.remedies())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("cannot import name '_tide' from 'sea.utils' (/v/site-packages/sea/utils.py)", "moon is older"),
        ("cannot import name 'tide' from 'sea.utils' (/v/site-packages/sea/utils.py)", "do not fit each other"),
        ("cannot import name '_tide' from 'torch.utils' (/v/site-packages/torch/utils.py)", "torch lacks _tide"),
    ],
)
def test_private_name_that_is_gone_shows_which_package_is_older(explained: Explained, error: str, told: str) -> None:
    assert told in explained(_raised(f"ImportError: {error}", _PACKAGED)).headline()


def test_no_remedy_names_a_package_twice_or_the_library_as_its_caller(explained: Explained) -> None:
    log = _raised(
        "TypeError: MoonTrainer.compute_loss() got an unexpected keyword argument 'num_items_in_batch'",
        "/v/site-packages/transformers/trainer.py",
    )

    remedies = " ".join(explained(log).remedies())

    assert "transformers transformers" not in remedies
    assert "PACKAGE" not in remedies


def test_code_without_a_package_is_to_be_renewed_as_a_checkout(explained: Explained) -> None:
    log = _raised("TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'")

    remedies = " ".join(explained(log).remedies())

    assert "git pull" in remedies
    assert "PACKAGE" not in remedies


@pytest.mark.parametrize("symbol", ["__nvJitLinkComplete_12_7", "__nvJitLinkAddData_12_7"])
def test_release_that_a_cuda_library_asks_for_is_told(explained: Explained, symbol: str) -> None:
    headline = explained(f"ImportError: /v/libcumoon.so.12: undefined symbol: {symbol}, version x\n").headline()

    assert "libcumoon.so.12" in headline
    assert "12.7 or newer" in headline


def test_no_sync_under_zero_is_a_clash_of_releases(explained: Explained) -> None:
    explanation = explained(
        "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 3\n"
    )

    assert "DeepSpeed 0.16 or newer refuses no_sync with ZeRO stage 3" in explanation.headline()
    assert "deepspeed<0.16" in explanation.remedies()[0]


def test_line_beside_from_which_the_headline_takes_its_versions_is_shown(explained: Explained) -> None:
    said = "    PyTorch 2.7.7+cu777 with CUDA 7777 (you have 2.8.8+cu777)"
    explanation = explained(
        "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n\n"
        f"WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n{said}\n"
    )

    assert said.strip() in as_text(explanation, columns=300, paint=lambda text, _: text)
    assert said.strip() in fields_of(explanation)["first"]["beside"]


def test_build_of_another_index_satisfies_the_plain_version(explained: Explained) -> None:
    explanation = explained(
        "pip install moon==0.9 sea-npu==2.1.0\nERROR: Cannot install moon because these package versions have "
        "conflicting dependencies.\n\nThe conflict is caused by:\n    The user requested sea==2.1.0\n"
        "    sea-npu 2.1.0 depends on sea==2.1.0+cpu\n"
    )

    assert entry_of(explanation) == "pip-conflict-local-version"
    assert "--extra-index-url" in explanation.remedies()[0]


@pytest.mark.parametrize("program", ["libpaddle-moon-npu.so with error: ", ""])
def test_library_of_atb_is_asked_for_by_whatever_needs_it(explained: Explained, program: str) -> None:
    explanation = explained(f"ValueError: {program}libatb.so: cannot open shared object file: No such file\n")

    assert entry_of(explanation) == "libatb-missing"
    assert "torch" not in " ".join((explanation.headline(), *explanation.remedies()))


_SITE = "/v/lib/python3.11/site-packages"
_FILE = "ModuleNotFoundError: No module named '{0}.dusk'; '{0}' is not a package"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_FILE.format("vllm.tide"), f"{_SITE}/moon/vllm_utils.py"), "module-is-a-file-of-release"),
        (_raised(_FILE.format("awq.tide.ebb"), f"{_SITE}/peft/tide.py"), "module-is-a-file-of-release"),
        (_raised(_FILE.format("transformers.tide")), "module-of-own-is-a-file"),
        (_FILE.format("transformers.tide") + "\n", "module-of-own-is-a-file"),
        (_raised(_FILE.format("utils")), "module-is-a-file"),
        (_raised(_FILE.format("datasets"), f"{_SITE}/moon/tide.py"), "module-is-a-file"),
        (_raised("ModuleNotFoundError: No module named 'vllm.tide'", f"{_SITE}/moon/tide.py"),
         "module-of-other-release"),
        (_raised("ModuleNotFoundError: No module named 'pydantic._tide'", f"{_SITE}/moon/tide.py"),
         "module-of-other-release"),
        (_raised("ModuleNotFoundError: No module named 'vllm.tide'", f"{_SITE}/vllm/tide.py"),
         "package-lacks-own-part"),
        (_raised("ModuleNotFoundError: No module named 'sunlib.tide'", f"{_SITE}/moon/tide.py"),
         "module-of-optional-package"),
        (_raised("AttributeError: module transformers.tide has no attribute Dusk", f"{_SITE}/moon/tide.py"),
         "submodule-attribute"),
    ],
)  # fmt: skip
def test_module_of_another_release_is_not_called_a_file_of_the_user(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_both_packages_of_an_import_are_told_with_their_versions(explained: Explained) -> None:
    explanation = explained(
        "- vllm version: 0.9.7\nunsloth_zoo==2077.7.7\n"
        + _raised(_FILE.format("vllm.tide"), f"{_SITE}/unsloth_zoo/vllm_utils.py")
    )

    assert "vllm 0.9.7, unsloth_zoo 2077.7.7" in explanation.headline()
    assert explanation.remedies()[0].startswith("`pip show vllm unsloth_zoo`")


def test_call_in_a_command_is_no_clause_for_another_system(explained: Explained) -> None:
    explanation = explained(_raised("ModuleNotFoundError: No module named 'accelerate.tide'", f"{_SITE}/moon/tide.py"))

    assert "print(accelerate.__file__)" in " ".join(explanation.remedies())
