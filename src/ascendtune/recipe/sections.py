"""The smaller sections of the recipe, one class each; data, method and parallel have their own files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ascendtune.core.config import MOST, Contradiction, Section, other_names
from ascendtune.core.errors import RecipeError


class ModelSection(Section):
    """The model whose weights training starts from."""

    path: str
    """Directory or hub id of a model in Hugging Face format."""
    revision: str | None = None
    """For a hub id: branch, tag or commit."""
    trust_remote_code: bool = False
    """Run Python code from the model's files. Set it only after reading that code."""
    attention: Literal["auto", "eager", "sdpa", "sdpa_fp32", "varlen", "npu_fusion"] = "auto"
    """Attention implementation; `auto` uses the device's fused one if its results agree with eager attention."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Type of the weights in memory; `auto`: fp32 for trained weights, the type of `precision` for frozen ones."""
    quantization: Literal["nf4"] | None = None
    """QLoRA: store the frozen weights of linear modules, except the head, in 4.5 bits each; with `method.tuner: lora`
    or `oft`. They are quantised when they are loaded, and computed with in the type of `precision`."""
    double_quantization: bool = False
    """nf4: quantise the scales as well, 4.13 bits for each weight."""
    init: Literal["pretrained", "random"] = "pretrained"
    """`random` needs only config.json and a tokenizer: weights are drawn with the seed."""
    new_tokens: list[str] = []
    """Tokens to add to the vocabulary. They use spare rows of the embeddings; further rows are initialised to the
    mean."""
    new_layers: int = Field(default=0, ge=0, le=65_536)
    """Layers to add, spread evenly, each a copy of the previous layer that initially has no effect (LLaMA Pro); train
    them with `method.freeze.spread_layers`."""


NEEDS_WHOLE_MATRICES = {
    "adafactor": "Adafactor keeps means over rows and columns of each matrix",
    "muon": "Muon orthogonalises the update of each matrix as a whole",
}
"""Optimizers that do not work on shards of a matrix, with the reason."""

BITSANDBYTES_OPTIMIZERS = (
    *("adamw_8bit", "adamw_bnb_8bit", "paged_adamw", "paged_adamw_8bit", "paged_adamw_32bit"),
    *("lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit", "rmsprop_bnb", "rmsprop_bnb_8bit"),
    *("rmsprop_bnb_32bit", "ademamix", "ademamix_8bit", "paged_ademamix_8bit", "paged_ademamix_32bit"),
)
"""Names in transformers of optimizers that bitsandbytes computes."""

_LESS = "optimizer: adafactor needs less memory than adamw, and method.tuner: lora needs the least"
# Optimizers of other tools, and their names of AdamW.
_OTHER_OPTIMIZERS = {
    "adam_mini": f"Adam-mini is not supported in this version: {_LESS}",
    "apollo": f"APOLLO is not supported in this version: {_LESS}",
    "badam": f"BAdam is not supported in this version: {_LESS}",
    "galore": f"GaLore is not supported in this version: {_LESS}",
    "lion": "Lion is not supported in this version: use auto",
    **dict.fromkeys(
        BITSANDBYTES_OPTIMIZERS,
        f"optimizers of bitsandbytes are not supported in this version: {_LESS}",
    ),
    **dict.fromkeys(("adamw_hf", "adamw_torch", "adamw_torch_fused", "adamw_torch_npu_fused"), "use auto"),
}


