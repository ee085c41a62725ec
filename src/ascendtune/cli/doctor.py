"""`ascendtune doctor`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ascendtune.check.doctor.examine import Examination
    from ascendtune.check.doctor.outside import Outside


def doctor(
    codes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CODE]...", help="Checks to make (default: all).", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_list: Annotated[bool, typer.Option("--list", help="Print what is checked, and check nothing.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also let torch compute on every visible device.")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Also write a .tar.gz for a bug report; user, host, addresses, secrets masked."),
    ] = None,
) -> int:
    """Say what keeps this machine from training, and what to do. Needs no torch, but for --deep.

    \b
    ascendtune doctor
    ascendtune doctor versions libraries
    ascendtune doctor --bundle report.tar.gz

    Exit code 1: a failure was found; 4: nothing could be told.
    """
    import sys

    from ascendtune.check.doctor import CHECKS, DEEP_CHECKS
    from ascendtune.check.doctor.examine import examine, verdict
    from ascendtune.check.doctor.outside import Outside
    from ascendtune.check.finding import exit_code
    from ascendtune.check.table import as_json as findings_as_json
    from ascendtune.check.table import as_text
    from ascendtune.cli.terminal import colour, width

    chosen = _known(codes or [])
    if as_list:
        print(_list(as_json))
        return 0
    outside = Outside()
    if deep:
        chosen = [*(chosen or CHECKS), *DEEP_CHECKS]
    examination = examine(outside, chosen)
    sentence = verdict(examination, outside)
    if as_json:
        print(findings_as_json(sentence, examination.findings, not_applicable=list(examination.not_applicable)))
    else:
        paint = lambda text, name: colour(text, name, sys.stdout)  # noqa: E731
        print(as_text(sentence, examination.findings, columns=width(sys.stdout), paint=paint))
        if codes and examination.not_applicable:
            print(f"no subject on this machine: {', '.join(examination.not_applicable)}")
    if bundle is not None:
        _write_bundle(bundle, sentence, examination, outside)
    return exit_code(examination.findings)


def _known(codes: list[str]) -> list[str]:
    """The codes, or InputError with the nearest one that exists."""
    import difflib

    from ascendtune.check.doctor import CHECKS, DEEP_CHECKS
    from ascendtune.core.errors import InputError

    known = [*CHECKS, *DEEP_CHECKS]
    for code in codes:
        if code not in known:
            near = difflib.get_close_matches(code, known, n=1)
            remedy = "`ascendtune doctor --list` shows all" + (f"; did you mean {near[0]}?" if near else "")
            raise InputError(f"there is no check {code}", remedy=remedy)
    return codes


def _list(as_json: bool) -> str:
    import json
    import sys
    import textwrap

    from ascendtune.check.doctor import CHECKS, DEEP_CHECKS
    from ascendtune.check.doctor.examine import get_check
    from ascendtune.cli.terminal import width

    checks = [get_check(code) for code in (*CHECKS, *DEEP_CHECKS)]
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
    print(f"wrote {path}: look through it before you send it", file=sys.stderr)
