"""Matches adapters with the base and plans every tensor. Reads headers only; faults are found before writing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ascendtune.core.errors import InputError
from ascendtune.core.units import count_of
from ascendtune.hub.oft_adapter import Rotation
from ascendtune.hub.peft_adapter import Adapter, ExpertLora, LowRank, rank_and_alpha, scaling_of
from ascendtune.hub.safetensors_header import FLOAT_DTYPES, bytes_of
from ascendtune.merge.merge_plan import Addition, ExpertAddition, InputRotation, MergePlan, Output
from ascendtune.merge.source import Base, is_head
from ascendtune.merge.tied import keep_tied_embeddings

if TYPE_CHECKING:
    from ascendtune.merge.layout import Layout


@dataclass
class MergePlanBuilder:
    """The outputs while they are planned; `config` is copied when it changes."""

    base: Base
    is_classifier: bool
    config: dict[str, Any] = field(init=False)
    notes: list[str] = field(default_factory=list)
    outputs: dict[str, Output] = field(default_factory=dict)
    file_of: dict[str, str] = field(default_factory=dict)
    tied_head: Output | None = None
    """The head that an adapter changes if the base's files contain none."""
    layout: Layout | None = None
    """Created when a name is not found in the files."""

    def __post_init__(self) -> None:
        self.config = self.base.config
        for name, file in self.base.where.items():
            tensor = self.base.tensor(name)
            self.outputs[name] = Output(name, tensor.dtype, tensor.shape, (self.base.files[file], name))
            self.file_of[name] = file

    def put(self, adapter: Adapter, name: str, key: str) -> None:
        """Replace a weight of the base by the adapter's."""
        tensor = adapter.file.tensors[key]
        found = self.find(name)
        if found is None and self.is_classifier:
            self._become_classifier(name, adapter, key)
            return
        if found is None:
            found = self.require_layout().name_of(name)
        if found is None:
            raise _unknown(adapter, name, self.base)
        old = self._get(found)
        grows = self._is_embedding(found) or found == self._bias_of_head()
        if old.shape != tensor.shape and not (grows and old.shape[1:] == tensor.shape[1:]):
            what = f"{name} has shape {list(tensor.shape)} in the adapter and {list(old.shape)} in the base"
            raise _of_another_base(adapter, what)
        self._set(found, replace(old, shape=tensor.shape, source=(adapter.file, key)))

    def add(self, adapter: Adapter, low_rank: LowRank) -> None:
        """Add the adapter's B @ A."""
        name = f"{low_rank.module}.weight"
        found = self._require_found(adapter, name)
        old = self._get(found)
        across = (low_rank.shape[1], low_rank.shape[0])
        fits = (across,) if low_rank.is_embedding else (low_rank.shape, across)
        rows = self.layout.rows_of(name) if old.shape not in fits and self.layout is not None else None
        shape = old.shape if rows is None else (rows[1] - rows[0], *old.shape[1:])
        if shape not in fits:
            may_have_grown = self._is_embedding(found) and shape[1:] in (fits[0][1:], fits[-1][1:])
            what = (
                f"{low_rank.module} is {list(shape)} in the base, but the adapter was made for {list(low_rank.shape)}"
            )
            raise _of_another_base(adapter, what, may_have_grown=may_have_grown)
        self._require_addable(old)
        is_transposed = self._is_conv1d(adapter, low_rank) if across == low_rank.shape else shape != low_rank.shape
        addition = Addition(adapter, low_rank, rows, low_rank.is_embedding or is_transposed)
        self._set(found, replace(old, additions=(*old.additions, addition)))
        if low_rank.bias is not None:
            bias = self.base.find(f"{low_rank.module}.bias")
            if bias is None:
                raise InputError(
                    f"lora_bias: the adapter gives {low_rank.module} a bias, and its layer in the base has none",
                    code="adapter-not-mergeable",
                    remedy="use the adapter beside its base (PEFT does not merge it either), or train with "
                    "lora_bias: false",
                    where=adapter.directory,
                )
            self._require_addable(self._get(bias))
            self._set(bias, replace(self._get(bias), biases=(*self._get(bias).biases, (adapter, low_rank))))

    def _is_conv1d(self, adapter: Adapter, low_rank: LowRank) -> bool:
        """Whether a square weight is (in, out), as in GPT-2's Conv1D.

        PEFT's config describes its last module only; it decides unless another one shows that both kinds are adapted.
        """
        is_conv1d = bool(adapter.config.get("fan_in_fan_out"))
        names = ((each, self.find(f"{each.module}.weight")) for each in adapter.low_rank if not each.is_embedding)
        opposite = (
            name is not None and self._get(name).shape == (each.shape if is_conv1d else each.shape[::-1])
            for each, name in names
            if each.shape != each.shape[::-1]
        )
        return self.require_layout().is_conv1d(low_rank.module) if any(opposite) else is_conv1d

    def rotate(self, adapter: Adapter, rotation: Rotation) -> None:
        """Rotate the inputs of a module."""
        name = f"{rotation.module}.weight"
        own = self.find(name)
        found = own or self._require_found(adapter, name)
        old, rows = self._get(found), None
        if own is None and found != name:
            # The adapter's file does not describe outputs: only the model's class knows the rows of this module.
            layout = self.require_layout()
            rows, shape = layout.rows_of(name), layout.shape(name)
            if rows is None and shape != old.shape:
                raise InputError(
                    f"{found} holds {name} in another way than row by row",
                    code="adapter-not-mergeable",
                    remedy="merge it with PEFT: load it, then call merge_and_unload()",
                    where=adapter.directory,
                )
        shared = bool(adapter.config.get("block_share"))
        if len(old.shape) != 2 or not rotation.fits(old.shape[1], shared=shared):
            raise _of_another_base(
                adapter,
                f"{rotation.module} is {list(old.shape)} in the base, but the adapter was made for "
                f"{count_of(rotation.blocks, 'block')} of {count_of(rotation.size, 'input')}",
            )
        self._require_addable(old)
        self._set(found, replace(old, rotations=(*old.rotations, InputRotation(adapter, rotation, rows))))

    def add_expert_lora(self, adapter: Adapter, expert_lora: ExpertLora) -> None:
        """Plan the change of all experts of a module, for each of their tensors in the files."""
        layout = self.require_layout()
        parameters = layout.parameters_of(expert_lora.module, adapter.config["target_parameters"])
        if len(parameters) <= expert_lora.depth:
            raise _unknown(adapter, f"a parameter of {expert_lora.module}", self.base)
        parameter = parameters[-1 - expert_lora.depth]
        rank, alpha = rank_and_alpha(adapter.config, parameter, adapter.file)
        shape = layout.shape(parameter)
        a, b = (adapter.file.tensors[name].shape for name in (expert_lora.a, expert_lora.b))
        swapped = not layout.is_transposed(parameter)
        if len(shape) != 3 or (b[0], a[1]) != (shape[1:] if swapped else shape[:0:-1]) or a[0] != rank * shape[0]:
            raise _of_another_base(
                adapter,
                f"{parameter} has shape {list(shape)} in the base; the adapter's A {list(a)} and B {list(b)} do not "
                f"form a change of rank {rank} for it",
            )
        for piece in layout.pieces(parameter):
            old = self._get(piece.name)
            self._require_addable(old)
            scaling = scaling_of(adapter.config, rank, alpha, adapter.weight)
            change = ExpertAddition(adapter, expert_lora, piece, rank, scaling, swapped)
            self._set(piece.name, replace(old, experts=(*old.experts, change)))

    def require_layout(self) -> Layout:
        if self.layout is None:
            # Imported here: most adapters are matched without torch and the model's class.
            from ascendtune.merge.layout import Layout

            self.layout = Layout(self.base, is_classifier=self.is_classifier)
        return self.layout

    def shards(self) -> dict[str, list[Output]]:
        """Wider types first, as the format's own writer does: every tensor stays aligned."""
        files: dict[str, list[Output]] = {name: [] for name in self.base.files}
        for name, output in self.outputs.items():
            files[self.file_of[name]].append(output)
        return {
            file: sorted(outputs, key=lambda each: -bytes_of(each.dtype, ()))
            for file, outputs in files.items()
            if outputs
        }

    def _require_found(self, adapter: Adapter, name: str) -> str:
        """The tensor of the files that contains the weight `name` of the model."""
        found = self.find(name) or self.require_layout().name_of(name) or self._part_shared(name)
        if found is None:
            raise _unknown(adapter, name, self.base)
        return found

    def _part_shared(self, parameter: str) -> str | None:
        """A separate tensor, by its name, for a parameter that several layers of the base share.

        All of them get separate tensors, each with the base's numbers: an adapter changes each layer differently.
        """
        shared = self.require_layout().shared_with(parameter)
        if shared is None:
            return None
        found, names = shared
        tensor = self.base.tensor(found)
        for name in names:
            if name not in self.outputs:
                source = (self.base.files[self.base.where[found]], found)
                self.outputs[name] = Output(name, tensor.dtype, tensor.shape, source)
                self.file_of[name] = self.file_of[found]
        others = ", ".join(name.removesuffix(".weight") for name in names if name != found)
        self.notes.append(
            f"the adapter changes layers apart that share {found} in the base: {others} get weights of their own"
        )
        return parameter

    def find(self, name: str) -> str | None:
        """The tensor that contains the weight `name` of the model; None if only the model's class could know."""
        if name in self.outputs:
            return name
        found = self.base.find(name)
        if found is None and self.base.head is None and is_head(name) and not self.is_classifier:
            return name
        return found

    def _get(self, name: str) -> Output:
        if name in self.outputs:
            return self.outputs[name]
        assert self.base.table is not None
        # A tied head begins as the base's embeddings, independent of their changes.
        return self.tied_head or replace(self.base_table(), name=name)

    def _set(self, name: str, output: Output) -> None:
        if name in self.outputs:
            self.outputs[name] = output
        else:
            self.tied_head = output

    @property
    def head(self) -> Output | None:
        """The output embeddings; None if they are the base's input embeddings, unchanged."""
        return self.outputs.get(self.base.head) if self.base.head else self.tied_head

    def base_table(self) -> Output:
        """The input embeddings of the base."""
        table = self.base.table
        assert table is not None
        tensor = self.base.tensor(table)
        return Output(table, tensor.dtype, tensor.shape, (self.base.files[self.base.where[table]], table))

    def _is_embedding(self, name: str) -> bool:
        """Whether it is an input or output embedding: its rows are tokens, of which an adapter may have more."""
        return name in (self.base.table, self.base.head) or is_head(name)

    def _bias_of_head(self) -> str | None:
        """The name of the bias of the output embeddings, as in Phi and GPT-J; None if there is none."""
        head = self.base.head
        return None if head is None else self.base.find(f"{head.removesuffix('.weight')}.bias")

    def _become_classifier(self, name: str, adapter: Adapter, key: str) -> None:
        """Make it a reward model: the head for logits is removed, one for scores is added."""
        tensor = adapter.file.tensors[key]
        table = self.base_table()
        for part in (self.base.head, self._bias_of_head()):
            self.outputs.pop(part or "", None)
        self.outputs[name] = Output(name, table.dtype, tensor.shape, (adapter.file, key))
        self.file_of[name] = self.base.where[table.name]
        architectures = [
            each.replace("ForCausalLM", "ForSequenceClassification") for each in self.config.get("architectures") or []
        ]
        labels = {str(number): f"LABEL_{number}" for number in range(tensor.shape[0])}
        self.config = {
            **self.config,
            "architectures": architectures,
            "id2label": labels,
            "label2id": {label: int(number) for number, label in labels.items()},
        }
        self.notes.append(f"the adapter has {name}: the result is a model for AutoModelForSequenceClassification")

    def _require_addable(self, output: Output) -> None:
        if output.dtype not in FLOAT_DTYPES:
            raise InputError(
                f"{output.name} is {output.dtype} in the base, and an adapter cannot be added to this dtype",
                code="base-not-addable",
                remedy="merge onto the original in bf16 or fp16 with --onto",
                where=output.source[0].path,
            )


