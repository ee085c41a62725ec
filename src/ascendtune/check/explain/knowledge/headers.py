"""System packages with the headers that a compiler did not find."""

from __future__ import annotations

from ascendtune.check.explain.knowledge.entries import FIX, MISMATCH
from ascendtune.check.explain.knowledge.matcher import Hit
from ascendtune.check.explain.language import say

_ENTRY = "system-header-missing"
_PACKAGES = {
    "libaio.h": ("libaio-dev", "libaio-devel", "libaio"),
    "mpi.h": ("libopenmpi-dev openmpi-bin", "openmpi-devel", "openmpi"),
    "numa": ("libnuma-dev", "numactl-devel", "numactl"),
    "infiniband/": ("libibverbs-dev", "rdma-core-devel", "rdma-core"),
    "rdma/": ("librdmacm-dev", "rdma-core-devel", "rdma-core"),
    "openssl/": ("libssl-dev", "openssl-devel", "openssl"),
    "ffi.h": ("libffi-dev", "libffi-devel", "libffi"),
    "zlib.h": ("zlib1g-dev", "zlib-devel", "zlib"),
    "lzma.h": ("liblzma-dev", "xz-devel", "xz"),
    "bzlib.h": ("libbz2-dev", "bzip2-devel", "bzip2"),
    "portaudio.h": ("portaudio19-dev", "portaudio-devel", "portaudio"),
    "sndfile.h": ("libsndfile1-dev", "libsndfile-devel", "libsndfile"),
    "glog/": ("libgoogle-glog-dev", "glog-devel", "glog"),
    "gflags/": ("libgflags-dev", "gflags-devel", "gflags"),
    "libpq-fe.h": ("libpq-dev", "libpq-devel", "libpq"),
    "mysql.h": ("default-libmysqlclient-dev", "mysql-devel", "mysql-connector-c"),
    "libxml/": ("libxml2-dev", "libxml2-devel", "libxml2"),
    "curl/": ("libcurl4-openssl-dev", "libcurl-devel", "libcurl"),
    "yaml.h": ("libyaml-dev", "libyaml-devel", "yaml"),
    "sqlite3.h": ("libsqlite3-dev", "sqlite-devel", "sqlite"),
    "snappy.h": ("libsnappy-dev", "snappy-devel", "snappy"),
    "uuid/": ("uuid-dev", "libuuid-devel", "libuuid"),
    "boost/": ("libboost-all-dev", "boost-devel", "boost-cpp"),
    "Eigen/": ("libeigen3-dev", "eigen3-devel", "eigen"),
    "linux/": ("linux-libc-dev", "kernel-headers", "sysroot_linux-64"),
    "hwloc.h": ("libhwloc-dev", "hwloc-devel", "libhwloc"),
    "ucp/": ("libucx-dev", "ucx-devel", "ucx"),
    "jpeglib.h": ("libjpeg-dev", "libjpeg-turbo-devel", "libjpeg-turbo"),
    "png.h": ("libpng-dev", "libpng-devel", "libpng"),
    "libavcodec/": ("libavcodec-dev", "ffmpeg-devel", "ffmpeg"),
}
"""By the beginning of a header's path: packages of Debian and Ubuntu, of Fedora and RHEL, and of conda-forge."""


def name_package(hit: Hit) -> None:
    """If `hit` is a missing header, add its package and the command that installs it to the names."""
    header = hit.names.get("header", "") if hit.entry.id == _ENTRY else ""
    names = next((names for beginning, names in _PACKAGES.items() if header.startswith(beginning)), None)
    if not header or names is None:
        return
    apt, dnf, conda = names
    hit.names[MISMATCH] = apt.partition(" ")[0]
    hit.names[FIX] = say(
        "as root: apt-get update && apt-get install -y {apt} (dnf install -y {dnf}), then build again; no root: conda "
        "install -c conda-forge {conda}, and export CPATH=$CONDA_PREFIX/include:$CPATH "
        "LIBRARY_PATH=$CONDA_PREFIX/lib:$LIBRARY_PATH",
        apt=apt,
        dnf=dnf,
        conda=conda,
    )
