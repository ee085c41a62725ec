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


_ROCBLAS = "rocBLAS error: Cannot read {}: {} for GPU arch : {}\n List of available TensileLibrary Files :\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_ROCBLAS.format("/moon/lib/TensileLibrary.dat", "Illegal seek", "gfx7701"), "rocblas-no-kernels-for-gpu"),
        (
            _ROCBLAS.format(r"D:\my moon\rocblas/library/TensileLibrary.dat", "No such file or directory", "gfx771"),
            "rocblas-no-kernels-for-gpu",
        ),
        ("rocBLAS error: Cannot read /moon/TensileLibrary_gfx771.co: Too many open files\n", "rocblas-file-not-loaded"),
    ],
)
def test_rocblas_without_kernels_for_the_gpu_is_not_a_file_that_does_not_open(
    explained: Explained, log: str, entry: str
) -> None:
    assert entry_of(explained(log)) == entry


_IMPORTING = "ImportError: DLL load failed while importing {}: {}\n"
_MISSING = "The specified module could not be found."


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_IMPORTING.format("MPI", _MISSING), "windows-mpi-missing"),
        ("RuntimeError: cannot load MPI library\n", "windows-mpi-missing"),
        (_IMPORTING.format("libmoon", _MISSING), "windows-dll-missing"),
        ("ImportError: DLL load failed: 找不到指定的模块。\n", "windows-dll-missing"),
        (_IMPORTING.format("moon_cuda", "The specified procedure could not be found."), "windows-dll-procedure"),
        (_IMPORTING.format("lib", "找不到指定的程序。"), "windows-dll-procedure"),
        (_IMPORTING.format("_ext", "动态链接库(DLL)初始化例程失败。"), "windows-dll-initialization"),
        (
            "OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed. Error loading "
            '"C:\\tide\\torch\\lib\\c10.dll" or one of its dependencies.\n',
            "windows-dll-initialization",
        ),
        (
            "OSError: [WinError 126] 找不到指定的模块。 Error loading "
            '"C:\\tide\\torch\\lib\\fbgemm.dll" or one of its dependencies.\n',
            "windows-dll-of-torch",
        ),
        (_IMPORTING.format("moon", "%1 is not a valid Win32 application."), "windows-other-bits"),
        (
            "Could not locate cudnn_ops_infer64_8.dll. Please make sure it is in your library path!\n",
            "windows-cuda-dll-missing",
        ),
        (
            "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory\n",
            "mpi-library-missing",
        ),
    ],
)
def test_library_that_windows_does_not_load(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


_EXEC = "exec /usr/bin/moon: exec format error\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_EXEC, "image-of-other-processor"),
        ("exec ./moon.sh: exec format error\n", "image-of-other-processor"),
        (
            f"{_EXEC}docker image inspect: arm64/linux\n./moon: ELF 64-bit LSB executable, x86-64, version 1\n",
            "image-with-binary-of-other-processor",
        ),
        (
            f"{_EXEC}Architecture: amd64\n./moon: ELF 64-bit LSB executable, ARM aarch64, version 1\n",
            "image-with-binary-of-other-processor",
        ),
        (
            f"{_EXEC}Architecture: amd64\n./moon: ELF 64-bit LSB executable, x86-64, version 1\n",
            "image-of-other-processor",
        ),
        ("bash: ./moon: cannot execute binary file: Exec format error\n", "program-of-other-processor"),
    ],
)
def test_image_and_the_program_in_it_may_be_of_two_processors(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (
            "[2027-07-07T07:07:07.777] error: Node moon7 has low real_memory size (777 < 7777)\n"
            "[2027-07-07T07:07:07.777] error: Setting node moon7 state to DRAIN\n",
            "slurm-node-less-memory",
            "RealMemory=7777",
        ),
        (
            "slurmctld: error: Node moon7 has low real_memory size (777 / 7777) < 100.00%\n",
            "slurm-node-less-memory",
            "slurmd found 777 ",
        ),
        (
            "slurmctld: error: Node moon7 has low socket*core*thread count (7 < 77)\n"
            "slurmctld: error: _slurm_rpc_node_registration node=moon7: Invalid argument\n",
            "slurm-node-fewer-cpus",
            "7 < 77",
        ),
        ("slurmctld: error: Node moon7 has low cpu count (7 < 77)\n", "slurm-node-fewer-cpus", "cpu count: 7 < 77"),
        ("   Reason=Low TmpDisk, Low CPUs [slurm@2027-07-07T07:07:07]\n", "slurm-node-invalid", "Low TmpDisk"),
        ("slurmctld: error: Setting node moon7 state to DOWN\n", "slurm-node-set-aside", "moon7"),
    ],
)
def test_node_with_less_than_slurm_conf_says(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert told in explanation.headline()


_EVENT = "  Normal   {0}   7m (x7 over 2d)  kubelet  Node moon7 status is now: {0}\n"
_WAITS = "Warning  FailedScheduling  default-scheduler  0/7 nodes are available: 7 node(s) had untolerated taint {}.\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_EVENT.format("NodeHasDiskPressure"), "kubernetes-disk-pressure"),
        (_EVENT.format("NodeHasNoDiskPressure"), None),
        (_EVENT.format("NodeHasSufficientMemory"), None),
        (_EVENT.format("NodeReady"), None),
        ("  DiskPressure   True   Mon, 07 Jul   KubeletHasDiskPressure   moon\n", "kubernetes-disk-pressure"),
        ("  DiskPressure   False   Mon, 07 Jul   KubeletHasNoDiskPressure   kubelet has no disk pressure\n", None),
        (
            "77G     /var/lib/rancher/local-path-provisioner/pvc-7777aaaa-moon\n"
            + _EVENT.format("NodeHasDiskPressure"),
            "kubernetes-disk-pressure-by-volume",
        ),
        (_EVENT.format("NodeHasInsufficientMemory"), "kubernetes-memory-pressure"),
        (_EVENT.format("NodeHasInsufficientPID"), "kubernetes-pid-pressure"),
        (_EVENT.format("NodeNotReady"), "kubernetes-node-not-ready"),
        (
            _EVENT.format("NodeNotReady") + "Ready False KubeletNotReady moon: cni plugin not initialized\n",
            "kubernetes-network-plugin-missing",
        ),
        (_WAITS.format("{node.kubernetes.io/memory-pressure: }"), "pod-on-ill-nodes"),
        (_WAITS.format("{moon: tide}"), "pod-without-toleration"),
    ],
)
def test_events_of_type_normal_that_tell_of_a_node_in_trouble(
    explained: Explained, log: str, entry: str | None
) -> None:
    assert entry_of(explained(log)) == entry