def _of_another_base(adapter: Adapter, what: str, *, may_have_grown: bool = False) -> InputError:
    remedy = "with --onto, give the base that the adapter was trained on"
    if may_have_grown:
        remedy += "; for new tokens, save the adapter with its embeddings (save_embedding_layers=True)"
    return InputError(what, code="adapter-base-mismatch", remedy=remedy, where=adapter.directory)


def _unknown(adapter: Adapter, name: str, base: Base) -> InputError:
    return InputError(
        f"the adapter changes {name}, which the base does not have",
        code="adapter-base-mismatch",
        remedy=f"{base.directory} is not the model that the adapter was trained on: give that model with --onto",
        where=adapter.directory,
    )


def plan_merge(base: Base, adapters: list[Adapter]) -> MergePlan:
    """Match every tensor of the adapters with the base's.

    Raises:
        InputError: names or shapes do not match, or the adapters cannot be combined.
    """
    # The plan keeps the original adapters, because PEFT reads all of their files.
    combined = [_without_unchanged(base, each) for each in adapters] if _are_combined(adapters) else adapters
    _require_combinable(combined)
    builder = MergePlanBuilder(base, adapters[0].config.get("task_type") == "SEQ_CLS")
    for adapter in combined:
        for name, key in adapter.whole.items():
            builder.put(adapter, name, key)
        for low_rank in adapter.low_rank:
            builder.add(adapter, low_rank)
        for expert_lora in adapter.expert_loras:
            builder.add_expert_lora(adapter, expert_lora)
        for rotation in adapter.rotations:
            builder.rotate(adapter, rotation)
    keep_tied_embeddings(builder, combined)
    return MergePlan(base, adapters, builder.shards(), builder.config, builder.notes, builder.layout)


