# SPDX-License-Identifier: MIT
"""What the CPU computes with threads of this package: products by BLAS of every shape and layout, checksums of rows, and parts
in order."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.core.spans import Span, Topology, block, even_pieces, pieces
from hybrid.host.blas_products import add_by_blas, blas, blas_of_long_sums
from hybrid.host.row_sums import WEIGHTED_ROWS, checksum_weights, row_checksums
from hybrid.host.thread_map import on_threads
from hybrid.host.threads import limited_threads

SIZES = st.sampled_from([0, 1, 2, 7, 64, 150])


@examples(80)
@given(
    n=SIZES,
    l=SIZES | st.just(3000),
    m=SIZES,
    threads=st.integers(1, 5),
    turned=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 99),
)
def test_every_shape_and_layout_is_numpys_product_and_nothing_beside_it_is_written(n, l, m, threads, turned, seed):
    rng = np.random.default_rng(seed)
    shapes = ((n, l), (l, m))
    a, b = (
        rng.standard_normal(shape[::-1]).T if back else rng.standard_normal(shape)
        for shape, back in zip(shapes, turned, strict=True)
    )
    wide = np.full((n, m + 3), np.nan)
    c, right = wide[:, :m], a @ b
    with limited_threads(threads):
        for multiply in (blas, blas_of_long_sums):
            c[:] = np.nan
            multiply(a, b, c)
            np.testing.assert_allclose(c, right, rtol=0, atol=1e-14 * (l + 1) * 4)
        add_by_blas(a, b, c)
    np.testing.assert_allclose(c, 2 * right, rtol=0, atol=1e-14 * (l + 1) * 8)
    assert np.isnan(wide[:, m:]).all()


def checksums(matrix, first_column=0):
    into = np.zeros(len(matrix), np.uint64)
    row_checksums(matrix, checksum_weights(first_column + matrix.shape[1], matrix.itemsize)[first_column:], into)
    return into


def by_definition(matrix, first_column):
    """With Python's integers."""
    weights = checksum_weights(first_column + matrix.shape[1], matrix.itemsize)[first_column:].tolist()
    found = []
    for number, row in enumerate(np.ascontiguousarray(matrix).view(f"u{matrix.itemsize}").tolist()):
        plain = [1 if weight & 1 else 1 << 32 for weight in weights]
        found.append(sum(w * x for w, x in zip(plain if number % WEIGHTED_ROWS else weights, row, strict=True)) % 2**64)
    return np.array(found, np.uint64)


@examples(60)
@given(
    rows=st.integers(0, 20),
    columns=st.integers(0, 40),
    first=st.integers(0, 5),
    shift=st.integers(0, 3),
    gap=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32),
)
def test_checksums_of_rows_are_as_defined_wherever_the_matrix_lies_and_any_flipped_bit_changes_its_own(
    rows, columns, first, shift, gap, dtype, seed
):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, shift + columns + gap)).astype(dtype)[:, shift : shift + columns]
    before = checksums(matrix, first)
    np.testing.assert_array_equal(before, by_definition(matrix, first))
    if matrix.size:
        row, column, bit = (int(rng.integers(0, end)) for end in (rows, columns, 8 * matrix.itemsize))
        other = np.ascontiguousarray(matrix)
        other.view(f"u{matrix.itemsize}")[row, column] ^= np.uint64(1 << bit).astype(f"u{matrix.itemsize}")
        assert np.flatnonzero(checksums(other, first) != before).tolist() == [row]


@pytest.mark.parametrize("threads", [0, 1, 2, 5, 40])
def test_results_of_parts_come_in_order_by_as_many_threads_as_asked_for(threads):
    assert list(on_threads(threads, lambda part: part**2, range(100))) == [part**2 for part in range(100)]
    meeting = threading.Barrier(max(1, min(threads, 4)))  # breaks, where fewer come
    assert list(on_threads(threads, lambda part: meeting.wait(60) >= 0, range(max(1, min(threads, 4)))))
    with pytest.raises(ValueError, match="7"):
        list(on_threads(threads, lambda part: int(f"{part}x") if part == 7 else part, range(100)))
    assert list(on_threads(threads, lambda part: sum(on_threads(4, abs, range(part))), range(5))) == [0, 0, 1, 3, 6]  # nested


def covers(parts, span):
    ends = [span.lo, *(part.hi for part in parts)]
    return [part.lo for part in parts] == ends[:-1] and ends[-1] == span.hi


@examples(100)
@given(total=st.integers(0, 10_000), parts=st.integers(1, 70), size=st.integers(1, 999))
def test_divisions_of_rows_cover_them_in_order_and_evenly(total, parts, size):
    span = Span(0, total)
    blocks = [block(total, parts, part) for part in range(parts)]
    sizes = [len(each) for each in blocks]
    assert covers(blocks, span)
    assert (max(sizes) - min(sizes) <= 1, sizes) == (True, sorted(sizes, reverse=True))
    assert not total or covers(list(pieces(span, size)), span)
    even = [len(each) for each in even_pieces(span, size)]
    assert (sum(even), len(even)) == (total, -(-total // size))
    assert not even or max(even) - min(even) <= 1


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), st.integers(0, 300))
def test_a_nodes_rows_are_those_of_its_ranks_and_follow_each_other(names, total):
    topology = Topology.from_node_names(names)
    assert sorted(rank for ranks in topology.nodes for rank in ranks) == list(range(len(names)))
    assert covers([topology.rows_of_node(node, total) for node in range(len(topology.nodes))], Span(0, total))
    for node, ranks in enumerate(topology.nodes):
        assert {names[rank] for rank in ranks} == {names[ranks[0]]}
        assert covers([topology.rows_of_rank(rank, total) for rank in ranks], topology.rows_of_node(node, total))
