# SPDX-License-Identifier: MIT
"""hybrid.multiply in one process, without MPI."""

from __future__ import annotations

import array
import gc
import os
import subprocess
import sys
import warnings
import weakref
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.commands import ROOT
from support.selection import examples

import hybrid
from hybrid.core.settings import Settings
from hybrid.errors import CheckFailed, DeviceUnavailable, DoesNotFit, UsageError
from hybrid.plan.plan import PROCESS_BYTES
from hybrid.ranks.team import Team
from hybrid.selection import inventory

KiB, MiB = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch):
    """No GPU, and nothing asked for in the environment."""

    def no_gpus():
        raise DeviceUnavailable("no GPU on this made-up machine")

    monkeypatch.setattr(inventory, "usable_gpus", no_gpus)
    for known in fields(Settings):
        monkeypatch.delenv(f"HYBRID_{known.name.upper()}", raising=False)


def uniform(rows, columns, seed=0, dtype="float64"):
    return np.random.default_rng(seed).random((rows, columns)).astype(dtype)


def assert_is_numpys(c, a, b):
    """Of NumPy's type and, but for rounding, of its values."""
    with np.errstate(all="ignore"):
        expected = a @ b
    assert type(c) is np.ndarray
    assert c.dtype == expected.dtype
    assert c.dtype.isnative
    assert c.shape == expected.shape
    tolerance = np.finfo(c.dtype).eps * (1 + a.shape[1])
    np.testing.assert_allclose(c, expected, rtol=tolerance, atol=tolerance)


def spoiled(a, b, c):
    """A kernel that gets one element wrong."""
    np.matmul(a, b, out=c)
    c[-1, -1] += 1


# Any matrix


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(0, 40), l=st.integers(0, 40), m=st.integers(0, 40), dtype=st.sampled_from(["float32", "float64"]))
def test_shapes_of_all_kinds_give_numpys_product(n, l, m, dtype):
    a, b = uniform(n, l, 1, dtype), uniform(l, m, 2, dtype)
    assert_is_numpys(hybrid.multiply(a, b), a, b)


VIEWS = {
    "C order": lambda x: x.copy(),
    "Fortran order": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "rows of a wider matrix": lambda x: np.pad(x, ((1, 1), (2, 3)))[1:-1, 2:-3],
    "negative strides": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": lambda x: unaligned(x),
    "one row repeated": lambda x: np.broadcast_to(x[:1], x.shape),
    "a subclass": lambda x: x.view(Subclass),
}


class Subclass(np.ndarray):
    """Like those of other libraries."""


def unaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)
    moved = memory[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    assert x.itemsize == 1 or not moved.flags.aligned
    return moved


@pytest.mark.parametrize("of_b", VIEWS)
@pytest.mark.parametrize("of_a", VIEWS)
def test_matrices_may_lie_in_memory_as_they_like(of_a, of_b):
    a, b = VIEWS[of_a](uniform(7, 5)), VIEWS[of_b](uniform(5, 6, 1))
    kept = a.copy(), b.copy()
    assert_is_numpys(hybrid.multiply(a, b), np.asarray(a), np.asarray(b))
    np.testing.assert_array_equal(a, kept[0])
    np.testing.assert_array_equal(b, kept[1])


def test_inputs_are_neither_needed_writable_nor_changed():
    a, b = uniform(6, 5), uniform(5, 4, 1)
    a.flags.writeable = b.flags.writeable = False
    before = a.tobytes(), b.tobytes()
    assert_is_numpys(hybrid.multiply(a, b), a, b)
    assert (a.tobytes(), b.tobytes()) == before


def test_a_matrix_times_itself_and_its_transpose():
    a = uniform(8, 8)
    assert_is_numpys(hybrid.multiply(a, a), a, a)
    assert_is_numpys(hybrid.multiply(a, a.T), a, a.T)


def test_the_result_is_a_writable_matrix_of_its_own():
    a, b = uniform(6, 6), np.eye(6)
    c = hybrid.multiply(a, b)
    assert c.flags.writeable
    assert c.flags.c_contiguous
    assert not np.may_share_memory(c, a)
    c[...] = 0
    assert a.any()


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float32", "float64"),
        ("float64", "int64"),
        ("uint8", "float64"),
        ("int8", "float32"),
        ("int32", "float32"),
        ("float16", "float32"),
        ("float64", "float16"),
        ("bool", "float32"),
        ("float64", "bool"),
        (">f4", "<f4"),
        (">f8", "float32"),
        (">f8", ">f8"),
        (">i2", "float32"),
    ],
)
def test_the_result_has_the_type_numpy_gives_it(of_a, of_b):
    a, b = (uniform(6, 5) * 100).astype(of_a), (uniform(5, 7, 1) * 100).astype(of_b)
    assert_is_numpys(hybrid.multiply(a, b), a, b)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "bool", ">f8"])
