# SPDX-License-Identifier: MIT
"""A root's matrices on a GPU, where the product is made without one: they go through the host's memory. No GPU is needed."""

import sys
import types
from contextlib import nullcontext

import numpy as np
import pytest

import hybrid
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.row_block import BlockShapes
from hybrid.errors import HybridError, UsageError


class OnGpu:
    """What stands for a CuPy array."""

    __cuda_array_interface__ = None
    device = nullcontext()

    def __init__(self, array):
        self.array = array
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype
        self.size, self.strides, self.min, self.max = array.size, array.strides, array.min, array.max

    def __getitem__(self, places):
        return OnGpu(self.array[places])

    def __len__(self):
        return len(self.array)

    @property
    def T(self):
        return OnGpu(self.array.T)

    def get(self):
        return self.array.copy()


@pytest.fixture
def cupy(monkeypatch):
    stream = types.SimpleNamespace(synchronize=lambda: None)
    stub = types.SimpleNamespace(
        asarray=lambda array: array if isinstance(array, OnGpu) else OnGpu(array),
        asnumpy=lambda array: array.array.copy(),
        cuda=types.SimpleNamespace(get_current_stream=lambda: stream),
    )
    monkeypatch.setitem(sys.modules, "cupy", stub)


@pytest.mark.mpi(min_size=2)  # one process multiplies arrays on a GPU there
@pytest.mark.parametrize("nodes", ["0", "1"])
def test_matrices_on_a_gpu_go_through_the_host(comm, seed, cupy, monkeypatch, nodes):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    random = np.random.default_rng([seed, comm.rank])
    root = comm.size - 1
    mine = comm.rank == root
    a, b = random.random((61, 40), np.float32), random.random((40, 53))
    on_gpu = (OnGpu(a), OnGpu(b)) if mine else (None, None)
    c = hybrid.multiply(*on_gpu, comm=comm, root=root, device="cpu")
    assert (c is None) != mine
    if mine:
        assert isinstance(c, OnGpu)
        np.testing.assert_allclose(c.array, a @ b)


@pytest.mark.mpi
def test_rows_of_transposes_are_moved_through_the_host_and_back(comm, seed, cupy):
    random = np.random.default_rng([seed, comm.rank])
    a, b = random.random((7 + comm.rank, 10)), random.random((7 + comm.rank, 6))
    c = hybrid.multiply(hybrid.RowBlock(OnGpu(a)).T, hybrid.RowBlock(OnGpu(b)), comm=comm, device="cpu").array
    assert isinstance(c, OnGpu)
    whole_a, whole_b = (np.concatenate(comm.allgather(each)) for each in (a, b))
    np.testing.assert_allclose(np.concatenate(comm.allgather(c.array)), whole_a.T @ whole_b)


@pytest.mark.mpi
def test_what_cannot_be_copied_is_an_error_on_all_ranks(comm, cupy, monkeypatch):
    def fails(array):
        raise MemoryError("no room")

    monkeypatch.setattr(sys.modules["cupy"], "asnumpy", fails)
    on_gpu = OnGpu(np.ones((3, 3)))
    matrices = (on_gpu, on_gpu) if comm.rank == 0 else (None, None)
    with pytest.raises((MemoryError, HybridError), match="no room"):
        hybrid.multiply(*matrices, comm=comm, device="cpu")
    assert comm.allreduce(1) == comm.size


@pytest.mark.mpi
def test_shapes_that_do_not_fit_are_refused(comm, cupy):
    a, b = OnGpu(np.ones((3, 4))), OnGpu(np.ones((3, 4)))
    with pytest.raises(UsageError, match="a has 4 columns and b 3 rows"):
        hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=comm, device="cpu")


def test_a_root_that_is_no_rank_is_named_also_where_nothing_leaves_the_gpu(cupy):
    matrix = OnGpu(np.ones((3, 3)))
    with pytest.raises(UsageError, match="root 1 is not a rank of a communicator of 1"):
        hybrid.multiply(matrix, matrix, root=1)


def test_a_block_2d_says_that_its_array_lies_on_a_gpu():
    with pytest.raises(UsageError, match="a Block2D takes a matrix of NumPy's, not OnGpu on a GPU"):
        hybrid.Block2D(OnGpu(np.ones((3, 4))), (3, 4), [(0, 3)], [(0, 4)])


def test_row_blocks_tell_what_is_made_of_b_on_its_gpu():
    a, b = np.ones((3, 4), np.complex64), np.ones((4, 5), np.float32)
    for first, second, expanded in ((a, b, 2 * 4 * 2 * 5 * 4), (b.T, a.T, 0), (b.T, b, 0)):
        told = [
            BlockShapes.of(
                hybrid.RowBlock(hold(first)), hybrid.RowBlock(hold(second)), None, Gemm(), check=False, threads=lambda: 1
            )
            for hold in (OnGpu, np.asarray)
        ]
        assert [each.gpu_bytes for each in told] == [expanded, 0]


def test_row_blocks_tell_what_is_copied_of_b():
    a, b = np.ones((3, 4)), np.ones((4, 5), complex)
    for first, gemm, copied in ((a, Gemm(), 0), (a, Gemm(conjugate_b=True), 1), (a + 0j, Gemm(), 2)):
        told = BlockShapes.of(hybrid.RowBlock(first), hybrid.RowBlock(b), None, gemm, check=False, threads=lambda: 1)
        assert told.copied_bytes == copied * b.nbytes


@pytest.mark.mpi
def test_complex_numbers_integers_and_sums_on_a_gpu_go_through_the_host_and_come_back(comm, cupy):
    rng = np.random.default_rng(comm.rank)
    for dtype in (np.complex128, np.int64):
        a, b, c = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((5, 4 * comm.size), (4, 9), (5, 9)))
        rows = [hybrid.RowBlock(OnGpu(each)) for each in (a, b, c)]
        found = hybrid.multiply(*rows, alpha=2, beta=-1, comm=comm, device="cpu").array
        wanted = 2 * (a @ np.concatenate(comm.allgather(b))) - c
        assert isinstance(found, OnGpu)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.array, wanted)


@pytest.mark.mpi
def test_row_blocks_on_a_gpu_come_back_to_it(comm, cupy):
    a, b = np.random.default_rng(comm.rank).random((5, 4 * comm.size)), np.random.default_rng(-comm.rank % 7).random((4, 9))
    c = hybrid.multiply(hybrid.RowBlock(OnGpu(a)), hybrid.RowBlock(OnGpu(b)), comm=comm, device="cpu").array
    assert isinstance(c, OnGpu)
    np.testing.assert_allclose(c.array, a @ np.concatenate(comm.allgather(b)))
