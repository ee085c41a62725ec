"""A program that ssh starts on a simulated host is forked (tests/host_command.py), and like one that is started."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from cluster import Cluster, until

_PROBE = str(Path(__file__).parents[2] / "preloaded_probe.py")


def _on_host(cluster: Cluster, *words: str, **variables: str) -> subprocess.Popen[str]:
    given = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **variables}
    words = ("env", *(f"{name}={value}" for name, value in given.items()), sys.executable, _PROBE, *words)
    argv = ["ssh", "-T", "nodeb", shlex.join(["exec", *words])]
    return subprocess.Popen(argv, env=cluster.environment(), text=True, stdout=subprocess.PIPE)


def _seen(cluster: Cluster, **variables: str) -> dict[str, Any]:
    asked = _on_host(cluster, "tell", ONLY_HERE="wörd", **variables)
    seen = json.loads(asked.communicate()[0])
    assert asked.returncode == 7
    for own in ("environ", "os.environ"):
        # The shell reads its start-up file again for what is not forked.
        names = ("SSH_CLIENT=", "SSH_CONNECTION=", "PYTHONHASHSEED=", "LC_CTYPE=", "PATH=", "SHLVL=", "_=")
        seen[own] = [each for each in seen[own] if not each.startswith(names)]
    return dict(seen)


def test_forked_program_sees_what_a_started_one_sees(cluster: Cluster) -> None:
    forked, started = _seen(cluster), _seen(cluster, PYTHONHASHSEED="5")
    assert forked == started
    assert "ONLY_HERE=wörd" in forked["environ"] and forked["leads"] == [True, True]


def test_forked_program_is_on_its_host_until_it_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    job = _on_host(cluster, "host", str(tmp_path / "told"))
    until(lambda: (tmp_path / "told").exists())
    told = json.loads((tmp_path / "told").read_text())
    assert told["name"] == "nodeb" and told["interfaces"] == ["eth7", "lo"]
    assert f"{cluster.path}/not-shared" in told["mounts"]
    assert told["boot"] == (cluster.path / "nodeb-boot").read_text().strip()
    assert told["has torch"]
    assert cluster.named("nodeb", "preloaded_probe") == [told["pid"]]
    psutil.Process(told["pid"]).kill()
    assert job.wait(20) == 255
    until(cluster.is_quiet)
