"""What a container or a scheduler has to be told, so that a program in it can use devices of a kind.

NPU. Device files and driver mounts: LLaMA-Factory's docs for NPU and vllm-ascend's `docs/source/installation.md`,
which hand over the same ones; the second does without `--privileged`. The whole driver directory rather than its
`lib64`: so do MindCluster's samples, and hccn_tool lies in it. /etc/hccn.conf: addresses of the NPUs' network ports.
`huawei.com/Ascend910`: Ascend/mind-cluster, "Full-NPU scheduling", for A2 and A3 too (Ascend 950: huawei.com/npu).
GPU. `--gpus` and the ulimits: NVIDIA's user guide for its framework containers; `nvidia.com/gpu`: its device plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ascendtune.machine.visible import Kind


@dataclass(frozen=True)
class Needs:
    """What goes with devices of one kind, wherever they are used."""

    noun: str
    """How messages call one of them."""
    plural: str | None = None
    """And several, where that is another word."""
    most_in_a_node: int | None = None
    """More than this many are in no server that the vendor sells."""
    device_file: str | None = None
    """The file of one device, `{}` for its number."""
    control_files: tuple[str, ...] = ()
    """Device files that all devices share."""
    driver: tuple[str, ...] = ()
    """Paths of the host that are mounted read-only at the same place; without them nothing works."""
    driver_if_there: tuple[str, ...] = ()
    """Likewise, on hosts that have them."""
    docker_driver: str | None = None
    """Docker's name for what hands the devices over, where device files alone would not do."""
    ulimits: Mapping[str, int] = field(default_factory=dict)
    resource: str | None = None
    """Kubernetes' name for one device."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which the vendor's scheduler recognises a job."""
    granted: Mapping[str, str] = field(default_factory=dict)
    """Variable -> annotation of the pod: how the vendor's container runtime learns which devices were granted."""
    gres: str | None = None
    """Slurm's usual name for one device."""
    told_by_slurm: bool = True
    """Whether Slurm sets the variable that limits a job to its devices."""
    image: str | None = None
    """Built from a Dockerfile of ours."""
    set_up: tuple[str, ...] = ()
    """Lines for the shell before a program starts."""

    @property
    def is_accelerator(self) -> bool:
        """Whether devices are counted: any number of processes may share a CPU."""
        return self.most_in_a_node is not None

    def device_files(self, ids: Sequence[str]) -> tuple[str, ...]:
        """The device files for the devices `ids`."""
        own = tuple(self.device_file.format(each) for each in ids) if self.device_file else ()
        return own + self.control_files

    def mounts(self, root: Path = Path("/")) -> tuple[str, ...]:
        """What is mounted on this host: all that is needed, and what is there of the rest."""
        return self.driver + tuple(path for path in self.driver_if_there if (root / path.lstrip("/")).exists())


_SET_ENV = "/usr/local/Ascend/ascend-toolkit/set_env.sh"

NEEDS: dict[Kind, Needs] = {
    "npu": Needs(
        noun="NPU",
        # Atlas 800T A3: 8 cards of two chips each; Atlas 200T A2 Box: 16 chips.
        most_in_a_node=16,
        device_file="/dev/davinci{}",
        control_files=("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        driver=("/usr/local/Ascend/driver", "/usr/local/dcmi", "/etc/ascend_install.info"),
        # The driver's installer puts npu-smi into one or the other, depending on its version.
        driver_if_there=("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/etc/hccn.conf"),
        resource="huawei.com/Ascend910",
        # Ascend/mind-cluster: "product type identifier", for A2 and A3.
        labels={"ring-controller.atlas": "ascend-910b"},
        granted={"ASCEND_VISIBLE_DEVICES": "huawei.com/Ascend910"},
        # Slurm has no plugin for NPUs: a site names them itself in gres.conf, and no variable is set.
        gres="npu",
        told_by_slurm=False,
        image="ascendtune:ascend",
        set_up=(f'if [ -z "${{ASCEND_HOME_PATH:-}}" ] && [ -f {_SET_ENV} ]; then . {_SET_ENV}; fi',),
    ),
    "cuda": Needs(
        noun="GPU",
        most_in_a_node=16,
        docker_driver="nvidia",
        ulimits={"memlock": -1, "stack": 67_108_864},
        resource="nvidia.com/gpu",
        gres="gpu",
    ),
    "cpu": Needs(noun="CPU process", plural="CPU processes"),
}
