"""The finding on the optimizers of two trainings, from the updates for their own dumped gradients."""

from __future__ import annotations

from ascendtune.check.align.adam_updates import AdamCheck, AdamSettings, OtherUpdate
from ascendtune.check.align.language import say
from ascendtune.check.finding import Finding, failure, warning

_NAMED = 3
"""Number of parameters that are listed."""


def other_update(check: AdamCheck) -> Finding:
    """Finding 6 if the candidate's update differs from what the reference's optimizer would do with its gradients."""
    numbers = {"step": check.steps, "left": check.left, "other": check.left_of_candidate}
    evidence = say(
        "the updates differ from those of Adam with the reference's settings ({settings}) by a relative {left:.1g} "
        "on the reference and {other:.1g} on the candidate",
        settings=_settings(check.settings),
        **numbers,
    )
    if check.other is None:
        return warning(
            "update",
            say(
                "step {step}: the reference's updates are those of Adam, the candidate's are not, and no single "
                "setting explains them",
                **numbers,
            ),
            remedy=say(
                "compare the steps between gradients and update: clipping, the dtype of parameters and of the "
                "optimizer's state, other hooks"
            ),
            evidence=(evidence,),
        )
    if check.other.setting == "lost_state":
        return failure(
            "update",
            say(
                "step {step}: the candidate's update is that of a first step, the reference's is not: the optimizer's "
                "state was lost",
                **numbers,
            ),
            remedy=say("restore the optimizer's state with the weights when the training is resumed"),
        )
    return failure(
        "update",
        say("step {step}: {what}", step=check.steps, what=_difference(check.other)),
        expected=say("the updates that the reference's optimizer computes from the candidate's gradients"),
        remedy=say(
            "give the candidate's optimizer the reference's settings; if it has them, its implementation differs"
        ),
        evidence=(evidence,),
    )


def same_updates(check: AdamCheck | None) -> tuple[str, ...]:
    """A sentence on optimizers that are the same; empty if the check has no result."""
    if check is None:
        return ()
    sentence = say(
        "the updates of both optimizers are those of Adam ({settings}), in {count} {count:step|steps}",
        settings=_settings(check.settings),
        count=check.steps,
    )
    return (sentence,)


def _settings(settings: AdamSettings) -> str:
    clip = "none" if settings.max_grad_norm is None else f"{settings.max_grad_norm:g}"
    betas = f"beta1 {settings.beta1:g}, beta2 {settings.beta2:g}"
    return f"{betas}, epsilon {settings.epsilon:g}, max_grad_norm {clip}"


def _difference(other: OtherUpdate) -> str:
    first = ", ".join(other.parameters[:_NAMED])
    fields = {"count": len(other.parameters), "first": first, "one": other.expected, "other": other.found}
    match other.setting:
        case "learning_rate":
            return say(
                "updates are {other:.6g} times the reference's ({count:,} {count:parameter|parameters}: {first})",
                **fields,
            )
        case "weight_decay":
            return say(
                "weight decay {one:.3g} and {other:.3g} ({count:,} {count:parameter|parameters}: {first})", **fields
            )
        case "decay_in_gradient":
            return say("weight decay of {other:g} is added to the gradient (Adam), not to the weight (AdamW)", **fields)
        case "corrects_bias":
            return say("the candidate's optimizer does not correct the bias of its means, unlike the reference's")
        case "has_epsilon_in_root":
            return say("the candidate's optimizer adds epsilon to the mean of squares, the reference's to its root")
        case _:
            values = ["none" if each is None else f"{each:g}" for each in (other.expected, other.found)]
            return say("{setting}: {one} and {other}", setting=other.setting, one=values[0], other=values[1])
