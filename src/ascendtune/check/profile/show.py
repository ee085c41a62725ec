"""A profile as text and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascendtune.check.profile.advice import Advice
from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.split import Split
from ascendtune.core.terminal_text import safe, wrap_words

SCHEMA_VERSION = 1
_MOST_OPERATORS = 200
_SHOWN_OPERATORS = 10
_SHOWN_ADVICE = 8
_NORMS = "norm+rotary+act"
_GROUPS = {"norm": _NORMS, "rotary": _NORMS, "activation": _NORMS}
_LEAST_SHOWN = 0.0005


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
    """One rank as plain values."""
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
        "compute": each_step(split.compute),
        "exposed_communication": each_step(split.communication),
        "hidden_communication": each_step(split.hidden),
        "copies": each_step(split.copies),
        "idle": {
            "data": split.data / steps,
            "synchronisation": each_step(split.sync),
            "launch": split.launch / steps,
            "gaps": split.gaps / steps,
        },
        "aside": each_step(split.aside),
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
    }


def as_text(ranks: list[RankProfile], advice: list[Advice], columns: int) -> str:
    """The summary for people.

    Args:
        columns: of the terminal.
    """
    first = ranks[0]
    lines = [*_split_lines(first, len(ranks)), *_rank_lines(ranks), "", *_operator_lines(first.split)]
    if advice:
        lines += ["", "what to change, with the time that it may save:"]
        for number, each in enumerate(advice[:_SHOWN_ADVICE], 1):
            gain = f"-{100 * each.gain / first.step_seconds:.1f} %" if each.gain else "  0 %"
            words = f"{each.what} ({each.code}): {each.remedy}"
            lines += wrap_words(safe(words), columns, f"{number:>2}  {gain:>7}  ", " " * 13)
    else:
        lines += ["", "nothing to change was found"]
    return "\n".join(lines)


def parts_of(split: Split) -> list[tuple[str, float, str]]:
    """Title, seconds of all steps, and what it is made of; the seconds add up to the steps."""
    compute: dict[str, float] = {}
    for kind, seconds in split.compute.items():
        group = _GROUPS.get(kind, kind)
        compute[group] = compute.get(group, 0.0) + seconds
    total = split.total
    hidden = sum(split.hidden.values())
    exchanged = hidden + sum(split.communication.values())
    behind = [f"{100 * hidden / exchanged:.0f} % of all communication is hidden"] if exchanged else []
    late = {"data": split.data, "synchronisation": sum(split.sync.values()), "launch": split.launch}
    idle = [
        f"host late {_share(sum(late.values()), total)} ({_list(late, total)})",
        f"gaps {_share(split.gaps, total)}",
    ]
    return [
        ("compute", sum(split.compute.values()), _list(compute, total)),
        ("exposed communication", sum(split.communication.values()),
         "; ".join([text for text in (_list(split.communication, total),) if text] + behind)),
        ("copies", sum(split.copies.values()), ""),
        ("idle", split.idle(), ", ".join(idle)),
        ("evaluation, checkpoints", sum(split.aside.values()), _list(split.aside, total)),
    ]  # fmt: skip


def _split_lines(rank: RankProfile, world_size: int) -> list[str]:
    split = rank.split
    head = [f"step {milliseconds(rank.step_seconds)}"]
    if split.steps > 1:
        head.append(f"{split.steps} steps{_numbers(rank)}, {milliseconds(min(split.step_seconds))} to "
                    f"{milliseconds(max(split.step_seconds))}")  # fmt: skip
    if world_size > 1:
        head.append(f"rank {rank.rank} of {world_size}")
    if (flops := rank.model_flops()) is not None:
        head.append(f"{flops / 1e9:,.3g} GFLOP/s of the model")
    if (utilisation := rank.utilisation()) is not None:
        head.append(f"MFU {100 * utilisation:.1f} % of the data sheet")
    rows = [" · ".join(head)]
    for title, seconds, detail in parts_of(split):
        if seconds or title in ("compute", "idle"):
            rows.append(f"  {title:<24}{_share(seconds, split.total):>5} %   {safe(detail)}".rstrip())
    return rows


def _numbers(rank: RankProfile) -> str:
    """The numbers of the profiled steps, where the trace has them."""
    first = rank.facts.get("first_step")
    return f" ({first} to {first + rank.split.steps - 1})" if isinstance(first, int) else ""


def _rank_lines(ranks: list[RankProfile]) -> list[str]:
    if len(ranks) < 2:
        return []
    columns = ("rank", "step", "compute", "exposed", "copies", "data", "launch")
    lines = ["", f"{len(ranks)} ranks, milliseconds of a step:", "  " + " ".join(f"{name:>9}" for name in columns)]
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
        lines.append(f"  {each.rank:>9} " + " ".join(f"{1e3 * value:>9.1f}" for value in values))
    return lines


def _operator_lines(split: Split) -> list[str]:
    rows = sorted(split.operators.items(), key=lambda item: -item[1].seconds)[:_SHOWN_OPERATORS]
    title = "kernels" if split.on_device else "operators"
    lines = [f"top {title}, of a step:", f"  {'time':>9} {'share':>6} {'calls':>7}  {'kind':<11} name"]
    for (name, kind), each in rows:
        seconds = each.seconds / split.steps
        lines.append(
            f"  {1e3 * seconds:>6.2f} ms {_share(each.seconds, split.total):>4} % {each.calls / split.steps:>7.0f}  "
            f"{kind:<11} {safe(name)[:80]}"
        )
    return lines


def _list(values: Mapping[str, float], total: float) -> str:
    shown = sorted(((seconds, name) for name, seconds in values.items()), reverse=True)
    return ", ".join(f"{name} {_share(seconds, total)}" for seconds, name in shown if seconds >= _LEAST_SHOWN * total)


def _share(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.1f}" if total else "0.0"


def milliseconds(seconds: float) -> str:
    """With three digits: `412 ms`."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
