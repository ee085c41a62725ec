"""`ascendtune doctor`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS
from ascendtune.check.doctor.language import say
from ascendtune.cli.options import AsJson, LanguageOption
from ascendtune.cli.terminal import PLAIN_COLUMNS, in_language, print_findings, print_json, width
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.suggest import require_known
from ascendtune.core.terminal_text import safe, wrap_words
from ascendtune.core.units import format_bytes

if TYPE_CHECKING:
    from ascendtune.check.doctor.check import Examination
    from ascendtune.check.doctor.fixes import FixAction, FixPlan
    from ascendtune.check.doctor.needs import Needs


def _complete_code(incomplete: str) -> list[str]:
    return [code for code in (*CHECKS, *DEEP_CHECKS) if code.startswith(incomplete)]


def doctor(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE|CODE",
            help="A recipe whose needs are checked, too; checks to run (default: all).",
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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix, --bundle: do not ask.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list the checks that are ok.")] = False,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="HOSTS", help="Check host1,host2 or the hosts of a file over ssh, and show differences."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a .tar.gz for a bug report; names, addresses, secrets masked."),
    ] = None,
    lang: LanguageOption = None,
) -> int:
    """Find the problems that prevent training on this machine, and their fixes. Only --deep needs torch.

    \b
    ascendtune doctor
    ascendtune doctor versions libraries
    ascendtune doctor recipe.yaml
    ascendtune doctor --fix
    ascendtune doctor --bundle report.tar.gz
    ascendtune doctor --nodes node1,node2

    Exit code 1: a failure was found; 4: no check could be completed.
    """
    from ascendtune.check.doctor.bundle import collect
    from ascendtune.check.doctor.check import examine, verdict
    from ascendtune.check.doctor.fixes import plan_fixes
    from ascendtune.check.doctor.language import say
    from ascendtune.check.doctor.system import System
    from ascendtune.check.finding import exit_code
    from ascendtune.core.directories import require_place_for
    from ascendtune.core.progress_bar import slow_work_bar

    if yes and not mend and bundle is None:
        raise InputError(
            "--yes needs --fix or --bundle", code="conflicting-options", remedy="add --fix, or remove --yes"
        )
    in_chosen_language = in_language(lang, as_json=as_json)
    recipe, chosen = _recipe_among(codes or [])
    _require_checks(chosen, has_nodes=nodes is not None or as_list)
    with in_chosen_language:
        if as_list:
            _print_list(chosen, as_json=as_json)
            return 0
        if nodes is not None:
            from ascendtune.cli.doctor_nodes import doctor_nodes

            _require_of_several(recipe=recipe is not None, repairs=mend or bundle is not None)
            return doctor_nodes(nodes, chosen, deep=deep, json=as_json)
        if bundle is not None:
            require_place_for(bundle)
        system = System(needs=recipe)
        selected = [*(chosen or CHECKS), *DEEP_CHECKS] if deep else chosen
        with slow_work_bar() as bar:
            examination = examine(
                system, selected, show=lambda missing: bar.show(say("waiting for {names}:", names=", ".join(missing)))
            )
        sentence = verdict(examination, system)
        fixes = plan_fixes(examination, system) if mend else None
        if as_json:
            further: dict[str, Any] = {"not_applicable": list(examination.not_applicable)}
            if fixes:
                further["fix"] = fixes.as_json(apply_fixes(fixes) if yes else [])
            print_findings(sentence, examination.findings, as_json=True, **further)
        else:
            _show(sentence, examination, everything=verbose, chosen=bool(chosen))
            if fixes:
                fix(fixes, yes=yes)
        if bundle is not None:
            _write_bundle(bundle, collect(sentence, examination, system), yes=yes)
    return exit_code(examination.findings)


def _require_of_several(*, recipe: bool, repairs: bool) -> None:
    """Raise if an argument was given that works on one machine only."""
    if recipe:
        raise InputError(
            "a recipe is checked on one machine",
            code="conflicting-options",
            remedy="run it on each machine, without --nodes",
        )
    if repairs:
        raise InputError(
            "--fix and --bundle work on one machine",
            code="conflicting-options",
            remedy="run them on that machine, without --nodes",
        )


def _show(sentence: str, examination: Examination, *, everything: bool, chosen: bool) -> None:
    """Print the findings as a table; passed checks are only counted unless `everything`, or `chosen` by their codes."""
    fine = [] if everything or chosen else [each for each in examination.findings if each.status == "ok"]
    shown = [each for each in examination.findings if each not in fine]
    print_findings(sentence, shown)
    if fine:
        print(say("{count} {count:check|checks} ok (--verbose lists them)", count=len(fine)))
    if chosen and examination.not_applicable:
        print(say("not applicable on this machine: {names}", names=", ".join(examination.not_applicable)))


def _recipe_among(words: list[str]) -> tuple[Needs | None, list[str]]:
    """The needs of the recipe among the arguments, and the other arguments.

    Raises:
        InputError: there are two recipes.
        RecipeError: it cannot be read.
    """
    files = [word for word in words if word.endswith((".yaml", ".yml", ".json")) or "/" in word]
    if not files:
        return None, words
    from ascendtune.check.doctor.needs import needs_of
    from ascendtune.recipe.recipe import Recipe

    if len(files) > 1:
        raise InputError(
            f"one recipe at a time: {', '.join(files)}", code="conflicting-options", remedy="keep one of them"
        )
    return needs_of(Recipe.load(files[0]), Path(files[0])), [word for word in words if word not in files]


def _require_checks(codes: list[str], *, has_nodes: bool) -> None:
    """Raise for an unknown check, or one that compares several machines if only one is examined."""
    known = (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS)
    require_known(codes, known, "check", "`ascendtune doctor --list` shows the checks")
    if not has_nodes and (comparing := [code for code in codes if code in NODE_CHECKS]):
        raise InputError(
            f"the check {comparing[0]} compares several machines",
            code="option-missing",
            remedy="add --nodes host1,host2",
        )


def _print_list(chosen: list[str], *, as_json: bool) -> None:
    from ascendtune.check.doctor.check import get_check

    checks = [get_check(code) for code in chosen or (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS)]
    if as_json:
        print_json([{"code": each.code, "what": each.what, "why": each.why, "fix": each.fix} for each in checks])
        return
    size, columns = max(map(len, CHECKS)) + 2, min(width(sys.stdout) or PLAIN_COLUMNS, 120)
    for each in checks:
        print(*wrap_words(say(each.what), columns, each.code.ljust(size), " " * size), sep="\n")


def _write_bundle(path: Path, files: dict[str, str], *, yes: bool) -> None:
    """List the contents of the bundle, ask on a terminal, and write it."""
    from ascendtune.check.doctor.bundle import masked_words, write_bundle

    print(say("{path} will contain:", path=path), file=sys.stderr)
    for name, text in files.items():
        print(f"  {safe(name)} ({format_bytes(len(text.encode()))})", file=sys.stderr)
    masked = ", ".join(say(kind, count=count) for kind, count in masked_words(files).items())
    print(say("masked: ") + (masked or say("nothing was found to mask")), file=sys.stderr)
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        answer = typer.prompt(say("Write it? (y)es, (n)o, (v)iew the text first"), default="y", err=True)
        if answer.lower().startswith("v"):
            for name, text in files.items():
                print(f"--- {safe(name)}", *map(safe, text.splitlines()), sep="\n", file=sys.stderr)
            answer = "y" if typer.confirm(say("Write it?"), err=True) else "n"
        if not answer.lower().startswith("y"):
            print(say("nothing was written"), file=sys.stderr)
            return
    write_bundle(path, files)
    print(say("wrote {path}: review it before you send it", path=path), file=sys.stderr)


def fix(plan: FixPlan, *, yes: bool) -> None:
    """Print the plan, ask, and execute it. A failed action is reported; the others are still done."""
    print()
    if plan.actions:
        print(say("--fix can do:"), *(f"  {each.what}" for each in plan.actions), sep="\n")
    else:
        print(say("--fix has nothing to do here: it only cleans ascendtune's own cache and creates directories"))
    if plan.shell:
        print(say("run in this shell, and add to the job script; a program cannot set these variables for you:"))
        print(*(f"  {line}" for line in plan.shell), sep="\n")
    if plan.left:
        print(say("to do by hand, because --fix does not change the system, packages or other processes:"))
        print(*(f"  {each.code}: {each.remedy}" for each in plan.left), sep="\n")
    if plan.actions and _agreed(len(plan.actions), yes):
        apply_fixes(plan)


def apply_fixes(plan: FixPlan) -> list[FixAction]:
    """Run the actions, with one line on stderr for each; returns those that succeeded."""
    done = []
    for action in plan.actions:
        try:
            action.do()
        except MachineError as error:
            print(say("not done: ") + f"{action.what}: {error.what}; {error.remedy}", file=sys.stderr)
        else:
            print(say("done: ") + action.what, file=sys.stderr)
            done.append(action)
    return done


def _agreed(count: int, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        print(say("nothing was changed: add --yes"), file=sys.stderr)
        return False
    return typer.confirm(say("Do this?") if count == 1 else say("Do these {count} things?", count=count))
