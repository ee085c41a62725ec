"""Duration of a run: its work divided by the speed of past runs, or by published figures times an assumed share.

Free of torch. A step takes  computation + update + communication that computation does not hide + offloading
(`offload`). From past runs: computed FLOPs over the FLOP/s of similar runs (`history.past_speed`), a speed that
includes update and communication. From the table of devices: computation is FLOPs over the peak times an assumed share,
the update is its bytes over the bandwidth of memory, communication is its bytes over the bandwidth of the links.
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
from ascendtune.train.plan.history import Features, PastRun, past_speed, safe_name, tuner_of
from ascendtune.train.plan.offload import HIDING_SHARE, LINK_SHARE, offload_seconds
from ascendtune.train.plan.request import Target
from ascendtune.train.plan.work import Steps, Transfer, Work

if TYPE_CHECKING:
    from ascendtune.train.plan.estimator import EstimatorResult

_MEMORY_SHARE = 0.8
_GLOO_COST = {"all_reduce": 1.0, "all_gather": 1.7, "reduce_scatter": 3.1}
"""Cost of a byte on the bus, relative to an all-reduce: processor time of 2 ranks (docs/plan.md)."""
_GLOO_FRESH_COST, _GLOO_FRESH_FROM = 0.8, 32 << 20
"""Additional cost of each byte in calls of at least so many bytes: Gloo's all-gather and reduce-scatter copy the whole
buffer to newly allocated memory, and glibc requests 32 MiB and more from the kernel each time, one page fault a
page."""
_GLOO_CALL_BYTES = 800_000
"""Fixed cost of a call of Gloo, in bytes of an all-reduce on the bus."""

_LAUNCHES_MATTER_SECONDS = 0.05
"""A micro-batch launches thousands of operators, of some microseconds each: a small share if it takes longer."""


@dataclass(frozen=True)
class TimeRange:
    """A low, an expected and a high value."""

    low: float
    expected: float
    high: float

    def times(self, factor: float) -> TimeRange:
        return TimeRange(self.low * factor, self.expected * factor, self.high * factor)

    def plus(self, value: float) -> TimeRange:
        return TimeRange(self.low + value, self.expected + value, self.high + value)


@dataclass(frozen=True)
class TimeEstimate:
    """Estimated time of a run."""

    step_seconds: TimeRange
    parts: dict[str, float]
    """Seconds of the expected step: `compute`, `update`, total `communication`, and `exposed`, its part that is not
    hidden; with offloading `host_copies`, `exposed_host_copies` and `host_update`. From past runs only `compute`."""
    tokens_per_second: float
    """Throughput of all ranks together."""
    mfu: float | None
    """Useful FLOP/s over the peak; None if the peak is unknown."""
    steps: int | None
    tokens: float | None
    """Tokens of the whole run."""
    seconds: TimeRange | None
    """Duration of the whole run: its steps and, before them, the reference's log-probabilities."""
    energy_joules: float | None
    """At the boards' power limit, without hosts."""
    disk_bytes: int
    """Largest size of checkpoints and exported model together; the run requires it before its first step."""
    basis: str
    """Source of the speed."""
    notes: tuple[str, ...] = field(default=())


def features_of(work: Work, steps: Steps, recipe: Recipe, target: Target, facts: dict[str, object]) -> Features:
    """The properties by which the run is compared with past runs."""
    micro_batches = recipe.batch.accumulate * target.devices
    return Features(
        model_type=safe_name(work.model_type),
        parameters=int(str(facts["parameters"])), trainable=int(str(facts["trainable"])),
        stage=recipe.method.stage, tuner=tuner_of(recipe), precision=work.compute, strategy=str(facts["strategy"]),
        checkpointing=recipe.memory.gradient_checkpointing,
        positions=round(steps.tokens / (1 - steps.padding_ratio) / micro_batches), ranks=target.devices,
    )  # fmt: skip


@dataclass
class _StepTime:
    """Time of a step, by parts."""

    seconds: TimeRange
    parts: dict[str, float]
    """See `TimeEstimate.parts`."""
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
    """The time of a run, or the reason why it is unknown."""
    name = safe_name(known_name(target.name))
    mean = work.flops.per_token(steps.lengths, padding_ratio=steps.padding_ratio)
    computed, useful = (each / target.devices for each in (
        mean.computed_flops(steps.tokens, steps.labels), mean.useful_flops(steps.tokens, steps.labels)
    ))  # fmt: skip
    past = past_speed(name, features, history)
    past_of_one_rank = None
    if past is None and target.devices > 1:
        past_of_one_rank = past_speed(name, replace(features, ranks=1, strategy="single"), history)
    if (speed_of_past := past or past_of_one_rank) is not None:
        seconds = TimeRange(
            computed / speed_of_past.high, computed / speed_of_past.expected, computed / speed_of_past.low
        )
        basis = f"the speed of {speed_of_past.runs} past run{'s' if speed_of_past.runs > 1 else ''} on this device"
        step = _StepTime(seconds, {"compute": seconds.expected}, basis)
    elif speed.flops is not None:
        step = _by_published_figures(work, recipe, target, speed, speed.flops, computed)
    else:
        return (
            f"the device's speed in {features.precision} is neither published nor known from past runs: train at least "
            "three steps on it, or give --tflops"
        )
    if past is None:
        _add_communication(step, work, recipe, target, speed)
        _add_offloading(step, work, recipe, target, speed)
    return _of_run(work, steps, recipe, target, speed, step, useful)


