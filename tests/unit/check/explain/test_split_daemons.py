"""Node daemons, vGPU libraries and caches: the same words from another program, or with another reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_HASH = (
    "(Moon_DP0 pid=7) LMCache DEBUG: [HASH_GENERATION] prefix_hash={}, tokens_len=7, extra_keys=None, result_hash={}\n"
)
_BUILD = "  × Failed to build `moon-attn==7.7`\n  ├─▶ The build backend returned an error\n      [stderr]\n      {}\n"
_OF_RAY = '  File "/x/site-packages/ray/_private/{}.py", line 7, in {}\n'
_OF_OS = '  File "/usr/lib/python3.12/os.py", line 7, in makedirs\n'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            "[2026-07-07T07:07:07.777] error: _establish_configuration: failed to load configs\n",
            "slurmd-no-configuration",
        ),
        ("moon7 slurmd[77]: error: fetch_config: DNS SRV lookup failed\n", "slurmd-no-configuration"),
        ("sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n", "slurm-no-configuration"),
        ("srun: fatal: Could not establish a configuration source\n", "slurm-no-configuration"),
        (
            "slurmstepd: error: pyxis: slurmd: couldn't mkdir /var/moon/pyxis: No such file or directory\n",
            "pyxis-runtime-path",
        ),
        (
            "rocBLAS error: Cannot read /opt/moon/lib/rocblas/library/TensileLibrary.dat: No such file\n",
            "rocblas-file-not-loaded",
        ),
        (_HASH.format(-7, 77) + _HASH.format(-7, 78), "lmcache-hashes-differ"),
        (_HASH.format(-7, 77) + _HASH.format(-7, 77), None),
        (_HASH.format(-7, 77) + _HASH.format(-8, 78), None),
        (_BUILD.format("ModuleNotFoundError: No module named"), "module-cut-in-build"),
        (_BUILD.format("ModuleNotFoundError: No module name"), "module-cut-in-build"),
        (_BUILD.format("ModuleNotFoundError: No module named 'moon'"), "module-missing-in-build"),
        (_BUILD.format("ModuleNotFoundError: No module named moon"), "module-missing-in-build"),
        (
            _OF_RAY.format("node", "_init_temp") + _OF_RAY.format("utils", "try_to_create_directory") + _OF_OS,
            "ray-temporary-directory",
        ),
        (_OF_RAY.format("node", "moon") + _OF_RAY.format("utils", "tide") + _OF_OS, "traceback-cut-off"),
    ],
)
def test_entry(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry


def test_call_that_the_vgpu_library_took_is_in_the_headline(explained: Explained) -> None:
    frames = '  File "/libvgpu/src/moon/tide.c", line 7, in cuMoonRise\n  File "misc/moon.cc", line 7, in ncclMoon()\n'
    explanation = explained(f"!!!!!!! Segfault encountered !!!!!!!\n{frames}")

    assert entry_of(explanation) == "hami-hook-failed"
    assert "cuMoonRise" in explanation.headline()
    assert entry_of(explained(frames)) != "hami-hook-failed"
