"""What becomes of every tensor: all that can be wrong is found here, before anything is written. Headers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascendtune.core.errors import InputError
from ascendtune.hub.lora_adapter import Adapter
from ascendtune.merge.base import Base
from ascendtune.merge.draft import Draft
from ascendtune.merge.output import Output

if TYPE_CHECKING:
    from ascendtune.merge.layout import Layout


@dataclass(frozen=True)
class Plan:
    base: Base
    adapters: list[Adapter]
    shards: dict[str, list[Output]]
    """File -> tensors in the order in which they are written."""
    config: dict[str, Any]
    notes: list[str]
    """What a user should know, one sentence each."""
    layout: Layout | None = None
    """Where a name of the model is not one of its files'."""

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(each.size for shard in self.shards.values() for each in shard)

    @property
    def changed(self) -> int:
        """Tensors that are not the base's own."""
        outputs = [each for shard in self.shards.values() for each in shard]
        return sum(each.is_changed or each.source[0].path.parent != self.base.directory for each in outputs)


def plan_merge(base: Base, adapters: list[Adapter]) -> Plan:
    """Match every tensor of the adapters with the base's.

    Raises:
        InputError: names or shapes do not fit, or the adapters cannot be combined.
    """
    _require_combinable(adapters)
    draft = Draft(base, adapters[0].config.get("task_type") == "SEQ_CLS")
    for adapter in adapters:
        for name, key in adapter.whole.items():
            draft.put(adapter, name, key)
        for low_rank in adapter.low_rank:
            draft.add(adapter, low_rank)
        for stack in adapter.stacks:
            draft.add_stack(adapter, stack)
    draft.settle_embeddings(adapters[0])
    return Plan(base, adapters, draft.shards(), draft.config, draft.notes, draft.layout)


def _require_combinable(adapters: list[Adapter]) -> None:
    """Sums are defined for differences: neither for DoRA, which scales whole rows, nor for weights that replace."""
    for adapter in adapters:
        if (len(adapters) > 1 or adapter.weight != 1) and (adapter.uses_dora or adapter.whole):
            what = "uses DoRA" if adapter.uses_dora else f"brings whole weights ({next(iter(adapter.whole))})"
            raise InputError(
                f"the adapter {what}, which cannot be weighted or summed with others",
                remedy="merge it alone, with weight 1; then merge the others onto the result",
                where=adapter.directory,
            )