@pytest.mark.parametrize("view", VIEWS)
def test_the_kernel_gets_plain_matrices_of_one_type_and_those_that_are_plain_without_a_copy(kernel_calls, view, dtype):
    a, b = VIEWS[view]((uniform(7, 5) * 100).astype(dtype)), uniform(5, 6, 1)
    hybrid.multiply(a, b)
    (given,) = kernel_calls
    for matrix in given:
        assert matrix.dtype == np.float64
        assert matrix.dtype.isnative
        assert matrix.flags.c_contiguous or matrix.flags.f_contiguous  # of which BLAS is told by a flag
        assert matrix.flags.aligned
    in_order = a.flags.c_contiguous or a.flags.f_contiguous
    plain = a.dtype == np.float64 and a.dtype.isnative and in_order and a.flags.aligned
    assert np.may_share_memory(given[0], a) == plain
    assert np.may_share_memory(given[1], b)


@pytest.mark.parametrize(
    ("of_a", "of_b", "named"),
    [
        ("G", "float64", "would give complex256"),
        ("object", "float64", "object and float64 would give object"),
        ("U3", "float64", "<U3 and float64"),
        ("S3", "S3", "|S3"),
        ("M8[s]", "float64", r"datetime64[s] and float64"),
        ("f8,i4", "float64", "float64"),
    ],
)
def test_types_that_give_no_product_are_refused_by_name(of_a, of_b, named):
    with pytest.raises(UsageError) as refused:
        hybrid.multiply(np.zeros((2, 2), of_a), np.zeros((2, 2), of_b))
    assert named in str(refused.value)
    assert "only products of integers, bool and floating-point numbers" in str(refused.value)


def test_longdouble_is_refused_where_it_is_more_than_double():
    if np.dtype(np.longdouble) == np.float64:
        pytest.skip("long double is double here")
    with pytest.raises(UsageError, match="only products of integers"):
        hybrid.multiply(np.eye(2, dtype=np.longdouble), np.eye(2))


# NaN and infinity


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("where", ["a", "b", "both"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_and_infinity_go_where_numpy_lets_them_go(bad, dtype, where):
    a, b = uniform(9, 8, 0, dtype), uniform(8, 7, 1, dtype)
    if where != "b":
        a[2, 3] = bad
    if where != "a":
        b[4, 5] = bad
    assert_is_numpys(hybrid.multiply(a, b), a, b)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinity_times_zero_is_nan_and_overflow_is_infinity():
    a, b = np.array([[np.inf, 1.0], [1e300, 0.0]]), np.array([[0.0, 1e300], [1.0, 1.0]])
    np.testing.assert_array_equal(hybrid.multiply(a, b), [[np.nan, np.inf], [0.0, np.inf]])


def test_nan_in_one_row_does_not_hide_a_wrong_element_in_another(monkeypatch):
    monkeypatch.setattr("hybrid.devices.cpu.blas", spoiled)
    a = uniform(9, 8)
    a[2, 3] = np.nan
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, uniform(8, 7))


# Other holders of matrices


class OnlyDlpack:
    """An array of some other library: it speaks DLPack and nothing else."""

    def __init__(self, values):
        self._values = values

    def __dlpack__(self, **options):
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._values.__dlpack_device__()


class OnlyArray:
    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self._values, dtype=dtype)


