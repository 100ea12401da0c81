"""`hybrid.multiply`: the product of two arrays by the ranks of a communicator."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import numpy as np

from hybrid.agreement import agree, same_on_all_ranks, settle_threads
from hybrid.errors import CheckFailed, UsageError
from hybrid.operands import FromRoot, Operand, Shared, as_gpu_matrix, as_matrix, common_dtype, on_gpu
from hybrid.problem import ITEM_SIZES, Problem
from hybrid.product import make_product
from hybrid.ranks import team_of
from hybrid.recycled import recycled
from hybrid.resident import make_resident_product
from hybrid.row_block import BlockShapes, RowBlock, whole
from hybrid.settings import Settings, one_of
from hybrid.shared import shared_arrays
from hybrid.team import Team
from hybrid.verify import Check

# The number of BLAS threads belongs to the whole process: calls from several Python threads take turns.
_ALONE = threading.RLock()


def multiply(
    a: Any,
    b: Any,
    *,
    comm: Any = None,
    root: int = 0,
    out: np.ndarray | None = None,
    kernel: str | None = None,
    device: str | None = None,
    check: bool | None = None,
    threads: int | None = None,
) -> Any:
    """Return a · b at the root, None elsewhere.

    a, b: matrices at `root` (NumPy, CuPy, or anything with the buffer, array or DLPack protocol), None on other ranks;
        float32 and float64 as they are, other types where NumPy's promotion lands on one of these.
    comm: the mpi4py communicator whose ranks work together; every one of them must call. None: this process alone,
        without MPI.
    out: at the root, a float32 or float64 array for the result; it must not overlap a or b.
    kernel, device, check, threads: as the command's options; None leaves them to HYBRID_* and the defaults.

    With RowBlocks on every rank instead, the result is this rank's RowBlock of C, where its rows of A lie: neither root nor
    out, and nothing passes any one rank.

    The result is a NumPy array, or a CuPy array where both a and b lie on a GPU. With several ranks on the root's node it
    may lie in memory mapped as shared, which processes forked later share. An error on one rank is raised on all.
    """
    team = team_of(comm)
    flags = {"kernel": kernel, "device": device, "check": check, "threads": threads}
    with _ALONE if team.size == 1 else nullcontext():
        if isinstance(a, RowBlock) or isinstance(b, RowBlock):
            return _multiply_blocks(team, a, b, root, out, flags)
        if team.size == 1 and out is None and on_gpu(a) and on_gpu(b):
            return _multiply_on_gpu(team, a, b, root, flags)
        return _multiply(team, a, b, root, out, flags)


def empty(shape: tuple[int, int], dtype: Any = "float64", *, comm: Any = None, root: int = 0) -> np.ndarray | None:
    """A matrix, its contents undefined, in memory that the ranks of the root's node share; None on other nodes.

    Every rank of `comm` calls, and may fill rows. Where `multiply` finds all its matrices in such memory, the ranks work on
    them where they lie: nothing is copied on a CPU, and each rank drives its own GPU's link. The memory is given back when
    nothing at the root refers to it any more.
    """
    team = team_of(comm)
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)  # refused below, on all ranks
    wanted = {"kind": "an empty matrix", "shape": shape, "dtype": name, "root": root}
    _settle(team, {}, **wanted)
    shared = shared_arrays(team)
    with team.phase("agree", timed=False) as agreeing:
        if not (isinstance(shape, tuple) and len(shape) == 2 and all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape)):
            raise UsageError(f"shape {shape!r} is not that of a matrix")
        if not isinstance(root, int) or not 0 <= root < team.size:
            raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}")
        one_of("dtype", name, ITEM_SIZES)
        agreeing.mine = shared.gone
    shared.drop(agreeing.all)
    if team.size == 1:
        return np.empty(shape, name)
    return shared.make(team, (int(shape[0]), int(shape[1])), name, root)


def _settle(team: Team, flags: dict[str, Any], **more: Any) -> Settings:
    """The settings, the same on every rank, as is what else they must agree on."""
    with team.phase("agree", timed=False) as asking:
        settings = Settings.gather(flags)
        asking.mine = {**more, **settings.as_dict()}
    same_on_all_ranks(asking.all)
    team.pretend_nodes(settings.ranks_per_node)
    return settings


def _refuse_wrong(check: Check | None) -> None:
    if check is not None and not check.ok:
        raise CheckFailed(f"the product is wrong: error {check.error:.2e}, tolerance {check.tolerance:.2e}")


def _multiply_blocks(team: Team, a: Any, b: Any, root: int, out: Any, flags: dict[str, Any]) -> RowBlock:
    settings = _settle(team, flags, kind="RowBlocks", root=root)
    with team.phase("agree", timed=False) as looking:
        if out is not None or root != 0:
            raise UsageError("a product of RowBlocks has neither out nor root: every rank keeps its rows")
        looking.mine = BlockShapes.of(a, b)
    problem, rows_a, rows_b = whole(looking.all)
    agreement = agree(team, problem, settings, threads=settle_threads(team, settings), resident_rows=(rows_a, rows_b))
    c, check = make_resident_product(team, agreement, a.array, b.array, settings)
    _refuse_wrong(check)
    return RowBlock(c)


def _multiply_on_gpu(team: Team, a: Any, b: Any, root: int, flags: dict[str, Any]) -> Any:
    """GPU to GPU: the arrays are the only rank's row-blocks."""
    first, second = as_gpu_matrix(a, "a"), as_gpu_matrix(b, "b")
    _refuse_shapes(first.shape, second.shape)
    return _hand_over(_multiply_blocks(team, RowBlock(first), RowBlock(second), root, None, flags).array, both_on_gpu=True)


