"""The `method` section of a recipe: the objective, and the weights that are trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ascendtune.core.config import MOST, Contradiction, Section, other_names
from ascendtune.data.spec import Task

# Other names of supported values, and alternatives for unsupported values.
_LOSSES = {"dpo": "sigmoid", "kto": "kto", "orpo": "orpo", "simpo": "simpo", "ipo": "ipo"}
_OTHER_NAMES = {
    **{name: f"use method.stage: preference with method.preference.loss: {loss}" for name, loss in _LOSSES.items()},
    "rm": "use method.stage: reward",
    "pt": "use method.stage: pretrain",
    "ppo": "PPO is not supported in this version; method.stage: preference is the nearest",
    "grpo": "GRPO is not supported in this version; method.stage: preference is the nearest",
    "qlora": "use method.tuner: lora with model.quantization: nf4",
}


_OTHER_LOSSES = {
    "dpo": "use sigmoid, which is DPO's own loss",
    "cdpo": "use sigmoid with method.preference.label_smoothing",
    "slic": "use hinge",
    "sppo": "SPPO is not supported in this version; sigmoid is the nearest",
    "kto_pair": "use kto with answers marked good or bad, or sigmoid with pairs",
}


_OTHER_SFT_LOSSES = {
    "nll": "use cross_entropy",
    "chunked_nll": "use cross_entropy, which is computed in chunks",
}

ALL_LINEAR = "all-linear"
ALL_EXPERTS = "all-experts"


class LoraSection(Section):
    """Low-rank adapters (PEFT)."""

    target: Literal["all-linear"] | list[str] = "all-linear"
    """`all-linear`: every linear module except the head, the routers and experts of a mixture, and modules on which an
    adapter has no effect. Or a list of names, e.g. [q_proj, v_proj]; it may contain `all-linear`, `all-experts` (each
    expert gets matrices of this rank) and names of routers, e.g. [all-linear, all-experts, gate]."""
    rank: int = Field(default=8, ge=1, le=65_536)
    """Rank of the adapter's matrices: its capacity and size."""
    alpha: float | None = Field(default=None, gt=0, le=MOST)
    """Scale of the adapter (default: twice the rank)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability of the adapter's inputs in training."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank) instead of alpha / rank."""
    dora: bool = False
    """Train magnitude and direction separately (weight-decomposed LoRA)."""
    init: Literal["zero", "pissa"] = "zero"
    """`zero`: the adapter changes nothing at first; `pissa`: it starts as the principal components of the weights."""
    modules_to_save: Literal["all-embeddings"] | list[str] = []
    """Modules that are trained whole and saved with the adapter: names, e.g. [embed_tokens, lm_head], or
    `all-embeddings`: the token embeddings and the head, whatever their names are."""
    start_from: list[str] = []
    """Adapters (directories, runs, hub ids) to continue from: the last is trained further, the others stay unchanged.
    The export contains them all. Rank, alpha, target and form come from the files."""
    plus_ratio: float | None = Field(default=None, ge=1, le=MOST)
    """LoRA+: learning rate of the B matrices, as a multiple of the others'."""

    @property
    def alpha_or_default(self) -> float:
        """Alpha; twice the rank if the recipe does not set it."""
        return self.alpha if self.alpha is not None else 2.0 * self.rank


