# SPDX-License-Identifier: MIT
"""A checkout that nobody may write to, as one that many share, and a home that cannot be written to either."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT

pytestmark = pytest.mark.needs("namespaces")


def read_only(folders: list[Path], command: list[object], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, with these folders mounted read-only."""
    mounts = "".join(f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && " for folder in folders)
    words = ["unshare", "--mount", "sh", "-c", f"{mounts}cd {cwd} && exec {shlex.join(map(str, command))}"]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HYBRID_", "XDG_", "VIRTUAL_ENV", "CONDA_"))
    }
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=clean | environment, check=False)


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    return {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}


@pytest.mark.needs("c compiler")
def test_commands_work_and_say_where_compiled_kernels_are_kept(tmp_path, home):
    command = [sys.executable, "-m", "hybrid.matmul", 20, 20, 20, "--kernel", "loops"]
    folders = [ROOT, tmp_path / "home"]
    done = read_only(folders, command, tmp_path / "tmp", PYTHONPATH=str(ROOT), **home)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    where = tmp_path / "tmp" / f"hybrid-runner-{os.geteuid()}" / "emulation"
    assert line.startswith(f"hybrid.matmul: compiled kernels are kept in {where}: {tmp_path}/home/.cache cannot be used")
    assert line.endswith("(Read-only file system); HYBRID_CACHE names a better place")
    done = read_only(folders, command, tmp_path / "tmp", PYTHONPATH=str(ROOT), HYBRID_CACHE=str(tmp_path / "kept"), **home)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "kept" / "emulation").glob("loops-*.so"))


@pytest.mark.needs("matplotlib")
def test_a_picture_is_drawn_without_matplotlib_s_complaints(tmp_path, home):
    draw = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'scripts')!r}]; from experiments.common.plots import figure"
    program = f"{draw}\nwith figure('x.svg', (2, 2)): pass"
    done = read_only([tmp_path / "home"], [sys.executable, "-c", program], tmp_path / "tmp", **home)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "tmp" / "x.svg").exists()


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    for name in ("scripts/run.sh", "scripts/test.sh", "scripts/setup.sh", "setup.cfg", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize("script", ["run.sh 8 8 8", "test.sh"])
def test_scripts_say_that_they_cannot_make_their_environment(tmp_path, home, checkout, script):
    name, *arguments = script.split()
    command = ["bash", checkout / "scripts" / name, *arguments]
    done = read_only([checkout], command, tmp_path / "tmp", HYBRID_MPI="mpich", **home)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"setup: {checkout} cannot be written to: let its owner run this once")


def test_a_launcher_on_path_is_not_tried_where_nothing_can_be_written(tmp_path, home, checkout):
    """As in a checkout that many share on a cluster, which has an mpirun."""
    program(tmp_path / "bin" / "mpirun", "echo HYDRA Version: 4")
    command = ["bash", checkout / "scripts" / "run.sh", 8, 8, 8]
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = read_only([checkout], command, tmp_path / "tmp", PATH=path, **home)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"setup: {checkout} cannot be written to: let its owner run this once")


@pytest.mark.parametrize("mpi", ["mpich", "system"])
@pytest.mark.parametrize("has_it", [True, False])
def test_an_active_environment_is_taken_as_it_is_if_this_package_starts_there(tmp_path, home, checkout, mpi, has_it):
    """A wheel in an environment that an administrator made: `pip install -e` could write neither there nor beside the sources."""
    environment = tmp_path / "environment"
    program(environment / "bin" / "python", f'exec {sys.executable} "$@"' if has_it else "exit 1")
    launcher = environment if mpi == "mpich" else tmp_path
    start = 'case "$*" in *signal*) exit 0;; --version) echo HYDRA Version: 4;; *) echo "started: $*";; esac'
    program(launcher / "bin" / "mpirun", start)
    if mpi == "mpich":
        (environment / "lib" / "python3" / "site-packages" / "mpich-4.dist-info").mkdir(parents=True)
    more = {"VIRTUAL_ENV": str(environment), "PYTHONPATH": str(ROOT), "PATH": f"{launcher}/bin:{os.environ['PATH']}", **home}
    command = ["bash", checkout / "scripts" / "run.sh", 8, 8, 8]
    done = read_only([checkout, environment], command, tmp_path / "tmp", **more)
    if has_it:
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"started: -n 2 {environment}/bin/python -m hybrid.matmul 8 8 8\n"
        assert f"using the active environment {environment}" in done.stderr
        return
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"setup: the active environment {environment} lacks what is needed")
