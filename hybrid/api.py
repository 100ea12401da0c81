# SPDX-License-Identifier: MIT
"""`hybrid.multiply`: the product of two arrays by the ranks of a communicator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.block_2d import Block2D
from hybrid.arrays.distributed import Distributed, RowBlock, TransposedRowBlock, common_communicator
from hybrid.arrays.interop import on_gpu, to_device_of
from hybrid.arrays.root_operands import is_stack
from hybrid.core.forks import one_at_a_time
from hybrid.core.settings import as_int
from hybrid.devices.cuda_gpus import callers_context
from hybrid.execution.multiply import empty_shared, multiply_blocks_2d, multiply_on_gpu, multiply_root_arrays, multiply_row_blocks
from hybrid.execution.redistribution import gathered, scattered
from hybrid.ranks.team import team_of
from hybrid.selection.session import Session, session_of


def _communicator(comm: Any, *given: Any) -> Any:
    """The one that the call names, else the one that RowBlocks and Block2Ds know; None: this process alone."""
    return common_communicator(given) if comm is None else comm


@contextmanager
def _call(comm: Any, stall: Any) -> Iterator[Session]:
    """A context for one call: of one thread at a time, and together with the other ranks. Gives the communicator's session."""
    session = session_of(team_of(comm, stall))
    with one_at_a_time if session.team.size == 1 else nullcontext(), session.team.together(), callers_context():
        yield session


def multiply(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    comm: Any = None,
    root: int = 0,
    out: np.ndarray | None = None,
    alpha: complex = 1,
    beta: complex | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    conjugate_a: bool = False,
    conjugate_b: bool = False,
    dtype: Any = None,
    kernel: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    check: bool | str | None = None,
    on_fault: str | None = None,
    threads: int | None = None,
    transport: str | None = None,
    host_memory: int | str | None = None,
    gpu_memory: int | str | None = None,
    stall: float | None = None,
) -> Any:
    """Multiply two matrices by all ranks of a communicator: alpha · op(a) · op(b) + beta · c.

    Parameters
    ----------
    a, b
        At `root`, None on other ranks: NumPy or CuPy arrays, or anything with the buffer, array or DLPack protocol. Matrices,
        or as for NumPy's `@` vectors and stacks of matrices, of which each rank multiplies whole ones where there are enough.
        Of bool, integers, floating-point or complex numbers of up to 64 bits (complex128). Or a `RowBlock` each, or a `Block2D`
        each, on every rank.
    c
        At the root, what is added, times beta: of the result's shape. It is not read where beta is 0, and only changed as `out`.
    comm
        The mpi4py communicator whose ranks work together; every one of them must call. None: the one that RowBlocks or Block2Ds
        know, else this process alone, without MPI.
    root
        The rank that has the operands and gets the result.
    out
        At the root, an array for the result, of its type, which must not overlap a or b; it may be c itself.
    alpha, beta
        Numbers, the same on all ranks; whole numbers where the product is of integers. Without beta it is 0, and a c is refused;
        with beta=0 a c may be given all the same, as to BLAS.
    transpose_a, transpose_b, conjugate_a, conjugate_b
        What op is: nothing, the transpose, the complex conjugate, or both. Rows of a transposed
        RowBlock (or of its view `a.T`) are moved between the ranks first.
    dtype
        The type of the result; None: NumPy's for these operands. Products of integers are exact, and an element that the type
        does not hold is refused: `Overflow`. Others are computed in float32, or in float64 where an operand or the result needs
        it (to which integers of 64 bits are rounded), and rounded to the result's type once. Two operands of float16, or of
        bfloat16, are multiplied as they are where GPUs can, with sums in float32.
    kernel
        A name of the kernel catalogue, or "auto". This and the following are as the command's options: None leaves them to
        the environment (HYBRID_KERNEL for this one), and to the defaults.
    device
        "auto", "cpu", "cuda" or "emulate".
    precision
        "native" has GPUs compute in float64 or float32. "auto" has them compute from remainders, which are bytes, where that is
        at least as accurate and takes less time; "fast" with fewer of them, where that is about as accurate.
    check
        True verifies the product where it is multiplied, while it is; "host" from host memory alone, independent of all that
        ran on a GPU; False does not.
    on_fault
        "raise" refuses a product that fails its check: CheckFailed. "repair" computes it once more after a wrong copy, else what
        is wrong of it, on the CPU, checks that, and warns at the root (of RowBlocks: at rank 0): a RuntimeWarning says whose
        device was wrong, and where. What stays wrong is refused: CheckFailed.
    threads
        CPU threads of each rank.
    transport
        How operands reach GPUs: "auto", "host", "peers" or "nccl".
    host_memory, gpu_memory
        Bytes that may be used of each node's memory, and of each GPU's: a whole number, or a text such as "4G".
    stall
        Seconds after which a warning names the ranks that have not called; after as many more, but one at least, the call fails:
        `RankMissing`. 0: neither. With neither this nor HYBRID_STALL the warning comes after 60 s, and the call waits on.

    Returns
    -------
    ndarray or RowBlock or Block2D or None
        The result at the root, None elsewhere: `out` where it is given, a CuPy array where a and b lie on a GPU, else a NumPy
        array. With several ranks on the root's node it may lie in shared memory, which processes forked later share. Of
        RowBlocks: this rank's RowBlock of the product, where its rows of a lie; then root and out are not used. Of Block2Ds: this
        rank's Block2D of the product, with its rows of a and its columns of b, multiplied on CPUs, or with device="cuda" on GPUs.

    Raises
    ------
    HybridError
        Any error on one rank is raised on all of them, and the next call works; see `hybrid.errors`.
    """
    root = as_int(root)
    flags = {"kernel": kernel, "device": device, "precision": precision, "check": check, "on_fault": on_fault, "threads": threads,
             "transport": transport, "host_memory": host_memory, "gpu_memory": gpu_memory, "stall": stall}  # fmt: skip
    gemm = {"alpha": alpha, "beta": beta, "transpose_a": transpose_a, "transpose_b": transpose_b,
            "conjugate_a": conjugate_a, "conjugate_b": conjugate_b, "dtype": dtype}  # fmt: skip
    operands = a, b, c
    comm = _communicator(comm, *operands)
    with _call(comm, stall) as session:
        kinds = ((RowBlock, TransposedRowBlock), multiply_row_blocks), ((Block2D,), multiply_blocks_2d)
        for kind, multiply_parts in kinds:
            if any(isinstance(each, kind) for each in operands):
                return replace(multiply_parts(session, operands, root, out, flags, gemm), comm=comm)
        both_on_gpu, team = on_gpu(a) and on_gpu(b), session.team
        if team.size == 1 and out is None and both_on_gpu and not is_stack(a, b):
            return multiply_on_gpu(session, operands, root, flags, gemm)
        product = multiply_root_arrays(session, operands, root, out, flags, gemm)
    return to_device_of(a, product) if both_on_gpu and out is None and team.rank == root else product


