"""Input and output embeddings that may be one weight: whether they still are in the merged model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ascendtune.core.errors import InputError
from ascendtune.merge.output import Output

if TYPE_CHECKING:
    from ascendtune.hub.peft_adapter import Adapter
    from ascendtune.merge.matching import Draft


def settle_embeddings(draft: Draft, adapters: list[Adapter]) -> None:
    """Embeddings that are one weight in the base stay one as long as the adapters treat them alike.

    Raises:
        InputError: the adapters make another number of input than of output embeddings.
    """
    table = draft.base.table
    if table is None:
        return
    _take_table_from_head(draft, adapters, table)
    below, above = draft.outputs[table], draft.head
    if below.shape[0] != draft.base.tensor(table).shape[0]:
        _grow_vocabulary(draft, table, below.shape[0])
    if draft.is_classifier:
        return
    if draft.base.head is None and not _is_untied(draft, adapters, below, table):
        return
    if above is not None and above.shape[0] != below.shape[0]:
        raise InputError(
            f"the adapter makes {below.shape[0]:,} input and {above.shape[0]:,} output embeddings",
            code="adapter-embeddings-differ",
            remedy="with --onto, give the base with all of them that the adapter was trained on: its file has only one "
            "of both",
            where=adapters[0].directory,
        )
    _untie(draft, table)


def _take_table_from_head(draft: Draft, adapters: list[Adapter], table: str) -> None:
    """Where they are tied, what PEFT saves as the base's own head, below a LoRA, is the base's table as well."""
    head = draft.head
    is_tied = draft.base.head is None or draft.config.get("tie_word_embeddings")
    if head is not None and is_tied and not _is_touched(draft, table) and _is_base_level(draft, adapters, head.name):
        draft.outputs[table] = replace(head, name=table, additions=(), rotations=())


def _grow_vocabulary(draft: Draft, table: str, rows: int) -> None:
    draft.config = dict(draft.config)
    if "vocab_size" in draft.config or "text_config" not in draft.config:
        draft.config["vocab_size"] = rows
    else:
        draft.config["text_config"] = {**draft.config["text_config"], "vocab_size": rows}
    grown = rows > draft.base.tensor(table).shape[0]
    what = "has embeddings for new tokens" if grown else "was trained with fewer embeddings than the base has"
    draft.notes.append(f"the adapter {what}: the vocabulary has {rows:,} rows")


def _is_untied(draft: Draft, adapters: list[Adapter], below: Output, table: str) -> bool:
    """Whether tied embeddings have become two; the head is set when they have."""
    above = draft.tied_head
    # PEFT ties a table of this name alone: it changes GPT-2's `wte` and leaves the head, whatever it is asked for.
    is_tied_by_peft = above is not None or table.removesuffix(".weight").rpartition(".")[2] == "embed_tokens"
    if is_tied_by_peft and _keep_tied(draft, adapters, table) and (above is None or _have_same_changes(above, below)):
        return False
    if above is not None:
        return bool(above.additions or above.rotations or below.additions) or not _same_bytes(above, below)
    is_base = _is_base_level(draft, adapters, table)
    if not _is_touched(draft, table) or (is_base and not below.additions):
        return False
    start = replace(below, additions=()) if is_base else draft.base_table()
    draft.tied_head = replace(start, name="lm_head.weight")
    return True


def _keep_tied(draft: Draft, adapters: list[Adapter], table: str) -> bool:
    """Whether every adapter that changes the table asks PEFT to change the head alike."""
    changing = [each.adapter for each in draft.outputs[table].additions]
    changing += [each for each in adapters if _is_named(draft, each.whole, table)]
    return all(each.config.get("ensure_weight_tying") for each in changing)


def _is_base_level(draft: Draft, adapters: list[Adapter], name: str) -> bool:
    return any(_is_named(draft, each.whole_base, name) for each in adapters)


def _is_named(draft: Draft, weights: Iterable[str], name: str) -> bool:
    return any(draft.find(each) == name for each in weights)


def _untie(draft: Draft, table: str) -> None:
    if draft.base.head is None:
        assert draft.tied_head is not None
        head = draft.tied_head
        draft.outputs[head.name] = head
        draft.file_of[head.name] = draft.file_of[table]
        draft.notes.append(f"the adapter unties input and output embeddings: {head.name} is added")
    elif not (
        draft.config.get("tie_word_embeddings") and (_is_touched(draft, table) or _is_touched(draft, draft.base.head))
    ):
        return
    draft.config = {**draft.config, "tie_word_embeddings": False}


def _is_touched(draft: Draft, name: str) -> bool:
    output = draft.outputs[name]
    return output.is_changed or output.source[0] is not draft.base.files[draft.base.where[name]]


def _have_same_changes(head: Output, table: Output) -> bool:
    """Whether one weight can be both: PEFT's own ties part where it casts the adapter to fp32, and have no DoRA."""
    # Imported here: most adapters leave the embeddings alone.
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
