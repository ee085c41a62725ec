"""Advice on what to change: defects first, each group by its gain."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any

from ascendtune.check.profile.advice_entry import Advice, count_or_one, milliseconds, resolved
from ascendtune.check.profile.code_advice import code_advice
from ascendtune.check.profile.host_timeline import RECOMPUTATION
from ascendtune.check.profile.kinds import kind_of_module
from ascendtune.check.profile.language import say
from ascendtune.check.profile.memory import MemoryUse
from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.split import Split
from ascendtune.core.foreign_json import is_number, value_at
from ascendtune.core.units import format_bytes

_LEAST_SHARE = 0.02
"""Share of a step: smaller gains are not reported."""
_LEAST_LATE = 0.05
"""Share of every step: ranks are never exactly equally fast."""
_LEAST_REASON = 0.2
"""Share of the wait: a smaller difference does not explain it."""
_METRICS_PHASE = "collective"
"""The phase in which the loop reads the metrics: one wait for each recorded step is expected."""
_MANY_COLLECTIVES = 8
"""Calls of one collective in a step from which on they are considered many."""
_FUSED_PASSES = 2
"""A fused operator reads its input and writes its output once; unfused ones do so for each operator."""
_LEAST_EXPOSED = 0.01
"""Share of a step that many calls must take."""
_FEW_BLOCKS = 4
_LEAST_PADDING = 0.1
"""Share of the computed positions."""
_LEAST_LAUNCH = 0.2
"""Share of a step: a single micro-batch has launches, too."""
_LEAST_UNUSED = 0.15
"""Share of the reserved memory: blocks are rounded up, and each step leaves some gaps."""
_LEAST_GAP = 512 << 20
"""Bytes."""
_DRIVER_MEMORY = re.compile(r"(cuda|hip)(Malloc|Free|HostAlloc)|aclrt(Malloc|Free)\w*")
_PHASES_OF_MODEL = ("data", "forward", RECOMPUTATION, "backward", "optimizer", "")


def advice_for(ranks: list[RankProfile]) -> list[Advice]:
    """Defects before options, ordered by gain: of the first rank, and of differences between the ranks.

    The sentences are in the current language.
    """
    first = ranks[0]
    # A slow rank hides its collectives behind the work that makes it slow.
    waiting = max(ranks, key=lambda each: each.waited_seconds)
    advice = [*_slow_rank(ranks), *_of_rank(first), *_small_collectives(waiting)]
    advice = [each for each in advice if each.is_defect or each.gain >= _LEAST_SHARE * first.step_seconds]
    return sorted(advice, key=lambda each: (not each.is_defect, -each.gain))


def _of_rank(rank: RankProfile) -> Iterator[Advice]:
    split, step = rank.split, rank.step_seconds
    yield from _host_syncs(split, step)
    # Checked for each step: a busy host interrupts different phases at different times.
    if min(split.data_seconds, default=0.0) >= _LEAST_LATE * step and split.data / split.steps >= _LEAST_LATE * step:
        yield Advice(
            "slow-data",
            say("the batches take {time} of each step, and nothing else runs meanwhile",
                time=milliseconds(split.data / split.steps)),
            say("put the token cache (XDG_CACHE_HOME) on a local disk; check whether other programs load the host")
            if rank.facts
            else say("tokenise before the training, not in the collate function; give the DataLoader num_workers"),
            split.data / split.steps,
            is_defect=True,
        )  # fmt: skip
    yield from _copies(split, step)
    yield from _fragmentation(split, rank.memory)
    yield from _unfused(split, rank.facts)
    yield from _batches(rank)
    yield from _options(rank)
    yield from code_advice(rank)


def _host_syncs(split: Split, step: float) -> Iterator[Advice]:
    calls: dict[str, int] = defaultdict(int)
    for (place, phase), count in split.sync_calls.items():
        if phase in _PHASES_OF_MODEL and not _is_driver_memory_call(place):
            calls[place] += count
    if calls:
        most = max(calls, key=lambda place: (calls[place], place))
        each_step = sum(calls.values()) / split.steps
        gain = sum(split.sync.get(place, 0.0) for place in calls) / split.steps
        yield Advice(
            "host-sync",
            say("the host waits for the device {count} {count:time|times} in each step, most often at {place}",
                count=f"{each_step:.3g}", place=most),
            say("keep the value on the device (no .item(), .tolist() or `if tensor`), and read it once per recorded "
                "step"),
            min(gain, step),
            is_defect=True,
        )  # fmt: skip
    metrics = sum(split.sync.get(place, 0.0) for place, phase in split.sync_calls if phase == _METRICS_PHASE)
    if split.on_device and metrics / split.steps >= _LEAST_SHARE * step:
        yield Advice(
            "metrics-sync",
            say("recording the metrics costs {time} of each step", time=milliseconds(metrics / split.steps)),
            say("set {keys}", keys="track.every_steps: 10"),
            metrics / split.steps,
            keys={"track.every_steps": 10},
        )


def _slow_rank(ranks: list[RankProfile]) -> Iterator[Advice]:
    """Report the rank that the others wait for: it has the shortest wait inside collectives."""
    if len(ranks) < 2:
        return
    slowest = min(ranks, key=lambda each: each.waited_seconds)
    others = [each for each in ranks if each is not slowest]
    # Checked for each step: on a busy host different ranks are late at different times.
    waits = [
        median(each.split.exposed_seconds[step] for each in others) - mine
        for step, mine in enumerate(slowest.split.exposed_seconds)
        if all(step < len(each.split.exposed_seconds) for each in others)
    ]
    if not waits or min(waits) < _LEAST_LATE * slowest.step_seconds:
        return
    waited = median(waits)
    # Kinds are compared if each rank has them; a rank without tables of kernels has only totals, of one kind.
    has_kinds = all(set(each.split.compute) - {"other"} for each in ranks)
    excess = {
        name: seconds / slowest.split.steps
        - median(_by_group(each.split, has_kinds).get(name, 0.0) / each.split.steps for each in others)
        for name, seconds in _by_group(slowest.split, has_kinds).items()
    }
    reason = max(excess, key=lambda name: excess[name])
    message = (
        say("the other ranks wait {time} of each step for rank {rank}, which spends {more} more than they on {reason}",
            time=milliseconds(waited), rank=slowest.rank, more=milliseconds(excess[reason]), reason=reason)
        if excess[reason] >= _LEAST_REASON * waited
        else say("the other ranks wait {time} of each step for rank {rank}; no part of its own steps is longer: it "
                 "began them later, or its link is slow", time=milliseconds(waited), rank=slowest.rank)
    )  # fmt: skip
    yield Advice(
        "slow-rank",
        message,
        say("look at the clock, temperature and neighbours of that rank's device with `ascendtune doctor`; even out "
            "the lengths of rows with data.packing: true"),
        waited,
        is_defect=True,
    )  # fmt: skip


def _by_group(split: Split, has_kinds: bool) -> dict[str, float]:
    """Seconds of everything except communication, by names in the current language.

    Args:
        has_kinds: whether computing is divided into kinds.
    """
    kinds = {say("computing ({kind})", kind=say(kind)): seconds for kind, seconds in split.compute.items()}
    return {
        **(kinds if has_kinds else {say("compute"): sum(split.compute.values())}),
        say("the data"): split.data,
        say("waiting for its device"): sum(split.sync.values()),
        say("launching operators"): split.launch,
        say("copies"): sum(split.copies.values()),
        say("gaps between kernels"): split.gaps,
        **{say(name): seconds for name, seconds in split.aside.items()},
    }


def _copies(split: Split, step: float) -> Iterator[Advice]:
    total = sum(split.copies.values()) / split.steps
    if total < _LEAST_SHARE * step:
        return
    most = max(split.copies, key=lambda name: split.copies[name])
    yield Advice(
        "copies",
        say("copies take {time} of each step, most of it {name}", time=milliseconds(total), name=most),
        say("take batches from pinned memory (pin_memory=True, non_blocking=True): pageable memory is copied twice")
        if "Pageable" in most
        else say("keep tensors where and in the type in which they are used; copy what does not change once, before "
                 "the loop"),
        total,
        is_defect=True,
    )  # fmt: skip


def _fragmentation(split: Split, memory: MemoryUse | None) -> Iterator[Advice]:
    """Report an allocator that holds memory which no step needs, or that calls the driver again and again."""
    calls: Counter[str] = Counter()
    for (place, _), count in split.sync_calls.items():
        if _is_driver_memory_call(place):
            calls[place] += count
    each_step = calls.total() / split.steps
    unused = memory.unused() if memory is not None else 0
    is_large = memory is not None and memory.reserved and unused >= max(_LEAST_UNUSED * memory.reserved, _LEAST_GAP)
    if each_step < 1 and not is_large:
        return
    facts = []
    if is_large and memory is not None:
        facts.append(
            say("the allocator has reserved {reserved}, of which at most {allocated} is used at once",
                reserved=format_bytes(memory.reserved or 0), allocated=format_bytes(memory.allocated or 0))
        )  # fmt: skip
    if each_step >= 1:
        ((most, _),) = calls.most_common(1)
        facts.append(
            say("the allocator calls the driver {count} {count:time|times} in each step, most often {name}",
                count=f"{each_step:.3g}", name=most)
        )  # fmt: skip
    gain = sum(seconds for place, seconds in split.sync.items() if _is_driver_memory_call(place)) / split.steps
    yield Advice(
        "fragmentation",
        say("the memory of the device has gaps, or its use grows: {facts}", facts=say("; ").join(facts)),
        say("set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_NPU_ALLOC_CONF on Ascend); with rows of very "
            "different lengths also data.packing: true"),
        gain,
        is_defect=True,
    )  # fmt: skip


def _is_driver_memory_call(place: str) -> bool:
    """Whether the host waits in this call because the allocator requests memory from the driver, or returns it."""
    return bool(_DRIVER_MEMORY.fullmatch(place))


def _small_collectives(rank: RankProfile) -> Iterator[Advice]:
    split, step, strategy = rank.split, rank.step_seconds, resolved(rank.facts, "strategy")
    if isinstance(strategy, dict) and strategy.get("name") not in (None, "ddp"):
        # Buckets belong to DDP. Gloo implements reduce-scatter by all-reduce, so FSDP has one for each block.
        return
    for name, calls in split.collectives.items():
        each_step = len(calls) / split.steps
        exposed = split.communication.get(name, 0.0) / split.steps
        # The duration of the shortest call is the latency of each.
        latency = min(calls) * (each_step - _FEW_BLOCKS)
        gain = max(0.0, min(exposed, latency))
        if name == "all-reduce" and each_step >= _MANY_COLLECTIVES and exposed >= _LEAST_EXPOSED * step:
            yield Advice(
                "small-buckets",
                say("each step has {count} {count:call|calls} of {name}, with {time} exposed",
                    count=f"{each_step:.0f}", name=name, time=milliseconds(exposed)),
                say("make buckets larger (DDP's bucket_cap_mb is 25 by default): each call costs a latency"),
                gain,
                is_defect=True,
            )  # fmt: skip


def _unfused(split: Split, facts: dict[str, Any]) -> Iterator[Advice]:
    """Report modules that run many operators where one fused kernel would suffice."""
    for name, counted in split.modules.items():
        part = {"in_mlp": "activation"}.get(kind := kind_of_module(name), kind)
        if part != "norm" or not counted.calls:
            continue
        operators = counted.operators / counted.calls
        seconds = split.compute.get(part, 0.0) / split.steps
        if operators <= _FUSED_PASSES:
            continue
        yield Advice(
            "unfused-norm",
            say("{name} runs as {count} {count:operator|operators} and takes {time} of each step",
                name=name, count=f"{operators:.0f}", time=milliseconds(seconds)),
            _to_fuse_norms(facts),
            seconds * (1 - _FUSED_PASSES / operators),
            keys=_fused(facts),
        )  # fmt: skip


def _to_fuse_norms(facts: dict[str, Any]) -> str:
    """The key that enables the fused norm, or the reason why none does."""
    set_key = say("set {keys}", keys="kernel.rms_norm: true")
    recorded = value_at(facts, "resolved", "kernel", "rms_norm")
    if not isinstance(recorded, str):
        return set_key
    # Those that name a package or quote an error have no translation.
    reason = say(recorded)
    if facts.get("kernel") == "auto":
        return say("no recipe key changes that: {reason}", reason=reason)
    return set_key + say(" (this run: {reason})", reason=reason)


def _batches(rank: RankProfile) -> Iterator[Advice]:
    """Report padding, small micro-batches, and interruptions such as checkpoints."""
    split, facts = rank.split, rank.facts
    padding, step = facts.get("padding_ratio"), rank.step_seconds
    if is_number(padding, _LEAST_PADDING, 1):
        computing = sum(seconds for kind, seconds in split.compute.items() if kind not in ("optimizer", "clip"))
        yield Advice(
            "padding",
            say("{share} % of the positions in the rows are padding, which is computed, too",
                share=f"{100 * padding:.0f}"),
            say("set {keys}", keys="data.packing: true") if facts.get("packing") is False
            else say("a smaller batch.per_device with more batch.accumulate pads less"),
            float(padding) * computing / split.steps,
            keys={"data.packing": True} if facts.get("packing") is False else {},
        )  # fmt: skip
    count, size = count_or_one(facts.get("accumulate")), facts.get("per_device")
    if count > 1 and isinstance(size, int) and split.launch / split.steps >= _LEAST_LAUNCH * step:
        factor = next(each for each in range(2, count + 1) if count % each == 0)
        yield Advice(
            "small-micro-batches",
            say("the host prepares and launches each of {count} micro-batches of a step, which takes {time}",
                count=count, time=milliseconds(split.launch / split.steps)),
            say("set batch.per_device: {size} and batch.accumulate: {count} if `ascendtune plan` shows that it fits: "
                "the global batch is the same", size=size * factor, count=count // factor),
            split.launch / split.steps * (1 - 1 / factor),
            keys={"batch.per_device": size * factor, "batch.accumulate": count // factor},
        )  # fmt: skip
    for name, key in (("evaluation", "eval.every_steps"), ("checkpoint", "checkpoint.every_steps")):
        if seconds := split.aside.get(name, 0.0) / split.steps:
            yield Advice(
                f"{name}-in-steps",
                say("{name} takes {time} of each profiled step", name=say(name), time=milliseconds(seconds)),
                say("raise {key} if that is as often as intended, or profile other steps", key=key),
                seconds,
            )


def _options(rank: RankProfile) -> Iterator[Advice]:
    split, step = rank.split, rank.step_seconds
    recomputed = sum(each.recomputed for each in split.modules.values())
    if recomputed:
        seconds = recomputed * 1e-6 / split.steps
        yield Advice(
            "recomputation",
            say("activation checkpointing computes {time} of each step a second time", time=milliseconds(seconds)),
            say("set memory.gradient_checkpointing: false if `ascendtune plan` shows that it fits"),
            seconds,
            keys={"memory.gradient_checkpointing": False},
        )
    exposed = rank.waited_seconds
    if exposed >= 0.2 * step:
        name = max(split.communication, key=lambda each: split.communication[each])
        yield Advice(
            "exposed-communication",
            say("communication takes {time} of each step that nothing hides, most of it {name}",
                time=milliseconds(exposed), name=name),
            say("raise batch.accumulate or batch.per_device: fewer exchanges for as many tokens"),
            exposed / 2,
            keys={"batch.accumulate": 2 * count_or_one(rank.facts.get("accumulate"))},
        )  # fmt: skip
    if split.on_device and split.launch / split.steps >= 0.1 * step:
        yield Advice(
            "launch-bound",
            say("the device waits {time} of each step for the host to launch work",
                time=milliseconds(split.launch / split.steps)),
            say("give each launch more to do: raise batch.per_device, use fused operators (kernel: auto)"),
            split.launch / split.steps / 2,
            keys=_fused(rank.facts),
        )  # fmt: skip


def _fused(facts: dict[str, Any]) -> dict[str, Any]:
    """The key that allows every fused operator; empty if the recipe allows them already, or is unknown."""
    return {"kernel": "auto"} if facts.get("kernel", "auto") != "auto" else {}