class OnlyInterface:
    def __init__(self, values):
        self._values = values
        self.__array_interface__ = values.__array_interface__


def as_memoryview(values):
    flat = array.array("d", values.ravel())
    return memoryview(flat).cast("B").cast("d", values.shape)


@pytest.mark.parametrize("hold", [OnlyDlpack, OnlyArray, OnlyInterface, as_memoryview, memoryview, np.ndarray.tolist])
def test_matrices_may_be_held_by_anything_with_an_array_protocol(hold):
    a, b = uniform(4, 5), uniform(5, 3, 1)
    assert_is_numpys(hybrid.multiply(hold(a), hold(b)), a, b)
    assert_is_numpys(hybrid.multiply(hold(a), b), a, b)


@pytest.mark.parametrize("a", [[[1.0, 2.0], [3.0]], [["x"]], [[None]], object(), "text", 5.0])
def test_what_is_no_matrix_is_refused(a):
    with pytest.raises(ValueError):  # noqa: PT011 (some of them are refused by NumPy)
        hybrid.multiply(a, np.eye(2))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), "a has 3 columns and b 2 rows"),
        (np.ones((0, 3)), np.ones((0, 3)), "a has 3 columns and b 0 rows"),
        (np.ones(3), np.ones((2, 3)), "a has 3 columns and b 2 rows"),
        (3.0, np.ones((3, 3)), "a must have one or two dimensions here, not 0"),
        (None, np.ones((3, 3)), "a is None"),
        (np.ones((3, 3)), None, "b is None"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(a, b, message):
    with pytest.raises(UsageError, match=message):
        hybrid.multiply(a, b)


# out=


OUTS = {
    "C order": lambda shape, dtype: np.full(shape, 7, dtype),
    "Fortran order": lambda shape, dtype: np.full(shape, 7, dtype, order="F"),
    "strided": lambda shape, dtype: np.full((2 * shape[0], 3 * shape[1]), 7, dtype)[::2, ::3],
    "negative strides": lambda shape, dtype: np.full(shape, 7, dtype)[::-1, ::-1],
    "part of a larger matrix": lambda shape, dtype: np.full((shape[0] + 2, shape[1] + 2), 7, dtype)[1:-1, 1:-1],
}


@pytest.mark.parametrize("make", OUTS)
@pytest.mark.parametrize("shape", [(6, 5, 4), (1, 1, 1), (6, 0, 4), (0, 5, 4), (6, 5, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_out_is_filled_and_returned(make, shape, dtype):
    a, b = uniform(*shape[:2], 0, dtype), uniform(*shape[1:], 1, dtype)
    out = OUTS[make]((shape[0], shape[2]), dtype)
    assert hybrid.multiply(a, b, out=out) is out
    assert_is_numpys(out, a, b)


def test_around_a_strided_out_nothing_is_touched():
    whole = np.full((8, 9), 7.0)
    a, b = uniform(4, 5), uniform(5, 3, 1)
    hybrid.multiply(a, b, out=whole[::2, ::3])
    assert_is_numpys(whole[::2, ::3].copy(), a, b)
    whole[::2, ::3] = 7
    assert (whole == 7).all()


def test_a_contiguous_out_is_computed_in_place(kernel_calls):
    out = np.empty((4, 3))
    hybrid.multiply(uniform(4, 5), uniform(5, 3), out=out)
    assert [c.ctypes.data for _, _, c in kernel_calls] == [out.ctypes.data]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty((4, 4)), r"out has shape \(4, 4\), the product \(4, 3\)"),
        (np.empty(12), r"out has shape \(12,\)"),
        (np.empty((3, 4)).T.copy().T, r"out has shape \(3, 4\)"),
        (np.empty((4, 3), "float32"), "out must be an array of float64"),
        (np.empty((4, 3), np.dtype("float64").newbyteorder()), "out must be an array of float64"),
        (np.empty((4, 3), "int64"), "out must be an array of float64"),
        (np.broadcast_to(np.zeros(3), (4, 3)), "out must be writable"),
    ],
)
def test_an_out_that_cannot_take_the_product_is_refused(out, message):
    with pytest.raises(UsageError, match=message):
        hybrid.multiply(uniform(4, 5), uniform(5, 3), out=out)


@pytest.mark.parametrize("which", ["a", "b", "a part of a", "a view of b", "behind DLPack", "behind a buffer"])
def test_an_out_that_overlaps_an_input_is_refused_and_not_touched(which):
    a, b = uniform(5, 5), uniform(5, 5, 1)
    larger = uniform(9, 5, 2)
    first, second, out = {
        "a": (a, b, a),
        "b": (a, b, b),
        "a part of a": (larger[:5], b, larger[4:]),
        "a view of b": (a, b, b.T),
        "behind DLPack": (OnlyDlpack(a), b, a),
        "behind a buffer": (a, memoryview(b), b),
    }[which]
    before = out.copy()
    with pytest.raises(UsageError, match="out overlaps a or b"):
        hybrid.multiply(first, second, out=out)
    np.testing.assert_array_equal(out, before)


# How it is done


def test_threads_are_those_asked_for_and_afterwards_as_before(monkeypatch):
    from threadpoolctl import threadpool_info

    from hybrid.host.threads import product_threads

    def blas_threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    seen = []

    def kernel(a, b, c):
        seen.append((product_threads(), set(blas_threads())))
        np.matmul(a, b, out=c)

    monkeypatch.setattr("hybrid.devices.cpu.blas", kernel)
    before = blas_threads()
    a, b = uniform(4, 5), uniform(5, 3)
    for count in (1, 2):
        assert_is_numpys(hybrid.multiply(a, b, threads=count), a, b)
    monkeypatch.setenv("HYBRID_THREADS", "1")
    hybrid.multiply(a, b)
    assert seen == [(1, {1}), (2, {1}), (1, {1})]
    assert blas_threads() == before


@pytest.mark.parametrize("make", [uniform, lambda *shape: np.ones(shape)], ids=["uniform", "integers"])
def test_a_wrong_kernel_is_found_unless_the_check_is_off(monkeypatch, make):
    monkeypatch.setattr("hybrid.devices.cpu.blas", spoiled)
    a, b = make(6, 5), make(5, 4)
    with pytest.raises(
        CheckFailed, match=r"the product is wrong: row 5 of C, columns 3: wrong by 1\.00e\+00, multiplied by rank 0 on "
    ):
        hybrid.multiply(a, b)
    for unchecked in (hybrid.multiply(a, b, check=False), product_with(monkeypatch, a, b, CHECK="0")):
        assert unchecked[-1, -1] == pytest.approx((a @ b)[-1, -1] + 1)
    monkeypatch.setenv("HYBRID_CHECK", "0")
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b, check=True)