class OftSection(Section):
    """Orthogonal fine-tuning (PEFT): blocks of a layer's inputs are rotated before its frozen matrix."""

    target: Literal["all-linear"] | list[str] = "all-linear"
    """`all-linear`: every linear module except the head, the routers and experts of a mixture, and modules on which an
    adapter has no effect. Or a list of names of linear modules, e.g. [q_proj, v_proj]."""
    block_size: int | None = Field(default=None, ge=2, le=65_536)
    """Inputs that a block rotates (default 32, unless `rank` is given); if the inputs of a module are not divisible by
    it, the nearest size that divides them."""
    rank: int | None = Field(default=None, ge=1, le=65_536)
    """Number of blocks per module, in place of `block_size`. More blocks have fewer weights."""
    module_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of a module's blocks that rotate nothing in a training step, rounded down to whole blocks."""
    coft: bool = False
    """Constrained OFT: before each forward pass, blocks that turn further than `eps` are pulled back to it."""
    eps: float = Field(default=6e-5, gt=0, le=MOST)
    """coft: how far a module may turn; the norm of a block's skew-symmetric matrix is at most eps / sqrt(blocks)."""
    block_share: bool = False
    """Share one block among all positions of a module."""
    cayley_neumann: bool = True
    """Approximate the inverse in the Cayley transform by its series: faster, and nearly orthogonal. False: solve it."""
    cayley_neumann_terms: int = Field(default=5, ge=2, le=64)
    """Terms of that series."""
    modules_to_save: Literal["all-embeddings"] | list[str] = []
    """Modules that are trained whole and saved with the adapter, as in `method.lora.modules_to_save`."""
    start_from: list[str] = []
    """An adapter (directory, run, hub id) to continue from. Block size, target and form come from its files."""

    def contradictions(self) -> Iterator[Contradiction]:
        if len(self.start_from) > 1:
            yield Contradiction(
                f"method.oft.start_from names {len(self.start_from)} adapters: rotations follow one another and cannot "
                "be added up, so one adapter can be trained further",
                code="adapters-not-combinable",
                remedy="merge the earlier ones into the base model (`ascendtune merge`), train that, and name the last",
                path=("method", "oft", "start_from"),
            )
        if self.block_size is not None and self.rank is not None:
            yield Contradiction(
                "method.oft.block_size and method.oft.rank both set the size of a block: their product is the number "
                "of inputs of a module",
                code="conflicting-keys",
                remedy="keep one of them",
                path=("method", "oft", "rank"),
            )

    def block_of(self, inputs: int) -> int:
        """Number of inputs that a block of a module with `inputs` inputs rotates: as PEFT chooses it.

        A size, or a number of blocks, that does not divide `inputs` is rounded to the nearest divisor; of two, the
        smaller.
        """
        if self.rank is not None:
            return inputs // _nearest_divisor(inputs, self.rank)
        return _nearest_divisor(inputs, self.block_size or 32)


def _nearest_divisor(number: int, nearest_to: int) -> int:
    if nearest_to >= number or number % nearest_to == 0:
        return min(nearest_to, number)
    divisors = (each for each in range(1, number + 1) if number % each == 0)
    return min(divisors, key=lambda each: (abs(each - nearest_to), each))


class FreezeSection(Section):
    """The part of the model that is trained while the rest is frozen."""

    first_layers: int = Field(default=0, ge=0, le=65_536)
    """Train this many layers next to the input."""
    last_layers: int | None = Field(default=None, ge=0, le=65_536)
    """Train this many layers next to the output (default 2, if nothing else is chosen)."""
    spread_layers: int = Field(default=0, ge=0, le=65_536)
    """Train this many layers, spread evenly: the last of each of as many groups, where `model.new_layers` adds them."""
    modules: list[str] = []
    """Within those layers train only modules of these names, e.g. [mlp]; empty: whole layers."""
    extra: list[str] = []
    """Modules outside the layers that train too, e.g. [embed_tokens, lm_head]."""

    def contradictions(self) -> Iterator[Contradiction]:
        layers = self.first_layers + self.layers_at_the_end + self.spread_layers
        if layers == 0 and self.modules:
            yield Contradiction(
                "method.freeze.modules are parts of layers, and no layer is chosen",
                code="nothing-to-train",
                remedy="set method.freeze.last_layers or first_layers; modules outside the layers go under extra",
                path=("method", "freeze", "modules"),
            )
        elif layers == 0 and not self.extra:
            yield Contradiction(
                "method.freeze leaves nothing to train",
                code="nothing-to-train",
                remedy="set method.freeze.last_layers, first_layers, spread_layers or extra",
                path=("method", "freeze"),
            )

    @property
    def layers_at_the_end(self) -> int:
        """`last_layers` with its default filled in."""
        if self.last_layers is not None:
            return self.last_layers
        return 0 if self.first_layers or self.spread_layers or self.extra else 2

    def chosen(self, layers: int) -> list[int]:
        """Indices of the trained layers, of `layers` in all; out of range if more are requested than exist."""
        group = layers // self.spread_layers if self.spread_layers else 0
        spread = [group * nth - 1 for nth in range(1, self.spread_layers + 1)]
        return sorted({*range(self.first_layers), *range(layers - self.layers_at_the_end, layers), *spread})


