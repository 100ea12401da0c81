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
        At `root` (None on other ranks): NumPy or CuPy arrays, or objects with the buffer, array or DLPack protocol. As for
        NumPy's `@` they may be matrices, vectors or stacks; if a stack is long enough, each rank multiplies whole matrices.
        Elements are bool, integers of up to 64 bits, or floating-point or complex numbers up to float64 and complex128.
        Or on every rank two `RowBlock`s, two `Block2D`s, or a RowBlock a and the same whole matrix b.
    c
        The matrix to add, times beta: at the root, or a RowBlock or Block2D, in the result's shape. If beta is 0, c is not read.
        It is only changed if it is also `out`.
    comm
        The mpi4py communicator whose ranks compute; all of them must call. None: the communicator of the RowBlocks or Block2Ds,
        else this process alone, without MPI.
    root
        The rank that has the operands and gets the result.
    out
        At the root, a NumPy or CuPy array of the result's type for the result. It may be c, but must not overlap a or b.
    alpha, beta
        Numbers, the same on all ranks; whole numbers for products of integers. If alpha is 0, a and b are not read. beta is 0 by
        default; c needs an explicit beta, which may be 0 as in BLAS.
    transpose_a, transpose_b, conjugate_a, conjugate_b
        op is nothing, the transpose, the complex conjugate, or both. A transposed RowBlock (also the view `a.T`) is redistributed
        first, unless the product is the sum of the ranks' local products.
    dtype
        The type of the result; None: NumPy's for these operands. Products of integers are exact, and raise `Overflow` if the type
        cannot hold an element. Other products are computed in float32, or in float64 if an operand or the result needs it (which
        rounds 64-bit integers), and rounded to the result's type once. GPUs that can multiply two float16 or two bfloat16
        operands directly do so, with sums in float32.
    modulus
        A whole number from 1 to 2⁶³. The result is the product of integers modulo this number: exact for operands of any size,
        with elements from 0 to modulus - 1, in int64 or in dtype.
    kernel
        A name of the kernel catalogue, or "auto". This option and the following ones are also options of the command. None: the
        environment variable (here HYBRID_KERNEL), else the default.
    device
        "cpu", "cuda", "emulate", or "auto": GPUs if every rank has one, but the CPU for small products of a single process with
        arrays in host memory.
    precision
        "native": GPUs compute in float64 or float32. "auto": they multiply 8-bit remainders (Ozaki scheme II) if that is faster
        and at least as accurate; "fast": fewer remainders, if that is about as accurate.
    check
        True verifies the product on the device that multiplies, and a sample of the copies between host and GPU; "full" verifies
        all copies; "host" verifies in host memory, independently of everything that ran on a GPU; False verifies nothing.
    on_fault
        "raise": a product that fails its check raises CheckFailed. "repair": it is recomputed and checked again, and raises
        CheckFailed only if it still fails; a RuntimeWarning at the root (RowBlocks: at rank 0) says what was wrong.
    threads
        CPU threads of each rank.
    transport
        How operands reach GPUs: "auto", "host", "peers" or "nccl".
    host_memory, gpu_memory
        Bytes of each node's memory, and of each GPU's, that may be used: a whole number, or a text such as "4G".
    stall
        After this many seconds a warning names the ranks that have not called; after as many more, at least one, the call raises
        `RankMissing`. 0: no warning and no limit. With neither this nor HYBRID_STALL the warning comes after 60 s, and the call
        keeps waiting.

    Returns
    -------
    ndarray or RowBlock or Block2D or None
        The result at the root, None elsewhere: `out` if given, a CuPy array if a and b are on a GPU, else a NumPy array. With
        several ranks on the root's node it may be in shared memory, which processes forked later share.
        RowBlocks: this rank's RowBlock of the product, in the memory (host or GPU) of its rows of a; root and out are not used.
        Block2Ds: this rank's Block2D of the product, distributed as c; without c it has the rank's rows of a and columns of b
        (products of transposes use the grid of a and b themselves). CPUs multiply Block2Ds, or with device="cuda" GPUs.

    Raises
    ------
    HybridError
        An error on one rank is raised on all ranks, and the next call works; see `hybrid.errors`.
    """
    options = {"alpha": alpha, "beta": beta, "transpose_a": transpose_a, "transpose_b": transpose_b, "conjugate_a": conjugate_a,
               "conjugate_b": conjugate_b, "dtype": dtype, "modulus": modulus, "kernel": kernel, "device": device,
               "precision": precision, "check": check, "on_fault": on_fault, "threads": threads, "transport": transport,
               "host_memory": host_memory, "gpu_memory": gpu_memory, "stall": stall}  # fmt: skip
    return Compiled.of((a, b, c), comm, root, options).run(a, b, c, out)


def plan(a_like: Any, b_like: Any, c_like: Any = None, *, comm: Any = None, root: int = 0, **options: Any) -> ProductPlan:
    """Decide how products of matrices of these shapes and types are computed, and compute none.

    `multiply` caches its plans, so a warm call is no slower without `plan`. Call `plan` to find out before there is data whether
    a product can be computed, or to read what was decided.

    Parameters
    ----------
    a_like, b_like, c_like
        As `a`, `b` and `c` of `multiply`. Only the elements of integer operands matter. At the root, any objects with a shape and
        a dtype may stand for arrays.
    comm, root
        As in `multiply`. Every rank calls.
    **options
        The other keywords of `multiply` except `out`.

    Returns
    -------
    ProductPlan
        `plan.run(a, b, c=None, out=None)` computes the product of such operands; `plan.explain()` returns a text that says how.

    Raises
    ------
    HybridError
        As `multiply`, before any product: `DoesNotFit`, `UsageError` and so on.

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
    """Compute a Gram matrix: a·aᴴ, of the rows of a; with `transposed` aᴴ·a, of its columns.

    The result is Hermitian (symmetric if real) to the last bit, with a real diagonal. Only one triangle is computed in the cases
    in which `multiply` does so for `a @ a.T`; complex matrices at a root or in a file take half the multiply-adds of a product.

    Parameters
    ----------
    a
        A matrix at `root` (None on other ranks), or a `RowBlock` on every rank, as in `multiply`. Or, in a single process, the
        path of a file in a format of the commands, such as "A.npy", "A.h5:/name" or PLINK's "G.bed". With `transposed` the file
        is read once, in slabs of rows; the next slab is read while one is multiplied. Without it, slabs of an eighth of the free
        memory are multiplied by each other, and files larger than that are read several times.
    transposed
        Whether to multiply the columns of a instead of its rows.
    comm, root
        As in `multiply`.
    dtype
        The type of the result. None: int64 for integers and bool, whose sums are exact, else the type of a.
    **options
        The keywords of `multiply` that say how it is computed: `device`, `precision`, `check`, `threads` and so on.

    Returns
    -------
    ndarray or RowBlock or None
        As in `multiply`; for a file a NumPy array.

    Raises
    ------
    HybridError
        As `multiply`.

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
_OF_PRODUCTS = [*_DEFAULTS][: [*_DEFAULTS].index("kernel")]  # the options that `gram` does not take


def _options_of(call: str, given: dict[str, Any], unknown: Iterable[str] = ()) -> dict[str, Any]:
    """The given options, completed by the defaults of `multiply`. TypeError for one that is unknown there or to the call."""
    if wrong := {*given} - {*_DEFAULTS} | {*unknown}:
        raise TypeError(f"{call}() got an unexpected keyword argument {min(wrong)!r}")
    return {**_DEFAULTS, **given}


Distributed._multiply = staticmethod(multiply)  # `@`


def empty(
    shape: tuple[int, int], dtype: Any = "float64", *, comm: Any = None, root: int = 0, stall: float | None = None
) -> np.ndarray | None:
    """Allocate an uninitialised matrix in memory that the ranks of the root's node share.

    Every rank of `comm` calls, and may fill rows. If all matrices of a product are in such memory, the ranks of `multiply` use
    them in place: no host copies, and each rank uses its own GPU's link. (Not if operands must be converted or expanded first,
    as integers and a complex A.) The memory is freed when nothing at the root refers to it any more.

    Parameters
    ----------
    shape
        Rows and columns.
    dtype
        Any type that a product can have: bool, an integer, floating-point or complex type, float16 or bfloat16.
    comm
        The mpi4py communicator. None: this process alone.
    root
        The rank on whose node the memory is allocated.
    stall
        As in `multiply`.

    Returns
    -------
    ndarray or None
        The same matrix on all ranks of the root's node, None on other nodes.
    """
    with one_call(comm, stall) as session:
        return empty_shared(session, shape, dtype, as_int(root), stall)


def scatter(a: Any, *, comm: Any = None, root: int = 0, rows: int | None = None, stall: float | None = None) -> RowBlock:
    """Give each rank consecutive rows of a matrix, in the order of the ranks.

    Parameters
    ----------
    a
        The matrix at `root` (None on other ranks); or on every rank a `RowBlock`, its transpose `a.T`, or a `Block2D`, which is
        redistributed. Elements may be of any numeric type.
    comm
        The mpi4py communicator; all of its ranks must call. None: the communicator of `a`, else this process alone.
    root
        The rank that has the matrix.
    rows
        The number of rows for this rank; None on every rank: equal shares.
    stall
        As in `multiply`.

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
    """Collect a distributed matrix at one rank, or at all.

    Parameters
    ----------
    a
        This rank's rows, their transpose `a.T`, or its block of a grid. Every rank of `comm` calls.
    comm
        The mpi4py communicator. None: the communicator of `a`, else this process alone.
    root
        The rank that gets the matrix; None on every rank: all ranks get it.
    out
        On ranks that get the matrix, a NumPy or CuPy array of its shape and type to write it to.
    stall
        As in `multiply`.

    Returns
    -------
    ndarray or None
        The matrix in host memory, or `out` if given. None on ranks that do not get it.
    """
    with one_call(common_communicator((a,)) if comm is None else comm, stall) as session:
        return gathered(session, a, out, None if root is None else as_int(root), stall)