def test_what_is_wrong_is_told_with_its_place(monkeypatch):
    monkeypatch.setattr("hybrid.devices.cpu.blas", spoiled)
    monkeypatch.setenv("HYBRID_STAGED", "1")
    with pytest.raises(CheckFailed, match=r"rank 0 on .* multiplied wrong: row 5, columns 0:4$"):
        hybrid.multiply(np.ones((6, 5)), np.ones((5, 4)))


def product_with(monkeypatch, a, b, **environment):
    with monkeypatch.context() as changed:
        for name, value in environment.items():
            changed.setenv(f"HYBRID_{name}", value)
        return hybrid.multiply(a, b)


def test_a_kernel_that_leaves_a_row_out_is_found(monkeypatch):
    monkeypatch.setattr("hybrid.devices.cpu.blas", lambda a, b, c: np.matmul(a[:-1], b, out=c[:-1]))
    with pytest.raises(CheckFailed):
        hybrid.multiply(uniform(6, 5), uniform(5, 4))


@pytest.mark.parametrize(
    ("environment", "calls"),
    [({}, 1), ({"PANEL_ROWS": "2"}, 5), ({"STAGED": "1", "PANEL_ROWS": "2", "PANEL_COLUMNS": "3"}, 8), ({"STAGED": "1"}, 1)],
)
def test_the_environment_says_in_which_pieces_the_work_is_done(monkeypatch, kernel_calls, environment, calls):
    a, b = uniform(10, 8), uniform(8, 12, 1)
    assert_is_numpys(product_with(monkeypatch, a, b, **environment), a, b)
    assert len(kernel_calls) == calls
    assert sum(c.size for _, _, c in kernel_calls) == 10 * 12


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kernel": "blsa"}, UsageError, "unknown kernel 'blsa': did you mean 'blas'"),
        ({"kernel": "zzz"}, UsageError, "unknown kernel 'zzz': one of .*blas"),
        ({"kernel": "cublas", "device": "cpu"}, UsageError, "kernel cublas runs on cuda, but the device asked for is cpu"),
        ({"kernel": "blas", "device": "cuda"}, UsageError, "kernel blas runs on cpu, but the device asked for is cuda"),
        ({"device": "cuda"}, DeviceUnavailable, "no usable GPU on every rank: no GPU on this made-up machine"),
        ({"kernel": "cublas"}, DeviceUnavailable, "no usable GPU"),
        ({"device": "gpu"}, UsageError, "unknown device 'gpu'"),
        ({"threads": -1}, UsageError, "threads must not be negative"),
        ({"root": 1}, UsageError, "root 1 is not a rank"),
        ({"root": -1}, UsageError, "root -1 is not a rank"),
        ({"root": False}, UsageError, "root False is not a rank"),
        ({"threads": True}, UsageError, "threads must be a whole number, not True"),
    ],
)
def test_what_cannot_be_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        hybrid.multiply(np.eye(2), np.eye(2), **options)


