"""Merges adapters into their base model: checked first, streamed, verified, and renamed only when complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.core.errors import CheckFailed
from ascendtune.core.files import require_writable
from ascendtune.core.imports import uncollected_imports
from ascendtune.merge.matching import plan_merge
from ascendtune.merge.merge_plan import MergePlan, Progress
from ascendtune.merge.source import find_sources, read_base
from ascendtune.merge.write import claimed_target, require_absent, require_writable_target, write_model

if TYPE_CHECKING:
    from ascendtune.merge.verify import Verification


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge."""

    directory: Path
    base: Path
    adapters: list[tuple[Path, float]]
    files: int
    size_bytes: int
    tensors: int
    changed: int
    """Number of tensors that differ from the base's."""
    notes: list[str]
    """Notes for the user, one sentence each."""
    verification: Verification | None
    """None if it was skipped, or not possible: then a note has the reason."""


def merge(
    named: Sequence[str],
    target: Path,
    *,
    onto: str | None = None,
    verify: bool = True,
    progress: Progress = lambda what, done, total: None,
) -> MergeResult:
    """Write base + adapters to `target`, in the base's types and files; the peak of memory is a few tensors.

    Args:
        named: runs or adapter directories, optionally followed by `=WEIGHT`.
        onto: another base than the one that the first adapter names.
        verify: whether to compare logits of both on a few tokens; the weights of one block are in memory at a time.

    Raises:
        InputError: the adapters cannot be merged; nothing was written.
        MachineError: the disk is full or cannot be written; `target` is absent.
        CheckFailed: the merged model computes something else; `target` is absent.
    """
    require_absent(target)
    require_writable(target)
    sources = find_sources(named, onto)
    plan = plan_merge(read_base(sources.base), sources.adapters)
    # Imported here: errors that a user can correct are raised above, before torch is imported.
    progress("importing torch", 0, 0)
    with uncollected_imports():
        from ascendtune.merge.arithmetic import require_finite

    require_writable_target(target, plan.size)
    require_finite(plan.adapters)
    notes = [*sources.notes, *plan.notes]
    verification = None
    with claimed_target(target) as directory:
        write_model(plan, directory, progress)
        if verify:
            verification = _verify(plan, directory, notes, progress)
    outputs = [each for shard in plan.shards.values() for each in shard]
    return MergeResult(
        directory=target,
        base=sources.base,
        adapters=[(each.directory, each.weight) for each in plan.adapters],
        files=len(plan.shards),
        size_bytes=plan.size,
        tensors=len(outputs),
        changed=plan.changed,
        notes=notes,
        verification=verification,
    )


def _verify(plan: MergePlan, directory: Path, notes: list[str], progress: Progress) -> Verification | None:
    progress("importing transformers and peft", 0, 0)
    with uncollected_imports():
        import peft  # noqa: F401

        from ascendtune.merge.rounded import rounded_types
        from ascendtune.merge.verify import CannotVerify, verify

    try:
        result = verify(plan, directory, progress)
    except CannotVerify as error:
        notes.append(f"not verified: {error}")
        return None
    if not result.agrees:
        raise CheckFailed(
            f"before rounding, the merged weights change the logits of base plus adapter by {result.error:.1e} "
            f"(relative; allowed: {result.tolerance:.0e}; effect of the adapter: {result.effect:.1e}); the result was "
            "removed",
            code="merge-differs",
            remedy="check that the adapter belongs to this base; --no-verify skips this check",
            where=plan.base.directory,
        )
    if not result.is_conclusive:
        notes.append(
            f"the adapter changes the logits by {result.effect:.1e} of their size, too little to distinguish a "
            "correct merge from a wrong one: it has hardly been trained"
        )
    if result.lost > 0.5 and (types := rounded_types(plan)):
        notes.append(_too_fine(types, result.lost))
    return result


def _too_fine(types: str, lost: float) -> str:
    advice = "keep it separate, or merge onto a copy of the base in fp32"
    if lost > 0.9:
        return f"almost nothing of the adapter is left: its changes are below the rounding of {types}; {advice}"
    return f"rounding to {types} loses {lost:.0%} of the adapter's change, which is small beside the rounding; {advice}"
