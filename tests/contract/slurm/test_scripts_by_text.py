# SPDX-License-Identifier: MIT
"""What the batch scripts start, read from what they call: programs stand for srun, mpirun and scontrol (slurm/README.md).

tests/contract/slurm/test_scripts.py submits the scripts on a real Slurm.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT

SLURM = ROOT / "slurm"
SCRIPTS = sorted(SLURM.glob("*.sbatch"))
SITES = sorted((SLURM / "sites").glob("*.sh"))
MPICH, OPEN_MPI = "MPICH Version: 5.0.2", "Open MPI v5.0.9"
STUBS = {
    "srun": '[ "$*" = --mpi=list ] && { echo "MPI plugin types are... $OFFERED"; exit; }; echo "srun $*" >> "$CALLS"',
    "mpirun": '[ "$*" = --version ] && { echo "$HYDRA"; exit; }; echo "mpirun $*" >> "$CALLS"',
    "scontrol": 'for node in a b c d; do [ "$node" \\> "$LAST" ] || echo "$node"; done',
    "python": 'case "$*" in *Get_library_version*) echo "$LIBRARY" ;; *"import hybrid"*) [ -n "$LIBRARY" ] ;; '
    '*"--kernel list"*) echo "$KERNELS  loops" ;; -c*) exec REAL "$@" ;; '
    '*) echo "python $*" >> "$CALLS" ;; esac',
}


@pytest.fixture
def run(tmp_path):
    """(script or text, arguments, environment) -> how it ended, and the commands that it started."""
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    for name, text in STUBS.items():
        (binaries / name).write_text(f"#!/bin/bash\n{text.replace('REAL', sys.executable)}\n")
        (binaries / name).chmod(0o755)

    def one(script: Path | str, *arguments: object, nodes: int = 1, **environment: str):
        if isinstance(script, str):
            text, script = script, tmp_path / "script"
            script.write_text(f'set -euo pipefail\nsource "{SLURM}/job.sh"\n{text}')
        calls = tmp_path / "calls"
        calls.write_text("")
        usual = {
            "PATH": f"{binaries}:/usr/bin:/bin", "HYBRID_ROOT": str(ROOT), "VIRTUAL_ENV": str(tmp_path / "venv"),
            "CALLS": str(calls),
            "OFFERED": "cray_shasta none pmi2 pmix", "HYDRA": "HYDRA build details", "LIBRARY": OPEN_MPI, "KERNELS": "\nloops ",
            "SLURM_JOB_ID": "7", "SLURM_NTASKS": str(2 * nodes), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_JOB_NODELIST": "these",
            "SLURM_TASKS_PER_NODE": f"2(x{nodes})", "LAST": "abcd"[nodes - 1],
        }  # fmt: skip
        done = subprocess.run(
            ["bash", script, *map(str, arguments)], env={**usual, **environment}, cwd=tmp_path,
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        return done, calls.read_text().splitlines()

    return one


SRUN = "srun --unbuffered --kill-on-bad-exit=1 --mpi="
# The MPI, the nodes, more of the environment, and the words before the command.
STARTS = [
    (OPEN_MPI, 1, {}, f"{SRUN}pmix"), (OPEN_MPI, 2, {"SLURM_CPUS_PER_TASK": "4"}, f"{SRUN}pmix -c 4"),
    (OPEN_MPI, 2, {"OFFERED": "none pmi2", "HYDRA": "mpirun (Open MPI)"}, "mpirun -np 4"), (MPICH, 1, {}, f"{SRUN}pmi2"),
    (MPICH, 1, {"OFFERED": "none pmix"}, "mpirun -np 2 -hosts a:2"), (MPICH, 2, {"HYDRA": "another"}, f"{SRUN}pmi2"),
    (MPICH, 2, {}, "mpirun -np 4 -hosts a:2,b:2"),
    (MPICH, 4, {"SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NTASKS": "7"}, "mpirun -np 7 -hosts a:2,b:2,c:2,d:1"),
    (MPICH, 2, {"SLURM_DISTRIBUTION": "cyclic:block"}, "mpirun -np 4 -ppn 1 -hosts a,b"),
    (MPICH, 2, {"SLURM_DISTRIBUTION": "plane=2", "SLURM_DIST_PLANESIZE": "2"}, "mpirun -np 4 -ppn 2 -hosts a,b"),
    (MPICH, 2, {"SLURM_DISTRIBUTION": "cyclic", "SLURM_TASKS_PER_NODE": "2,1", "SLURM_NTASKS": "3"},
     "mpirun -np 3 -hosts a:2,b:1"),
    (MPICH, 2, {"SRUN_MPI": "pmi2"}, f"{SRUN}pmi2"), (MPICH, 1, {"SRUN_MPI": "cray_shasta"}, f"{SRUN}cray_shasta"),
    (OPEN_MPI, 1, {"SRUN_MPI": "pmi"}, "mpirun -np 2 -hosts a:2"),
    (OPEN_MPI, 1, {"SRUN_MPI": "none", "HYDRA": "mpirun (Open MPI)"}, "mpirun -np 2"),
]  # fmt: skip


@pytest.mark.parametrize(("library", "nodes", "more", "words"), STARTS)
def test_ranks_start_by_what_this_mpi_speaks(run, library, nodes, more, words):
    done, calls = run("launch python program.py", nodes=nodes, LIBRARY=library, **more)
    assert (calls, done.returncode) == ([f"{words} python program.py"], 0), done.stderr


def test_a_part_of_the_nodes_gets_its_ranks(run):
    more = {"SLURM_TASKS_PER_NODE": "2(x2),1(x2)", "SLURM_NTASKS": "6"}
    assert run("launch_on 3 x", nodes=4, **more)[1] == [f"{SRUN}pmix --nodes=3 --ntasks=5 x"]
    assert run("launch_on 3 x", nodes=4, LIBRARY=MPICH, **more)[1] == ["mpirun -np 5 -hosts a:2,b:2,c:1 x"]


# A script, its arguments, nodes and environment, and what all of its ranks run.
HELLO, PRODUCT = "python -m hybrid.hello", "python -m hybrid.matmul"
RUNS = [
    ("matmul", "", 1, {}, [f"{PRODUCT} --json matmul-7.jsonl 8000 8000 8000"]),
    ("matmul", "", 1, {"HYBRID_SIZE": "70"}, [f"{PRODUCT} --json matmul-7.jsonl 70 70 70"]),
    ("matmul", "", 1, {"HYBRID_SITE": "beowulf"}, [f"{PRODUCT} --json matmul-7.jsonl 1000 1000 1000"]),
    ("matmul", "--dtype float32", 1, {}, [f"{PRODUCT} --json matmul-7.jsonl 8000 8000 8000 --dtype float32"]),
    ("matmul", "--a a.npy --b b.npy", 1, {}, [f"{PRODUCT} --json matmul-7.jsonl --a a.npy --b b.npy"]),
    ("matmul", "--b=b.npy --a=a.npy", 1, {}, [f"{PRODUCT} --json matmul-7.jsonl --b=b.npy --a=a.npy"]),
    ("accept", "--level 3", 1, {}, ["python -m hybrid.accept --json accept-7.jsonl --level 3"]),
    ("nodes", "5 6 7", 1, {}, [f"{PRODUCT} --json nodes-7.jsonl 5 6 7"]),
    ("beowulf", "", 1, {"HYBRID_SIZE": "50"}, [
        HELLO, *(f"{PRODUCT} 50 50 50 --kernel {kernel} --json beowulf-7.jsonl" for kernel in ("naive", "tiled")),
        f"{PRODUCT} 6 6 6 --device cpu --kernel loops --json beowulf-7.jsonl",
    ]),
    ("beowulf", "", 1, {"HYBRID_SIZE": "50", "KERNELS": "naive"}, [
        HELLO, *(f"{PRODUCT} 50 50 50 --kernel {kernel} --json beowulf-7.jsonl" for kernel in ("naive", "tiled")),
    ]),
    ("bridges", "", 1, {}, ["mpirun -np 2 python -m hybrid.hello --threads 16"]),
    ("bridges2", "", 1, {}, [
        f"{HELLO} --where",
        *(f"{PRODUCT} 8000 8000 8000 --kernel {kernel} --json bridges2-7.jsonl" for kernel in ("naive", "tiled", "auto")),
    ]),
    ("grid", "9 8 7", 4, {}, [f"{PRODUCT} --grid {grid} --json grid-7.jsonl 9 8 7" for grid in ("rows", "2x2")]),
    ("grid", "9 8 7", 3, {}, [f"{PRODUCT} --grid {grid} --json grid-7.jsonl 9 8 7" for grid in ("rows", "1x3")]),
    ("grid", "9 8 7", 4, {"HYBRID_GRID": "4x1"}, [
        f"{PRODUCT} --grid {grid} --json grid-7.jsonl 9 8 7" for grid in ("rows", "4x1")
    ]),
    ("scaling", "--device cpu", 4, {"HYBRID_SIZE": "64"}, [
        f"{PRODUCT} {' '.join([size] * 3)} --repeat 3 --json scaling-7.jsonl --device cpu"
        for size in ("64", "64", "64", "81", "102")
    ]),
    *(("sweep", "", 1, {"HYBRID_SIZE": "80", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": task}, [
        f"{PRODUCT} {size} {size} {size} --kernel {kernel} --json sweep-5_{task}.jsonl"
    ]) for task, size, kernel in (("0", 10, "naive"), ("4", 20, "tiled"), ("11", 80, "auto"))),
    ("sweep", "", 1, {"HYBRID_SIZE": "80", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3", "HYBRID_KERNELS": "a b"}, [
        f"{PRODUCT} 20 20 20 --kernel b --json sweep-5_3.jsonl"
    ]),
    ("test", "-k multiply", 1, {}, ["python -m pytest -p no:cacheprovider --color=no --with-mpi -m mpi -k multiply"]),
]  # fmt: skip


@pytest.mark.parametrize(("script", "arguments", "nodes", "more", "commands"), RUNS)
def test_what_a_script_runs(run, tmp_path, script, arguments, nodes, more, commands):
    done, calls = run(SLURM / f"{script}.sbatch", *arguments.split(), nodes=nodes, **more)
    assert done.returncode == 0, done.stderr
    by_ranks = [call.removeprefix(f"{SRUN}pmix ") for call in calls if not call.startswith(("python", "mpirun -n 1"))]
    assert [re.sub(r"^--nodes=\d+ --ntasks=\d+ ", "", call) for call in by_ranks] == commands
    if script == "scaling":
        assert calls[-1] == f"python {ROOT}/scripts/bench.py scaling scaling-7.jsonl"
        assert [found[1] if (found := re.search(r"--ntasks=(\d+)", call)) else "8" for call in calls[:-1]] == [
            "2", "4", "8", "4", "8",
        ]  # fmt: skip
    assert not list(tmp_path.glob("test-7.*")), "a temporary folder was left"


@pytest.mark.parametrize(("size", "small", "factor"), [(8000, 1000, 512), (50, 6, 579), (9, 1, 729), (4, 1, 64)])
def test_beowulfs_loops_say_how_much_longer_the_whole_size_takes(run, size, small, factor):
    done, _ = run(SLURM / "beowulf.sbatch", HYBRID_SIZE=str(size))
    assert re.search(rf"at {small} instead of {size}: times {factor} ", done.stdout)


REFUSED = [
    *({"HYBRID_SITE": site} for site in ("../job", "missing", "a b", "$(touch hacked)", ".")),
    *({"HYBRID_SIZE": size} for size in ("0", "-3", "8; touch hacked", "07", "many")),
    {"LIBRARY": ""},  # no Python that can run the project
    {"SLURM_TASKS_PER_NODE": "two", "LIBRARY": MPICH},
]


@pytest.mark.parametrize("more", REFUSED, ids=str)
def test_what_makes_no_sense_is_refused_before_anything_starts(run, tmp_path, more):
    done, calls = run("launch x", nodes=2, **more)
    assert (done.returncode, calls) == (2, []), done
    assert done.stderr.startswith("slurm: ")
    assert not (tmp_path / "hacked").exists()


def test_of_a_sweep_with_too_many_tasks_it_is_told_which_there_are(run):
    done, calls = run(SLURM / "sweep.sbatch", SLURM_ARRAY_TASK_ID="12")
    assert (done.returncode, calls, "--array=0-11 " in done.stderr) == (2, [], True), done


def test_a_failing_step_fails_the_job(run, tmp_path):
    """Also the first of several."""
    failed = tmp_path / "failed"
    for name in ("srun", "mpirun"):
        stub = f'[ "$1" = --mpi=list ] && {{ echo pmix; exit; }}; [ -e {failed} ] || {{ touch {failed}; exit 3; }}'
        (tmp_path / "venv" / "bin" / name).write_text(f"#!/bin/sh\n{stub}\n")
    for script in SCRIPTS:
        failed.unlink(missing_ok=True)
        assert run(script, SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="0")[0].returncode == 3, script
    assert run(SLURM / "sweep.sbatch", SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="12")[0].returncode == 2, "there are 12 runs"


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({}, ".venv"),
        ({"VIRTUAL_ENV": "venv", "CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "mine"}, "venv"),
        ({"CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "mine"}, "conda"),
        ({"CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "base"}, ".venv"),
    ],
)
def test_the_environment_active_at_submission_comes_before_the_checkouts(run, tmp_path, environment, chosen):
    checkout = tmp_path / "checkout"
    (checkout / "slurm").mkdir(parents=True)
    (checkout / "slurm" / "sites").symlink_to(SLURM / "sites")
    (checkout / "slurm" / "job.sh").write_text((SLURM / "job.sh").read_text())
    for folder in ("venv", "conda", ".venv"):
        place = checkout / folder / "bin"
        place.mkdir(parents=True)
        for name in STUBS:
            os.link(tmp_path / "venv" / "bin" / name, place / name)
    script = tmp_path / "choose"
    script.write_text(f'set -euo pipefail\nsource "{checkout}/slurm/job.sh"\ntype -P python\n')
    paths = {name: value if name == "CONDA_DEFAULT_ENV" else str(checkout / value) for name, value in environment.items()}
    done, _ = run(script, **{"VIRTUAL_ENV": "", **paths})
    assert done.stdout == f"{checkout}/{chosen}/bin/python\n", done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_names_its_job_in_its_output_and_asks_its_ranks_to_end_in_time(script):
    text = script.read_text()
    assert re.search(rf"^#SBATCH --output={script.stem}-{'%A_%a' if '--array' in text else '%j'}\.out$", text, re.MULTILINE)
    assert ("\n#SBATCH --signal=TERM@60\n" in text) is (script.stem not in ("bridges", "test"))


def test_the_readme_tells_of_every_script_and_sites_say_their_names():
    text = (SLURM / "README.md").read_text()
    assert set(re.findall(r"^\| `(\w+\.sbatch)` \|", text, re.MULTILINE)) == {path.name for path in SCRIPTS}
    for site in SITES:
        command = ["bash", "-euc", 'source "$1"; echo "$HYBRID_SITE"', "bash", site]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{site.stem}\n"
