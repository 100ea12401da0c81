# SPDX-License-Identifier: MIT
"""Calls leave a program alone: threads take turns, forked processes multiply by themselves, the
program's own messages arrive, and an error on one rank is raised on all of them, after which the next call works."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.cases import refused
from support.commands import ROOT

import hybrid
import hybrid.testing
from hybrid.errors import UsageError

pytestmark = pytest.mark.exhaustive(above=2)
RANKS = pytest.mark.mpi(min_size=2)


def operands(seed, n=20, l=30, m=10):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, l)), rng.standard_normal((l, m))


def product(comm, a, b, root=0, **how):
    """That of a root's arrays, which must be right."""
    c = hybrid.multiply(*((a, b) if comm.rank == root else (None, None)), comm=comm, root=root, **how)
    assert c is None if comm.rank != root else np.allclose(c, a @ b)


# One process


def python(script, **environment):
    """What a program of its own prints, which must end well and without a warning."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    more = {"PYTHONPATH": str(ROOT), "HYBRID_DEVICE": "cpu", **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], env=clean | more, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_the_package_and_multiplying_load_no_more_than_they_need():
    script = """
import sys, hybrid
print(hybrid.__version__, *(name in sys.modules for name in ("numpy", "mpi4py")))
import numpy
c = hybrid.multiply(numpy.ones((3, 4)), numpy.ones((4, 2)))
print(c.sum(), *(name in sys.modules for name in ("mpi4py", "cupy", "hybrid.testing")))
"""
    assert python(script) == [hybrid.__version__, "False", "False", "24.0", "False", "False", "False"]


def test_the_module_s_help_names_every_public_name():
    told = [line.split()[0] for line in (hybrid.__doc__ or "").splitlines() if line.strip()]
    assert {"multiply", "empty", "scatter", "gather", "RowBlock", "Block2D"} <= set(hybrid.__all__)
    for name in hybrid.__all__:
        assert name.startswith("__") or name in told
        assert name in dir(hybrid)
    with pytest.raises(AttributeError):
        _ = hybrid.divide


def test_threads_take_turns_and_leave_blas_as_it_was():
    from threadpoolctl import threadpool_info

    def blas_threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before, cases = blas_threads(), [operands(seed, 100, 120, 90) for seed in range(12)]
    with ThreadPoolExecutor(3) as pool:
        for (a, b), c in zip(cases, pool.map(lambda each: hybrid.multiply(*each, threads=2), cases), strict=True):
            np.testing.assert_allclose(c, a @ b)
    for count in (1, 2, 3):
        hybrid.multiply(*cases[0], threads=count)
    assert blas_threads() == before


# Plans


@pytest.mark.parametrize("shape", [(20, 20), (400, 400), (1, 400, 400), (8, 20, 20)])
def test_an_overflow_is_warned_of_once_and_as_errstate_says(shape):
    """However many threads compute the product."""
    a = np.full(shape, 1e200)
    with pytest.warns(RuntimeWarning, match="overflow") as caught:
        hybrid.multiply(a, a, threads=2, device="cpu")
    assert len(caught) == 1
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        hybrid.multiply(a, a, threads=2, device="cpu")


@pytest.mark.mpi
def test_a_plan_computes_what_multiply_does_as_often_as_it_is_run(comm):
    a, b = operands(5)
    mine = (a, b) if comm.rank == 0 else (None, None)
    plan = hybrid.plan(*mine, comm=comm, alpha=2, check="host")
    for factor in (1, -3):
        c = plan.run(*(each if each is None else factor * each for each in mine))
        assert c is None if comm.rank else np.allclose(c, 2 * factor**2 * (a @ b))
    out = np.empty((20, 10)) if comm.rank == 0 else None
    assert plan.run(*mine, out=out) is out
    assert comm.rank or np.allclose(out, 2 * a @ b)
    text = plan.explain()
    assert all(each in text for each in ("20×30", "kernel ", "check: host", f"rank {comm.size - 1} on "))
    rows = [hybrid.scatter(each, comm=comm) for each in mine]
    whole = hybrid.gather(hybrid.plan(*rows).run(*rows))
    assert comm.rank or np.allclose(whole, a @ b)


@pytest.mark.mpi
def test_a_plan_needs_shapes_and_types_alone_and_takes_no_others(comm):
    class Like:
        dtype = np.dtype("float32")

        def __init__(self, *shape):
            self.shape = shape

    root = comm.rank == 0
    plan = hybrid.plan(Like(7, 5) if root else None, Like(5, 3) if root else None, comm=comm)
    ones = [np.ones((7, 5), "f"), np.ones((5, 3), "f")] if root else [None, None]
    c = plan.run(*ones)
    assert c is None if comm.rank else ((c == 5).all() and c.dtype == "float32")
    for wrong in ([np.ones((7, 5)), np.ones((5, 3))], [np.ones((5, 7), "f"), np.ones((7, 3), "f")], [None, None]):
        with refused(UsageError, "shapes"):
            plan.run(*(wrong if root else (None, None)))
    assert plan.run(*ones) is None or root
    with refused(UsageError, "shapes"):
        hybrid.plan(Like(7, 5) if root else None, Like(4, 3) if root else None, comm=comm)
    with hybrid.testing.pretend(host_memory="1M"), refused(hybrid.errors.DoesNotFit, "host-memory"):
        hybrid.plan(Like(7000, 5) if root else None, Like(5, 3000) if root else None, comm=comm)
    with pytest.raises(TypeError):
        hybrid.plan(*ones, comm=comm, out=None)


@pytest.mark.parametrize("n", [9, 120])
def test_a_product_like_one_before_heeds_what_has_changed_since(n):
    """What is kept of the first call must not hide another layout, option, setting, fault or core."""
    a, b = operands(7, n, n, n)
    for _ in range(2):
        np.testing.assert_allclose(hybrid.multiply(a, b), a @ b)
    for one, other in ((a.T, b), (a, b.T), (a[::-1], b), (np.repeat(a, 2, axis=1)[:, ::2], b), (a, b.astype(">f8"))):
        np.testing.assert_allclose(hybrid.multiply(one, other), one @ other)
    assert hybrid.multiply(a, a.T).tobytes() == hybrid.multiply(a, a.T).T.tobytes()
    out = np.zeros((n, n))
    assert hybrid.multiply(a, b, out=out) is out
    np.testing.assert_allclose(out, a @ b)
    for wrong, code in ((a, "overlap"), (out[1:], "out"), (out.astype("f"), "out"), (out.tolist(), "out")):
        with refused(UsageError, code):
            hybrid.multiply(a, b, out=wrong)
    with refused(UsageError, "setting"):
        hybrid.multiply(a, b, threads=True)
    hybrid.multiply(a, b, threads=1)
    with refused(UsageError, "setting"):
        hybrid.multiply(a, b, threads=True)
    with hybrid.testing.pretend(kernel="none"), refused(UsageError, "setting"):
        hybrid.multiply(a, b)
    with hybrid.testing.pretend(host_memory="1k"), refused(hybrid.errors.DoesNotFit, "host-memory"):
        hybrid.multiply(a, b)
    with hybrid.testing.plant("multiply") as planted, refused(hybrid.errors.CheckFailed, "check-product"):
        hybrid.multiply(a, b)
    assert planted.done
    with hybrid.testing.plant("multiply") as planted:
        hybrid.multiply(a, b, check=False)
    assert planted.done
    with (
        hybrid.testing.pretend(on_fault="repair"),
        hybrid.testing.plant("multiply"),
        pytest.warns(RuntimeWarning, match="repaired"),
    ):
        np.testing.assert_allclose(hybrid.multiply(a, b), a @ b)
    np.testing.assert_allclose(hybrid.multiply(a, b), a @ b)


@pytest.mark.parametrize("n", [8, 121])
def test_what_changes_while_a_call_computes_is_heeded_by_the_next(monkeypatch, n):
    a, b = operands(13, n, n, n)
    monkeypatch.setenv("HYBRID_CHECK", "off")

    def as_another_thread_may(into, source, before):
        monkeypatch.delenv("HYBRID_CHECK")

    with hybrid.testing.plant("multiply", how=as_another_thread_may):
        hybrid.multiply(a, b)
    with hybrid.testing.plant("multiply"), refused(hybrid.errors.CheckFailed, "check-product"):
        hybrid.multiply(a, b)


@RANKS
def test_a_warm_call_of_ranks_of_one_node_exchanges_little_and_keeps_its_result(comm):
    a, b = operands(11)
    mine = (a, b) if comm.rank == 0 else (None, None)
    whole = [(each * 1e3).astype("int64") << 30 for each in mine if each is not None] or [None, None]
    with hybrid.testing.pretend(device="cpu"):
        first = hybrid.multiply(*mine, comm=comm)
        hybrid.multiply(*mine, comm=comm)
        with hybrid.testing.count() as counts:
            second = hybrid.multiply(*(each if each is None else -2 * each for each in mine), comm=comm)
        for _ in range(10):  # of several real products, one right after the other
            exact = hybrid.multiply(whole[0], whole[1] if whole[1] is None else whole[1] >> 25, comm=comm)
            assert comm.rank or (exact == whole[0] @ (whole[1] >> 25)).all()
    assert counts.exchanges <= 3
    assert comm.rank or (np.allclose(first, a @ b) and np.allclose(second, 4 * a @ b))


FORKING = """
import os, signal, sys, threading, time
import numpy, hybrid

