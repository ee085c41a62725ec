"""Input and output embeddings that may be one weight, and whether they still are in the merged model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ascendtune.core.errors import InputError
from ascendtune.merge.merge_plan import Output

if TYPE_CHECKING:
    from ascendtune.hub.peft_adapter import Adapter
    from ascendtune.merge.matching import MergePlanBuilder


def keep_tied_embeddings(builder: MergePlanBuilder, adapters: list[Adapter]) -> None:
    """Embeddings that are tied in the base stay tied if the adapters change them alike.

    Raises:
        InputError: the adapters have different numbers of input and of output embeddings.
    """
    table = builder.base.table
    if table is None:
        return
    _take_table_from_head(builder, adapters, table)
    below, above = builder.outputs[table], builder.head
    if below.shape[0] != builder.base.tensor(table).shape[0]:
        _grow_vocabulary(builder, table, below.shape[0])
    if builder.is_classifier:
        return
    if builder.base.head is None and not _is_untied(builder, adapters, below, table):
        return
    if above is not None and above.shape[0] != below.shape[0]:
        raise InputError(
            f"the adapter makes {below.shape[0]:,} input and {above.shape[0]:,} output embeddings",
            code="adapter-embeddings-differ",
            remedy="with --onto, give the base with all of them that the adapter was trained on: its file has only one "
            "of both",
            where=adapters[0].directory,
        )
    _untie(builder, table)


def _take_table_from_head(builder: MergePlanBuilder, adapters: list[Adapter], table: str) -> None:
    """If they are tied, the base's head that PEFT saves below a LoRA also becomes the base's input embeddings."""
    head = builder.head
    is_tied = builder.base.head is None or builder.config.get("tie_word_embeddings")
    if (
        head is not None
        and is_tied
        and not _is_touched(builder, table)
        and _is_base_level(builder, adapters, head.name)
    ):
        builder.outputs[table] = replace(head, name=table, additions=(), rotations=())


def _grow_vocabulary(builder: MergePlanBuilder, table: str, rows: int) -> None:
    builder.config = dict(builder.config)
    if "vocab_size" in builder.config or "text_config" not in builder.config:
        builder.config["vocab_size"] = rows
    else:
        builder.config["text_config"] = {**builder.config["text_config"], "vocab_size": rows}
    grown = rows > builder.base.tensor(table).shape[0]
    what = "has embeddings for new tokens" if grown else "was trained with fewer embeddings than the base has"
    builder.notes.append(f"the adapter {what}: the vocabulary has {rows:,} rows")


def _is_untied(builder: MergePlanBuilder, adapters: list[Adapter], below: Output, table: str) -> bool:
    """Whether tied embeddings have become two; then the head is set."""
    above = builder.tied_head
    # PEFT ties embeddings only if they have this name: it changes GPT-2's `wte` and never the head.
    is_tied_by_peft = above is not None or table.removesuffix(".weight").rpartition(".")[2] == "embed_tokens"
    if is_tied_by_peft and _keep_tied(builder, adapters, table) and (above is None or _have_same_changes(above, below)):
        return False
    if above is not None:
        return bool(above.additions or above.rotations or below.additions) or not _same_bytes(above, below)
    is_base = _is_base_level(builder, adapters, table)
    if not _is_touched(builder, table) or (is_base and not below.additions):
        return False
    start = replace(below, additions=()) if is_base else builder.base_table()
    builder.tied_head = replace(start, name="lm_head.weight")
    return True


def _keep_tied(builder: MergePlanBuilder, adapters: list[Adapter], table: str) -> bool:
    """Whether every adapter that changes the table makes PEFT change the head alike."""
    changing = [each.adapter for each in builder.outputs[table].additions]
    changing += [each for each in adapters if _is_named(builder, each.whole, table)]
    return all(each.config.get("ensure_weight_tying") for each in changing)


def _is_base_level(builder: MergePlanBuilder, adapters: list[Adapter], name: str) -> bool:
    return any(_is_named(builder, each.whole_base, name) for each in adapters)


def _is_named(builder: MergePlanBuilder, weights: Iterable[str], name: str) -> bool:
    return any(builder.find(each) == name for each in weights)


def _untie(builder: MergePlanBuilder, table: str) -> None:
    if builder.base.head is None:
        assert builder.tied_head is not None
        head = builder.tied_head
        builder.outputs[head.name] = head
        builder.file_of[head.name] = builder.file_of[table]
        builder.notes.append(f"the adapter unties input and output embeddings: {head.name} is added")
    elif not (
        builder.config.get("tie_word_embeddings")
        and (_is_touched(builder, table) or _is_touched(builder, builder.base.head))
    ):
        return
    builder.config = {**builder.config, "tie_word_embeddings": False}


def _is_touched(builder: MergePlanBuilder, name: str) -> bool:
    output = builder.outputs[name]
    return output.is_changed or output.source[0] is not builder.base.files[builder.base.where[name]]


def _have_same_changes(head: Output, table: Output) -> bool:
    """Whether one weight can be both: PEFT unties them if it casts the adapter to fp32, and does not tie with DoRA."""
    # Imported here: most adapters do not change the embeddings.
    from ascendtune.merge.arithmetic import is_transpose

    pairs = zip(head.additions, table.additions, strict=False)
    return (
        len(head.additions) == len(table.additions)
        and not head.rotations
        and not table.rotations
        and _same_bytes(head, table)
        and all(is_transpose(one, other) for one, other in pairs)
    )


def _same_bytes(one: Output, other: Output) -> bool:
    if one.shape != other.shape or one.source[0] is not other.source[0]:
        return False
    path = one.source[0].path
    first, second = (each.source[0].tensors[each.source[1]] for each in (one, other))
    if first.size != second.size:
        return False
    with path.open("rb") as a, path.open("rb") as b:
        a.seek(first.begin)
        b.seek(second.begin)
        for begin in range(0, first.size, 1 << 20):
            size = min(1 << 20, first.size - begin)
            if a.read(size) != b.read(size):
                return False
    return True
