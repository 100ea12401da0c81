# SPDX-License-Identifier: MIT
"""What holds for every script in slurm/ and can be read from it; tests/slurm/cluster submits them."""

from __future__ import annotations

import re
import subprocess

import pytest
from support.commands import ROOT

SLURM = ROOT / "slurm"
SCRIPTS = sorted(SLURM.glob("*.sbatch"))
SITES = sorted((SLURM / "sites").glob("*.sh"))


def name(path):
    return path.name


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_a_script_names_its_job_in_its_output_and_stops_at_the_first_failure(script):
    text = script.read_text()
    expected = "%A_%a" if "--array" in text else "%j"
    assert re.search(rf"^#SBATCH --output={script.stem}-{expected}\.out$", text, re.MULTILINE)
    assert "\nset -euo pipefail\n" in text


@pytest.mark.parametrize("script", [*SCRIPTS, SLURM / "job.sh"], ids=name)
def test_every_srun_ends_its_step_when_a_rank_dies(script):
    for line in script.read_text().splitlines():
        if re.search(r"\bsrun\s+-", line.partition("#")[0]) and "--mpi=list" not in line:
            assert "--kill-on-bad-exit=1" in line


@pytest.mark.parametrize(("size", "small", "factor"), [(8000, 1000, 512), (48, 6, 512), (50, 6, 579), (9, 1, 729), (4, 1, 64)])
def test_beowulfs_loops_say_how_much_longer_the_whole_size_takes(tmp_path, size, small, factor):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "job.sh").write_text(f"SIZE={size}; launch() {{ :; }}; has_kernel() {{ :; }}\n")
    done = subprocess.run(
        ["bash", SLURM / "beowulf.sbatch"], env={"PATH": "/usr/bin:/bin", "HYBRID_ROOT": str(tmp_path), "SLURM_JOB_ID": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"at {small} instead of {size}: times {factor} is the time to compare" in done.stdout


@pytest.mark.parametrize(
    ("given", "launched"),
    [
        ([], "7 7 7"),
        (["--dtype", "float32"], "7 7 7 --dtype float32"),
        (["5", "6", "7", "--seed", "3"], "5 6 7 --seed 3"),
        (["--a", "a.npy", "--b", "b.npy"], "--a a.npy --b b.npy"),
        (["--b=b.npy", "--a=a.npy"], "--b=b.npy --a=a.npy"),
    ],
)
def test_one_product_is_of_the_usual_size_unless_sizes_or_files_are_given(tmp_path, given, launched):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "job.sh").write_text('SIZE=7; launch() { printf "%s\\n" "${*:6}"; }\n')
    environment = {"PATH": "/usr/bin:/bin", "HYBRID_ROOT": str(tmp_path), "SLURM_JOB_ID": "1"}
    command = ["bash", SLURM / "matmul.sbatch", *given]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == f"{launched}\n"


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({}, "own"),
        ({"VIRTUAL_ENV": "venv", "CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "mine"}, "venv"),
        ({"CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "mine"}, "conda"),
        ({"CONDA_PREFIX": "conda", "CONDA_DEFAULT_ENV": "base"}, "own"),
    ],
)
def test_the_environment_active_at_submission_comes_before_the_checkouts(tmp_path, environment, chosen):
    for folder in ("venv", "conda", ".venv"):
        (tmp_path / folder / "bin").mkdir(parents=True)
        (tmp_path / folder / "bin" / "python").write_text(f"#!/bin/sh\necho {folder.replace('.venv', 'own')}\n")
        (tmp_path / folder / "bin" / "python").chmod(0o755)
    text = (SLURM / "job.sh").read_text()
    function = text[text.index("find_python() {") : text.index("\n}\n", text.index("find_python() {")) + 3]
    paths = {name: str(tmp_path / value) if name != "CONDA_DEFAULT_ENV" else value for name, value in environment.items()}
    program = f"fail() {{ exit 1; }}\n{function}ROOT=$1\nfind_python"
    command = ["bash", "-euc", program, "bash", str(tmp_path)]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **paths}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{chosen}\n"


def test_the_readme_tells_of_every_script():
    text = (SLURM / "README.md").read_text()
    assert set(re.findall(r"^\| `(\w+\.sbatch)` \|", text, re.MULTILINE)) == set(map(name, SCRIPTS))


@pytest.mark.parametrize("site", SITES, ids=name)
def test_a_site_says_its_name(site):
    command = ["bash", "-euc", 'source "$1"; echo "$HYBRID_SITE"', "bash", site]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{site.stem}\n"


@pytest.mark.parametrize("site", ["../job", "missing", "a b", "$(touch hacked)", ""])
def test_an_unknown_site_is_refused(tmp_path, site):
    script = tmp_path / "script"
    script.write_text(f'set -euo pipefail\nsource "{SLURM}/job.sh"\n')
    done = subprocess.run(
        ["bash", script], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HYBRID_SITE": site or "."},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "has no such file" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["script"]
