"""The output of `comm bench`: nccl-tests' table, the heat map of links or the parts of a step; then the findings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ascendtune.check.comm import step, sweep
from ascendtune.check.comm.judge import unfinished_finding
from ascendtune.check.comm.picture import draw_links, draw_rows, heat_map
from ascendtune.check.comm.start import RankGroup, RankResults
from ascendtune.check.comm.step import StepTimes
from ascendtune.check.comm.sweep import BANDWIDTH, GIGA, BandwidthRow, against_figure, against_peak, expected_of
from ascendtune.check.finding import Finding, exit_code, unknown
from ascendtune.cli.comm_ranks import run, scratch_directory
from ascendtune.cli.messages import warn
from ascendtune.cli.terminal import paint, print_findings, table, width
from ascendtune.core.progress_bar import ProgressBar
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of, format_bytes
from ascendtune.machine.vendor.find import vendor_of
from ascendtune.machine.visible import visible_devices

_ROOM_FOR_ALL = 80


@dataclass(frozen=True)
class Report:
    """The methods print the report, save the plot if requested, and return the exit code."""

    ran: RankResults
    expect: str | None
    png: Path | None
    is_json: bool
    timeout_seconds: float

    def rows(self, work: dict[str, Any]) -> int:
        """One collective over sizes; `work` is the task of the ranks."""
        what = f"{work['collective']} of {work['dtype']}"
        rows = sweep.bandwidth_rows(self.ran, work["collective"])
        findings, sentence, average, pictures = self._unfinished(), f"{what}: no size was measured", None, []
        if not rows and self.ran.is_whole:
            why = "no size fits into half of the free memory"
            findings.append(unknown(BANDWIDTH, why, remedy="set a smaller --min-bytes, or free memory"))
        if rows:
            best, average = sweep.best(rows), sweep.average_busbw(rows)
            sentence = (
                f"{what}, {self._ranks}: at best {best.busbw_bytes_per_second / GIGA:.3g} GB/s busbw, at "
                f"{format_bytes(best.bytes)}; {average / GIGA:.3g} GB/s on average over sizes"
            )
            links = self.ran.ranks.count - 1
            findings += [sweep.values(rows), *self._compared_with_expected(best.busbw_bytes_per_second, links)]
            pictures = [_table(rows, work["dtype"])]
        self._print(
            pictures,
            sentence,
            findings,
            collective=work["collective"],
            dtype=work["dtype"],
            average_busbw_bytes_per_second=average,
            rows=[asdict(row) for row in rows],
        )
        if rows:
            self._warn_of_limited_sizes(rows[-1], work["max_bytes"])
            if self.png:
                draw_rows(self.png, f"{what}, {self._ranks}", rows)
        return exit_code(findings)

    def links(self) -> int:
        """Messages between all pairs of ranks."""
        links = sweep.links_of(self.ran)
        findings, sentence, pictures = self._unfinished(), "no link was measured", []
        if links:
            slowest = min(link.bytes_per_second for link in links)
            sentence = f"{count_of(len(links), 'link')}, messages of {format_bytes(links[0].bytes)}, {self._ranks}"
            findings += [sweep.slow_link(links, self.ran.ranks), *self._compared_with_expected(slowest, 1)]
            pictures = [heat_map(links, self.ran.ranks.count, width(sys.stdout), paint)]
        self._print(pictures, sentence, findings, links=[link.as_json() for link in links])
        if links and self.png:
            draw_links(self.png, sentence, links, self.ran.ranks.count)
        return exit_code(findings)

    @property
    def _ranks(self) -> str:
        return f"{count_of(self.ran.ranks.count, 'rank')} over {self.ran.backend}"

    def _unfinished(self) -> list[Finding]:
        return [] if self.ran.is_whole else [unfinished_finding(self.ran, self.timeout_seconds)]

    def _compared_with_expected(self, bytes_per_second: float, links: int) -> list[Finding]:
        """The finding for `--expect`; the published peak counts `links` links, which a rank uses at the same time."""
        if self.expect is None:
            return []
        expected = expected_of(self.expect)
        if expected is not None:
            return [against_figure(bytes_per_second, expected)]
        ranks = self.ran.ranks
        peak = vendor_of(ranks.kind).link_peak(ranks.ids or visible_devices().ids[: ranks.count])
        if peak.bytes_per_second is not None:
            peak = replace(peak, bytes_per_second=links * peak.bytes_per_second)
        return [against_peak(bytes_per_second, peak)]

    def _print(self, pictures: list[str], sentence: str, findings: Sequence[Finding], **further: Any) -> None:
        ranks = self.ran.ranks
        about = {"ranks": ranks.count, "kind": ranks.kind, "backend": self.ran.backend}
        _print(pictures, sentence, findings, as_json=self.is_json, **about, **further)

    def _warn_of_limited_sizes(self, last: BandwidthRow, last_bytes: int) -> None:
        if self.ran.is_whole and self.ran.notes[0].last("most_bytes") < last_bytes:
            largest = f"the largest size was {format_bytes(last.bytes)}"
            warn(f"{largest}, limited by half of the free memory")


def _table(rows: Sequence[BandwidthRow], dtype: str) -> str:
    cells = {
        "size (B)": [str(row.bytes) for row in rows],
        "count": [str(row.count) for row in rows],
        "type": [dtype for _ in rows],
        "time (us)": [f"{row.seconds * 1e6:.1f}" for row in rows],
        "algbw GB/s": [f"{row.algbw_bytes_per_second / GIGA:.2f}" for row in rows],
        "busbw GB/s": [f"{row.busbw_bytes_per_second / GIGA:.2f}" for row in rows],
        "#wrong": ["N/A" if row.wrong is None else str(row.wrong) for row in rows],
    }
    if (width(sys.stdout) or _ROOM_FOR_ALL) < _ROOM_FOR_ALL:
        # The verdict names the type; the count follows from the size.
        del cells["type"], cells["count"]
    return table(list(cells), list(zip(*cells.values(), strict=True)), right=[name for name in cells if name != "type"])


def _print(
    pictures: Sequence[str], sentence: str, findings: Sequence[Finding], *, as_json: bool, **further: Any
) -> None:
    for picture in () if as_json else pictures:
        print(picture, end="\n\n")
    print_findings(sentence, findings, as_json=as_json, **further)


_FAR = 1000
"""A step that is never reached, so that nothing is evaluated, saved or exported."""


def measure_step(source: Path, ranks: RankGroup, directory: Path | None, timeout: float, *, is_json: bool) -> int:
    """Train a few steps of a recipe or run; print the report and return the exit code.

    Args:
        timeout: seconds that a rank waits for another.

    Raises:
        RecipeError, DataError: the recipe, the model or the data are invalid.
        MachineError: the directory is not writable.
    """
    with TemporaryDirectory(prefix="ascendtune-step-", dir=scratch_directory(ranks)) as scratch:
        prepared = _prepared(RunDir.open(source).recipe if source.is_dir() else source, Path(scratch) / "run")
        ran = run({"run": str(prepared.path), "timeout_seconds": timeout}, ranks, directory, steps=step.STEPS)
    steps = step.steps_of(ran)
    findings = [] if ran.is_whole else [unfinished_finding(ran, timeout)]
    sentence = "no step was measured"
    if steps:
        sentence = step.sentence(steps, f"{count_of(ranks.count, 'rank')} over {ran.backend}")
        findings.append(step.waiting(steps, ranks))
    pictures, times = [_step_table(steps)] if steps else [], [each.as_json() for each in steps]
    _print(pictures, sentence, findings, as_json=is_json, ranks=ranks.count, kind=ranks.kind, steps=times)
    return exit_code(findings)


def _prepared(recipe: Path, run_directory: Path) -> RunDir:
    from ascendtune.recipe.recipe import Recipe
    from ascendtune.recipe.sections import UNTRACKED
    from ascendtune.train.prepare import prepare_run

    overrides = [
        f"run_dir={run_directory}",
        f"optim.max_steps={_FAR}",
        f"checkpoint.every_steps={_FAR + 1}",
        "checkpoint.resume=never",
        *UNTRACKED,
    ]
    data = Recipe.load(recipe, overrides).data
    if data.eval or data.eval_fraction or data.eval_rows:
        overrides.append(f"eval.every_steps={_FAR}")
    loaded, origins = Recipe.load_with_origins(recipe, overrides)
    with ProgressBar(sys.stderr) as progress:
        ready = prepare_run(loaded, origins, progress=progress.show)
    for message in (*loaded.notes, *ready.prepared.warnings):
        warn(message)
    assert ready.run is not None, "prepare_run was not called with only_data"
    return ready.run


def _step_table(steps: Sequence[StepTimes]) -> str:
    header = ["rank", "step, ms", "compute", "communication", "waiting"]
    rows = [
        [str(each.rank), f"{each.apart_seconds * 1e3:.1f}", *(f"{each.share(part):.0%}" for part in header[2:])]
        for each in steps
    ]
    return table(header, rows, right=header)
