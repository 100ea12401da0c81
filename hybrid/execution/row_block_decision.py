# SPDX-License-Identifier: MIT
"""How a product of RowBlocks is computed: the same on all ranks, from what each tells of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybrid.arrays.exact_result import element_of_rows
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.product_type import ProductType
from hybrid.arrays.row_block import BlockShapes, problem_of_blocks
from hybrid.core.settings import Settings
from hybrid.errors import DoesNotFit
from hybrid.execution.calls import exactly
from hybrid.execution.part_of_product import WantedPart, bytes_of_result, exact_product
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.plan.request import OperandLocation, RowBlocks
from hybrid.selection.agreement import agree
from hybrid.selection.decision import Decision, ProductRequest
from hybrid.selection.machine import Inventory
from hybrid.selection.session import Session
from hybrid.verification.rounding import most_exact


def decide_on_row_blocks(
    session: Session, shapes: Sequence[BlockShapes], inventories: Sequence[Inventory], settings: Settings, gemm: Gemm
) -> tuple[WantedPart, Settings, Decision]:
    """What becomes of the product, with which settings, and the decision. Every rank calls it, with the shapes of all ranks.

    Integers that lie on GPUs stay there if there is room for all that is made of them. Else they go through the host's memory.
    """
    on_gpus = settings.device in ("auto", "cuda") and any(any(each.on_gpu) for each in shapes)
    if shapes[0].types.exact and on_gpus:
        try:
            found = _decided(session, shapes, inventories, settings, gemm, stays=True)
        except DoesNotFit:
            found = None
        if found is not None and found[2].plan.device == "cuda":
            return found
    return _decided(session, shapes, inventories, settings, gemm, stays=False)


def _decided(
    session: Session,
    shapes: Sequence[BlockShapes],
    inventories: Sequence[Inventory],
    settings: Settings,
    gemm: Gemm,
    *,
    stays: bool,
) -> tuple[WantedPart, Settings, Decision]:
    """What `decide_on_row_blocks` returns. `stays`: as of `WantedPart`."""
    types, exact = shapes[0].types, None
    gemm = gemm.of_type(types)
    if types.exact and all(each.types == types for each in shapes):  # `_request` refuses others
        most = _most(settings) if stays else None
        exact = exact_product(shapes[0].a[1], [each.largest for each in shapes], gemm, most)
        types = replace(types, computed=exact.computed)
    if not stays:
        settings = exactly(settings, types)
    elif settings.precision != "native":  # sums stay below `most`, and then products from remainders are exact as well
        settings = replace(settings, precision="auto")
    made_there = exact if stays else None
    on_gpus = tuple(each.bytes_on_gpu(made_there, combines=gemm.combines) for each in shapes)
    on_hosts = tuple(
        each.copied_bytes + bytes_of_result(each.a[0] * each.b[1], types, exact) * (not (made_there and each.on_gpu[0]))
        for each in shapes
    )
    decision = agree(session, _request(shapes, types, on_hosts, on_gpus), settings, inventories)
    named = element_of_rows(decision.plan.shares[session.team.rank].rows.lo)
    return WantedPart(types, gemm, exact, named, stays), settings, decision


def _most(settings: Settings) -> int:
    """The largest sums of products of integers on a GPU. With larger ones the host would have to check a product that the GPU
    has, for which it would copy all of it: several products of smaller numbers take less time."""
    return most_exact(GROUP_COLUMNS) if settings.check == "on" else (1 << 53) - 1


def _request(
    shapes: Sequence[BlockShapes], types: ProductType, on_hosts: tuple[int, ...], on_gpus: tuple[int, ...]
) -> ProductRequest:
    """What is to be decided on, from the shapes of all ranks' blocks, beside which they take so many bytes on hosts and GPUs.
    UsageError if the blocks do not fit together."""
    problem, rows_a, rows_b = problem_of_blocks(shapes)
    return ProductRequest(
        replace(problem, dtype=types.computed).with_operands(types.short_operands),
        OperandLocation.ROW_BLOCKS,
        row_blocks=RowBlocks(tuple(rows_a), tuple(rows_b)),
        besides=on_hosts,
        besides_on_gpu=on_gpus if any(on_gpus) else (),
    )
