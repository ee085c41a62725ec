"""Draw recipes and hold each against its plain form: `make drawn-recipes`.

A recipe is drawn in two parts (`draw.py`): what decides the numbers (model, data, method, optimizer), and what must not
change them (strategy, ranks, how a step is cut into micro-batches, recomputing, kernels, attention, a resumed start).
Both parts together are trained, and the first part alone on one device. Each drawn recipe is refused before anything
starts, or gives the same losses, gradient norms, evaluations and weights: within the matrix's tolerance, or within what
cutting the plain form into other micro-batches does to them, or another last bit of each weight, which is rounding. One
in bf16 must be the same in fp32, and in bf16 not much further from that than its plain form. Where a run is cut off
after a checkpoint, killed or stopped, and started again, the steps behind it and the weights are the same bit by bit;
with another strategy, batch or number of ranks they are the same as nearly as those of two strategies.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ascendtune.core.rundir import RunDir
from matrix.cells import Outcome, attempt
from matrix.draw import Drawn, Restart, draw, merged
from matrix.page import TOLERANCE
from matrix.simulated import DEEPSPEED

_OF_STEPS = ("step", "epoch", "learning_rate", "tokens", "labelled_tokens", "tokens_seen")
_OF_NOISE = 4.0
"""How often a difference may be that of rounding."""
_SMALL_HINGE = 1e-2
"""Of a smaller loss the distance counts as of this one: a hinge is a small difference of larger numbers."""
_OF_MUON = 2e-4
"""Of muon, which orthogonalises in bf16: eager attention alone moves a gradient norm by 6e-5 in two steps of it."""
_OF_BF16 = 2.0**-6
"""Of numbers that are computed or summed in bf16: twice the distance of neighbours."""
_OF_WEIGHTS = 1e-3
"""Of a whole tensor: AdamW moves a weight whose gradient is rounding by as much as any other."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, action="append", help="this number of the draw alone")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    sys.path.append(str(DEEPSPEED))
    import deepspeed  # noqa: F401  # imported once, before processes are forked
    import peft  # noqa: F401
    import transformers  # noqa: F401

    wrong = refused = 0
    with tempfile.TemporaryDirectory() as directory:
        for drawn in draw(arguments.seed, arguments.count, Path(directory)):
            if arguments.only and drawn.number not in arguments.only:
                continue
            problem, reason = _try(drawn)
            wrong, refused = wrong + bool(problem), refused + bool(reason)
            state = f"WRONG {problem}" if problem else f"refused ({reason})" if reason else "same"
            print(f"{drawn.number} {state}: {drawn.words}", flush=True)
            for kind in ("plain", "changed", "cut"):
                shutil.rmtree(Path(directory) / f"{kind}-{drawn.number}", ignore_errors=True)
    print(f"{arguments.count} recipes, {refused} refused, {wrong} wrong")
    return 1 if wrong else 0


def _try(drawn: Drawn) -> tuple[str, str]:
    """What is wrong with it, and why it was refused."""
    plain, changed = attempt(drawn.plain, 1), attempt(drawn.changed, drawn.ranks)
    for name, outcome in (("the plain form ", plain), ("", changed)):
        if outcome.failed and not _is_refusal(outcome):
            return f"{name}failed: {outcome.failed[-1500:]}", ""
    for outcome in (plain, changed):
        if outcome.refused or outcome.failed:
            return "", outcome.refused or outcome.failed.rpartition("RecipeError: ")[2].split("\n")[0]
    if not drawn.is_random and (difference := _beyond_rounding(drawn, changed, plain)):
        return difference, ""
    return _restarted(drawn, changed, drawn.restart) if drawn.restart else "", ""


def _is_refusal(outcome: Outcome) -> bool:
    """Whether ranks refused the recipe: some things only the loaded model tells. Other errors of ours are faults."""
    return "\nascendtune.core.errors.RecipeError: " in outcome.failed


