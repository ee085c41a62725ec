"""The owner of a missing, renamed or hidden name: the library, another package of that name, or the system."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SITE = "/v/lib/python3.11/site-packages"
_NO_NAME = "cannot import name '{}' from 'transformers' (/v/site-packages/transformers/__init__.py)\n"
_NOT_BY_ITSELF = "Failed to import transformers.{} because of the following error (look up to see its traceback):\n"
_NO_GRAPH = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n"
_NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
_NO_PART = "FileNotFoundError: [Errno 2] No such file or directory: '/moon/global_step7/{}_optim_states.pt'\n"


def _raised(file: str, function: str, code: str, error: str) -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'


@pytest.mark.parametrize(
    ("function", "attribute", "entry"),
    [
        ("on_train_epoch_start", "tide", "lightning-trainer-without-attribute"),
        ("configure_optimizers", "num_tides", "lightning-trainer-without-attribute"),
        ("rise", "accelerator_backend", "lightning-trainer-attribute-known"),
        ("on_train_begin", "tide", "trainer-without-attribute"),
        ("rise", "tide", "trainer-without-attribute"),
    ],
)
def test_trainer_of_lightning_is_told_by_its_hooks_and_attributes(
    explained: Explained, function: str, attribute: str, entry: str
) -> None:
    error = f"AttributeError: 'Trainer' object has no attribute '{attribute}'"

    explanation = explained(_raised("/home/me/moon.py", function, "self.trainer.rise()", error))

    assert entry_of(explanation) == entry
    assert ("trl" in explanation.remedies()[0]) is (entry == "trainer-without-attribute")


@pytest.mark.parametrize(
    ("package", "entry"),
    [("transformers", "object-of-another-package"), ("moon", "api-added"), ("trl", "api-added")],
)
@pytest.mark.parametrize("name", ["eval_strategy", "batch_eval_metrics"])
def test_library_that_reads_its_own_name_is_not_too_old(
    explained: Explained, package: str, entry: str, name: str
) -> None:
    error = f"AttributeError: 'TrainingArguments' object has no attribute '{name}'"

    explanation = explained(_raised(f"{_SITE}/{package}/tide.py", "rise", f"if args.{name}:", error))

    if entry_of(explanation) != "arguments-of-other-class":  # the tables have it as an argument only
        assert entry_of(explanation) == entry
    assert package != "transformers" or "too old" not in explanation.headline()


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            _raised(f"{_SITE}/peft/moon.py", "<module>", "rise()", "ImportError: " + _NO_NAME).format(
                "EncoderDecoderCache"
            ),
            "peft-newer-than-transformers",
        ),
        (
            "RuntimeError: " + _NOT_BY_ITSELF.format("integrations.moon") + _NO_NAME.format("EncoderDecoderCache"),
            "peft-newer-than-transformers-alone",
        ),
        (
            "RuntimeError: " + _NOT_BY_ITSELF.format("trainer") + _NO_NAME.format("HybridCache"),
            "peft-older-than-transformers",
        ),
        (
            _raised(f"{_SITE}/moon/sea.py", "<module>", "rise()", "ImportError: " + _NO_NAME).format(
                "EncoderDecoderCache"
            ),
            "api-added",
        ),
    ],
)
def test_peft_is_named_where_it_asks_transformers_for_a_cache(explained: Explained, log: str, entry: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert ("peft" in explanation.remedies()[0]) is entry.startswith("peft")


@pytest.mark.parametrize(
    ("part", "entry"),
    [
        ("zero_pp_rank_0_mp_rank_02", "zero-first-part-missing"),
        ("zero_pp_rank_7_mp_rank_00", "zero-part-missing"),
    ],
)
def test_without_the_first_rank_a_checkpoint_may_hold_weights_only(explained: Explained, part: str, entry: str) -> None:
    assert entry_of(explained(_NO_PART.format(part))) == entry


@pytest.mark.parametrize(
    ("before", "entry"),
    [
        ("model = get_peft_model(tide, moon)\nmodel.gradient_checkpointing_enable()\n", "no-grad-peft-checkpointing"),
        ("peft_config: lora\n'gradient_checkpointing': True\n", "no-grad-peft-checkpointing"),
        ("model = get_peft_model(tide, moon)\ngradient_checkpointing: false\n", "no-grad"),
        ("model = get_peft_model(tide, moon)\n", "no-grad"),
        ("model.gradient_checkpointing_enable()\n", "no-grad"),
        (
            "model = get_peft_model(tide)\ngradient_checkpointing=True\nmodel.enable_input_require_grads()\n",
            "no-grad",
        ),
    ],
)
def test_frozen_base_with_checkpointing_is_read_from_the_log(explained: Explained, before: str, entry: str) -> None:
    assert entry_of(explained(before + _NO_GRAPH)) == entry


@pytest.mark.parametrize(
    ("error", "entry"),
    [
        ("TypeError: cannot pickle 'builtins.CoreBPE' object", "pickle-of-tokenizer"),
        ("TypeError: can't pickle builtins.CoreBPE object", "pickle-of-tokenizer"),
        ("TypeError: cannot pickle '_thread.lock' object", "pickle-own-object"),
    ],
)
def test_tokenizer_that_cannot_be_pickled_is_named(explained: Explained, error: str, entry: str) -> None:
    explanation = explained(f"{error}\n")

    assert entry_of(explanation) == entry
    assert ("num_proc=1" in explanation.remedies()[0]) is (entry == "pickle-of-tokenizer")


@pytest.mark.parametrize(
    ("error", "entry"),
    [
        ("importlib.metadata.PackageNotFoundError: flashinfer", "distribution-renamed"),
        ("Exception: flashinfer with minimum required version 0.7.7 is not installed. Rise.", "distribution-renamed"),
        ("importlib.metadata.PackageNotFoundError: No package metadata was found for moon", "package-missing"),
        ("importlib.metadata.PackageNotFoundError: flashinfer-moon", "package-missing"),
    ],
)
def test_distribution_that_was_renamed(explained: Explained, error: str, entry: str) -> None:
    assert entry_of(explained(f"{error}\n")) == entry


@pytest.mark.parametrize(
    ("before", "entry"),
    [
        ("$ sudo dnf install akmod-nvidia\n", "nvidia-driver-fresh"),
        ("I installed the nvidia drivers on my laptop and rebooted\n", "nvidia-driver-fresh"),
        ("Reading package lists... Done\n$ apt install nvidia-driver-777\n", "nvidia-driver-fresh"),
        ("#SBATCH -p moon\n$ sbatch tide.sh\n", "nvidia-driver-absent"),
        ("$ docker run moon apt install nvidia-driver-777\n", "nvidia-driver-absent"),
        ("", "nvidia-driver-absent"),
    ],
)
def test_fresh_driver_is_asked_about_secure_boot(explained: Explained, before: str, entry: str) -> None:
    explanation = explained(before + _NO_DRIVER)

    assert entry_of(explanation) == entry
    assert ("mokutil" in explanation.remedies()[0]) is (entry == "nvidia-driver-fresh")


@pytest.mark.parametrize(
    ("below", "entry"),
    [
        ("Caused by ProxyError('Tunnel connection failed: 407 Proxy Authentication Required')\n", "proxy-login"),
        ("", "conda-channel"),
    ],
)
def test_login_of_the_proxy_is_why_conda_reads_no_channel(explained: Explained, below: str, entry: str) -> None:
    log = "CondaHTTPError: HTTP 000 CONNECTION FAILED for url <https://moon.example/noarch>\n"

    assert entry_of(explained(log + below)) == entry


@pytest.mark.parametrize(
    "said",
    [
        "CMake Error at CMakeLists.txt:7 (project):\n  No CMAKE_C_COMPILER could be found.\n",
        "-- The C compiler identification is unknown\n-- Configuring incomplete, errors occurred!\n",
        "CMake Error: CMAKE_C_COMPILER not set, after EnableLanguage\n",
    ],
)
def test_words_of_cmake_go_before_those_of_the_wheel(explained: Explained, said: str) -> None:
    log = f"error: subprocess-exited-with-error\n{said}ERROR: Failed building wheel for moon\n"

    assert entry_of(explained(log)) == "compiler-missing"


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("tide.sh: line 7: ml: command not found", "module-not-in-shell"),
        ("got:`/moon/slurm_script: line 7: ml: command not found`", "module-not-in-shell"),
        ("tide.sh: 7: module: not found", "module-not-in-shell"),
        ("tide.sh: line 7: html: command not found", "command-not-found"),
        ("tide.sh: line 7: mlmoon: command not found", "command-not-found"),
    ],
)
def test_function_of_the_login_shell_is_not_a_program(explained: Explained, line: str, entry: str) -> None:
    assert entry_of(explained(f"{line}\n")) == entry


@pytest.mark.parametrize(
    ("unit", "path", "entry"),
    [
        ("ProtectHome=yes\n", "/home/moon", "home-hidden-from-service"),
        ("  ProtectHome=read-only\n", "/root/moon", "home-hidden-from-service"),
        ("ProtectHome=yes\n", "/srv/moon", "permission-to-create"),
        ("ProtectHome=no\n", "/home/moon", "permission-to-create"),
        ("# ProtectHome=yes\n", "/home/moon", "permission-to-create"),
    ],
)
def test_unit_that_hides_home_directories_is_read(explained: Explained, unit: str, path: str, entry: str) -> None:
    assert entry_of(explained(f"[Service]\n{unit}Error: mkdir {path}: permission denied\n")) == entry


def test_refusal_of_cmake_is_quoted_where_the_frame_of_pip_was_cut_away(explained: Explained) -> None:
    explanation = explained(
        "error: subprocess-exited-with-error\n      CMake Error at CMakeLists.txt:7 (message):\n"
        "        Moon needs the tide 7.7.\n\nERROR: Failed building wheel for moon\n"
    )

    assert "Moon needs the tide 7.7" in explanation.headline()


@pytest.mark.parametrize(
    ("code", "argument", "entry", "named"),
    [
        ("self.model = model = FSDP(", "forward_prefetch", "api-added", "torch"),
        ("tide = DDP(moon, static_graph=True)", "static_graph", "api-added", "torch"),
        ("nn.parallel.DistributedDataParallel(moon, static_graph=True)", "static_graph", "api-added", "torch"),
        ("tide = Tide(height=7)", "height", "argument-unknown", "Tide.__init__()"),
        ("super().__init__(tide=Moon(7))", "tide", "argument-unknown", "__init__() "),
        ("return cls(tide=Moon(7))", "tide", "argument-unknown", "__init__() "),
        ("return Tide(moon=Moon(7))", "height", "argument-unknown", "__init__() "),
    ],
)
def test_constructor_of_an_older_python_belongs_to_the_class_that_the_line_calls(
    explained: Explained, code: str, argument: str, entry: str, named: str
) -> None:
    error = f"TypeError: __init__() got an unexpected keyword argument '{argument}'"

    explanation = explained(_raised(f"{_SITE}/transformers/trainer.py", "rise", code, error))

    assert entry_of(explanation) == entry
    assert named in explanation.headline()
    assert "Moon" not in explanation.headline()