def _by_published_figures(
    work: Work, recipe: Recipe, target: Target, speed: Speed, flops: float, computed: float
) -> _StepTime:
    """Computation and update of a step; `computed` are a rank's FLOPs, `flops` its peak FLOP/s."""
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
        step.notes.append("the bandwidth of the device's memory is not public: the update is not counted")
    if compute < _LAUNCHES_MATTER_SECONDS * recipe.batch.accumulate and not target.is_host:
        step.notes.append(
            "the time in which the host launches operators is not counted: with such small micro-batches a step takes "
            "longer"
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
        step.notes.append(f"the bandwidth {link}: communication is not counted; give {option} GB/s")
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
    fast, expected_update, slow = moved.update
    low, expected, high = step.seconds.low, step.seconds.expected, step.seconds.high
    step.seconds = TimeRange(low + fast, expected + moved.exposed + expected_update, high + moved.copies + slow)
    step.parts |= {"host_copies": moved.copies, "exposed_host_copies": moved.exposed, "host_update": expected_update}
    step.notes += moved.notes


def expected_step_seconds(answer: EstimatorResult, target: Target, history: Sequence[PastRun]) -> float | None:
    """Expected time of a step on one node; None if neither the table of devices nor past runs include the device."""
    work, steps, recipe = answer.work, answer.steps, answer.recipe
    if work is None:
        return None
    features = features_of(work, steps, recipe, target, answer.estimate.facts)
    estimated = estimate_time(work, steps, recipe, target, speed_of(target.name, work.compute), features, history)
    return None if isinstance(estimated, str) else estimated.step_seconds.expected


@dataclass(frozen=True)
class Communication:
    """Seconds of communication in a step."""

    in_backward: float
    """Part that overlaps with the backward pass only."""
    in_both: float
    """Part that overlaps with forward and backward pass."""

    @property
    def total(self) -> float:
        return self.in_backward + self.in_both


def communication(work: Work, recipe: Recipe, target: Target, speed: Speed) -> Communication | None:
    """Seconds of a step's collectives; None if the bandwidth of a link that they use is unknown.

    Ranks on the CPU communicate with Gloo; the link is then the measured busbw of its all-reduce.
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
    """Bytes per second that each rank of a collective sends (nccl-tests' busbw); None if unknown.

    Between nodes there are as many parallel rings as the group has devices on each node, each over the network of
    another device: their bandwidths add up.
    """
    ranks, on_node = target.devices, target.devices // target.nodes
    members = transfer.ranks or ranks
    near = max(1, members * on_node // ranks) if transfer.spread else min(members, on_node)
    within = speed.link_among(near) if near > 1 else math.inf
    between = math.inf if near == members else None if speed.network is None else near * speed.network
    return None if within is None or between is None else min(within, between)


def _hidden(work: Work, recipe: Recipe, compute: float, sent: Communication) -> float:
    """Seconds of communication that overlap with computation."""
    body = work.flops.body
    backward = compute * (body.backward + body.again) / body.computed
    # DDP communicates in the backward pass of the last micro-batch only.
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
    """The estimate for the whole run; `useful` are a rank's useful FLOPs of a step."""
    seconds = energy = None
    expected_seconds = step.seconds.expected
    if steps.steps is not None:
        seconds = step.seconds.times(steps.steps)
        if recipe.method.needs_reference:
            # One forward pass over the rows of the first epoch.
            flops = work.flops
            forward = flops.body.forward + sum(each.forward for _, each in flops.attention)
            if recipe.method.task == "singles":
                # There are as many mismatched answers as answers.
                forward *= 2
            share = forward / (flops.body.computed + sum(each.computed for _, each in flops.attention))
            seconds = seconds.plus(expected_seconds * share * steps.steps * steps.first_epoch)
        if speed.power is not None:
            energy = speed.power * target.devices * seconds.expected
    at_once = recipe.checkpoint.at_once
    if steps.steps is not None:
        written = most_checkpoints(recipe, total_steps=steps.steps, steps_per_epoch=steps.per_epoch)
        at_once = min(at_once, written)
    return TimeEstimate(
        step_seconds=step.seconds, parts=step.parts, tokens_per_second=steps.tokens / expected_seconds,
        mfu=useful / expected_seconds / speed.flops if speed.flops else None,
        steps=steps.steps, tokens=None if steps.steps is None else steps.steps * steps.tokens, seconds=seconds,
        energy_joules=energy, disk_bytes=at_once * work.checkpoint_bytes + work.model_bytes,
        basis=step.basis, notes=tuple(step.notes),
    )  # fmt: skip
