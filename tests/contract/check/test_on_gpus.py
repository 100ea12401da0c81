# SPDX-License-Identifier: MIT
"""On real GPUs: every kernel multiplies right, right products pass, faults are found and repaired, wherever operands lie
(python -m pytest -m gpu; mpirun -n P python -m pytest --with-mpi -m "gpu and mpi")."""

import numpy as np
import pytest
from support.checked import KINDS, assert_right, named, operands, repaired

import hybrid
from hybrid.errors import CheckFailed
from hybrid.testing import plant

pytestmark = pytest.mark.gpu
N, L, M = 900, 800, 700
DTYPES = ["float32", "float64"]


@pytest.mark.parametrize("check", [True, "host"])
@pytest.mark.parametrize("precision", ["native", "auto", "fast"])
@pytest.mark.parametrize("dtype", [*DTYPES, "complex128", "float16"])
def test_right_products_pass(rng, dtype, precision, check):
    for kind in KINDS if dtype in DTYPES else ["normal", "uniform", "cosines", "integers"]:
        with np.errstate(all="ignore"):
            a, b = operands(rng, kind, (310, 900, 270), dtype)
            assert_right(a, b, hybrid.multiply(a, b, device="cuda", precision=precision, check=check), kind)


@pytest.mark.parametrize("precision", ["native", "fast"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "code"), [("copy in", "check-copy"), ("multiply", "check-product"), ("copy out", "check-copy")])
def test_a_fault_is_refused_or_repaired(rng, kind, code, dtype, precision):
    a, b = operands(rng, "normal", (N, L, M), dtype)
    how = {"device": "cuda", "precision": precision}
    with plant(kind) as planted, pytest.raises(CheckFailed) as refusal:
        hybrid.multiply(a, b, **how)
    assert planted.done
    assert (refusal.value.code, named(refusal.value).rank) == (code, 0)
    with plant(kind):
        c, lines = repaired(lambda: hybrid.multiply(a, b, on_fault="repair", **how))
    assert_right(a, b, c)
    assert [named(line).rank for line in lines] == [0]


def test_row_blocks_on_a_gpu_are_repaired_there(rng):
    cupy = pytest.importorskip("cupy")
    a, b = operands(rng, "normal", (N, L, M))
    with plant("multiply"):
        c, lines = repaired(lambda: hybrid.multiply(*(hybrid.RowBlock(cupy.asarray(x)) for x in (a, b)), on_fault="repair"))
    assert isinstance(c.array, cupy.ndarray)
    assert_right(a, b, cupy.asnumpy(c.array))
    assert lines


def truncated(into, source, before):
    into[len(into) // 2 :] = before[len(into) // 2 :]


def overwritten(into, source, before):
    into[:, into.shape[1] // 2 :] = into[::-1, into.shape[1] // 2 :].copy()


PIECES = ["nothing", "stale row", "rows swapped", "shifted row", "shifted column", truncated, overwritten]
SAMPLED = (1500, 1100, 1300)  # more than 16 MiB, also in float32


@pytest.mark.parametrize("trials", [28, pytest.param(500, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", ["copy in", "copy out"])
def test_every_wrong_piece_of_a_copy_is_found(rng, kind, trials):
    """The check samples the copies of large products. Half of the products have new arrays, half have page-locked ones."""
    for trial in range(trials):
        a, b = operands(rng, "normal", SAMPLED, DTYPES[trial % 2])
        c = np.zeros((len(a), b.shape[1]), a.dtype)
        again = trial // 2 % 2
        for _ in range(2 * again):
            hybrid.multiply(a, b, out=c, device="cuda")
        like = (a, b, c) if again else (a.copy(), b.copy(), c.copy())
        for each in like[:2]:  # what is stale on the GPU is not what the arrays of the next call hold
            each += 1
        with plant(kind, times=0) as counted:
            hybrid.multiply(*like[:2], out=like[2], device="cuda")
        for each in like[:2]:
            each -= 1
        piece = plant(kind, at=int(rng.integers(counted.seen)), how=PIECES[trial % len(PIECES)])
        with piece as planted, pytest.raises(CheckFailed) as refusal:
            hybrid.multiply(a, b, out=c, device="cuda")
        assert planted.done, trial
        assert refusal.value.code == "check-copy", trial


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["copy in", "multiply", "copy out"])
def test_whichever_rank_was_wrong(comm, rng, kind):
    a, b = operands(rng, "normal", (N, L, M))
    victim = comm.size - 1 if kind == "multiply" else 0  # the root's process makes all copies of its own arrays
    given = (a, b) if comm.rank == 0 else (None, None)
    by_all = {"transport": "host"} if kind == "multiply" else {}  # else the root has so small a product alone
    with plant(kind, rank=victim, at=1 if kind == "copy in" else 0):
        c, lines = repaired(lambda: hybrid.multiply(*given, comm=comm, device="cuda", on_fault="repair", **by_all))
    if comm.rank == 0:
        assert_right(a, b, c)
        assert len(lines) == 1
        assert kind != "multiply" or named(lines[0]).rank == victim
