# SPDX-License-Identifier: MIT
"""Products of matrices whose blocks lie on all ranks, in two dimensions."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.devices import cpu
from hybrid.errors import CheckFailed, Overflow, RankFailed, UsageError
from hybrid.execution.grid_run import GridRun

pytestmark = pytest.mark.mpi


def grids(size):
    return [(rows, size // rows) for rows in range(1, size + 1) if size % rows == 0]


def dealt(comm, matrix, grid, blocks, order="C"):
    """As ScaLAPACK deals a matrix: this rank's part, and its descriptor."""
    process = divmod(comm.rank, grid[1])
    of = [
        [index for index in range(length) if index // block % processes == mine]
        for length, block, processes, mine in zip(matrix.shape, blocks, grid, process, strict=True)
    ]
    local = np.array(matrix[np.ix_(*of)], order=order)
    descriptor = (1, 0, *matrix.shape, *blocks, 0, 0, max(1, len(of[0])))
    return hybrid.Block2D.from_scalapack(local, descriptor, grid, process)


def is_part_of(block, whole):
    rows, columns = block.indices
    accuracy = 1e-3 if whole.dtype == np.float32 else 1e-11
    np.testing.assert_allclose(block.array, whole[np.ix_(rows, columns)], rtol=accuracy, atol=accuracy)
    return block.shape == whole.shape


DEVICES = [
    {},
    {"STAGED": "1", "GPU_MEMORY": "20k"},
    pytest.param({"DEVICE": "emulate"}, marks=pytest.mark.needs("compiler")),
    pytest.param({"DEVICE": "cuda"}, marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device", DEVICES, ids=["in place", "staged", "emulated", "GPUs"])
@pytest.mark.parametrize("nodes", ["0", "1", "2"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_any_block_cyclic_distribution_gives_numpys_product(comm, rng, monkeypatch, dtype, nodes, device):
    for name, value in {**device, "POISON": "1", "RANKS_PER_NODE": nodes}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    for grid in grids(comm.size):
        for order in "CF":
            n, l, m = (int(size) for size in rng.integers(0, 120, 3))
            a, b = rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)
            down, deep, across, other = (int(size) for size in rng.integers(1, 70, 4))
            first, second = dealt(comm, a, grid, (down, deep), order), dealt(comm, b, grid, (other, across), order)
            c = hybrid.multiply(first, second, comm=comm)
            assert c.array.dtype == dtype
            assert is_part_of(c, a @ b)


@pytest.mark.parametrize("nodes", ["0", "1"])
@pytest.mark.parametrize(
    ("dtype", "largest", "asked"),
    [("int8", 1, None), ("int16", 40, "int64"), ("int64", 2**28, None), ("uint64", 2**28, None), ("bool", 1, None),
     ("bool", 1, "int32"), ("float16", 3, None), ("float16", 3, "float32"), ("float32", 3, "float64")],
)  # fmt: skip
def test_blocks_of_any_type(comm, rng, monkeypatch, nodes, dtype, largest, asked):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    least = 0 if dtype[0] in "ub" else -largest
    a, b = (rng.integers(least, largest + 1, shape).astype(dtype) for shape in ((50, 30), (30, 40)))
    for grid in grids(comm.size):
        c = hybrid.multiply(dealt(comm, a, grid, (7, 6)), dealt(comm, b, grid, (6, 9)), comm=comm, dtype=asked)
        assert c.array.dtype == (asked or dtype)
        exact = a.astype(object) @ b.astype(object) if dtype != "float16" else a.astype(float) @ b.astype(float)
        rows, columns = c.indices
        np.testing.assert_array_equal(c.array, exact.astype(asked or dtype)[np.ix_(rows, columns)])


def test_an_element_that_a_type_does_not_hold_is_named_as_of_the_whole(comm):
    a, b = np.ones((60, 8), np.int8), np.ones((8, 40), np.int8)
    a[47], b[:, 23] = 14, 14
    for grid in grids(comm.size):
        with pytest.raises(Overflow, match=r"element \[47, 23\] of the product is 1568, which int8"):
            hybrid.multiply(dealt(comm, a, grid, (7, 6)), dealt(comm, b, grid, (6, 9)), comm=comm)


@pytest.mark.mpi(min_size=2)
def test_blocks_of_a_grid_may_be_of_any_size_and_powers_stay_distributed(comm, rng):
    a = rng.standard_normal((60, 60)) / 8
    cut = comm.bcast(int(rng.integers(0, 61)))
    pairs, beside = comm.size // 2, comm.rank // 2  # of an odd number of ranks the last has nothing
    columns = [(0, cut), (cut, 60)][comm.rank % 2] if beside < pairs else (0, 0)
    rows = (60 * beside // pairs, 60 * (beside + 1) // pairs) if beside < pairs else (0, 0)
    power = block = hybrid.Block2D(a[slice(*rows), slice(*columns)], a.shape, [rows], [columns])
    power = hybrid.multiply(power, block, comm=comm)
    power = 2 * (power @ block) @ block / 2  # what multiply gave knows its communicator
    assert is_part_of(power, np.linalg.matrix_power(a, 4))


def test_a_transpose_is_multiplied_where_the_grid_allows_it(comm, rng):
    """Each rank has some columns of a, which are rows of the transpose."""
    a, b = rng.standard_normal((30, 20)), rng.standard_normal((30, 10))
    columns = (20 * comm.rank // comm.size, 20 * (comm.rank + 1) // comm.size)
    rows = (30 * comm.rank // comm.size, 30 * (comm.rank + 1) // comm.size)
    turned = hybrid.Block2D(a[:, slice(*columns)], a.shape, [(0, 30)], [columns], comm).T
    assert is_part_of(turned @ hybrid.Block2D(b[slice(*rows)], b.shape, [rows], [(0, 10)]), a.T @ b)


def test_what_is_no_grid_s_or_does_not_fit_together_is_refused_on_all_ranks(comm):
    ones, whole = np.ones((4, 4)), [(0, 4)]
    everything = hybrid.Block2D(ones, (4, 4), whole, whole)
    nothing = hybrid.Block2D(np.empty((0, 4)), (4, 4), [], whole)
    at_the_first = everything if comm.rank == 0 else nothing
    half = hybrid.Block2D(ones[:2], (4, 4), [(0, 2)], whole) if comm.rank == 0 else nothing
    with pytest.raises(UsageError, match=r"the ranks' blocks do not make up A \(4×4\) once"):
        hybrid.multiply(half, at_the_first, comm=comm)
    with pytest.raises(UsageError, match="b is no Block2D, but the other operand is one"):
        hybrid.multiply(at_the_first, ones, comm=comm)
    with pytest.raises(UsageError, match="neither out nor root"):
        hybrid.multiply(at_the_first, at_the_first, comm=comm, out=ones)
    with pytest.raises(UsageError, match="cannot be repaired"):
        hybrid.multiply(at_the_first, at_the_first, comm=comm, on_fault="repair")
    height = 5 if comm.rank == 0 else 0
    too_high = hybrid.Block2D(np.ones((height, 4)), (5, 4), [(0, height)], whole)
    with pytest.raises(UsageError, match="A has 4 columns and B 5 rows"):
        hybrid.multiply(at_the_first, too_high, comm=comm)
    np.testing.assert_array_equal(hybrid.multiply(at_the_first, at_the_first, comm=comm).array, at_the_first.array @ ones)


def test_wrong_blocks_are_refused_where_they_are_made():
    ones = np.ones((2, 3))
    with pytest.raises(UsageError, match=r"shape \(2, 3\) is given for 2 rows, 4 columns"):
        hybrid.Block2D(ones, (9, 9), [(0, 2)], [(0, 4)])
    with pytest.raises(UsageError, match=r"\(7, 10\) are no columns of a matrix of 9"):
        hybrid.Block2D(ones, (9, 9), [(0, 2)], [(7, 10)])
    with pytest.raises(UsageError, match="takes a matrix of NumPy's, not list"):
        hybrid.Block2D([[1.0]], (1, 1), [(0, 1)], [(0, 1)])
    with pytest.raises(UsageError, match="no descriptor of a dense matrix"):
        hybrid.Block2D.from_scalapack(ones, (502, 0, 2, 3, 1, 1, 0, 0, 2), (1, 1), (0, 0))
    with pytest.raises(UsageError, match="blocks of 0 rows"):
        hybrid.Block2D.from_scalapack(ones, (1, 0, 2, 3, 0, 1, 0, 0, 2), (1, 1), (0, 0))
    for wrong in ({"shape": 6}, {"shape": (2.0, 3)}, {"rows": 2}, {"rows": [(0, 2, 3)]}, {"columns": [("0", "3")]}):
        with pytest.raises(UsageError, match=r"is not that of a matrix|are no (rows|columns) of a matrix"):
            hybrid.Block2D(**{"array": ones, "shape": (2, 3), "rows": [(0, 2)], "columns": [(0, 3)]} | wrong)


@pytest.mark.parametrize(
    ("grid", "process", "first", "said"),
    [
        ((0, 1), (0, 0), 0, "has no processes"),
        (2, (0, 0), 0, "has no processes"),
        ((1, 2), (1, 0), 0, r"process \(1, 0\) is not in a grid of 1×2"),
        ((1, 2), (0, -1), 0, r"process \(0, -1\) is not in a grid"),
        ((1, 2), (0, 0), 1, r"RSRC and CSRC of the descriptor \(1, 0\) is not in a grid"),
    ],
)
def test_a_process_that_is_not_in_the_grid_is_refused(grid, process, first, said):
    """It would be taken for another one, whose blocks it has not."""
    with pytest.raises(UsageError, match=said):
        hybrid.Block2D.from_scalapack(np.ones((2, 3)), (1, 0, 2, 3, 1, 1, first, 0, 2), grid, process)


def test_processes_may_begin_elsewhere_and_leading_dimensions_be_larger():
    local = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    block = hybrid.Block2D.from_scalapack(local, (1, 0, 5, 3, 2, 3, 1, 0, 4), (2, 1), (0, 0))
    assert block.rows == ((2, 4),), "the first block is the other process's"
    np.testing.assert_array_equal(block.array, local[:2])


def test_a_rank_with_a_part_has_no_whole_matrix_to_put_in_order():
    matrix = np.arange(12.0).reshape(4, 3)
    whole = hybrid.Block2D(matrix[[2, 3, 0, 1]], (4, 3), [(2, 4), (0, 2)], [(0, 3)])
    assert np.array_equal(whole.in_order(), matrix)
    for rows in ([(0, 2)], [(0, 2), (0, 2)]):
        part = hybrid.Block2D(np.ones((sum(hi - lo for lo, hi in rows), 3)), (4, 3), rows, [(0, 3)])
        with pytest.raises(UsageError, match=r"this rank has not all of Block2D\(\d×3 of 4×3, float64, cpu\): hybrid.gather"):
            part.in_order()


def test_blocks_are_gathered_and_become_rows(comm, rng):
    for grid in grids(comm.size):
        matrix = rng.standard_normal(tuple(rng.integers(0, 60, 2))).astype(rng.choice(["float32", "complex128", "int8"]))
        block, root = dealt(comm, matrix, grid, tuple(map(int, rng.integers(1, 20, 2))), rng.choice(["C", "F"])), comm.size - 1
        out = np.empty((len(matrix), 2 * matrix.shape[1]), matrix.dtype)[:, ::2] if comm.rank == root else None
        for into in (None, out):
            whole = hybrid.gather(block, comm=comm, root=root, out=into)
            assert (whole is None) == (comm.rank != root)
            assert whole is None or (whole.dtype == matrix.dtype and np.array_equal(whole, matrix))
        rows = hybrid.scatter(block, comm=comm)
        assert np.array_equal(np.concatenate(comm.allgather(rows.array)), matrix)
        assert len(rows) in (len(matrix) // comm.size, len(matrix) // comm.size + 1)


@pytest.mark.mpi(min_size=2)
def test_what_are_no_blocks_of_one_matrix_is_not_gathered(comm):
    whole = hybrid.Block2D(np.ones((4, 4)), (4, 4), [(0, 4)], [(0, 4)])
    with pytest.raises(UsageError, match=r"the ranks' blocks do not make up a \(4×4\) once"):
        hybrid.gather(whole, comm=comm)
    with pytest.raises(UsageError, match="the ranks' Block2Ds differ in their shapes or types"):
        hybrid.scatter(hybrid.Block2D(np.ones((0, 4)), (comm.rank, 4), [], [(0, 4)]), comm=comm)
    with pytest.raises(UsageError, match="or a RowBlock or Block2D on every rank"):
        hybrid.gather(whole if comm.rank else hybrid.RowBlock(np.ones((4, 4))), comm=comm)


@pytest.mark.mpi(min_size=2)
def test_a_wrong_product_and_a_wrong_transfer_are_found(comm, rng, monkeypatch):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    a, b = comm.bcast(rng.random((80, 80))), comm.bcast(rng.random((80, 80)))
    grid = (1, comm.size)

    def product():
        return hybrid.multiply(dealt(comm, a, grid, (16, 16)), dealt(comm, b, grid, (16, 16)), comm=comm)

    def wrong(first, second, c):
        np.matmul(first, second, out=c)
        if comm.rank == 1 and c.size:
            c[-1, -1] += 1

    with monkeypatch.context() as broken:
        broken.setattr(cpu, "blas", wrong)
        where = r"rank 1 on \S+, device cpu, kernel blas, rows 0:80, columns \d+:\d+, counted from there"
        with pytest.raises(CheckFailed, match=rf"{where}: row \d+ of C, columns \d+: wrong by 1"):
            product()

    original = GridRun._multiply

    def lowest_bit(run, number):
        """Of the first element that another rank has sent: too small a change for the check of the product."""
        received = next(received for operand, _, received in run._exchange.exchanged if operand == "A")
        for matrices in [of_rank for rank, of_rank in received.items() if rank != 1 and comm.rank == 1 and number == 0]:
            matrices[0][0, 0] = np.nextafter(matrices[0][0, 0], 2)
            break
        original(run, number)

    with monkeypatch.context() as broken:
        broken.setattr(GridRun, "_multiply", lowest_bit)
        with pytest.raises(CheckFailed, match=r"what rank 0 sent of A did not reach rank 1"):
            product()
    assert is_part_of(product(), a @ b)


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_fails_ends_the_call_on_all(comm, rng, monkeypatch):
    a = comm.bcast(rng.random((40, 40)))
    blocks = [dealt(comm, a, (1, comm.size), (8, 8)) for _ in range(2)]

    def fails(*matrices):
        raise ArithmeticError("a broken BLAS")

    with monkeypatch.context() as broken:
        if comm.rank == 1:
            broken.setattr(cpu, "blas", fails)
        with pytest.raises(RankFailed, match=r"rank 1 on .*, multiply: .*a broken BLAS"):
            hybrid.multiply(*blocks, comm=comm)
    assert is_part_of(hybrid.multiply(*blocks, comm=comm), a @ a)
