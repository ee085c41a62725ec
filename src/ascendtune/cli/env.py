"""`ascendtune env export`, `mirrors`, `install-plan` and `conda`: the software for training."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ascendtune.cli.messages import confirm, notice, suggest_next, warn
from ascendtune.cli.options import AsJson, Yes, one_of, several_of
from ascendtune.cli.terminal import in_language, print_json
from ascendtune.core.errors import CheckFailed, InputError, MachineError, translated_disk_errors
from ascendtune.core.mask import without_secrets
from ascendtune.core.suggest import known_names, require_known
from ascendtune.core.terminal_text import columns_of
from ascendtune.core.units import count_of

if TYPE_CHECKING:
    from ascendtune.check.doctor.install_plan import InstallPlan
    from ascendtune.machine.environment.user_files import FileChange


def export(
    cann: Annotated[
        str | None, typer.Option(metavar="RELEASE", help="CANN release to load, e.g. 8.1.RC1 (default: the newest).")
    ] = None,
) -> None:
    """Print the shell lines that load CANN and nnal, and set training's default variables.

    \b
    eval "$(ascendtune env export)"
    eval "$(ascendtune env export --cann 8.1.RC1)"

    Settings that this shell already has are skipped, and so are variables that you have set. Prints only shell code.
    """
    from ascendtune.check.doctor.system import System
    from ascendtune.machine.environment.shell import export_lines

    if lines := export_lines(os.environ, release=cann, has_npus=System().has_npus):
        print("\n".join(lines))
    elif sys.stdout.isatty():
        notice("nothing to load: there is no CANN here, or this shell has loaded it")


def mirrors(
    action: Annotated[
        Literal["show", "use", "undo", "test"], typer.Argument(metavar="show|use|undo|test", help="What to do.")
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="tuna|aliyun|official",
            help="For use: the mirror.",
            show_default=False,
            autocompletion=one_of("tuna", "aliyun", "official"),
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="TOOLS",
            help="Only these of pip,conda,huggingface,github.",
            autocompletion=several_of(lambda: ("pip", "conda", "huggingface", "github")),
        ),
    ] = None,
    github_proxy: Annotated[
        str | None, typer.Option(metavar="URL", help="Also fetch from github.com through this proxy; pushes do not.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show, change or compare the mirrors of pip, conda, huggingface_hub and git.

    \b
    ascendtune env mirrors show
    ascendtune env mirrors use tuna
    ascendtune env mirrors use aliyun --only pip
    ascendtune env mirrors use tuna --github-proxy https://gh-proxy.com
    ascendtune env mirrors undo
    ascendtune env mirrors test

    `use` shows the changes, asks, and keeps the earlier files; `undo` restores them. `test` fetches one small page
    from each site.
    """
    from ascendtune.machine.environment import user_files
    from ascendtune.machine.environment.mirrors import MIRRORS, TOOLS, changes_for

    if action != "use" and (name or only or github_proxy):
        raise InputError(
            f"`mirrors {action}` does not take a mirror, --only or --github-proxy",
            code="conflicting-options",
            remedy="they belong to: ascendtune env mirrors use NAME",
        )
    if as_json and action not in ("show", "test"):
        raise InputError(
            f"`mirrors {action}` has no JSON",
            code="conflicting-options",
            remedy="remove --json; `ascendtune env mirrors show --json` shows the result",
        )
    match action:
        case "show":
            _show(as_json=as_json)
        case "test":
            _compare(as_json=as_json)
        case "undo":
            for path in user_files.undo():
                print(f"{'restored' if path.exists() else 'removed'} {path}")
        case "use":
            if name is None:
                raise InputError(
                    "no mirror is named", code="option-missing", remedy=f"name one of {', '.join(MIRRORS)}"
                )
            require_known([name], MIRRORS, "mirror")
            tools = tuple(known_names(only, TOOLS, "tool")) if only else TOOLS
            _use(changes_for(name, os.environ, tools=tools, github_proxy=github_proxy), name, tools, yes=yes)


def _show(*, as_json: bool) -> None:
    from ascendtune.machine.environment.mirrors import settings

    shown = [replace(each, address=without_secrets(each.address)) for each in settings(os.environ)]
    if as_json:
        print_json([asdict(each) for each in shown])
    else:
        print("\n".join(f"{each.tool:12} {each.address}  ({each.source or 'default'})" for each in shown))


def _use(changes: list[FileChange], name: str, tools: tuple[str, ...], *, yes: bool) -> None:
    import difflib

    from ascendtune.machine.environment import user_files

    if not changes:
        print("nothing to change")
        _warn_of_bypasses(name, tools)
        return
    for each in changes:
        before, after = ((text or "").splitlines() for text in (each.before, each.after))
        lines = difflib.unified_diff(before, after, str(each.path), "new", lineterm="", n=1)
        print(without_secrets("\n".join(lines)))
    if confirm("Write these files?", yes=yes):
        for each in user_files.apply(changes):
            print(f"wrote {each.path}")
        _warn_of_bypasses(name, tools)
        notice("`ascendtune env mirrors undo` puts the earlier files back")
        suggest_next('eval "$(ascendtune env export)"')


def _warn_of_bypasses(name: str, tools: tuple[str, ...]) -> None:
    from ascendtune.machine.environment.mirrors import bypasses

    for what, remedy in bypasses(name, os.environ, tools):
        warn(f"{what}\n     do: {remedy}")


