# SPDX-License-Identifier: MIT
"""hybrid.multiply by several ranks: mpirun -n P python -m pytest --with-mpi -m mpi."""

from __future__ import annotations

import gc
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from support.selection import pairs_first
from support.transfers import change_rows_that_arrive, change_what_arrives

import hybrid
from hybrid.errors import CheckFailed, DoesNotFit, RankFailed, UsageError
from hybrid.plan.grid import candidates
from hybrid.ranks.shared_memory import shared_memory_folder
from hybrid.ranks.world import team_of
from hybrid.transport import row_exchange

pytestmark = pytest.mark.mpi

SHAPES = [(37, 23, 41), (1, 1, 1), (64, 64, 64), (3, 200, 5), (200, 3, 1), (2, 0, 3), (0, 4, 4), (5, 4, 0), (100, 1, 100)]

# How the work may be carried out without changing the product: as it comes, in tiny pieces, over pretended nodes.
WAYS = {
    "as it comes": {},
    "tiny pieces": {"STAGED": "1", "PANEL_ROWS": "3", "PANEL_COLUMNS": "5"},
    "a node a rank": {"RANKS_PER_NODE": "1", "MESSAGE_BYTES": "100"},
    "two ranks a node": {"RANKS_PER_NODE": "2", "MESSAGE_BYTES": "1000", "STAGED": "1", "PANEL_ROWS": "7"},
}


@pytest.fixture(params=WAYS, ids=str)
def way(request, monkeypatch):
    for name, value in WAYS[request.param].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)


def same_matrix(shape, seed, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def at(comm, root, *values):
    return values if comm.rank == root else (None,) * len(values)


def check_product(comm, a, b, **more):
    c = hybrid.multiply(*at(comm, 0, a, b), comm=comm, **more)
    if comm.rank == 0:
        np.testing.assert_allclose(c, a @ b)


@pytest.mark.parametrize(("way", "shape", "dtype"), pairs_first(WAYS, SHAPES, [np.float64, np.float32]), indirect=["way"])
def test_product_is_numpys_at_the_root_and_none_elsewhere(comm, way, shape, dtype):
    n, l, m = shape
    root = (n + m) % comm.size
    a, b = same_matrix((n, l), 1, dtype), same_matrix((l, m), 2, dtype)
    c = hybrid.multiply(*at(comm, root, a, b), comm=comm, root=root)
    if comm.rank != root:
        assert c is None
        return
    assert c.dtype == dtype
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=0, atol=np.finfo(dtype).eps * 40 * (1 + l))


def test_integers_are_checked_exactly(comm, way):
    a, b = np.arange(600.0).reshape(20, 30), np.arange(900.0).reshape(30, 30)
    c = hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("make", [np.asfortranarray, lambda x: x[::-1, ::-1], lambda x: np.repeat(x, 2, axis=1)[:, ::2]])
def test_arrays_of_any_layout(comm, way, make):
    a, b = make(same_matrix((19, 11), 3)), make(same_matrix((11, 23), 4))
    check_product(comm, a, b)


def test_out_is_filled_and_returned(comm, way):
    a, b = same_matrix((12, 7), 5), same_matrix((7, 9), 6)
    wide = np.zeros((12, 18))
    out = wide[:, ::2] if comm.rank == 0 else None
    c = hybrid.multiply(*at(comm, 0, a, b), comm=comm, out=out)
    if comm.rank == 0:
        assert c is out
        np.testing.assert_allclose(wide[:, ::2], a @ b)
        assert not wide[:, 1::2].any()


def test_parts_of_a_communicator_work_apart(comm, way):
    part = comm.Split(comm.rank % 2, -comm.rank)
    a, b = same_matrix((9 + comm.rank % 2, 5), 7), same_matrix((5, 6), 8)
    c = hybrid.multiply(*at(part, part.size - 1, a, b), comm=part, root=part.size - 1)
    if part.rank == part.size - 1:
        np.testing.assert_allclose(c, a @ b)
    part.Free()


def test_communicators_come_and_go(comm):
    for seed in range(40):
        copy = comm.Dup()
        a, b = same_matrix((4, 4), seed), same_matrix((4, 4), seed + 1)
        check_product(copy, a, b)
        copy.Free()