def test_whole_numbers_of_numpy_are_numbers():
    assert np.array_equal(hybrid.multiply(np.eye(2), np.eye(2), root=np.int64(0), threads=np.uint8(1)), np.eye(2))


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("KERNEL", "blsa", UsageError, "did you mean 'blas'"),
        ("DEVICE", "cuda", DeviceUnavailable, "no usable GPU"),
        ("DEVICE", "cpux", UsageError, "did you mean 'cpu'"),
        ("THREADS", "many", UsageError, "HYBRID_THREADS='many' is not a number"),
        ("CHECK", "perhaps", UsageError, "unknown check 'perhaps': one of on, host, off"),
    ],
)
def test_the_environment_is_heard_and_refused_like_an_argument(monkeypatch, name, value, error, message):
    with pytest.raises(error, match=message):
        product_with(monkeypatch, np.eye(2), np.eye(2), **{name: value})


def test_an_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("HYBRID_DEVICE", "cuda")
    monkeypatch.setenv("HYBRID_KERNEL", "cublas")
    np.testing.assert_array_equal(hybrid.multiply(np.eye(2), np.eye(2), device="cpu", kernel="blas"), np.eye(2))


# Memory


def test_what_does_not_fit_is_refused_with_the_missing_amount(monkeypatch):
    a, b = uniform(300, 200), uniform(200, 400)
    need = PROCESS_BYTES + 8 * 300 * 400  # a and b are multiplied where they lie
    assert_is_numpys(product_with(monkeypatch, a, b, CHECK="0", HOST_MEMORY=str(need)), a, b)
    with pytest.raises(DoesNotFit, match=r"300×200 · 200×400 float64 needs .* MiB of memory on .*: 256\.0 KiB are missing"):
        product_with(monkeypatch, a, b, CHECK="0", HOST_MEMORY=str(need - 256 * KiB))
    with pytest.raises(MemoryError, match=r"which has 1\.0 MiB: 95\.9 MiB are missing"):
        product_with(monkeypatch, a, b, CHECK="0", HOST_MEMORY="1M")


@pytest.mark.parametrize("of_a", [np.asfortranarray, lambda a: a.astype("float32")], ids=["other order", "other type"])
def test_copies_of_the_inputs_are_part_of_what_must_fit(monkeypatch, of_a):
    a, b = of_a(uniform(300, 200)), uniform(200, 400)
    need = PROCESS_BYTES + 8 * (300 * 400 + 300 * 200)
    assert_is_numpys(product_with(monkeypatch, a, b, CHECK="0", HOST_MEMORY=str(need)), a, b)
    with pytest.raises(DoesNotFit, match=r"256\.0 KiB are missing"):
        product_with(monkeypatch, a, b, CHECK="0", HOST_MEMORY=str(need - 256 * KiB))


