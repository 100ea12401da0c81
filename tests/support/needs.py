# SPDX-License-Identifier: MIT
"""What tests need and a machine may lack: @pytest.mark.needs("compiler"), or `gpu`, or mpirun for those marked `launcher`.

Without it they are skipped, and say so.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from hybrid import testing

ROOT = Path(__file__).resolve().parents[2]


def _program(name: str, *others: str, called: str = "") -> Callable[[], str]:
    return lambda: "" if any(map(shutil.which, (name, *others))) else called or name


def _package(name: str, called: str = "") -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else called or name


def _path(path: Path, called: str) -> Callable[[], str]:
    return lambda: "" if path.exists() else called


def _git() -> str:
    if not shutil.which("git"):
        return "git"
    return "" if (ROOT / ".git").exists() else "a git checkout: this is an unpacked archive"


def _namespaces() -> str:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "root, and unshare: to mount things that nobody else sees"
    tried = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "leave to mount things in a namespace of its own"


def _user_namespaces() -> str:
    """Asked without the package, whose confinement would be tested nowhere if it took them for lacking."""
    mount = ["unshare", "--map-root-user", "--net", "--mount", "--ipc", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    tried = shutil.which("unshare") and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    return "" if tried else "a system that lets users make namespaces"


_LACKING: dict[str, Callable[[], str]] = {
    "addr2line": _program("addr2line", called="addr2line (binutils)"),
    "chromium": _program("chromium", "chromium-browser", "google-chrome", called="Chromium"),
    "commands": _path(Path(sys.executable).with_name("hybrid-matmul"), "this package installed, with its commands"),
    "environment modules": _program("modulecmd", called="Environment Modules"),
    "git": _git,
    "h5py": _package("h5py"),
    "ml_dtypes": _package("ml_dtypes"),
    "namespaces": _namespaces,
    "notebooks": lambda: _package("nbclient", "Jupyter's nbclient")() or _package("ipykernel", "Jupyter's ipykernel")(),
    "user namespaces": _user_namespaces,
    "root": lambda: "" if os.geteuid() == 0 else "root",
    "scipy": _package("scipy", "SciPy"),
    "shared memory": _path(Path("/dev/shm"), "/dev/shm"),
    "zarr": _package("zarr", "zarr-python 3, which needs Python 3.11"),
    "zsh": _program("zsh"),
}
_OF_THE_PACKAGE = ("compiler", "c compiler", "gpu", "mpirun", "landlock", "no launcher above")
_IMPLIED = {"gpu": "gpu", "launcher": "mpirun"}  # by marks that say something else as well


@cache
def lacking(thing: str) -> str:
    """What is not there, in words; empty if it is."""
    return testing.lacking(thing) if thing in _OF_THE_PACKAGE else _LACKING[thing]()


def skip_without(thing: str) -> None:
    """Where a fixture needs it."""
    if missing := lacking(thing):
        pytest.skip(f"needs {missing}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        unknown = {thing for mark in item.iter_markers("needs") for thing in mark.args} - {*_LACKING, *_OF_THE_PACKAGE}
        assert not unknown, f"{item.nodeid} needs what support/needs.py does not know: {unknown}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    things = [thing for mark in item.iter_markers("needs") for thing in mark.args]
    implied = [thing for mark, thing in _IMPLIED.items() if item.get_closest_marker(mark)]
    for thing in things + implied:
        skip_without(thing)
