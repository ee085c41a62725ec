"""Facts from the frames of a traceback: the phase, the package, the place in a notebook."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB."


def _called(file: str, function: str, exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 12, in {function}\n    tide()\n{exception}\n'


@pytest.mark.parametrize(
    ("file", "function", "entry"),
    [
        ("/v/transformers/trainer.py", "evaluation_loop", "oom-evaluation"),
        ("/v/sglang/srt/layers/linear.py", "create_weights", "oom-loading"),
        ("/v/torch/optim/adamw.py", "_init_group", "oom-optimizer"),
        ("/v/transformers/loss/loss_utils.py", "ForCausalLMLoss", "oom-logits"),
        ("/v/transformers/generation/utils.py", "_sample", "oom-generation"),
        ("/v/transformers/trainer.py", "save_model", "oom-saving"),
        ("/home/me/train.py", "forward", "cuda-oom"),
    ],
)
def test_out_of_memory_is_named_with_its_phase(explained: Explained, file: str, function: str, entry: str) -> None:
    assert entry_of(explained(_called(file, function, _OOM))) == entry


@pytest.mark.parametrize(
    "frame",
    [
        "/usr/lib/python3.10/dist-packages/transformers/trainer_pt_utils.py in moon(tide, *args)",
        "[/usr/lib/python3.10/dist-packages/transformers/trainer_pt_utils.py](https://localhost:8080/#) in moon(tide)",
    ],
)
def test_frames_of_old_notebooks_are_read_with_their_line(explained: Explained, frame: str) -> None:
    explanation = explained(f"{frame}\n     86 \n---> 88     result = moon()\n     89 \n\n{_OOM}\n")

    assert entry_of(explanation) == "evaluation-gathers-outputs"
    assert explanation.verdict.first is not None and explanation.verdict.first.trace is not None
    assert explanation.verdict.first.trace.frames[-1][1:] == (88, "moon")


def test_words_of_a_known_cause_before_the_head_of_a_traceback_count(explained: Explained) -> None:
    log = (
        "ERROR 01-12 08:36:38 worker.py:233] Exception in worker: Call aclrtSetDevice failed, ret[107001]. "
        "Got device count[8] and device id[11], please check., Traceback (most recent call last):\n"
        'ERROR 01-12 08:36:38 worker.py:233]   File "/v/worker.py", line 226, in run\n'
    )

    assert entry_of(explained(log)) == "mindspore-device-count"


def test_a_warning_right_before_a_traceback_without_its_end_is_the_cause(explained: Explained) -> None:
    steps = "step 2\nstep 3\nstep 4\nstep 5\n"
    warning = "Ignored error while writing: [Errno 13] Permission denied: '/root/.cache/huggingface/hub'\n"
    header = "Traceback (most recent call last):\n"

    assert entry_of(explained(f"step 1\n{steps}{warning}{header}")) == "cache-permission"
    # Steps after it have shown that the job went on.
    assert entry_of(explained(f"step 1\n{warning}{steps}{header}")) == "traceback-cut-off"


def test_a_plain_mistake_that_is_only_quoted_gives_way_to_what_was_raised(explained: Explained) -> None:
    log = "'NoneType' object has no attribute 'tide_grad'\n\n" + _called(
        "/v/transformers/modeling_utils.py", "from_pretrained", "ModuleNotFoundError: No module named 'tidelib'"
    )

    assert entry_of(explained(log)) == "module-missing"


def test_a_cause_near_an_unknown_exception_goes_before_a_symptom(explained: Explained) -> None:
    log = (
        _called("/v/a.py", "run", "subprocess.CalledProcessError: Command '['moon']' returned non-zero exit status 1.")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + _called("/v/b.py", "inspect", "RuntimeError: Error raised in subprocess: moon 7")
        + _called("/v/c.py", "<module>", "ModuleNotFoundError: No module named 'tidelib'")
    )

    assert entry_of(explained(log)) == "module-missing"


def test_the_importing_package_is_named_in_the_remedies(explained: Explained) -> None:
    explanation = explained(
        _called(
            "/v/site-packages/tidelib/moon.py",
            "<module>",
            "ImportError: cannot import name 'EncoderDecoderCache' from 'transformers' (/x/__init__.py)",
        )
    )

    assert entry_of(explanation) == "api-added"
    assert "tidelib" in explanation.remedies()[0]


def test_an_importing_package_that_is_not_known_leaves_whole_sentences(explained: Explained) -> None:
    explanation = explained("ImportError: cannot import name 'EncoderDecoderCache' from 'transformers' (/x/init.py)\n")

    assert "`pip show transformers`" in explanation.remedies()[0]
    assert "of the calling package" in explanation.remedies()[1]


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("undefined symbol: _ZNK6AsdOps3Ops4tideERKSs", "symbol-of-atb"),
        ("ImportError: /x/moon.so: undefined symbol:_ZN9mindspore4tideEv", "symbol-of-mindspore"),
        ("ImportError: /x/moon.so: undefined symbol: _ZN7c10_npu4tideEv", "symbol-of-torch-npu"),
        ("ImportError: /x/moon.so: undefined symbol: _ZN4moon4tideEv", "undefined-symbol"),
    ],
)
def test_a_missing_symbol_names_the_library_that_it_belongs_to(explained: Explained, line: str, entry: str) -> None:
    assert entry_of(explained(line + "\n")) == entry


def test_a_process_that_holds_the_card_alone_is_not_told_to_look_for_others_first(explained: Explained) -> None:
    said = (
        'Traceback (most recent call last):\n  File "/v/accelerate/utils/modeling.py", line 4, in '
        "set_module_tensor_to_device\n    moon()\nRuntimeError: NPU out of memory. Tried to allocate 386.00 MiB "
        "(NPU 2; {} GiB total capacity; 59.57 GiB already allocated; 16.54 MiB free; 60.06 GiB "
        "reserved in total by PyTorch)\n"
    )

    assert "ascendtune devices" not in explained(said.format("60.97")).remedies()[0]
    assert "ascendtune devices" in explained(said.format("90.97")).remedies()[0]


def test_phase_is_read_from_frames_of_windows(explained: Explained) -> None:
    frame = '  File "H:\\x\\lib\\site-packages\\torch\\optim\\adamw.py", line 148, in step\n    moon()\n'
    own = '  File "H:\\x\\moon.py", line 7, in main\n    step()\n'
    explanation = explained(f"Traceback (most recent call last):\n{own}{frame}RuntimeError: CUDA out of memory.\n")
    first = explanation.verdict.first

    assert first is not None and first.hit.entry.id == "oom-optimizer"
    assert first.trace is not None and first.trace.place == ("H:\\x\\moon.py", 7, "main")


def test_phase_is_read_from_the_frames_of_a_traceback_that_breaks_off_below_the_line(explained: Explained) -> None:
    explanation = explained(
        "2026-01-02T20:02:49 ERROR: CUDA out of memory. Tried to allocate 39.12 MiB\n"
        "Traceback (most recent call last):\n"
        '  File "/v/torch/optim/optimizer.py", line 103, in load_state_dict\n'
        "    state_dict = deepcopy(state_dict)\n"
    )

    assert entry_of(explanation) == "oom-restoring"


def test_phase_is_read_from_code_that_a_message_without_a_traceback_quotes(explained: Explained) -> None:
    said = "RuntimeError: NPU out of memory. Tried to allocate 130.00 MiB (NPU 2; 29.50 GiB total capacity)"

    loading = explained(f"{said}    new_value = value.to(device)\n")
    assert entry_of(loading) == "oom-loading"
    plain = explained(f"{said}\n")
    assert entry_of(plain) == "npu-oom"