Distributed._multiply = staticmethod(multiply)  # `@`


def empty(
    shape: tuple[int, int], dtype: Any = "float64", *, comm: Any = None, root: int = 0, stall: float | None = None
) -> np.ndarray | None:
    """Make a matrix, its contents undefined, in memory that the ranks of the root's node share.

    Every rank of `comm` calls, and may fill rows. Where `multiply` finds all of its matrices in such memory, the ranks work on
    them where they lie: nothing is copied on a CPU, and each rank uses its own GPU's link. (Where operands must be converted or
    expanded first, as integers and a complex A, the product is made as one of other arrays.) The memory is given back when
    nothing at the root refers to it any more.

    Parameters
    ----------
    shape
        Rows and columns.
    dtype
        Any type of which a product can be: bool, an integer, floating-point or complex type, float16 or bfloat16.
    comm
        The mpi4py communicator. None: this process alone.
    root
        The rank on whose node the memory lies.
    stall
        As of `multiply`.

    Returns
    -------
    ndarray or None
        The same matrix on all ranks of the root's node, None on other nodes.
    """
    with _call(comm, stall) as session:
        return empty_shared(session, tuple(map(as_int, shape)) if isinstance(shape, tuple) else shape, dtype, as_int(root), stall)


def scatter(a: Any, *, comm: Any = None, root: int = 0, rows: int | None = None, stall: float | None = None) -> RowBlock:
    """Give each rank some consecutive rows of a matrix, in the order of the ranks.

    Parameters
    ----------
    a
        The matrix at `root`, None on other ranks; or on every rank a `RowBlock`, its transpose `a.T`, or a `Block2D`, whose
        elements are then distributed anew. Elements of any type of numbers.
    comm
        The mpi4py communicator; every one of its ranks must call. None: the one that `a` knows, else this process alone.
    root
        The rank that has the matrix.
    rows
        How many rows this rank shall have, on every rank; None on every rank: equal shares.
    stall
        As of `multiply`.

    Returns
    -------
    RowBlock
        This rank's rows, in host memory.
    """
    comm = _communicator(comm, a)
    with _call(comm, stall) as session:
        return replace(scattered(session, a, as_int(rows), as_int(root), stall), comm=comm)


def gather(
    a: RowBlock | Block2D, *, comm: Any = None, root: int = 0, out: np.ndarray | None = None, stall: float | None = None
) -> np.ndarray | None:
    """Bring what all ranks have of a matrix to one of them.

    Parameters
    ----------
    a
        This rank's rows, the transpose `a.T` of them, or its block of a grid. Every rank of `comm` calls.
    comm
        The mpi4py communicator. None: the one that `a` knows, else this process alone.
    root
        The rank that gets the matrix.
    out
        At the root, an array for it, of its shape and type.
    stall
        As of `multiply`.

    Returns
    -------
    ndarray or None
        The matrix at the root, in host memory: `out` where it is given. None elsewhere.
    """
    with _call(_communicator(comm, a), stall) as session:
        return gathered(session, a, out, as_int(root), stall)
