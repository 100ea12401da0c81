# SPDX-License-Identifier: MIT
"""`on_fault="repair"` on several ranks: all of them go on, the product is right, and a rank that is wrong again and again gets
no rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support import uneven
from support.faults import OF_PRODUCTS, Planted, columns_exchanged, element, lowest_bit, nothing, rows_wrong
from support.selection import pairs_first
from support.transfers import change_rows_that_arrive

import hybrid
import hybrid.execution.product
from hybrid.core.spans import Span
from hybrid.errors import CheckFailed
from hybrid.ranks.world import team_of
from hybrid.selection.session import session_of
from hybrid.verification import recompute

pytestmark = pytest.mark.mpi(min_size=2)
L, M = 71, 149
WAYS = {
    "in place": {},
    "host": {"STAGED": "1", "TRANSPORT": "host", "PANEL_ROWS": "33", "PANEL_COLUMNS": "70"},
    "peers": {"STAGED": "1", "TRANSPORT": "peers", "PANEL_ROWS": "33"},
    "a node a rank": {"STAGED": "1", "RANKS_PER_NODE": "1", "TRANSPORT": "host", "PANEL_COLUMNS": "64"},
    "a node a rank, in place": {"RANKS_PER_NODE": "1"},
    "checked by the host": {"STAGED": "1", "TRANSPORT": "peers", "CHECK": "host"},
}
FAULTS = [element, lowest_bit, columns_exchanged, nothing]
KINDS = ["root", "shared", "row blocks"]


@pytest.fixture(autouse=True)
def session(comm, checked_on_the_device):
    """Of the communicator, in which no device was wrong."""
    session = session_of(team_of(comm))
    session._times_wrong.clear()
    yield session
    session._times_wrong.clear()


def case(comm, rng):
    return rng.standard_normal((70 * comm.size + 4, L)), rng.standard_normal((L, M))


def product(comm, a, b, root, kind):
    """The product, whole on every rank, and what rank `root` was told; of row blocks rank 0."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if kind == "row blocks":
            rows, rows_b = (
                Span(comm.rank * each // comm.size, (comm.rank + 1) * each // comm.size).slice for each in (len(a), len(b))
            )
            first, second = hybrid.RowBlock(a[rows].copy()), hybrid.RowBlock(b[rows_b].copy())
            c = np.concatenate(comm.allgather(hybrid.multiply(first, second, comm=comm, on_fault="repair").array))
        else:
            first, second = (a, b) if comm.rank == root else (None, None)
            if kind == "shared":
                first, second = (hybrid.empty(matrix.shape, comm=comm, root=root) for matrix in (a, b))
                if comm.rank == root:
                    first[...], second[...] = a, b
                comm.Barrier()
            c = comm.bcast(hybrid.multiply(first, second, comm=comm, root=root, on_fault="repair"), root)
    lines = comm.allgather([str(each.message) for each in said if str(each.message).startswith("repaired: ")])
    teller = 0 if kind == "row blocks" else root
    assert not any(lines[rank] for rank in range(comm.size) if rank != teller)
    return c, lines[teller]


def use(monkeypatch, way):
    for name, value in WAYS[way].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)


@pytest.mark.parametrize(
    ("method", "way", "spoil", "always"), pairs_first(["copy_in", "multiply", "copy_out"], list(WAYS), FAULTS, [False, True])
)
def test_a_fault_on_one_rank_is_repaired(comm, rng, monkeypatch, method, way, spoil, always):
    """`always`: also when the product is computed once more."""
    kind = KINDS[(FAULTS.index(spoil) + list(WAYS).index(way)) % len(KINDS)]
    if "RANKS_PER_NODE" in WAYS[way] and kind == "shared":
        kind = "root"  # shared arrays have one node
    if "STAGED" not in WAYS[way]:
        method = "multiply"  # nothing is copied
    if method == "multiply" and spoil not in OF_PRODUCTS:
        spoil = element
    use(monkeypatch, way)
    a, b = case(comm, rng)
    root = comm.size - 1
    victim = root if way in ("peers", "checked by the host") and kind == "root" else 0  # the root copies for all
    if "TRANSPORT" in WAYS[way]:
        product(comm, *(matrix[:9, :9].copy() for matrix in (a, b)), root, kind)  # peers are tested, which copies
    with monkeypatch.context() as patch:
        planted = Planted(patch, method, spoil, 0 if comm.rank == victim else -2, always=always)
        c, lines = product(comm, a, b, root, kind)
    assert comm.bcast(planted.done, victim)
    np.testing.assert_allclose(c, a @ b, rtol=1e-9, atol=1e-12)
    rounding = way == "checked by the host" and spoil.__name__ == "lowest_bit"  # no fault, for who looks at C alone
    assert lines or rounding
    if method == "multiply":
        assert len(lines) == 1
        assert lines[0].startswith(f"repaired: rank {victim} on ")
        by = victim if kind == "row blocks" or "RANKS_PER_NODE" in WAYS[way] else None
        assert by is None or f"again on the CPU of rank {by}" in lines[0]
    assert product(comm, a, b, root, kind)[1] == []


