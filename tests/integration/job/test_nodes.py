"""One command, two machines: started, watched and ended together; a failure is reported with its host."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ascendtune.core.rundir import RunDir
from ascendtune.job.hang.heartbeat import newest_beats
from python_path import python_path

pytestmark = pytest.mark.usefixtures("preloaded")

Until = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]


def _started(run: RunDir) -> bool:
    return all((run.path / f"pid_{rank}").exists() for rank in (0, 1))


def test_two_hosts_are_one_job(run: RunDir, cluster: Any, start_nodes: Start) -> None:
    job = start_nodes(run, "finish")
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert out == "out 0\n"
    assert "err 0 2" in err.splitlines()
    assert "[nodeb rank 1] out 1" in err
    assert run.read()["state"] == "finished"
    assert (run.path / "seen_1").read_text().split() == ["1", "2", "eth7"]
    assert cluster.is_quiet()
    assert not list(run.path.glob(".meeting*"))


def test_a_killed_rank_is_named_with_its_host(run: RunDir, cluster: Any, start_nodes: Start) -> None:
    job = start_nodes(run, "die")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "error: rank 1 on nodeb was killed (SIGKILL)" in err.splitlines(), err
    assert "Traceback" not in err
    assert run.read()["exit_cause"]["what"] == "rank 1 on nodeb was killed (SIGKILL)"
    assert cluster.is_quiet()


def test_a_host_that_is_cut_off_is_named(run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until) -> None:
    # What it says fills the connection: nobody must wait for that.
    job = start_nodes(run, "chat")
    wait_until(lambda: _started(run))
    cluster.link("nodeb", "down")
    try:
        _, err = job.communicate(timeout=60)
        assert job.returncode == 3
        assert "error: nodeb has sent nothing for 10 s" in err
        wait_until(cluster.is_quiet, 20)
        assert run.read()["state"] == "failed"
    finally:
        cluster.link("nodeb", "up")


@pytest.mark.parametrize("lost", ["nodea", pytest.param("nodeb", marks=pytest.mark.soak)])
def test_a_job_continues_without_a_lost_host(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until, lost: str
) -> None:
    job = start_nodes(run, "wait-once", max_restarts=1, min_nodes=1)
    wait_until(lambda: _started(run))
    cluster.link(lost, "down")
    try:
        _, err = job.communicate(timeout=90)
        assert job.returncode == 0, err
        assert f"continuing without {lost}" in err
        assert run.read()["state"] == "finished"
        wait_until(cluster.is_quiet, 20)
    finally:
        cluster.link(lost, "up")


def test_a_host_that_reboots_is_waited_for(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until, tmp_path: Path
) -> None:
    job = start_nodes(run, "wait-once", max_restarts=1, return_seconds=60, err=tmp_path / "err")
    wait_until(lambda: _started(run))
    cluster.halt("nodea")
    try:
        wait_until(lambda: "waiting for nodea to return, for at most 60 s" in (tmp_path / "err").read_text(), 60)
    finally:
        cluster.boot("nodea")
    assert job.wait(60) == 0, (tmp_path / "err").read_text()
    said = (tmp_path / "err").read_text()
    assert "all hosts answer, after" in said and "[nodeb rank 1] out 1" in said
    assert [each["state"] for each in run.read()["attempts"]] == ["failed", "finished"]
    assert cluster.is_quiet()


def test_the_death_of_everything_on_the_host_of_rank_0_ends_the_job(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until
) -> None:
    job = start_nodes(run, "wait")
    wait_until(lambda: _started(run))
    for pid in cluster.pids("nodea"):
        os.kill(pid, signal.SIGKILL)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 3, err
    assert "error: the connection to nodea has ended" in err
    assert run.read()["exit_cause"]["what"] == "the connection to nodea has ended"
    assert cluster.is_quiet()


def test_a_host_that_does_not_answer_stops_the_job_before_it_starts(run: RunDir, start_nodes: Start) -> None:
    job = start_nodes(run, "finish", hosts="nodea,nodec")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 3
    assert "error: the connection to nodec has ended: ssh: connect to host 10.93." in err
    assert run.read()["attempts"] == []


def test_a_host_under_two_names_is_refused(run: RunDir, cluster: Any, start_nodes: Start) -> None:
    address = cluster.addresses["nodea"]
    job = start_nodes(run, "finish", hosts=f"nodea,nodeb,root@[{address}]")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 2
    assert f"error: nodea and root@{address} are the same machine\n   do: name it once; for several" in err
    assert run.read()["attempts"] == [] and cluster.is_quiet()


def test_a_run_directory_that_is_not_shared_is_refused(cluster: Any, start_nodes: Start) -> None:
    run = RunDir(cluster.path / "not-shared" / "run")
    run.create("", {}, {})
    job = start_nodes(run, "finish")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 3
    assert "error: nodeb: the run directory is not the one of the machine that starts the job" in err
    assert cluster.is_quiet()


def test_the_first_signal_asks_the_workers_of_every_host(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until
) -> None:
    job = start_nodes(run, "wait")
    wait_until(lambda: _started(run))
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert [(run.path / f"stopped_{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
    assert cluster.is_quiet()


def test_a_job_is_known_and_stopped_on_each_of_its_hosts(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until
) -> None:
    def jobs(*words: str) -> str:
        path = f"PYTHONPATH={python_path()}"
        argv = ["ssh", "nodeb", path, sys.executable, "-m", "ascendtune", "jobs", *words]
        return subprocess.run(argv, env=cluster.environment(), capture_output=True, text=True, check=True).stdout

    job = start_nodes(run, "wait")
    wait_until(lambda: _started(run))
    (listed,) = json.loads(jobs("list", "--json"))
    assert (listed["state"], listed["host"], listed["hosts"]) == ("running", "nodeb", ["nodea", "nodeb"])
    assert listed["started_from"] == socket.gethostname()
    assert "has ended: every process is gone" in jobs("stop", listed["id"], "--yes")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert err.splitlines().count("stopped from nodeb") == 1
    assert [(run.path / f"stopped_{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
    assert json.loads(jobs("list", "--all", "--json"))[0]["state"] == "stopped"
    assert cluster.is_quiet()


def test_the_second_signal_ends_what_does_not_listen(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until
) -> None:
    job = start_nodes(run, "deaf")
    wait_until(lambda: _started(run))
    job.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        job.communicate(timeout=2)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=20)
    assert job.returncode == 143
    wait_until(cluster.is_quiet, 5)


def test_the_last_words_of_rank_0_are_shown(run: RunDir, cluster: Any, start_nodes: Start) -> None:
    job = start_nodes(run, "talk", errors="surrogateescape")
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert out == "out 0\n" + "".join(f"line {number}\n" for number in range(20_000)) + "\udcff the end"
    assert cluster.is_quiet()


def test_a_job_continues_while_its_terminal_is_held(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until
) -> None:
    job = start_nodes(run, "flood")
    driver = psutil.Process(job.pid)
    # That of the process from which it was forked.
    before = driver.memory_info().rss
    wait_until(lambda: run.read()["state"] == "finished")
    wait_until(cluster.is_quiet)
    assert driver.memory_info().rss - before < 100 << 20
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0
    assert f"dropped: the terminal did not take them in time; {run.logs}/rank_1.log has them" in err
    # The oldest lines are dropped: these may be all of the rank that ended first.
    assert out.endswith(f"{119_999:099}\n") or f"{59_999:099}\n" in err
    left_out = [int(count.replace(",", "")) for count in re.findall(r"nodea rank 0\] ([\d,]+) lines? dropped", err)]
    assert out.count("\n") + err.count("err 0 2\n") + sum(left_out) == 120_002


def test_a_rank_that_is_stopped_on_another_host_is_to_blame(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until, impatient: Path
) -> None:
    # All ranks are in the same place: only its own host sees that one of them is stopped.
    given = {"PYTHONPATH": python_path(impatient)}
    job = start_nodes(run, "together", worker="silent_worker.py", on_hang="stop", max_restarts=1, variables=given)

    def places() -> list[tuple[int, str]]:
        return [(beat.step, beat.phase) for beat in newest_beats(run.path)]

    wait_until(lambda: places() == [(20, "backward")] * 2)
    os.kill(newest_beats(run.path, [1])[0].pid, signal.SIGSTOP)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 1, err
    assert "[nodeb]   odd rank: rank 1 on nodeb" in err
    assert "[nodea]   no rank differs, as far as this host can see" in err
    assert re.search(r"^error: the run hung in step \d+: rank 1 on nodeb differed$", err, re.MULTILINE)
    assert run.read()["exit_cause"]["odd_ranks"] == [1] and len(run.read()["attempts"]) == 1
    assert cluster.is_quiet()


def test_a_signal_while_torchrun_is_read_is_not_lost(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until
) -> None:
    job = start_nodes(run, "wait")
    wait_until(lambda: all(cluster.named(host, "ascendtune.job.torchrun") for host in cluster.hosts))
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=20)
    assert job.returncode == 130, err
    assert "Traceback" not in err
    wait_until(cluster.is_quiet, 5)


def test_a_host_that_hangs_does_not_keep_the_user(run: RunDir, cluster: Any, start_nodes: Start) -> None:
    cluster.sshds["nodeb"].send_signal(signal.SIGSTOP)
    try:
        job = start_nodes(run, "finish")
        time.sleep(3)
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=6)
        assert job.returncode == 130, err
        assert run.read()["attempts"] == []
    finally:
        cluster.sshds["nodeb"].send_signal(signal.SIGCONT)


def test_a_host_that_starts_a_job_joins_it_under_its_own_name(run: RunDir, cluster: Any, start_nodes: Start) -> None:
    # Another host cannot reach "localhost": it is told where the connection came from.
    job = start_nodes(run, "finish", hosts="nodea,localhost,nodeb")
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert "[nodeb rank 2] out 2" in err


def test_node_0_whose_own_name_is_a_loopback_shows_the_address_that_others_see(cluster: Any, tmp_path: Path) -> None:
    # As on Debian: /etc/hosts has 127.0.1.1 for the machine itself.
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 node0\n")
    place = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    imported = "from ascendtune.job.nodes.manual_start import place_from_environment as p"
    look = f"{imported}; x = p({place}); print(x.interface, x.address)"
    namespace = cluster.hosts["nodea"]
    ways = f"mount --bind {tmp_path}/hosts /etc/hosts && ip route add default dev eth7"
    argv = ["ip", "netns", "exec", namespace, "sh", "-c", f'{ways} && exec "$@"', "-", sys.executable, "-c", look]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("eth7 10.93.")
    finally:
        subprocess.run(["ip", "-n", namespace, "route", "del", "default"], check=True)


@pytest.mark.parametrize("victim", ["driver", "ascendtune.job.nodes.agent", "ascendtune.job.torchrun", "ssh"])
def test_no_process_is_left_after_a_kill(
    run: RunDir, cluster: Any, start_nodes: Start, wait_until: Until, victim: str
) -> None:
    job = start_nodes(run, "wait")
    wait_until(lambda: _started(run))
    if victim == "driver":
        doomed = [job.pid]
    elif victim == "ssh":
        children = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True)
        doomed = [int(children.stdout.split()[1])]
    else:
        doomed = cluster.named("nodeb", victim)[:1]
    os.kill(doomed[0], signal.SIGKILL)
    _, err = job.communicate(timeout=60)
    assert job.returncode not in (0, None)
    assert victim == "driver" or "nodeb" in err, err
    assert victim != "ascendtune.job.torchrun" or "torchrun on nodeb was killed (SIGKILL)" in err, err
    wait_until(cluster.is_quiet, 10)


def _command(cluster: Any, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What `ascendtune WORDS` did in `place`; it went well."""
    argv = [sys.executable, "-m", "ascendtune", *words]
    env = {**cluster.environment(), "XDG_STATE_HOME": str(place / "state")}
    done = subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("by", ["host file", "IPv6 address"])
def test_the_network_between_two_hosts_is_tried(cluster: Any, tmp_path: Path, by: str) -> None:
    (tmp_path / "hosts").write_text("nodea slots=1\nnodeb slots=3\n")
    hosts = str(tmp_path / "hosts") if by == "host file" else "[{nodea}],{nodeb}".format(**cluster.addresses)
    words = ("comm", "test", "--nodes", hosts, "--collective", "all_reduce", "--dtype", "float32", "--json")
    done = _command(cluster, tmp_path, *words)
    assert json.loads(done.stdout)["verdict"].startswith(
        f"{4 if by == 'host file' else 2} ranks over gloo: 1 of 1 collective is right"
    )
    assert not list((tmp_path / ".ascendtune").iterdir())
    assert cluster.is_quiet()


def test_a_program_may_say_a_thing_twice(cluster: Any, tmp_path: Path) -> None:
    words = ("launch", "--nodes", "nodea,nodeb", "--", "sh", "-c", "echo again; echo again")
    done = _command(cluster, tmp_path, *words)
    for place in ("[nodea rank 0]", "[nodeb rank 1]"):
        assert done.stderr.splitlines().count(f"{place} again") == 2, done.stderr
