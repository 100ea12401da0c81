# SPDX-License-Identifier: MIT
"""Products of RowBlocks and Block2Ds: every rank keeps its part of A, B and C.

The ranks exchange descriptions of their parts (`Shares`), derive the same real product from them, decide how to compute it, and
compute it. For Aᵀ·B with matching rows of A and B on each rank and a small C, every rank multiplies its own rows, and the ranks
sum these products (`SumOfProducts`), each some rows of C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Block2D, RowBlock, TransposedBlock2D, TransposedRowBlock, refuse_no_grid
from hybrid.arrays.gemm import Gemm, ProductType, numpy_type, product_type, real_operands
from hybrid.arrays.integers import (
    DIGIT,
    Exact,
    largest_of,
    largest_of_type,
    least_remainders,
    odd_words,
    refusal,
    temporary_bytes,
    times_words,
    wrapped,
)
from hybrid.arrays.interop import (
    as_rows,
    await_callers_work,
    empty_beside,
    is_array,
    on_device_of,
    on_gpu,
    on_host,
    refuse_masked,
    to_device_of,
    where_it_lies,
)
from hybrid.arrays.root_operands import refuse_unused_c, refuse_wrong_c
from hybrid.core.problem import ITEM_SIZES, Span, block, consecutive, record
from hybrid.core.settings import Settings
from hybrid.core.text import tell_nobody
from hybrid.core.timeline import Timeline
from hybrid.errors import CheckFailed, DoesNotFit, Overflow, UsageError
from hybrid.execution.between_nodes import OnGrid, gather_b
from hybrid.execution.product import element_types, room_in_workspace
from hybrid.execution.rank_run import RankCheck, RankRun
from hybrid.execution.real_products import CallOptions, Operands, RealProducts, element_namer, exactly
from hybrid.execution.redistribution import move, scattered
from hybrid.execution.session import Session, agree, take_inventory, threads_until_decided
from hybrid.host.memory import RowView, is_transpose
from hybrid.host.threads import limited_threads
from hybrid.kernels.catalogue import elements_of
from hybrid.planning.decision import Decision, Inventory, may_use_gpus, same_on_all_ranks
from hybrid.planning.grid import Part, Placement
from hybrid.planning.plan import shortage_of_matrix
from hybrid.planning.schedule import GROUP_COLUMNS
from hybrid.planning.tiling import OperandLocation, PlanRequest
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.transport.base import RankMatrices
from hybrid.verification.check import MOST_NAMED, Check, Suspect, most_exact, settle
from hybrid.verification.copies import checksum, verify_exchange
from hybrid.verification.freivalds import is_small_b, new_seed

Shape = tuple[int, int]
Complete = Callable[[Any], None]

_SHORT_SUM = 1 << 20  # sums of this many products of 16-bit integers are exact in float64


@record
class Shares:
    """Description of one rank's RowBlocks, or Block2Ds, of A, B and C for the other ranks."""

    a: Shape  # of this rank's part of A
    b: Shape
    types: ProductType
    copied_bytes: int  # host memory for converted parts, and for D2H copies for the host's check
    gpu_bytes: int  # GPU memory, if the GPU multiplies: for B expanded by a complex A, and for a C copied there
    largest: tuple[int, ...]  # of integers, the largest magnitudes in A, B and C
    on_gpu: tuple[bool, bool]  # whether A and B are on a GPU
    whole: tuple[Shape, ...]  # of Block2Ds, the shapes of the whole A and B
    places: tuple[Part, ...]  # of Block2Ds, the rows and columns of these parts of A, B and, once known, C
    seed: int  # rank 0's seeds the host's check of the first real product
    is_gram: bool  # B is the transpose of A, in the same memory, and neither is complex

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, gemm: Gemm, settings: Settings, threads: int) -> Shares:
        """Describe this rank's operands. UsageError if they cannot be multiplied.

        `threads`: for the search for the largest integers. For 8- and 16-bit integers on a GPU the limit of their dtype replaces
        the search: searching takes longer, and usual sums are exact in float64 anyway.
        """
        check = settings.check == "host"
        in_2d = [each for each in (a, b) if isinstance(each, Block2D)]
        if len(in_2d) == 1:
            name = "b" if in_2d[0] is a else "a"
            raise UsageError(f"{name} is no Block2D, but the other operand is one: pass two on every rank", code="mixed-kinds")
        types = product_type(a.array.dtype, b.array.dtype, gemm.dtype).of(gemm)
        (n, l), (depth, m) = a.array.shape, b.array.shape
        here = None if c is None else c.array  # the shape of C as Block2D was compared before
        refuse_wrong_c(here, here.shape if in_2d and here is not None else (n, m), types)
        real, added = types.problem(n, l, m), None if gemm.beta == 0 else c  # this rank's part of the product; C that is read
        there, real_b = (on_gpu(a.array), on_gpu(b.array)), depth * (1 + types.complex_a) * real.m
        made_of_b = types.complex_a or (types.complex_b and gemm.conjugate_b)
        copied = (
            real.n * real.l * _is_copied(a.array, types.operand("A"), check=check),
            real_b * (made_of_b or _is_copied(b.array, types.operand("B"), check=check)),
            real.n * real.m * (there[0] and check),
        )
        gpu_bytes = real_b * real.item_size * (types.complex_a and there[1])
        gpu_bytes += added.array.nbytes if added is not None and there[0] and not on_gpu(added.array) else 0
        largest: tuple[int, ...] = ()
        if types.exact is not None:
            looks = l > _SHORT_SUM or types.gemm.combines or not (settings.check == "off" or checked_as_integers(settings, types))
            largest = tuple(
                0 if each is None
                else largest_of(where_it_lies(each.array), threads)
                if looks or each.array.dtype.itemsize > 2 or not on_gpu(each.array)
                else largest_of_type(each.array.dtype)
                for each in (a, b, added)
            )  # fmt: skip
        whole = tuple(each.shape for each in in_2d)
        places = tuple(each.part for each in (a, b, c) if in_2d and each is not None)
        copied_bytes = sum(copied) * real.item_size
        is_gram = not (in_2d or types.complex_b) and is_transpose(a.array, b.array)
        return cls((n, l), (depth, m), types, copied_bytes, gpu_bytes, largest, there, whole, places, new_seed(), is_gram)

    @property
    def c(self) -> Shape:
        """The shape of this rank's part of C."""
        return self.places[2].shape if self.places else (self.a[0], self.b[1])

    @property
    def depth(self) -> int:
        """The number of columns of the whole A."""
        return self.whole[0][1] if self.whole else self.a[1]

    def bytes_on_gpu(self, exact: Exact | None) -> int:
        """Peak memory on this rank's GPU beside the real product's C, if the GPU multiplies.

        `exact`: how to compute a product of integers that stay on the GPU; None for other products.
        """
        there = [shape for shape, is_there in zip((self.a, self.b), self.on_gpu, strict=True) if is_there]
        if exact is None or not there:
            return self.gpu_bytes
        operands = sum(rows * columns for rows, columns in there) * ITEM_SIZES[exact.computed]
        c = (self.a[0], self.b[1]) if self.on_gpu[0] else (0, 0)  # C is assembled where A is
        result = c[0] * c[1] * np.dtype(self.types.result).itemsize  # allocated after the converted A and B are freed
        digits = c[0] * c[1] * len(exact.primes) * DIGIT.itemsize
        temporary = temporary_bytes([*there, c], remainders=bool(exact.primes))
        return self.gpu_bytes + max(operands, result) + digits + temporary