def test_buffers_are_part_of_what_must_fit(monkeypatch):
    a, b = uniform(300, 200), uniform(200, 400)
    need = PROCESS_BYTES + 8 * (300 * 400 + 300 * 200 + 200 * 400 + 300 * 400)
    assert_is_numpys(product_with(monkeypatch, a, b, CHECK="0", HOST_MEMORY=str(need), STAGED="1"), a, b)
    with pytest.raises(DoesNotFit, match=r"256\.0 KiB are missing"):
        product_with(monkeypatch, a, b, CHECK="0", HOST_MEMORY=str(need - 256 * KiB), STAGED="1")


# The module


def python(script, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**clean, "PYTHONPATH": str(ROOT), "HYBRID_DEVICE": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_a_process_alone_multiplies_without_mpi():
    script = (
        "import sys, numpy, hybrid\n"
        "c = hybrid.multiply(numpy.ones((3, 4)), numpy.ones((4, 2)))\n"
        "print(c.sum(), 'mpi4py' in sys.modules, 'cupy' in sys.modules)"
    )
    assert python(script) == ["24.0", "False", "False"]


def test_importing_the_package_loads_neither_numpy_nor_mpi():
    script = "import sys, hybrid; print(hybrid.__version__, 'numpy' in sys.modules, 'mpi4py' in sys.modules)"
    assert python(script) == [hybrid.__version__, "False", "False"]


def test_the_package_has_no_other_attributes():
    with pytest.raises(AttributeError, match="no attribute 'divide'"):
        _ = hybrid.divide


def test_a_product_of_finite_numbers_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hybrid.multiply(uniform(50, 60), uniform(60, 70))
        hybrid.multiply(np.ones((50, 60)), np.ones((60, 70)))
        hybrid.multiply(np.ones((0, 60)), np.ones((60, 70)))
        hybrid.multiply(np.ones((50, 0)), np.ones((0, 70)))


def test_the_result_outlives_the_inputs():
    c = hybrid.multiply(OnlyDlpack(uniform(6, 5)), OnlyDlpack(uniform(5, 4, 1)))
    assert_is_numpys(c, uniform(6, 5), uniform(5, 4, 1))


def test_masked_arrays_are_refused_and_subclasses_of_out_are_filled():
    with pytest.raises(UsageError, match="masked array"):
        hybrid.multiply(np.ma.masked_equal(np.eye(3), 0), np.eye(3))
    for masked in (np.ma.masked_equal(np.eye(3), 0), np.ma.array(np.eye(3)), np.ma.zeros((2, 3, 3))):
        a = np.ones(masked.shape)
        for c in (None, masked):
            with pytest.raises(UsageError, match=r"out is a masked array.*: pass out\.data"):
                hybrid.multiply(a, a, c, beta=0, out=masked)
    out = np.asmatrix(np.zeros((3, 3)))
    assert hybrid.multiply(np.eye(3), 2 * np.eye(3), out=out) is out
    np.testing.assert_array_equal(out, 2 * np.eye(3))


def test_calls_from_several_threads_leave_blas_as_it_was():
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import threadpool_info

    before = [pool["num_threads"] for pool in threadpool_info()]
    a = np.random.default_rng(0).random((200, 200))
    with ThreadPoolExecutor(3) as pool:
        for c in pool.map(lambda _: hybrid.multiply(a, a), range(12)):
            np.testing.assert_allclose(c, a @ a)
    assert [pool["num_threads"] for pool in threadpool_info()] == before


def test_ranks_agree_but_once_that_their_devices_have_a_kernel(monkeypatch):
    entered = []
    phase = Team.phase
    monkeypatch.setattr(Team, "phase", lambda team, name, **more: entered.append(name) or phase(team, name, **more))
    matrices = [uniform(3, 3, dtype=dtype) for dtype in ("float64", "float32")]
    for _ in range(2):
        entered.clear()
        for a in matrices:
            assert_is_numpys(hybrid.multiply(a, a, device="cpu", kernel="blas", check=False), a, a)
    assert "multiply" in entered
    assert "prepare" not in entered


@pytest.mark.parametrize("check", ["on", "host", "off"])
@pytest.mark.parametrize("staged", ["0", "1"])
def test_nothing_keeps_the_matrices_when_the_caller_lets_go_of_them(monkeypatch, staged, check):
    monkeypatch.setenv("HYBRID_STAGED", staged)
    a, b = np.ones((30, 20)), np.ones((20, 10))
    gc.disable()  # it would free them later, and until then they take memory
    try:
        for _ in range(2):
            c = hybrid.multiply(a, b, check=check)
        alive = [weakref.ref(matrix) for matrix in (a, b, c)]
        del a, b, c
        assert all(matrix() is None for matrix in alive)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("strides", "overlaps"),
    [
        ((0, 8), True),
        ((8, 0), True),
        ((8, 8), True),
        ((24, 8), True),
        ((32, 8), False),
        ((8, 32), False),
        ((-32, -8), False),
        ((64, 16), False),
    ],
)
def test_an_out_that_overlaps_itself_is_refused(strides, overlaps):
    memory = np.zeros(64)
    out = np.lib.stride_tricks.as_strided(memory[31:], (4, 4), strides)
    a, b = np.eye(4) * 2, np.arange(16.0).reshape(4, 4)
    if not overlaps:
        np.testing.assert_array_equal(hybrid.multiply(a, b, out=out), 2 * b)
        return
    with pytest.raises(UsageError, match="several of its elements share memory"):
        hybrid.multiply(a, b, out=out)
    assert not memory.any()


