"""The recipe: what to train and how, as one typed, frozen, documented value. Free of torch."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from ascendtune.core.config import (
    Contradiction,
    Document,
    Section,
    apply_overrides,
    origins_of,
    read_document,
    to_yaml,
    validate,
)
from ascendtune.data.spec import DataSection
from ascendtune.train.combination import first_refusal
from ascendtune.train.llamafactory.recognise import is_theirs, require_ours
from ascendtune.train.llamafactory.translate import translate
from ascendtune.train.method import MethodSection
from ascendtune.train.parallel import ParallelSection


def _a_plain_name(value: str) -> str:
    if not re.fullmatch(r"[\w][\w.-]*", value):
        raise Contradiction(
            f"'{value}' is not a name for a directory", remedy="use letters, digits, '.', '_' and '-'", path=("name",)
        )
    return value


class ModelSection(Section):
    """Which weights to start from."""

    path: str
    """Directory or hub id of a model in Hugging Face format."""
    revision: str | None = None
    """For a hub id: branch, tag or commit."""
    trust_remote_code: bool = False
    """Run Python code that the model brings along. Off unless you have read that code."""
    attention: Literal["auto", "eager", "sdpa", "sdpa_fp32", "varlen", "npu_fusion"] = "auto"
    """How attention is computed; `auto` takes the device's fused one."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """In which type weights are held; `auto`: fp32 where they are trained, the precision's type where frozen."""
    init: Literal["pretrained", "random"] = "pretrained"
    """`random` needs only config.json and a tokenizer: weights are drawn with the seed."""
    new_tokens: list[str] = []
    """Tokens to add to the vocabulary; the embeddings grow, new rows start at the mean of the old ones."""


class OptimSection(Section):
    """How far each step goes, and for how long."""

    learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate (default: 1e-4 for lora, else 1e-5; a tenth of it for preference)."""
    scheduler: Literal["linear", "cosine", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of all steps in which the learning rate rises from 0."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Warm-up as a number of steps, instead of `warmup_ratio`."""
    min_learning_rate_ratio: float = Field(default=0.0, ge=0, le=1)
    """Where linear and cosine end, as a share of the peak."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Applied to matrices, not to biases and norms."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm; null leaves them."""
    optimizer: Literal["auto", "adamw", "adafactor", "sgd"] = "auto"
    """`auto` is AdamW, fused where the device can."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW: decay of the mean of gradients."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW: decay of the mean of squared gradients."""
    epsilon: float = Field(default=1e-8, gt=0)
    """AdamW: added to the divisor."""
    epochs: float | None = Field(default=None, gt=0)
    """Passes over the data (default 1, when `max_steps` is not given)."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps, instead of `epochs`."""

    @model_validator(mode="after")
    def _one_length_of_each(self) -> OptimSection:
        if self.epochs is not None and self.max_steps is not None:
            raise Contradiction(
                "optim.epochs and optim.max_steps contradict each other",
                remedy="keep one of them",
                path=("optim", "max_steps"),
            )
        if self.warmup_ratio and self.warmup_steps is not None:
            raise Contradiction(
                "optim.warmup_ratio and optim.warmup_steps contradict each other",
                remedy="keep one of them",
                path=("optim", "warmup_steps"),
            )
        return self


class BatchSection(Section):
    """How many sequences make a step: per_device × accumulate × devices."""

    per_device: int = Field(default=1, ge=1)
    """Sequences a device takes at once. With packing a sequence is up to `data.max_length` tokens of several rows."""
    accumulate: int = Field(default=1, ge=1)
    """Micro-batches whose gradients are added before the optimiser steps."""


class MemorySection(Section):
    """Time for memory."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    offload_activations: bool = False
    """Keep activations in host memory between forward and backward (no effect on CPU)."""


class KernelSection(Section):
    """Fused operators in place of a model's own modules; each is tested before it is used."""

    rms_norm: bool = True
    """Root mean square normalisation in one kernel."""
    rotary: bool = True
    """Rotary position embedding in one kernel."""
    swiglu: bool = True
    """SiLU(gate) × up in one kernel."""
    experts: bool = True
    """Experts of a mixture as one grouped matrix product: not in this version, transformers computes them."""


class EarlyStopSection(Section):
    """End before the last step when the evaluation loss no longer falls; absent: never."""

    patience: int = Field(default=3, ge=1)
    """Stop after this many evaluations without improvement."""
    min_improvement: float = Field(default=0.0, ge=0)
    """How much lower the evaluation loss must be to count."""


class EvalSection(Section):
    """Evaluation during training."""

    every_steps: int | None = Field(default=None, ge=1)
    """Evaluate after every so many steps (default: at the end of each epoch, when there is evaluation data)."""
    early_stop: EarlyStopSection | None = None


class CheckpointSection(Section):
    """When the whole state is kept, and where a run starts."""

    every_steps: int | None = Field(default=None, ge=1)
    """Write a checkpoint after every so many steps (default: ten times over the run, at most every 20 steps)."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay."""
    best: bool = False
    """Also keep the checkpoint with the lowest evaluation loss, and export that one at the end."""
    resume: str = "auto"
    """`auto`: from the newest complete checkpoint of this run, if any; `never`; or the path of a checkpoint."""


class TrackSection(Section):
    """Where numbers go beside metrics.jsonl."""

    every_steps: int = Field(default=1, ge=1)
    """Steps between two lines of metrics.jsonl; each line costs one synchronisation with the device."""
    tensorboard: bool = True
    """Write events for TensorBoard into the run directory."""


class AlignSection(Section):
    """What is recorded for comparing two machines."""

    batch_hash: bool = True
    """Hash every global batch, so that two runs can prove that they saw the same data."""


class Recipe(Section):
    """What to train and how. Unknown keys and impossible values are errors before anything starts."""

    name: Annotated[str, AfterValidator(_a_plain_name)] = "run"
    """Name of the run and of its directory."""
    run_dir: str = "runs/{name}"
    """Where the run directory is made; `{name}` is filled in, a taken name gets a number."""
    model: ModelSection
    data: DataSection
    method: MethodSection = MethodSection()
    optim: OptimSection = OptimSection()
    batch: BatchSection = BatchSection()
    parallel: ParallelSection = ParallelSection()
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """In which type matrices are multiplied; `auto` is the best that the device really has."""
    memory: MemorySection = MemorySection()
    kernel: Literal["auto", "off"] | KernelSection = "auto"
    """`auto` takes every fused operator that the device has; or choose one by one."""
    eval: EvalSection = EvalSection()
    on_nan: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is not a number: stop before the step, or skip the step and count."""
    checkpoint: CheckpointSection = CheckpointSection()
    track: TrackSection = TrackSection()
    align: AlignSection = AlignSection()
    seed: int = Field(default=42, ge=0, lt=2**32)
    """Decides the order of rows, held-out rows, drawn weights and dropout."""
    deterministic: bool = False
    """Only operations that give the same bits every time; slower on accelerators."""

    _notes: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _evaluation_has_data(self) -> Recipe:
        has_data = bool(self.data.eval or self.data.eval_fraction or self.data.eval_rows)
        for wanted, key in (
            (self.eval.every_steps, ("eval", "every_steps")),
            (self.eval.early_stop, ("eval", "early_stop")),
            (self.checkpoint.best, ("checkpoint", "best")),
        ):
            if wanted and not has_data:
                raise Contradiction(
                    f"{'.'.join(key)} needs evaluation data", remedy="set data.eval or data.eval_fraction", path=key
                )
        return self

    @model_validator(mode="after")
    def _parts_go_together(self) -> Recipe:
        if refusal := first_refusal(self):
            raise Contradiction(refusal.what, remedy=refusal.remedy, path=refusal.path)
        return self

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """Read and check a recipe file.

        Raises:
            RecipeError: with file, line and remedy.
        """
        return cls.load_with_origins(path, overrides)[0]

    @classmethod
    def load_with_origins(cls, path: str | Path, overrides: Sequence[str] = ()) -> tuple[Recipe, dict[str, str]]:
        """`load`, and for every key where its value came from: `file:line`, the command line, or `default`."""
        document = cls.read(path, overrides)
        recipe = validate(cls, document)
        recipe._notes = tuple(document.notes)
        return recipe, origins_of(recipe, document)

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> Document:
        """The values of a recipe file, ours or LLaMA-Factory's, as a document of ours; not checked against the types.

        Raises:
            RecipeError: unreadable, or a recipe of LLaMA-Factory's that cannot be translated.
        """
        document = read_document(Path(path))
        if is_theirs(document, cls.model_fields):
            require_ours(overrides)
            document = translate(document, os.environ)
        apply_overrides(document, overrides)
        _let_overrides_win(document, overrides)
        return document

    @classmethod
    def check(cls, values: dict[str, Any], source: str = "recipe") -> Recipe:
        """A recipe from plain values, with the same messages as a file."""
        return validate(cls, Document(values, source))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user of LLaMA-Factory wants to know of a recipe of theirs; empty for ours."""
        return self._notes

    def to_yaml(self) -> str:
        return to_yaml(self)

    def run_directory(self) -> Path:
        return Path(self.run_dir.replace("{name}", self.name))

    @property
    def learning_rate(self) -> float:
        if self.optim.learning_rate is not None:
            return self.optim.learning_rate
        if self.method.tuner == "lora":
            return 1e-5 if self.method.stage == "preference" else 1e-4
        return 1e-6 if self.method.stage == "preference" else 1e-5

    def without_effect(self, origins: dict[str, str]) -> list[str]:
        """Sentences on keys that are set but change nothing in this recipe."""
        given = [key for key, origin in origins.items() if origin != "default"]
        strategy = self.parallel.strategy
        rules = [
            ("method.lora.", self.method.tuner != "lora", f"tuner is {self.method.tuner}"),
            *(
                (f"method.lora.{key}", bool(self.method.lora.start_from), "the adapters of start_from decide it")
                for key in ("target", "rank", "alpha", "rslora", "dora", "modules_to_save")
            ),
            ("method.freeze.", self.method.tuner != "freeze", f"tuner is {self.method.tuner}"),
            ("method.reward.", self.method.stage != "reward", f"stage is {self.method.stage}"),
            ("method.preference.", self.method.stage != "preference", f"stage is {self.method.stage}"),
            ("data.template", self.method.stage == "pretrain", "texts of stage pretrain have no turns"),
            ("data.loss_on", self.method.stage == "pretrain", "stage pretrain learns everything"),
            ("data.loss_on", self.method.stage in ("reward", "preference"), "only the last answer counts here"),
            (
                "data.on_long_row",
                self.method.stage == "pretrain" and self.data.on_long_row == "truncate",
                "stage pretrain splits long texts",
            ),
            ("parallel.fsdp.", strategy not in ("fsdp", "auto"), f"strategy is {strategy}"),
            ("parallel.deepspeed.", strategy not in ("deepspeed", "auto"), f"strategy is {strategy}"),
            (
                "optim.warmup",
                self.optim.scheduler == "constant" and not self.optim.warmup_steps and not self.optim.warmup_ratio,
                "it is zero",
            ),
            ("optim.min_learning_rate_ratio", self.optim.scheduler == "constant", "the scheduler is constant"),
            ("optim.beta", self.optim.optimizer in ("sgd", "adafactor"), f"the optimizer is {self.optim.optimizer}"),
            ("optim.epsilon", self.optim.optimizer in ("sgd", "adafactor"), f"the optimizer is {self.optim.optimizer}"),
            ("model.dtype", self.model.init == "random" and self.model.dtype != "fp32", "random weights are fp32"),
        ]
        return [
            f"{key} has no effect: {reason} ({origins[key]})"
            for prefix, inert, reason in rules
            if inert
            for key in given
            if key.startswith(prefix)
        ]


def _let_overrides_win(document: Document, overrides: Sequence[str]) -> None:
    """`optim.max_steps=30` on the command line replaces the file's `optim.epochs`: it is meant for this start."""
    given = {word.partition("=")[0] for word in overrides}
    optim = document.values.get("optim")
    if isinstance(optim, dict):
        for one, other in (("max_steps", "epochs"), ("warmup_steps", "warmup_ratio")):
            for kept, left in ((one, other), (other, one)):
                if f"optim.{kept}" in given and f"optim.{left}" not in given:
                    optim.pop(left, None)
                    document.places.pop(("optim", left), None)


__all__ = ["Recipe"]
