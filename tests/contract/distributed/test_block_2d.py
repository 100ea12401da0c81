# SPDX-License-Identifier: MIT
"""docs/python.md, Blocks of a grid: products of matrices distributed in two dimensions, also as ScaLAPACK deals them, are right
for every grid, block size, order and type; what makes up no matrix is refused on all ranks."""

from dataclasses import replace

import numpy as np
import pytest
from support import cases
from support.cases import refused
from support.distributed import dealt, grids, multiplied, whole

import hybrid
from hybrid.errors import Overflow, UsageError

ONES = np.ones((4, 4))
SETTINGS = {
    "in place": cases._way(device="cpu"),
    "nodes": cases._way(device="cpu", RANKS_PER_NODE=1, MESSAGE_BYTES=300),
    "nodes of two, staged": cases._way(device="cpu", RANKS_PER_NODE=2, STAGED=1, POISON=1, GPU_MEMORY="20k"),
    "host": cases._way(device="cpu", check="host", RANKS_PER_NODE=1, STAGED=1, PANEL_COLUMNS=7),
    "emulated": cases._way(device="emulate", POISON=1),
}


def by_blocks(comm, case, matrices, rng):
    """Cyclically in blocks of random sizes on a random grid of ranks, from a random process on."""
    grid = grids(comm.size)[rng.integers(len(grids(comm.size)))]
    first, blocks = (
        [tuple(map(int, rng.integers(1, each, 2) - least)) for _ in "abc"] for each, least in ((np.add(grid, 1), 1), (40, 0))
    )
    order = "CF"[rng.integers(2)]
    return [dealt(comm, each, grid, blocks.pop(), order, first.pop()) for each in matrices]


