"""Commands of docs/guide that need devices, a terminal, two hosts or a run with NaN: run with these there.

Eight devices are eight processes on the CPU. NPUs are simulated: the real torch_npu on the CANN libraries of the tests,
or an npu-smi that prints what a driver printed. Two hosts are network namespaces of this machine.
"""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_node.cann.build import why_not
from ascend_node.cann.environment import simulated_environment
from ascendtune.core.rundir import RunDir
from cluster import Cluster
from guide_pages import PATIENCE_SECONDS, Place, commands, needing
from wandb_server import KEY, WandbServer, serving_wandb

pytestmark = pytest.mark.usefixtures("preloaded")

_FIXTURES = Path(__file__).parents[1] / "fixtures/ascend"
_STEPS = {"max_steps": 2, "learning_rate": 1e-3}
# The device files by which a real node is known are not simulated: their numbers, and for the doctor their directory.
_ON_NPUS = """
import functools, pathlib, sys
from ascendtune.check.doctor import system
from ascendtune.machine.vendor.npu import NpuVendor
NpuVendor.device_ids = lambda self, dev: ("0", "1")
system.System = functools.partial(system.System, root=pathlib.Path("node").absolute())
from ascendtune.cli.main import main
main(sys.argv[1:])
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def run_on_npus(place: Place) -> Callable[..., str]:
    """Run a command on a simulated node with two NPUs."""
    if reason := why_not():
        pytest.skip(reason)
    for index in range(2):
        (place.path / "node/dev").mkdir(parents=True, exist_ok=True)
        (place.path / f"node/dev/davinci{index}").touch()
    env = simulated_environment(place.env)
    return lambda command, **options: place.run(command, program=("-c", _ON_NPUS), env=env, **options)


def _print_instead_of_npu_smi(place: Place, transcript: str) -> None:
    """An npu-smi that prints a transcript, whatever it is asked."""
    program = place.path / "bin/npu-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {shlex.quote(str(_FIXTURES / transcript))}\n")
    program.chmod(0o755)
    place.env["PATH"] = f"{program.parent}:{os.environ['PATH']}"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, place: Place, command: str, **env: str) -> None:
        self._controller, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ascendtune", *shlex.split(command)[1:]],
            stdin=terminal, stdout=terminal, stderr=terminal, cwd=place.path, env={**place.env, **env},
            start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        self.shown = ""

    def until(self, is_there: Callable[[str], bool]) -> None:
        """Read until what is shown satisfies this."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_there(self.shown):
            assert time.monotonic() < deadline and self._read(), self.shown

    def type(self, words: str) -> None:
        os.write(self._controller, words.encode())

    def end(self) -> int:
        """The exit code, after all that is shown has been read."""
        while self._read():
            pass
        os.close(self._controller)
        return self.process.wait(PATIENCE_SECONDS)

    def _read(self) -> bool:
        """Whether more may come."""
        if not select.select([self._controller], [], [], PATIENCE_SECONDS)[0]:
            return False
        try:
            part = os.read(self._controller, 4096)
        except OSError:  # Linux says so where the other side is closed
            return False
        self.shown += part.decode(errors="replace")
        return bool(part)


def test_devices_are_watched_until_interrupted(place: Place) -> None:
    _print_instead_of_npu_smi(place, "info_a3_24.1.rc3.3_two_dies.txt")
    (watch,) = commands("devices --watch", "a terminal")
    terminal = Terminal(place, watch)
    terminal.until(lambda shown: shown.count("\x1b[2J") >= 2 and shown.count("Ascend910") >= 8)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130


def test_topology_is_printed(place: Place) -> None:
    _print_instead_of_npu_smi(place, "topo_950_ub.txt")
    (topology,) = commands("devices --topology", "NPUs")
    assert "UB: unified bus" in place.run(topology)


