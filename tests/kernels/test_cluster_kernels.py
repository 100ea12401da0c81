# SPDX-License-Identifier: MIT
"""kernels/products.cu on the CPU: clusters, barriers that count bytes, multicast copies and wgmma, whenever these complete."""

from __future__ import annotations

import numpy as np
import pytest
from support.selection import exhaustive

from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.kernels.remainders import products_of
from hybrid.kernels.sources import KERNELS
from hybrid.plan.arithmetic import UNIT

pytestmark = pytest.mark.needs("compiler")
EXPRESSIONS = ["products", "byte_products<double>", "byte_products<float>"]
WAYS = [("forward", "late"), ("reverse", "early"), ("shuffled", "mixed"), ("shuffled", "late")]


class Gpu:
    """A small one: a cluster goes through several pairs of tiles."""

    multiprocessors = 4

    def __init__(self, capability):
        self.capability = capability


@pytest.fixture(scope="module")
def kernels():
    return {source: EmulatedKernel.several(KERNELS / source, EXPRESSIONS) for source in ("products.cu", "products_mma.cu")}


def operands(rng, rows, inner, columns, moduli):
    """Packed bytes, behind the last line too, and room for remainders."""
    sizes = [-(-length // 256) * 256 * -(-inner // UNIT) * UNIT for length in (rows, columns)]
    packed = [rng.integers(0, 193, (moduli, size), dtype=np.uint8) for size in sizes]
    return *packed, np.full((moduli * rows, -(-columns // 16) * 16), 255, np.uint8)


def multiplied(kernels, capability, matrices, rows, inner, moduli, **how):
    a, b, c = (*matrices[:2], matrices[2].copy())
    launch = products_of(Gpu(capability), "", rows, c.shape[1], moduli)
    numbers = np.array([[rows]], np.int64), np.array([[-(-inner // UNIT) * UNIT]], np.int64)
    run = kernels[launch.source][launch.expression] if isinstance(kernels, dict) else kernels
    run(launch.grid, launch.block, launch.shared_bytes, (a, b, c, *numbers), cluster=launch.cluster, **how)
    return c


@pytest.mark.parametrize(("order", "copies"), WAYS)
@pytest.mark.parametrize(("rows", "inner", "columns", "moduli"), [(1, 1, 1, 1), (100, 700, 90, 3), (300, 300, 530, 2)])
def test_the_remainders_are_those_of_mma(kernels, rng, rows, inner, columns, moduli, order, copies):
    matrices = operands(rng, rows, inner, columns, moduli)
    expected = multiplied(kernels, 80, matrices, rows, inner, moduli)
    got = multiplied(kernels, 90, matrices, rows, inner, moduli, order=order, copies=copies, seed=5)
    np.testing.assert_array_equal(got, expected)


def test_sums_of_more_terms_than_fit_32_bits_are_reduced_between(kernels, rng):
    matrices = operands(rng, 3, 33_000, 5, 1)
    matrices[0][:], matrices[1][:] = 255, 255
    np.testing.assert_array_equal(
        multiplied(kernels, 90, matrices, 3, 33_000, 1), multiplied(kernels, 80, matrices, 3, 33_000, 1)
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("columns", [33, 256])
def test_products_of_signed_bytes_are_those_of_mma(kernels, rng, dtype, columns):
    a, b, _ = operands(rng, 140, 200, columns, 1)
    results = []
    for capability in (80, 90):
        c = np.full((140, columns + 3), np.nan, dtype)[:, :columns]
        launch = products_of(Gpu(capability), {"float64": "double", "float32": "float"}[dtype], 140, columns, 1)
        inner = np.array([[256]], np.int64)
        kernels[launch.source][launch.expression](
            launch.grid, launch.block, launch.shared_bytes, (a, b, c, inner), cluster=launch.cluster
        )
        results.append(c)
    np.testing.assert_array_equal(*results)
    assert results[0].min() < 0 < results[0].max()


FAULTS = [
    ("a stage is given back before it was read", "wgmma_wait<1>();", "wgmma_wait<2>();"),
    ("the last stage is never given back", "wgmma_wait<0>();\n    is_read(before);", "wgmma_wait<0>();"),
    ("it is given back to the own block alone", "threadIdx.x % 128 < CLUSTER", "threadIdx.x % 128 == rank_in_cluster()"),
    ("the copying thread does not wait for empty stages", "barrier_wait(stages.when_empty(), stages.phase ^ 1);", ""),
    ("the multiplying threads do not wait for full stages", "barrier_wait(stages.when_full(), stages.phase);", ""),
    ("the phase never changes", "stage = 0, phase ^= 1;", "stage = 0;"),
    ("B's halves are copied to the own block alone", "copy_unit_to(ALL_BLOCKS,", "copy_unit_to(1 << rank,"),
    ("both blocks copy the same half of B", "(pair.column / UNIT + rank)", "(pair.column / UNIT)"),
    ("both blocks have the same rows of A", "(pair.row / UNIT + rank)", "(pair.row / UNIT)"),
    (
        "fewer bytes are announced",
        "barrier_expect(stages.when_full(), STAGE);",
        "barrier_expect(stages.when_full(), STAGE - UNIT_BYTES);",
    ),
    ("sums are added to those of the tile before", "step + k > 0", "true"),
    ("the second half of each unit is left out", "k < UNIT; k += 32", "k < UNIT / 2; k += 32"),
    (
        "barriers are used before they are made",
        "    cluster_barrier();\n    if (threadIdx.x == MULTIPLIERS)",
        "    if (threadIdx.x == MULTIPLIERS)",
    ),
    (
        "a cluster takes the pairs of all",
        "number += work.stride) {\n            PairOfTiles",
        "number += work.pairs) {\n            PairOfTiles",
    ),
]


SHAPE = 300, 900, 300, 2  # rows, inner, columns, moduli


@pytest.fixture(scope="module")
def without_fault(kernels):
    """Operands, and what is right."""
    matrices = operands(np.random.default_rng(0), *SHAPE)
    return matrices, multiplied(kernels, 80, matrices, SHAPE[0], SHAPE[1], SHAPE[3])


# By default of each kind one: what is given back, waited for, copied, announced, summed, begun too soon and shared out.
CHOSEN = [FAULTS[number] for number in (1, 4, 6, 9, 10, 12, 13)]


@pytest.mark.parametrize(("name", "old", "new"), exhaustive(CHOSEN, FAULTS), ids=[fault[0] for fault in FAULTS])
def test_faults_are_found(tmp_path, without_fault, name, old, new):
    text = (KERNELS / "products.cu").read_text()
    assert old in text
    (tmp_path / "products.cu").write_text(text.replace(old, new))
    faulty = EmulatedKernel(tmp_path / "products.cu", "products")
    matrices, expected = without_fault
    for order, copies in WAYS:
        try:
            got = multiplied(faulty, 90, matrices, SHAPE[0], SHAPE[1], SHAPE[3], order=order, copies=copies, seed=5)
        except EmulationError:
            return
        if not np.array_equal(got, expected):
            return
    pytest.fail(f"not found: {name}")
