"""A job on several hosts, started as by a command: `start_nodes.py '{"argv": …, "run": …, "hosts": …, …}'`."""

import json
import sys
from pathlib import Path

from ascendtune.cli.messages import print_error
from ascendtune.core import log
from ascendtune.core.errors import AscendtuneError
from ascendtune.job.backend import ssh
from ascendtune.job.nodes.cluster_spec import ClusterSpec, hosts_of
from ascendtune.job.spec import JobSpec

log.set_up()
asked = json.loads(sys.argv[1])
spec = JobSpec(
    tuple(asked["argv"]),
    Path(asked["run"]),
    nproc=1,
    kind="cpu",
    max_restarts=asked["max_restarts"],
    on_hang=asked["on_hang"],
    holds_interrupts=asked["holds_interrupts"],
)
# Ten seconds in earnest; three are enough for programs without a process group.
ssh._LEFT_ALONE_SECONDS = 3
hosts = hosts_of(asked["hosts"])
sizes = asked["nproc"], asked["min_nodes"]
wanted = ClusterSpec(hosts, *sizes, silence_seconds=10, return_seconds=asked["return_seconds"])
try:
    result = ssh.start(spec, wanted)
except AscendtuneError as error:
    print_error(error)
    sys.exit(error.exit_code)
if result.error:
    print_error(result.error)
sys.exit(result.exit_code)
