"""Output of package managers around a failure decides between its causes. Names and numbers are invented."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.facts import of_log

Explained = Callable[..., Explanation]
_NO_VERSION = (
    "ERROR: Could not find a version that satisfies the requirement tide==2.0 (from versions: none)\n"
    "ERROR: No matching distribution found for tide==2.0\n"
)


@pytest.mark.parametrize(
    ("error", "reason", "entry"),
    [
        (
            "ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407 Proxy Authentication "
            "Required'))",
            "Tunnel connection failed: 407 Proxy Authentication Required",
            "pip-index-proxy",
        ),
        (
            "NewConnectionError('<HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -3] "
            "Temporary failure in name resolution')",
            "[Errno -3] Temporary failure in name resolution",
            "pip-index-name",
        ),
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
            "self-signed certificate (_ssl.c:1000)'))",
            "certificate verify failed: self-signed certificate",
            "pip-index-certificate",
        ),
    ],
)
def test_pip_without_a_connection_is_not_told_that_the_index_lacks_the_package(
    explained: Explained, error: str, reason: str, entry: str
) -> None:
    retry = f"WARNING: Retrying (Retry(total=0)) after connection broken by '{error}': /simple/tide/\n"

    assert entry_of(explained(_NO_VERSION)) == "pip-no-version"
    assert entry_of(explained(retry + _NO_VERSION)) == entry
    assert reason in explained(retry + _NO_VERSION).headline()


def test_python_that_ignored_versions_require_is_named_for_the_version_asked_for(explained: Explained) -> None:
    ignored = (
        "ERROR: Ignored the following versions that require a different python version: 1.9 Requires-Python >=3.9; "
        "2.0 Requires-Python >=3.11\n"
    )

    explanation = explained(ignored + _NO_VERSION)

    assert entry_of(explanation) == "pip-other-python"
    assert "tide==2.0" in explanation.headline()
    assert ">=3.11" in explanation.headline()


def test_conda_s_list_of_missing_packages_and_its_platform_are_in_the_headline(explained: Explained) -> None:
    listed = "ResolvePackageNotFound: \n  - moon=1.11.0\n  - tide==4.5=h9c3ff4c_1\n"

    explanation = explained(f"Platform: linux-aarch64\nSolving environment: failed\n\n{listed}")

    assert entry_of(explanation) == "conda-not-on-platform"
    assert "linux-aarch64: moon=1.11.0, tide==4.5=h9c3ff4c_1" in explanation.headline()
    assert entry_of(explained(listed)) == "conda-missing"


def test_wheel_of_another_glibc_is_told_from_uv_s_hint(explained: Explained) -> None:
    explanation = explained(
        "error: Distribution `tide==2.7.0 @ registry+https://moon.example/simple` can't be installed because it "
        "doesn't have a source distribution or wheel for the current platform\n\nhint: You're on Linux "
        "(`manylinux_2_27_x86_64`), but `tide` (v2.7.0) only has wheels for the following platforms: "
        "`manylinux_2_28_x86_64`, `win_amd64`; consider adding your platform\n"
    )

    assert (
        "(manylinux_2_27_x86_64): there are wheels for `manylinux_2_28_x86_64`, `win_amd64`" in explanation.headline()
    )


@pytest.mark.parametrize(
    "output",
    [
        "  ╰─> [2 lines of output]\n      running build\n      Could not locate moon. Try to set MOON_HOME\n"
        "      [end of output]\n",
        "      [stderr]\n      running build\n      Could not locate moon. Try to set MOON_HOME\n\n",
    ],
)
def test_last_line_of_a_build_is_in_the_headline(explained: Explained, output: str) -> None:
    explanation = explained(f"{output}  ERROR: Failed building wheel for tide\n")

    assert entry_of(explanation) == "build-said"
    assert "(tide): Could not locate moon. Try to set MOON_HOME" in explanation.headline()


def test_full_disk_of_pip_in_a_docker_build_is_that_of_docker(explained: Explained) -> None:
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    step = "The command '/bin/sh -c pip install tide' returned a non-zero code: 1\n"

    assert entry_of(explained(full)) == "pip-temporary-full"
    assert entry_of(explained(full + step)) == "pip-disk-full"


def test_time_of_a_docker_build_is_a_prefix(explained: Explained) -> None:
    explanation = explained("#12 47.38   error: RPC failed; curl 92 HTTP/2 stream 0 was not closed cleanly: CANCEL\n")

    assert explanation.headline().startswith("git's download broke off: HTTP/2 stream 0")


def test_reason_that_is_only_the_system_s_is_told_with_what_it_is_about(explained: Explained) -> None:
    explanation = explained("mount.tide: mount moon at /mnt/moon failed: Input/output error\n")

    assert "mount moon at /mnt/moon failed: Input/output error" in explanation.headline()


def test_message_of_cmake_is_read_to_its_end(explained: Explained) -> None:
    explanation = explained(
        "CMake Error at CMakeLists.txt:8 (message):\n  the moon is up, please set\n  MOON_HOME to its place.\n"
    )

    assert "the moon is up, please set MOON_HOME to its place" in explanation.headline()


def test_tensor_of_many_devices_is_a_size_computed_wrongly(explained: Explained) -> None:
    said = (
        "torch.OutOfMemoryError: NPU out of memory. Tried to allocate {} GiB (NPU 0; 61.28 GiB total capacity; 43.12 "
        "GiB already allocated; 15.01 GiB free; 44.00 GiB reserved in total by PyTorch)\n"
    )

    assert "computed wrongly" in explained(said.format("5503.00")).remedies()[0]
    assert "computed wrongly" not in explained(said.format("70.00")).remedies()[0]


def test_log_without_package_managers_has_none_of_their_facts() -> None:
    facts = of_log(["step 7 loss 0.7\nsaved /run/checkpoint-7\n"])

    assert not facts.keys() & {"uv_hint", "conda_missing", "build_said", "docker_build", "pip_broken", "pip_python"}


def test_gated_repository_is_named_from_the_lines_below(explained: Explained) -> None:
    explanation = explained(
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-7)\n\n"
        "Cannot access gated repo for url https://huggingface.co/moon/Tide-8B/resolve/main/config.json.\n"
    )

    assert entry_of(explanation) == "gated-without-login"
    assert explanation.headline().startswith("moon/Tide-8B is gated")


@pytest.mark.parametrize("prefix", ["", "#0 11.90 "])
def test_requirements_that_conflict_are_in_the_headline(explained: Explained, prefix: str) -> None:
    said = (
        "ERROR: Cannot install moon because these package versions have conflicting dependencies.\n\n"
        'The conflict is caused by:\n    moon[sea] 0.8 depends on tide==2.1.0; extra == "sea"\n'
        "    The user requested tide==2.2\n\nERROR: ResolutionImpossible: for help visit https://pip.pypa.io\n"
    )

    explanation = explained("".join(f"{prefix}{line}\n" for line in said.splitlines()))

    assert entry_of(explanation) == "pip-conflict"
    assert "moon[sea] 0.8 depends on tide==2.1.0; The user requested tide==2.2" in explanation.headline()


def test_requirements_that_conflict_are_told_in_the_words_of_a_resolver(explained: Explained) -> None:
    explanation = explained(
        "ERROR: Installation of moon==0.8 has failed due to conflicting dependencies.\nThe conflict arises from:\n"
        "    The required version of tide is 2.1.0\n    moon 0.8 depends on tide version 2.2 or higher\n"
    )

    assert entry_of(explanation) == "pip-conflict"
    assert "The required version of tide is 2.1.0; moon 0.8 depends on tide version 2.2" in explanation.headline()


def test_package_with_another_hash_is_named(explained: Explained) -> None:
    explanation = explained(
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n"
        "    tide==2.2 from https://moon.example/tide-2.2.whl#sha256=eb51:\n        Expected sha256 eb51\n"
    )

    assert "file of tide==2.2 is not the one" in explanation.headline()


def test_error_in_the_indented_output_of_a_build_is_an_error(explained: Explained) -> None:
    explanation = explained("      CMake Error at CMakeLists.txt:7 (message):\n        the moon is not up.\n")

    assert "the moon is not up" in explanation.headline()


def test_last_versions_of_the_index_are_in_the_headline(explained: Explained) -> None:
    explanation = explained(
        "ERROR: Could not find a version that satisfies the requirement tide==9 (from moon) "
        "(from versions: 1.0, 1.1, 1.2, 2.0.post1, 2.1, 2.2rc1)\nERROR: No matching distribution found for tide==9\n"
    )

    assert "the last that it has: 1.1, 1.2, 2.0.post1, 2.1, 2.2rc1" in explanation.headline()


@pytest.mark.parametrize(
    "line",
    [
        "ls: cannot access '/moon/tide': No such file or directory",
        "bash: /usr/local/Ascend/nnal/atb/set_env.sh: No such file or directory",
        "link status: DOWN",
    ],
)
def test_a_recoverable_error_is_a_failure_only_in_an_excerpt(explained: Explained, line: str) -> None:
    steps = "".join(f"step {step} loss 0.7\n" for step in range(30))

    assert not explained(f"start\n{line}\n").is_healthy
    assert explained(f"start\n{line}\n{steps}Training completed.\n").is_healthy


def test_code_of_a_traceback_that_is_cut_off_is_not_what_a_build_said(explained: Explained) -> None:
    output = (
        "  × Failed to build `tide==7.1`\n      [stderr]\n      Traceback (most recent call last):\n"
        '        File "<string>", line 7, in <module>\n          moon(\n          ^^^^^\n{end}'
    )

    assert explained(output.format(end="          )\n          ^\n")).headline().endswith("built: tide==7.1")
    assert explained(output.format(end="      OddMoon: it is full\n")).headline().endswith("OddMoon: it is full")


@pytest.mark.parametrize(
    ("wanted", "offered", "entry"),
    [
        ("tide==2.1.2", "2.2.0, 2.10.1+cu777", "pip-only-newer-versions"),
        ("tide==2.1.2+cu777 (from moon)", "2.2.0", "pip-only-newer-versions"),
        ("tide==2.1.2", "2.1.2.post7", "pip-other-versions"),
        ("tide==2.1.2", "2.0.7, 2.2.0", "pip-other-versions"),
        ("tide==2.1.2", "1.7", "pip-other-versions"),
        ("tide==2.1.*", "2.2.0", "pip-only-newer-versions"),
    ],
)
def test_python_that_is_too_new_is_told_where_all_releases_offered_are_newer(
    explained: Explained, wanted: str, offered: str, entry: str
) -> None:
    said = f"ERROR: Could not find a version that satisfies the requirement {wanted} (from versions: {offered})\n"

    explanation = explained(said)

    assert entry_of(explanation) == entry
    assert offered in explanation.headline()


@pytest.mark.parametrize(
    ("rows", "entry"),
    [
        (("moon 0.9 depends on tide", "moon 0.8 depends on tide"), "pip-dependency-gone"),
        (("moon 0.9 depends on tide", "moon 0.8 depends on tide<2"), "pip-conflict"),
        (("moon 0.9 depends on tide", "sun 0.8 depends on tide"), "pip-conflict"),
        (("moon 0.9 depends on tide", "The user requested tide"), "pip-conflict"),
    ],
)
def test_dependency_that_cannot_be_had_is_not_a_conflict_of_versions(
    explained: Explained, rows: tuple[str, ...], entry: str
) -> None:
    said = "".join(f"    {row}\n" for row in rows)

    assert entry_of(explained(f"The conflict is caused by:\n{said}\nERROR: ResolutionImpossible: for help\n")) == entry


def test_versions_with_digits_without_end_end_nothing(explained: Callable[..., Explanation]) -> None:
    for asked, offered in ((f"1.{'7' * 5000}", "2.0"), ("1.7", "7" * 5000)):
        log = (
            f"ERROR: Could not find a version that satisfies the requirement moon=={asked} (from versions: {offered})\n"
        )

        assert not explained(log).is_healthy


@pytest.mark.parametrize(
    ("rows", "told", "left_out"),
    [
        (
            (
                *("The user requested tide==2.1.1", "moon 0.34 depends on tide>=1.10.0"),
                *("sea 7 depends on tide", "sun 0.5 depends on tide==2.4.0"),
            ),
            ("tide==2.1.1", "tide==2.4.0"),
            ("moon", "sea"),
        ),
        (
            ("The user requested tide==2.1", "moon 1 depends on tide>=2.4", "sea 7 depends on tide"),
            ("tide==2.1", "tide>=2.4"),
            ("sea",),
        ),
        (("moon 1 depends on tide", "sea 7 depends on tide"), ("moon 1", "sea 7"), ()),
        (("moon 1 depends on tide<2", "sea 7 depends on tide>=2", "sun 1 depends on tide==1.7"), ("sea 7",), ()),
    ],
)
def test_only_the_requirements_that_conflict_are_told(
    explained: Explained, rows: tuple[str, ...], told: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    listed = "".join(f"    {row}\n" for row in rows)
    log = "ERROR: Cannot install tide because these package versions have conflicting dependencies.\n\n"

    headline = explained(f"{log}The conflict is caused by:\n{listed}").headline()

    assert all(map(headline.__contains__, told))
    assert not any(map(headline.__contains__, left_out))
