# SPDX-License-Identifier: MIT
"""What a graph's file promises is bounded before memory is taken for it: a refusal costs less than a few megabytes."""

from __future__ import annotations

import tracemalloc

import pytest

from hybrid.errors import DoesNotFit, HybridError, UsageError
from hybrid.graphs.graph import read_graph

MTX = "%%MatrixMarket matrix {} integer general\n"
MEMORY = 8 << 20  # bytes that may be used
CASES = [
    ("far.mtx", MTX.format("coordinate") + "1000000000000 1000000000000 1\n1 1000000000000 1\n", DoesNotFit, "EiB"),
    ("many.mtx", MTX.format("coordinate") + "3 3 1000000000\n1 1 1\n", UsageError, "promises 1000000000 entries, of 3×3"),
    ("full.mtx", MTX.format("array") + "1000000 1000000\n1\n", DoesNotFit, "a matrix of 1000000×1000000"),
    ("wide.csv", "1," * 1_000_000 + "1\n", DoesNotFit, "a matrix of 1000000×1000000"),
    ("tall.csv", "0\n" * 1_000_000, UsageError, "line 1 has 1 numbers, but there are 4 rows or more: the matrix must be square"),
    ("long.csv", ("1000," * 399 + "1000\n") * 400, DoesNotFit, "a matrix of 399×399"),
    ("names.txt", "".join(f"a{number} b{number}\n" for number in range(60_000)), DoesNotFit, "a matrix of "),
    ("edges.txt", "".join(f"{n // 200} {n % 200}\n" for n in range(30_000)), DoesNotFit, "the edges up to line 30000 take"),
    ("line.txt", "a " * 1_000_000, UsageError, "line 1 has 65536 characters or more"),
    ("large.txt", "#" + "x" * (9 << 20), DoesNotFit, "the file takes 9.0 MiB, 8.0 MiB are free"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "kind", "said"), CASES, ids=[name for name, *_ in CASES])
def test_no_file_takes_more_memory_than_may_be_used(tmp_path, name, text, kind, said):
    if name.endswith("mtx"):
        pytest.importorskip("scipy.io")
    path = tmp_path / name
    path.write_text(text)
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=said) as refused:
            read_graph(str(path), None, directed=name == "edges.txt", probabilities=False, memory=MEMORY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(refused.value, HybridError)
    assert "\n" not in str(refused.value)
    assert peak < 12 << 20


def test_a_name_is_no_number_of_rows(tmp_path):
    """An edge to vertex 10^12 is one to a vertex of that name."""
    (tmp_path / "far.txt").write_text("1 1000000000000\n")
    graph = read_graph(str(tmp_path / "far.txt"), None, directed=False, probabilities=False, memory=MEMORY)
    assert graph.names == ["1", "1000000000000"]


def test_a_full_matrix_that_fits_is_read(tmp_path):
    (tmp_path / "m.csv").write_text(("1," * 399 + "1\n") * 400)
    assert (
        read_graph(str(tmp_path / "m.csv"), None, directed=False, probabilities=False, memory=MEMORY).adjacency.sum() == 160_000
    )
