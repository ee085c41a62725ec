"""Advice about the program around the operators: pauses, garbage collection, threads, leftovers of debugging."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ascendtune.check.profile.advice_entry import Advice, count_or_one, milliseconds, resolved
from ascendtune.check.profile.language import say
from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.split import Split
from ascendtune.core.foreign_json import is_number

_LEAST_PAUSE = 0.05
"""Share of each step."""
_LEAST_ZEROING = 0.005
"""Share of a step: zeroing costs two passes over the gradients, and the change is one line of code."""
_PAGE_SECONDS = 1e-4
"""Seconds for reading a page from a solid-state disk."""
_MOST_FAULTS = 1e15
_ACCUMULATION = ("aten::add_", "gradients")
_SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
_FUSED_ATTENTION = re.compile(
    r"scaled_dot_product|flash|fmha|varlen|[Ff]usedAttention|FusionAttention|efficient_attention"
)
_SOFTMAX = re.compile(r"^(?!.*[Ll]og_?[Ss]oft)(?!.*is_log).*[Ss]oft[Mm]ax")
_DOUBLE = re.compile(r"\(float64\)|dgemm|d884gemm|<double\b|\bdouble,")


def code_advice(rank: RankProfile) -> Iterator[Advice]:
    """Defects of one rank: their time has no benefit."""
    split, step = rank.split, rank.step_seconds
    yield from _pauses(split, step)
    yield from _garbage(split, step)
    yield from _threads(rank)
    yield from _paging(rank)
    yield from _unused_parameters(split)
    yield from _zeroed_gradients(split, step)
    yield from _eager_attention(rank)
    yield from _double_precision(split)


def _pauses(split: Split, step: float) -> Iterator[Advice]:
    places = split.pauses.in_every_step(_LEAST_PAUSE * step)
    if not places:
        return
    most = max(places, key=lambda place: places[place])
    yield Advice(
        "host-pause",
        say("no operator runs for {time} of each step, the longest time at {place}",
            time=milliseconds(sum(places.values())), place=most),
        say("check what the program does between these two: Python code, a file, a lock, garbage collection; "
            "torch.profiler's with_stack (profile.stacks here) shows the functions in Perfetto"),
        sum(places.values()),
        is_defect=True,
    )  # fmt: skip


def _garbage(split: Split, step: float) -> Iterator[Advice]:
    seconds = split.aside.get("garbage collection", 0.0) / split.steps
    if seconds < 0.02 * step:
        return
    yield Advice(
        "garbage-collection",
        say("Python's garbage collector stops the training for {time} of each step", time=milliseconds(seconds)),
        say("keep fewer Python objects alive, call gc.freeze() before the loop, and gc.collect() between steps only"),
        seconds,
        is_defect=True,
    )


def _threads(rank: RankProfile) -> Iterator[Advice]:
    """Report more threads than cores, as recorded by `train`; a trace alone does not show them."""
    threads, cores, ranks = (count_or_one(rank.facts.get(name)) for name in ("threads", "cores", "ranks_on_host"))
    if "threads" not in rank.facts or rank.split.on_device or threads * ranks <= cores:
        return
    yield Advice(
        "too-many-threads",
        say(
            "{ranks} {ranks:rank|ranks} of {threads} {threads:thread|threads} share {cores} {cores:core|cores}",
            ranks=ranks,
            threads=threads,
            cores=cores,
        ),
        say("set OMP_NUM_THREADS={threads}", threads=max(1, cores // ranks)),
        rank.step_seconds * (1 - cores / (threads * ranks)),
        is_defect=True,
    )


def _paging(rank: RankProfile) -> Iterator[Advice]:
    """Report pages that had to be read from disk, as counted by `train`; a trace does not show them."""
    faults, steps = rank.facts.get("major_faults"), rank.split.steps
    if not is_number(faults, 1, _MOST_FAULTS):
        return
    each_step = float(faults) / steps
    seconds = min(each_step * _PAGE_SECONDS, rank.step_seconds)
    if seconds < 0.02 * rank.step_seconds:
        return
    yield Advice(
        "paging",
        say("each step waits for {count} {count:page|pages} of memory on disk: about {time}",
            count=f"{each_step:,.0f}", time=milliseconds(seconds)),
        say("free memory of the host, so that neither swap nor mapped files are read again"),
        seconds,
        is_defect=True,
    )  # fmt: skip


def _unused_parameters(split: Split) -> Iterator[Advice]:
    searches = [each for (name, _), each in split.operators.items() if name == _SEARCH]
    if not searches:
        return
    calls, seconds = sum(each.calls for each in searches), sum(each.seconds for each in searches)
    yield Advice(
        "unused-parameters",
        say("DDP looks for unused parameters {count} {count:time|times} in each step, and asks all ranks about them",
            count=f"{calls / split.steps:.3g}"),
        say("set find_unused_parameters=False where every parameter has a gradient in each step"),
        seconds / split.steps,
        is_defect=True,
    )  # fmt: skip


def _zeroed_gradients(split: Split, step: float) -> Iterator[Advice]:
    zeroed = split.zeroed or sum(each.seconds for (name, _), each in split.operators.items() if "ZeroFunctor" in name)
    if not zeroed:
        return
    added = split.operators[_ACCUMULATION].seconds if _ACCUMULATION in split.operators else 0.0
    gain = (zeroed + added) / split.steps
    if gain >= _LEAST_ZEROING * step:
        yield Advice(
            "zeroed-gradients",
            say("gradients are filled with zeros and added to: {time} of each step", time=milliseconds(gain)),
            say("use zero_grad(set_to_none=True), torch's default"),
            gain,
            is_defect=True,
        )


def _eager_attention(rank: RankProfile) -> Iterator[Advice]:
    split = rank.split
    if any(_FUSED_ATTENTION.search(name) for name, _ in split.operators):
        return
    softmax = sum(each.seconds for (name, _), each in split.operators.items() if _SOFTMAX.search(name))
    products = sum(each.seconds for (name, _), each in split.operators.items() if name == "aten::bmm")
    gain = (softmax + products / 2) / split.steps
    if not softmax or gain < 0.02 * rank.step_seconds:
        return
    chosen = resolved(rank.facts, "attention")
    if isinstance(chosen, dict) and chosen.get("reason") != "as asked":
        # `auto` found no fused implementation whose results agree.
        return
    yield Advice(
        "eager-attention",
        say("attention is not fused: softmax and batched matrix products take {time} of each step",
            time=milliseconds((softmax + products) / split.steps)),
        say("use fused attention: model.attention: auto here, attn_implementation=\"sdpa\" in transformers"),
        gain,
        is_defect=True,
        keys={"model.attention": "auto"} if chosen else {},
    )  # fmt: skip


def _double_precision(split: Split) -> Iterator[Advice]:
    products = {
        name: each for (name, kind), each in split.operators.items() if kind == "matmul" and _DOUBLE.search(name)
    }
    if not products:
        return
    seconds = sum(each.seconds for each in products.values()) / split.steps
    yield Advice(
        "double-precision",
        say("matrix products in float64 take {time} of each step, most of it {name}",
            time=milliseconds(seconds), name=max(products, key=lambda name: products[name].seconds)),
        say("look for a module or tensor in float64, as NumPy makes by default, and cast it to float32"),
        seconds / 2,
        is_defect=True,
    )  # fmt: skip
