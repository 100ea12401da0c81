# SPDX-License-Identifier: MIT
"""scripts/run.sh takes the number of ranks anywhere and sets up what is missing, but touches no environment that is not its
own; where it cannot write it says so in a line."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from support.commands import ROOT

SETUP = 'fail() { echo "$1" >&2; exit "$2"; }\nset_up() { MPIRUN=(echo mpirun) PYTHON=python; }\n'


def bash(*words, **more):
    return subprocess.run(["bash", *map(str, words)], capture_output=True, text=True, timeout=120, check=False, **more)


@pytest.fixture
def run(tmp_path):
    """The script, with a setup that has everything and a launcher that prints its command."""
    shutil.copy(ROOT / "scripts" / "run.sh", tmp_path)
    (tmp_path / "setup.sh").write_text(SETUP, encoding="utf-8")
    return lambda arguments: bash(tmp_path / "run.sh", *shlex.split(arguments))


@pytest.mark.parametrize(("arguments", "ranks", "left"), [
    ("8 8 8", 2, "8 8 8"), ("-n 4 8 8 8", 4, "8 8 8"), ("-n4 8 8 8", 4, "8 8 8"), ("-np 4 8 8 8", 4, "8 8 8"),
    ("-np4 8 8 8", 4, "8 8 8"), ("--np 4 8 8 8", 4, "8 8 8"), ("--np=12 8 8 8", 12, "8 8 8"), ("8 8 8 -n 3", 3, "8 8 8"),
    ("8 -n3 8 8 --print 2", 3, "8 8 8 --print 2"), ("8 8 8 --out 'C 1.npy' -np 1", 1, "8 8 8 --out C 1.npy"),
    ("-n 3 -- --help", 3, "--help"), ("-- -n 4", 2, "-n 4"), ("", 2, ""),
])  # fmt: skip
def test_the_number_of_ranks_may_stand_anywhere(run, arguments, ranks, left):
    done = run(arguments)
    assert (done.returncode, done.stdout) == (0, f"mpirun -n {ranks} python -m hybrid.matmul {left}".rstrip() + "\n")
    assert shlex.split(done.stderr)[:6] == ["echo", "mpirun", "-n", str(ranks), "python", "-m"]  # what is started is shown


@pytest.mark.parametrize(
    ("arguments", "shown"), [("-n", ""), ("8 8 8 -n", ""), ("-n x 8 8 8", "x"), ("-n0", "0"), ("-np4k", "4k")]
)
def test_what_is_no_number_of_ranks_is_refused(run, arguments, shown):
    done = run(arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"'{shown}'" in done.stderr


RESULTS = [  # of each start of pytest its last line and exit code; the script's arguments, last line and exit code
    ("5 passed, 2 skipped in 0.1s", 0, "", "15 passed, 0 failed, 6 skipped", 0),
    ("1 failed, 4 passed, 1 error in 0.1s", 1, "--ranks '0 3' -k plan", "8 passed, 4 failed, 0 skipped", 1),
    ("it was killed", 137, "--ranks 0", "0 passed, 1 failed, 0 skipped", 1),
    ("no tests ran in 0.1s", 5, "--all --ranks 2", "0 passed, 1 failed, 0 skipped", 1),
    ("7 deselected in 0.1s", 5, "-k none", "0 passed, 1 failed, 0 skipped", 1),
]  # fmt: skip


@pytest.mark.parametrize(("says", "code", "arguments", "sum_up", "ends"), RESULTS)
def test_the_results_of_all_ranks_are_summed_up(tmp_path, says, code, arguments, sum_up, ends):
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path)
    pytest_says = f"echo $*\necho '{says}'\nexit {code}"
    program(tmp_path / "python", f'[ "$1" = -m ] || exec {sys.executable} "$@"\n{pytest_says}')
    program(tmp_path / "mpirun", 'shift 2\nexec "$@"')
    (tmp_path / "setup.sh").write_text(f"set_up() {{ ROOT={ROOT} PYTHON={tmp_path}/python MPIRUN=({tmp_path}/mpirun); }}\n")
    done = bash(tmp_path / "test.sh", *shlex.split(arguments))
    assert (done.returncode, sum_up in done.stdout.splitlines()) == (ends, True), done.stdout
    assert " -rs" in done.stdout


@pytest.mark.parametrize("words", ["run.sh 8 8 8 --help", "run.sh -h", "test.sh --help", "test.sh -k plan -h"])
def test_help_sets_nothing_up(tmp_path, words):
    name, *arguments = words.split()
    shutil.copy(ROOT / "scripts" / name, tmp_path)
    (tmp_path / "setup.sh").write_text('set_up() { echo "set up" >&2; exit 1; }\nfail() { exit 9; }\n', encoding="utf-8")
    done = bash(tmp_path / name, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: bash scripts/{name} ")


@pytest.mark.parametrize(
    ("environment", "made_anew"), [("another/.venv", "no"), ("checkout/.venv", "yes"), ("checkout/.venv-of-mine", "yes")]
)
def test_only_the_checkout_s_own_environment_is_ever_made_anew(tmp_path, environment, made_anew):
    """Not an active one that the script of another checkout made: it would be removed, with all that is in it."""
    notes, scripts = tmp_path / environment / ".hybrid-runner", tmp_path / "checkout" / "scripts"
    for folder in (notes, notes.parent / "bin", scripts):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", scripts)
    (notes / "origin").write_text("/where/it/was\npython3\n", encoding="utf-8")
    (notes.parent / "bin" / "python").symlink_to("/bin/true")
    ask = 'source "$1" && ENVIRONMENT=$2 PYTHON=$2/bin/python NOTES=$2/.hybrid-runner && must_be_created && echo yes || echo no'
    done = bash("-c", ask, "ask", scripts / "setup.sh", notes.parent)
    assert (done.stdout, done.stderr) == (f"{made_anew}\n", "")


def test_an_environment_that_cannot_be_made_is_named_with_the_place_of_all_that_was_said(tmp_path):
    program(tmp_path / "python", "[ $1 = -c ] || { echo planted; exit 1; }")
    ask = 'source "$1" && ENVIRONMENT=$2/new NOTES=$2/new/notes ROOT=$2 && create_environment "$2/python"'
    done = bash("-c", ask, "ask", ROOT / "scripts" / "setup.sh", tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-2]) == (1, "planted")
    assert done.stderr.endswith(f" is in {tmp_path}/new/notes/log\n")
    assert sorted(note.name for note in (tmp_path / "new" / "notes").iterdir()) == ["log", "origin", "unfinished"]


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    for name in ("scripts/run.sh", "scripts/test.sh", "scripts/setup.sh", "setup.cfg", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    return folder


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def read_only(checkout, more, *command, **environment):
    """A script of this checkout, which is mounted read-only, as are `more` folders."""
    mounts = "".join(f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && " for folder in [checkout, *more])
    words = ["unshare", "--mount", "sh", "-c", f"{mounts}cd {checkout.parent}/tmp && exec bash {shlex.join(map(str, command))}"]
    hidden = "HYBRID_", "XDG_", "VIRTUAL_ENV", "CONDA_"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    clean |= {"HOME": f"{checkout.parent}/home", "TMPDIR": f"{checkout.parent}/tmp", **environment}
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=clean, check=False)


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize(("script", "launcher"), [("run.sh 8 8 8", False), ("test.sh", False), ("run.sh 8 8 8", True)])
def test_a_script_that_cannot_make_its_environment_says_so(tmp_path, checkout, script, launcher):
    """Also where there is an mpirun on PATH, as in a checkout that many share on a cluster: it is not tried."""
    name, *arguments = script.split()
    environment = {"HYBRID_MPI": "mpich"}
    if launcher:
        program(tmp_path / "bin" / "mpirun", "echo HYDRA Version: 4")
        environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = read_only(checkout, [], checkout / "scripts" / name, *arguments, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"setup: {checkout} cannot be written")


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("mpi", ["mpich", "system"])
@pytest.mark.parametrize("has_it", [True, False])
def test_an_active_environment_is_taken_as_it_is_if_this_package_starts_there(tmp_path, checkout, mpi, has_it):
    """A wheel in an environment that an administrator made: `pip install -e` could write neither there nor beside the sources."""
    environment = tmp_path / "environment"
    program(environment / "bin" / "python", f'exec {sys.executable} "$@"' if has_it else "exit 1")
    launcher = environment if mpi == "mpich" else tmp_path
    program(
        launcher / "bin" / "mpirun",
        'case "$*" in *signal*) exit 0;; --version) echo HYDRA Version: 4;; *) echo "started: $*";; esac',
    )
    if mpi == "mpich":
        (environment / "lib" / "python3" / "site-packages" / "mpich-4.dist-info").mkdir(parents=True)
    more = {"VIRTUAL_ENV": str(environment), "PYTHONPATH": str(ROOT), "PATH": f"{launcher}/bin:{os.environ['PATH']}"}
    done = read_only(checkout, [environment], checkout / "scripts" / "run.sh", 8, 8, 8, **more)
    assert str(environment) in done.stderr
    if has_it:
        assert (done.returncode, done.stdout) == (0, f"started: -n 2 {environment}/bin/python -m hybrid.matmul 8 8 8\n")
    else:
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("mpi", ["mpihc", "system"])
def test_an_mpi_that_is_unknown_or_not_there_is_refused(checkout, mpi):
    path = {"PATH": f"{checkout.parent}/bin", "HOME": str(checkout.parent)}
    (checkout.parent / "bin").mkdir()
    for name in ("dirname", "cat", "mkdir", "sed", "bash"):
        (checkout.parent / "bin" / name).symlink_to(shutil.which(name))
    done = bash(checkout / "scripts" / "run.sh", 8, 8, 8, env={**path, "HYBRID_MPI": mpi})
    assert (done.returncode, done.stderr.count("\n")) == (2 if mpi == "mpihc" else 1, 1)
    assert f"HYBRID_MPI={mpi}" in done.stderr
