# SPDX-License-Identifier: MIT
"""Products of two stacks of the root: each rank gets whole matrices, multiplies them, checks the products, and sends them
back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.gemm import real_operands, real_view
from hybrid.arrays.interop import as_rows
from hybrid.arrays.root_operands import RootOperands, RootShapes
from hybrid.core.problem import block
from hybrid.core.settings import Settings
from hybrid.core.timeline import Timeline
from hybrid.execution.real_products import RealProducts
from hybrid.execution.redistribution import move
from hybrid.execution.session import Session
from hybrid.host.blas import blas, blas_stack, some_matrices
from hybrid.host.threads import limited_threads
from hybrid.planning.decision import Inventory, Machine, place_stack
from hybrid.ranks.heartbeat import busy
from hybrid.verification.check import Check, Fault, settle
from hybrid.verification.freivalds import verify_stack


class StackCall:
    """A call whose products are divided among the ranks, where they can be. Every rank makes one."""

    def __init__(
        self, session: Session, shapes: RootShapes, root: int, settings: Settings, inventories: Sequence[Inventory]
    ) -> None:
        team = session.team
        self._session, self._team, self._shapes, self._root = session, team, shapes, root
        self._settings = settings
        self._shares = [block(shapes.count or 0, team.size, rank) for rank in range(team.size)]
        self._span = self._shares[team.rank]
        self._others = [rank for rank, span in enumerate(self._shares) if rank != root and len(span)]
        bytes_of_ranks = [shapes.bytes_on_rank(span, is_root=rank == root) for rank, span in enumerate(self._shares)]
        machine = Machine(team.topology, tuple(inventories))
        self._placements = place_stack(machine, settings, shapes.count or 0, shapes.problem, bytes_of_ranks)
        self.is_divided = self._placements is not None  # each rank computes some of the products; else all compute each

    def product(self, given: RootOperands | None) -> Any:
        """At the root the products, as a stack; None elsewhere. `given`: at the root; None elsewhere."""
        assert self._placements is not None
        self._placement = self._placements[self._team.rank]
        self._threads = self._placement.threads.count
        self._team.timeline = Timeline()
        room = given.room() if given is not None else None
        self._gather(self._products(*self._scattered(given), room=room), room)
        return room

    def _scattered(self, given: RootOperands | None) -> list[np.ndarray]:
        """The matrices of A, B and, if there is one, C for this rank's products, as the root has sent them."""
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
        """This rank's products, checked and finished, as a stack. `added`: C, if there is one. `room`: at the root, the array
        for all products."""
        types, real, threads = self._shapes.types, self._shapes.problem, self._threads
        count, n, m = len(self._span), a.shape[1], b.shape[2]
        of_c = _rows(added[0]) if added else None
        products = RealProducts(self._team, types, threads, (count * n, m), c=of_c, named=self._element)
        own = None if room is None else room[self._span.slice]
        into = None if own is None or types.finishes else real_view(own) if types.complex_b else own
        for prime in types.primes:
            with self._team.phase("scatter"), busy():
                first, second = self._real_stacks(a, b, prime)
            products.add(self._multiplied(first, second, into).reshape(count * real.n, real.m))
        finished: np.ndarray = products.finish(_rows(own) if own is not None and types.finishes else None)
        return finished.reshape(count, n, m)

    def _real_stacks(self, a: np.ndarray, b: np.ndarray, prime: int) -> list[np.ndarray]:
        """The stacks of a real product. What need not be converted stays as it is, also where it is transposed."""
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

    def _element(self, row: int, column: int) -> str:
        """The name of an element of this rank's products."""
        number, row = divmod(row, self._shapes.problem.n)
        return f"element [{row}, {column}] of product {self._span.lo + number} of the stack"

    def _multiplied(self, a: np.ndarray, b: np.ndarray, into: np.ndarray | None) -> np.ndarray:
        """The products of real stacks, checked, in `into` where that is given."""
        gpu, real = self._placement.gpu, self._shapes.problem
        with self._team.phase("multiply"), busy():
            c = np.empty((len(self._span), real.n, real.m), real.dtype) if into is None else into
            if not c.size:
                pass
            elif gpu is not None and real.l:
                from hybrid.devices.cuda_device import multiply_on_gpu

                multiply_on_gpu(gpu, a, b, c, self._settings.gpu_memory)
            else:
                blas_stack(a, b, c, self._threads)
        if self._settings.check != "off":
            self._check(a, b, c)
        return c

    def _check(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """CheckFailed where a product is wrong and is not repaired."""
        team = self._team
        wrong: list[Fault] = []
        mended: list[str] = []
        with team.phase("check") as checking, busy():
            kind, error, found = verify_stack(a, b, c, self._threads)
            for index, of_product in sorted(found.items()):
                name = f"product {self._span.lo + index} of the stack, by {self._placement.name}"
                if self._settings.on_fault == "repair" and self._computed_again(a, b, c, index):
                    mended.append(f"{name}: multiplied wrong; it was computed again on the CPU of rank {team.rank}")
                else:
                    wrong += [replace(fault.of(name), rank=team.rank) for fault in of_product]
            checking.mine = kind, error, tuple(wrong), tuple(mended)
        kinds, errors, faults, repaired = zip(*checking.all, strict=True)
        all_faults, all_repaired = (tuple(each for of_rank in some for each in of_rank) for some in (faults, repaired))
        check = Check(max(kinds), max(errors), 0.0, not all_faults, all_faults, repaired=all_repaired)
        settle(check, warns=team.rank == self._root)

    def _computed_again(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, index: int) -> bool:
        """Compute this product again on the CPU. Whether it is right then."""
        one = slice(index, index + 1)
        first, second = (each if len(each) == 1 else each[one] for each in (a, b))
        with limited_threads(self._threads):
            blas(first[0], second[0], c[index])
        return not verify_stack(first, second, c[one], self._threads)[-1]

    def _gather(self, c: np.ndarray, room: np.ndarray | None) -> None:
        """Bring the products of all ranks to the root, into its `room`."""
        sent, taken = {}, {}
        if room is not None:
            taken = {rank: [room[self._shares[rank].slice]] for rank in self._others}
            if not np.may_share_memory(c, room):
                room[self._span.slice] = c
        elif self._team.rank in self._others:
            sent = {self._root: [c]}
        self._move("gather", sent, taken)

    def _move(self, phase: str, sent: Mapping[int, Sequence[np.ndarray]], taken: Mapping[int, Sequence[np.ndarray]]) -> None:
        """Send matrices to other ranks, and take theirs. CheckFailed where others arrive than were sent."""
        sends, receives = (  # none of which is empty, as MPI sends them
            {rank: [each.reshape(1, -1) for each in some if each.size] for rank, some in parts.items()} for parts in (sent, taken)
        )
        move(self._team, phase, sends, receives, "a part of the stack" if self._settings.check != "off" else "")


def _rows(stack: np.ndarray) -> np.ndarray:
    """The matrices of a stack one below the other; a copy where they do not lie so."""
    count, rows, columns = stack.shape
    return stack.reshape(count * rows, columns)
