"""How long a run takes: its work over the speed of past runs, or over published figures and an assumed share. No torch.

A step is  computation + update + communication that computation does not hide + what offloading adds (`offload`).

From past runs: computed FLOPs over the FLOP/s of runs that are alike (`history.past_speed`); update and communication
are in that speed. From the table of devices: computation is FLOPs over the peak times an assumed share, the update is
its bytes over the bandwidth of memory, communication is its bytes over the bandwidth of the links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ascendtune.machine.vendor.find import vendor_of
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint.count import most_checkpoints
from ascendtune.train.plan.device_table import Speed, known_name, speed_of
from ascendtune.train.plan.history import Features, PastRun, past_speed, tuner_of, word
from ascendtune.train.plan.offload import HIDING_SHARE, LINK_SHARE, offload_seconds
from ascendtune.train.plan.request import Target
from ascendtune.train.plan.work import Steps, Transfer, Work

if TYPE_CHECKING:
    from ascendtune.train.plan.estimator import EstimatorResult

_MEMORY_SHARE = 0.8
_GLOO_COST = {"all_reduce": 1.0, "all_gather": 1.7, "reduce_scatter": 3.1}
"""Of a byte on the bus, where an all-reduce costs 1: processor time of 2 ranks (docs/plan.md)."""
_GLOO_FRESH_COST, _GLOO_FRESH_FROM = 0.8, 32 << 20
"""Likewise, of each byte of a call of so many bytes and more: Gloo's all-gather and reduce-scatter copy the whole
buffer into memory of their own, and glibc takes 32 MiB and more from the kernel each time, a page fault a page."""
_GLOO_CALL_BYTES = 800_000
"""What a call of Gloo costs before its first byte, in bytes of an all-reduce on the bus."""

_LAUNCHES_MATTER_SECONDS = 0.05
"""Of a micro-batch: it launches thousands of operators of some microseconds each; above this they are a small share."""


@dataclass(frozen=True)
class TimeRange:
    """Low, expected and high."""

    low: float
    expected: float
    high: float

    def times(self, factor: float) -> TimeRange:
        return TimeRange(self.low * factor, self.expected * factor, self.high * factor)

    def plus(self, value: float) -> TimeRange:
        return TimeRange(self.low + value, self.expected + value, self.high + value)


@dataclass(frozen=True)
class TimeEstimate:
    """Of a run."""

    step_seconds: TimeRange
    parts: dict[str, float]
    """Seconds of the expected step: `compute`, `update`, `communication` in all, `exposed` what is not hidden; with
    offloading `host_copies`, `exposed_host_copies` and `host_update`. Only `compute` with the speed of past runs."""
    tokens_per_second: float
    """Of all ranks."""
    mfu: float | None
    """Useful FLOP/s over the peak; None where the peak is not known."""
    steps: int | None
    tokens: float | None
    """Of the whole run."""
    seconds: TimeRange | None
    """Of the whole run: its steps, and before them the answers of the reference model."""
    energy_joules: float | None
    """At the limit of the boards, hosts not counted."""
    disk_bytes: int
    """The most that checkpoints and the exported model take at once, which a run asks for before its first step."""
    basis: str
    """What the speed is from."""
    notes: tuple[str, ...] = field(default=())


def features_of(work: Work, steps: Steps, recipe: Recipe, target: Target, facts: dict[str, object]) -> Features:
    """What past runs are compared by."""
    micro_batches = recipe.batch.accumulate * target.devices
    return Features(
        model_type=word(work.model_type),
        parameters=int(str(facts["parameters"])), trainable=int(str(facts["trainable"])),
        stage=recipe.method.stage, tuner=tuner_of(recipe), precision=work.compute, strategy=str(facts["strategy"]),
        checkpointing=recipe.memory.gradient_checkpointing,
        positions=round(steps.tokens / (1 - steps.padding_ratio) / micro_batches), ranks=target.devices,
    )  # fmt: skip


@dataclass
class _StepTime:
    """What is known of a step, part by part."""

    seconds: TimeRange
    parts: dict[str, float]
    """As of `TimeEstimate`."""
    basis: str
    notes: list[str] = field(default_factory=list)


def estimate_time(
    work: Work,
    steps: Steps,
    recipe: Recipe,
    target: Target,
    speed: Speed,
    features: Features,
    history: Sequence[PastRun] = (),
) -> TimeEstimate | str:
    """The time of a run, or why it cannot be said."""
    name = word(known_name(target.name))
    mean = work.flops.per_token(steps.lengths, padding_ratio=steps.padding_ratio)
    computed, useful = (each / target.devices for each in (
        mean.computed_in(steps.tokens, steps.labels), mean.useful_in(steps.tokens, steps.labels)
    ))  # fmt: skip
    past = past_speed(name, features, history)
    alone = None
    if past is None and target.devices > 1:
        alone = past_speed(name, replace(features, ranks=1, strategy="single"), history)
    if (known := past or alone) is not None:
        seconds = TimeRange(computed / known.high, computed / known.expected, computed / known.low)
        basis = f"the speed of {known.runs} past run{'s' if known.runs > 1 else ''} on this device"
        step = _StepTime(seconds, {"compute": seconds.expected}, basis)
    elif speed.flops is not None:
        step = _by_published_figures(work, recipe, target, speed, speed.flops, computed)
    else:
        return (
            f"the device's speed in {features.precision} is neither public nor known from past runs: train three steps "
            "or more on it, or give --tflops"
        )
    if past is None:
        _add_communication(step, work, recipe, target, speed)
        _add_offloading(step, work, recipe, target, speed)
    return _of_run(work, steps, recipe, target, speed, step, useful)


def _by_published_figures(
    work: Work, recipe: Recipe, target: Target, speed: Speed, flops: float, computed: float
) -> _StepTime:
    """Computation and update of a step; `computed` are FLOPs of a rank, `flops` its peak."""
    shares = vendor_of(target.kind).planned.flops_share
    low, expected, high = (share * flops for share in shares)
    update = work.updated_bytes / (speed.memory * _MEMORY_SHARE) if speed.memory else 0.0
    compute = computed / expected
    step = _StepTime(
        TimeRange(computed / high, compute, computed / low).plus(update),
        {"compute": compute, "update": update},
        f"an assumption: {shares[1]:.0%} of the published {flops / 1e12:.0f} TFLOP/s "
        f"({shares[0]:.0%} to {shares[2]:.0%})",
    )
    if work.updated_bytes and not speed.memory:
        step.notes.append("the bandwidth of the device's memory is not public: the update counts as nothing")
    if compute < _LAUNCHES_MATTER_SECONDS * recipe.batch.accumulate and not target.is_host:
        step.notes.append(
            "the time in which the host launches operators is not counted: with micro-batches as small as these a "
            "step takes longer than this"
        )
    return step


def _add_communication(step: _StepTime, work: Work, recipe: Recipe, target: Target, speed: Speed) -> None:
    if not work.transfers:
        return
    sent = communication(work, recipe, target, speed)
    if sent is None:
        between_nodes = target.nodes > 1 and speed.network is None
        link = "between the nodes is not known" if between_nodes else "between the devices is not public"
        option = "--network" if between_nodes else "--link"
        step.notes.append(f"the bandwidth {link}: communication counts as nothing; give {option} GB/s")
        return
    exposed = sent.total - _hidden(work, recipe, step.parts["compute"], sent)
    step.seconds = TimeRange(step.seconds.low, step.seconds.expected + exposed, step.seconds.high + sent.total)
    step.parts |= {"communication": sent.total, "exposed": exposed}


def _add_offloading(step: _StepTime, work: Work, recipe: Recipe, target: Target, speed: Speed) -> None:
    if not work.offload or target.is_host:
        return
    moved = offload_seconds(
        work.offload, micro_batches=recipe.batch.accumulate, compute=step.parts["compute"],
        ranks_of_host=target.devices // target.nodes, link=speed.host_link,
    )  # fmt: skip
    fast, usual, slow = moved.update
    low, expected, high = step.seconds.low, step.seconds.expected, step.seconds.high
    step.seconds = TimeRange(low + fast, expected + moved.exposed + usual, high + moved.copies + slow)
    step.parts |= {"host_copies": moved.copies, "exposed_host_copies": moved.exposed, "host_update": usual}
    step.notes += moved.notes


def expected_step_seconds(answer: EstimatorResult, target: Target, history: Sequence[PastRun]) -> float | None:
    """Of an expected step on one node; None where neither the table of devices nor past runs know the device."""
    work, steps, recipe = answer.work, answer.steps, answer.recipe
    if work is None:
        return None
    features = features_of(work, steps, recipe, target, answer.estimate.facts)
    found = estimate_time(work, steps, recipe, target, speed_of(target.name, work.compute), features, history)
    return None if isinstance(found, str) else found.step_seconds.expected


@dataclass(frozen=True)
class Communication:
    """Seconds of a step."""

    in_backward: float
    """Beside the backward pass only."""
    in_both: float
    """Beside forward and backward."""

    @property
    def total(self) -> float:
        return self.in_backward + self.in_both


def communication(work: Work, recipe: Recipe, target: Target, speed: Speed) -> Communication | None:
    """Seconds of a step's collectives, None where the bandwidth of a link that they take is not known.

    Where the ranks compute on the CPU, Gloo communicates, and the link is the busbw of its all-reduce, measured.
    """
    seconds, ranks = {True: 0.0, False: 0.0}, target.devices
    for each in work.transfers:
        bandwidth = _bandwidth(each, target, speed)
        if bandwidth is None:
            return None
        times = recipe.batch.accumulate if each.of_micro_batch else 1
        sent = gloo_bytes(each, ranks) if target.is_host else each.bus_bytes(ranks) / LINK_SHARE
        seconds[each.in_forward] += times * sent / bandwidth
    return Communication(in_backward=seconds[False], in_both=seconds[True])


def gloo_bytes(transfer: Transfer, ranks: int) -> float:
    """Bytes on the bus of an all-reduce that take Gloo as long as these calls, in a job of `ranks`."""
    copied = 0 if transfer.name == "all_reduce" else sum(each for each in transfer.calls if each >= _GLOO_FRESH_FROM)
    return (
        transfer.bus_bytes(ranks) * _GLOO_COST[transfer.name]
        + copied * _GLOO_FRESH_COST
        + len(transfer.calls) * _GLOO_CALL_BYTES
    )


def _bandwidth(transfer: Transfer, target: Target, speed: Speed) -> float | None:
    """Bytes per second at which each rank of a collective sends (nccl-tests' busbw), None where it is not known.

    Between nodes as many rings run side by side as the group has devices on each node, each over the network of another
    device: together they carry that many times the network of one.
    """
    ranks, on_node = target.devices, target.devices // target.nodes
    members = transfer.ranks or ranks
    near = max(1, members * on_node // ranks) if transfer.spread else min(members, on_node)
    within = speed.link_among(near) if near > 1 else math.inf
    between = math.inf if near == members else None if speed.network is None else near * speed.network
    return None if within is None or between is None else min(within, between)


def _hidden(work: Work, recipe: Recipe, compute: float, sent: Communication) -> float:
    """Seconds of communication that run beside computation."""
    body = work.flops.body
    backward = compute * (body.backward + body.again) / body.computed
    # DDP sends in the backward pass of the last micro-batch only.
    of_step = all(not each.of_micro_batch for each in work.transfers)
    share = 1 / recipe.batch.accumulate if of_step else 1.0
    beside_backward = min(sent.in_backward, HIDING_SHARE * backward * share)
    return beside_backward + min(sent.in_both, HIDING_SHARE * compute - beside_backward)


def _of_run(
    work: Work,
    steps: Steps,
    recipe: Recipe,
    target: Target,
    speed: Speed,
    step: _StepTime,
    useful: float,
) -> TimeEstimate:
    """Of the whole run; `useful` are FLOPs of a step of one rank."""
    seconds = energy = None
    usual = step.seconds.expected
    if steps.steps is not None:
        seconds = step.seconds.times(steps.steps)
        if recipe.method.needs_reference:
            # One forward pass over the rows of the first epoch.
            flops = work.flops
            forward = flops.body.forward + sum(each.forward for _, each in flops.attention)
            if recipe.method.task == "singles":
                # Of the answers; the mismatched ones are as many.
                forward *= 2
            share = forward / (flops.body.computed + sum(each.computed for _, each in flops.attention))
            seconds = seconds.plus(usual * share * steps.steps * steps.first_epoch)
        if speed.power is not None:
            energy = speed.power * target.devices * seconds.expected
    at_once = recipe.checkpoint.at_once
    if steps.steps is not None:
        written = most_checkpoints(recipe, total_steps=steps.steps, steps_per_epoch=steps.per_epoch)
        at_once = min(at_once, written)
    return TimeEstimate(
        step_seconds=step.seconds, parts=step.parts, tokens_per_second=steps.tokens / usual,
        mfu=useful / usual / speed.flops if speed.flops else None,
        steps=steps.steps, tokens=None if steps.steps is None else steps.steps * steps.tokens, seconds=seconds,
        energy_joules=energy, disk_bytes=at_once * work.checkpoint_bytes + work.model_bytes,
        basis=step.basis, notes=tuple(step.notes),
    )  # fmt: skip
