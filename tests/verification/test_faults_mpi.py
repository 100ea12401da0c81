# SPDX-License-Identifier: MIT
"""One fault at a time on one of several ranks: all ranks raise the same error, which says where it is."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from support.faults import OF_PRODUCTS, SPOILS, Planted, element, nothing
from support.selection import pairs_first
from support.transfers import change_rows_that_arrive, change_what_arrives, change_what_is_gathered

import hybrid
import hybrid.execution.scatter_gather
from hybrid.core.spans import Span
from hybrid.errors import CheckFailed, RankFailed
from hybrid.execution.rank_check import RankCheck

pytestmark = pytest.mark.mpi(min_size=2)
L, M = 71, 149
DTYPES = ["float64", "float32"]
WAYS = {
    "host": {"TRANSPORT": "host"},
    "host, panels": {"TRANSPORT": "host", "PANEL_ROWS": "5", "PANEL_COLUMNS": "64"},
    "peers": {"TRANSPORT": "peers"},
    "peers, panels": {"TRANSPORT": "peers", "PANEL_ROWS": "5", "PANEL_COLUMNS": "64"},
    "peers, slabs": {"TRANSPORT": "peers", "PANEL_ROWS": "5", "SLAB_ROWS": "20"},
    "a node a rank": {"RANKS_PER_NODE": "1", "TRANSPORT": "host", "PANEL_COLUMNS": "64", "MESSAGE_BYTES": "1000"},
    "two ranks a node": {"RANKS_PER_NODE": "2", "TRANSPORT": "host", "PANEL_ROWS": "7"},
    "out of core": {"TRANSPORT": "host", "GPU_MEMORY": "60k", "PANEL_ROWS": "5", "PANEL_COLUMNS": "64"},
}


@pytest.fixture(autouse=True)
def _staged(monkeypatch, checked_on_the_device):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    monkeypatch.setenv("HYBRID_POISON", "1")


@pytest.fixture
def checks(monkeypatch):
    """The checks on the devices."""
    seen = []
    original = RankCheck.judge

    def judge(check, findings):
        seen.append(original(check, findings))
        return seen[-1]

    monkeypatch.setattr(RankCheck, "judge", judge)
    return seen


@pytest.fixture(params=WAYS, ids=str)
def way(request, monkeypatch):
    return use(monkeypatch, request.param)


def use(monkeypatch, way):
    for name, value in WAYS[way].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    return way


def case(comm, rng, dtype="float64"):
    n = 13 * comm.size + 4
    return rng.standard_normal((n, L)).astype(dtype), rng.standard_normal((L, M)).astype(dtype)


def product(comm, a, b, root, kind):
    """From the root's own arrays, from shared ones, or of row blocks."""
    if kind == "row blocks":
        rows, rows_b = (Span(comm.rank * each // comm.size, (comm.rank + 1) * each // comm.size).slice for each in (len(a), L))
        return hybrid.multiply(hybrid.RowBlock(a[rows].copy()), hybrid.RowBlock(b[rows_b].copy()), comm=comm).array
    first, second = (a, b) if comm.rank == root else (None, None)
    if kind == "shared":
        first, second = (hybrid.empty(matrix.shape, matrix.dtype, comm=comm, root=root) for matrix in (a, b))
        if comm.rank == root:
            first[...], second[...] = a, b
        comm.Barrier()
    return hybrid.multiply(first, second, comm=comm, root=root)


def refused_alike(comm, *arguments):
    with pytest.raises(CheckFailed) as refusal:
        product(comm, *arguments)
    message = str(refusal.value)
    assert set(comm.allgather(message)) == {message}
    assert "\n" not in message
    return message


def plant(comm, monkeypatch, victim, method, spoil, which=0, chosen=lambda into, source: True):
    return Planted(monkeypatch, method, spoil, which if comm.rank == victim else -2, chosen)


def of_operand(operand, a):
    """Panels of A are all as wide as A is, which no panel of B is."""
    return lambda into, source: (into.shape[1] == a.shape[1]) == (operand == "A")


@pytest.mark.parametrize(
    ("operand", "way", "spoil", "dtype", "kind"),
    pairs_first(["A", "B", "C"], list(WAYS), SPOILS, DTYPES, ["root", "shared", "row blocks"]),
)
def test_a_wrong_copy_is_found_and_its_rank_is_named(comm, rng, monkeypatch, checks, operand, way, spoil, dtype, kind):
    if "RANKS_PER_NODE" in WAYS[way] and kind == "shared":
        kind = "root"  # shared arrays have one node
    if "slabs" in way and kind == "row blocks":
        pytest.skip("row blocks do not come in slabs")
    use(monkeypatch, way)
    a, b = case(comm, rng, dtype)
    root = comm.size - 1
    driven = "peers" in way and kind == "root"  # the root copies for all ranks
    victim = root if driven else comm.size // 2
    method = "copy_out" if operand == "C" else "copy_in"
    planted = plant(comm, monkeypatch, victim, method, spoil, 0, of_operand(operand, a) if operand != "C" else lambda *_: True)
    message = refused_alike(comm, a, b, root, kind)
    assert comm.bcast(planted.done, victim)
    found = re.match(r"the product is wrong: rows (\d+):(\d+), columns (\d+):(\d+) of (.) (left|reached) the device of", message)
    assert found, message
    assert found[5] == operand
    assert found[6] == ("left" if operand == "C" else "reached")
    assert "with other values than they have in memory" in message
    assert len(checks) == 1
    of_rank = r"rows .* of {} {} the device of rank {} on \S+ with other values than they have in memory"
    blamed = {int(re.search(r"device of rank (\d+) ", fault)[1]) for fault in checks[0].faults}
    assert driven or victim in blamed
    # What one rank loads wrong its peers get from it.
    assert len(blamed) == 1 or (operand == "B" and "peers" in way)
    assert all(re.fullmatch(of_rank.format(operand, found[6], r"\d+"), fault) for fault in checks[0].faults)


@pytest.mark.parametrize("kind", ["root", "shared", "row blocks"])
@pytest.mark.parametrize("way", ["peers", "peers, panels", "peers, slabs"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_wrong_exchange_between_devices_is_found(comm, rng, monkeypatch, checks, way, spoil, kind):
    if "slabs" in way and kind == "row blocks":
        pytest.skip("row blocks do not come in slabs")
    use(monkeypatch, way)
    victim = comm.size - 1
    planted = plant(comm, monkeypatch, victim, "exchange", spoil)
    a, b = case(comm, rng)
    message = refused_alike(comm, a, b, 0, kind)
    assert comm.bcast(planted.done, victim)
    assert re.match(rf"the product is wrong: rows \d+:\d+, columns \d+:\d+ of B reached the device of rank {victim} on ", message)
    assert len(checks[0].faults) == 1


@pytest.mark.parametrize(
    ("way", "spoil", "kind", "integers"),
    pairs_first(list(WAYS), OF_PRODUCTS, ["root", "shared", "row blocks"], [False, True]),
)
def test_a_wrong_multiplication_is_found_and_its_rank_is_named(comm, rng, monkeypatch, checks, way, spoil, kind, integers):
    if "RANKS_PER_NODE" in WAYS[way] and kind == "shared":
        kind = "root"
    use(monkeypatch, way)
    a, b = case(comm, rng)
    if integers:
        a, b = np.rint(3 * a) + 5, np.rint(3 * b) + 5
    victim = comm.size - 1
    planted = plant(comm, monkeypatch, victim, "multiply", spoil)
    message = refused_alike(comm, a, b, 0, kind)
    assert comm.bcast(planted.done, victim)
    found = re.match(rf"the product is wrong: rank {victim} on \S+ multiplied wrong: row (\d+), columns \d+:\d+", message)
    assert found, message
    assert int(found[1]) >= len(a) * victim // comm.size - 1
    assert [check.kind for check in checks] == ["exact" if integers else "freivalds"]


@pytest.mark.parametrize("kind", ["root", "row blocks"])
@pytest.mark.parametrize("operand", ["A", "B", "C"])
@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_change_between_nodes_are_found(comm, rng, monkeypatch, checks, operand, nodes, dtype, kind):
    if comm.size <= int(nodes):
        pytest.skip("one node")
    if kind == "row blocks" and operand != "B":
        pytest.skip("they stay where they are")
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    monkeypatch.setenv("HYBRID_TRANSPORT", "host")
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", "64")
    root = comm.size - 1 if kind == "root" else 0
    victim = (
        root if operand == "C" else 0 if root else comm.size - comm.size % int(nodes) - (comm.size % int(nodes) == 0) * int(nodes)
    )
    spoiled = []

    def change(matrix):  # the first that arrives, which begins with the first row
        if comm.rank == victim and not spoiled:
            matrix[-1, -1] = np.nextafter(matrix[-1, -1], matrix.dtype.type(np.inf))
            spoiled.append(len(matrix) - 1)

    if operand == "A" or kind == "row blocks":
        change_rows_that_arrive(monkeypatch, change)
    elif operand == "B":
        change_what_arrives(monkeypatch, change)

    def change_c(matrix):
        if operand == "C" and not spoiled:
            matrix[0, -1] = np.nextafter(matrix[0, -1], matrix.dtype.type(np.inf))  # from the first node; the root is on the last
            spoiled.append(0)

    change_what_is_gathered(monkeypatch, change_c)
    message = refused_alike(comm, *case(comm, rng, dtype), root, kind)
    row = comm.bcast(spoiled, victim)[0]
    found = re.match(rf"the product is wrong: rows (\d+):(\d+), columns \d+:\d+ of {operand} did not reach rank \d+ on ", message)
    assert found, message
    assert int(found[1]) <= row < int(found[2])
    assert len(checks) == 1
    assert all("did not reach" in fault for fault in checks[0].faults)


@pytest.mark.parametrize("nodes", ["0", "1"])
def test_rows_of_b_that_change_on_the_way_to_shared_memory_are_found(comm, rng, monkeypatch, nodes):
    from hybrid.execution import row_block_product

    monkeypatch.setenv("HYBRID_TRANSPORT", "host")
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    original, calls = row_block_product.on_host, []

    def changed(array):
        calls.append(array)
        rows = original(array).copy()
        rows[0, 0] += comm.rank == 1 and len(calls) == 1
        return rows

    monkeypatch.setattr(row_block_product, "on_host", changed)
    a, b = case(comm, rng)
    with pytest.raises(CheckFailed, match=r"rows \d+:\d+ of B did not reach the memory of its node as rank 1 has them"):
        product(comm, a, b, 0, "row blocks")


def test_a_rank_that_fails_leaves_no_thread_and_the_next_product_is_right(comm, rng, monkeypatch, way):
    a, b = case(comm, rng)

    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "hybrid-checksums"]

    def broken(into, source, before):
        raise ArithmeticError("planted")

    for victim in (0, comm.size - 1):
        with monkeypatch.context() as patch:
            plant(comm, patch, victim, "multiply", broken)
            with pytest.raises(RankFailed, match=f"rank {victim} on .*ArithmeticError: planted"):
                product(comm, a, b, 0, "root")
        assert not threads()
        c = product(comm, a, b, 0, "root")
        assert comm.rank != 0 or np.allclose(c, a @ b)
        assert not threads()


def test_right_products_of_all_kinds_pass(comm, rng, way, checks):
    for integers in (False, True):
        for dtype in DTYPES:
            a, b = case(comm, rng, dtype)
            if integers:
                a, b = np.rint(3 * a), np.rint(3 * b)
            product(comm, a, b, comm.size - 1, "root")
            assert checks[-1].ok
            assert checks[-1].kind == ("exact" if integers else "freivalds")
    assert len(checks) == 4


def test_faults_on_two_ranks_are_all_named(comm, rng, monkeypatch, checks):
    use(monkeypatch, "host")
    for victim in range(2):
        plant(comm, monkeypatch, victim, "copy_in", element, 0, of_operand("A", np.empty((0, L))))
        plant(comm, monkeypatch, victim, "copy_out", nothing)
    assert refused_alike(comm, *case(comm, rng), 0, "root").endswith("(and 3 more)")
    assert len(checks[0].faults) == 4