def test_log_in_asks_on_the_terminal(place: Place, clients: Path) -> None:
    (login,) = commands("track login", "a terminal")
    with serving_wandb(WandbServer()) as server:
        path = f"{clients}/bin:{os.environ['PATH']}"
        terminal = Terminal(
            place, login, PATH=path, PYTHONPATH=os.environ["PYTHONPATH"], WANDB_BASE_URL=server.endpoint
        )
        terminal.until(lambda shown: "API key" in shown and shown.rstrip().endswith(":"))
        terminal.type(f"{KEY}\n")
        assert terminal.end() == 0, terminal.shown
    assert KEY not in terminal.shown and KEY in (place.path / ".netrc").read_text()


@pytest.mark.usefixtures("clients")
def test_training_is_sent_to_wandb_while_it_runs(place: Place) -> None:
    place.write_recipe(optim=_STEPS)
    (sent,) = commands("train recipe.yaml track.", "a network")
    with serving_wandb(WandbServer()) as server:
        env = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.endpoint, "PYTHONPATH": os.environ["PYTHONPATH"]}
        place.run(sent, env=env)
        (run,) = server.runs.values()
    assert run.project == "qwen" and [row["_step"] for row in run.rows.values()] == [1, 2]


@pytest.mark.soak
def test_trainings_on_eight_devices_are_eight_ranks(place: Place) -> None:
    place.write_recipe(optim=_STEPS)
    losses = {}
    without_deepspeed = [
        each for each in commands("train recipe.yaml --devices 8", "eight devices") if "deepspeed" not in each
    ]
    for number, command in enumerate(without_deepspeed):
        place.write_recipe(optim=_STEPS, name=f"run-{number}")
        place.run(command)
        run = RunDir(place.path / f"runs/run-{number}")
        assert sorted(each.name for each in (run.path / "log").glob("rank_*.log")) == [
            f"rank_{rank}.log" for rank in range(1, 8)
        ]
        losses[command] = [round(each["loss"], 4) for each in run.read_metrics()]
    (named,) = needing("first-run", "NPUs", "ascendtune train")
    place.run(named)
    losses[named] = [round(each["loss"], 4) for each in RunDir(place.path / "runs/alpaca").read_metrics()]
    assert len(losses) == 4 and len(set(map(tuple, losses.values()))) == 1, losses


def test_deepspeed_trains_on_eight_ranks(place: Place) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is shown to a process of its own (make deepspeed-tests)")
    (place.path / "ds_config_zero3.json").write_text(
        '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", '
        '"zero_optimization": {"stage": 3, "overlap_comm": true, "stage3_gather_16bit_weights_on_model_save": true}}'
    )
    with_deepspeed = commands("train recipe.yaml --devices 8 parallel.strategy=deepspeed", "eight devices")
    for stage, command in zip((2, 3), with_deepspeed, strict=True):
        place.write_recipe(optim=_STEPS, name=f"run-{stage}")
        place.run(command)
        run = RunDir(place.path / f"runs/run-{stage}")
        assert run.last_step() == 2 and len(list((run.path / "log").glob("rank_*.log"))) == 7


@pytest.mark.soak
def test_speed_up_of_eight_devices_is_measured(place: Place) -> None:
    place.write_recipe(optim=_STEPS)
    (bench,) = commands("bench", "eight devices")
    place.run(bench, "--steps", "2", "--warmup", "1", "--repeats", "1")
    assert (place.path / "runs/alpaca-bench/bench.md").is_file()


def test_program_is_launched_on_eight_devices(place: Place) -> None:
    (place.path / "train.py").write_text(
        "import os, pathlib\n"
        "rank, size = os.environ['RANK'], os.environ['WORLD_SIZE']\n"
        "pathlib.Path(f'seen-{rank}').write_text(size)\n"
    )
    (launch,) = commands("launch --devices 8", "eight devices")
    place.run(launch)
    assert [(place.path / f"seen-{rank}").read_text() for rank in range(8)] == ["8"] * 8


