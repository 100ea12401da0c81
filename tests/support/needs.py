# SPDX-License-Identifier: MIT
"""What tests need and a machine may lack: @pytest.mark.needs("compiler"), or `gpu`, or mpirun for those marked `launcher`.

Without it they are skipped, and say so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hybrid.core.wall import launcher_above


def _program(what: str, *names: str) -> str:
    return "" if any(map(shutil.which, names)) else what


def _compiler() -> str:
    from hybrid.emulation.build import compiler
    from hybrid.errors import DeviceUnavailable

    try:
        compiler()
    except DeviceUnavailable:
        return "a C++ compiler"
    return ""


def _c_compiler() -> str:
    from hybrid.emulation.build import c_compiler
    from hybrid.errors import DeviceUnavailable

    try:
        c_compiler()
    except DeviceUnavailable:
        return "a C compiler"
    return ""


def _gpu() -> str:
    from hybrid.devices.cuda_gpus import usable_gpus
    from hybrid.errors import DeviceUnavailable

    try:
        usable_gpus()
    except DeviceUnavailable as missing:
        return f"a GPU: {missing}"
    return ""


def _mpirun() -> str:
    from hybrid.errors import StartError
    from hybrid.ranks.launcher import mpirun

    try:
        mpirun(1)
    except StartError as missing:
        return f"mpirun: {missing}"
    return ""


def _git() -> str:
    here = Path(__file__).resolve().parents[2]
    if (here / ".git").exists() and shutil.which("git"):
        return ""
    return "git, and a checkout of it: this is an unpacked archive" if shutil.which("git") else "git"


def hadolint() -> str | None:
    """The linter of Containerfiles, on PATH or in this Python's environment."""
    import sys

    return shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def _installed() -> str:
    import sys

    return "" if Path(sys.executable).with_name("hybrid-matmul").exists() else "this package installed, with its commands"


def _zarr() -> str:
    return "" if importlib.util.find_spec("zarr") else "zarr-python 3, which needs Python 3.11"


def _namespaces() -> str:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "root, and unshare: to mount things that nobody else sees"
    tried = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "leave to mount things in a namespace of its own"


def _landlock() -> str:
    from hybrid.emulation import landlock

    return "" if landlock.version() else "Landlock: Linux 5.13 or newer, with it turned on"


def _user_namespaces() -> str:
    from hybrid.emulation import namespaces

    return "" if namespaces.possible(namespaces.keep_to_itself) else "a system that lets users make namespaces"


_LACKING = {
    "addr2line": lambda: _program("addr2line (binutils)", "addr2line"),
    "compiler": _compiler,
    "c compiler": _c_compiler,
    "chromium": lambda: _program("Chromium", "chromium", "chromium-browser", "google-chrome"),
    "commands": _installed,
    "hadolint": lambda: "" if hadolint() else "hadolint (extra dev)",
    "environment modules": lambda: _program("Environment Modules", "modulecmd"),
    "gpu": _gpu,
    "h5py": lambda: "" if importlib.util.find_spec("h5py") else "h5py",
    "git": _git,
    "landlock": _landlock,
    "mpirun": _mpirun,
    "matplotlib": lambda: "" if importlib.util.find_spec("matplotlib") else "matplotlib",
    "ml_dtypes": lambda: "" if importlib.util.find_spec("ml_dtypes") else "ml_dtypes",
    "namespaces": _namespaces,
    "notebooks": lambda: (
        "" if importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel") else "Jupyter's nbclient"
    ),
    "no launcher above": lambda: "a start without mpirun" if launcher_above() is not False else "",
    "root": lambda: "" if os.geteuid() == 0 else "root",
    "scalapack": lambda: (
        "" if Path("/usr/share/scalapack/PBLAS").is_dir() else "the problems of PBLAS' own tests (Debian: scalapack-test-common)"
    ),
    "scipy": lambda: "" if importlib.util.find_spec("scipy") else "SciPy",
    "shared memory": lambda: "" if Path("/dev/shm").is_dir() else "/dev/shm",
    "user namespaces": _user_namespaces,
    "zarr": _zarr,
    "zsh": lambda: _program("zsh", "zsh"),
}

_IMPLIED = {"gpu": "gpu", "launcher": "mpirun"}  # by marks that say something else as well


@cache
def lacking(thing: str) -> str:
    """What is not there, in words; empty if it is."""
    return _LACKING[thing]()


def skip_without(thing: str) -> None:
    """Where a fixture needs it."""
    if missing := lacking(thing):
        pytest.skip(f"needs {missing}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        unknown = {thing for mark in item.iter_markers("needs") for thing in mark.args} - set(_LACKING)
        assert not unknown, f"{item.nodeid} needs what support/needs.py does not know: {unknown}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    things = [thing for mark in item.iter_markers("needs") for thing in mark.args]
    implied = [thing for mark, thing in _IMPLIED.items() if item.get_closest_marker(mark)]
    for thing in things + implied:
        skip_without(thing)