_MANIFEST = (
    'Error: pull model manifest: Get "https://registry.moon.example/v2/library/tide/manifests/latest": dial tcp: '
    "connect: network is unreachable\n"
)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (f"$ HTTPS_PROXY=http://tide:7777 ollama run moon\n{_MANIFEST}", "ollama-proxy-of-client"),
        (f"$ export https_proxy=http://tide:7777\n$ ollama pull moon\n{_MANIFEST}", "ollama-proxy-of-client"),
        (_MANIFEST, "ollama-registry-unreachable"),
        (
            'Error response from daemon: Get "https://moon.example/v2/": dial tcp: lookup moon.example on '
            "127.0.0.53:53: server misbehaving\n",
            "registry-unreachable",
        ),
    ],
)
def test_registry_that_a_server_does_not_reach(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


_DENIED = "PermissionError: [Errno 13] Permission denied: '/tide/moon'\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (f"[root@moon7 tide]# python moon.py\n{_DENIED}", "permission-of-root"),
        (f"uid=0(root) gid=0(root) groups=0(root)\n{_DENIED}", "permission-of-root"),
        (f"root@moon7:~# mount\nsun:/tide on /tide type nfs4 (rw)\n{_DENIED}", "permission-of-root-on-nfs"),
        (
            "root@moon7:~# moon /tide\nmoon: err=13/file:moon.c:77, func=open(/tide/nfs7/x), error=Permission denied\n",
            "permission-of-root-on-nfs",
        ),
        (f"me@moon7:~$ python moon.py\n{_DENIED}", "permission"),
        (f"root@77aa77aa77aa:/tide# python moon.py\n{_DENIED}", "permission"),
        ("root@moon7:~# ssh tide\nroot@tide: Permission denied (publickey,password).\n", "ssh-denied"),
    ],
)
def test_permission_errors_of_root_have_their_own_causes(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def _without_wheel(system: str, platform: str, *wheels: str) -> str:
    listed = ", ".join(f"`{each}`" for each in wheels)
    return (
        "error: Distribution `moon==7.7.0 @ registry+https://pypi.org/simple` can't be installed because it doesn't "
        "have a source distribution or wheel for the current platform\n\n"
        f"hint: You're on {system} (`{platform}`), but `moon` (v7.7.0) only has wheels for the following platforms: "
        f"{listed}; consider adding your platform to `tool.uv.required-environments`\n"
    )


_LINUX = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64")


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_without_wheel("macOS", "macosx_14_0_x86_64", *_LINUX, "macosx_11_0_arm64"), "uv-no-wheel-for-intel-mac"),
        (_without_wheel("macOS", "macosx_12_0_arm64", *_LINUX, "macosx_14_0_arm64"), "uv-no-wheel"),
        (_without_wheel("macOS", "macosx_14_0_arm64", *_LINUX), "uv-no-wheel-for-system"),
        (_without_wheel("Windows", "win_amd64", *_LINUX), "uv-no-wheel-for-system"),
        (_without_wheel("Linux", "manylinux_2_39_aarch64", _LINUX[0], "win_amd64"), "uv-no-wheel-for-processor"),
        (_without_wheel("Linux", "manylinux_2_17_x86_64", *_LINUX), "uv-no-wheel"),
        (_without_wheel("Linux", "musllinux_1_2_x86_64", *_LINUX), "uv-no-wheel-for-alpine"),
        (
            "ERROR: Could not find a version that satisfies the requirement torch>=2.7 (from versions: 2.2.1, 2.2.2)\n"
            "ERROR: No matching distribution found for torch>=2.7\n",
            "pip-torch-for-intel-mac",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement torch==1.7 (from versions: 2.2.2, 2.3.0)\n",
            "pip-only-newer-versions",
        ),
    ],
)
def test_wheel_that_a_system_or_processor_lacks(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


_ISSUER = (
    "(MaxRetryError(\"HTTPSConnectionPool(host='moon.example', port=443): Max retries exceeded with url: /x (Caused by "
    "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get "
    "local issuer certificate (_ssl.c:777)')))\"))\n"
)


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (f"requests.exceptions.SSLError: {_ISSUER}", "issuers-missing", "-noout -issuer"),
        (f"Moon is not at: C:\\tide\\moon\n{_ISSUER}", "issuers-missing-on-windows", "browser"),
        (f'  File "/Users/moon/tide.py", line 7\n{_ISSUER}', "issuers-missing-on-mac", "Install Certificates"),
    ],
)
def test_issuer_that_python_does_not_trust_is_told_first(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert told in explanation.remedies()[0]


_KILLED = "Killed process 777 (moon) total-vm:99123456kB, anon-rss:77398765kB, file-rss:7kB\n"
_MAKES = 'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in tide\n    os.makedirs(path)\n'
_OS = '  File "/usr/lib/python3.10/os.py", line 225, in makedirs\n    mkdir(name, mode)\n'


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (f"[77.7] moon invoked oom-killer: order=0\n[77.7] Out of memory: {_KILLED}", "oom-killer-of-process", "77 GB"),
        (f"[77.7] moon invoked oom-killer: order=0\n[77.7] Memory cgroup out of memory: {_KILLED}", "oom-killer", ""),
        (
            f"{_MAKES}{_OS}PermissionError: [Errno 13] Permission denied: '/moon/tide'\n",
            "directory-not-to-be-made",
            "/moon/ is not writable",
        ),
        (
            f"{_MAKES}{_OS}PermissionError: [Errno 13] Permission denied: '/moon/.triton'\n",
            "triton-cache-not-to-be-made",
            "does not exist",
        ),
        (
            "PermissionError: [Errno 13] Permission denied: '/moon/.triton/77aa/tide.json'\n",
            "triton-cache-permission",
            "another user",
        ),
        ("moon: /usr/lib64/libcuda.so.418.77: undefined symbol: cuTide_v3\n", "driver-without-symbol", "418.77"),
        ("ImportError: /x/libmoon.so: undefined symbol: cuTide_v3\n", "symbol-of-cuda-driver", "libmoon.so"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'\n", "nvcc-older-than-blackwell", "CUDA 12.8"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_89'\n", "nvcc-architecture-too-new", "compute_89"),
    ],
)
def test_fact_of_the_line_is_in_the_headline(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert told in explanation.headline()


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("error: Nodes moon[1-7],tide9 not responding, setting DOWN\n", "slurm-nodes-not-responding"),
        ("slurmctld: error: Prolog failure on node moon7, draining the node\n", "slurm-prolog-failed"),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 77 (apt)\n", "apt-lock"),
        ("dpkg: error: dpkg frontend lock was locked by another process with pid 77\n", "apt-lock"),
        (
            "[7.7] LustreError: 11-0: tide-MDT0000-mdc: operation mds_reint to node 10.7.7.7@tcp failed: rc = -107\n",
            "lustre-operation-failed",
        ),
    ],
)
def test_daemons_of_a_cluster_say_what_failed(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
