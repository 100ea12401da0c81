# SPDX-License-Identifier: MIT
"""The calls behind `multiply` and `empty`, one class per form of operands. Constructing a call makes all ranks agree on what to
compute and how; its method `product` computes it. All ranks raise together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import index
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Block2D, RowBlock
from hybrid.arrays.gemm import Gemm, ProductType, numpy_type, product_type, real_operands, real_view, type_name
from hybrid.arrays.interop import (
    as_rows,
    await_callers_work,
    copy_back,
    empty_beside,
    is_masked,
    on_gpu,
    to_device_of,
)
from hybrid.arrays.root_operands import (
    MatrixSource,
    RootMatrix,
    RootOperands,
    RootShapes,
    SharedMatrix,
    arrays_of,
    matrices_of,
    refuse_unused_c,
    refuse_wrong_c,
    refuse_wrong_out,
)
from hybrid.core.problem import LARGEST_SIZE, Span, block, pieces
from hybrid.core.settings import Settings
from hybrid.core.text import tell_nobody, warn
from hybrid.core.timeline import Timeline
from hybrid.devices.cuda_gpus import pinned_memory, usable_gpus
from hybrid.errors import CheckFailed, DeviceUnavailable, DoesNotFit, Overflow, UsageError
from hybrid.execution.distributed_product import Complete, DistributedCall
from hybrid.execution.product import RootProduct, element_types
from hybrid.execution.real_products import CallOptions, Operands, RealProducts, exactly
from hybrid.execution.redistribution import move
from hybrid.execution.session import Session, agree, free_memory_of, take_inventory, threads_until_decided
from hybrid.execution.whole_copies import WholeCopies
from hybrid.host.blas import blas, blas_stack, some_matrices
from hybrid.host.memory import empty_matrix, empty_result, is_transpose
from hybrid.host.threads import limited_threads
from hybrid.planning.arithmetic import PAIR
from hybrid.planning.decision import (
    Decision,
    Gpu,
    Machine,
    gpu_for_arrays,
    place_stack,
    root_is_enough,
    same_on_all_ranks,
)
from hybrid.planning.plan import shortage_of_matrix
from hybrid.planning.tiling import OperandLocation, PlanRequest
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.verification.check import Check, Fault, settle
from hybrid.verification.freivalds import StackCheck, new_seed, verify_alone

PRODUCT_OF_ROOT = "a product of matrices of the root"  # a kind of call, in what ranks say to agree on it


def empty_shared(session: Session, shape: tuple[int, int], dtype: Any, root: int, stall: float | None) -> np.ndarray | None:
    """An uninitialized matrix in memory shared by the root's node; None on other nodes. Collective."""
    team, shared = session.team, session.shared_arrays
    with team.phase("agree", timed=False) as agreeing:
        settings = Settings.gather({"stall": stall})
        shape = _matrix_shape(shape)
        team.refuse_no_rank(root)
        element = numpy_type(type_name(np.float64 if dtype is None else dtype))  # None means float64, as in NumPy
        said = {"kind": "an empty matrix", "shape": shape, "dtype": element.name, "root": root, **settings.as_dict()}
        agreeing.mine = (said, shared.gone, free_memory_of(session, settings, None, now=True))
    same_on_all_ranks([said[0] for said in agreeing.all])
    team.pretend_nodes(settings.ranks_per_node)
    shared.drop(said[1] for said in agreeing.all)
    rows, columns = shape
    free = [agreeing.all[rank][2] for rank in team.topology.nodes[team.topology.node_of(root)]]
    if missing := shortage_of_matrix(rows * columns * element.itemsize, free):
        raise missing
    if team.size == 1:
        return empty_matrix(rows, columns, element)
    return shared.make(team, (rows, columns), element, root)


def _matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """The validated shape. UsageError unless it is two whole numbers, as NumPy accepts them."""
    with suppress(TypeError, ValueError):
        rows, columns = (index(each) for each in shape if not isinstance(each, bool))
        if 0 <= rows <= LARGEST_SIZE and 0 <= columns <= LARGEST_SIZE:
            return rows, columns
    raise UsageError(f"shape {shape!r} is not that of a matrix: two whole numbers from 0 to {LARGEST_SIZE} are", code="shapes")


