"""One set of versions: what the advice installs satisfies every rule about versions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_node.node import Cann, Node
from ascend_node.scenarios import HEALTHY
from ascend_node.system import system_of
from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.required_versions import advice_for, supported_ranges, user_of_working_pair
from ascendtune.check.doctor.system import System
from ascendtune.machine.compatibility import wheels

Lay = Callable[..., System]
_CODES = ["versions", "packages", "combinations"]


def _lowest(bounds: str) -> str:
    return bounds.partition(",")[0].lstrip("=>")


def _followed(node: Node, system: System) -> Node:
    advice = advice_for(system)
    installed = {name: _lowest(bounds) for name, bounds in advice.packages.items()}
    cann = (Cann(advice.cann.replace(".X", ".0")),) if advice.cann else node.cann
    driver = advice.driver or node.driver
    return replace(node, packages={**node.packages, **installed}, cann=cann, driver=driver.replace(".X", ".0"))


@pytest.mark.long
def test_advice_that_is_followed_leaves_nothing_to_advise(tmp_path: Path) -> None:
    draw = random.Random(0)
    torches = sorted({wheel.torch for wheel in wheels()})
    releases = ["8.1.RC1", "8.2.RC1", "8.3.RC1", "8.5.0", "9.0.0", "9.1.0"]
    for number in range(40):
        wheel = draw.choice(wheels())
        packages = {
            "torch": draw.choice(torches),
            "torch-npu": wheel.version,
            "numpy": draw.choice(["1.26.4", "2.1.2"]),
            "transformers": draw.choice(["4.52.4", "4.56.0", "5.2.0"]),
            "peft": draw.choice(["0.17.1", "0.18.0"]),
            "deepspeed": draw.choice(["0.12.2", "0.14.2", "0.18.2", "0.19.8"]),
            "accelerate": draw.choice(["0.34.0", "1.9.0", "1.10.0"]),
        }
        node = replace(HEALTHY, packages=packages, cann=(Cann(draw.choice(releases)),), driver="25.2.0")
        before = system_of(node, tmp_path / f"before-{number}")
        after = system_of(_followed(node, before), tmp_path / f"after-{number}")
        left = [each for each in examine(after, _CODES).findings if each.status in ("warning", "failure")]
        assert [each for each in left if "driver" not in each.measured] == [], (node.packages, node.cann)


def test_incomplete_torch_npu_is_installed_again_in_the_version_that_is_advised(tmp_path: Path) -> None:
    """A wrong pair: one command for both findings. A pair that stays: its own version, which pip would else skip."""
    for torch, has_one in (("2.13.0", True), (HEALTHY.packages["torch"], False)):
        node = replace(HEALTHY, packages={**HEALTHY.packages, "torch": torch})
        system = system_of(node, tmp_path / torch)
        directory = system.package_directory("torch_npu")
        assert directory is not None
        (directory / "lib/libtorch_npu.so").unlink()
        (found,) = examine(system, ["libraries"]).findings
        assert found.status == "failure"
        if has_one:
            assert found.remedy == advice_for(system).text and "torch-npu==" in found.remedy
            (other,) = (each for each in examine(system, ["versions"]).findings if "torch_npu" in each.measured)
            assert other.remedy == found.remedy
        else:
            pinned = f"torch-npu=={HEALTHY.packages['torch-npu']}"
            assert found.remedy == f"pip install --force-reinstall --no-deps {pinned}"


def test_every_finding_about_packages_has_the_same_remedy(lay: Lay) -> None:
    packages = {"torch": "2.5.1", "torch-npu": "2.5.1", "numpy": "2.1.2", "peft": "0.17.1", "transformers": "5.2.0"}
    found = [each for each in examine(lay(replace(HEALTHY, packages=packages)), _CODES).findings if each.remedy]
    assert len(found) > 3 and len({each.remedy for each in found}) == 1
    peft = f"peft{supported_ranges()['peft']}"
    assert found[0].remedy == f"pip install torch==2.6.0 torch-npu==2.6.0 '{peft}' numpy==1.26.4"


def test_another_cann_is_advised_only_where_no_wheel_fits(lay: Lay) -> None:
    old = replace(HEALTHY, cann=(Cann("7.0.0"),), packages={"torch": "2.5.1", "torch-npu": "2.5.1"})
    advice = advice_for(lay(old))
    assert advice.cann is not None and advice.driver is None, "the installed driver serves the CANN that is advised"
    assert advice.text.startswith(f"install CANN {advice.cann} (toolkit, and kernels or ops of the chip), source its")


@pytest.mark.parametrize(
    ("torch_npu", "cann", "user"),
    [("2.7.1.post1", "8.3.RC2", "v0.11.0"), ("2.9.0.post1+git4c901a4", "8.5.1", "v0.18.0")],
)
def test_pair_that_was_seen_working_is_ok_and_says_so(lay: Lay, torch_npu: str, cann: str, user: str) -> None:
    torch = torch_npu.partition(".post")[0]
    packages = {"torch": torch, "torch-npu": torch_npu}
    system = lay(replace(HEALTHY, packages=packages, cann=(Cann(cann),), driver="25.5.0"))
    (found,) = examine(system, ["versions"]).findings
    assert found.status == "ok" and f"vllm-ascend {user} is published for this pair" in found.measured
    assert user_of_working_pair(torch_npu, "8.0.0") is None


def test_driver_that_was_seen_working_with_a_newer_cann_is_not_a_warning(lay: Lay) -> None:
    packages = {"torch": "2.6.0", "torch-npu": "2.6.0.rc1"}
    node = replace(HEALTHY, driver="24.1.0", cann=(Cann("8.1.RC1"),), packages=packages)
    assert not [each for each in examine(lay(node), ["versions"]).findings if "driver 24.1.0 is" in each.measured]


def test_version_that_an_installed_package_does_not_import_with_is_named(lay: Lay) -> None:
    """transformers compares it when it is imported, and fails."""
    node = replace(HEALTHY, packages=HEALTHY.packages | {"transformers": "5.16.1", "tokenizers": "0.22.2"})
    requirements = {"transformers": ("tokenizers<0.24.0,>=0.23.1", "numpy>=1.17", 'torch>=9; extra == "torch"')}
    system = replace(lay(node), package_requirements=lambda name: requirements.get(name, ()))
    (found,) = examine(system, ["packages"]).findings
    assert found.status == "warning" and found.remedy == "pip install 'tokenizers>=0.23.1,<0.24.0'"
    assert found.measured == "transformers 5.16.1 needs tokenizers >=0.23.1,<0.24.0, and 0.22.2 is installed"