def _are_combined(adapters: list[Adapter]) -> bool:
    return len(adapters) > 1 or adapters[0].weight != 1


def _without_unchanged(base: Base, adapter: Adapter) -> Adapter:
    """`adapter` without whole weights that equal the base's: PEFT saves the embeddings beside a LoRA of them."""
    whole = {name: key for name, key in adapter.whole.items() if _is_new(base, adapter, name)}
    return replace(adapter, whole=whole, whole_base=adapter.whole_base & whole.keys())


def _is_new(base: Base, adapter: Adapter, name: str) -> bool:
    found = base.find(name)
    if found is None and base.head is None and is_head(name):
        found = base.table
    if found is None or base.tensor(found).shape != adapter.file.tensors[adapter.whole[name]].shape:
        return True
    # Imported here: most adapters have no whole weights.
    from ascendtune.merge.arithmetic import is_equal

    return not is_equal((base.files[base.where[found]], found), (adapter.file, adapter.whole[name]))


def _require_combinable(adapters: list[Adapter]) -> None:
    """Only differences can be summed: not DoRA, which scales whole rows, not rotations, and not whole weights."""
    for adapter in adapters:
        if _are_combined(adapters) and (adapter.uses_dora or adapter.rotations or adapter.whole):
            what = "is OFT" if adapter.rotations else f"has whole weights ({next(iter(adapter.whole), '')})"
            what = "uses DoRA" if adapter.uses_dora else what
            raise InputError(
                f"the adapter {what}, which cannot be weighted or summed with others",
                code="adapters-not-combinable",
                remedy="merge it alone, with weight 1; then merge the others onto the result",
                where=adapter.directory,
            )