def _refuse_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if a[1] != b[0]:
        raise UsageError(f"a has {a[1]} columns and b {b[0]} rows: they must be the same")


def _multiply(team: Team, a: Any, b: Any, root: int, out: np.ndarray | None, flags: dict[str, Any]) -> Any:
    if not isinstance(root, int) or not 0 <= root < team.size:
        with team.phase("agree", timed=False):
            raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}")
    settings = _settle(team, flags, kind="matrices of the root", root=root)
    with team.phase("agree", timed=False) as looking:
        shared = shared_arrays(team)
        plain_out = out.view(np.ndarray) if isinstance(out, np.ndarray) else out
        matrices = _look_at(a, b, plain_out) if team.rank == root else None
        if matrices is not None:
            dtype = common_dtype(matrices[0].dtype, matrices[1].dtype)
            of_type = [array if array is not None and array.dtype == dtype else None for array in (*matrices, plain_out)]
            places = [shared.place_of(array) for array in of_type]
            looking.mine = (matrices[0].shape, matrices[1].shape, dtype, places, shared.gone)
    shape_a, shape_b, dtype, places, gone = looking.all[root]
    shared.drop([gone])
    problem = Problem(shape_a[0], shape_a[1], shape_b[1], dtype)
    array_a, array_b = matrices if matrices is not None else (None, None)
    first: Operand = FromRoot(shape_a, array_a)
    second: Operand = FromRoot(shape_b, array_b)
    place = plain_out if plain_out is not None and _can_hold(plain_out, problem) else None
    # On one node, matrices that all its ranks see are neither sent nor driven by the root.
    all_shared = len(team.topology.nodes) == 1 and team.size > 1 and None not in places[:2]
    if all_shared:
        first, second = (Shared(shared.array_at(at, shape)) for at, shape in zip(places, (shape_a, shape_b), strict=False))
        place = shared.array_at(places[2], (problem.n, problem.m)) if places[2] is not None else None
    there = [first.in_place(dtype), second.in_place(dtype), place]
    of_c = problem.bytes(problem.n, problem.m)
    kept_for_c = min(of_c, recycled.make_room(of_c)) if team.rank == root and place is None and not all_shared else 0
    agreement = agree(
        team,
        problem,
        settings,
        threads=settle_threads(team, settings),
        root=root,
        already_there=sum(array.nbytes for array in there if array is not None) + kept_for_c,
        at_root=not all_shared,
        shared=all_shared,
    )
    outcome = make_product(team, agreement, first, second, settings, out=place)
    _refuse_wrong(outcome.check)
    if team.rank != root:
        return None
    if plain_out is None:
        return _hand_over(outcome.c.array, both_on_gpu=on_gpu(a) and on_gpu(b))
    if outcome.c.array is not plain_out:
        np.copyto(plain_out, outcome.c.array)
    return out


def _look_at(a: Any, b: Any, out: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    first, second = as_matrix(a, "a"), as_matrix(b, "b")
    _refuse_shapes(first.shape, second.shape)
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise UsageError(f"out must be a NumPy array, not {type(out).__name__}")
        wanted = (first.shape[0], second.shape[1])
        if out.shape != wanted:
            raise UsageError(f"out has shape {out.shape}, the product {wanted}")
        if out.dtype != common_dtype(first.dtype, second.dtype) or not out.flags.writeable:
            raise UsageError(f"out must be a writable {common_dtype(first.dtype, second.dtype)} array")
        if np.may_share_memory(out, first) or np.may_share_memory(out, second):
            raise UsageError("out overlaps a or b, which are still read while it is written")
    return first, second


def _can_hold(out: np.ndarray, problem: Problem) -> bool:
    """Whether C can be computed right in it."""
    return out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative and out.dtype == problem.dtype


def _hand_over(c: np.ndarray, both_on_gpu: bool) -> Any:
    if both_on_gpu:
        import cupy

        return cupy.asarray(c)
    return c
