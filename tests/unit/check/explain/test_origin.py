"""The origin of the code of a failed import: a misspelt name, an incomplete package, two copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.package.spelling import is_misspelt

Explained = Callable[..., Explanation]

_SITE = "/x/lib/python3.11/site-packages"


def _import(error: str, *files: str) -> str:
    frames = "".join(f'  File "{file}", line 7, in <module>\n    from tide import ebb\n' for file in files)
    return f"Traceback (most recent call last):\n{frames}{error}\n"


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("save_open", "safe_open"),
        ("load_datset", "load_dataset"),
        ("AutoTokeniser", "AutoTokenizer"),
        ("AutoModelForCausalLm", "AutoModelForCausalLM"),
        ("TrainingArgument", "TrainingArguments"),
        ("LoRAConfig", "LoraConfig"),
    ],
)
def test_a_name_with_one_wrong_letter_is_misspelt(name: str, right: str) -> None:
    assert is_misspelt(name, right)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("is_torch_xpu_available", "is_torch_npu_available"),
        ("MistralForCausalLM", "MixtralForCausalLM"),
        ("OlmoForCausalLM", "OlmoeForCausalLM"),
        ("Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        ("BertModel", "BartModel"),
        ("BartModel", "MBartModel"),
        ("LohaConfig", "LoraConfig"),
        ("LLaMATokenizer", "LlamaTokenizer"),
        ("CPOTrainer", "DPOTrainer"),
        ("_register_tide", "register_tide"),
        ("load_file", "save_file"),
        ("tides", "tides"),
    ],
)
def test_names_that_are_both_right_are_not_misspelt(name: str, other: str) -> None:
    assert not is_misspelt(name, other)


_NO_NAME = "ImportError: cannot import name 'AutoTokenzier' from 'transformers'"
_OF_PEFT = "ImportError: cannot import name 'get_peft_mdoel' from 'peft'"
_ATTRIBUTE = "AttributeError: module 'torch' has no attribute 'from_nunpy'"
_SUGGESTED = "AttributeError: 'Moon' object has no attribute 'tidetabel'. Did you mean: 'tidetable'?"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_import(_NO_NAME, "/home/me/rise.py"), "api-misspelt"),
        ("cannot import name 'AutoTokenzier' from 'transformers'\n", "api-misspelt"),
        (_import(f"{_OF_PEFT} (/home/me/peft.py)", "/home/me/rise.py"), "import-name-of-local-file"),
        (_import(_OF_PEFT, f"{_SITE}/moon/rise.py"), "import-name"),
        (_import(_OF_PEFT, "/home/me/rise.py"), "api-misspelt"),
        (_import(_ATTRIBUTE, "/home/me/rise.py"), "api-misspelt"),
        (_import(_SUGGESTED, "/home/me/rise.py"), "api-misspelt"),
        (_import(_SUGGESTED.replace("tidetabel", "tides"), "/home/me/rise.py"), "attribute-missing"),
        (_import("ImportError: cannot import name 'ebbb' from 'moon'", "/home/me/rise.py"), "import-name"),
    ],
)
def test_misspelt_names_are_told_from_names_of_other_releases(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


_PARTIAL = (
    "ImportError: cannot import name 'ebb' from partially initialized module '{}' "
    "(most likely due to a circular import) ({})"
)


@pytest.mark.parametrize("folder", ["/home/me/", "/home/me/my code/", "C:\\Users\\me\\"])
@pytest.mark.parametrize(
    "error",
    [
        "ImportError: cannot import name 'ebb' from '{}' ({})",
        "ImportError: cannot import name 'AutoModel' from '{}' ({})",
        "ImportError: cannot import name 'PartialState' from '{}' ({})",
        _PARTIAL,
    ],
)
@pytest.mark.parametrize("package", ["transformers", "accelerate", "torch", "datasets"])
def test_file_with_the_name_of_a_package_is_named(explained: Explained, folder: str, error: str, package: str) -> None:
    file = f"{folder}{package}.py"

    headline = explained(_import(error.format(package, file), f"{folder}rise.py", file)).headline()

    assert headline.startswith((f"{package} is your file {file}", f"your file {file} has the name of"))


@pytest.mark.parametrize("file", [f"{_SITE}/torch/__init__.py", f"{_SITE}/torch.py", "/home/me/rise.py"])
def test_other_circles_of_imports_blame_no_file(explained: Explained, file: str) -> None:
    assert entry_of(explained(_import(_PARTIAL.format("torch", file), "/home/me/rise.py"))) == "circular-import"


def test_the_right_spelling_is_in_the_headline(explained: Explained) -> None:
    assert "the name there is AutoTokenizer" in explained(_import(_NO_NAME, "/home/me/rise.py")).headline()


_DROPPED = "ImportError: cannot import name 'is_torch_fx_available' from 'transformers.utils.import_utils'"
_PART = "ModuleNotFoundError: No module named 'moon.tides'"
_NAME = "ImportError: cannot import name 'ebb' from 'moon.tides' ({})"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_import(_PART, "/home/me/rise.py", f"{_SITE}/moon/seas/calm.py"), "package-lacks-own-part"),
        (
            _import(_NAME.format(f"{_SITE}/moon/tides.py"), "/home/me/rise.py", f"{_SITE}/moon/seas/calm.py"),
            "package-lacks-own-part",
        ),
        (_import(_PART, "/home/me/rise.py", f"{_SITE}/star/calm.py"), "module-of-optional-package"),
        (_import(_PART, "/home/me/rise.py"), "module-of-installed-package"),
        (_import(_NAME.format(f"{_SITE}/moon/tides.py"), f"{_SITE}/star/calm.py"), "import-name"),
        (
            _import("ModuleNotFoundError: No module named 'vllm._C'", f"{_SITE}/vllm/calm.py"),
            "compiled-part-missing",
        ),
    ],
)
def test_an_installed_package_that_lacks_its_own_part_is_not_whole(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


_TABLE = f"ImportError: cannot import name 'ebb' from 'datasets' ({_SITE}/datasets/__init__.py)"
_SCRIPT = "/home/me/Moon-Factory/scripts/rise.py"
_GONE = "ModuleNotFoundError: No module named 'moonfactory.ebb'"
_OTHER = "ImportError: cannot import name 'ebb' from 'moonfactory.tide' ({}/moonfactory/tide.py)"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_import(_OTHER.format("/opt/Moon-Factory/src"), _SCRIPT), "copy-of-other-checkout"),
        (_import(_OTHER.format("/opt/moonfactory-0.7/src"), _SCRIPT), "copy-of-other-checkout"),
        (
            _import(
                "ModuleNotFoundError: No module named 'moonfactory.ebb'",
                _SCRIPT,
                "/opt/Moon-Factory/src/moonfactory/a.py",
            ),
            "copy-of-other-checkout",
        ),
        (_import(_OTHER.format(_SITE), _SCRIPT), "installed-copy-of-checkout"),
        (_import(_OTHER.format(_SITE), "/home/me/moonfactory-main/scripts/rise.py"), "installed-copy-of-checkout"),
        (_import(_OTHER.format("/home/me/Moon-Factory/src"), _SCRIPT), "import-name"),
        (_import(_OTHER.format("/opt/star/src"), "/home/me/star/rise.py"), "copy-of-other-checkout"),
        (_import(_OTHER.format("/opt/star/src"), "/home/me/sun/rise.py"), "import-name"),
        (_import(_OTHER.format("/data/me"), "/home/me/sun/rise.py"), "import-name"),
        (_import(_OTHER.format("/root/workspace"), "/workspace/sun/rise.py"), "import-name"),
        (_import(_OTHER.format(_SITE), "/home/me/sun/rise.py"), "import-name"),
        (_import(_TABLE, "/home/me/datasets/rise.py"), "import-name"),
        (_import(_OTHER.format("/opt"), "/opt/moonfactory/__init__.py"), "import-name"),
    ],
)
def test_another_copy_of_the_script_s_project_is_named(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_both_copies_are_in_the_headline(explained: Explained) -> None:
    headline = explained(_import(_OTHER.format("/opt/Moon-Factory/src"), _SCRIPT)).headline()

    assert "/home/me/Moon-Factory," in headline
    assert "/opt/Moon-Factory," in headline
    assert "no ebb" in headline


def _failed(error: str, code: str, file: str, function: str = "rise") -> str:
    own = '  File "/home/me/moon.py", line 8, in main\n    rise()\n'
    return f'Traceback (most recent call last):\n{own}  File "{file}", line 7, in {function}\n    {code}\n{error}\n'


def test_a_package_that_failed_in_its_own_code_is_asked_for(explained: Explained) -> None:
    log = _failed("AssertionError", "assert i % tide == 0", f"{_SITE}/moonlight/ebb.py", "_force_tide")

    look, ask = explained(log).remedies()

    assert look == "look at /home/me/moon.py:8"
    assert "`pip show moonlight`" in ask
    assert "'AssertionError _force_tide'" in ask


@pytest.mark.parametrize(
    "log",
    [
        _failed("AssertionError: tide", 'raise AssertionError("tide")', f"{_SITE}/moonlight/ebb.py"),
        _failed("AssertionError", "assert i % tide == 0", "/home/me/ebb.py"),
        _failed("ValueError: tide is odd", "check(tide)", f"{_SITE}/moonlight/ebb.py"),
    ],
)
def test_a_package_that_refuses_or_is_one_s_own_is_not_asked_for(explained: Explained, log: str) -> None:
    remedies = explained(log).remedies()

    assert remedies[0].startswith("look at /home/me/")
    assert not any("in its own code" in remedy for remedy in remedies)


def test_assertion_of_a_package_is_told_as_a_refusal_of_values(explained: Explained) -> None:
    log = _failed("AssertionError", "assert k % 128 == 0", f"{_SITE}/moonlight/ebb.py")

    _, package = explained(log).remedies()

    assert package.startswith("moonlight asserts this of what it is called with")


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("/v/lib/python3.11/site-packages/moon/tide.py", "directory-of-repository-not-installed"),
        ("/home/me/moon/tide.py", "module-of-your-own"),
    ],
)
def test_missing_directory_of_a_repository_that_a_package_imports(explained: Explained, file: str, found: str) -> None:
    assert entry_of(explained(_import("ModuleNotFoundError: No module named 'scripts'", file))) == found