size = {size}
a = numpy.random.default_rng(size).random((size, size))
wanted = a @ a  # before there are threads: OpenBLAS itself does not bear a fork within a product
def right():
    return numpy.allclose(hybrid.multiply(a, a), wanted)
if {first}:
    assert right()  # the parent has all that is made at a first call
going = [True]
def work():
    while True:
        assert right()
        if not going[0]:
            return
workers = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for worker in workers:
    worker.start()
for pause in {pauses}:
    time.sleep(pause)
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # kills it if it waits for ever
        os._exit(0 if right() and right() else 9)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0, ended
going.clear(), going.append(False)
for worker in workers:
    worker.join()
print("right")
"""


@pytest.mark.parametrize(
    ("case", "device"),
    [
        ({"size": 400, "first": True, "pauses": [0.002 * each for each in range(6)]}, "cpu"),
        ({"size": 60, "first": False, "pauses": [0.0]}, "cpu"),
        ({"size": 60, "first": False, "pauses": [0.02, 0.08]}, "cpu"),
        pytest.param({"size": 150, "first": True, "pauses": [0.0, 0.01]}, "emulate", marks=pytest.mark.needs("compiler")),
    ],
    ids=["in products", "at the first product", "while modules are loaded", "in emulated products"],
)
def test_a_child_that_is_forked_while_threads_multiply_does_so_too(case, device):
    more = {"HYBRID_DEVICE": device, "HYBRID_THREADS": "2", "PYTHONWARNINGS": "ignore"}
    assert python(FORKING.format(**case), **more) == ["right"]


AMID_LOADING = """
import hybrid  # before logging is loaded
import importlib.abc, logging, numpy, os, sys, threading

