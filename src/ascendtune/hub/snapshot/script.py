"""The same fetch as a shell script, for a machine without ascendtune: curl and sha256sum."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ascendtune.hub.snapshot.fetch import SnapshotRequest
from ascendtune.hub.snapshot.hub_client import HUGGING_FACE, HubClient, Listing, RemoteFile

_HEAD = """\
#!/usr/bin/env bash
# Fetches {name} at {commit}; give it again to continue. Needs curl and sha256sum.
# Private repositories of huggingface.co: export HF_TOKEN before.
set -euo pipefail
mkdir -p -- {directory}
cd -- {directory}
token() {{ {token}; }}
get() {{ # PATH URL KIND HASH
  if [ -e "$1" ]; then
    holds "$1" "$3" "${{4:-}}" && return
    echo "error: $1 exists with other content; move it away, nothing is overwritten" >&2; exit 1
  fi
  mkdir -p "$(dirname "$1")"
  # A part that is whole was interrupted before it got its name.
  if [ "$3" = none ] || ! holds "$1.part" "$3" "${{4:-}}"; then
    # The token goes to curl through a file, where `ps` does not show it; curl drops it at a redirect to another host.
    curl --fail --location --retry 8 --retry-all-errors --continue-at - --output "$1.part" \\
      --config <(token) "$2"
  fi
  holds "$1.part" "$3" "${{4:-}}" || {{
    echo "error: $1 has another content than the hub lists" >&2; rm "$1.part"; exit 1
  }}
  mv "$1.part" "$1"
}}
holds() {{ # PATH KIND HASH
  [ -f "$1" ] || return 1
  case $2 in
    sha256) echo "$3  $1" | sha256sum --check --status ;;
    git) [ "$({{ printf 'blob %d\\0' "$(stat -c %s "$1")"; cat "$1"; }} | sha1sum | cut -d' ' -f1)" = "$3" ] ;;
    *) true ;;
  esac
}}
"""
_TOKEN = """[ -z "${HF_TOKEN:-}" ] || printf 'header = "Authorization: Bearer %s"\\n' "$HF_TOKEN\""""


def shell_script(request: SnapshotRequest, listing: Listing, hub: HubClient) -> str:
    """The script that fetches the selected files into `request.directory`."""
    files: Sequence[RemoteFile] = [file for file in listing.files if request.wants(file.path)]
    head = _HEAD.format(
        name=request.name, commit=listing.commit, directory=shlex.quote(str(request.directory)),
        token=_TOKEN if hub.endpoint == HUGGING_FACE else "true",
    )  # fmt: skip
    lines = []
    for file in files:
        url = hub.url(request.name, request.kind, listing.commit, file.path)
        kind, value = ("sha256", file.sha256) if file.sha256 else ("git", file.git_sha1 or "")
        # ./ because a name may begin with '-'.
        lines.append(
            f"get {shlex.quote(f'./{file.path}')} {shlex.quote(url)} {kind if value else 'none'} {value}".rstrip()
        )
    return head + "\n".join(lines) + "\n"