def _is_copied(array: Any, dtype: str, *, check: bool) -> bool:
    """Whether the array needs a copy in host memory: from a GPU for the check, on the host for its dtype or layout."""
    return check if on_gpu(array) else array.dtype != dtype or not array.flags.c_contiguous


def request_of(
    shares: Sequence[Shares], computed: str, besides: tuple[int, ...] = (), besides_on_gpu: tuple[int, ...] = ()
) -> PlanRequest:
    """The plan request for the real product, in dtype `computed`, of all ranks' parts. UsageError if they do not fit together.

    `besides`, `besides_on_gpu`: bytes that each rank needs beside its parts.
    """
    first = shares[0]
    what = "are of matrices of {} and {}" if first.whole else "have {} and {} columns"
    for rank, share in enumerate(shares):
        found, expected = ((*(each.whole or (each.a[1], each.b[1])), each.types) for each in (share, first))
        if found != expected:
            different = f"rank {rank}'s blocks {what.format(*found)} of {share.types}, rank 0's {what.format(*expected)}"
            raise UsageError(f"{different} of {first.types}", code="ranks-differ")
    l, depth = first.depth, first.whole[1][0] if first.whole else sum(share.b[0] for share in shares)
    if depth != l:
        raise UsageError(f"A has {l} columns and B {depth} rows: they must be the same", code="shapes")
    types = first.types
    if first.whole:
        problem = replace(types.problem(first.whole[0][0], l, first.whole[1][1]), short_operands="")
        placed, operands = _placement(shares), OperandLocation.BLOCKS_2D
    else:
        rows_a = tuple(consecutive(share.a[0] for share in shares))
        rows_b = tuple(consecutive(share.b[0] * (1 + types.complex_a) for share in shares))
        problem = types.problem(rows_a[-1].hi, l, first.b[1])
        placed, operands = Placement.of_rows(problem, rows_a, rows_b, rows_a), OperandLocation.ROW_BLOCKS
        if len(shares) == 1 and first.is_gram:
            problem = replace(problem, symmetric="AB")
    return PlanRequest(
        replace(problem, dtype=computed),
        operands=operands,
        placed=placed,
        besides=besides,
        besides_on_gpu=() if first.whole else besides_on_gpu,
        on_gpus=not first.whole and all(all(share.on_gpu) for share in shares),
    )