loading, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # called before the functions that were registered earlier
class Slowly(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "hybrid.api":
            loading.set()
            forking.wait()
            logging.Handler()  # takes a lock that the fork takes as well
sys.meta_path.insert(0, Slowly())
a = numpy.eye(3)
threading.Thread(target=lambda: hybrid.multiply(a, a)).start()
loading.wait()
child = os.fork()
if child == 0:
    os._exit(0 if (hybrid.multiply(a, a) == a).all() else 9)
print(os.waitpid(child, 0)[1])
"""


def test_a_fork_takes_no_lock_that_the_loading_of_modules_waits_for():
    assert python(AMID_LOADING) == ["0"]


# Several ranks


@RANKS
def test_messages_of_the_program_are_left_alone(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sending = comm.isend(comm.rank, dest=right, tag=0)
    with hybrid.testing.pretend(ranks_per_node=1):
        product(comm, *operands(1))
    assert comm.recv(source=left, tag=0) == left
    sending.wait()


@RANKS
def test_a_process_forked_from_a_rank_multiplies_alone_and_not_by_the_ranks(comm):
    a, b = operands(1, 3, 3, 3)
    child = os.fork()
    if not child:
        code = 9
        try:
            alone = np.allclose(hybrid.multiply(a, b), a @ b)
            try:
                hybrid.multiply(a, b, comm=comm)
            except UsageError as refusal:
                code = 7 if alone and refusal.code == "communicator" else 8
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
