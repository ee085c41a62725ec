"""Measures `ascendtune` on one model type against plain torch and transformers (`reference.causal_lm`).

Everything is read from files that a run leaves behind, so nothing here depends on how training is built. Gradients too:
a single step of plain gradient descent with a large learning rate writes them into the exported weights.
"""

from __future__ import annotations

import json
import logging
import shutil
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from families.configs import tiny_config
from reference import causal_lm

LEARNING_RATE = 1024.0
"""Of the step that shows gradients: so large that the weights' own digits do not hide them."""
STEPS = 3
TOLERANCE = 1e-5
"""Of a loss, and of a gradient relative to the largest one. Where a model's own fp32 is further than this from fp64,
so may ours be, by a small factor."""
OWN_ERRORS = 4.0
STEP_TOLERANCE = 1e-4
"""Of the losses of `STEPS` steps, each beginning from the one before."""
PROMPTS = ("What is the capital of France?", "Describe the atom.", "Who are you? I am a small assistant.", "Give tips")


TUNERS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"tuner": "lora", "lora": {"rank": 4, "alpha": 8}},
    "oft": {"tuner": "oft", "oft": {"block_size": 8}},
}
"""The columns of the page: `method` of the recipe of each."""


@dataclass
class Tried:
    """What became of one tuner."""

    refused: str = ""
    """The sentence, where the run is refused before its first step."""
    different: list[str] = field(default_factory=list)
    """Where numbers or words are not those of the reference."""
    failed: str = ""
    """The last line of a traceback: neither trained nor refused."""
    packed: bool = False
    attention: str = ""
    loss: str = ""
    said: list[str] = field(default_factory=list)
    """Warnings of the run."""


@dataclass
class Family:
    name: str
    cannot_be_made: str = ""
    """What transformers says, where it makes no tiny model of this type that computes."""
    full: Tried | None = None
    lora: Tried | None = None
    oft: Tried | None = None

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def tried(self) -> list[Tried | None]:
        """What became of each of `TUNERS`, in order."""
        return [getattr(self, tuner) for tuner in TUNERS]

    @classmethod
    def from_json(cls, text: str) -> Family:
        values = json.loads(text)
        tried = {key: Tried(**values[key]) if values.get(key) else None for key in TUNERS}
        return cls(**{**values, **tried})


def measure(name: str, directory: Path, tokenizer: Path, tuners: Iterable[str] = TUNERS) -> Family:
    """Train a tiny model of type `name` in full and with adapters, below `directory`.

    Args:
        tokenizer: a model directory whose tokenizer is taken.
        tuners: which columns are measured.
    """
    try:
        model = write_model(name, directory / "model", tokenizer)
    except Exception as error:  # noqa: BLE001  # a type that transformers itself cannot run
        return Family(name, cannot_be_made=f"{type(error).__name__}: {_first_line(error)}")
    rows = write_rows(directory / "rows.jsonl")
    asked = {"model": {"path": str(model)}, "data": {"train": str(rows), "max_length": 128}}
    reference = _Reference(model, causal_lm.chatml_rows(model, rows))
    family = Family(name)
    for tuner in tuners:
        setattr(family, tuner, _try(lambda tried, tuner=tuner: _measure(tried, tuner, asked, directory, reference)))
    return family


def _measure(tried: Tried, tuner: str, asked: dict[str, Any], directory: Path, reference: _Reference) -> None:
    if tuner == "full":
        _full(tried, asked, directory, reference)
    else:
        _adapter(tried, {**asked, "method": TUNERS[tuner]}, directory / tuner, reference)