class SftSection(Section):
    """Supervised fine-tuning: how much each labelled token counts."""

    loss: Annotated[Literal["cross_entropy", "dft", "eaft", "asft"], other_names(_OTHER_SFT_LOSSES)] = "cross_entropy"
    """`dft` weights each token by its probability, `eaft` by the entropy of the prediction, both without a gradient;
    `asft` is `dft` plus the divergence from the model before training. The evaluation loss stays the cross-entropy."""
    asft_alpha: float = Field(default=0.1, gt=0, le=1000)
    """asft: weight of the divergence KL(before ‖ now)."""
    eaft_alpha: float = Field(default=1.0, gt=0, le=100)
    """eaft: power of the normalised entropy."""
    neftune_alpha: float | None = Field(default=None, gt=0, le=1000)
    """NEFTune: noise on the embeddings in training, uniform within alpha / sqrt(tokens × hidden size)."""


class RewardSection(Section):
    """Reward models: a score that is higher for the chosen answer."""

    centring: float = Field(default=0.0, ge=0, le=1000)
    """Weight of (score of chosen + score of rejected)², which keeps scores around zero."""


class PreferenceSection(Section):
    """Training on chosen and rejected answers."""

    loss: Annotated[Literal["sigmoid", "hinge", "ipo", "kto", "orpo", "simpo"], other_names(_OTHER_LOSSES)] = "sigmoid"
    """`sigmoid` is DPO's own. `kto` takes single answers marked good or bad; `orpo` and `simpo` need no reference."""
    beta: float = Field(default=0.1, gt=0, le=1000)
    """Strength of the penalty for deviating from the reference; the weight of the odds ratio for orpo."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """sigmoid: the assumed share of pairs with swapped labels."""
    simpo_gamma: float = Field(default=0.5, ge=0, le=1000)
    """simpo: the target margin between the scores of the chosen and the rejected answer."""
    sft_weight: float = Field(default=0.0, ge=0, le=1000)
    """Adds the cross-entropy of the chosen answer (kto: of good ones) with this weight; orpo already contains it
    once."""
    desirable_weight: float = Field(default=1.0, gt=0, le=1000)
    """kto: weight of good answers."""
    undesirable_weight: float = Field(default=1.0, gt=0, le=1000)
    """kto: weight of bad answers."""
    reference: str | None = None
    """Directory or hub id of the reference model (default: the model as it is before training)."""


class MethodSection(Section):
    """The training objective, and the weights that are trained."""

    stage: Annotated[Literal["pretrain", "sft", "reward", "preference"], other_names(_OTHER_NAMES)] = "sft"
    """`pretrain`: text; `sft`: answers; `reward`: scores from pairs; `preference`: DPO and its relatives."""
    tuner: Annotated[Literal["full", "freeze", "lora", "oft"], other_names(_OTHER_NAMES)] = "full"
    """`full` trains every weight, `freeze` a few layers, `lora` small adapters beside frozen weights, `oft` rotations
    before them."""
    lora: LoraSection = LoraSection()
    oft: OftSection = OftSection()
    freeze: FreezeSection = FreezeSection()
    sft: SftSection = SftSection()
    reward: RewardSection = RewardSection()
    preference: PreferenceSection = PreferenceSection()

    def contradictions(self) -> Iterator[Contradiction]:
        options = self.preference
        if options.label_smoothing and options.loss != "sigmoid":
            yield Contradiction(
                f"method.preference.label_smoothing is defined for loss: sigmoid, not for {options.loss}",
                code="conflicting-keys",
                remedy="remove it, or use loss: sigmoid",
                path=("method", "preference", "label_smoothing"),
            )
        if options.reference and options.loss in ("orpo", "simpo"):
            yield Contradiction(
                f"method.preference.loss: {options.loss} has no reference model",
                code="conflicting-keys",
                remedy="remove method.preference.reference",
                path=("method", "preference", "reference"),
            )

    @property
    def adapter(self) -> LoraSection | OftSection | None:
        """The section of the adapter that is trained; None if the model's own weights are trained."""
        match self.tuner:
            case "lora":
                return self.lora
            case "oft":
                return self.oft
            case _:
                return None

    @property
    def start_from(self) -> list[str]:
        """The adapters that training continues from; empty if there are none, or no adapter is trained."""
        return self.adapter.start_from if self.adapter is not None else []

    @property
    def task(self) -> Task:
        """The kind of rows that the stage trains on."""
        match self.stage:
            case "pretrain":
                return "text"
            case "sft":
                return "conversations"
            case "reward":
                return "pairs"
            case "preference":
                return "singles" if self.preference.loss == "kto" else "pairs"

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the policy with a frozen reference model."""
        return self.stage == "preference" and self.preference.loss not in ("orpo", "simpo")
