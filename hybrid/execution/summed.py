# SPDX-License-Identifier: MIT
"""Aᵀ·B of RowBlocks with the same rows on each rank, where C is small: every rank multiplies its own rows, and C is the sum of
these products, of which each rank adds up some rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybrid.arrays.gemm import Gemm, ProductType, numpy_type, product_type
from hybrid.arrays.integers import Exact, largest_of, refusal
from hybrid.arrays.interop import on_gpu
from hybrid.core.problem import record
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, block
from hybrid.errors import UsageError
from hybrid.execution.real_products import element_of_rows
from hybrid.execution.redistribution import connect, exchanged
from hybrid.planning.plan import shortage_of_matrix
from hybrid.ranks.team import Team
from hybrid.selection.decision import Inventory, may_use_gpus
from hybrid.verification.copies import verify_exchange


@record
class OwnRows:
    """What the other ranks must know of a rank's rows of A and B."""

    a: tuple[int, int]
    b: tuple[int, int]
    types: ProductType
    largest: int  # the most that these rows add to an element of C, of integers
    on_host: bool

    @classmethod
    def of(cls, a: Any, b: Any, gemm: Gemm, threads: Callable[[], int]) -> OwnRows | None:
        """Those of a product Aᵀ·B; None for types that have none, as the other way of computing it will say."""
        try:
            types = product_type(a.dtype, b.dtype, gemm.dtype).of(gemm)
        except UsageError:
            return None
        on_host, largest = not (on_gpu(a) or on_gpu(b)), 0
        if on_host and types.exact is not None:
            largest = int(abs(gemm.alpha)) * len(a) * largest_of(a, threads()) * largest_of(b, threads())
        return cls(a.shape, b.shape, types, largest, on_host)


class SumOfProducts:
    """The product of all ranks' RowBlocks of A, transposed, and B."""

    def __init__(self, team: Team, settings: Settings, types: ProductType, shape: tuple[int, int], largest: int) -> None:
        self._team, self._settings, self._types, self._shape, self._largest = team, settings, types, shape, largest
        self.dtype = "int64" if types.exact is not None else types.operand("B")  # of the products and their sum

    @classmethod
    def where_it_pays(
        cls, team: Team, settings: Settings, rows: Sequence[OwnRows | None], inventories: Sequence[Inventory]
    ) -> SumOfProducts | None:
        """The sum of products of these rows on CPUs, the same on all ranks; None where A is moved instead: to the ranks of other
        rows of B, to GPUs, or since C is large, or sums of integers may not fit into 64 bits. DoesNotFit where the ranks'
        products have no room."""
        first = rows[0]
        if team.size == 1 or first is None or first.types.result == "uint64":
            return None
        on_gpus = may_use_gpus(settings) and any(each.gpus for each in inventories)
        if on_gpus or settings.transport not in ("auto", "host"):
            return None
        (_, n), (_, m) = first.a, first.b
        alike = (first.a[1], first.b[1], first.types, True)
        if any(
            each is None or each.a[0] != each.b[0] or (each.a[1], each.b[1], each.types, each.on_host) != alike for each in rows
        ):
            return None
        terms, largest = (
            sum(each) for each in zip(*((each.a[0], each.largest) for each in rows if each is not None), strict=True)
        )
        if 2 * team.size * n * m > terms * (n + m) or largest > np.iinfo(np.int64).max:
            return None
        made = cls(team, settings, first.types, (n, m), largest)
        needed = 2 * n * m * np.dtype(made.dtype).itemsize
        for node in team.topology.nodes:
            free = [inventories[rank].free for rank in node]
            if missing := shortage_of_matrix(len(node) * needed, free, shared=False):
                raise missing
        return made

    @property
    def options(self) -> Mapping[str, Any]:
        """Of the product of this rank's rows, beside those of the call."""
        return {"dtype": self.dtype, "transpose_a": False, "transpose_b": False, "stall": None}

    def own_rows(self, product: np.ndarray) -> tuple[np.ndarray, int]:
        """This rank's rows of C, and the number of the first. `product`: of its rows of A and B. Every rank calls it."""
        team, (n, m) = self._team, self._shape
        shares = [block(n, team.size, rank) for rank in range(team.size)]
        own = shares[team.rank]
        connect(team)
        with team.phase("gather", timed=False):
            room = np.empty((team.size, len(own), m), self.dtype)
            sent = {rank: [product[rows.slice]] for rank, rows in enumerate(shares)}
            received = {rank: [room[rank]] for rank in range(team.size)}
            series = exchanged(team, sent, received)
        with team.phase("gather", timed=False):
            if series is not None:
                series.wait_until_complete()
        if self._settings.check != "off":
            del sent[team.rank], received[team.rank]
            verify_exchange(team, "C", sent, received, threads=1)
        with team.phase("gather", timed=False):
            return self._finished(room, own), own.lo

    def _finished(self, products: np.ndarray, own: Span) -> np.ndarray:
        """The sum of the products, in the type of the result. Overflow where that does not hold an element."""
        total, types = products[0].copy(), self._types
        with np.errstate(all="ignore"):
            for product in products[1:]:
                total += product
        dtype = numpy_type(types.result)
        if types.exact is not None and types.result != "bool":
            limits = np.iinfo(dtype)
            outside = (total < limits.min) | (total > limits.max)
            if outside.any():
                row, column = (int(each) for each in np.argwhere(outside)[0])
                place = element_of_rows(own.lo)(row, column)
                raise refusal(Exact(self._largest, "float64"), dtype, int(total[row, column]), place)
        return total.astype(dtype, copy=False)