def _placement(shares: Sequence[Shares]) -> Placement:
    """The placement of the real product of Block2Ds. UsageError if they do not form a grid.

    Rows and columns are renumbered so that each rank's are contiguous: block-cyclic parts need not be redistributed.
    """
    types, ((n, l), (_, m)) = shares[0].types, shares[0].whole
    of_a, of_b, of_c = zip(*(share.places for share in shares), strict=True)
    for name, parts, shape in (("A", of_a, (n, l)), ("B", of_b, (l, m)), ("C", of_c, (n, m))):
        refuse_no_grid(name, parts, shape)
    rows = _renumbered([part.rows for part in of_a], n, 1)
    inner = _renumbered([part.columns for part in of_a], l, 1 + types.complex_a)
    columns = _renumbered([part.columns for part in of_b], m, 1 + types.complex_b)
    return Placement(
        tuple(Part(rows(part.rows), inner(part.columns)) for part in of_a),
        tuple(Part(inner(part.rows), columns(part.columns)) for part in of_b),
        tuple(Part(rows(part.rows), columns(part.columns)) for part in of_c),
    )


def _parts_of_c(shares: Sequence[Shares], turned: Sequence[bool]) -> list[Part]:
    """Each rank's part of the product of Block2Ds: as in C if given, else the rank's rows of A and columns of B.

    `turned`: whether A and B are transposes. If one is, the product is distributed over the grid of the untransposed matrices, or
    in equal blocks of rows if they do not share a grid.
    """
    (n, _), (_, m) = shares[0].whole
    if len(shares[0].places) == len("ABC"):
        return [share.places[2] for share in shares]
    if not any(turned):
        return [Part(a.rows, b.columns) for a, b in (share.places for share in shares)]
    lie = [[part.T if turn else part for part, turn in zip(share.places, turned, strict=True)] for share in shares]
    down, across = [tuple(part.rows for part in parts) for parts in lie], [tuple(part.columns for part in parts) for parts in lie]
    there = [rank for rank, parts in enumerate(lie) if any(part.elements for part in parts)]
    rows, columns = ([*dict.fromkeys(have[rank] for rank in there)] for have in (down, across))
    if not there or len(rows) * len(columns) != len({(down[rank], across[rank]) for rank in there}):
        return [Part((block(n, len(shares), rank),), (Span(0, m),)) for rank in range(len(shares))]
    of_c = _spans_of_c(n, rows), _spans_of_c(m, columns)
    return [
        Part(of_c[0].get(rows_there, ()), of_c[1].get(columns_there, ()))
        for rows_there, columns_there in zip(down, across, strict=True)
    ]


Spans = tuple[Span, ...]


def _spans_of_c(length: int, groups: Sequence[tuple[Spans, ...]]) -> dict[tuple[Spans, ...], Spans]:
    """The rows, or columns, of C for each group of ranks. `groups`: each group's spans of A and B. C is split like the first of
    these operands with the same length, else equally."""
    alike = next((spans for spans in zip(*groups, strict=True) if sum(map(len, chain(*spans))) == length), None)
    return dict(zip(groups, alike or [(block(length, len(groups), number),) for number in range(len(groups))], strict=True))


