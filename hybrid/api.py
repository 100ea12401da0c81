# SPDX-License-Identifier: MIT
"""`hybrid.multiply`: the product of two arrays by the ranks of a communicator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Block2D, Distributed, RowBlock, common_communicator
from hybrid.core.settings import as_int
from hybrid.execution.compiled import Compiled, ProductPlan, one_call
from hybrid.execution.multiply import empty_shared
from hybrid.execution.redistribution import gathered, scattered
from hybrid.runs.gram import Gram


def multiply(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    comm: Any = None,
    root: int = 0,
    out: Any = None,
    alpha: complex = 1,
    beta: complex | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    conjugate_a: bool = False,
    conjugate_b: bool = False,
    dtype: Any = None,
    modulus: int | None = None,
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
        each, on every rank; or a RowBlock a, and for b the same matrix on every rank.
    c
        At the root, or as a RowBlock or Block2D, what is added, times beta: of the result's shape. It is not read where beta is
        0, and only changed as `out`.
    comm
        The mpi4py communicator whose ranks work together; every one of them must call. None: the one that RowBlocks or Block2Ds
        know, else this process alone, without MPI.
    root
        The rank that has the operands and gets the result.
    out
        At the root, a NumPy or CuPy array for the result, of its type, which must not overlap a or b; it may be c itself.
    alpha, beta
        Numbers, the same on all ranks; whole numbers where the product is of integers. With alpha=0 a and b are not read. Without
        beta it is 0, and a c is refused; with beta=0 a c may be given all the same, as to BLAS.
    transpose_a, transpose_b, conjugate_a, conjugate_b
        What op is: nothing, the transpose, the complex conjugate, or both. Rows of a transposed
        RowBlock (or of its view `a.T`) are moved between the ranks first, unless the product is a sum of what each rank has.
    dtype
        The type of the result; None: NumPy's for these operands. Products of integers are exact, and an element that the type
        does not hold is refused: `Overflow`. Others are computed in float32, or in float64 where an operand or the result needs
        it (to which integers of 64 bits are rounded), and rounded to the result's type once. Two operands of float16, or of
        bfloat16, are multiplied as they are where GPUs can, with sums in float32.
    modulus
        A whole number from 1 to 2⁶³: the elements of a product of integers, from 0 on, are the remainders modulo it, in int64 or
        the type that dtype names. Exact, whatever the size of the operands.
    kernel
        A name of the kernel catalogue, or "auto". This and the following are as the command's options: None leaves them to
        the environment (HYBRID_KERNEL for this one), and to the defaults.
    device
        "cpu", "cuda", "emulate", or "auto": GPUs where every rank has one, but for small products of a process alone whose
        arrays lie in host memory.
    precision
        "native": GPUs compute in float64 or float32. "auto": from remainders, which are bytes, if that is at least as accurate
        and faster; "fast": from fewer of them, if that is about as accurate.
    check
        True verifies the product on the device that multiplies, and a sample of what is copied to GPUs and from them; "full"
        verifies all copies; "host" verifies from host memory alone, independent of all that ran on a GPU; False does not.
    on_fault
        "raise" refuses a product that fails its check: CheckFailed. "repair" computes it once more, and checks that. A
        RuntimeWarning at the root (of RowBlocks: at rank 0) says what was wrong. What stays wrong is refused: CheckFailed.
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
        rank's Block2D of the product, which lies as c, or without one in its rows of a and its columns of b (of transposes on the
        grid of a and b themselves), multiplied on CPUs, or with device="cuda" on GPUs.

    Raises
    ------
    HybridError
        Any error on one rank is raised on all of them, and the next call works; see `hybrid.errors`.
    """
    options = {"alpha": alpha, "beta": beta, "transpose_a": transpose_a, "transpose_b": transpose_b, "conjugate_a": conjugate_a,
               "conjugate_b": conjugate_b, "dtype": dtype, "modulus": modulus, "kernel": kernel, "device": device,
               "precision": precision, "check": check, "on_fault": on_fault, "threads": threads, "transport": transport,
               "host_memory": host_memory, "gpu_memory": gpu_memory, "stall": stall}  # fmt: skip
    return Compiled.of((a, b, c), comm, root, options).run(a, b, c, out)


