# SPDX-License-Identifier: MIT
"""Each public script tells what it does, refuses what it does not know in one line, and says what is not installed. CI runs
every step, and fails if one of them does."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, start
from support.forked import quickly

PUBLIC = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
MEASURE = ("check", "wall", "lab", "bytes", "types", "precision", "hosts", "kernels")
ON_GPU = ("bash", ROOT / "scripts" / "on_gpu.sh")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_script_explains_itself_and_refuses_unknown_options(tmp_path, name):
    script = [sys.executable, ROOT / "scripts" / name]
    told = quickly(script, "--help", cwd=tmp_path)
    assert told.returncode == 0
    assert told.stdout.startswith("usage: ")
    first = ["run"] if name == "mutants.py" else []
    refused = quickly(script, *first, "--no-such-option", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--no-such-option" in refused.stderr.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_script_says_what_is_not_installed(tmp_path):
    """Python -S finds no installed packages, which some scripts load when they begin to work only."""
    needy = 0
    for name in PUBLIC:
        bare = [sys.executable, "-S", str(ROOT / "scripts" / name), "--help"]
        done = subprocess.run(bare, capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False)
        if done.returncode == 0:
            assert done.stdout.startswith("usage: ")
            continue
        needy += 1
        assert done.returncode == 1
        assert done.stderr.endswith(f" is not installed: pip install -e {ROOT}\n"), done.stderr
        assert done.stderr.count("\n") == 1
    assert needy


def test_scripts_use_the_checkout_they_lie_in_whatever_its_name(tmp_path):
    copy = tmp_path / "hybrid"
    for part in ("hybrid", "scripts", "kernels"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "hybrid" / "errors.py").write_text("raise RuntimeError('of the copy')\n")
    done = start([sys.executable, Path("hybrid", "scripts", "bench.py")], "hosts", cwd=tmp_path)
    assert done.returncode == 1
    assert "of the copy" in done.stderr


# --- on_gpu.sh, which measures on a machine with GPUs


@pytest.fixture
def with_a_gpu(tmp_path: Path) -> Path:
    """A Python that says there is a GPU when the script asks, else writes its words down and fails; and a launcher."""
    python = tmp_path / "python"
    counts = "if [[ $1 == -c && $2 == *getDeviceCount* ]]; then echo 1; exit; fi"
    python.write_text(f'#!/usr/bin/env bash\n{counts}\n(printf "%s\\t" "$@"; echo) >>{tmp_path}/started\nexit 1\n')
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/usr/bin/env bash\nshift 2 && exec "$@"\n')
    for program in (python, launcher):
        program.chmod(0o755)
    return python


def test_every_step_on_a_gpu_machine_is_a_command_that_is_understood(with_a_gpu, tmp_path):
    launcher = str(with_a_gpu.parent / "mpirun")
    run = start(ON_GPU, "--into", tmp_path / "lines", "--python", with_a_gpu, *MEASURE, MPIRUN=launcher)
    assert run.returncode == 1
    assert run.stdout.splitlines()[-1] == f"failed: {' '.join(MEASURE)}"
    commands = (tmp_path / "started").read_text().splitlines()
    assert len(commands) == len(MEASURE)
    for words in commands:  # each finds no GPU when it is to be used
        said = quickly([sys.executable, *words.rstrip("\t").split("\t")], cwd=ROOT, CUDA_VISIBLE_DEVICES="").stderr
        assert "GPU" in said.splitlines()[-1] or "libcuda" in said.splitlines()[-1], said
        assert "usage:" not in said


def test_steps_on_a_gpu_machine_are_listed_and_others_refused(tmp_path):
    listed = [line.split()[0] for line in start(ON_GPU, "--help").stdout.splitlines() if line.startswith("  ")]
    assert listed == ["tests", "ranks", *MEASURE]
    wrong = start(ON_GPU, "measure")
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    python = tmp_path / "python"
    python.write_text("#!/usr/bin/env bash\nexit 1\n")
    python.chmod(0o755)
    without = start(ON_GPU, "--into", tmp_path, "--python", python)
    assert (without.returncode, without.stderr.count("\n")) == (1, 1)
    assert "doctor" in without.stderr


# --- .ci/run


@pytest.mark.parametrize(("says", "code", "fails"), [
    ("3 passed, 0 failed, 1 skipped", 0, False), ("2 passed, 1 failed, 0 skipped", 1, True),
    ("SKIPPED [1] a.py: needs a GPU", 0, False), ("SKIPPED [1] a.py: needs a compiler", 0, True),
    ("slurm     -  not run: not installed", 0, True),
])  # fmt: skip
def test_ci_runs_every_step_and_fails_with_one_that_fails_or_skips_what_it_could_test(tmp_path, says, code, fails):
    for name in (".ci", "scripts"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    tests = f'[[ $1 == --ranks ]] || {{ echo "{says}"; exit {code}; }}\necho "1 passed, 0 failed, 0 skipped"\n'
    (tmp_path / "scripts" / "test.sh").write_text(tests)
    done = start(["bash", tmp_path / ".ci" / "run"], "tests", "cluster_tests")
    assert done.returncode == fails
    assert [f"######## {step} passed" in done.stdout for step in ("tests", "cluster_tests")] == [not fails, True]
    assert (done.stdout.splitlines()[-1] == "failed: tests") == fails
    assert start(["bash", tmp_path / ".ci" / "run"], "no_such_step").returncode == 1