@pytest.mark.soak
@pytest.mark.simulated_npu
def test_npus_are_computed_on(place: Place, run_on_npus: Callable[..., str]) -> None:
    (deep,) = commands("doctor --deep", "NPUs")
    # Driver and toolkit of the simulated node are not where a real one has them: the exit code is 1.
    printed = run_on_npus(f"{deep} --json", code=1)
    found = {
        each["code"]: each for each in json.loads(printed[printed.index("{") : printed.rindex("}") + 1])["findings"]
    }
    assert {found[each]["status"] for each in ("compute", "all_reduce", "transfer_to_npu")} == {"ok"}, found
    assert "hccl sums over 2 ranks on NPU 0 and NPU 1" in found["all_reduce"]["measured"]


@pytest.mark.soak
@pytest.mark.simulated_npu
def test_training_takes_the_npus_that_are_named(place: Place, run_on_npus: Callable[..., str]) -> None:
    place.write_recipe(optim=_STEPS)
    (named,) = commands("train recipe.yaml --device-ids 0,1", "NPUs")
    assert "(npu × 2)" in run_on_npus(named)


@pytest.mark.soak
@pytest.mark.simulated_npu
def test_settings_of_a_script_are_keys_of_the_recipe(place: Place, run_on_npus: Callable[..., str]) -> None:
    place.write_recipe(optim={"max_steps": 2})
    (settings,) = commands("train recipe.yaml batch.per_device=6", "NPUs")
    run_on_npus(settings)
    recipe = RunDir(place.path / "runs/alpaca").recipe.read_text()
    assert "per_device: 6" in recipe and "max_length: 512" in recipe and "precision: fp16" in recipe


@pytest.mark.soak
@pytest.mark.simulated_npu
def test_script_for_cuda_runs_on_an_npu(place: Place, run_on_npus: Callable[..., str]) -> None:
    (place.path / "train.py").write_text(
        "import sys, torch\n\nx = torch.rand(9, 9).cuda()\nprint((x @ x).device, sys.argv[1:])\n"
    )
    (migrate,) = commands("migrate run train.py", "NPUs")
    (with_arguments,) = needing("from-gpu", "NPUs", "ascendtune migrate")
    assert "npu:0 []" in run_on_npus(migrate) and "npu:0 ['--epochs', '3']" in run_on_npus(with_arguments)


@pytest.mark.soak
def test_two_hosts_train_one_model(place: Place, cluster: Cluster) -> None:
    place.write_recipe(optim=_STEPS)
    env = {"PATH": cluster.environment()["PATH"], "OMP_NUM_THREADS": "1"}
    (comm,) = commands("comm test --nodes node1,node2", "two hosts")
    assert "2 ranks over gloo" in place.run(comm, env=env)
    (nodes,) = commands("train recipe.yaml --nodes node1,node2", "two hosts")
    place.run(nodes, env=env)
    run = RunDir(place.path / "runs/alpaca")
    assert run.last_step() == 2 and run.read()["attempts"][0]["world_size"] == 2
    (doctor,) = needing("two-nodes", "two hosts", "ascendtune doctor")
    assert [doctor] == commands("doctor --nodes node1,node2", "two hosts")
    assert "the same on both nodes" in place.run(doctor, env=env, code=None)
    (restarting,) = needing("two-nodes", "two hosts", "ascendtune train")
    place.write_recipe(optim=_STEPS, name="restarting")
    place.run(restarting, env=env)
    (bench,) = needing("two-nodes", "two hosts", "ascendtune comm bench")
    place.run(bench, env=env)
    assert (place.path / "links.png").is_file() and cluster.is_quiet()


def test_module_that_made_a_nan_is_named(place: Place) -> None:
    from safetensors.torch import load_file, save_file

    place.write_recipe(optim=_STEPS)
    weights = load_file(place.path / "model/model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][3] = 3e38
    save_file(weights, place.path / "model/model.safetensors", {"format": "pt"})
    place.run("ascendtune train recipe.yaml", code=1)
    (nan,) = commands("align nan runs/alpaca", "a run with NaN")
    named = place.run(nan, code=1)
    assert "the gradient of the result of model.layers.1" in named and "rows.jsonl:" in named