def plan(a_like: Any, b_like: Any, c_like: Any = None, *, comm: Any = None, root: int = 0, **options: Any) -> ProductPlan:
    """Decide how products of matrices of these shapes and types are computed, and compute none.

    `multiply` finds the plan of each product by itself, and a warm call costs the same either way: a plan is for programs that
    want to be refused before there is data, or to read what was decided.

    Parameters
    ----------
    a_like, b_like, c_like
        As `a`, `b` and `c` of `multiply`: their elements matter only where they are integers. At the root arrays may be replaced
        by anything that has a shape and a dtype.
    comm, root
        As of `multiply`. Every rank calls.
    **options
        The other keywords of `multiply`, but `out`.

    Returns
    -------
    ProductPlan
        `plan.run(a, b, c=None, out=None)` is the product of such operands, `plan.explain()` a text that says how it is computed.

    Raises
    ------
    HybridError
        As of `multiply`, before there is a product: `DoesNotFit`, `UsageError` and so on.

    Examples
    --------
    >>> import numpy, hybrid
    >>> a, b = numpy.eye(3), numpy.ones((3, 2))
    >>> product = hybrid.plan(a, b, check="host")
    >>> product.run(a, b).sum()
    6.0
    """
    return ProductPlan((a_like, b_like, c_like), comm, root, _options_of("plan", options))


def gram(a: Any, *, transposed: bool = False, comm: Any = None, root: int = 0, dtype: Any = None, **options: Any) -> Any:
    """The Gram matrix of a matrix, a·aᴴ, of its rows; or with `transposed` aᴴ·a, of its columns.

    It is Hermitian (of real numbers symmetric) to the last bit, with a real diagonal. One triangle is computed where `multiply`
    computes one of a product `a @ a.T`; complex matrices, at a root or in a file, take half of the multiply-adds of a product.

    Parameters
    ----------
    a
        At `root` a matrix, None on other ranks, or a `RowBlock` on every rank, as of `multiply`. Or the path of a file of any
        format of the commands', such as "A.npy", "A.h5:/name" or PLINK's "G.bed", for one process: with `transposed` the file is
        read once, in slabs of rows, and while one is multiplied the next is read. Without, slabs of an eighth of the free memory
        are multiplied by each other, of which larger files are read several times.
    transposed
        Whether the columns of a are multiplied.
    comm, root
        As of `multiply`.
    dtype
        The type of the result. None: int64 for integers and bool, whose sums are exact, else that of a.
    **options
        The keywords of `multiply` that say how it is computed: `device`, `precision`, `check`, `threads` and so on.

    Returns
    -------
    ndarray or RowBlock or None
        As of `multiply`; of a file a NumPy array.

    Raises
    ------
    HybridError
        As of `multiply`.

    Examples
    --------
    >>> import numpy, hybrid
    >>> hybrid.gram(numpy.array([[1, 2j]]), transposed=True)
    array([[1.+0.j, 0.+2.j],
           [0.-2.j, 4.+0.j]])
    """
    unknown = [name for name in _OF_PRODUCTS if name in options]
    return Gram(transposed, comm, as_int(root), {**_options_of("gram", options, unknown), "dtype": dtype}).of(a)


_NO_OPTIONS = ("a", "b", "c", "comm", "root", "out")
_DEFAULTS = {name: each.default for name, each in signature(multiply).parameters.items() if name not in _NO_OPTIONS}
_OF_PRODUCTS = [*_DEFAULTS][: [*_DEFAULTS].index("kernel")]  # what a Gram matrix is not asked for


def _options_of(call: str, given: dict[str, Any], unknown: Iterable[str] = ()) -> dict[str, Any]:
    """All options of `multiply`, these among them. TypeError for one that it, or the call, has not."""
    if wrong := {*given} - {*_DEFAULTS} | {*unknown}:
        raise TypeError(f"{call}() got an unexpected keyword argument {min(wrong)!r}")
    return {**_DEFAULTS, **given}


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
    with one_call(comm, stall) as session:
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
    comm = common_communicator((a,)) if comm is None else comm
    with one_call(comm, stall) as session:
        return replace(scattered(session, a, as_int(rows), as_int(root), stall), comm=comm)


def gather(
    a: RowBlock | Block2D, *, comm: Any = None, root: int | None = 0, out: Any = None, stall: float | None = None
) -> np.ndarray | None:
    """Bring what all ranks have of a matrix to one of them, or to all.

    Parameters
    ----------
    a
        This rank's rows, the transpose `a.T` of them, or its block of a grid. Every rank of `comm` calls.
    comm
        The mpi4py communicator. None: the one that `a` knows, else this process alone.
    root
        The rank that gets the matrix; None, on every rank: all of them do.
    out
        Where the matrix comes, a NumPy or CuPy array for it, of its shape and type.
    stall
        As of `multiply`.

    Returns
    -------
    ndarray or None
        The matrix, in host memory: `out` where it is given. None on ranks that do not get it.
    """
    with one_call(common_communicator((a,)) if comm is None else comm, stall) as session:
        return gathered(session, a, out, None if root is None else as_int(root), stall)