def _beyond_rounding(drawn: Drawn, changed: Outcome, plain: Outcome) -> str:
    """Where the two differ by more than the plain form does from itself, rounded otherwise; empty where they do not."""
    if _uses_bf16(drawn):
        return _beyond_bf16(drawn, changed, plain)
    least = _OF_MUON if drawn.plain["optim"].get("optimizer") == "muon" else 0.0
    smallest = _smallest(drawn)
    numbers, weights = _apart(_numbers_of(changed), _numbers_of(plain), smallest), _weight_difference(changed, plain)
    if numbers <= max(TOLERANCE, least) and weights <= max(_OF_WEIGHTS, least):
        return ""
    others = [attempt(each, 1) for each in _otherwise_rounded(drawn)]
    for each in others:
        if each.curve is None:
            return f"the plain form, rounded otherwise, failed: {each.refused or each.failed[-1500:]}"
    of_numbers = max(_apart(_numbers_of(each), _numbers_of(plain), smallest) for each in others)
    of_weights = max(_weight_difference(each, plain) for each in others)
    if numbers > max(_OF_NOISE * of_numbers, TOLERANCE, least):
        rounded = " | rounded otherwise ".join(map(_short, others))
        return f"differs by {numbers:.2g}: {_short(changed)} | plain {_short(plain)} | rounded otherwise {rounded}"
    if weights > max(_OF_NOISE * of_weights, _OF_WEIGHTS, least):
        return f"weights differ by {weights:.2g}, of the plain form, rounded otherwise, by {of_weights:.2g}"
    return ""


def _otherwise_rounded(drawn: Drawn) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plain form in single rows, and that of a model each of whose weights is one rounding of fp32 larger or
    smaller; a step of one row cannot be cut."""
    from safetensors.torch import load_file, save_file

    values = {**drawn.plain, "run_dir": drawn.plain["run_dir"].replace("plain-", "cut-")}
    single = {**values, "batch": {"per_device": 1, "accumulate": drawn.plain["batch"]["per_device"]}}
    model = Path(values["run_dir"]).parent / f"{values['name']}-model"
    shutil.copytree(drawn.plain["model"]["path"], model)
    seeded, last_bit = torch.Generator().manual_seed(0), torch.finfo(torch.float32).eps
    for file in model.glob("*.safetensors"):
        weights = load_file(file)
        for each in weights.values():
            if each.dtype == torch.float32:
                each *= 1 + last_bit * (2.0 * torch.randint(2, each.shape, generator=seeded) - 1)
        save_file(weights, file, metadata={"format": "pt"})
    return single, merged(values, {"name": f"{values['name']}-last-bits", "model": {"path": str(model)}})


def _beyond_bf16(drawn: Drawn, changed: Outcome, plain: Outcome) -> str:
    """What bf16 does not explain: a difference that is there in fp32, too, or more distance from fp32 than that of the
    plain form in bf16.

    How far bf16 moves a number depends on the model and the optimizer: it may double a gradient norm, and AdamW's first
    step of a weight is the sign of its gradient, so where 1 of 256 signs is rounded away, a tensor that began with
    zeros is 2 / √256 of its length elsewhere. So the limit is measured.
    """
    exact = _in_fp32(drawn, "fp32")
    truth, exact_changed = attempt(exact.plain, 1), attempt(exact.changed, drawn.ranks)
    if drawn.plain["precision"] != "bf16":
        # Of bf16 in the sums of gradients alone; the plain form has none.
        plain = attempt({**drawn.plain, "precision": "bf16", "name": f"{drawn.plain['name']}-bf16"}, 1)
    for each in (truth, exact_changed, plain):
        if failed := each.failed or each.refused:
            return f"in another precision failed: {failed[-1500:]}"
    if difference := _beyond_rounding(exact, exact_changed, truth):
        return f"in fp32 {difference}"
    exact_numbers, smallest = _numbers_of(truth), _smallest(drawn)
    ours, its = (_apart(_numbers_of(each), exact_numbers, smallest) for each in (changed, plain))
    if ours > max(_OF_NOISE * its, _OF_BF16):
        return f"is {ours:.2g} away from fp32, the plain form {its:.2g}: {_short(changed)} | {_short(plain)}"
    ours, its = (_weight_difference(each, truth) for each in (changed, plain))
    if ours > max(_OF_NOISE * its, _OF_BF16):
        return f"weights are {ours:.2g} away from those in fp32, of the plain form {its:.2g}"
    return ""


def _uses_bf16(drawn: Drawn) -> bool:
    return "bf16" in (drawn.changed["precision"], drawn.changed["parallel"].get("reduce_dtype"))


def _in_fp32(drawn: Drawn, name: str) -> Drawn:
    """The same with products and sums in fp32, in runs of their own."""
    fp32 = {"precision": "fp32", "parallel": {"reduce_dtype": "fp32"}}
    plain, changed = (
        merged({**values, "name": f"{values['name']}-{name}"}, fp32) for values in (drawn.plain, drawn.changed)
    )
    restart = drawn.restart
    if restart and "parallel" in restart.changes:
        restart = replace(restart, changes=merged(restart.changes, {"parallel": {"reduce_dtype": "fp32"}}))
    return replace(drawn, plain=plain, changed=changed, restart=restart)


def _smallest(drawn: Drawn) -> float:
    """The size below which a number counts as of this size."""
    is_hinge = drawn.plain["method"].get("preference", {}).get("loss") == "hinge"
    return _SMALL_HINGE if is_hinge else sys.float_info.min


def _apart(ours: list[float], theirs: list[float], smallest: float) -> float:
    """The largest relative difference of losses, norms and evaluations; infinite where there are more of one."""
    if ours == theirs:
        return 0.0
    if len(ours) != len(theirs):
        return float("inf")
    pairs = zip(ours, theirs, strict=True)
    return max(abs(a - b) / max(abs(a), abs(b), smallest) if None not in (a, b) else float(a != b) for a, b in pairs)


def _numbers_of(outcome: Outcome) -> list[float]:
    assert outcome.curve is not None and outcome.run is not None
    steps = [each[key] for each in outcome.run.read_metrics() for key in _OF_STEPS]
    evaluations = [each[key] for each in outcome.run.read_evaluations() for key in ("step", "loss")]
    return [*outcome.curve, *steps, *evaluations, outcome.run.read()["exported_step"]]


def _weight_difference(one: Outcome, two: Outcome) -> float:
    """The largest distance of a tensor in the exported models, as a part of its length."""
    ours, theirs = _as_changes(_weights_of(one)), _as_changes(_weights_of(two))
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(float((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-30)) for name in ours)


def _weights_of(outcome: Outcome) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    assert outcome.run is not None
    return {name: each for file in outcome.run.model.glob("*.safetensors") for name, each in load_file(file).items()}


def _as_changes(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The product of each adapter in the place of its matrices, whose signs are those of a decomposition."""
    changes = {}
    for name, each in weights.items():
        if ".lora_A." in name:
            changes[name] = weights[name.replace(".lora_A.", ".lora_B.")].double() @ each.double()
        elif ".lora_B." not in name:
            changes[name] = each.double()
    return changes


