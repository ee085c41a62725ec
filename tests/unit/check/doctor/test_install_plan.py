"""The plan of `ascendtune env install-plan` on simulated machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ascend_node.node import Cann
from ascend_node.scenarios import HEALTHY
from ascendtune.check.doctor.install_plan import make_install_plan
from ascendtune.check.doctor.system import System
from ascendtune.machine.compatibility import find_wheel

Lay = Callable[..., System]


def test_bare_machine_gets_the_pair_for_its_cann_and_numpy_1(lay: Lay) -> None:
    plan = make_install_plan(lay(replace(HEALTHY, packages={}, cann=(Cann("8.2.RC1"),))))
    wanted = {each.name: each.bounds for each in plan.packages}
    assert wanted["torch"] == "==2.6.0" and wanted["torch-npu"] == "==2.6.0" and wanted["numpy"] == "==1.26.4"
    assert wanted["transformers"].startswith(">=5") and "deepspeed" not in wanted
    assert plan.before == () and plan.cann == "8.2.RC1"
    why = {each.name: each.why for each in plan.packages}
    assert "CANN 8.2.RC1" in why["torch-npu"] and "numpy 1" in why["numpy"]
    assert plan.command("py")[:5] == ["py", "-P", "-m", "pip", "install"] and "torch==2.6.0" in plan.command("py")


def test_toolkit_that_is_installed_and_not_loaded_decides_the_plan(lay: Lay) -> None:
    plan = make_install_plan(lay(replace(HEALTHY, packages={}, cann=(Cann("8.5.0", loaded=False),))))
    pinned = next(each.bounds for each in plan.packages if each.name == "torch-npu").lstrip("=")
    wheel = find_wheel(pinned)
    assert wheel is not None and wheel.takes_cann("8.5.0") and plan.before == ()


def test_numpy_2_stays_with_a_cann_that_runs_with_it(lay: Lay) -> None:
    plan = make_install_plan(lay(replace(HEALTHY, packages={}, cann=(Cann("9.0.0"),), driver="26.0.rc1")))
    assert next(each.bounds for each in plan.packages if each.name == "numpy") == ">=1.26,<3"


def test_old_cann_is_replaced_first(lay: Lay) -> None:
    plan = make_install_plan(lay(replace(HEALTHY, packages={}, cann=(Cann("7.0.0"),))))
    assert len(plan.before) >= 1 and plan.before[-1].startswith("CANN ")
    assert "8.5.0: the toolkit, and Ascend-cann-910b-ops; then" in plan.before[-1], plan.before


def test_machine_as_planned_has_nothing_to_install(lay: Lay) -> None:
    system = lay(replace(HEALTHY, packages={}, cann=(Cann("8.2.RC1"),)))
    lowest = {each.name: each.bounds.lstrip("=>").partition(",")[0] for each in make_install_plan(system).packages}
    again = make_install_plan(lay(replace(HEALTHY, packages=lowest, cann=(Cann("8.2.RC1"),))))
    assert again.packages == () and again.before == ()


@pytest.mark.parametrize("python", ["3.7", "3.99"])
def test_python_without_a_torch_npu_is_named(lay: Lay, python: str) -> None:
    plan = make_install_plan(lay(replace(HEALTHY, packages={}, python=python)))
    assert not plan.is_possible and plan.packages == () and "Python 3.11" in plan.before[0]
