"""A hang in a few lines: the phase of each rank and its start, the odd rank, and the directory of the stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.units import format_duration
from ascendtune.job.hang.heartbeat import RankHeartbeat
from ascendtune.job.hang.judge import odd_ranks
from ascendtune.job.hang.stacks import RankStack, is_in_collective, may_wait_for_others, relevant_frame

_A_MOMENT_SECONDS = 2.0


@dataclass(frozen=True)
class HangReport:
    beats: tuple[RankHeartbeat, ...]
    """Heartbeats of all ranks."""
    stacks: tuple[RankStack, ...]
    """Stacks of the ranks on this machine."""
    directory: Path | None
    """Directory of the stacks; None if they could not be written."""

    @property
    def moves_on(self) -> bool:
        """Whether a rank of this machine is known to have made progress a moment ago."""
        return any(stack.silent_seconds < _A_MOMENT_SECONDS for stack in self.stacks)

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that the others wait for; empty if they do not differ, or if none waits."""
        if self.moves_on:
            return ()
        known = [stack for stack in self.stacks if stack.frames]
        # If some ranks are in a collective, a rank in its backward pass computes.
        in_collective = [stack for stack in known if is_in_collective(stack.frames)]
        waiting = in_collective or [stack for stack in known if may_wait_for_others(stack.frames)]
        apart = [stack.beat.rank for stack in known if stack not in waiting] if waiting else []
        stopped = [stack.beat.rank for stack in self.stacks if stack.is_stopped]
        return odd_ranks(self.beats, stopped, apart, [stack.beat.rank for stack in waiting])

    def odd_ranks_text(self) -> str:
        """The odd ranks, with their hosts where there are several: "rank 1 on node2"."""
        hosts = dict.fromkeys(beat.host for beat in self.beats)
        named = {
            host: [beat.rank for beat in self.beats if beat.host == host and beat.rank in self.odd] for host in hosts
        }
        if len(hosts) == 1:
            return ranks(self.odd)
        return ", ".join(f"{ranks(of_host)} on {host}" for host, of_host in named.items() if of_host)

    def lines(self) -> list[str]:
        """One line for ranks in the same place, then the odd ranks."""
        groups: dict[tuple[Any, ...], list[RankStack]] = {}
        for stack in self.stacks:
            key = (stack.beat.phase, stack.beat.step, relevant_frame(stack.frames) or stack.source, stack.is_stopped)
            groups.setdefault(key, []).append(stack)
        lines = [_line(stacks) for stacks in groups.values()]
        with_stacks = {stack.beat.rank for stack in self.stacks}
        lines += [
            f"rank {beat.rank} on {beat.host}: {beat.place}" for beat in self.beats if beat.rank not in with_stacks
        ]
        if self.moves_on:
            lines.append("the run continues: this is a snapshot")
        elif len(self.beats) > 1:
            elsewhere = ", as far as this host can see" if len(with_stacks) < len(self.beats) else ""
            lines.append(f"odd rank: {self.odd_ranks_text()}" if self.odd else f"no rank differs{elsewhere}")
        return [*lines, *([f"stacks: {self.directory}"] if self.directory else [])]

    def as_json(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory) if self.directory else None,
            "odd": list(self.odd),
            "ranks": [
                {
                    "rank": stack.beat.rank,
                    "host": stack.beat.host,
                    "pid": stack.beat.pid,
                    "phase": stack.beat.phase,
                    "step": stack.beat.step,
                    "silent_seconds": round(stack.silent_seconds, 3),
                    "is_stopped": stack.is_stopped,
                    "source": stack.source,
                    "frames": [
                        {"function": each.function, "file": each.file, "line": each.line} for each in stack.frames
                    ],
                    "file": str(stack.file),
                }
                for stack in self.stacks
            ],
        }


def ranks(numbers: Sequence[int]) -> str:
    """[1] -> 'rank 1'; [0, 2, 3, 4] -> 'ranks 0, 2-4'."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(words)}"


def _line(stacks: list[RankStack]) -> str:
    first = stacks[0]
    frame = relevant_frame(first.frames)
    least = min(stack.silent_seconds for stack in stacks)
    return (
        f"{ranks([stack.beat.rank for stack in stacks])}: {first.beat.place} for {format_duration(least)}"
        f"{'; stopped by a signal' if first.is_stopped else ''}; {f'in {frame}' if frame else first.source}"
    )
