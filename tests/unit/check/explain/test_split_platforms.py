"""The same words on another system, processor or cluster, with another cause. Names and numbers are invented."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_UNSATISFIABLE = "LibMambaUnsatisfiableError: Encountered problems while solving:\n"
_CONFLICTS = "which conflicts with any installable versions previously reported"


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        (
            "├─ tide ==12.1 h77a16c_5 is requested and can be installed;\n"
            "└─ moon 2.0.2  is not installable because there are no viable options\n"
            "   ├─ moon 2.0.2 would require\n"
            f"   │  └─ tide 11.7.* , {_CONFLICTS};\n"
            "   └─ moon 2.0.2 would require\n"
            f"      └─ tide 11.8.* , {_CONFLICTS}.\n",
            "moon 2.0.2 requires tide 11.7.* or 11.8.*, and tide ==12.1",
        ),
        (
            "├─ python 3.12**  is requested and can be installed;\n"
            "└─ moon 1.19**  is uninstallable because it requires\n"
            f"   └─ python >=3.6,<3.7.0a0 , {_CONFLICTS}.\n",
            "moon 1.19* requires python >=3.6,<3.7.0a0, and python 3.12*",
        ),
        (
            "├─ tide 7.0**  is installable and it requires\n"
            "│  └─ numpy >=2.0,<3 , which can be installed;\n"
            "└─ moon is not installable because it requires\n"
            f"   └─ numpy <1.20 , {_CONFLICTS}.\n",
            "moon requires numpy <1.20, and tide 7.0* requires numpy >=2.0,<3",
        ),
    ],
)
def test_conda_names_the_two_requirements_that_exclude_each_other(explained: Explained, tree: str, told: str) -> None:
    explanation = explained(f"{_UNSATISFIABLE}The following packages are incompatible\n{tree}")

    assert entry_of(explanation) == "conda-requirements-apart"
    assert told in explanation.headline()


def test_package_that_no_channel_has_is_not_told_to_exclude_another(explained: Explained) -> None:
    log = f"{_UNSATISFIABLE}  - nothing provides requested moon 1.9.3*\n"

    assert entry_of(explained(log)) == "conda-missing"