def write_model(name: str, directory: Path, tokenizer: Path) -> Path:
    """A random model whose weights make every part of it visible: logits of several units, no vector at its neutral
    value."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(name), attn_implementation="eager")
    head = model.get_output_embeddings()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
            else:
                weight.add_(0.1 * torch.randn_like(weight))
        if head is not None:
            head.weight.mul_(3.0)
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
    model.save_pretrained(directory)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / file, directory / file)
    return directory


def write_rows(file: Path) -> Path:
    """Rows of different lengths, each longer than a window; two or three share a packed sequence."""
    tips = "Eat a balanced diet, exercise regularly and get enough sleep."
    rows = [
        ("Give three tips for staying healthy.", tips),
        ("What is the capital of France?", "The capital of France is Paris."),
        ("Who are you?", "I am a small assistant, trained to answer questions."),
        ("Describe the structure of an atom.", "An atom is made up of a nucleus which contains protons."),
        ("How many clips?", "Natalia sold clips to 48 of her friends in April, and then half as many in May."),
        ("Hello", "hello"),
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"prompt": a, "completion": b}) + "\n" for a, b in rows))
    return file


class _Reference:
    """The answers of plain torch, in fp64 where the model computes in it, and how far its own fp32 is from that."""

    def __init__(self, model: Path, rows: list[causal_lm.Row]) -> None:
        self.model, self.rows = model, rows

    def held_against(self, load: Callable[[torch.dtype], Any]) -> tuple[causal_lm.Result, float]:
        """Loss and gradients, and the tolerance for them."""
        own = causal_lm.loss_and_gradients(load(torch.float32), self.rows)
        try:
            exact = causal_lm.loss_and_gradients(load(torch.float64), self.rows)
        except (RuntimeError, ValueError, TypeError):
            # The same has just been computed in fp32: parts of this model do not take fp64.
            return own, TOLERANCE
        return exact, max(TOLERANCE, OWN_ERRORS * furthest(own.gradients, exact.gradients)[0])

    def losses(self, load: Callable[[torch.dtype], Any], learning_rate: float) -> list[list[float]]:
        """The losses of some steps in fp32 and, where the model computes in it, in fp64.

        A router's near tie goes one way in fp32 and the other in fp64, and training makes more of it with each step:
        losses must be those of one of the two.
        """
        found = [causal_lm.train(load(torch.float32), self.rows, steps=STEPS, learning_rate=learning_rate)]
        # Parts of some models do not take fp64; what fails in fp32, too, is a fault.
        with suppress(RuntimeError, ValueError, TypeError):
            found.append(causal_lm.train(load(torch.float64), self.rows, steps=STEPS, learning_rate=learning_rate))
        return found


def furthest(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest difference of gradients as a share of the largest gradient, and where it is."""
    largest = max(float(each.abs().max()) for each in expected.values())
    differences = [
        (float((found[name].double() - each.double()).abs().max()) / largest, name) for name, each in expected.items()
    ]
    return max(differences)


def _try(attempt: Callable[[Tried], None]) -> Tried:
    from ascendtune.core.errors import AscendtuneError, CheckFailed

    tried, warnings = Tried(), _Warnings()
    logging.getLogger("ascendtune").addHandler(warnings)
    try:
        attempt(tried)
    except CheckFailed as error:
        # Our own check of what we have made, such as a merged model.
        tried.failed = error.what
    except AscendtuneError as error:
        tried.refused = error.what
    except Exception as error:  # noqa: BLE001  # this is what is looked for
        frame = traceback.extract_tb(error.__traceback__)[-1]
        tried.failed = f"{type(error).__name__}: {_first_line(error)} ({Path(frame.filename).name}:{frame.lineno})"
    finally:
        logging.getLogger("ascendtune").removeHandler(warnings)
    tried.said = list(dict.fromkeys(warnings.said))
    tried.failed = tried.failed or next((each for each in tried.said if "FLOPs of this model" in each), "")
    return tried


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _full(tried: Tried, asked: dict[str, Any], directory: Path, reference: _Reference) -> None:
    from ascendtune.infer.engine import load

    run = _trained(asked, directory / "full-step", _one_step())
    _note(tried, run)
    before, after = causal_lm.load(reference.model), causal_lm.load(run / "model")
    exact, tolerance = reference.held_against(lambda dtype: causal_lm.load(reference.model, dtype))
    _hold_loss(tried, "the first loss", _losses(run)[0], exact.loss, tolerance)
    found = _gradients(before, after)
    _forget_rows_of_padding(before, exact.gradients)
    _forget_rows_of_padding(before, found)
    _hold_gradients(tried, found, exact.gradients, tolerance)

    run = _trained(asked, directory / "full", _some_steps())
    reloaded = causal_lm.load(run / "model")
    exported = causal_lm.evaluate(reloaded, reference.rows)
    expected = reference.losses(lambda dtype: causal_lm.load(reference.model, dtype), 1e-3)
    _hold_steps(tried, _losses(run), exported, expected)
    _hold_answers(tried, load(run), reloaded)


def _adapter(tried: Tried, asked: dict[str, Any], directory: Path, reference: _Reference) -> None:
    from ascendtune.infer.engine import load
    from ascendtune.merge.merge import merge

    run = _trained(asked, directory / "one-step", _one_step())
    _note(tried, run)
    stepped = run / "model"
    after = _adapter_weights(causal_lm.load(reference.model, adapter=stepped))

    def at_the_start(dtype: torch.dtype) -> Any:
        # Without an effect until what `_begins_at_zero` is other than that: LoRA's A is what it was, as its gradient
        # was zero.
        model = causal_lm.load(reference.model, dtype, stepped)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if _begins_at_zero(name):
                    weight.zero_()
        return model

    exact, tolerance = reference.held_against(at_the_start)
    gradients = {name: each for name, each in exact.gradients.items() if _begins_at_zero(name)}
    found = {name: -each / LEARNING_RATE for name, each in after.items() if _begins_at_zero(name)}
    _hold_loss(tried, "the first loss", _losses(run)[0], exact.loss, tolerance)
    _hold_gradients(tried, found, gradients, tolerance)

    run = _trained(asked, directory / "steps", _some_steps(learning_rate=1e-2))
    reloaded = causal_lm.load(reference.model, adapter=run / "model")
    exported = causal_lm.evaluate(reloaded, reference.rows)
    _hold_steps(tried, _losses(run), exported, reference.losses(at_the_start, 1e-2))
    _hold_answers(tried, load(run), reloaded)
    merge([str(run)], directory / "merged")
    merged = causal_lm.evaluate(causal_lm.load(directory / "merged"), reference.rows)
    _hold_loss(tried, "the loss of the merged model", merged, exported, TOLERANCE)


