"""A git checkout for `ascendtune code`: merges of upstream or of a pull request, on their own branches.

Nothing is pushed, and a tree with uncommitted changes is never modified. A merge with conflicts stays as git leaves it;
the same command continues it once the conflicts are resolved.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ascendtune.core.errors import CheckFailed, InputError, MachineError
from ascendtune.core.files import open_regular
from ascendtune.core.process import Finished
from ascendtune.core.units import count_of
from ascendtune.machine.environment.git import (
    GIVE_UP_SLOW,
    NETWORK_SECONDS,
    QUICK_SECONDS,
    checked_url,
    last_line,
    start_git,
)

_REF = re.compile(r"(?!-)(?!.*\.\.)(?!.*@\{)[\w./+@-]{1,200}")
_PULL_REFS = ("refs/pull/{}/head", "refs/merge-requests/{}/head")
"""GitHub and Gitee; GitLab."""
_REMOTES = "refs/remotes"
"""Written in full: a tag named origin/main would take precedence over the short name."""
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
"""If core.hooksPath is in the tree, a merge brings in hooks of the request, and git would run them."""
_UPSTREAMS = ("upstream", "online")
_LOCKED = "if no git is running there (one was killed), remove that file, and run this again"
_MOST_BYTES, _MOST_HUNKS = 4 << 20, 20
_KINDS = {
    "UU": "both changed it", "AA": "both added it", "DD": "both deleted it", "DU": "deleted here, changed there",
    "UD": "changed here, deleted there", "AU": "added here", "UA": "added there",
}  # fmt: skip


@dataclass(frozen=True)
class Hunk:
    """A part of a file in conflict; `line` counts from 1."""

    line: int
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


@dataclass(frozen=True)
class Conflict:
    path: str
    kind: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class MergeResult:
    """`previous_checkout`: branch or commit before. `commits`: number of merged commits; 0 if all were merged."""

    branch: str
    previous_checkout: str
    commits: int


class MergeConflicts(CheckFailed):
    """The merge stopped; `conflicts` must be resolved."""

    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True)
class GitCheckout:
    """A checkout. `environment`: the variables that git is started with."""

    directory: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def find(cls, directory: Path) -> GitCheckout:
        """The checkout that contains `directory`.

        Raises:
            InputError: no checkout contains it.
        """
        done = start_git(["git", "-C", str(directory), "rev-parse", "--show-toplevel"], QUICK_SECONDS)
        if done.exit_code != 0:
            raise InputError(
                f"not a git checkout: {last_line(done)}",
                code="not-a-git-checkout",
                remedy="change to one, or give --repo",
                where=directory,
            )
        return cls(Path(done.output.rstrip("\n")))

    def sync_upstream(self, upstream: str | None = None, branch: str | None = None) -> MergeResult:
        """Merge a branch of the upstream remote into the work branch `sync/upstream-BRANCH`, made from origin's.

        Args:
            upstream: a remote, or a URL, which becomes the remote `upstream` (default: upstream or online).
            branch: default: origin's default branch.

        Raises:
            InputError: no such remote or branch, or another merge is in progress.
            MachineError: git failed.
            MergeConflicts: they must be resolved; the same call continues.
        """
        before = self._remotes()
        remote = self._upstream(upstream)
        try:
            branch = branch or self._default_branch()
            self._require_ref(branch)
            work = f"sync/upstream-{branch}"
            if self._is_merging(work):
                return self._continue(work)
            self._require_clean()
            for each in ("origin", remote):
                self._fetch(each)
        except BaseException:
            if remote not in before:
                # The address may be wrong: the next call would refuse the right one.
                self._run(["remote", "remove", remote])
            raise
        return self._merge(
            work, f"{_REMOTES}/origin/{branch}", f"{_REMOTES}/{remote}/{branch}", f"Merge {remote}/{branch}"
        )

    def merge_pull_request(self, number: int, remote: str | None = None, base: str | None = None) -> MergeResult:
        """Merge the head of a pull request into the work branch `merge/pr-NUMBER`, made from `base`.

        Args:
            remote: default: upstream or online if one exists, else origin.
            base: default: the branch or commit that is checked out.

        Raises:
            InputError, MachineError, MergeConflicts: as `sync_upstream`.
        """
        remotes = self._remotes()
        remote = remote or next((each for each in _UPSTREAMS if each in remotes), "origin")
        work = f"merge/pr-{number}"
        if self._is_merging(work):
            return self._continue(work)
        if remote not in remotes:
            raise _unknown("remote", remote, remotes)
        self._require_clean()
        for pattern in _PULL_REFS:
            ref = f"refs/ascendtune/pr-{number}"
            fetched = self._run(
                [*GIVE_UP_SLOW, "fetch", "--", remote, f"+{pattern.format(number)}:{ref}"], NETWORK_SECONDS
            )
            if fetched.exit_code == 0:
                if self._place() == work:
                    base = work
                return self._merge(work, base or "HEAD", ref, f"Merge PR #{number}")
        reached = self._run([*GIVE_UP_SLOW, "ls-remote", "--quiet", "--", remote, "HEAD"], NETWORK_SECONDS)
        if reached.exit_code != 0:
            raise self._unreachable(remote, reached)
        raise MachineError(
            f"{remote} has no pull request {number}: {last_line(fetched)}",
            code="hub-revision-missing",
            remedy="check the number and --remote",
        )

    def abort(self) -> str:
        """Abort a merge that this program began, and return to the previous branch or commit, which is returned.

        Raises:
            InputError: no such merge is in progress.
        """
        place = self._place()
        if not place.startswith(("sync/upstream-", "merge/pr-")) or not self._is_merging(place):
            raise InputError(
                "no merge of `ascendtune code` is in progress", code="nothing-to-merge", remedy="look at git status"
            )
        self.git("merge", "--abort")
        if self._run(["switch", "-"]).exit_code != 0:
            # HEAD was detached before.
            self.git("switch", "--detach", "@{-1}")
        return self._place()

    def conflicts(self) -> tuple[Conflict, ...]:
        """The files in conflict, with their hunks."""
        found = []
        for entry in self.git("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=no").split("\0"):
            if entry[:2] in _KINDS:
                found.append(Conflict(entry[3:], _KINDS[entry[:2]], self._hunks(entry[3:])))
        return tuple(found)

    def git(self, *words: str) -> str:
        """The output of a git command.

        Raises:
            MachineError: it failed.
        """
        done = self._run(words)
        if done.exit_code != 0:
            raise MachineError(
                f"git {words[0]} failed: {last_line(done)}",
                code="git-failed",
                remedy=_LOCKED if "index.lock" in done.error else "run it by hand; nothing else was changed",
                where=self.directory,
            )
        return done.output

    def _run(self, words: Sequence[str], seconds: float = QUICK_SECONDS) -> Finished:
        return start_git(["git", "-C", str(self.directory), *_NO_HOOKS, *words], seconds, self.environment)

    def _merge(self, work: str, base: str, head: str, message: str) -> MergeResult:
        for each in (base, head):
            if self._run(["rev-parse", "--verify", "--quiet", f"{each}^{{commit}}"]).exit_code != 0:
                raise _unknown(
                    "branch",
                    each.removeprefix(f"{_REMOTES}/"),
                    self.git("branch", "-r", "--format=%(refname:short)").split(),
                )
        previous_checkout = self._place()
        if previous_checkout != work:
            self._switch(work, base)
        before = self.git("rev-parse", "HEAD").strip()
        count = int(self.git("rev-list", "--count", f"{before}..{head}"))
        merged = self._run(["merge", "--no-ff", "--no-edit", "-m", message, head], NETWORK_SECONDS)
        if merged.exit_code != 0:
            if self.conflicts():
                raise self._stopped(work)
            raise MachineError(
                f"git merge failed: {last_line(merged)}",
                code="git-failed",
                remedy=_LOCKED
                if "index.lock" in merged.error
                else f"you are on {work}; `git switch {shlex.quote(previous_checkout)}` goes back",
                where=self.directory,
            )
        return MergeResult(work, previous_checkout, count)

    def _switch(self, work: str, base: str) -> None:
        """Switch to the work branch; one of an earlier time that adds nothing to `base` is reset to `base`."""
        exists = self._run(["rev-parse", "--verify", "--quiet", f"refs/heads/{work}"]).exit_code == 0
        if not exists:
            self.git("switch", "--quiet", "--no-track", "-c", work, base)
        elif self._run(["merge-base", "--is-ancestor", f"refs/heads/{work}", base]).exit_code == 0:
            self.git("switch", "--quiet", "--no-track", "-C", work, base)
        else:
            self.git("switch", "--quiet", work)

    def _continue(self, work: str) -> MergeResult:
        if self.conflicts():
            raise self._stopped(work)
        marked = [
            path for path in self.git("diff", "--name-only", "-z", "HEAD").split("\0") if path and self._hunks(path)
        ]
        if marked:
            raise InputError(
                f"conflict markers are left in {', '.join(marked[:5])}",
                code="merge-markers-left",
                remedy="edit these files, then git add them, and run this again",
            )
        count = int(self.git("rev-list", "--count", "HEAD..MERGE_HEAD"))
        self.git("commit", "--no-edit")
        return MergeResult(work, work, count)

    def _stopped(self, work: str) -> MergeConflicts:
        conflicts = self.conflicts()
        error = MergeConflicts(
            f"{count_of(len(conflicts), 'file is', 'files are')} in conflict: "
            + ", ".join(each.path for each in conflicts[:5]),
            code="merge-conflicts",
            remedy="edit them, git add them, and run the same command again; or add --abort",
            where=f"{self.directory}, branch {work}",
        )
        error.conflicts = conflicts
        return error

    def _hunks(self, path: str) -> tuple[Hunk, ...]:
        try:
            with open_regular(self.directory / path, follow_links=False) as file:
                lines = file.read(_MOST_BYTES).decode(errors="replace").splitlines()
        except (OSError, MachineError):
            return ()
        found, begin, base, middle = list[Hunk](), None, None, None
        for number, line in enumerate(lines, 1):
            if line.startswith("<<<<<<< "):
                begin, base, middle = number, None, None
            elif line.startswith("||||||| ") and begin and not middle:
                base = number
            elif line == "=======" and begin:
                middle = number
            elif line.startswith(">>>>>>> ") and begin and middle:
                ours = lines[begin : (base or middle) - 1]
                found.append(Hunk(begin, tuple(ours), tuple(lines[middle : number - 1])))
                begin = None
        return tuple(found[:_MOST_HUNKS])

    def _is_merging(self, work: str) -> bool:
        """Whether a merge on this work branch is in progress.

        Raises:
            InputError: another merge is in progress.
        """
        if self._run(["rev-parse", "--verify", "--quiet", "MERGE_HEAD"]).exit_code != 0:
            return False
        if self._place() != work:
            raise InputError(
                f"another merge is in progress on {self._place()}",
                code="tree-not-clean",
                remedy="complete it with git commit, or abort it with git merge --abort",
                where=self.directory,
            )
        return True

    def _require_clean(self) -> None:
        changed = self.git("status", "--porcelain=v1", "--untracked-files=no").splitlines()
        if changed:
            raise InputError(
                f"{count_of(len(changed), 'file has', 'files have')} changes that are not committed: "
                + ", ".join(line[3:] for line in changed[:5]),
                code="tree-not-clean",
                remedy="git commit or git stash them; nothing was changed",
                where=self.directory,
            )

    def _place(self) -> str:
        """The branch that is checked out; the commit where HEAD is detached."""
        named = self._run(["symbolic-ref", "--quiet", "HEAD"])
        branch = named.output.strip().removeprefix("refs/heads/")
        return branch if named.exit_code == 0 else self.git("rev-parse", "--short", "HEAD").strip()

    def _remotes(self) -> list[str]:
        return self.git("remote").split()

    def _upstream(self, given: str | None) -> str:
        remotes = self._remotes()
        if given is None:
            found = next((each for each in _UPSTREAMS if each in remotes), None)
            if found is None:
                raise InputError(
                    "there is no remote called upstream",
                    code="option-missing",
                    remedy="give --upstream URL; it is added under that name",
                    where=self.directory,
                )
            return found
        if given in remotes:
            return given
        if not re.search(r"[:/]", given):
            raise _unknown("remote", given, remotes)
        checked_url(given)
        if "upstream" in remotes:
            if self.git("config", "--get", "remote.upstream.url").strip() != given:
                raise InputError(
                    "the remote upstream has another address",
                    code="conflicting-options",
                    remedy="leave --upstream out, or: git remote set-url upstream URL",
                    where=self.directory,
                )
        else:
            self.git("remote", "add", "--", "upstream", given)
        return "upstream"

    def _default_branch(self) -> str:
        named = self._run(["symbolic-ref", "--quiet", f"{_REMOTES}/origin/HEAD"])
        if named.exit_code == 0:
            return named.output.strip().removeprefix(f"{_REMOTES}/origin/")
        for each in ("main", "master"):
            if self._run(["rev-parse", "--verify", "--quiet", f"{_REMOTES}/origin/{each}"]).exit_code == 0:
                return each
        raise InputError(
            "origin has neither main nor master", code="option-missing", remedy="give --branch", where=self.directory
        )

    def _require_ref(self, name: str) -> None:
        if not _REF.fullmatch(name):
            raise InputError(f"not the name of a branch: {name}", code="invalid-value", remedy="check --branch")

    def _fetch(self, remote: str) -> None:
        done = self._run([*GIVE_UP_SLOW, "fetch", "--prune", "--", remote], NETWORK_SECONDS)
        if done.exit_code != 0:
            raise self._unreachable(remote, done)

    def _unreachable(self, remote: str, done: Finished) -> MachineError:
        return MachineError(
            f"cannot fetch {remote}: {last_line(done)}",
            code="hub-unreachable",
            remedy="check `git remote -v`, or run this again; `ascendtune env mirrors use NAME --github-proxy URL` "
            "fetches through a proxy",
            where=self.directory,
        )


def _unknown(kind: str, name: str, known: Sequence[str]) -> InputError:
    return InputError(f"no {kind} {name}", code="unknown-name", remedy=f"there are: {', '.join(known[:20]) or 'none'}")
