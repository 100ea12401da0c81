# SPDX-License-Identifier: MIT
"""What is run on a machine with GPUs: is each of its commands understood? Without a GPU all must end with why there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.commands import ROOT, start

MEASURE = ("check", "wall", "lab", "repair", "bytes", "types", "remainders", "precision", "energy", "hosts", "kernels")
ON_GPU = ("bash", ROOT / "scripts" / "on_gpu.sh")


@pytest.fixture
def with_a_gpu(tmp_path: Path) -> Path:
    """A Python that says there is a GPU when the script asks, and finds none when it is to be used; and a launcher."""
    python = tmp_path / "python"
    counts = 'if [[ $1 == -c && $2 == *getDeviceCount* ]]; then echo 1; else CUDA_VISIBLE_DEVICES="" exec'
    python.write_text(f'#!/usr/bin/env bash\n{counts} "{sys.executable}" "$@"; fi\n')
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/usr/bin/env bash\nshift 2 && exec "$@"\n')
    for program in (python, launcher):
        program.chmod(0o755)
    return python


@pytest.mark.parametrize("step", MEASURE)
def test_the_command_of_a_step_is_understood(with_a_gpu, tmp_path, step):
    launcher = str(with_a_gpu.parent / "mpirun")
    run = start(ON_GPU, "--into", tmp_path / "lines", "--python", with_a_gpu, step, MPIRUN=launcher)
    assert run.returncode == 1
    said = (tmp_path / "lines" / f"{step}.txt").read_text()
    assert run.stdout.endswith(f"failed: {step}\n")
    assert "GPU" in said.splitlines()[-1] or "libcuda" in said.splitlines()[-1], said
    assert "usage:" not in said


def test_steps_are_listed_and_others_refused():
    listed = [line.split()[0] for line in start(ON_GPU, "--help").stdout.splitlines() if line.startswith("  ")]
    assert listed == ["tests", "ranks", *MEASURE]
    wrong = start(ON_GPU, "measure")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == f"on_gpu: unknown step measure: one of {' '.join(listed)}\n"


def test_without_a_gpu_it_says_who_tells_why(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/usr/bin/env bash\nexit 1\n")
    python.chmod(0o755)
    run = start(ON_GPU, "--into", tmp_path, "--python", python)
    assert (run.returncode, run.stderr) == (1, "on_gpu: CuPy finds no GPU: python -m hybrid.doctor tells why\n")