def train_and_read_losses(asked: dict[str, Any], run: Path, optim: dict[str, Any]) -> list[float]:
    """The loss of every step of a run over all rows at once."""
    return _losses(_trained(asked, run, optim))


def _trained(asked: dict[str, Any], run: Path, optim: dict[str, Any]) -> Path:
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.train.fit import fit

    recipe = {
        **asked,
        "name": run.name,
        "run_dir": str(run),
        "optim": optim,
        # Everything in one step, in several micro-batches.
        "batch": {"per_device": 2, "accumulate": 8},
        "precision": "fp32",
        "track": {"tensorboard": False},
        "checkpoint": {"resume": "never", "every_steps": 1000},
    }
    fit(Recipe.check(recipe))
    return run


def _one_step() -> dict[str, Any]:
    return {**_some_steps(LEARNING_RATE), "optimizer": "sgd", "max_steps": 1}


def _some_steps(learning_rate: float = 1e-3) -> dict[str, Any]:
    return {"learning_rate": learning_rate, "max_grad_norm": None, "scheduler": "constant", "max_steps": STEPS}


def _note(tried: Tried, run: Path) -> None:
    resolved = json.loads((run / "run.json").read_text())["resolved"]
    tried.packed, tried.attention, tried.loss = resolved["packing"], resolved["attention"]["name"], resolved["loss"]


def _losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def _gradients(before: Any, after: Any) -> dict[str, torch.Tensor]:
    moved = dict(after.named_parameters())
    return {name: (each - moved[name]).detach() / LEARNING_RATE for name, each in before.named_parameters()}


def _forget_rows_of_padding(model: Any, gradients: dict[str, torch.Tensor]) -> None:
    """Some classes set the padding token's embedding to 0 whenever they are loaded, so files do not show it."""
    for name, module in model.named_modules():
        weight = f"{name}.weight"
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None and weight in gradients:
            gradients[weight][module.padding_idx] = 0


def _adapter_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}


def _begins_at_zero(name: str) -> bool:
    return any(each in name for each in ("lora_B", "lora_embedding_B", "oft_R"))


def _hold_loss(tried: Tried, what: str, found: float | None, expected: float, tolerance: float) -> None:
    if found is None or not abs(found - expected) <= tolerance * abs(expected):
        tried.different.append(f"{what} is {found}, not {expected:.7g}")


def _hold_steps(tried: Tried, found: list[float], exported: float, references: list[list[float]]) -> None:
    """The losses of all steps and of what was exported; where no reference has them all, what the nearest says.

    Where the references part (a router's near tie), ours may part from them as far as they do from each other.
    """
    names = [*(f"the loss of step {number}" for number in range(1, len(found) + 1)), "the loss of what was exported"]
    attempts = []
    for expected in references:
        attempt = Tried()
        for number, (name, one) in enumerate(zip(names, [*found, exported], strict=True)):
            wanted = expected[number]
            parted = max(abs(other[number] / wanted - 1) for other in references)
            _hold_loss(attempt, name, one, wanted, max(STEP_TOLERANCE, parted))
        attempts.append(attempt.different)
    tried.different += min(attempts, key=len)


def _hold_gradients(
    tried: Tried, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float
) -> None:
    if missing := sorted(expected.keys() - found.keys()):
        tried.different.append(f"{len(missing)} weights are not there, first {missing[0]}")
        return
    share, name = furthest(found, expected)
    if not share <= tolerance:
        tried.different.append(f"the gradient of {name} is {share:.1e} of the largest off")
    idle = [name for name in found.keys() - expected.keys() if float(found[name].abs().max()) > 0]
    if idle:
        tried.different.append(f"{sorted(idle)[0]} moves without a gradient")


def _hold_answers(tried: Tried, engine: Any, model: Any) -> None:
    conversations = [[{"role": "user", "content": each}] for each in PROMPTS]
    together = engine.generate(conversations, 12)
    alone = [engine.generate([each], 12)[0] for each in conversations]
    if together != alone:
        tried.different.append("batched answers are not those of one at a time")
    expected = []
    for each in PROMPTS:
        prompt = engine.tokenizer.encode(f"<|im_start|>user\n{each}<|im_end|>\n<|im_start|>assistant\n")
        ids = causal_lm.greedy(model, prompt, tokens=12, stop=2)
        expected.append(engine.tokenizer.decode(ids, skip_special_tokens=True).strip())
    if alone != expected:
        tried.different.append("answers are not the model's own")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