def _renumbered(groups: Sequence[tuple[Span, ...]], length: int, each: int) -> Callable[[tuple[Span, ...]], tuple[Span, ...]]:
    """A function that renumbers spans so that each group is contiguous. Each of `length` rows becomes `each` real ones."""
    numbers, next_one = np.arange(length), 0
    for span in (span for group in dict.fromkeys(groups) for span in group):
        numbers[span.slice] = np.arange(next_one, next_one + len(span))
        next_one += len(span)

    def renumbered(spans: tuple[Span, ...]) -> tuple[Span, ...]:
        found = np.concatenate([numbers[:0], *(numbers[span.slice] for span in spans)])
        ends = [0, *(np.flatnonzero(np.diff(found) != 1) + 1), len(found)]
        runs = [found[lo:hi] for lo, hi in pairwise(ends) if hi > lo]
        return tuple(Span(int(run[0]) * each, int(run[-1] + 1) * each) for run in runs)

    return renumbered


class DistributedCall:
    """A product of RowBlocks or of Block2Ds. `operands`: this rank's parts of A, B, and C or None.

    Integers on GPUs stay there if their temporaries fit; otherwise they go through host memory. On GPUs, one check of the integer
    C replaces the checks of the real products, unless C may be repaired.
    """

    decision: Decision | None = None  # None for a sum of products
    settings: Settings
    integers_stay = False  # on their GPUs
    sum_of: SumOfProducts | None = None  # if set, each rank multiplies its own rows, `operands`, and the products are summed

    def __init__(self, session: Session, operands: Operands, out: Any, asked: CallOptions) -> None:
        self._session = session
        self.operands: tuple[Any, ...] = operands
        self._in_2d = not any(isinstance(each, RowBlock) for each in operands)
        # B is the same array on every rank; each takes its share of the rows.
        self._b_replicated = type(operands[0]) is RowBlock and is_array(operands[1])
        self._of_rows: DistributedCall | None = None  # Block2Ds in one process are multiplied as RowBlocks
        transposed = self._agree(asked, out)
        if any(transposed) and self.sum_of is None:
            self.operands = tuple(
                _row_blocks_of(session, each) if turned else each for each, turned in zip(self.operands, transposed, strict=True)
            )
            self._agree(asked.without_transposes(), None)

    def _agree(self, asked: CallOptions, out: Any) -> tuple[bool, ...]:
        """Agree on the product. Returns whether A, B and C are transposes; if one is, only `sum_of` has been decided."""
        session, team = self._session, self._session.team
        kind, kept = ("Block2Ds", "part") if self._in_2d else ("RowBlocks", "rows")
        with team.phase("agree", timed=False) as agreeing:
            settings, gemm = asked.read()
            if out is not None or asked.root != 0:
                raise UsageError(f"a product of {kind} has neither out nor root: every rank keeps its {kept}", code="out")
            transposed: tuple[bool, ...] = ()
            turned: tuple[bool, ...] = (False, False)  # of Block2Ds
            if self._b_replicated and not (gemm.transpose_a or gemm.transpose_b):
                kind = f"a RowBlock and {self._split_b(settings, gemm)}"
            refuse_unused_c(self.operands[2], asked.gemm)
            if self._in_2d:
                settings = replace(settings, device="cpu") if settings.device == "auto" else settings
                self.operands = _oriented_blocks(self.operands, gemm)
                turned = tuple(isinstance(each, TransposedBlock2D) for each in self.operands[:2])
                kind += " that lies as c" * (self.operands[2] is not None)
            else:
                transposed = _transposed_flags(self.operands, gemm)
            said = {"kind": f"a product of {kind}", **gemm.as_dict(), "transposed": transposed or turned, **settings.as_dict()}
            self.operands = tuple(each.T if isinstance(each, TransposedRowBlock) else each for each in self.operands)
            a, b, c = self.operands
            threads = threads_until_decided(team, settings)
            if any(transposed):
                in_host_memory = not (on_gpu(a.array) or on_gpu(b.array))
                is_sum = in_host_memory and transposed == (True, False, False) and not (gemm.beta or gemm.modulus)
                own_shares = Shares.of(RowBlock(a.array.T), b, None, gemm, settings, threads) if is_sum else None
            else:
                if gemm.modulus and product_type(a.dtype, b.dtype, gemm.dtype).of(gemm).exact is not None:
                    self.operands = a, b, c = tuple(
                        None if each is None else each._like(least_remainders(each.array, gemm.modulus, threads), None)
                        for each in (a, b, c)
                    )
                own_shares = Shares.of(a, b, c, gemm, settings, threads)
            agreeing.mine = said, take_inventory(session, settings), own_shares
        same_on_all_ranks([said for said, *_ in agreeing.all])
        team.pretend_nodes(settings.ranks_per_node)
        _, inventories, shares = zip(*agreeing.all, strict=True)
        if any(transposed):
            self.sum_of, self.settings = SumOfProducts.if_cheaper(team, settings, shares, inventories), settings
            return transposed
        self._shares: Sequence[Shares] = shares
        self._inventories = inventories
        if self._in_2d:
            of_c = _parts_of_c(shares, turned)
            self._shares = [replace(share, places=(*share.places[:2], part)) for share, part in zip(shares, of_c, strict=True)]
        if self._in_2d and team.size == 1:
            request_of(self._shares, shares[0].types.computed)  # raises if shapes do not fit
            rows = RowBlock(a.in_order()), RowBlock(b.in_order()), None if c is None else RowBlock(c.in_order())
            self._of_rows = DistributedCall(session, rows, None, asked.without_transposes())
            self.decision, self.settings = self._of_rows.decision, self._of_rows.settings
        else:
            self._decide_location(settings)
        return transposed

    def _split_b(self, settings: Settings, gemm: Gemm) -> str:
        """Make B a RowBlock of this rank's share of its rows. Returns a description of B that must be equal on all ranks."""
        team, (a, b, c) = self._session.team, self.operands
        if b.ndim != 2:
            raise UsageError(f"b has {b.ndim} dimensions: beside a RowBlock pass a matrix, x[:, None]", code="dimensions")
        refuse_masked(b, "b")
        product_type(a.array.dtype, b.dtype, gemm.dtype)  # raises if elements are not numbers
        lo, hi = (len(b) * rank // team.size for rank in (team.rank, team.rank + 1))
        self.operands = a, RowBlock(to_device_of(a.array, b[lo:hi]) if on_gpu(a.array) else on_host(b[lo:hi])), c
        sum_of_all = checksum(on_host(b), threads_until_decided(team, settings))
        return f"a matrix of {'×'.join(map(str, b.shape))} {b.dtype} with the checksum {sum_of_all:016x}"

    def _decide_location(self, settings: Settings) -> None:
        """Decide how to compute the product, and whether integers stay on their GPUs."""
        types = self._shares[0].types
        on_gpus = settings.device in ("auto", "cuda") and any(any(each.on_gpu) for each in self._shares)
        self.integers_stay = types.exact is not None and on_gpus
        self._checked_once = self.integers_stay and checked_as_integers(settings, types)
        with suppress(DoesNotFit):
            if self.integers_stay:
                self._decide(settings)
                if self._real_decision.plan.device == "cuda":
                    return
        self.integers_stay = self._checked_once = False
        self._decide(settings)

    def _decide(self, settings: Settings) -> None:
        shares, stays, types = self._shares, self.integers_stay, self._shares[0].types
        if types.exact is not None and all(each.types == types for each in shares):  # else `request_of` raises
            largest = [each.largest for each in shares]
            types = types.bounded(shares[0].depth, largest, self._largest_sum(settings) if stays else None)
        if not stays:
            settings = exactly(settings, types)
        elif settings.precision != "native":  # sums stay below `_largest_sum`, so that emulated products are exact too
            settings = replace(settings, precision="auto")
        on_gpus = tuple(each.bytes_on_gpu(types.exact if stays else None) for each in shares)
        besides = tuple(
            each.copied_bytes + types.bytes_beside(each.c[0] * each.c[1]) * (not (stays and each.on_gpu[0])) for each in shares
        )
        request = request_of(shares, types.computed, besides, on_gpus if any(on_gpus) else ())
        if self._checked_once:
            self._real_decision = agree(self._session, request, replace(settings, check="off"), self._inventories)
            self.decision = replace(self._real_decision, plan=replace(self._real_decision.plan, check="device"))
        else:
            self.decision = self._real_decision = agree(self._session, request, settings, self._inventories)
        self.types, self.settings = types, settings

    def _largest_sum(self, settings: Settings) -> int:
        """The limit for sums of products of integers on a GPU. If each real product is checked, sums above `most_exact` would
        need a check on the host with a copy of everything; several products of smaller numbers take less time."""
        checked = settings.check in ("on", "full") and not self._checked_once
        return most_exact(GROUP_COLUMNS) if checked else (1 << 53) - 1

    def _verify(self, a: Any, b: Any, c: Any, result: Any, threads: int) -> None:
        """Check the product of integers as a whole, modulo 2⁶⁴. CheckFailed on all ranks if it is wrong."""
        team, gemm = self._session.team, self.types.gemm
        x = odd_words(np.random.default_rng(self._shares[0].seed), b.shape[1])
        with team.phase("check") as through_b, busy():
            through_b.mine = on_host(times_words(b, x, threads))
        with team.phase("check") as comparing, busy():
            expected = times_words(a, np.concatenate(through_b.all), threads) * wrapped(gemm.alpha)
            if c is not None and gemm.beta:
                expected += times_words(c, x, threads) * wrapped(gemm.beta)
            wrong = np.flatnonzero(on_host(times_words(result, x, threads) != expected))
            comparing.mine = (self._real_decision.plan.shares[team.rank].rows.lo + wrong[:MOST_NAMED]).tolist()
        by = self._real_decision.device_of
        faults = [f"{by(rank)} multiplied wrong: rows {rows}" for rank, rows in enumerate(comparing.all) if rows]
        if faults:
            raise CheckFailed(f"the product is wrong: {'; '.join(faults)}")

    def product(self, complete: Complete = tell_nobody) -> Any:
        """This rank's part of the product. `complete`: called with the result, before integers are checked as a whole."""
        assert self.decision is not None
        if not self._in_2d:
            plan = self.decision.plan
            first_row = plan.shares[self._session.team.rank].rows.lo
            return RowBlock(self._part(element_namer(first_row), complete), place=(first_row, plan.problem.n))
        c, share = self.operands[2], self._shares[self._session.team.rank]
        if c is None:
            part, shape = share.places[2], (share.whole[0][0], share.whole[1][1])
            place = (tuple((span.lo, span.hi) for span in spans) for spans in (part.rows, part.columns))
            c = Block2D(np.broadcast_to(np.zeros(()), share.c), shape, *place)
        rows, columns = c.indices
        if self._of_rows is not None:
            return c._like(self._of_rows.product().array[np.ix_(rows, columns)], None)
        return c._like(self._part(lambda row, column: f"element [{rows[row]}, {columns[column]}] of the product", complete), None)

    def _part(self, name_of: Callable[[int, int], str], complete: Complete) -> Any:
        """The array of this rank's part. `name_of`: as in `RealProducts`."""
        if self._checked_once:
            try:
                return self._computed(name_of, complete)
            except Overflow:  # a corrupted product, not checked yet, may have caused it: repeat with checks
                self._checked_once = False
                self._decide(self.settings)
        return self._computed(name_of, complete)

    def _computed(self, name_of: Callable[[int, int], str], complete: Complete) -> Any:
        (a, b), c = (each.array for each in self.operands[:2]), self.operands[2]
        c = None if c is None else c.array
        team, types, plan, of_a = self._session.team, self.types, self._real_decision.plan, a
        beside, threads = None, self._real_decision.placements[team.rank].threads.count
        if types.exact is not None:
            with team.phase("scatter"), busy():
                a, b = (where_it_lies(each) if self.integers_stay else on_host(each) for each in (a, b))
                beside = a if on_gpu(a) else None
                if c is not None:
                    c = to_device_of(a, c) if beside is not None else on_host(c)
        products = RealProducts(team, types, threads, self._shares[team.rank].c, c=c, name_of=name_of, beside=beside)
        on_gpus = any(any(each.on_gpu) for each in self._shares)
        for number, prime in enumerate(types.primes):
            if types.gemm.alpha == 0:  # as in BLAS, ignore A and B
                height, width = self._shares[team.rank].c
                with on_device_of(a):
                    products.add(np.zeros_like(empty_beside(a, (height, width * (1 + types.complex_b)), types.computed)))
                continue
            real = a, b
            if prime or types.complex_b:
                with team.phase("scatter", timed=False), busy():
                    real = real_operands(a, b, types, prime, device=plan.device, threads=threads)
            team.timeline = Timeline()
            with limited_threads(threads):
                how = self._session, self._real_decision, self.settings, self._shares[0].seed + number
                product, check = RealProduct(*how).result(*real)
                if on_gpus and (plan.device != "cuda" or plan.grid_layout is not None):
                    with team.phase("scatter"):
                        product = to_device_of(real[0], product)
            settle(check, warns=team.rank == 0)
            del real  # to free its memory before the next conversion
            products.add(product)
            del product
        result = products.finish()
        if types.finishes:
            result = to_device_of(of_a, result)
            await_callers_work(result)  # complete the result, like other products
        complete(result)
        if self._checked_once:
            self._verify(a, b, c, result, threads)
        return result


def _oriented_blocks(operands: tuple[Any, ...], gemm: Gemm) -> tuple[Any, ...]:
    """op(A), op(B) and C, of Block2Ds. UsageError if C does not fit."""
    a, b, c = operands
    if not (isinstance(a, Block2D) and isinstance(b, Block2D)):
        return operands  # `Shares.of` raises
    a, b = a.T if gemm.transpose_a else a, b.T if gemm.transpose_b else b
    shape = a.shape[0], b.shape[1]
    if c is not None and not (isinstance(c, Block2D) and c.shape == shape):
        raise UsageError(f"c is no Block2D of shape {shape}, as the product, which lies as c does", code="addend")
    return a, b, c


def _transposed_flags(operands: tuple[Any, ...], gemm: Gemm) -> tuple[bool, ...]:
    """Whether A, B and C enter transposed: by a `.T` view or a flag; both cancel. UsageError for other types than RowBlock."""
    for name, each in zip("abc", operands, strict=True):
        if not isinstance(each, RowBlock) and not (name == "c" and each is None):
            others = "a and b are RowBlocks" if name == "c" else "the other operand is one"
            raise UsageError(f"{name} is no RowBlock, but {others}: pass RowBlocks for both, on every rank", code="mixed-kinds")
    a, b, c = (isinstance(each, TransposedRowBlock) for each in operands)
    return a != gemm.transpose_a, b != gemm.transpose_b, c and gemm.beta != 0


def _row_blocks_of(session: Session, of: RowBlock) -> RowBlock:
    """The transpose as a RowBlock in equal shares, on each rank's GPU or in host memory as before."""
    if session.team.size == 1:
        return RowBlock(of.T.array)
    rows = scattered(session, of.T, None, 0).array
    with session.team.phase("scatter", timed=False):
        return RowBlock(to_device_of(of.array, rows))


def checked_as_integers(settings: Settings, types: ProductType) -> bool:
    """Whether to check a product of integers on GPUs once, as integers, instead of each real product."""
    as_integers = types.result != "bool" and not types.gemm.modulus
    return settings.check in ("on", "full") and settings.on_fault == "raise" and as_integers


class RealProduct(RankRun):
    """A real product; each rank keeps its part of C."""

    _grid: OnGrid | None = None
    _all_of_b: RowView  # or only this rank's rows, if they suffice

    def result(self, a: Any, b: Any) -> tuple[Any, Check | None]:
        """This rank's part of C, from its parts of A and B, and the check."""
        team, plan, share, layout = self.team, self.plan, self.share, self.plan.grid_layout
        device = plan.device if layout is None else "cpu"  # parts of a grid travel by MPI, through host memory
        height, width = layout.placement.c[team.rank].shape if layout else (len(share.rows), plan.problem.m)
        all_of_b, size = None, (plan.problem.l, plan.problem.m)
        if layout is None and not plan.own_rows_suffice:
            room = room_in_workspace(self.session, plan, {"B": size})
            self.in_workspace, types = room is not None, element_types(plan.problem)
            all_of_b = (room or make_shared_matrices(team, {"B": Span(0, size[0])}, {"B": size[1]}, types))["B"]
        with team.phase("scatter"), busy():
            a, b = (elements_of(as_rows(one, plan.problem.operand_dtype, device=device, threads=self.threads)) for one in (a, b))
            c = empty_beside(a, (height, width), plan.problem.dtype)
            await_callers_work(a, b, c)
            if all_of_b is not None:
                all_of_b[share.b_rows][...] = on_host(b)
        self.views = {"A": RowView(a, share.rows), "B": RowView(b, share.b_rows), "C": RowView(c, share.rows)}
        if layout is not None:
            self._grid = OnGrid(team, plan, {"A": a, "B": b, "C": c})
            self.set_up(self._grid.matrices, self._grid.panels())
        else:
            if all_of_b is not None:
                gather_b(team, plan, all_of_b, self.settings)
            self._all_of_b = all_of_b or self.views["B"]
            self.set_up(RankMatrices(a, self._all_of_b, c))
        return c, self.computed()

    def multiply(self) -> None:
        if self.in_workspace:  # the next product writes B after a phase, which ends once all ranks have read this one
            self.begin()
            self.multiply_and_compare()
            return
        with self.team.phase("scatter", timed=False):
            self.begin()
        self.multiply_rows()
        if self._grid is not None:
            self.gather()

    def b_to_compare_with(self) -> RowView | None:
        own = np.ascontiguousarray(self.views["B"].array)
        there, bits = self._all_of_b[self.share.b_rows], f"u{own.itemsize}"
        return self._all_of_b if is_small_b(self.plan) and np.array_equal(there.view(bits), own.view(bits)) else None

    def check_on_devices(self, check: RankCheck) -> Check:
        result = check.result()
        if not self.plan.own_rows_suffice:
            own, there = on_host(self.views["B"].array), self._all_of_b[self.share.b_rows]  # in its node's memory
            verify_exchange(self.team, "B", {self.team.rank: [own]}, {self.team.rank: [there]}, self.threads)
        return result

    def check_on_host(self, suspects: Sequence[Suspect] = ()) -> Check:
        if self._grid is not None and self.plan.operands is OperandLocation.BLOCKS_2D:
            return self._grid.verify(self.decision, self.threads)
        return super().check_on_host(suspects)

    def on_host(self) -> list[RowView]:
        with self.team.phase("check", timed=False), busy():
            return [RowView(on_host(self.views[key].array), self.views[key].rows) for key in "ABC"]


@record
class SumOfProducts:
    """Aᵀ·B as the sum of each rank's product of its own rows."""

    team: Team
    settings: Settings
    types: ProductType
    shape: tuple[int, int]
    largest: int  # of integers, the largest magnitude that a sum may have

    @property
    def dtype(self) -> str:
        """Of the products and their sum."""
        return "int64" if self.types.exact is not None else self.types.operand("B")

    @classmethod
    def if_cheaper(
        cls, team: Team, settings: Settings, shares: Sequence[Shares | None], inventories: Sequence[Inventory]
    ) -> SumOfProducts | None:
        """The sum of products on CPUs, or None to transpose A between ranks, the same on all: if A and B have different rows on
        some rank, with GPUs, for a large C, or if sums of integers may overflow 64 bits. DoesNotFit if memory is short."""
        first, own = shares[0], [each for each in shares if each is not None]
        if team.size == 1 or first is None or first.types.result == "uint64":
            return None
        on_gpus = may_use_gpus(settings) and any(each.gpus for each in inventories)
        if on_gpus or settings.transport not in ("auto", "host"):
            return None
        n, m = first.a[0], first.b[1]
        alike = all(each.a[1] == each.b[0] and (each.a[0], each.b[1], each.types) == (n, m, first.types) for each in own)
        if len(own) < team.size or not alike:
            return None
        terms, largest = sum(each.b[0] for each in own), 0
        if first.types.exact is not None:
            alpha = int(abs(first.types.gemm.alpha))
            largest = sum(alpha * each.b[0] * each.largest[0] * each.largest[1] for each in own)
        if 2 * team.size * n * m > terms * (n + m) or largest > np.iinfo(np.int64).max:
            return None
        made = cls(team, settings, first.types, (n, m), largest)
        needed = 2 * n * m * np.dtype(made.dtype).itemsize
        for node in team.topology.nodes:
            free = [inventories[rank].free for rank in node]
            if missing := shortage_of_matrix(len(node) * needed, free):
                raise missing
        return made

    @property
    def options(self) -> Mapping[str, Any]:
        """Options for the product of this rank's rows, replacing those of the call."""
        return {"dtype": self.dtype, "transpose_a": False, "transpose_b": False, "stall": None}

    def own_rows(self, product: np.ndarray) -> RowBlock:
        """This rank's rows of C, from each rank's `product` of its own rows. Collective. Overflow if the dtype cannot hold it."""
        team, types, (n, m) = self.team, self.types, self.shape
        shares = [block(n, team.size, rank) for rank in range(team.size)]
        own = shares[team.rank]
        room = np.empty((team.size, len(own), m), self.dtype)
        sent = {rank: [product[rows.slice]] for rank, rows in enumerate(shares)}
        received = {rank: [room[rank]] for rank in range(team.size)}
        move(team, "gather", sent, received, "C" if self.settings.check != "off" else "")
        with team.phase("gather", timed=False), np.errstate(all="ignore"):
            total, dtype = room.sum(axis=0), numpy_type(types.result)
            if types.exact is not None and types.result != "bool":
                limits = np.iinfo(dtype)
                outside = np.argwhere((total < limits.min) | (total > limits.max))
                if len(outside):
                    row, column = outside[0].tolist()
                    place = element_namer(own.lo)(row, column)
                    raise refusal(Exact(self.largest, "float64"), dtype, int(total[row, column]), place)
            return RowBlock(total.astype(dtype, copy=False), place=(own.lo, n))
