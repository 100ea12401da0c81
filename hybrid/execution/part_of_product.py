# SPDX-License-Identifier: MIT
"""A product of any type of which each rank keeps a part: the real products from which it is computed, and this rank's part of
C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid.arrays.combine import finished
from hybrid.arrays.complex_matrices import complex_view, real_operands
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.integers import Exact, ExactResult, write_remainders
from hybrid.arrays.interop import on_host, to_device_of
from hybrid.arrays.product_type import ProductType, numpy_type
from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.ranks.heartbeat import busy
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session


@record
class WantedPart:
    """The type of C, and what is done with the product. `named`: names an element of this rank's part for messages, as for
    `ExactResult`."""

    types: ProductType
    gemm: Gemm
    exact: Exact | None
    named: Callable[[int, int], str]


def exact_product(terms: int, largest: Sequence[tuple[int, ...]], gemm: Gemm) -> Exact:
    """How a product of integers is computed exactly. `largest`: for each rank the largest magnitudes of its A, B and C."""
    a, b, c = map(max, zip(*largest, strict=True))
    return Exact.of(terms, (a, b), alpha=gemm.alpha, beta=gemm.beta, largest_c=c)


def bytes_of_result(elements: int, types: ProductType, exact: Exact | None) -> int:
    """The bytes that so many elements of C take, beside those of the real product's C."""
    if exact is not None:
        return exact.bytes_beside(elements, types.result)
    return elements * numpy_type(types.result).itemsize if types.converts else 0


def part_of_product(
    session: Session, decision: Decision, operands: Sequence[Any], wanted: WantedPart, multiply: Callable[[Any, Any], Any]
) -> Any:
    """This rank's part of C, where its part of A lies.

    `operands`: its parts of A, B and C; C may be None. `multiply`: gives this rank's part of the real product of two matrices,
    and raises where that product is wrong.
    """
    team, types, gemm = session.team, wanted.types, wanted.gemm
    threads, (a, b, c) = decision.placements[team.rank].threads.count, operands
    result = None
    if wanted.exact is not None:
        numbers = {"alpha": gemm.alpha, "beta": gemm.beta, "c": None if c is None else on_host(c)}
        result = ExactResult(wanted.exact, types.result, (len(a), b.shape[1]), named=wanted.named, **numbers)
    for number, prime in enumerate(wanted.exact.products if wanted.exact is not None else (0,)):
        product = multiply(*_real_operands(session, decision, a, b, wanted, prime))
        if result is not None:
            with busy():
                result.add(number, product, threads)
    if not (types.complex_b or types.converts or gemm.combines):
        return product
    with team.phase("gather", timed=False), busy():
        if result is not None:
            return to_device_of(a, result.result(None, threads))
        product = complex_view(product) if types.complex_b else product
        return to_device_of(a, finished(product, types, gemm, c, None, threads))


def _real_operands(session: Session, decision: Decision, a: Any, b: Any, wanted: WantedPart, prime: int) -> tuple[Any, Any]:
    """This rank's parts of A and B of the real product; modulo the prime, where it is not 0."""
    types, gemm = wanted.types, wanted.gemm
    if not types.complex_b and not types.exact:
        return a, b
    with session.team.phase("scatter", timed=False), busy():
        threads = decision.placements[session.team.rank].threads.count
        if not types.exact:
            return real_operands(a, b, types, gemm, device=decision.plan.device, threads=threads)
        real = []
        for each in (a, b):
            array = on_host(each)
            real.append(np.empty(array.shape, types.computed))
            write_remainders(array, prime, Span(0, len(array)), real[-1], threads)
        return real[0], real[1]
