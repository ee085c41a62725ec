"""Failures of trainings and their tools with the same words and another cause, and their neighbours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in rise\n    {code}\n{error}\n'
_NO_PART = "AttributeError: 'TideForCausalLM' object has no attribute 'layers'"
_GRPO = (
    "ValueError: The global {kind} batch size (1 x 3) must be evenly divisible{gap}by the number of generations {of}."
)
_CACHE = "AttributeError: type object 'DynamicCache' has no attribute 'from_moon'\n"
_SIZE = "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected {} from C header, got {}"
_SAMPLING = "UserWarning{}`do_sample` is set to `False`. However, `top_p` is set to `0.7` -- this flag is only used in "
_NONE = "AttributeError: 'NoneType' object has no attribute 'lower'"
_REWARD = "NotImplementedError: Reward function is not implemented for data_source={}\n"
_AWQ = "torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]"
_FP8 = "type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e5',)"
_SIZES = "RuntimeError: The size of tensor a (70) must match the size of tensor b (140) at non-singleton dimension 0"
_LOADED = "RuntimeError: Error(s) in loading state_dict for Moon:\n\tsize mismatch for {}: copying a param with shape "
_LOADED += "torch.Size([{}]) from checkpoint, the shape in current model is torch.Size([{}]).\n"
_SET = (
    'ValueError: Trying to set a tensor of shape torch.Size([{}]) in "weight" (which has shape torch.Size([{}])), this'
)
_ARGUMENTS = "usage: tide.py [-h]\ntide.py: error: unrecognized arguments: {}\n"


def _raised(error: str, code: str = "moon(tide)", file: str = "/x/moon.py") -> str:
    return _TRACE.format(file=file, code=code, error=error)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_LOADED.format("0.weight", "4096, 3072", "0"), "zero3-empty-in-model"),
        (_LOADED.format("moon.lora_A.default.weight", "8, 64", "0"), "zero3-empty-in-model"),
        (_LOADED.format("moon.weight", "0", "2560, 2560"), "zero3-empty-in-file"),
        (_LOADED.format("moon.weight", "256, 64", "2560, 64"), "state-dict"),
        (_SET.format("7, 8", "0"), "zero3-empty-in-model"),
        (_SET.format("0", "32000, 4096"), "zero3-empty-in-file"),
        (_SET.format("11008, 4096", "11008, 2048"), "tensor-hf-zero3-shape"),
        (_raised(_NO_PART, "tides = model.layers"), "model-part-elsewhere"),
        (_raised(_NO_PART.replace("layers", "tides"), "model.tides"), "attribute-missing"),
        (_raised(_NO_PART.replace("Tide", "Peft"), "model.layers"), "attribute-missing"),
        (_raised(_NO_PART, "self.tides", "/x/site-packages/peft/moon.py"), "transformers-class-changed"),
        (_raised(_NO_PART.replace("Tide", "PeftModel"), "x", "/x/site-packages/peft/moon.py"), "attribute-missing"),
        (_raised(_GRPO.format(kind="train", gap=" ", of="per prompt (7)")), "grpo-batch-indivisible"),
        (_raised(_GRPO.format(kind="train", gap=" " * 40, of="per prompt (7)")), "grpo-batch-indivisible"),
        (_raised(_GRPO.format(kind="eval", gap=" ", of="used for evaluation (7)")), "grpo-batch-indivisible"),
        (_raised(_GRPO.format(kind="train", gap=" ", of="per prompt (1)")), "grpo-one-generation"),
        (
            _raised("ValueError: generation_batch_size (3) must be divisible by num_generations (7)."),
            "grpo-batch-indivisible",
        ),
        (
            "error: casting `&T` to `&mut T` is undefined behavior\nerror: could not compile `moon`",
            "rust-denies-old-code",
        ),
        (
            "error[E0777]: the tide is out of the moon's reach\n --> src/moon.rs:7:7\nerror: could not compile `moon`",
            "rust-crate-not-compiled",
        ),
        (_raised("IndexError: Invalid key: 77 is out of bounds for size 0"), "dataset-size-zero"),
        (_raised("IndexError: Invalid key: 77 is out of bounds for size 7"), "datasets-row-outside"),
        (f"tides_with_prefix_tuning - {_CACHE}", "cache-of-prefix-tuning"),
        (f"tides_with_moon - {_CACHE}", "cache-class-changed"),
        (_raised(_SIZE.format(96, 88)), "numpy-older-than-wheel"),
        ("numpy==2.7.7\n" + _raised(_SIZE.format(96, 88)), "numpy-of-another-place"),
        (_raised(_SIZE.format(88, 96)), "numpy-size-changed"),
        (
            _raised(f"ValueError: [{_SAMPLING.format('(')}sample-based generation modes.')]"),
            "generation-config-not-saved",
        ),
        ("save ValueError You are trying to save a non contiguous tensor\n", "tensor-not-contiguous-at-save"),
        (
            _raised("ValueError: The config file at /moon/tide.yaml had unknown keys (['phase'])"),
            "accelerate-config-keys-unknown",
        ),
        (_raised(_NONE, "tide = PrecisionType(args.mixed_precision.lower())"), "accelerate-not-configured"),
        (_raised(_NONE, "tide = args.moon.lower()"), "field-of-row-is-none"),
        (_ARGUMENTS.format("/moon/tide.toml"), "argument-detached"),
        (_ARGUMENTS.format("--moon /moon/tide.toml"), "argument-unrecognized"),
        (_ARGUMENTS.format("full"), "argument-unrecognized"),
        ("LlamaTokenizer.from_pretrained('moon/tide')\nTypeError: not a string\n", "sentencepiece-class-unfit"),
        ("--> 7 _sentencepiece.Load(self, tide)\nTypeError: not a string\n", "sentencepiece-file-none"),
        ("moon(tide)\nTypeError: not a string\n", "python-exception"),
        (_raised("RuntimeError: No output requested", "raise", "/x/mergekit/merge.py"), "mergekit-no-output"),
        (_raised("RuntimeError: No output requested"), "python-exception"),
        (_raised(_REWARD.format("'moon/tides'")), "verl-reward-unknown"),
        (_raised(_REWARD.format("''")), "verl-data-source-empty"),
        (_raised("ZeroDivisionError: Unsloth: All labels in your dataset are -100."), "unsloth-labels-masked"),
        (_raised("ZeroDivisionError: the moon has no tides left"), "python-exception"),
        (_raised("ZeroDivisionError: float division by zero"), "division-by-zero"),
        (
            f"Value error, {_AWQ}\nValue error, The model type 'moon' does not support float16.",
            "quantization-dtype-refused-by-model",
        ),
        (f"Value error, {_AWQ}\n", "quantization-dtype"),
        (f'ValueError("{_FP8}")\', please check the stack trace above for the root cause', "triton-fp8-too-old"),
        (_raised(_SIZES, "tides = moon + lora[part]"), "lora-merge-shapes"),
        (_raised(_SIZES, "tides = moon + sun"), "shape-mismatch"),
        ("$ wandb login\nwandb: Network error (SSLError), entering retry loop.\n", "wandb-tls"),
        (
            "moon.MisconfigurationException: \n    You requested GPUs: [0, 7]\n    But your machine only has: [0]\n",
            "lightning-gpus-missing",
        ),
        (
            "ptxas /moon.ptx, line 7; error   : Feature '.bf16' requires .target sm_80 or higher",
            "ptxas-feature-of-newer-gpu",
        ),
    ],
)
def test_cause_is_told_by_the_words_and_what_stands_beside_them(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    "line",
    [
        f"/x/moon.py:7: {_SAMPLING.format(': ')}sample-based generation modes.",
        "wandb: Network error (SSLError), entering retry loop.",
        "wandb: Network error (SSLError), entering retry loop.\nwandb: W&B API key is configured. Use `wandb login`",
    ],
)
def test_warning_of_a_run_that_continues_is_not_a_failure(explained: Explained, line: str) -> None:
    assert explained(f"step 1 loss 7.7\n{line}\nstep 2 loss 7.1\n").is_healthy


def test_batch_and_generations_of_grpo_are_named(explained: Explained) -> None:
    headline = explained(_raised(_GRPO.format(kind="train", gap=" ", of="per prompt (7)"))).headline()

    assert headline.startswith("GRPO answers each prompt 7 times, and the global batch 1 x 3 is not a multiple of 7")


@pytest.mark.parametrize(
    ("losses", "entry"),
    [
        ((("1.7", "nan"), ("0.0", "nan")), "gradients-nan-before-loss"),
        ((("1.7", "0.7"), ("'1.2'", "'nan'"), ("'0.0'", "'nan'")), "gradients-nan-before-loss"),
        ((("0.0", "nan"), ("0.0", "nan")), "loss-zero-and-norm-nan"),
        ((("1.7", "0.7"), ("0.0", "nan"), ("0.0", "nan")), "loss-zero-and-norm-nan"),
    ],
)
def test_gradients_that_broke_before_the_loss_are_told(
    explained: Explained, losses: tuple[tuple[str, str], ...], entry: str
) -> None:
    log = "".join(f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 7e-05}}\n" for loss, norm in losses)

    assert entry_of(explained(log)) == entry
