# SPDX-License-Identifier: MIT
"""A product of any type of which each rank keeps a part: the real products from which it is computed, and this rank's part of
C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hybrid.arrays.combine import finished
from hybrid.arrays.complex_matrices import real_operands
from hybrid.arrays.complex_view import complex_view
from hybrid.arrays.exact_result import ExactResult
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.integers import Exact, write_remainders
from hybrid.arrays.interop import await_callers_work, empty_beside, on_gpu, on_host, to_device_of, where_it_lies
from hybrid.arrays.product_type import ProductType, numpy_type
from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.ranks.heartbeat import busy
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session


@record
class WantedPart:
    """The type of C, and what is done with the product. `named`: names an element of this rank's part for messages, as for
    `ExactResult`. `stays`: integers that lie on a GPU stay there."""

    types: ProductType
    gemm: Gemm
    exact: Exact | None
    named: Callable[[int, int], str]
    stays: bool = False


def exact_product(terms: int, largest: Sequence[tuple[int, ...]], gemm: Gemm, most: int | None = None) -> Exact:
    """How a product of integers is computed exactly. `largest`: for each rank the largest magnitudes of its A, B and C; `most`:
    as of `Exact.of`."""
    a, b, c = map(max, zip(*largest, strict=True))
    return Exact.of(terms, (a, b), alpha=gemm.alpha, beta=gemm.beta, largest_c=c, most=most)


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
    if wanted.exact is not None:
        return _exact_part(session, decision, operands, wanted, wanted.exact, multiply)
    team, types, gemm = session.team, wanted.types, wanted.gemm
    threads, (a, b, c) = decision.placements[team.rank].threads.count, operands
    real = a, b
    if types.complex_b:
        with team.phase("scatter", timed=False), busy():
            real = real_operands(a, b, types, gemm, device=decision.plan.device, threads=threads)
    product = multiply(*real)
    if not (types.complex_b or types.converts or gemm.combines):
        return product
    with team.phase("gather", timed=False), busy():
        product = complex_view(product) if types.complex_b else product
        return to_device_of(a, finished(product, types, gemm, c, None, threads))


def _exact_part(
    session: Session,
    decision: Decision,
    operands: Sequence[Any],
    wanted: WantedPart,
    exact: Exact,
    multiply: Callable[[Any, Any], Any],
) -> Any:
    """`part_of_product` of integers. Where what lies on a GPU stays there, the real products' operands are made beside A and B,
    and C is put together beside A."""
    team, types, gemm = session.team, wanted.types, wanted.gemm
    threads = decision.placements[team.rank].threads.count
    with team.phase("scatter", timed=False), busy():
        a, b = (where_it_lies(each) if wanted.stays else on_host(each) for each in operands[:2])
        beside, c = (a if on_gpu(a) else None), operands[2]
        if c is not None:
            c = to_device_of(a, c) if beside is not None else on_host(c)
        numbers = {"alpha": gemm.alpha, "beta": gemm.beta, "c": c}
        result = ExactResult(exact, types.result, (len(a), b.shape[1]), named=wanted.named, beside=beside, **numbers)
    for number, prime in enumerate(exact.products):
        with team.phase("scatter", timed=False), busy():
            real = [_of_prime(each, prime, types.computed, threads) for each in (a, b)]
        product = multiply(*real)
        del real  # before the next ones are made
        with team.phase("gather", timed=False), busy():
            result.add(number, product, threads)
        del product
    with team.phase("gather", timed=False), busy():
        c = to_device_of(operands[0], result.result(None, threads))
        await_callers_work(c)  # so that it is complete, as other products are
        return c


def _of_prime(matrix: Any, prime: int, dtype: str, threads: int) -> Any:
    """The matrix as an operand of the product modulo this prime, in memory beside it; with 0 it has the same elements."""
    made = empty_beside(matrix, matrix.shape, dtype)
    write_remainders(matrix, prime, Span(0, len(matrix)), made, threads)
    return made
