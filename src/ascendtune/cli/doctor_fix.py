"""`ascendtune doctor --fix`: show, ask, do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ascendtune.check.doctor.mend import Action, Plan


def fix(plan: Plan, *, yes: bool) -> None:
    """Print the plan, and carry it out when it is agreed to. What cannot be done is said, and the rest still done."""
    print()
    if plan.actions:
        print("can be done by --fix:", *(f"  {each.what}" for each in plan.actions), sep="\n")
    else:
        print("nothing that --fix may do by itself: it only tidies ascendtune's own cache and makes directories")
    if plan.shell:
        print("for this shell, and for the job script; a program cannot set them for you:")
        print(*(f"  {line}" for line in plan.shell), sep="\n")
    if plan.left:
        print("--fix does not touch the system, packages or other people's processes; do yourself:")
        print(*(f"  {each.code}: {each.remedy}" for each in plan.left), sep="\n")
    if plan.actions and _agreed(len(plan.actions), yes):
        carry_out(plan)


def carry_out(plan: Plan) -> list[Action]:
    """Do the actions, one line on stderr for each; returns those that were done."""
    from ascendtune.core.errors import MachineError

    done = []
    for action in plan.actions:
        try:
            action.do()
        except MachineError as error:
            print(f"not done: {action.what}: {error.what}; {error.remedy}", file=sys.stderr)
        else:
            print(f"done: {action.what}", file=sys.stderr)
            done.append(action)
    return done


def _agreed(count: int, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        print("nothing is done: add --yes", file=sys.stderr)
        return False
    return typer.confirm(f"Do {'this' if count == 1 else f'these {count} things'}?")
