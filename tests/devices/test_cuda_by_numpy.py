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
PROGRAM = Path(__file__).with_name("programs") / "products_by_numpy.py"
OF_CHECK = {"row_sums", "column_totals", "subtract_product", "compare_sums", "total_pieces"}
OF_REMAINDERS = {"measure_rows", "measure_columns", "summarize", "scale_lines", "tell", "products", "reconstruct_by_integers"}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.launcher)])
def test_products_by_every_transport(tmp_path, ranks):
    launcher = mpirun(ranks) if ranks > 1 else []
    done = subprocess.run(
        [*launcher, sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    by_nccl = {"bcast", "recv"} if ranks > 1 else set()
    assert {"copies", "graphs", "tensor", *OF_CHECK, *OF_REMAINDERS, *by_nccl} <= set(done.stdout.split())
