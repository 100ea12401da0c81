# SPDX-License-Identifier: MIT
"""What CUDA GPUs are told to do, in the order in which it is enqueued: NumPy stands for CuPy, and the emulated GPU for kernels.

So that renamed functions, exchanged arguments and wrong addresses show without a GPU. The tests marked `gpu` need one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybrid.ranks.launcher import mpirun

pytestmark = pytest.mark.needs("compiler")
PROGRAMS = Path(__file__).with_name("programs")
OF_CHECK = {"row_sums", "column_totals", "subtract_product", "compare_sums", "total_pieces"}
OF_REMAINDERS = {"measure_rows", "measure_columns", "summarize", "scale_lines", "tell", "products", "reconstruct_by_integers"}


def output_of(program, ranks, folder):
    launcher = mpirun(ranks) if ranks > 1 else []
    command = [*launcher, sys.executable, str(PROGRAMS / program), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.launcher)])
def test_products_by_every_transport(tmp_path, ranks):
    said = output_of("products_by_numpy.py", ranks, tmp_path)
    by_nccl = {"bcast", "recv"} if ranks > 1 else set()
    assert {"copies", "graphs", "tensor", *OF_CHECK, *OF_REMAINDERS, *by_nccl} <= set(said.split())


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.launcher)])
def test_integers_that_lie_on_gpus(tmp_path, ranks):
    assert output_of("integers_by_numpy.py", ranks, tmp_path) == "all as it should be\n"