def _compare(*, as_json: bool) -> None:
    from ascendtune.core.http import Fault
    from ascendtune.machine.environment.mirrors import PROBES

    results = []
    for name, url in PROBES.items():
        seconds, fault = None, None
        try:
            seconds = _seconds_for(url)
        except Fault as error:
            fault = error.what
        results.append({"name": name, "url": url, "seconds": seconds, "error": fault})
        if not as_json:
            print(f"{name:24} " + (f"{seconds:.2f} s" if seconds is not None else f"no answer: {fault}"), flush=True)
    if as_json:
        print_json(results)
    if all(each["error"] for each in results):
        raise MachineError(
            "no mirror answers",
            code="hub-unreachable",
            remedy="set https_proxy, or fetch on a machine with a network and copy",
        )


def _seconds_for(url: str) -> float:
    """Seconds to fetch the first page of `url`, at most 1 MiB.

    Raises:
        Fault: no answer, or an error status.
    """
    from ascendtune.core.http import open_url, translated

    began = time.monotonic()
    with open_url(url, {}) as answer:
        try:
            answer.read(1 << 20)
        except OSError as error:
            raise translated(error) from error
    return time.monotonic() - began


def install_plan(
    apply: Annotated[bool, typer.Option("--apply", help="Show the plan, ask, and let pip install it.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Print the versions of torch, torch_npu, numpy and others for this machine's CANN, driver and Python, with
    reasons.

    \b
    ascendtune env install-plan
    ascendtune env install-plan --apply

    Exit code 1: there is something to install; 3: no published torch_npu matches.
    """
    from ascendtune.check.doctor.install_plan import make_install_plan
    from ascendtune.check.doctor.system import System

    system = System()
    with in_language(None, as_json=as_json):
        plan = make_install_plan(system)
        if as_json:
            print_json(plan.as_json(system.program))
        else:
            print("\n".join(_plan_lines(plan, system.program)))
    if not plan.is_possible:
        return 3
    if not apply or not plan.packages:
        return 1 if plan.packages or plan.before else 0
    if plan.before:
        raise InputError(
            f"not yet: install {plan.before[0]}",
            code="cann-missing",
            remedy="then run this again; the packages may differ then",
        )
    if not confirm("Install these packages?", yes=yes):
        return 1
    _install(plan, system.program)
    if left := make_install_plan(System()).packages:
        raise CheckFailed(
            "pip reported no error, but these packages still differ from the plan: "
            f"{', '.join(each.name for each in left)}",
            code="package-missing",
            remedy="`pip check` may name the package that demands another version",
        )
    print("installed as planned", file=sys.stderr)
    return 0


def _plan_lines(plan: InstallPlan, program: str) -> list[str]:
    from ascendtune.check.doctor.language import say

    facts = say(
        "Python {python}, CANN {cann}, driver {driver}",
        python=plan.python,
        cann=plan.cann or say("none"),
        driver=plan.driver or say("none"),
    )
    if not plan.packages and not plan.before:
        return [f"{facts}: {say('nothing to install')}"]
    lines = [facts]
    lines += [say("first, by hand: {what}", what=each) for each in plan.before]
    for each in plan.packages:
        now = say("installed {version}", version=each.installed) if each.installed else say("missing")
        lines.append(f"  {each.requirement:32} {now}{' ' * (20 - columns_of(now))} {each.why}")
    return lines + ([shlex.join(plan.command(program))] if plan.packages else [])


def _install(plan: InstallPlan, program: str) -> None:
    from ascendtune.core.directories import state_directory
    from ascendtune.core.files import write_atomically
    from ascendtune.core.process import Child, run

    frozen = run([program, "-P", "-m", "pip", "freeze"], timeout_seconds=120)
    if frozen.exit_code != 0:
        raise MachineError(
            "this Python has no pip",
            code="program-missing",
            remedy=f"{shlex.quote(program)} -m ensurepip, or install the packages with the tool that made it",
        )
    before = state_directory() / "packages_before_install.txt"
    with translated_disk_errors(before, "writing the list of packages"):
        before.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(before, frozen.output)
    print(f"to go back: {shlex.quote(program)} -m pip install -r {shlex.quote(str(before))}", file=sys.stderr)
    # pip's own progress goes to stderr, because stdout may be JSON.
    child = Child(plan.command(program), os.environ, stdout=2)
    if code := child.wait():
        raise MachineError(
            f"pip ended with code {code}",
            code="pip-failed",
            remedy="look at its last lines above; `ascendtune env mirrors test` compares mirrors",
        )


def conda(
    action: Annotated[Literal["rename", "clone"], typer.Argument(metavar="rename|clone", help="What to do.")],
    old: Annotated[str, typer.Argument(metavar="OLD", help="Name or path of the environment.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name or path of the copy.")],
    yes: Yes = False,
) -> None:
    """Copy a conda environment and compare both package lists; `rename` then removes the old one.

    \b
    ascendtune env conda clone rlhf rlhf-try
    ascendtune env conda rename old_env_name new_env_name
    ascendtune env conda clone openRLHF /data/miniconda3/envs/rlhf

    The old environment is removed only after the copy has the same packages, versions and builds.
    """
    from ascendtune.machine.environment.conda import Conda

    program = Conda.find(os.environ)
    removes = action == "rename"
    for command in program.commands(old, new, then_remove=removes):
        print(shlex.join(command))
    prefix = program.prefix_of(old)
    if not confirm("Run this?", yes=yes):
        return
    count = program.clone(old, new)
    print(f"{new} has the {count_of(count, 'package')} of {old}, with the same versions and builds")
    if removes:
        program.remove(prefix)
        print(f"removed {prefix}")
    suggest_next(f"conda activate {shlex.quote(new)}")
