# SPDX-License-Identifier: MIT
"""What the other ranks must know of the arrays that a user passes at the root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hybrid.arrays.interop import on_gpu
from hybrid.arrays.product_type import ProductType
from hybrid.arrays.root_operands import RootOperands
from hybrid.arrays.shared_arrays import SharedArrays, SharedLocation
from hybrid.arrays.sources import DerivedMatrix
from hybrid.core.problem import Problem
from hybrid.host.page_memory import result_pool
from hybrid.ranks.team import Team


@dataclass(frozen=True)
class RootMatrices:
    """What the root tells the other ranks of its arrays a, b, c and out."""

    shape_a: tuple[int, int]
    shape_b: tuple[int, int]
    types: ProductType
    locations: list[SharedLocation | None]  # where A, B and C lie in node-shared memory; None for one that does not
    allocated_bytes: int  # what A, B and C take at the root already, or is kept for C
    bytes_beside: int = 0  # what the root takes for the result
    derived_bytes: int = 0  # what matrices take that the root computes from its arrays, where it sends them to other nodes
    on_gpu: bool = False  # A and B lie on a GPU, and C will
    primes: tuple[int, ...] = (0,)  # there is a product modulo each; see hybrid.arrays.integers
    finishes: bool = False  # the root has still to make the result of the product

    @classmethod
    def of(cls, team: Team, shared: SharedArrays, given: RootOperands) -> RootMatrices:
        a, b, types, problem = given.a, given.b, given.types, given.problem
        more: dict[str, Any] = {"bytes_beside": given.bytes_beside, "finishes": given.finishes}
        if on_gpu(a):  # B is, too
            return cls(a.shape, b.shape, types, [None] * 3, problem.bytes_of_matrices, on_gpu=True, **more)
        primes = given.exact.products if given.exact is not None else (0,)
        sources, c = given.sources(prime=primes[0]), given.real_out
        in_place = [source.in_place(problem.operand_dtype) for source in sources]
        lying = [source.as_it_lies(problem.operand_dtype) for source in sources]
        locations = [*(shared.location_of(array, transposed=True) for array in lying), shared.location_of(c)]
        allocated_bytes = sum(array.nbytes for array in in_place if array is not None)
        derived = sum(problem.bytes(*source.shape) for source in sources if isinstance(source, DerivedMatrix))
        of_c, all_shared = problem.bytes(problem.n, problem.m), lie_shared(team, locations)
        if (locations[2] is not None) if all_shared else (c is not None):
            allocated_bytes += of_c
        elif not all_shared:
            allocated_bytes += min(of_c, result_pool.make_room(of_c))
        return cls(a.shape, b.shape, types, locations, allocated_bytes, derived_bytes=derived, primes=primes, **more)

    @property
    def gpu_bytes(self) -> int:
        """The bytes of the expanded B, on the GPU where B lies."""
        return self.problem.bytes(self.problem.l, self.problem.m) if self.on_gpu and self.types.complex_a else 0

    @cached_property
    def problem(self) -> Problem:
        """The real product that gives C."""
        return self.types.problem(self.shape_a[0], *self.shape_b).with_operands(self.types.short_operands)


def lie_shared(team: Team, locations: Sequence[SharedLocation | None]) -> bool:
    """Whether A and B are in memory that all ranks share, which are on one node: then no rank sends matrices to another."""
    return len(team.topology.nodes) == 1 and team.size > 1 and None not in locations[:2]
