"""A profile as text, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascendtune.check.profile.advice_entry import Advice, milliseconds
from ascendtune.check.profile.kinds import short_name
from ascendtune.check.profile.language import say
from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.show_memory import memory_as_plain, memory_lines
from ascendtune.check.profile.split import Split
from ascendtune.core.terminal_text import columns_of, safe, wrap_words
from ascendtune.core.text_table import indented_table

SCHEMA_VERSION = 1
_MOST_OPERATORS = 200
_SHOWN_OPERATORS = 10
_SHOWN_ADVICE = 8
_NORMS = "norm+rotary+act"
_GROUPS = {"norm": _NORMS, "rotary": _NORMS, "activation": _NORMS}
_LEAST_SHOWN = 0.0005
_RANK_COLUMNS = ("rank", "step", "compute", "exposed", "copies", "data", "launch")


def as_plain(ranks: list[RankProfile], advice: list[Advice]) -> dict[str, Any]:
    """The whole profile as plain values; all times are seconds of one step."""
    return {
        "schema_version": SCHEMA_VERSION,
        "ranks": [rank_as_plain(each) for each in ranks],
        "advice": [
            {
                "code": each.code,
                "what": each.what,
                "remedy": each.remedy,
                "gain_seconds": each.gain,
                "is_defect": each.is_defect,
                "keys": each.keys,
            }
            for each in advice
        ],
    }


def rank_as_plain(rank: RankProfile) -> dict[str, Any]:
    """One rank as plain values; seconds, calls and operations are those of one step."""
    split, steps = rank.split, rank.split.steps

    def each_step(values: Mapping[str, float]) -> dict[str, float]:
        return {name: seconds / steps for name, seconds in sorted(values.items(), key=lambda item: -item[1])}

    operators = sorted(split.operators.items(), key=lambda item: -item[1].seconds)[:_MOST_OPERATORS]
    return {
        "rank": rank.rank,
        "trace": str(rank.path),
        "on_device": split.on_device,
        "step_seconds": split.step_seconds,
        "mean_step_seconds": rank.step_seconds,
        "compute_seconds": each_step(split.compute),
        "exposed_communication_seconds": each_step(split.communication),
        "hidden_communication_seconds": each_step(split.hidden),
        "copies_seconds": each_step(split.copies),
        "idle_seconds": {
            "data": split.data / steps,
            "synchronisation": each_step(split.sync),
            "launch": split.launch / steps,
            "gaps": split.gaps / steps,
        },
        "aside_seconds": each_step(split.aside),
        "host_syncs": [
            {"place": place, "phase": phase, "calls": count / steps}
            for (place, phase), count in sorted(split.sync_calls.items(), key=lambda item: -item[1])
        ],
        "modules": {
            name: {
                "calls": each.calls / steps,
                "operators": each.operators / each.calls if each.calls else 0.0,
                "recomputed_seconds": each.recomputed * 1e-6 / steps,
            }
            for name, each in split.modules.items()
        },
        "operators": [
            {"name": name, "kind": kind, "calls": each.calls / steps, "seconds": each.seconds / steps}
            for (name, kind), each in operators
        ],
        "model_flops": rank.model_flops(),
        "mfu": rank.utilisation(),
        "hfu": rank.hardware_utilisation(),
        "memory": memory_as_plain(rank.memory, steps) if rank.memory is not None else None,
    }


def as_text(ranks: list[RankProfile], advice: list[Advice], columns: int) -> str:
    """The summary as text.

    Args:
        columns: width of the terminal.
    """
    first = ranks[0]
    lines = [*_split_lines(first, len(ranks), columns), *_rank_lines(ranks, columns)]
    lines += memory_lines(first.memory, columns, _first_step(first))
    lines += ["", *_operator_lines(first.split, columns)]
    if advice:
        lines += ["", say("what to change, with the time that it may save:")]
        for number, each in enumerate(advice[:_SHOWN_ADVICE], 1):
            gain = f"-{100 * each.gain / first.step_seconds:.1f} %" if each.gain else "  0 %"
            text = say("{what} ({code}): {remedy}", what=each.what, code=each.code, remedy=each.remedy)
            lines += wrap_words(safe(text), columns, f"{number:>2}  {gain:>7}  ", " " * 13)
    else:
        lines += ["", say("nothing to change was found")]
    return "\n".join(lines)


def parts_of(split: Split) -> list[tuple[str, float, str]]:
    """Title (in English), seconds of all steps, and composition of each part; the seconds add up to the steps."""
    compute: dict[str, float] = {}
    for kind, seconds in split.compute.items():
        group = _GROUPS.get(kind, kind)
        compute[group] = compute.get(group, 0.0) + seconds
    total = split.total
    hidden = sum(split.hidden.values())
    exchanged = hidden + sum(split.communication.values())
    share = f"{100 * hidden / exchanged:.0f}" if exchanged else ""
    behind = [say("{share} % of all communication is hidden", share=share)] if share else []
    late = {"data": split.data, "synchronisation": sum(split.sync.values()), "launch": split.launch}
    idle = say(
        "host late {late} ({parts}), gaps {gaps}",
        late=_share(sum(late.values()), total), parts=_list(late, total), gaps=_share(split.gaps, total),
    )  # fmt: skip
    return [
        ("compute", sum(split.compute.values()), _list(compute, total)),
        ("exposed communication", sum(split.communication.values()),
         say("; ").join([text for text in (_list(split.communication, total),) if text] + behind)),
        ("copies", sum(split.copies.values()), ""),
        ("idle", split.idle(), idle),
        ("evaluation, checkpoints", sum(split.aside.values()), _list(split.aside, total)),
    ]  # fmt: skip


def _split_lines(rank: RankProfile, world_size: int, columns: int) -> list[str]:
    split = rank.split
    head = [say("step {time}", time=milliseconds(rank.step_seconds))]
    if split.steps > 1:
        first = _first_step(rank)
        numbers = "" if first is None else say(" ({first} to {last})", first=first, last=first + split.steps - 1)
        head.append(
            say(
                "{count} {count:step|steps}{numbers}, {least} to {most}", count=split.steps, numbers=numbers,
                least=milliseconds(min(split.step_seconds)), most=milliseconds(max(split.step_seconds)),
            )
        )  # fmt: skip
    if world_size > 1:
        head.append(say("rank {rank} of {count}", rank=rank.rank, count=world_size))
    if (flops := rank.model_flops()) is not None:
        head.append(say("{flops} GFLOP/s of the model", flops=f"{flops / 1e9:,.3g}"))
    if (utilisation := rank.utilisation()) is not None:
        head.append(say("MFU {share} % of the data sheet", share=f"{100 * utilisation:.1f}"))
    if (hardware := rank.hardware_utilisation()) is not None:
        head.append(say("HFU {share} % with what is recomputed", share=f"{100 * hardware:.1f}"))
    lines = wrap_words(" · ".join(head), columns, "", "  ")
    parts = [(say(title), seconds, detail) for title, seconds, detail in parts_of(split)
             if seconds or title in ("compute", "idle")]  # fmt: skip
    size = max(columns_of(title) for title, *_ in parts)
    for title, seconds, detail in parts:
        begin = f"  {title}{' ' * (size - columns_of(title))}  {_share(seconds, split.total):>5} %   "
        lines += wrap_words(safe(detail), columns, begin, " " * columns_of(begin)) if detail else [begin.rstrip()]
    return lines


def _first_step(rank: RankProfile) -> int | None:
    """The number of the first profiled step; None if unknown."""
    first = rank.facts.get("first_step")
    return first if isinstance(first, int) else None


def _rank_lines(ranks: list[RankProfile], columns: int) -> list[str]:
    if len(ranks) < 2:
        return []
    heads = [say(name) for name in _RANK_COLUMNS]
    rows = []
    for each in ranks:
        split = each.split
        values = (
            each.step_seconds,
            sum(split.compute.values()) / split.steps,
            each.waited_seconds,
            sum(split.copies.values()) / split.steps,
            split.data / split.steps,
            split.launch / split.steps,
        )
        rows.append([str(each.rank), *(f"{1e3 * value:.1f}" for value in values)])
    spare = [say(name) for name in ("launch", "copies", "data")]
    title = say("{count} ranks, milliseconds of a step:", count=len(ranks))
    return ["", title, *indented_table(heads, rows, columns, right=heads, spare=spare)]


def _operator_lines(split: Split, columns: int) -> list[str]:
    operators = sorted(split.operators.items(), key=lambda item: -item[1].seconds)[:_SHOWN_OPERATORS]
    rows = [
        [
            f"{1e3 * each.seconds / split.steps:.2f} ms",
            f"{_share(each.seconds, split.total)} %",
            f"{each.calls / split.steps:.0f}",
            say(kind),
            safe(short_name(name))[:80],
        ]
        for (name, kind), each in operators
    ]
    heads = [say(name) for name in ("time", "share", "calls", "kind", "name")]
    title = say("top kernels, of a step:") if split.on_device else say("top operators, of a step:")
    return [title, *indented_table(heads, rows, columns, right=heads[:3])]


def _list(values: Mapping[str, float], total: float) -> str:
    shown = sorted(((seconds, name) for name, seconds in values.items()), reverse=True)
    parts = [f"{say(name)} {_share(seconds, total)}" for seconds, name in shown if seconds >= _LEAST_SHOWN * total]
    return say(", ").join(parts)


def _share(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.1f}" if total else "0.0"
