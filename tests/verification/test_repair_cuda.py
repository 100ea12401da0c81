# SPDX-License-Identifier: MIT
"""`on_fault="repair"` where GPUs multiply: python -m pytest -m gpu, mpirun -n P python -m pytest --with-mpi -m "gpu and mpi"."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import hybrid
from hybrid.devices.cuda_device import CudaDevice
from hybrid.errors import CheckFailed

pytestmark = pytest.mark.gpu

N, L, M = 1500, 1300, 1100
METHODS = ["copy_in", "multiply", "copy_out"]


@pytest.fixture
def planted(monkeypatch):
    """`planted(method, which)` makes call number `which` of the method give one wrong element, or `always` all from there on; it
    returns the calls seen."""

    def plant(method, which=0, always=False):
        original, seen = getattr(CudaDevice, method), []

        def spoiling(device, *arguments, **more):
            event = original(device, *arguments, **more)
            seen.append(1)
            if len(seen) == which + 1 or (always and len(seen) > which):
                device.wait(event)
                spoil(arguments[2] if method == "multiply" else arguments[0])
            return event

        monkeypatch.setattr(CudaDevice, method, spoiling)
        return seen

    return plant


def spoil(matrix):
    at = len(matrix) // 2, matrix.shape[1] // 3
    if isinstance(matrix, np.ndarray):
        matrix[at] += 1
    else:
        with matrix.device:
            matrix[at] += 1
            matrix.device.synchronize()


def operands(rng, dtype):
    return rng.standard_normal((N, L)).astype(dtype), rng.standard_normal((L, M)).astype(dtype)


def is_right(a, b, c):
    most = (L + 2) * np.finfo(c.dtype).eps * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    return bool((np.abs(c - a.astype(np.float64) @ b.astype(np.float64)) <= most).all())


def repaired(*arguments, **more):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        c = hybrid.multiply(*arguments, device="cuda", on_fault="repair", **more)
    return c, [str(each.message) for each in said if str(each.message).startswith("repaired: ")]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_one_wrong_element_is_refused_or_repaired_and_told(rng, planted, method, always, dtype):
    a, b = operands(rng, dtype)
    seen = planted(method, always=always)
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b, device="cuda")
    seen.clear()
    c, (line,) = repaired(a, b)
    assert is_right(a, b, c)
    once_more = method != "multiply" and not always
    how = "; the product was computed once more" if once_more else " of C were computed again on the CPU of rank 0"
    assert re.match(rf"repaired: rank 0 on \S+, .+{how}", line)


def test_row_blocks_on_a_gpu_are_repaired_there(rng, planted):
    cupy = pytest.importorskip("cupy")
    a, b = operands(rng, "float64")
    seen = planted("multiply")
    c, (line,) = repaired(hybrid.RowBlock(cupy.asarray(a)), hybrid.RowBlock(cupy.asarray(b)))
    assert seen
    assert isinstance(c.array, cupy.ndarray)
    assert is_right(a, b, cupy.asnumpy(c.array))
    assert "computed again" in line


@pytest.mark.mpi
@pytest.mark.parametrize("method", METHODS)
def test_arrays_of_the_root_are_repaired_whichever_rank_was_wrong(rng, comm, planted, method):
    a, b = operands(rng, "float64")
    last = comm.size - 1
    if comm.rank == (last if method == "multiply" else 0):  # the root's process makes all copies of its own arrays
        planted(method, 0 if method == "multiply" else 1)
    c, lines = repaired(*((a, b) if comm.rank == 0 else (None, None)), comm=comm)
    if comm.rank == 0:
        assert is_right(a, b, c)
        assert len(lines) == 1
        assert method != "multiply" or f"rank {last} on" in lines[0]