def test_an_out_of_one_row_or_column_may_have_any_stride():
    for shape, strides in (((1, 4), (0, 8)), ((4, 1), (8, 0)), ((1, 1), (0, 0))):
        out = np.lib.stride_tricks.as_strided(np.zeros(8), shape, strides)
        a, b = np.ones((shape[0], 2)), np.ones((2, shape[1]))
        np.testing.assert_array_equal(hybrid.multiply(a, b, out=out), np.full(shape, 2.0))


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.ma.masked_equal(np.eye(3), 0), "^the array of a RowBlock is a masked array"),
        (np.ones(3), "not an array of 1 dimensions"),
        ([[1.0]], "not list"),
    ],
)
def test_a_row_block_says_what_it_was_given(array, says):
    with pytest.raises(UsageError, match=says):
        hybrid.RowBlock(array)


@pytest.mark.parametrize("memory", [9000, "9k", np.int64(9000)])
def test_memory_may_be_limited_for_one_call(rng, memory):
    a, b = rng.standard_normal((60, 50)), rng.standard_normal((50, 40))
    with pytest.raises(DoesNotFit, match="missing"):
        hybrid.multiply(a, b, host_memory=memory)
    np.testing.assert_allclose(hybrid.multiply(a, b, host_memory="2G"), a @ b)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host_memory": "much"}, "'much' is not a number of bytes"),
        ({"gpu_memory": -1}, "gpu_memory must not be negative"),
        ({"gpu_memory": 1.5}, "gpu_memory must be a whole number"),
        ({"transport": "peer"}, "did you mean 'peers'"),
    ],
)
def test_wrong_memory_and_transports_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        hybrid.multiply(np.ones((2, 2)), np.ones((2, 2)), **options)


def test_a_call_within_a_call_is_refused_and_the_outer_one_goes_on(monkeypatch):
    """As of a signal's handler, which Python runs between two instructions of whatever the main thread does."""
    a, b, said = uniform(20, 30), uniform(30, 10), []

    def interrupted(*arguments):
        with pytest.raises(UsageError, match="from within another call") as refused:
            hybrid.multiply(a, b)
        said.append(refused)
        return original(*arguments)

    original = hybrid.execution.root_call.take_inventory
    monkeypatch.setattr("hybrid.execution.root_call.take_inventory", interrupted)
    assert_is_numpys(hybrid.multiply(a, b), a, b)
    assert len(said) == 1