class OptimSection(Section):
    """The optimizer, its learning rate schedule, and the length of training."""

    learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate (default: 1e-4 for lora and oft, else 1e-5; a tenth of it for preference)."""
    scheduler: Literal["linear", "cosine", "constant"] = "cosine"
    """Decay of the learning rate after the warm-up."""
    warmup_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of all steps in which the learning rate rises from 0."""
    warmup_steps: int | None = Field(default=None, ge=0, le=MOST)
    """Warm-up as a number of steps, instead of `warmup_ratio`."""
    min_learning_rate_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate of linear and cosine, as a share of the peak."""
    weight_decay: float = Field(default=0.0, ge=0, le=1000)
    """Applied to matrices, not to biases and norms."""
    max_grad_norm: float | None = Field(default=1.0, gt=0, le=MOST)
    """Clip gradients to this norm; null: do not clip."""
    optimizer: Annotated[Literal["auto", "adamw", "adafactor", "muon", "sgd"], other_names(_OTHER_OPTIMIZERS)] = "auto"
    """`auto` is AdamW, fused if the device supports it. `muon` (torch's, one device or ddp) orthogonalises the updates
    of matrices, and uses AdamW for embeddings, head, biases, norms and stacked experts."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """muon: decay of the mean of gradients."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW, and muon's AdamW: decay of the mean of gradients."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW, and muon's AdamW: decay of the mean of squared gradients."""
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """AdamW, and muon's AdamW: added to the divisor."""
    epochs: float | None = Field(default=None, gt=0, le=1_000_000)
    """Passes over the data (default 1, if `max_steps` is not given)."""
    max_steps: int | None = Field(default=None, ge=1, le=MOST)
    """Optimizer steps, instead of `epochs`."""

    def contradictions(self) -> Iterator[Contradiction]:
        if self.epochs is not None and self.max_steps is not None:
            yield Contradiction(
                "optim.epochs and optim.max_steps contradict each other",
                code="conflicting-keys",
                remedy="keep one of them",
                path=("optim", "max_steps"),
            )
        if self.warmup_ratio and self.warmup_steps is not None:
            yield Contradiction(
                "optim.warmup_ratio and optim.warmup_steps contradict each other",
                code="conflicting-keys",
                remedy="keep one of them",
                path=("optim", "warmup_steps"),
            )


class BatchSection(Section):
    """Sequences per step: per_device × accumulate × devices."""

    per_device: Annotated[int, Field(ge=1, le=65_536)] | Literal["auto"] = 1
    """Sequences per micro-batch and device. With packing a sequence has up to `data.max_length` tokens. `auto`: the
    largest power of two, up to 256, that `ascendtune plan` expects to fit into the memory of an accelerator."""
    accumulate: int = Field(default=1, ge=1, le=65_536)
    """Micro-batches whose gradients are added before the optimizer steps."""

    @property
    def micro_batch(self) -> int:
        """`per_device` as a number.

        Raises:
            RecipeError: it is `auto`, and nothing has chosen a number yet.
        """
        if isinstance(self.per_device, int):
            return self.per_device
        raise RecipeError(
            "batch.per_device: auto is chosen by `ascendtune train` on one machine and by `ascendtune plan` only",
            code="batch-not-chosen",
            remedy="set batch.per_device to the number that `ascendtune plan` shows",
        )


class MemorySection(Section):
    """Options that save memory and cost time."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    offload_activations: bool = False
    """Keep activations in host memory between forward and backward (no effect on CPU)."""


class KernelSection(Section):
    """Fused operators that replace a model's own modules; each is tested before it is used."""

    rms_norm: bool = True
    """Root mean square normalisation in one kernel."""
    rotary: bool = True
    """Rotary position embedding in one kernel."""
    swiglu: bool = True
    """SiLU(gate) × up in one kernel."""
    experts: bool = True
    """Experts of a mixture as grouped matrix products, in the type of `precision`."""
    adamw: bool = True
    """AdamW's update of large weights in one kernel each; torch's own update for the others."""


class EarlyStopSection(Section):
    """Stop early when the evaluation loss no longer falls; absent: never."""

    patience: int = Field(default=3, ge=1, le=MOST)
    """Stop after this many evaluations without improvement."""
    min_improvement: float = Field(default=0.0, ge=0, le=MOST)
    """Minimum decrease of the evaluation loss that counts as an improvement; the best checkpoint has the lowest
    loss."""


class EvalSection(Section):
    """Evaluation during training."""

    every_steps: int | None = Field(default=None, ge=1, le=MOST)
    """Steps between two evaluations (default: at the end of each epoch, if there is evaluation data)."""
    early_stop: EarlyStopSection | None = None


class CheckpointSection(Section):
    """When checkpoints are written, and where a run starts."""

    every_steps: int | None = Field(default=None, ge=1, le=MOST)
    """Write a checkpoint after every so many steps, and after the last one (default: ten times over the run, at most
    every 20 steps). A run of fewer steps writes none."""
    keep: int = Field(default=2, ge=1, le=MOST)
    """Number of newest checkpoints that are kept, beside those that other runs in the same directory resume from."""
    best: bool = False
    """Also keep the checkpoint with the lowest evaluation loss, and export it at the end."""
    resume: str = "auto"
    """`auto`: from the newest complete checkpoint of this run, if any; `never`; a checkpoint's path or name: `run@120`,
    `run@best`, `run@last`."""

    @property
    def at_once(self) -> int:
        """Maximum number of checkpoints that exist at a time: a new one is written before an old one is removed."""
        return self.keep + self.best + 1


TrackerName = Literal["wandb", "swanlab", "mlflow", "trackio"]
PROJECT_NAME = r"^[\w.-]{1,100}$"
"""Valid values of `track.project`."""


class TrackSection(Section):
    """Metrics: how often they are recorded, and where besides metrics.jsonl."""

    every_steps: int = Field(default=1, ge=1, le=MOST)
    """Steps between two lines of metrics.jsonl. On an accelerator the line of a step is written during the next one."""
    tensorboard: bool = True
    """Write events for TensorBoard into the run directory."""
    send_to: list[TrackerName] = []
    """Trackers that receive the metrics during the run, such as `[wandb]`; `ascendtune track send` does it later."""
    project: str = Field(default="ascendtune", pattern=PROJECT_NAME)
    """Name of the project (in mlflow: of the experiment) in these trackers."""
    host: str | None = Field(default=None, pattern=r"^https?://[^\s@]+$", max_length=500)
    """Address of your own server; null: the one that the tracker's own client is configured for."""

    def contradictions(self) -> Iterator[Contradiction]:
        if self.host is not None and len(self.send_to) != 1:
            yield Contradiction(
                "track.host is the address of one tracker",
                code="conflicting-keys",
                remedy="name exactly one tracker in track.send_to, or remove track.host",
                path=("track", "host"),
            )


UNTRACKED = ("track.tensorboard=false", "track.send_to=[]", "track.host=null")
"""Overrides for the trainings that commands start to measure or to repeat something: no tracker receives them."""


class AlignSection(Section):
    """Records for the comparison of two machines."""

    batch_hash: bool = True
    """Hash every global batch, to prove that two runs used the same data."""
    dump_steps: int | str | None = None
    """Steps whose activations, gradients and parameters are dumped for `ascendtune align`, such as `1-3,10`."""
    pad: Literal["auto"] | bool = "auto"
    """Pad rows that are not packed, as other trainers do, so that dumps can be compared with theirs, module by module;
    `auto`: in runs with `dump_steps`."""
    level: Literal["module", "op"] = "module"
    """Dumped results of the forward pass: those of modules, or also those of every operator in them."""
    ranks: list[Annotated[int, Field(ge=0, le=MOST)]] | None = None
    """Ranks that write dumps (default: all)."""
    content: Literal["statistics", "tensors"] = "statistics"
    """Dump statistics only, or also the whole tensors."""
    stop_after: int | None = Field(default=None, ge=1, le=MOST)
    """End the run after this step; the schedule stays that of the whole run."""

    @field_validator("dump_steps")
    @classmethod
    def _steps_are_ranges(cls, value: int | str | None) -> int | str | None:
        steps_in(value)
        return value

    def is_dumped(self, step: int) -> bool:
        """Whether `dump_steps` names this step, from 1."""
        return any(step in each for each in steps_in(self.dump_steps))


MOST_PROFILED_STEPS = 100
"""A step of a large model writes some 10 MB of trace."""


class ProfileSection(Section):
    """The steps to profile, for `ascendtune profile`."""

    steps: int | str | None = None
    """Steps whose trace is written, one range such as `5-8` (default: none)."""
    ranks: list[Annotated[int, Field(ge=0, le=MOST)]] | None = None
    """Ranks that are profiled (default: all)."""
    only: bool = False
    """End the run after the last profiled step, without evaluation, checkpoint and model; for `ascendtune profile`."""
    stacks: bool = False
    """Also record the Python stack of every operator; slows the profiled steps down."""
    memory: bool = False
    """Also record every allocation: the report then shows the memory by category. `ascendtune profile` sets it."""

    @field_validator("steps")
    @classmethod
    def _steps_are_one_range(cls, value: int | str | None) -> int | str | None:
        ranges = steps_in(value, ("profile", "steps"))
        if len(ranges) > 1 or any(len(each) > MOST_PROFILED_STEPS for each in ranges):
            raise Contradiction(
                f"'{value}' is not one range of at most {MOST_PROFILED_STEPS} steps",
                code="invalid-value",
                remedy="write one range, such as 5-8",
                path=("profile", "steps"),
            )
        return value

    def contradictions(self) -> Iterator[Contradiction]:
        if self.only and self.steps is None:
            yield Contradiction(
                "profile.only needs profile.steps",
                code="conflicting-keys",
                remedy="set profile.steps, such as 5-8, or remove profile.only",
                path=("profile", "only"),
            )

    def window(self) -> range:
        """The profiled steps, from 1; empty if there are none."""
        return next(iter(steps_in(self.steps)), range(0))

    def profiled_ranks(self, world_size: int) -> Collection[int]:
        return range(world_size) if self.ranks is None else self.ranks


def steps_in(text: int | str | None, path: tuple[str, ...] = ("align", "dump_steps")) -> list[range]:
    """The steps that a text such as `1-3,10` names; none for None.

    Args:
        path: the key for the error message.

    Raises:
        Contradiction: it is not a list of steps and ranges.
    """
    ranges = []
    for part in str(text).split(",") if text is not None else ():
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise Contradiction(
                f"'{part}' is not a step or a range of steps",
                code="invalid-value",
                remedy="give steps or ranges of steps, such as 1-3,10; the first step is 1",
                path=path,
            )
        ranges.append(range(first, last + 1))
    return ranges
