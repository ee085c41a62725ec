"""`ascendtune env export`: the lines, and what a real bash makes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ascend_node.node import Cann, Node
from ascendtune.core.errors import AscendtuneError
from ascendtune.machine.environment.shell import export_lines


def _machine(root: Path, *releases: str, latest: str | None = None, nnal: bool = True) -> dict[str, str]:
    """A machine with these toolkits, none loaded; their scripts set ASCEND_HOME_PATH and note that they were read."""
    env = Node(cann=tuple(Cann(release, loaded=False) for release in releases)).lay_out(root)
    base = root / "usr/local/Ascend"
    for release in releases:
        script = base / "ascend-toolkit" / release / "bin/setenv.bash"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f"export ASCEND_HOME_PATH='{script.parent.parent}' READ=$READ:{release}\n")
    if latest:
        (base / "ascend-toolkit/latest").symlink_to(latest)
        (base / "ascend-toolkit/set_env.sh").write_text(f"export READ=$READ:latest-{latest}\n")
    if nnal:
        (base / "nnal/atb").mkdir(parents=True)
        (base / "nnal/atb/set_env.sh").write_text('export ATB_HOME_PATH="it\'s here" READ=$READ:atb\n')
    return env


def _evaluated(lines: list[str], name: str, *, quoted: bool = True) -> str:
    text = "\n".join(lines) if quoted else " ".join(lines)
    script = f'set -e\neval "$1"\nprintf %s "${name}"'
    done = subprocess.run(
        ["bash", "-c", script, "-", text], capture_output=True, text=True, check=True, env={"READ": ""}
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("quoted", [True, False])
def test_newest_toolkit_and_atb_are_loaded_in_a_directory_with_spaces(tmp_path: Path, quoted: bool) -> None:
    root = tmp_path / "a machine's $(root)"
    env = _machine(root, "8.1.RC1", "8.2.RC1", latest="8.2.RC1")
    lines = export_lines(env, root=root, has_npus=True)
    assert _evaluated(lines, "READ", quoted=quoted) == ":latest-8.2.RC1:atb"
    assert _evaluated(lines, "PYTORCH_NPU_ALLOC_CONF", quoted=quoted) == "expandable_segments:True"


def test_named_release_is_loaded_by_its_own_script(tmp_path: Path) -> None:
    env = _machine(tmp_path, "8.1.RC1", "8.2.RC1", latest="8.2.RC1", nnal=False)
    assert _evaluated(export_lines(env, root=tmp_path, release="8.1.RC1"), "READ") == ":8.1.RC1"


def test_a_release_in_a_directory_of_its_own_is_loaded_by_its_script(tmp_path: Path) -> None:
    """CANN 8.5 and later: /usr/local/Ascend/cann-8.5.0, beside older ones in ascend-toolkit."""
    env = _machine(tmp_path, "8.2.RC1", "8.5.0", nnal=False)
    assert _evaluated(export_lines(env, root=tmp_path), "READ") == ":8.5.0"
    assert _evaluated(export_lines(env, root=tmp_path, release="8.2.RC1"), "READ") == ":8.2.RC1"


@pytest.mark.parametrize("place", ["user", "given by root"])
def test_a_toolkit_that_a_user_or_root_installed_elsewhere_is_found(tmp_path: Path, place: str) -> None:
    env = Node(cann=()).lay_out(tmp_path / "root")
    home = tmp_path / "root/opt/ascend" if place == "given by root" else tmp_path / "home/Ascend"
    env["HOME"] = str(tmp_path / "home")
    Node(cann=(Cann("9.0.0", loaded=False),)).lay_out(tmp_path / "other")
    (tmp_path / "other/usr/local/Ascend").rename(_made(home.parent) / home.name)
    (home / "nnal/atb").mkdir(parents=True)
    (home / "nnal/atb/set_env.sh").write_text("export READ=$READ:atb\n")
    if place == "given by root":
        record = tmp_path / "root/etc/Ascend/ascend_cann_install.info"
        _made(record.parent)
        record.write_text("Install_Path=/opt/ascend\nToolkit_InstallPath=/opt/ascend/cann-9.0.0\n")
    lines = export_lines(env, root=tmp_path / "root", has_npus=True)
    assert _evaluated(lines, "READ") == ":9.0.0:atb"


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def test_loaded_toolkit_and_set_variables_are_left_out(tmp_path: Path) -> None:
    env = _machine(tmp_path, "8.2.RC1")
    kit = tmp_path / "usr/local/Ascend/ascend-toolkit/8.2.RC1"
    env |= {"ASCEND_HOME_PATH": str(kit), "ATB_HOME_PATH": "/x", "TASK_QUEUE_ENABLE": "1"}
    lines = export_lines(env, root=tmp_path, has_npus=True)
    assert not any(line.startswith(". ") or "TASK_QUEUE" in line for line in lines)
    with pytest.raises(AscendtuneError) as caught:
        export_lines(env, root=tmp_path, release="8.1.RC1")
    assert caught.value.code == "conflicting-options"


def test_missing_toolkit_is_an_error_on_a_machine_with_npus_only(tmp_path: Path) -> None:
    env = Node(cann=()).lay_out(tmp_path)
    assert export_lines(env, root=tmp_path) == []
    with pytest.raises(AscendtuneError) as caught:
        export_lines(env, root=tmp_path, has_npus=True)
    assert caught.value.code == "cann-missing"
    with pytest.raises(AscendtuneError) as caught:
        export_lines(env, root=tmp_path, release="9.9.9")
    assert caught.value.code == "unknown-name"


def test_script_that_others_may_change_is_refused(tmp_path: Path) -> None:
    env = _machine(tmp_path, "8.2.RC1", latest="8.2.RC1")
    (tmp_path / "usr/local/Ascend/nnal/atb/set_env.sh").chmod(0o666)
    with pytest.raises(AscendtuneError) as caught:
        export_lines(env, root=tmp_path)
    assert caught.value.code == "writable-by-others"