def test_a_result_outlives_later_products(comm):
    results = []
    for seed in range(3):
        a, b = same_matrix((30, 30), seed), same_matrix((30, 30), seed + 1)
        results.append((a @ b, hybrid.multiply(*at(comm, 0, a, b), comm=comm)))
    if comm.rank == 0:
        for wanted, got in results:
            np.testing.assert_allclose(got, wanted)


def test_no_names_stay_in_shared_memory(comm):
    hybrid.multiply(*at(comm, 0, np.ones((5, 5)), np.ones((5, 5))), comm=comm)
    comm.Barrier()
    for process in comm.allgather(os.getpid()):
        assert not list(shared_memory_folder().glob(f"hybrid-*-{process}-*"))


def test_messages_of_the_program_are_left_alone(comm):
    """The caller's own unfinished messages on the same communicator survive a product in between."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sending = comm.isend(comm.rank, dest=right, tag=0)
    a, b = same_matrix((8, 8), 1), same_matrix((8, 8), 2)
    hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    assert comm.recv(source=left, tag=0) == left
    sending.wait()


WRONG = {
    "shapes": (lambda: (np.ones((3, 4)), np.ones((5, 6))), "4 columns and b 5 rows"),
    "type": (lambda: (np.ones((3, 4), object), np.ones((4, 6))), "object"),
    "dimensions": (lambda: (np.float64(3), np.ones((3, 3))), "one or two dimensions"),
    "nothing": (lambda: (None, np.ones((3, 3))), "None at the root"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_the_root_gets_wrong_every_rank_raises(comm, way, case):
    make, text = WRONG[case]
    with pytest.raises(UsageError, match=text):
        hybrid.multiply(*at(comm, 0, *make()), comm=comm)


@pytest.mark.mpi(min_size=2)
def test_different_arguments_are_named(comm):
    with pytest.raises(UsageError, match="rank 1 asks for threads 2, rank 0 for 1"):
        hybrid.multiply(None, None, comm=comm, threads=2 if comm.rank == 1 else 1)


def test_too_little_memory_is_refused_on_every_rank_with_the_missing_amount(comm, monkeypatch):
    monkeypatch.setenv("HYBRID_HOST_MEMORY", "1M")
    with pytest.raises(DoesNotFit, match="are missing"):
        hybrid.multiply(*at(comm, 0, np.ones((50, 50)), np.ones((50, 50))), comm=comm)


def failing(kind):
    def fail(*arguments):
        raise kind("planted")

    return fail


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ValueError, "ValueError: planted"),
        (MemoryError, "out of memory: planted"),
        (SystemExit, r"left by sys.exit\(planted\)"),
        (KeyboardInterrupt, "interrupted"),
    ],
)
def test_a_failure_on_one_rank_is_raised_on_all_and_the_next_product_works(comm, way, monkeypatch, kind, words):
    a, b = same_matrix((20, 20), 1), same_matrix((20, 20), 2)
    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr("hybrid.devices.cpu.blas", failing(kind))
        with pytest.raises(RankFailed, match=f"rank {comm.size - 1} on .*, multiply: {words}$"):
            hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    check_product(comm, a, b)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("failing_rank", [0, 1])
@pytest.mark.parametrize("phase", ["scatter", "gather"])
@pytest.mark.parametrize(("size", "message"), [(600, "300000"), (20, "200")], ids=["large messages", "small messages"])
def test_a_failure_amid_messages_leaves_a_team_that_works(comm, monkeypatch, phase, failing_rank, size, message):
    """Messages between nodes are under way when a rank fails: nobody waits for them, and none is taken for a later one.

    Large ones wait for their receiver, small ones are sent before it has asked for them.
    """
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    monkeypatch.setenv("HYBRID_MESSAGE_BYTES", message)
    a, b = same_matrix((size, size), 1), same_matrix((size, size), 2)
    parts = []

    def breaking(*arguments):
        started = original(*arguments)

        def start(comm):
            parts.append(comm)
            if len(parts) == 2:  # but not when it is started again, so that others need not wait for it
                raise OSError("planted")
            return started(comm)

        return start

    where, function = {"scatter": (row_exchange, "exchange"), "gather": (hybrid.execution.scatter_gather, "row_gather")}[phase]
    original = getattr(where, function)
    said = "scatter" if phase == "scatter" else "(scatter|multiply|gather)"  # C is gathered while other things go on
    with monkeypatch.context() as patch:
        if comm.rank == failing_rank:
            patch.setattr(where, function, breaking)
        with pytest.raises(RankFailed, match=f"rank {failing_rank} on .*, {said}: OSError: planted"):
            hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    check_product(comm, a, b)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_failure_in_the_first_product_between_nodes_keeps_nobody_waiting(comm, monkeypatch, failing_rank):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    own = comm.Dup()
    a, b = same_matrix((20, 9), 1), same_matrix((9, 30), 2)
    with monkeypatch.context() as patch:
        if comm.rank == failing_rank:
            patch.setattr(hybrid.execution.product._Product, "_poison_c", failing(MemoryError))
        with pytest.raises(RankFailed, match=f"rank {failing_rank} on .*: out of memory"):
            hybrid.multiply(*at(own, 0, a, b), comm=own)
    check_product(own, a, b)


@pytest.mark.mpi(min_size=2)
def test_between_nodes_no_matrix_is_kept(comm, monkeypatch):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    matrices = at(comm, 0, same_matrix((30, 9), 1), same_matrix((9, 40), 2))
    c = hybrid.multiply(*matrices, comm=comm)
    alive = [weakref.ref(each) for each in (*matrices, c) if each is not None]
    del matrices, c
    gc.collect()
    assert [each() for each in alive] == [None] * len(alive)


@pytest.mark.parametrize("wrong_rank", [0, -1])
def test_a_wrong_element_on_any_rank_is_found_by_all(comm, way, monkeypatch, wrong_rank):
    def wrong(a, b, c):
        np.matmul(a, b, out=c)
        if c.size:
            c.flat[0] += 1e-6

    a, b = same_matrix((40, 30), 1), same_matrix((30, 50), 2)
    with monkeypatch.context() as patch:
        if comm.rank == wrong_rank % comm.size:
            patch.setattr("hybrid.devices.cpu.blas", wrong)
        with pytest.raises(CheckFailed, match="the product is wrong"):
            hybrid.multiply(*at(comm, 0, a, b), comm=comm)


def test_check_can_be_left_out(comm, monkeypatch):
    monkeypatch.setattr("hybrid.execution.host_check.verify", failing(AssertionError))
    a, b = same_matrix((6, 6), 1), same_matrix((6, 6), 2)
    check_product(comm, a, b, check=False)


def test_root_must_be_a_rank(comm):
    with pytest.raises(UsageError, match="is not a rank"):
        hybrid.multiply(np.ones((2, 2)), np.ones((2, 2)), comm=comm, root=comm.size)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("wrong", [{"threads": -1}, {"threads": "many"}, {"root": -1}, {"root": "0"}])
def test_nonsense_on_one_rank_is_raised_on_all(comm, wrong):
    with pytest.raises(UsageError, match=r"rank 1 on \S+, agree"):
        hybrid.multiply(np.ones((2, 2)), np.ones((2, 2)), comm=comm, **(wrong if comm.rank == 1 else {}))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("staged", ["0", "1"])
@pytest.mark.parametrize("on_fault", ["raise", "repair"])
@pytest.mark.parametrize("out", [False, True])
def test_the_root_s_arrays_are_multiplied_on_grids_of_nodes(comm, rng, monkeypatch, out, on_fault, staged):
    """Their rows go to all nodes first. With `repair` a rank multiplies wrong."""
    from hybrid.devices import cpu

    def wrong(a, b, c):
        np.matmul(a, b, out=c)
        if comm.rank == comm.size - 1 and c.size:
            c[0, 0] += 1

    for name, value in {"RANKS_PER_NODE": "1", "DEVICE": "cpu", "STAGED": staged}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    if on_fault == "repair":
        monkeypatch.setattr(cpu, "blas", wrong)
    for grid in candidates(comm.size):
        monkeypatch.setenv("HYBRID_GRID", str(grid))
        monkeypatch.setenv("HYBRID_MESSAGE_BYTES", str(rng.choice([700, 1 << 28])))
        n, l, m = (int(size) for size in comm.bcast(rng.integers(comm.size, 150, 3)))  # every rank has a part of C
        a, b = same_matrix((n, l), 1), same_matrix((l, m), 2)
        root = comm.size - 1
        c = np.empty((n, m)) if out and comm.rank == root else None
        own = comm.Dup()  # for who is wrong on a communicator twice gets no rows there any more
        with pytest.warns(RuntimeWarning, match="repaired") if on_fault == "repair" and comm.rank == root else nullcontext():
            c = hybrid.multiply(*at(comm, root, a, b), comm=own, root=root, out=c, on_fault=on_fault)
        own.Free()
        if comm.rank == root:
            np.testing.assert_allclose(c, a @ b, rtol=1e-11, atol=1e-12)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("settings", [{}, {"MESSAGE_BYTES": "500"}, {"STAGED": "1", "PANEL_ROWS": "7"}])
def test_several_gateways_of_a_node_bring_their_columns(comm, rng, monkeypatch, settings):
    """Of four ranks on two nodes, both of each; of three, one. Panels may be narrower than gateways are many."""
    for name, value in {"DEVICE": "cpu", "RANKS_PER_NODE": "2", "PANEL_COLUMNS": "1", "POISON": "1", **settings}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    for gateways, panel_columns in ((2, 1), (3, 20), (1, 20), (2, 33)):
        monkeypatch.setenv("HYBRID_GATEWAYS", str(gateways))
        monkeypatch.setenv("HYBRID_PANEL_COLUMNS", str(panel_columns))
        n, l, m = (int(size) for size in comm.bcast(rng.integers(0, 90, 3)))
        a, b = same_matrix((n, l), 1), same_matrix((l, m), 2)
        root = int(comm.bcast(rng.integers(comm.size)))
        c = hybrid.multiply(*at(comm, root, a, b), comm=comm, root=root)
        if comm.rank == root:
            np.testing.assert_allclose(c, a @ b, rtol=1e-11, atol=1e-12)
    connected = {kind for kind, _ in team_of(comm).messages.collectives._comms}
    assert ("B 1" in connected) == ("C 1" in connected) == (comm.size == 4)


@pytest.mark.mpi(min_size=2)
def test_an_environment_that_differs_is_named(comm, monkeypatch):
    if comm.rank == 1:
        monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    with pytest.raises(UsageError, match="rank 1 asks for ranks_per_node 1, rank 0 for 0"):
        hybrid.multiply(np.ones((2, 2)), np.ones((2, 2)), comm=comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("operand", ["A", "B"])
def test_rows_that_arrive_changed_are_found(comm, monkeypatch, operand):
    """The check of the product starts from what lies on the nodes: that it lies there rightly is checked too."""
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")

    def change(matrix):
        matrix[-1, 0] += comm.rank == comm.size - 1

    (change_rows_that_arrive if operand == "A" else change_what_arrives)(monkeypatch, change)
    a, b = same_matrix((12, 10), 1), same_matrix((10, 12), 2)
    with pytest.raises(CheckFailed, match=f"of {operand} did not reach rank {comm.size - 1}"):
        hybrid.multiply(*at(comm, 0, a, b), comm=comm)


@pytest.mark.mpi(min_size=2)
def test_only_communicators_of_one_group_are_taken(comm):
    from mpi4py import MPI

    half = comm.Split(comm.rank % 2)
    between = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    for wrong in (between, "world"):
        with pytest.raises(UsageError, match="comm must be an mpi4py intracommunicator"):
            hybrid.multiply(np.ones((2, 2)), np.ones((2, 2)), comm=wrong)
    between.Free()
    half.Free()
    for none in (half, MPI.COMM_NULL):
        with pytest.raises(UsageError, match=r"comm is MPI\.COMM_NULL: a communicator that was freed"):
            hybrid.multiply(np.ones((2, 2)), np.ones((2, 2)), comm=none)


@pytest.mark.mpi(min_size=2)
def test_threads_of_a_rank_take_turns_on_a_communicator(comm):
    own, a, b = comm.Dup(), same_matrix((30, 20), 1), same_matrix((20, 10), 2)
    with ThreadPoolExecutor(3) as threads:
        products = [threads.submit(hybrid.multiply, *at(comm, 0, a, b), comm=own) for _ in range(3)]
        assert all(c.result() is None or np.allclose(c.result(), a @ b) for c in products)
    own.Free()


@pytest.mark.mpi(min_size=2)
def test_a_process_forked_from_a_rank_is_refused(comm):
    child = os.fork()
    if not child:
        try:
            hybrid.multiply(*at(comm, 0, np.ones((3, 3)), np.ones((3, 3))), comm=comm)
        except UsageError as refused:
            os._exit(7 if "was forked from a rank" in str(refused) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