def call_of(session: Session, operands: Operands, out: Any, asked: CallOptions) -> Call:
    """The call for these operands (A, B, and C or None). Collective; all ranks raise together."""
    if any(isinstance(each, (RowBlock, Block2D)) for each in operands):
        return DistributedCall(session, operands, out, asked)
    a, b, _ = operands
    matrices_there = on_gpu(a) and on_gpu(b) and all(getattr(each, "ndim", 2) <= 2 for each in (a, b))
    if session.team.size == 1 and matrices_there and (out is None or on_gpu(out)):
        return GpuCall(session, operands, out, asked)
    to_gpu = CopiedCall.of(session, operands, out, asked) if session.team.size == 1 else None
    return to_gpu or RootCall(session, operands, out, asked)


class GpuCall:
    """A product of arrays on this process's GPU, computed as RowBlocks of one rank. C stays on the GPU, in `out` if given."""

    def __init__(self, session: Session, operands: Operands, out: Any, asked: CallOptions) -> None:
        session.team.refuse_no_rank(asked.root)
        a, b, c = operands
        refuse_unused_c(c, asked.gemm)
        gemm = Gemm.of(asked.gemm)
        first, second, _, self.shape = matrices_of(*arrays_of(a, b, on_device=True), gemm)
        self.types, self._out = product_type(first.dtype, second.dtype, gemm.dtype).of(gemm), out
        self.a, self.b = first, second  # op(A) and op(B)
        c = None if gemm.beta == 0 or c is None else arrays_of(a, c, on_device=True)[1]
        if c is not None:
            refuse_wrong_c(c, self.shape, self.types)
            c = RowBlock(c.reshape(first.shape[0], second.shape[1]))
        if out is not None:
            refuse_wrong_out(out, (first, second), c, self.shape, self.types)
        blocks = RowBlock(first), RowBlock(second), c
        self._of_blocks = DistributedCall(session, blocks, None, asked.without_transposes())
        self.decision, self.settings = self._of_blocks.decision, self._of_blocks.settings
        multiplies_there = self.decision is not None and self.decision.plan.device == "cuda"
        self.stays_on_gpu = self._of_blocks.integers_stay if self.types.exact is not None else multiplies_there

    def product(self, complete: Complete = tell_nobody) -> Any:
        product = self._of_blocks.product(complete).array.reshape(self.shape)
        if self._out is None:
            return product
        copy_back(product, self._out)
        return self._out