@pytest.mark.parametrize(("kind", "operands", "wrong"), pairs_first([*KINDS, "nodes"], uneven.KINDS, [9, 20]))
def test_rows_of_b_that_reached_a_device_wrong(comm, rng, monkeypatch, kind, operands, wrong):
    use(monkeypatch, "a node a rank" if kind == "nodes" else "host")
    for name in ("PANEL_ROWS", "PANEL_COLUMNS"):
        monkeypatch.delenv(f"HYBRID_{name}", raising=False)
    dtype = ["float32", "float64"][(wrong + uneven.KINDS.index(operands)) % 2]
    a, b = uneven.operands(rng, operands, dtype, 60 * comm.size, 53, 1350)
    chosen = 0 if comm.rank == comm.size - 1 else -2
    planted = Planted(monkeypatch, "copy_in", rows_wrong(wrong), chosen, lambda into, source: source.shape == b.shape)
    c, lines = product(comm, a, b, 0, kind)
    assert comm.bcast(planted.done, comm.size - 1)
    assert [line.split()[2] for line in lines] == [str(comm.size - 1)]
    assert uneven.worst_element(a, b, c) <= 1


@pytest.mark.parametrize("kind", ["root", "shared"])
def test_where_ranks_share_the_matrices_another_one_computes(comm, rng, monkeypatch, kind):
    Planted(monkeypatch, "multiply", element, 0 if comm.rank == 0 else -2)
    _, (line,) = product(comm, *case(comm, rng), 0, kind)
    assert "again on the CPU of rank 1" in line


@pytest.mark.parametrize("way", ["in place", "a node a rank, in place", "peers"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_wrong_twice_gets_no_rows(comm, rng, monkeypatch, session, way, kind):
    if "RANKS_PER_NODE" in WAYS[way] and kind == "shared":
        kind = "root"
    use(monkeypatch, way)
    monkeypatch.delenv("HYBRID_TRANSPORT", raising=False)
    a, b = case(comm, rng)
    others = kind != "row blocks" and "RANKS_PER_NODE" not in WAYS[way]
    for number in range(3):
        with monkeypatch.context() as patch:
            planted = Planted(patch, "multiply", element, 0 if comm.rank == 1 else -2)
            c, lines = product(comm, a, b, 0, kind)
        np.testing.assert_allclose(c, a @ b, rtol=1e-9, atol=1e-12)
        if number == 2 and others:
            assert comm.bcast(planted.seen, 1) == 0
            assert lines == []
            continue
        (line,) = lines
        assert ("wrong in" in line) == (number > 0)
        if number:
            told = "from the next call on it gets no rows" if others else "no other device can take its rows"
            assert line.endswith(f"it was wrong in {number + 1} products: {told}")


def test_faults_of_all_ranks_are_repaired_in_one_product(comm, rng, monkeypatch):
    Planted(monkeypatch, "multiply", element)
    a, b = case(comm, rng)
    c, lines = product(comm, a, b, 0, "root")
    np.testing.assert_allclose(c, a @ b, rtol=1e-9, atol=1e-12)
    assert [line.split()[2] for line in lines] == [str(rank) for rank in range(comm.size)]


@pytest.mark.parametrize("way", ["in place", "a node a rank", "peers"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_repaired_is_refused_on_all_ranks(comm, rng, monkeypatch, way, kind):
    if "RANKS_PER_NODE" in WAYS[way] and kind == "shared":
        kind = "root"
    use(monkeypatch, way)
    original = recompute.blas_of_long_sums

    def never_right(a, b, c):
        original(a, b, c)
        c += 1

    a, b = case(comm, rng)
    with monkeypatch.context() as patch:
        patch.setattr(recompute, "blas_of_long_sums", never_right)
        Planted(patch, "multiply", element, 0 if comm.rank == 0 else -2)
        with pytest.raises(CheckFailed) as refusal:
            product(comm, a, b, 0, kind)
    assert set(comm.allgather(str(refusal.value))) == {str(refusal.value)}
    assert "more)" in str(refusal.value)
    np.testing.assert_allclose(product(comm, a, b, 0, kind)[0], a @ b, rtol=1e-9, atol=1e-12)


def test_rows_that_differ_between_nodes_are_refused(comm, rng, monkeypatch):
    use(monkeypatch, "a node a rank")
    spoiled = []

    def change(matrix):
        if not spoiled:
            matrix[-1, -1] += 1
            spoiled.append(matrix)

    with monkeypatch.context() as patch:
        change_rows_that_arrive(patch, change)
        with pytest.raises(CheckFailed, match="did not reach rank"):
            product(comm, *case(comm, rng), 0, "root")
