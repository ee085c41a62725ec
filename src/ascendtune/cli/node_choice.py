"""The machines of a job: from `--nodes`, `--min-nodes` and `--max-restarts`, or the variables of a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.cli.device_choice import Devices, choose
from ascendtune.core.errors import DataError, InputError
from ascendtune.core.ownership import require_own
from ascendtune.core.rundir import RunDir
from ascendtune.job.spec import ALONE, NodePlace
from ascendtune.machine.visible import cpu_count, visible_devices

if TYPE_CHECKING:
    from ascendtune.job.nodes.cluster_spec import ClusterSpec
    from ascendtune.job.nodes.gather import ClusterResources
    from ascendtune.job.result import JobResult
    from ascendtune.job.spec import JobSpec


Progress = Callable[[str, int, int], None]
"""(work, items done, items in all)"""


@dataclass(frozen=True)
class ChosenNodes:
    """This machine only, this machine as one of several that are started one by one, or hosts that we start."""

    place: NodePlace = ALONE
    hosts: ClusterSpec | None = None

    @property
    def is_one_machine(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.hosts is None and self.place.is_alone

    @property
    def joins_run(self) -> bool:
        """Whether this node joins a run that another node has chosen."""
        return self.place.node_rank > 0

    def devices(self, count: int | None, ids: str | None) -> tuple[Devices, list[str]]:
        """The devices of the job on each node, and notes on them for the user.

        Raises:
            InputError, MachineError: as `device_choice.choose`, for this machine; other hosts are checked by
                themselves.
        """
        if self.hosts is not None:
            return Devices("cpu", count or 1), []
        visible = visible_devices()
        chosen = choose(visible, count=count, ids=ids, cores=cpu_count())
        return chosen, [note for note in (visible.note, chosen.warning) if note]

    def query_resources(self) -> ClusterResources | None:
        """Query the hosts that we would start, before the data is prepared, which takes long; None if there are none.

        Raises:
            MachineError: a host cannot be reached, or differs from the others.
        """
        if self.hosts is None:
            return None
        from ascendtune.job.nodes.gather import query_hosts

        return query_hosts(self.hosts)

    @contextmanager
    def preparing(self, runs: Path, show: Progress) -> Iterator[Progress]:
        """Context during which nodes that wait for this one are informed that it prepares its data.

        Args:
            runs: as for `agree_on`.

        Returns:
            A function for the progress, which passes it to `show` and to them.
        """
        if self.place.is_alone:
            yield show
            return
        from ascendtune.job.nodes.shared_run import preparing

        with preparing(runs, self.place) as show_others:

            def show_all(what: str, done: int, total: int) -> None:
                show(what, done, total)
                show_others(what, done, total)

            yield show_all

    def agree_on(self, run: RunDir | None, runs: Path, data_hash: str) -> RunDir:
        """The run that all nodes work on: `run` if this node chose it, else node 0's choice.

        Args:
            runs: the directory of run directories, which all nodes share.
            data_hash: hash of the tokens on this node.

        Raises:
            MachineError: the other nodes do not answer, or other users may write the run.
            DataError: this node has other data.
        """
        from ascendtune.job.nodes.shared_run import publish_run, receive_run

        if run is not None:
            if not self.place.is_alone:
                publish_run(runs, self.place, run.path)
            return run
        joined = RunDir.open(receive_run(runs, self.place))
        # Before anything is written: a link in a directory of another user could lead to any file of this one.
        require_own(joined.path, joined.recipe, joined.run_json)
        if (node_0_hash := joined.read()["data_hash"]) != data_hash:
            raise DataError(
                f"this node has other data than node 0 (hashes: {data_hash[:12]} here, {node_0_hash[:12]} on node 0)",
                code="data-differs-between-nodes",
                remedy="give every node the same files, the same model and the same recipe",
                where=joined.path,
            )
        return joined

    def start(self, spec: JobSpec) -> JobResult:
        """Run the job on these nodes, to its end."""
        if self.hosts is not None:
            from ascendtune.job.backend.ssh import start as start_on_hosts

            return start_on_hosts(spec, self.hosts)
        from ascendtune.job.backend.local import start

        return start(spec, self.place)


def choose_nodes(
    nodes: str | None,
    *,
    min_nodes: int | None,
    max_restarts: int,
    devices: int | None,
    device_ids: str | None,
    env: Mapping[str, str],
) -> ChosenNodes:
    """The nodes of the job.

    Args:
        nodes: names of hosts, or a file of them; without, NNODES in `env` determines whether this is one node of
            several.

    Raises:
        InputError: the options contradict each other, or a host or a variable cannot be parsed.
    """
    if nodes is None:
        if min_nodes is not None:
            raise InputError(
                "--min-nodes needs --nodes", code="option-not-applicable", remedy="name the hosts: --nodes host1,host2"
            )
        from ascendtune.job.nodes.manual_start import place_from_environment

        place = place_from_environment(env)
        if max_restarts and not place.is_alone:
            raise InputError(
                "--max-restarts cannot restart nodes that were started one by one (NNODES)",
                code="conflicting-options",
                remedy="let the scheduler run the command again, which resumes; or start all nodes with --nodes",
            )
        return ChosenNodes(place)
    if device_ids is not None:
        raise InputError(
            "--device-ids is for one machine, --nodes for several",
            code="conflicting-options",
            remedy="use --devices N, or set the visible devices on each machine",
        )
    from ascendtune.job.nodes.cluster_spec import ClusterSpec, hosts_of

    hosts = hosts_of(nodes)
    if min_nodes is not None and min_nodes > len(hosts):
        raise InputError(
            f"--min-nodes {min_nodes} is more than the {len(hosts)} hosts of --nodes",
            code="too-many-min-nodes",
            remedy="lower --min-nodes, or name more hosts",
        )
    return ChosenNodes(hosts=ClusterSpec(hosts, devices, min_nodes))


def require_one_starter(env: Mapping[str, str]) -> None:
    """Raise if a launcher such as torchrun has started several of this command: each would start workers of its own.

    Raises:
        InputError: according to RANK and WORLD_SIZE, a launcher has started several of this command.
    """
    world_size = env.get("WORLD_SIZE", "")
    if "RANK" not in env or not world_size.isdecimal() or int(world_size) < 2:
        return
    # With NNODES whole nodes are started one by one; with LOCAL_RANK it is a process of a node.
    if env.get("NNODES", "1") != "1" and "LOCAL_RANK" not in env:
        return
    raise InputError(
        f"a launcher started {world_size} processes of this command (RANK={env['RANK']}), but the command starts its "
        "processes itself",
        code="started-by-launcher",
        remedy="run it once, without torchrun, with --devices N; on several machines with --nodes, or once on "
        "each machine with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT. To resume a run under torchrun, start the "
        "worker: torchrun … -m ascendtune.train.worker RUN",
        where="environment variable WORLD_SIZE",
    )