class CopiedCall:
    """A product in one process, of integers, with a complex A, or rounded to float16, whose operands are partly or all in host
    memory: they are copied to the GPU in their own dtype and converted there, and C returns in the result's dtype. C, unless of
    integers, is computed in two halves: while one is multiplied, rows of A for the next, or the finished C, are copied."""

    def __init__(
        self, session: Session, operands: Sequence[Any], out: Any, asked: CallOptions, gpu: Gpu, shape: tuple[int, ...]
    ) -> None:
        """`operands`: op(A), op(B), and C or None, as matrices. `shape`: of the result. DoesNotFit if GPU memory is short."""
        self._session, self._operands, self._out, self._asked, self._gpu = session, operands, out, asked.without_transposes(), gpu
        self._shape, self._core = shape, (operands[0].shape[0], operands[1].shape[1])
        self.settings, gemm = asked.read()
        self._types = product_type(operands[0].dtype, operands[1].dtype, gemm.dtype)
        (a, b), rows = operands[:2], Span(0, self._core[0])
        # Below 2048 rows, a second half costs more than the overlap saves (estimated). Repair messages name rows of the whole C.
        in_halves = not self._types.exact and len(rows) >= 2048 and self.settings.on_fault == "raise" and not is_transpose(a, b)
        self._parts = [*pieces(rows, -(-len(rows) // (2 * PAIR)) * PAIR)] if in_halves else [rows]
        self._copy_and_decide()
        self.decision = self._gpu_calls[0].decision

    @property
    def how(self) -> str:
        """The copied dtypes, in words."""
        first, second = (each.dtype for each in self._operands[:2])
        return f"A is copied to the GPU as {first}, B as {second}; C from there as {self._types.result}, from products of:"

    @classmethod
    def of(cls, session: Session, operands: Operands, out: Any, asked: CallOptions) -> CopiedCall | None:
        """The call; None if another class has to handle these operands, or refuse them."""
        dtypes = [getattr(each, "dtype", None) for each in operands[:2]]
        kinds = [getattr(dtype, "kind", "-") for dtype in dtypes]
        to_float16 = asked.gemm["dtype"] is not None or any(dtype == np.float16 for dtype in dtypes)
        if "V" in kinds or (kinds[0] != "c" and not to_float16 and any(kind not in "biu" for kind in kinds)):
            return None
        try:
            usable_gpus()  # raises if there are none, before the checks below that take as long as a small product
            settings, gemm = asked.read()
            a, b = arrays_of(*operands[:2], on_device=True)
            types = product_type(a.dtype, b.dtype, gemm.dtype).of(gemm)
            others = gemm.modulus or max(a.ndim, b.ndim) > 2 or settings.check == "host" or settings.gpu_memory
            to_float16 = (types.computed, types.result) == ("float32", "float16") and not types.gemm.combines
            if others or not (types.exact or types.complex_a or to_float16):
                return None
            first, second, _, shape = matrices_of(a, b, gemm)
            session.team.refuse_no_rank(asked.root)
            refuse_unused_c(operands[2], asked.gemm)
            c = None if operands[2] is None or gemm.beta == 0 else arrays_of(a, operands[2], on_device=True)[1]
            refuse_wrong_c(c, shape, types)
            if out is not None:
                refuse_wrong_out(out, (first, second), c, shape, types)
            inventory = take_inventory(session, settings)
            (n, l), m = first.shape, second.shape[1]
            if shortage_of_matrix(n * m * np.dtype(types.result).itemsize, [inventory.free]):
                return None
            gpu = gpu_for_arrays(Machine(session.team.topology, (inventory,)), types.problem(n, l, m), settings)
            gpus_used = {each.device.id for each in (a, b, c) if each is not None and on_gpu(each)}
            if gpu is None or not gpus_used <= {gpu.index}:
                return None
            added = None if c is None else c.reshape(n, m)
            call = cls(session, (first, second, added), out, asked, gpu, shape)
        except (UsageError, DeviceUnavailable, DoesNotFit):
            return None
        if all(each.stays_on_gpu for each in call._gpu_calls):
            return call
        call.abandon()
        return None

    def _copy_and_decide(self) -> None:
        """Start the H2D copies and decide how to multiply."""
        session, asked, settings, out = self._session, self._asked, self.settings, self._out
        if on_gpu(out):
            self._into: Any = None
        elif out is not None and out.flags.carray and out.dtype.isnative:
            self._into = out.reshape(self._core)
        else:
            self._into = empty_result(*self._core, self._types.result)
        copied = [each for each in self._operands if each is not None and not on_gpu(each)]
        threads = threads_until_decided(session.team, settings)
        with session.team.phase("scatter", timed=False), busy():
            device = session.device_of_alone(self._gpu)
            self._copies = WholeCopies(device, copied, self._into, threads, check=settings.check)
        try:
            a, b, c = self._operands
            b_there = b if on_gpu(b) else None if is_transpose(a, b) else self._copies.to_gpu("B", b)
            out_there = None if self._into is not None else out.reshape(self._core)
            self._gpu_calls = list[GpuCall]()
            for rows in self._parts:
                a_there = a[rows.slice] if on_gpu(a) else self._copies.to_gpu("A", a[rows.slice])
                added = None if c is None else c[rows.slice]
                if added is not None and not on_gpu(added):
                    added = self._copies.to_gpu("the C that is added", added)
                if not self._gpu_calls:
                    self._copies.make_caller_wait()
                there = a_there, a_there.T if b_there is None else b_there, added
                self._gpu_calls.append(GpuCall(session, there, None if out_there is None else out_there[rows.slice], asked))
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give up the product. When this returns, no copy accesses host memory."""
        self._copies.abandon()

    def product(self) -> Any:
        """C in host memory, or in `out`, which may be on the GPU."""
        try:
            return self._product()
        except CheckFailed as wrong:
            lost = self._operands[2] is not None and self._out is not None  # `out` may share memory with C, and has been written
            if wrong.code != "check-copy" or self.settings.on_fault != "repair" or lost:
                raise
            warn(f"repaired: {wrong}; computed once more")
        self._copy_and_decide()
        return self._product()

    def _product(self) -> Any:
        copies, into, out = self._copies, self._into, self._out
        try:
            for rows, call in zip(self._parts, self._gpu_calls, strict=True):
                if rows.lo:
                    copies.make_caller_wait()
                try:
                    call.product(tell_nobody if into is None else partial(copies.to_host, into=into[rows.slice]))
                except CheckFailed as wrong:
                    counted = f"of C from row {rows.lo} on: " if rows.lo else ""
                    raise CheckFailed(f"{counted}{wrong}", code=wrong.code) from wrong
            copies.verify()
        except Overflow:
            copies.verify()  # a corrupted operand may have caused the overflow
            raise
        except BaseException:
            self.abandon()
            raise
        if out is None:
            return into.reshape(self._shape) if self._shape else into[0, 0]
        if into is not None and not np.may_share_memory(into, out):
            np.copyto(out, into.reshape(out.shape))
        return out


class RootCall:
    """A product of arrays at the root. `operands`: A, B, and C or None at the root; all None on other ranks."""

    decision: Decision | None = None  # None for a stack, or if the root computes alone

    def __init__(self, session: Session, operands: Operands, out: Any, asked: CallOptions) -> None:
        team, shared, root = session.team, session.shared_arrays, asked.root
        self._session, self._operands, self._out, self._asked = session, operands, out, asked
        with team.phase("agree", timed=False) as agreeing:
            team.refuse_no_rank(root)
            settings, gemm = asked.read()
            team.pretend_nodes(settings.ranks_per_node)
            self.given, described = None, None
            if team.rank == root:
                self.given, described = _inspected(session, operands, out, settings, gemm, asked.gemm)
            inventory, integers_fit, through_slots = take_inventory(session, settings), False, 0
            if team.size > 1 and inventory.gpus and self.given is not None:
                if not (isinstance(described, RootShapes) and described.all_shared):
                    through_slots = pinned_memory.bytes_not_pinned([*operands[:2], out])
                if self.given.bytes_of_integers:
                    free = free_memory_of(session, settings, inventory.gpus[0], now=True)
                    integers_fit = self.given.bytes_of_integers <= free.gpu_bytes
            said = {"kind": PRODUCT_OF_ROOT, "root": root, **gemm.as_dict(), **settings.as_dict()}
            mine = said, inventory, described, shared.gone, new_seed(), integers_fit, through_slots
            agreeing.mine = mine
        if any("repeats" in said for said, *_ in agreeing.all):  # some ranks took this for a call that all repeat
            with team.phase("agree", timed=False) as agreeing:
                agreeing.mine = mine
        same_on_all_ranks([said for said, *_ in agreeing.all])
        shapes: RootShapes | UsageError
        _, _, shapes, _, self._seed, integers_fit, through_slots = agreeing.all[root]
        if isinstance(shapes, UsageError):
            raise shapes
        shared.drop([agreeing.all[root][3]])
        self._shapes, self.settings, self.on_gpu = shapes, settings, shapes.on_gpu
        inventories = [said[1] for said in agreeing.all]
        machine = Machine(team.topology, tuple(inventories))
        self._stack = StackCall(team, shapes, root, settings, machine) if shapes.count is not None else None
        one_at_root = root == 0 and (self._stack is None or not self._stack.is_divided)
        enough = partial(root_is_enough, machine, shapes.problem, settings)
        self.is_for_root = one_at_root and enough(through_slots, of_integers=integers_fit)
        self.is_always_for_root = self.is_for_root and enough(0)
        if shapes.count is None and not self.is_for_root:
            request = PlanRequest(
                shapes.problem,
                root=root,
                operands=OperandLocation.NODE_SHARED if shapes.all_shared else OperandLocation.ROOT_ARRAYS,
                bytes_there=shapes.allocated_bytes,
                besides=tuple(shapes.bytes_beside * (rank == root) for rank in range(team.size)),
                besides_on_gpu=tuple(shapes.gpu_bytes * (rank == root) for rank in range(team.size)) if shapes.gpu_bytes else (),
            )
            self.settings = exactly(settings, shapes.types)
            self.decision = agree(session, request, self.settings, inventories)

    def product(self) -> Any:
        """The result at the root, in `out` if given; None elsewhere."""
        given, (a, b, _) = self.given, self._operands
        if self.decision is not None:
            c = self._matrix_product(self.decision)
        elif self._stack is not None and self._stack.is_divided:
            c = self._stack.product(given)
        else:
            c = self._stack_by_all_ranks(self._shapes.count or 0)
        if given is None:
            return None
        result = given.given_back(c, self._out)
        return to_device_of(a, result) if self._out is None and on_gpu(a) and on_gpu(b) else result

    def _matrix_product(self, decision: Decision) -> Any:
        """The result as a matrix at the root; None elsewhere."""
        session, given, types = self._session, self.given, self._shapes.types
        team, threads = session.team, decision.placements[session.team.rank].threads.count
        shape, added = (None, None) if given is None else (given.core, given.c)
        products = RealProducts(team, types, threads, shape, c=added)
        for number, prime in enumerate(types.primes):
            first, second, out = self._real_operands(decision, threads, prime)
            c, check = RootProduct(session, decision, (first, second), self.settings, out, seed=self._seed + number).result()
            settle(check, warns=given is not None)
            products.add(c)
        return products.finish(given.out if given is not None else None)

    def _real_operands(self, decision: Decision, threads: int, prime: int) -> tuple[MatrixSource, MatrixSource, Any]:
        """A and B of the real product modulo `prime` (0: no modulus), and an array for its C or None."""
        shapes, given, p = self._shapes, self.given, self._shapes.problem
        if shapes.all_shared:
            return _shared_operands(self._session, shapes, decision)
        elsewhere = RootMatrix((p.n, p.l), None), RootMatrix((p.l, p.m), None), None
        if shapes.on_gpu:
            with self._session.team.phase("scatter"):
                return elsewhere if given is None else _from_gpu(decision, shapes.types, given, threads)
        return elsewhere if given is None else (*given.sources(threads, prime), given.real_out)

    def _stack_by_all_ranks(self, count: int) -> Any:
        """The products of a stack, each computed by all ranks together."""
        given, room, asked = self.given, None, self._asked.without_transposes()  # `given` holds op(A) and op(B)
        operands: Operands = (None, None, None)
        if given is not None:
            room = given.room()
        for number in range(count):
            if given is not None:
                a, b, c = given.a, given.b, given.c
                operands = a[number % len(a)], b[number % len(b)], None if c is None else c[number]
            RootCall(self._session, operands, None if room is None else room[number], asked).product()
        return room


class StackCall:
    """Products of two stacks at the root, divided among the ranks if possible: each rank receives whole matrices, multiplies
    them, checks the products and returns them. Every rank constructs one."""

    def __init__(self, team: Team, shapes: RootShapes, root: int, settings: Settings, machine: Machine) -> None:
        self._team, self._shapes, self._root, self._settings = team, shapes, root, settings
        self._shares = [block(shapes.count or 0, team.size, rank) for rank in range(team.size)]
        self._span = self._shares[team.rank]
        self._others = [rank for rank, span in enumerate(self._shares) if rank != root and len(span)]
        bytes_of_ranks = [shapes.bytes_on_rank(span, is_root=rank == root) for rank, span in enumerate(self._shares)]
        self._placements = place_stack(machine, settings, shapes.count or 0, shapes.problem, bytes_of_ranks)
        self.is_divided = self._placements is not None  # each rank computes whole products; else all ranks share each product

    def product(self, given: RootOperands | None) -> Any:
        """The stack of products at the root; None elsewhere. `given`: None except at the root."""
        assert self._placements is not None
        self._placement = self._placements[self._team.rank]
        self._threads = self._placement.threads.count
        self._team.timeline = Timeline()
        room = given.room() if given is not None else None
        self._gather(self._products(*self._scattered(given), room=room), room)
        return room

    def _scattered(self, given: RootOperands | None) -> list[np.ndarray]:
        """Scatter the stacks. Returns this rank's matrices of A, B and, if given, C."""
        sent, taken = {}, {}
        if given is not None:
            whole = [each for each in (given.a, given.b, given.c) if each is not None]
            mine = [some_matrices(each, self._span) for each in whole]
            for rank in self._others:
                sent[rank] = [np.ascontiguousarray(some_matrices(each, self._shares[rank])) for each in whole]
        else:
            mine = [np.empty((min(count, len(self._span)), *core), of) for (count, *core), of in self._shapes.stacks]
            taken = {self._root: mine} if self._team.rank in self._others else {}
        self._move("scatter", sent, taken)
        return mine

    def _products(self, a: np.ndarray, b: np.ndarray, *added: np.ndarray, room: np.ndarray | None) -> np.ndarray:
        """This rank's products, checked, in the result's dtype. `added`: C, if given. `room`: at the root, for all products."""
        types, real, threads = self._shapes.types, self._shapes.problem, self._threads
        count, n, m = len(self._span), a.shape[1], b.shape[2]

        def name_of(row: int, column: int) -> str:
            return f"element [{row % n}, {column}] of product {self._span.lo + row // n} of the stack"

        of_c = _rows(added[0]) if added else None
        products = RealProducts(self._team, types, threads, (count * n, m), c=of_c, name_of=name_of)
        own = None if room is None else room[self._span.slice]
        into = None if own is None or types.finishes else real_view(own) if types.complex_b else own
        for prime in types.primes:
            with self._team.phase("scatter"), busy():
                first, second = self._real_stacks(a, b, prime)
            products.add(self._multiply(first, second, into).reshape(count * real.n, real.m))
        finished: np.ndarray = products.finish(_rows(own) if own is not None and types.finishes else None)
        return finished.reshape(count, n, m)

    def _real_stacks(self, a: np.ndarray, b: np.ndarray, prime: int) -> list[np.ndarray]:
        """The operand stacks of a real product, copied only if their dtype must change; transposed views stay views."""
        types, real, threads = self._shapes.types, self._shapes.problem, self._threads
        if prime or types.complex_b:
            first, second = real_operands(_rows(a), _rows(b), types, prime, device="cpu", threads=threads)
            a, b = first.reshape(len(a), real.n, real.l), second.reshape(len(b), real.l, real.m)
        return [
            each
            if each.dtype == real.dtype and each.dtype.isnative
            else as_rows(_rows(each), real.dtype, device="cpu", threads=threads).reshape(each.shape)
            for each in (a, b)
        ]

    def _multiply(self, a: np.ndarray, b: np.ndarray, into: np.ndarray | None) -> np.ndarray:
        """The products of real stacks, checked, in `into` if given."""
        gpu, real = self._placement.gpu, self._shapes.problem
        with self._team.phase("multiply"), busy():
            c = np.empty((len(self._span), real.n, real.m), real.dtype) if into is None else into
            check = StackCheck(a, b, c, self._threads) if c.size and self._settings.check != "off" else None
            if c.size and gpu is not None and real.l:
                from hybrid.devices.cuda_device import multiply_on_gpu

                multiply_on_gpu(gpu, a, b, c, self._settings.gpu_memory)
            elif c.size and (check is None or not check.compared_in_c(multiplies=True)):
                blas_stack(a, b, c, self._threads)
        if self._settings.check != "off":
            self._verify(a, b, c, check)
        return c

    def _verify(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, check: StackCheck | None) -> None:
        """Raise CheckFailed for products that are wrong and not repaired. `check`: of these products; None if there are none."""
        team, wrong, mended = self._team, list[Fault](), list[str]()
        with team.phase("check") as checking, busy():
            for index, of_product in sorted(check.faults().items()) if check is not None else ():
                name = f"product {self._span.lo + index} of the stack, by {self._placement.name}"
                if self._settings.on_fault == "repair" and self._recomputed(a, b, c, index):
                    mended.append(f"{name}: multiplied wrong; it was computed again on the CPU of rank {team.rank}")
                else:
                    wrong += [replace(fault.of(name), rank=team.rank) for fault in of_product]
            checking.mine = wrong, mended
        faults, repaired = (tuple(chain.from_iterable(of_ranks)) for of_ranks in zip(*checking.all, strict=True))
        settle(Check("freivalds", 0.0, 0.0, not faults, faults, repaired=repaired), warns=team.rank == self._root)

    def _recomputed(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, index: int) -> bool:
        """Recompute this product on the CPU. Returns whether it now passes the check."""
        matrices = a[index % len(a)], b[index % len(b)], c[index]
        with limited_threads(self._threads):
            blas(*matrices)
        return verify_alone(*matrices, self._threads).ok

    def _gather(self, c: np.ndarray, room: np.ndarray | None) -> None:
        """Gather the products of all ranks in the root's `room`."""
        sent, taken = {}, {}
        if room is not None:
            taken = {rank: [room[self._shares[rank].slice]] for rank in self._others}
            if not np.may_share_memory(c, room):
                room[self._span.slice] = c
        elif self._team.rank in self._others:
            sent = {self._root: [c]}
        self._move("gather", sent, taken)

    def _move(self, phase: str, sent: Mapping[int, Sequence[np.ndarray]], taken: Mapping[int, Sequence[np.ndarray]]) -> None:
        """Exchange matrices between ranks. CheckFailed if data changes on the way."""
        sends, receives = (  # without empty matrices
            {rank: [each.reshape(1, -1) for each in some if each.size] for rank, some in parts.items()} for parts in (sent, taken)
        )
        move(self._team, phase, sends, receives, "a part of the stack" if self._settings.check != "off" else "")


def _rows(stack: np.ndarray) -> np.ndarray:
    """The matrices of a stack one below the other: a view if the memory order allows, else a copy."""
    count, rows, columns = stack.shape
    return stack.reshape(count * rows, columns)


Call = DistributedCall | GpuCall | CopiedCall | RootCall


def _inspected(
    session: Session, operands: Operands, out: Any, settings: Settings, gemm: Gemm, asked_gemm: Mapping[str, Any]
) -> tuple[RootOperands | None, RootShapes | UsageError]:
    """The root's arrays and their description, or a UsageError, which all ranks raise once they agree on the root."""
    plain_out = out.view(np.ndarray) if isinstance(out, np.ndarray) and not is_masked(out) else out
    try:
        refuse_unused_c(operands[2], asked_gemm)
        given = RootOperands.of(*operands, plain_out, gemm, threads_until_decided(session.team, settings))
        shapes = RootShapes.of(session.team, session.shared_arrays, given)
    except UsageError as wrong:
        return None, wrong
    if shapes.count is not None and shortage_of_matrix(shapes.bytes_beside, [free_memory_of(session, settings, None)]):
        free = free_memory_of(session, settings, None, now=True)  # not as of a moment ago
        if missing := shortage_of_matrix(shapes.bytes_beside, [free]):
            raise missing
    return given, shapes


def _shared_operands(session: Session, shapes: RootShapes, decision: Decision) -> tuple[MatrixSource, MatrixSource, Any]:
    """This rank's views of A, B and, if shared too, C."""
    problem, types, dtype = shapes.problem, element_types(shapes.problem), decision.plan.problem.operand_dtype
    sizes = {"A": (problem.n, problem.l), "B": (problem.l, problem.m), "C": (problem.n, problem.m)}
    a, b, c = (
        session.shared_arrays.array_at(location, sizes[key], types[key]) if location is not None else None
        for key, location in zip("ABC", shapes.locations, strict=True)
    )
    assert a is not None
    assert b is not None
    first, second = (SharedMatrix(each, dtype, as_it_lies=decision.reads_transposed) for each in (a, b))
    return first, second, c


def _from_gpu(decision: Decision, types: ProductType, given: RootOperands, threads: int) -> tuple[RootMatrix, RootMatrix, Any]:
    """A and B in place if the plan copies them from there, with an array for C or None; else both in host memory."""
    plan = decision.plan
    stay = plan.at_root and plan.device == "cuda"
    device, dtype, c = "cuda" if stay else "cpu", plan.problem.operand_dtype, given.real_out
    first, second = given.a, given.b
    if types.complex_b:
        first, second = real_operands(first, second, types, device=device, threads=threads)
    first, second = (
        each if stay and not on_gpu(each) and RootMatrix(each.shape, each).in_place(dtype, transposed=True) is not None
        else as_rows(each, dtype, device=device, threads=threads)
        for each in (first, second)
    )  # fmt: skip
    if stay and given.out is None and on_gpu(first) and on_gpu(second):
        c = empty_beside(first, (plan.problem.n, plan.problem.m), plan.problem.dtype)
    await_callers_work(first, second)
    return RootMatrix(first.shape, first), RootMatrix(second.shape, second), c
