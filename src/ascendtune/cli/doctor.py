"""`ascendtune doctor`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.options import AsJson

if TYPE_CHECKING:
    from ascendtune.check.doctor.check import Examination
    from ascendtune.check.doctor.mend import Action, Plan
    from ascendtune.check.doctor.outside import Outside


def _complete_code(incomplete: str) -> list[str]:
    from ascendtune.check.doctor import CHECKS, DEEP_CHECKS

    return [code for code in (*CHECKS, *DEEP_CHECKS) if code.startswith(incomplete)]


def doctor(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE]...",
            help="Checks to run (default: all).",
            show_default=False,
            autocompletion=_complete_code,
        ),
    ] = None,
    as_json: AsJson = False,
    as_list: Annotated[bool, typer.Option("--list", help="List the checks without running them.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also compute with torch on every visible device.")] = False,
    mend: Annotated[
        bool, typer.Option("--fix", help="Show safe repairs, ask, and make them; the system is not changed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="List the checks that are ok, too.")] = False,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="HOSTS", help="Check host1,host2 or the hosts of a file over ssh, and show differences."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Also write a .tar.gz for a bug report; user, host, addresses, secrets masked."),
    ] = None,
) -> int:
    """Find what keeps this machine from training, and how to fix it. Only --deep needs torch.

    \b
    ascendtune doctor
    ascendtune doctor versions libraries
    ascendtune doctor --fix
    ascendtune doctor --bundle report.tar.gz
    ascendtune doctor --nodes node1,node2

    Exit code 1: a failure was found; 4: no check could give an answer.
    """
    import sys

    from ascendtune.check.doctor import CHECKS, DEEP_CHECKS
    from ascendtune.check.doctor.check import examine, verdict
    from ascendtune.check.doctor.mend import plan
    from ascendtune.check.doctor.outside import Outside
    from ascendtune.check.finding import exit_code
    from ascendtune.check.table import as_json as findings_as_json
    from ascendtune.check.table import as_text
    from ascendtune.cli.terminal import paint, width
    from ascendtune.core.errors import InputError
    from ascendtune.core.files import require_place_for
    from ascendtune.core.units import count_of

    if yes and not mend:
        raise InputError("--yes needs --fix", code="conflicting-options", remedy="add --fix, or remove --yes")
    chosen = _known(codes or [], has_nodes=nodes is not None)
    if as_list:
        print(_list(as_json))
        return 0
    if nodes is not None:
        from ascendtune.cli.doctor_nodes import doctor_nodes

        if mend or bundle is not None:
            raise InputError(
                "--fix and --bundle work on one machine",
                code="conflicting-options",
                remedy="run them on that machine, without --nodes",
            )
        return doctor_nodes(nodes, chosen, deep=deep, json=as_json)
    if bundle is not None:
        require_place_for(bundle)
    outside = Outside()
    if deep:
        chosen = [*(chosen or CHECKS), *DEEP_CHECKS]
    examination = examine(outside, chosen)
    sentence = verdict(examination, outside)
    todo = plan(examination, outside) if mend else None
    if as_json:
        further = {"fix": todo.as_json(carry_out(todo) if yes else [])} if todo else {}
        not_applicable = list(examination.not_applicable)
        print(findings_as_json(sentence, examination.findings, not_applicable=not_applicable, **further))
    else:
        fine = [] if verbose or codes else [each for each in examination.findings if each.status == "ok"]
        shown = [each for each in examination.findings if each not in fine]
        print(as_text(sentence, shown, columns=width(sys.stdout), paint=paint))
        if fine:
            print(f"{count_of(len(fine), 'finding')} ok (--verbose lists them)")
        if codes and examination.not_applicable:
            print(f"not applicable on this machine: {', '.join(examination.not_applicable)}")
        if todo:
            fix(todo, yes=yes)
    if bundle is not None:
        _write_bundle(bundle, sentence, examination, outside)
    return exit_code(examination.findings)


def _known(codes: list[str], *, has_nodes: bool) -> list[str]:
    """The codes, or InputError with the nearest one that exists."""
    from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS
    from ascendtune.core.errors import InputError
    from ascendtune.core.suggest import closest

    known = [*CHECKS, *DEEP_CHECKS, *NODE_CHECKS]
    for code in codes:
        if code not in known:
            near = closest(code, known)
            remedy = "`ascendtune doctor --list` shows all" + (f"; did you mean {near}?" if near else "")
            raise InputError(f"unknown check {code}", code="unknown-name", remedy=remedy)
        if code in NODE_CHECKS and not has_nodes:
            raise InputError(
                f"the check {code} compares several machines",
                code="option-missing",
                remedy="add --nodes host1,host2",
            )
    return codes


def _list(as_json: bool) -> str:
    import json
    import sys
    import textwrap

    from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS
    from ascendtune.check.doctor.check import get_check
    from ascendtune.cli.terminal import width

    checks = [get_check(code) for code in (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS)]
    if as_json:
        shown = [{"code": each.code, "what": each.what, "why": each.why, "fix": each.fix} for each in checks]
        return json.dumps(shown, indent=2, ensure_ascii=False)
    size, columns = max(map(len, CHECKS)) + 2, min(width(sys.stdout) or 100, 120)
    return "\n".join(
        textwrap.fill(each.what, columns, initial_indent=each.code.ljust(size), subsequent_indent=" " * size)
        for each in checks
    )


def _write_bundle(path: Path, sentence: str, examination: Examination, outside: Outside) -> None:
    import sys

    from ascendtune.check.doctor.bundle import write_bundle

    write_bundle(path, sentence, examination, outside)
    print(f"wrote {path}: review it before you send it", file=sys.stderr)


def fix(plan: Plan, *, yes: bool) -> None:
    """Print the plan, ask, and carry it out. An action that fails is reported; the others are still done."""
    print()
    if plan.actions:
        print("--fix can do:", *(f"  {each.what}" for each in plan.actions), sep="\n")
    else:
        print("--fix can do nothing here: it only cleans ascendtune's own cache and creates directories")
    if plan.shell:
        print("run in this shell, and add to the job script; a program cannot set these variables for you:")
        print(*(f"  {line}" for line in plan.shell), sep="\n")
    if plan.left:
        print("to do by hand, because --fix does not change the system, packages or other processes:")
        print(*(f"  {each.code}: {each.remedy}" for each in plan.left), sep="\n")
    if plan.actions and _agreed(len(plan.actions), yes):
        carry_out(plan)


def carry_out(plan: Plan) -> list[Action]:
    """Run the actions, with one line on stderr for each; returns those that succeeded."""
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
        print("nothing was changed: add --yes", file=sys.stderr)
        return False
    return typer.confirm(f"Do {'this' if count == 1 else f'these {count} things'}?")
