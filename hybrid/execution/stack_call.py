# SPDX-License-Identifier: MIT
"""Products of two stacks of the root: each rank gets whole matrices, multiplies them, checks the products, and sends them
back."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hybrid.arrays.gemm import Gemm, complex_view, finished
from hybrid.arrays.integers import ExactResult
from hybrid.arrays.root_operands import RootStack, StackShape, StackShare
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, block
from hybrid.core.timeline import Timeline
from hybrid.devices.cpu import multiply_on_cpu
from hybrid.errors import CheckFailed
from hybrid.execution.calls import settle
from hybrid.execution.redistribution import connect, exchanged
from hybrid.host.blas import blas
from hybrid.host.threads import limited_threads
from hybrid.ranks.heartbeat import busy
from hybrid.selection.decision import RankPlacement, place_stack
from hybrid.selection.machine import Inventory, Machine
from hybrid.selection.session import Session
from hybrid.verification.check import Check, Fault
from hybrid.verification.freivalds import verify_stack

_TRIES = 3  # the times that a wrong product is computed again


def multiply_stack_by_ranks(
    session: Session,
    shape: StackShape,
    stack: RootStack | None,
    root: int,
    settings: Settings,
    gemm: Gemm,
    inventories: Sequence[Inventory],
) -> tuple[bool, Any]:
    """Whether the ranks have computed the products, each some of them; and at the root the result. `stack`: at the root; None
    elsewhere."""
    team = session.team
    workers = [rank for rank in range(team.size) if rank not in session.left_out] or list(range(team.size))
    shares = [Span(0, 0)] * team.size
    for number, rank in enumerate(workers):
        shares[rank] = block(shape.count, len(workers), number)
    bytes_of_ranks = [shape.bytes_on_rank(span, is_root=rank == root) for rank, span in enumerate(shares)]
    bytes_of_ranks[root] += shape.at_root
    placements = place_stack(Machine(team.topology, tuple(inventories)), settings, shape, len(workers), bytes_of_ranks)
    if placements is None:
        return False, None
    call = _StackCall(session, shape, shares, root, settings, gemm.of_type(shape.types), placements)
    return True, call.result(stack)


class _StackCall:
    """The data that the steps of one call have in common."""

    def __init__(
        self,
        session: Session,
        shape: StackShape,
        shares: Sequence[Span],
        root: int,
        settings: Settings,
        gemm: Gemm,
        placements: Sequence[RankPlacement],
    ) -> None:
        self._session, self._team, self._shape, self._shares = session, session.team, shape, shares
        self._root, self._settings, self._gemm = root, settings, gemm
        self._span = shares[session.team.rank]
        self._placement = placements[session.team.rank]
        self._threads = self._placement.threads.count
        self._checks = settings.check != "off"

    def result(self, stack: RootStack | None) -> Any:
        """The result at the root, None elsewhere."""
        self._team.timeline = Timeline()
        connect(self._team)
        room = stack.room() if stack is not None else None
        share = self._scattered(stack)
        c = self._products(share, room)
        return self._gathered(c, stack, room)

    def _scattered(self, stack: RootStack | None) -> StackShare:
        """The matrices of this rank's products, as the root has sent them."""
        team, shape, span = self._team, self._shape, self._span
        types = [(each.shape_of(span), each.dtype) for each in (shape.a, shape.b)]
        if shape.dtype_c is not None:
            types.append(((len(span), shape.core[0], shape.core[2]), shape.dtype_c))
        sent: dict[int, list[np.ndarray]] = {}
        with team.phase("scatter") as making, busy():
            if stack is not None:
                stored = [each for each, _ in stack.stored]
                mine = self._parts(stored, span)
                others = [rank for rank in range(team.size) if rank != self._root and len(self._shares[rank])]
                sent = {rank: [np.ascontiguousarray(each) for each in self._parts(stored, self._shares[rank])] for rank in others}
                making.mine = {rank: _checksums(parts) for rank, parts in sent.items()} if self._checks else {}
            else:
                mine = [np.empty(*each) for each in types]
            taken = {} if stack is not None or not len(span) else {self._root: mine}
            series = exchanged(team, _as_rows(sent), _as_rows(taken))
        with team.phase("scatter") as comparing, busy():
            if series is not None:
                series.wait_until_complete()
            arrived = making.all[self._root]
            comparing.mine = team.rank in arrived and _checksums(mine) != arrived[team.rank]
        self._refuse_wrong_copies(comparing.all, f"did not reach it as they are at rank {self._root}")
        return StackShare(shape, span, mine[0], mine[1], mine[2] if len(mine) > 2 else None)

    def _parts(self, stored: Sequence[np.ndarray], span: Span) -> list[np.ndarray]:
        """The matrices of A, B and, if there is one, C for these products."""
        shape = self._shape
        operands = [shape.a.part(stored[0], span), shape.b.part(stored[1], span)]
        return operands if len(stored) < 3 else [*operands, stored[2][span.slice]]

    def _products(self, share: StackShare, room: np.ndarray | None) -> np.ndarray:
        """This rank's products, checked and finished, as a stack. `room`: at the root, the array for all products."""
        shape, threads, (n, _, m) = self._shape, self._threads, self._shape.core
        count, types, gemm = len(self._span), shape.types, self._gemm
        exact = None
        if shape.exact is not None:
            numbers: dict[str, Any] = {"alpha": gemm.alpha, "beta": gemm.beta, "c": share.rows_of_c}
            exact = ExactResult(shape.exact, types.result, (count * n, m), named=partial(self._element, n), **numbers)
        finishes = types.converts or gemm.combines
        mine = room[self._span.slice] if room is not None and not finishes and not types.complex_b else None
        for number, prime in enumerate(shape.products):
            product = self._product(share, prime, mine)
            if exact is not None:
                with busy():
                    exact.add(number, product.reshape(count * n, m), threads)
        with self._team.phase("gather", timed=False), busy():
            if exact is not None:
                return exact.result(None, threads).reshape(count, n, m)
            rows = product.reshape(count * n, shape.problem.m)
            rows = complex_view(rows) if types.complex_b else rows
            return (finished(rows, types, gemm, share.rows_of_c, None, threads) if finishes else rows).reshape(count, n, m)

    def _element(self, height: int, row: int, column: int) -> str:
        """The name of an element of this rank's products, which have `height` rows each."""
        return f"element [{row % height}, {column}] of product {self._span.lo + row // height} of the stack"

    def _product(self, share: StackShare, prime: int, into: np.ndarray | None) -> np.ndarray:
        """The products of the real stacks, checked. `into`: an array for them, where there is one."""
        team, problem, gpu = self._team, self._shape.problem, self._placement.gpu
        with team.phase("scatter"), busy():
            a, b = share.real_operands(self._gemm, prime, self._threads)
        with team.phase("multiply"), busy():
            c = np.empty((len(self._span), problem.n, problem.m), problem.dtype) if into is None else into
            if not c.size:
                pass
            elif gpu is not None and problem.l:
                from hybrid.devices.cuda_device import multiply_on_gpu

                multiply_on_gpu(gpu, a, b, c, self._settings.gpu_memory)
            else:
                multiply_on_cpu(a, b, c, self._threads)
        if self._checks:
            self._check(a, b, c)
        return c

    def _check(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """CheckFailed where a product is wrong and is not repaired."""
        team = self._team
        wrong: list[Fault] = []
        mended: list[str] = []
        with team.phase("check") as checking, busy():
            found = verify_stack(a, b, c, self._threads)
            for index, of_product in sorted(found.wrong.items()):
                name = f"product {self._span.lo + index} of the stack, by {self._placement.name}"
                if self._settings.on_fault == "repair" and self._computed_again(a, b, c, index):
                    mended.append(f"{name}: multiplied wrong; it was computed again on the CPU of rank {team.rank}")
                else:
                    wrong += [replace(fault.of(name), rank=team.rank) for fault in of_product]
            checking.mine = found.kind, found.error, tuple(wrong), tuple(mended)
        kinds, errors, faults, repaired = zip(*checking.all, strict=True)
        self._session.note_wrong(rank for rank, of_rank in enumerate(repaired) if of_rank)
        all_faults, all_repaired = (tuple(each for of_rank in some for each in of_rank) for some in (faults, repaired))
        check = Check(max(kinds), max(errors), 0.0, not all_faults, all_faults, repaired=all_repaired)
        settle(check, warns=team.rank == self._root)

    def _computed_again(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, index: int) -> bool:
        """Compute this product again on the CPU. Whether it is right then."""
        one = slice(index, index + 1)
        first, second = (each if len(each) == 1 else each[one] for each in (a, b))
        for _ in range(_TRIES):
            with limited_threads(self._threads):
                blas(first[0], second[0], c[index])
            if not verify_stack(first, second, c[one], self._threads).wrong:
                return True
        return False

    def _gathered(self, c: np.ndarray, stack: RootStack | None, room: np.ndarray | None) -> Any:
        """The result at the root, from the products of all ranks; None elsewhere."""
        team = self._team
        with team.phase("gather") as telling, busy():
            telling.mine = _checksums([c]) if self._checks and stack is None else None
            sent = {self._root: [c]} if stack is None and len(self._span) else {}
            taken: dict[int, list[np.ndarray]] = {}
            if room is not None:
                others = [rank for rank in range(team.size) if rank != self._root and len(self._shares[rank])]
                taken = {rank: [room[self._shares[rank].slice]] for rank in others}
                if not np.may_share_memory(c, room):
                    room[self._span.slice] = c
            series = exchanged(team, _as_rows(sent), _as_rows(taken))
        with team.phase("gather") as comparing, busy():
            if series is not None:
                series.wait_until_complete()
            comparing.mine = {rank for rank, parts in taken.items() if telling.all[rank] not in (None, _checksums(parts))}
        self._refuse_wrong_copies(
            [rank in comparing.all[self._root] for rank in range(team.size)], "did not reach the root as it has them"
        )
        with team.phase("gather", timed=False), busy():
            return stack.finished(room) if stack is not None and room is not None else None

    def _refuse_wrong_copies(self, is_wrong: Sequence[bool], how: str) -> None:
        """CheckFailed where the matrices of a rank were copied wrong."""
        for rank, wrong in enumerate(is_wrong):
            if wrong:
                raise CheckFailed(
                    f"matrices {self._shares[rank]} of the stack, of rank {rank}, {how}: check the network and MPI",
                    code="check-exchange",
                )


def _checksums(parts: Sequence[np.ndarray]) -> list[int]:
    """A checksum of each array."""
    return [zlib.crc32(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data) for each in parts]


def _as_rows(parts: dict[int, list[np.ndarray]]) -> dict[int, list[np.ndarray]]:
    """The arrays as MPI sends them: as matrices, none of which is empty."""
    return {rank: [each.reshape(1, -1) for each in some if each.size] for rank, some in parts.items()}