def _restarted(drawn: Drawn, whole: Outcome, restart: Restart) -> str:
    """What is wrong with a run that is cut off, killed or stopped, and started again."""
    expected, weights = _numbers_of(whole), _weights_of(whole)
    values, run = drawn.changed, whole.run
    assert run is not None
    if restart.ended_by != "cut":
        values = {
            **values,
            "run_dir": values["run_dir"].replace("changed-", "cut-"),
            "name": f"{values['name']}-{restart.ended_by}",
        }
        attempt(values, drawn.ranks, ended_by=restart.ended_by, ended_after=restart.after * whole.seconds)
        ended = RunDir(values["run_dir"].format(name=values["name"]))
        if ended.read()["state"] == "finished":
            return ""
        if not ended.checkpoint_steps():
            # It begins anew, with steps as large as its own batch and ranks make them.
            restart = replace(restart, ranks=drawn.ranks, changes={})
    else:
        steps = run.checkpoint_steps()
        if not steps:
            return ""
        for step in steps[1 + int(restart.after * (len(steps) - 1)) :]:
            shutil.rmtree(run.checkpoint(step))
        shutil.rmtree(run.model)
        run.update(state="running")
    again = attempt(merged(values, restart.changes), restart.ranks)
    if again.refused or again.failed:
        return f"does not go on: {again.refused or again.failed[-1500:]}"
    if restart.ranks == drawn.ranks and not restart.changes:
        return _difference(again, expected, weights)
    apart = _apart(_numbers_of(again), expected, _smallest(drawn))
    is_muon = drawn.plain["optim"].get("optimizer") == "muon"
    if drawn.is_random or apart <= max(_OF_NOISE * TOLERANCE, _OF_MUON if is_muon else 0.0):
        return ""
    if _uses_bf16(drawn):
        exact = _in_fp32(drawn, "restarted")
        assert exact.restart is not None
        return _restarted(exact, attempt(exact.changed, drawn.ranks), exact.restart)
    return f"on {restart.ranks} ranks goes on by {apart:.2g} otherwise: {_short(again)} | whole {expected}"


def _difference(again: Outcome, expected: list[float], weights: dict[str, torch.Tensor]) -> str:
    """What is not bit by bit as it was."""
    if _numbers_of(again) != expected:
        return f"goes on otherwise: {_numbers_of(again)} | whole {expected}"
    found = _weights_of(again)
    changed = [name for name in weights if name not in found or not torch.equal(found[name], weights[name])]
    return f"goes on to other weights: {changed}" if changed else ""


def _short(outcome: Outcome) -> str:
    return " ".join("none" if each is None else f"{each:.7g}" for each in _numbers_of(outcome))


if __name__ == "__main__":
    sys.exit(main())
