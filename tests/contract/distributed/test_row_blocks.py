# SPDX-License-Identifier: MIT
"""docs/python.md, Row blocks: products of matrices of which every rank has some rows, any number of them, are right for all
types, layouts, flags and settings, stay where A's rows lie, and know their communicator."""

import itertools
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from support import cases
from support.cases import refused
from support.distributed import heights, multiplied, rows_of, whole

import hybrid
from hybrid.errors import CheckFailed, DoesNotFit, UsageError

pytestmark = pytest.mark.mpi


def by_rows(comm, case, matrices, rng):
    """Any number of rows on each rank, C's as the product's; of ranks that exchange B among devices at least one."""
    a, b, *c = matrices
    of_a, of_b = (heights(rng, comm.size, len(each), least=int("peers" in case.way)) for each in (a, b))
    as_product = None if "transpose_a" in case.flags else of_a
    return rows_of(comm, a, of_a), rows_of(comm, b, of_b), *(rows_of(comm, each, as_product) for each in c)


@pytest.mark.parametrize("count", [40, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_any_product_of_any_rows_is_right(comm, seed, count):
    ways = cases.ways_of_ranks(comm.size, emulated=not hybrid.testing.lacking("compiler"))
    for case in cases.draw(seed, count // comm.size, ways, form=("matrix · matrix",)):
        if "peers" in case.way and min(case.sizes) < comm.size:
            case = replace(case, way="tiny pieces")
        multiplied(comm, case, ways[case.way], by_rows)


def test_the_product_lies_as_a_does_and_products_can_follow_each_other(comm, rng):
    of_ranks = heights(rng, comm.size, 30)
    a = rng.standard_normal((30, 30))
    power = rows = rows_of(comm, a, of_ranks)
    for _ in range(2):
        power = hybrid.multiply(power, rows, comm=comm)
        assert (power.shape, power.local_shape) == (a.shape, (of_ranks[comm.rank], 30))
    mixed = (2 * (power @ rows) - rows) / 3  # what multiply gave knows its communicator
    assert mixed.comm is comm
    np.testing.assert_allclose(whole(comm, mixed), (2 * np.linalg.matrix_power(a, 4) - a) / 3, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "int32", "complex64"])
def test_the_second_operand_may_be_a_matrix_that_every_rank_has(comm, rng, dtype):
    a, b = rng.integers(-9, 9, (30, 11)).astype(dtype), rng.integers(-9, 9, (11, 7)).astype(dtype)
    rows = rows_of(comm, a, heights(rng, comm.size, 30), known=True)
    for found in (rows @ b, np.matmul(rows, b.copy(order="F")), hybrid.multiply(rows, b)):
        assert (found.comm, found.rows) == (comm, rows.rows)
        np.testing.assert_array_equal(whole(comm, found), a @ b)
    np.testing.assert_array_equal(whole(comm, hybrid.multiply(rows, b, alpha=2, c=rows @ b, beta=3)), 5 * (a @ b))
    other, moved = b.copy(), b.copy()
    other[0, 0] += comm.rank
    moved[[0, 1]] = moved[[1, 0]] if comm.rank else moved[[0, 1]]
    opposite = b * (-1) ** comm.rank if b.dtype.kind != "i" else other  # whose signs' bits cancel in a sum
    for wrong in (other, moved, opposite, rows_of(comm, b) if comm.rank else b):
        if comm.size > 1:
            with refused(UsageError, "ranks-differ"):
                rows @ wrong
    no_matrices = ("shapes", b[1:]), ("dimensions", b[:, 0]), ("dtype", b.astype(object)), ("masked", np.ma.masked_less(b, 0))
    for code, wrong in no_matrices:
        with refused(UsageError, code):
            rows @ wrong


def test_a_product_of_transposes_moves_rows_and_gives_equal_shares(comm, rng):
    a, b = rng.integers(-9, 9, (23, 17)), rng.integers(-9, 9, (23, 17)).astype("float32")
    first, second = (rows_of(comm, each, heights(rng, comm.size, 23), known=True) for each in (a, b))
    gram, outer, moved = first.T @ second, first @ second.T, hybrid.scatter(first.T)
    for found, right in ((gram, a.T @ b), (outer, a @ b.T), (moved, a.T), (moved @ second, a.T @ b)):
        assert np.array_equal(whole(comm, found), right)
    assert [len(gram.array), len(moved.array)] == [len(np.array_split(np.arange(17), comm.size)[comm.rank])] * 2
    assert outer.rows == first.rows
    assert np.array_equal(hybrid.multiply(first, second, transpose_a=True).array, gram.array)
    assert np.array_equal(whole(comm, hybrid.multiply(first.T, second, transpose_a=True, transpose_b=True)), a @ b.T)
    gathered = hybrid.gather(first.T)
    assert gathered is None if comm.rank else np.array_equal(gathered, a.T)


LONG = 400
SUMS = {"float64": None, "complex64": None, "float16": None, "int8": "int32", "int64": None, "uint8": "uint64", "bool": None}


@pytest.mark.parametrize("dtype", SUMS)
def test_a_small_product_of_long_matrices_is_a_sum_of_what_each_rank_has(comm, rng, dtype):
    """Of any rows of which each rank has the same of both; no matrix is moved, and the product comes to one rank, or all."""
    a, b = ((4 * rng.standard_normal((LONG, width))).astype(dtype) for width in (9, 7))
    of_ranks = heights(rng, comm.size, LONG)
    first, second = (rows_of(comm, each, of_ranks, known=True) for each in (a, b))
    wide = {"b": int, "i": int, "u": int}.get(a.dtype.kind, complex if a.dtype.kind == "c" else float)
    right = 2 * (a.T.conj().astype(wide) @ b.astype(wide)) if a.dtype.kind != "b" else a.T @ b
    with hybrid.testing.pretend(device="cpu"), hybrid.testing.count() as counts:
        product = hybrid.multiply(
            first.T, second, conjugate_a=True, alpha=1 if dtype == "bool" else 2, dtype=SUMS[dtype], comm=comm
        )
    assert product.dtype == (SUMS[dtype] or dtype)
    assert product.array.shape == (len(np.array_split(np.arange(9), comm.size)[comm.rank]), 7)
    on_all = hybrid.gather(product, root=None)
    exact = a.dtype.kind in "biu"
    np.testing.assert_allclose(on_all, right, rtol=0, atol=0 if exact else 1e5 * float(np.finfo(dtype).eps))
    if "float64" in dtype and comm.size > 1:
        assert counts.bytes_sent < a.nbytes / 4
    if dtype == "float64":
        gram = hybrid.gather(first.T @ first, root=None)
        np.testing.assert_allclose(gram, a.T @ a, atol=1e-10)


@pytest.mark.mpi(min_size=2)
def test_a_wrong_part_of_a_sum_is_refused_on_all_ranks_and_one_that_overflows(comm, rng):
    a, b = rng.standard_normal((LONG, 9)), rng.standard_normal((LONG, 7))
    first, second = (rows_of(comm, each, known=True) for each in (a, b))
    victim = comm.size - 1
    for kind, code in (("multiply", "check-product"), ("arrive", "check-exchange")):
        planted = hybrid.testing.plant(kind) if comm.rank == victim else nullcontext()
        with hybrid.testing.pretend(device="cpu"), planted, refused(CheckFailed, code) as refusal:
            first.T @ second
        assert f"rank {victim}" in str(refusal.value)
    for dtype, value, other in (
        ("int16", 10, 10),
        ("int64", 1 << 27, 206_000_000),
    ):  # only all ranks' parts together are too large
        ones, others = (rows_of(comm, np.full((LONG, 3), each, dtype), known=True) for each in (value, other))
        with refused(OverflowError, "overflow") as refusal:
            ones.T @ others
        assert str(LONG * value * other) in str(refusal.value)
    most = 1 << 62
    for of_first, of_last in ((most, most - 1), (2 * most - 1, 0), (-most, -most), (0, 0)):
        values = np.zeros((LONG, 2), "int64")
        values[[0, -1], 0], values[[0, 1, -2, -1], 1] = (of_first, of_last), (most, most, -most, -most)
        ones = rows_of(comm, np.ones_like(values), known=True)
        found = hybrid.gather(rows_of(comm, values, known=True).T @ ones, root=None)
        assert found.tolist() == [[of_first + of_last] * 2, [0, 0]]  # though ranks' parts are too large


@pytest.mark.mpi(min_size=2)
def test_two_communicators_and_none_are_refused_and_a_freed_one(comm):
    rows, copy = rows_of(comm, np.eye(6), known=True), comm.Dup()
    other = hybrid.RowBlock(rows.array, copy)
    for operation in (lambda: rows @ other, lambda: rows + other, lambda: hybrid.multiply(rows.T, other)):
        with refused(UsageError, "communicator"):
            operation()
    unknown = hybrid.RowBlock(rows.array)
    with refused(UsageError, "communicator"):
        unknown @ unknown
    assert np.array_equal((unknown @ rows).array, rows.array)
    copy.Free()
    with pytest.raises(UsageError):
        other @ other
    assert "rank" not in repr(other)


def test_a_row_block_made_by_hand_is_of_the_whole_or_refused_on_all_ranks(comm):
    for code, wrong in (("no-numbers", np.ones(3)), ("ranks-differ", np.ones((2, 4))), ("ranks-differ", np.ones((2, 3), "f4"))):
        if comm.size > 1 or code == "no-numbers":
            with refused(UsageError, code):
                hybrid.RowBlock(np.ones((2, 3)) if comm.rank < comm.size - 1 else wrong, comm)
    rows, first = hybrid.RowBlock(np.ones((comm.rank, 3)), comm), comm.rank * (comm.rank - 1) // 2
    assert (rows.shape, rows.rows) == ((comm.size * (comm.size - 1) // 2, 3), ((first, first + comm.rank),))
    assert f"rows {first}:{first + comm.rank} of {rows.shape[0]}×3" in repr(rows)
    assert repr(rows).endswith(f", rank {comm.rank} of {comm.size})")
    unknown = hybrid.RowBlock(rows.array)
    assert (unknown + rows).rows == rows.rows  # whichever knows them
    if comm.size > 1:
        with pytest.warns(FutureWarning, match="communicator"):
            assert (unknown.shape, len(unknown)) == (rows.local_shape, comm.rank)
        for call in (unknown.sum, unknown.T.norm, lambda: unknown.rows, lambda: unknown[0]):
            with refused(UsageError, "communicator"):
                call()


def test_rows_are_taken_by_their_numbers_in_the_whole_matrix(comm, rng):
    a = rng.standard_normal((40, 6))
    rows = rows_of(comm, a, heights(rng, comm.size, 40), known=True)
    ((lo, hi),) = rows.rows
    ends = [None, -99, lo - 41, lo - 40, lo - 1, lo, lo + 1, hi - 1, hi, hi - 40, 99]
    for key in [*range(-42, 42), *(slice(*each) for each in itertools.product(ends, ends, (None, 3, -1)))]:
        wanted = range(40)[key] if isinstance(key, slice) else [key + 40 * (key < 0)]
        if all(lo <= number < hi for number in wanted):
            for column in (slice(None), np.int64(-1), slice(4, 1, -2)):
                np.testing.assert_array_equal(rows[key, column], a[key, column])
                np.testing.assert_array_equal(rows.T[column, key], a[key, column].T)
            assert np.shares_memory(rows[key], rows.array) or not rows[key].size
        else:
            with refused(UsageError, "rows"):
                rows[key]


REFUSED = {
    "an array before it": ("mixed-kinds", lambda rows, comm: (np.ones((2, 2 * comm.size)), rows, {})),
    "a Block2D beside it": ("mixed-kinds", lambda rows, comm: (rows, hybrid.Block2D(np.ones((0, 2)), (2, 2), [], [(0, 2)]), {})),
    "fewer columns": ("shapes", lambda rows, comm: (hybrid.RowBlock(np.ones((2, 1))), rows, {})),
    "more columns": ("shapes", lambda rows, comm: (hybrid.RowBlock(np.ones((2, 9 * comm.size))), rows, {})),
    "out": ("out", lambda rows, comm: (rows, rows, {"out": np.ones((2, 2))})),
    "root": ("out", lambda rows, comm: (rows, rows, {"root": comm.size - 1})),
    "beta without c": ("addend", lambda rows, comm: (rows, rows, {"beta": 2})),
    "dtype": ("dtype", lambda rows, comm: (rows, rows, {"dtype": "S3"})),
    "kernel": ("setting", lambda rows, comm: (rows, rows, {"kernel": "nonsense"})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_on_all_ranks_and_the_next_product_is_right(comm, name):
    rows = hybrid.RowBlock(np.ones((2, 2 * comm.size)))
    code, call = REFUSED[name]
    a, b, more = call(rows, comm)
    if name != "root" or comm.size > 1:
        with refused(UsageError, code):
            hybrid.multiply(a, b, comm=comm, **more)
    assert (hybrid.multiply(rows, rows, comm=comm).array == 2 * comm.size).all()


@pytest.mark.mpi(min_size=2)
def test_ranks_that_pass_different_things_are_refused(comm):
    ones = np.ones((2, 2 * comm.size))
    rows = hybrid.RowBlock(ones)
    with refused(UsageError, "ranks-differ"):
        hybrid.multiply(*[rows if comm.rank == 0 else ones] * 2, comm=comm)
    with refused(UsageError, "ranks-differ"):
        hybrid.multiply(rows, hybrid.RowBlock(np.ones((2, 3 if comm.rank == 1 else 4))), comm=comm)
    with refused(UsageError, "ranks-differ"):
        hybrid.multiply(*[hybrid.RowBlock(ones.astype("float32") if comm.rank == 1 else ones)] * 2, comm=comm)
    with refused(UsageError, "ranks-differ"):
        hybrid.multiply(rows, rows, comm=comm, alpha=1 + comm.rank)


def test_copies_that_converting_takes_are_forecast(comm):
    rows = np.ones((300, 300 * comm.size))
    with hybrid.testing.pretend(host_memory=comm.size * ((96 << 20) + 5 * rows.nbytes // 2)):
        hybrid.multiply(hybrid.RowBlock(rows), hybrid.RowBlock(rows), comm=comm)
        with refused(DoesNotFit, "host-memory"):
            hybrid.multiply(hybrid.RowBlock(np.asfortranarray(rows)), hybrid.RowBlock(rows.astype("float32")), comm=comm)
