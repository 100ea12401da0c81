# SPDX-License-Identifier: MIT
"""What cannot be multiplied, asked for or written to is refused before anything is done: by an error of one class and code on all
ranks, after which arrays are as they were and the next call works."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import held, refused
from support.needs import lacking

import hybrid
import hybrid.testing
from hybrid.errors import DeviceUnavailable, DoesNotFit, UsageError

A, B, C = np.ones((4, 3)), np.ones((3, 5)), np.ones((4, 5))
WHOLE = A.astype("int64"), B.astype("int64")
TRUE = np.eye(2, dtype=bool)
STACK, STACK_B = np.ones((2, 4, 3)), np.ones((2, 3, 5))
MEMORY = np.ones((9, 5))
SQUARE = np.ones((5, 5))

pytestmark = pytest.mark.exhaustive(above=2)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def strided(strides: tuple[int, int]) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(np.zeros(64)[31:], (4, 5), strides)


# What is passed for a and b, what else, and the code.
OPERANDS: list[tuple[Any, Any, dict[str, Any], str]] = [
    (np.ones((2, 3)), np.ones((2, 3)), {}, "shapes"), (np.ones((0, 3)), np.ones((0, 3)), {}, "shapes"),
    (np.ones(3), np.ones((2, 3)), {}, "shapes"), (A, B, {"transpose_a": True}, "shapes"), (A, B, {"transpose_b": True}, "shapes"),
    (STACK, np.ones((3, 3, 5)), {}, "shapes"), (STACK, np.ones((2, 4, 5)), {}, "shapes"),
    (np.ones((0, 4, 3)), np.ones((0, 4, 5)), {}, "shapes"), (3.0, B, {}, "dimensions"), (A, np.float64(3), {}, "dimensions"),
    (STACK, np.float64(3), {}, "dimensions"), (None, B, {}, "no-operand"), (A, None, {}, "no-operand"),
    (STACK, None, {}, "no-operand"), ([[1.0, 2.0], [3.0]], B, {}, "no-numbers"), ([[[1.0], [2.0, 3.0]]], B, {}, "no-numbers"),
    ([[None]], B, {}, "no-numbers"), (object(), B, {}, "no-numbers"), ([["x"]], B, {}, "dtype"), ("a.npy", B, {}, "no-numbers"),
    (Path("a.npy"), B, {}, "no-numbers"),
    (np.ma.masked_equal(A, 0), B, {}, "masked"), (A, np.ma.masked_equal(B, 0), {}, "masked"),
    (A, B, {"out": np.ma.zeros((4, 5))}, "masked"), (STACK, STACK_B, {"out": np.ma.zeros((2, 4, 5))}, "masked"),
]  # fmt: skip
GEMM = [
    (A, B, {"alpha": "2"}, "scalars"), (A, B, {"alpha": None}, "scalars"), (A, B, {"alpha": np.ones(2)}, "scalars"),
    (A, B, {"alpha": 10**400}, "scalars"), (A, B, {"alpha": 1j}, "scalars"), (A, B, {"beta": "1", "c": C}, "scalars"),
    (A, B, {"transpose_a": 1}, "scalars"), (A, B, {"conjugate_b": "yes"}, "scalars"), (*WHOLE, {"alpha": 0.5}, "scalars"),
    (*WHOLE, {"alpha": 2**64}, "scalars"), (TRUE, TRUE, {"alpha": 2}, "scalars"),
    (A, B, {"alpha": 0.5, "dtype": "int8"}, "dtype"), (*WHOLE, {"alpha": 2, "dtype": "bool"}, "dtype"),
    (A, B, {"c": C}, "addend"), (A, B, {"c": C, "alpha": 2}, "addend"), (A, B[:, 0], {"c": C[:, 0]}, "addend"),
    (STACK, STACK_B, {"c": np.stack([C, C])}, "addend"), (A, B, {"beta": 1}, "addend"), (STACK, STACK_B, {"beta": 1}, "addend"),
    (A, B, {"beta": 1, "c": np.ones((4, 4))}, "addend"), (A, B, {"beta": 1, "c": np.ones(5)}, "addend"),
    (STACK, STACK_B, {"beta": 1, "c": C}, "addend"), (A, B, {"beta": 1, "c": C + 0j}, "addend"),
    (*WHOLE, {"beta": 1, "c": C}, "addend"),
]  # fmt: skip
OUTS = [
    (A, B, {"out": np.empty((4, 4))}, "out"), (A, B, {"out": np.empty(20)}, "out"), (A, B, {"out": C.T.copy()}, "out"),
    (A, B, {"out": C.astype("float32")}, "out"), (A, B, {"out": C.astype(">f8")}, "out"),
    (A, B, {"out": C.astype("int64")}, "out"), (A + 0j, B, {"out": C.copy()}, "out"), (*WHOLE, {"out": C.astype("int32")}, "out"),
    (A, B, {"out": C.tolist()}, "out"), (A, B, {"out": read_only(C)}, "out"),
    (A, B, {"out": np.broadcast_to(np.zeros(5), (4, 5))}, "out"), (STACK, STACK_B, {"out": C.copy()}, "out"),
    (STACK, B, {"out": C.copy()}, "out"), (STACK, STACK_B, {"out": np.broadcast_to(np.ones(5), (2, 4, 5))}, "out"),
    *((A, B, {"out": strided(each)}, "out") for each in ((0, 8), (8, 0), (8, 8), (32, 8))),
    (SQUARE, MEMORY[:5], {"out": SQUARE}, "overlap"), (MEMORY[:5], SQUARE, {"out": SQUARE}, "overlap"),
    (MEMORY[:5], SQUARE, {"out": MEMORY[4:]}, "overlap"), (MEMORY[4:], SQUARE, {"out": SQUARE.T}, "overlap"),
    (SQUARE + 0j, MEMORY[:5], {"out": MEMORY[:5].astype(complex)[::-1]}, ""),
    (held(SQUARE, "DLPack"), MEMORY[:5], {"out": SQUARE}, "overlap"),
    (MEMORY[:5], memoryview(SQUARE), {"out": SQUARE}, "overlap"),
    (SQUARE.astype("int64"), WHOLE_SQUARE := np.ones((5, 5), "int64"), {"out": WHOLE_SQUARE}, "overlap"),
    (SQUARE.copy(), SQUARE.copy(), {"c": MEMORY[:5], "beta": 1, "out": MEMORY[1:6]}, "overlap"),
    (SQUARE.copy(), SQUARE.copy(), {"c": MEMORY[:5], "beta": 1, "out": MEMORY[:5, ::-1]}, "overlap"),
    (SQUARE.copy(), SQUARE.copy(), {"c": SQUARE, "beta": 1, "out": SQUARE.T}, "overlap"),
    (STACKED := np.ones((3, 4, 4)), np.ones((4, 4)), {"out": STACKED}, "overlap"),
    (STACKED[:2], np.ones((2, 4, 4)), {"out": STACKED[1:]}, "overlap"),
    (np.ones((2, 4, 4)), np.ones((2, 4, 4)), {"c": STACKED[:2], "beta": 1, "out": STACKED[1:]}, "overlap"),
]  # fmt: skip
ERRORS = {"no-gpu": DeviceUnavailable, "transport": DeviceUnavailable, "host-memory": DoesNotFit, "gpu-memory": DoesNotFit}
SETTINGS = [
    (asked, ERRORS.get(code, UsageError), code)
    for code, settings in {
        "setting": [{"kernel": "blsa"}, {"kernel": "zzz"}, {"device": "gpu"}, {"transport": "peer"}, {"precision": "double"},
            {"on_fault": "mend"}, {"check": "perhaps"}, *({"check": each} for each in (1.5, 0.0, ["on"], b"on")), {"threads": -1},
            {"threads": True}, {"threads": 1.0}, {"threads": "many"}, {"gpu_memory": -1}, {"gpu_memory": 1.5}, {"stall": -1},
            {"stall": float("nan")}],
        "number": [{"host_memory": "much"}],
        "root": [{"root": -1}, {"root": 99}, {"root": False}, {"root": "0"}, {"root": None}],
        "kernel-device": [{"kernel": "cublas", "device": "cpu"}, {"kernel": "blas", "device": "cuda"}],
        "option-combination": [{"kernel": "tiled", "device": "emulate", "precision": "fast"}],
        "no-gpu": [{"device": "cuda"}, {"kernel": "cublas"}],
        "transport": [{"device": "cpu", "transport": "nccl"}],
        "host-memory": [{"host_memory": 9000}, {"host_memory": np.int64(9000)}, {"host_memory": "9k"}],
        "gpu-memory": [{"device": "emulate", "gpu_memory": "1"}],
    }.items()
    for asked in settings
]  # fmt: skip
VARIABLES = [
    ("KERNEL", "blsa", UsageError, "setting"),
    ("DEVICE", "cpux", UsageError, "environment"),
    ("DEVICE", "cuda", DeviceUnavailable, "no-gpu"),
    ("CHECK", "perhaps", UsageError, "environment"),
    ("THREADS", "many", UsageError, "environment"),
    ("HOST_MEMORY", "1M", DoesNotFit, "host-memory"),
]


@pytest.fixture
def fitting(request):
    """Leaves a case out that this machine has no GPU, or no compiler, or too few ranks to refuse."""
    asked = request.node.callspec.params.get("asked", {})
    code = request.node.callspec.params.get("code")
    if code == "no-gpu" and not lacking("gpu"):
        pytest.skip("there is a GPU")
    if asked.get("device") == "emulate" and lacking("compiler"):
        pytest.skip("needs a compiler")


def arrays_in(*values: Any) -> list[np.ndarray]:
    return [each for each in values if isinstance(each, np.ndarray)]


def assert_works(comm: Any = None) -> None:
    """The next call does, with other arrays."""
    mine = (A, B) if comm is None or comm.rank == 0 else (None, None)
    c = hybrid.multiply(*mine, comm=comm)
    assert c is None if mine[0] is None else (c == 3).all()


@pytest.mark.parametrize("with_comm", [False, pytest.param(True, marks=pytest.mark.mpi(min_size=2))], ids=["alone", "ranks"])
@pytest.mark.parametrize("table", [OPERANDS, GEMM, OUTS], ids=["operands", "gemm", "out"])
def test_operands_that_make_no_product_are_refused(request, table, with_comm):
    comm = request.getfixturevalue("comm") if with_comm else None
    for number, (a, b, more, code) in enumerate(table):
        arrays = arrays_in(a, b, *more.values())
        before = [np.array(each) for each in arrays]
        where = {} if comm is None else {"comm": comm, "root": comm.size - 1}
        if comm is not None and comm.rank != comm.size - 1:
            a = b = None
            more = {name: value for name, value in more.items() if name not in ("c", "out")}
        if code:
            with refused(UsageError, code) as found:
                hybrid.multiply(a, b, **more, **where)
            assert "rank 0" not in str(found.value), "of others than the root, which is the last"
        else:
            hybrid.multiply(a, b, **more, **where)
            continue
        for array, kept in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, kept)
        if not number % 4:
            assert_works(comm)


@pytest.mark.usefixtures("fitting")
@pytest.mark.parametrize(("asked", "error", "code"), SETTINGS, ids=str)
def test_settings_that_cannot_be_are_refused(asked, error, code):
    with refused(error, code) as found:
        hybrid.multiply(A, B, **asked)
    (name, value), *_ = asked.items()
    assert code != "setting" or name in str(found.value) or str(value) in str(found.value)
    assert_works()


@pytest.mark.usefixtures("fitting")
@pytest.mark.parametrize(("name", "value", "error", "code"), VARIABLES)
def test_the_environment_is_refused_like_an_argument_which_wins_over_it(monkeypatch, name, value, error, code):
    monkeypatch.setenv(f"HYBRID_{name}", value)
    with refused(error, code):
        hybrid.multiply(A, B)
    right = {"DEVICE": "cpu", "KERNEL": "blas", "CHECK": "on", "THREADS": 1, "HOST_MEMORY": "4G"}[name]
    assert (hybrid.multiply(A, B, **{name.lower(): right}) == 3).all()


def test_whole_numbers_of_numpy_are_numbers():
    a = np.arange(12.0, dtype="float32").reshape(4, 3)
    found = hybrid.multiply(
        a, a, C[:3, :3].astype("float32"), alpha=np.float64(0.5), beta=np.array(2), transpose_a=np.bool_(True),
        root=np.int64(0), threads=np.uint8(1), check=np.True_,
    )  # fmt: skip
    np.testing.assert_array_equal(found, 0.5 * (a.T @ a) + 2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_c_is_not_read_where_beta_is_0_and_factors_may_be_nan_or_infinite():
    for c in (np.full((4, 5), np.nan), None, "nothing"):
        np.testing.assert_array_equal(hybrid.multiply(A, B, c, beta=0), 3 * C)
    assert np.isnan(hybrid.multiply(A, B, np.full((4, 5), np.nan), beta=1)).all()
    nothing, product = np.full(A.shape, np.nan), np.full((4, 5), np.nan)
    for zero in (0, 0.0, -0.0):
        np.testing.assert_array_equal(hybrid.multiply(nothing, B, C, alpha=zero, beta=2, out=product), 2 * C)
    np.testing.assert_array_equal(hybrid.multiply([nothing, A], B, alpha=0), np.zeros((2, 4, 5)))
    rows = hybrid.RowBlock(nothing)
    np.testing.assert_array_equal(hybrid.multiply(rows, rows.T, alpha=0).array, np.zeros((4, 4)))
    np.testing.assert_array_equal(hybrid.multiply(rows.T, rows, alpha=0).array, np.zeros((A.shape[1],) * 2))
    assert np.isnan(hybrid.multiply(A, B, alpha=np.nan)).all()
    np.testing.assert_array_equal(hybrid.multiply(A, B, alpha=-np.inf), np.full((4, 5), -np.inf))


# Several ranks


@pytest.mark.mpi(min_size=2)
def test_settings_that_cannot_be_are_refused_on_all_ranks_also_where_one_asks_for_them(comm):
    for asked, error, code in SETTINGS:
        if (code == "no-gpu" and not lacking("gpu")) or (asked.get("device") == "emulate" and lacking("compiler")):
            continue
        with refused(error, code):
            hybrid.multiply(A, B, comm=comm, **asked)
        with hybrid.testing.count() as counts, refused(UsageError, code, "ranks-differ") as found:
            hybrid.multiply(A, B, comm=comm, **(asked if comm.rank == comm.size - 1 else {}))
        assert (counts.multiplications, found.value.on_all_ranks) == (0, True)
    assert_works(comm)


DIFFERENT = [
    ({"threads": 1}, {"threads": 2}), ({"alpha": 2}, {"alpha": 3}), ({"beta": 0.0}, {"beta": 1.0}), ({"transpose_a": True}, {}),
    ({}, {"conjugate_b": True}), ({"dtype": "float64"}, {"dtype": "float32"}), ({"root": 0}, {"root": 1}),
    ({"check": True}, {"check": "host"}), ({"device": "cpu"}, {"device": "emulate"}), ({"kernel": "blas"}, {"kernel": "loops"}),
    ({"precision": "fast"}, {"precision": "native"}), ({"host_memory": "1G"}, {"host_memory": "2G"}),
]  # fmt: skip


@pytest.mark.mpi(min_size=2)
@pytest.mark.needs("compiler")
def test_ranks_that_ask_for_different_products_are_told(comm, monkeypatch):
    last = comm.rank == comm.size - 1
    for here, there in DIFFERENT:
        with refused(UsageError, "ranks-differ"):
            hybrid.multiply(A, B, comm=comm, **(there if last else here))
    with refused(UsageError, "ranks-differ"):
        hybrid.empty((3, 3), comm=comm) if last else hybrid.multiply(A, B, comm=comm)
    with monkeypatch.context() as patch, refused(UsageError, "ranks-differ"):
        patch.setenv("HYBRID_RANKS_PER_NODE", str(int(last)))
        hybrid.multiply(A, B, comm=comm)
    c = hybrid.multiply(*((A, B) if comm.rank == 0 else (None, None)), comm=comm, alpha=2.0 if last else 2)  # the same number
    assert comm.rank or (c == 6).all()
    c = hybrid.multiply(*((A, B) if comm.rank == 0 else (None, None)), comm=comm, alpha=float("nan"))
    assert comm.rank or np.isnan(c).all()


@pytest.mark.mpi(min_size=2)
def test_only_communicators_of_one_group_that_are_still_there_are_taken(comm):
    from mpi4py import MPI

    half = comm.Split(comm.rank % 2)
    between = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    for wrong in (between, "world", 3, MPI.INFO_NULL):
        with refused(UsageError, "communicator"):
            hybrid.multiply(A, B, comm=wrong)
    with refused(UsageError, "communicator"):
        hybrid.multiply(A, B, comm)
    between.Free()
    half.Free()
    for none in (half, MPI.COMM_NULL):
        with refused(UsageError, "communicator"):
            hybrid.multiply(A, B, comm=none)
    assert_works(comm)