@pytest.mark.mpi
@pytest.mark.parametrize("count", [40, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_any_product_of_any_block_cyclic_distribution_is_right(comm, seed, count):
    ways = SETTINGS if not hybrid.testing.lacking("compiler") else {name: SETTINGS[name] for name in list(SETTINGS)[:-1]}
    for case in cases.draw(seed, count // comm.size, ways, form=("matrix · matrix",)):
        multiplied(comm, replace(case, layouts=("C order",) * 4), ways[case.way], by_blocks)


@pytest.mark.mpi
def test_the_product_has_the_rows_of_a_and_the_columns_of_b_and_knows_its_communicator(comm, rng):
    a, b = rng.standard_normal((60, 60)) / 8, rng.standard_normal((60, 60)) / 8
    for grid in grids(comm.size):
        first, second = dealt(comm, a, grid, (7, 6)), dealt(comm, b, grid, (6, 9))
        c = hybrid.multiply(first, second, comm=comm)
        assert (c.shape, c.rows, c.columns, c.comm) == ((60, 60), first.rows, second.columns, comm)
        assert repr(c).endswith(f"rank {comm.rank} of {comm.size})")
        square = dealt(comm, a, grid, (7, 7))
        power = hybrid.multiply(square, square, comm=comm)
        power = 2 * (power @ square) @ square / 2 - square
        np.testing.assert_allclose(whole(comm, power), np.linalg.matrix_power(a, 4) - a, rtol=1e-9, atol=1e-9)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int32"])
def test_c_may_lie_otherwise_and_what_a_factor_of_0_leaves_out_is_not_read(comm, rng, dtype):
    a, b, c = (rng.integers(-9, 10, (40, 40)).astype(dtype) * (1 - 2j if dtype == "complex64" else 1) for _ in "abc")
    for grid in grids(comm.size):
        parts = dealt(comm, a, grid, (7, 6)), dealt(comm, b, grid, (6, 9)), dealt(comm, c, grid, (7, 9))
        for beta in (0, 1):
            other = hybrid.multiply(*parts[:2], dealt(comm, c, grid, (5, 3)).T.T, beta=beta, comm=comm)
            assert (other.rows, other.columns) == (dealt(comm, c, grid, (5, 3)).rows, dealt(comm, c, grid, (5, 3)).columns)
            np.testing.assert_array_equal(whole(comm, other), a @ b + beta * c)
        parts[0].array[...] = parts[1].array[...] = np.nan if dtype != "int32" else 1
        for more in ({}, {"transpose_a": True}, {"transpose_a": True, "transpose_b": True}):
            found = hybrid.multiply(*parts, comm=comm, alpha=0, beta=2, **more)
            np.testing.assert_array_equal(whole(comm, found), 2 * c)
            np.testing.assert_array_equal(whole(comm, hybrid.multiply(*parts[:2], comm=comm, alpha=0, **more)), 0 * c)


@pytest.mark.mpi
def test_ranks_may_have_blocks_of_any_size_or_nothing(comm, rng):
    a = rng.integers(-9, 9, (60, 60)).astype(float)
    cut, pairs, beside = int(rng.integers(0, 61)), max(1, comm.size // 2), comm.rank // 2
    columns = [(0, cut), (cut, 60)][comm.rank % 2] if comm.size > 1 else (0, 60)
    rows = (60 * beside // pairs, 60 * (beside + 1) // pairs) if beside < pairs else (0, 0)
    columns = columns if beside < pairs else (0, 0)
    block = hybrid.Block2D(a[slice(*rows), slice(*columns)], [60, np.int64(60)], [rows], [columns], comm)
    assert np.array_equal(whole(comm, block @ block), a @ a)


@pytest.mark.mpi
@pytest.mark.parametrize("size", [3, 24])
def test_products_of_transposes_lie_on_the_grid_of_the_matrices_themselves(comm, rng, size):
    a, b = (rng.integers(-9, 9, (size, size)) for _ in "ab")
    for grid in grids(comm.size):
        first, second = (replace(dealt(comm, each, grid, (5, 5)), comm=comm) for each in (a, b))
        for found, right in ((first.T @ second, a.T @ b), (first @ second.T, a @ b.T), (first.T @ second.T, a.T @ b.T)):
            assert (found.rows, found.columns) == (first.rows, first.columns)
            np.testing.assert_array_equal(whole(comm, found + first), right + a)
        as_c = hybrid.multiply(first.T, second, second.T, beta=2, modulus=7, comm=comm)
        np.testing.assert_array_equal(whole(comm, as_c - second.T), (a.T @ b + 2 * b.T) % 7 - b.T)
        with refused(UsageError, "mixed-kinds"):  # also on ranks whose places are the same
            first + first.T


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int32"])
def test_submatrices_on_the_same_grid_are_multiplied_added_and_written_as_pdgemm_does(comm, rng, dtype):
    a, b, c = (rng.integers(-9, 10, (30, 40)).astype(dtype) * (1 - 2j if dtype == "complex64" else 1) for _ in "abc")
    for grid in grids(comm.size):
        on_grid = [dealt(comm, each, grid, (4, 3), rng.choice(["C", "F"])) for each in (a, b, c)]
        for _ in range(3):
            (ia, ib, ic), (ja, jb, jc), (n, l, m) = rng.integers(0, 11, 3), rng.integers(0, 21, 3), rng.integers(0, 20, 3)
            of_a, of_b, of_c = np.s_[ia : ia + n, ja : ja + l], np.s_[ib : ib + l, jb : jb + m], np.s_[ic : ic + n, jc : jc + m]
            right = 3 * (a[of_a] @ b[of_b]) - 2 * c[of_c]
            part = on_grid[2][of_c]
            found = hybrid.multiply(on_grid[0][of_a], on_grid[1][of_b], part, alpha=3, beta=-2, comm=comm)
            np.testing.assert_array_equal(whole(comm, found), right)
            part.array[...] = found.array
            c[of_c] = right
            np.testing.assert_array_equal(whole(comm, on_grid[2]), c)
            turned = hybrid.multiply(on_grid[0].T[ja : ja + l, ia : ia + n], on_grid[0][ia : ia + n, 5:], comm=comm)
            np.testing.assert_array_equal(whole(comm, turned), a.T[ja : ja + l, ia : ia + n] @ a[ia : ia + n, 5:])


@pytest.mark.mpi
def test_a_transpose_on_one_grid_meets_a_matrix_on_another(comm, rng):
    a, b = rng.integers(-9, 9, (30, 20)), rng.integers(-9, 9, (30, 10))
    columns, rows = ([(length * comm.rank // comm.size, length * (comm.rank + 1) // comm.size)] for length in (20, 30))
    turned = hybrid.Block2D(a[:, slice(*columns[0])], a.shape, [(0, 30)], columns, comm).T
    assert np.array_equal(whole(comm, turned @ hybrid.Block2D(b[slice(*rows[0])], b.shape, rows, [(0, 10)])), a.T @ b)


@pytest.mark.mpi
def test_blocks_are_gathered_and_become_rows(comm, rng):
    for grid in grids(comm.size):
        for dtype in ("float32", "complex128", "int8", ">i4"):
            matrix = rng.standard_normal(tuple(rng.integers(0, 60, 2))).astype(dtype)
            block, root = dealt(comm, matrix, grid, rng.integers(1, 20, 2), rng.choice(["C", "F"])), comm.size - 1
            out = np.empty((len(matrix), 2 * matrix.shape[1]), matrix.dtype)[:, ::2] if comm.rank == root else None
            for into in (None, out):
                found = hybrid.gather(block, comm=comm, root=root, out=into)
                assert (found is None) == (comm.rank != root)
                assert found is None or (found.dtype == matrix.dtype and np.array_equal(found, matrix))
            rows = hybrid.scatter(block, comm=comm)
            assert np.array_equal(whole(comm, rows), matrix)
            assert rows.rows[0][1] == sum(map(len, np.array_split(matrix, comm.size)[: comm.rank + 1]))


@pytest.mark.mpi
def test_an_element_that_a_type_does_not_hold_is_refused_on_all_ranks(comm):
    a, b = np.ones((60, 8), "int8"), np.ones((8, 40), "int8")
    a[47], b[:, 23] = 14, 14
    for grid in grids(comm.size):
        with refused(Overflow, "overflow") as found:
            hybrid.multiply(dealt(comm, a, grid, (7, 6)), dealt(comm, b, grid, (6, 9)), comm=comm)
        assert "[47, 23]" in str(found.value), "its place in the whole matrix"


@pytest.mark.mpi
def test_what_does_not_fit_together_is_refused_on_all_ranks(comm):
    whole_one = [(0, 4)]
    nothing = hybrid.Block2D(np.empty((0, 4)), (4, 4), [], whole_one)
    of_first = hybrid.Block2D(ONES, (4, 4), whole_one, whole_one) if comm.rank == 0 else nothing
    half = hybrid.Block2D(ONES[:2], (4, 4), [(0, 2)], whole_one) if comm.rank == 0 else nothing
    height = 5 if comm.rank == 0 else 0
    higher = hybrid.Block2D(np.ones((height, 4)), (5, 4), [(0, height)], whole_one)
    twice = hybrid.Block2D(ONES, (4, 4), whole_one, whole_one)
    for code, call in (
        ("blocks", lambda: hybrid.multiply(half, of_first, comm=comm)),
        ("blocks", lambda: hybrid.gather(half, comm=comm)),
        ("mixed-kinds", lambda: hybrid.multiply(of_first, ONES, comm=comm)),
        ("mixed-kinds", lambda: hybrid.multiply(of_first, hybrid.RowBlock(ONES), comm=comm)),
        ("out", lambda: hybrid.multiply(of_first, of_first, comm=comm, out=ONES)),
        ("addend", lambda: hybrid.multiply(of_first, of_first, higher, beta=comm.rank, comm=comm)),
        ("shapes", lambda: hybrid.multiply(of_first, higher, comm=comm)),
        *([] if comm.size == 1 else [
            ("blocks", lambda: hybrid.multiply(twice, twice, comm=comm)),
            ("blocks", lambda: hybrid.scatter(twice, comm=comm)),
            ("ranks-differ", lambda: hybrid.scatter(hybrid.Block2D(np.ones((0, 4)), (comm.rank, 4), [], whole_one), comm=comm)),
            ("mixed-kinds", lambda: hybrid.gather(of_first if comm.rank else hybrid.RowBlock(ONES), comm=comm)),
        ]),
    ):  # fmt: skip
        with refused(UsageError, code):
            call()
        assert np.array_equal(hybrid.multiply(of_first, of_first, comm=comm).array, of_first.array @ ONES)


# What one process sees


def test_wrong_blocks_are_refused_where_they_are_made():
    good = {"array": np.ones((2, 3)), "shape": (2, 3), "rows": [(0, 2)], "columns": [(0, 3)]}
    hybrid.Block2D(**good)
    for code, wrong in (
        ("shapes", {"columns": [(0, 2)]}), ("shapes", {"shape": 6}), ("shapes", {"shape": (2.0, 3)}),
        ("shapes", {"shape": (-2, 3)}), ("blocks", {"shape": (2, 2)}), ("blocks", {"rows": 2}),
        ("blocks", {"rows": [(0, 2, 3)]}), ("blocks", {"rows": [(2, 0)]}), ("blocks", {"columns": [("0", "3")]}),
    ):  # fmt: skip
        with refused(UsageError, code):
            hybrid.Block2D(**good | wrong)


DESCRIPTOR = {"DTYPE": 1, "CTXT": 0, "M": 5, "N": 3, "MB": 2, "NB": 3, "RSRC": 1, "CSRC": 0, "LLD": 4}


@pytest.mark.parametrize(
    ("changed", "grid", "process"),
    [
        ({"DTYPE": 502}, (2, 1), (0, 0)), ({"MB": 0}, (2, 1), (0, 0)), ({"NB": -1}, (2, 1), (0, 0)),
        ({"LLD": 1}, (2, 1), (0, 0)), ({"LLD": 5}, (2, 1), (0, 0)),
        ({"RSRC": 2}, (2, 1), (0, 0)), ({"CSRC": 1}, (2, 1), (0, 0)), ({}, (0, 1), (0, 0)), ({}, 2, (0, 0)),
        ({}, (2, 1), (2, 0)), ({}, (2, 1), (0, -1)),
    ],
)  # fmt: skip
def test_descriptors_and_processes_that_there_are_not_are_refused(changed, grid, process):
    """Another process would be taken, whose blocks this one has not."""
    local = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    right = hybrid.Block2D.from_scalapack(local, [*DESCRIPTOR.values()], (2, 1), (0, 0))
    assert (right.rows, right.columns) == (((2, 4),), ((0, 3),)), "the first block is the other process's"
    np.testing.assert_array_equal(right.array, local[:2])
    narrow = hybrid.Block2D.from_scalapack(local, [*(DESCRIPTOR | {"NB": 1}).values()], (2, 3), (0, 1))
    np.testing.assert_array_equal(narrow.array, local[:2, :1])  # a local matrix may be larger
    with refused(UsageError, "blocks"):
        hybrid.Block2D.from_scalapack(local, [*(DESCRIPTOR | changed).values()], grid, process)
    with refused(UsageError, "blocks"):
        hybrid.Block2D.from_scalapack(local, [*DESCRIPTOR.values()][:-1], (2, 1), (0, 0))


def test_a_submatrix_is_a_range_of_rows_and_of_columns_by_their_numbers_in_the_matrix():
    matrix = np.arange(12.0).reshape(4, 3)
    mixed = hybrid.Block2D(matrix[[2, 3, 0, 1]], (4, 3), [(2, 4), (0, 2)], [(0, 3)])
    for key in (np.s_[1:3], np.s_[1:, -2:], np.s_[:9, 1:2], np.s_[3:1, :], np.s_[0:1, 0:0]):
        assert np.array_equal(mixed[key].in_order(), matrix[key])
    assert np.shares_memory(mixed[2:].array, mixed.array)
    for key in (1, np.s_[1, :], np.s_[::2, :], np.s_[:, :, :]):
        with refused(UsageError, "rows"):
            mixed[key]


def test_rows_and_columns_are_put_in_order_by_a_rank_that_has_all():
    matrix = np.arange(12.0).reshape(4, 3)
    mixed = hybrid.Block2D(matrix[[2, 3, 0, 1]], (4, 3), [(2, 4), (0, 2)], [(0, 3)])
    assert np.array_equal(mixed.in_order(), matrix)
    assert [of.tolist() for of in mixed.indices] == [[2, 3, 0, 1], [0, 1, 2]]
    for rows in ([(0, 2)], [(0, 2), (0, 2)]):
        with refused(UsageError, "blocks"):
            hybrid.Block2D(np.ones((sum(hi - lo for lo, hi in rows), 3)), (4, 3), rows, [(0, 3)]).in_order()
