# SPDX-License-Identifier: MIT
"""docs/python.md, Node-shared matrices: what `hybrid.empty` makes is one matrix for all ranks of the root's node, None elsewhere;
products take it where it lies; nobody else can open it, and it goes when the root lets go of it."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from support import cases
from support.commands import start
from support.distributed import refused

import hybrid
from hybrid.errors import DoesNotFit, UsageError

SETTINGS = [
    {},
    {"staged": 1, "poison": 1, "panel_rows": 7},
    {"check": "host"},
    {"staged": 1, "transport": "peers", "panel_columns": 8},
]


def filled(comm, array, values, root=0):
    """With the root's values, after all ranks have come."""
    if comm.rank == root:
        array[...] = values
    comm.Barrier()
    return array


@pytest.mark.mpi
def test_any_product_of_shared_matrices_is_right_and_all_ranks_see_it(comm, rng):
    for number, name in enumerate(cases.TYPES if comm.size <= 2 else rng.permutation(cases.TYPES)[:6]):
        dtype, root = cases._dtype(name), number % comm.size
        first, second = (rng.integers(0, 2 if name == "bool" else 3, shape).astype(dtype) for shape in ((30, 20), (25, 20)))
        a, b, c = (hybrid.empty(shape, name, comm=comm, root=root) for shape in (first.shape, second.shape, (30, 25)))
        filled(comm, a, first, root)
        filled(comm, b, second, root)
        settings = SETTINGS[number % (4 if comm.size > 1 else 3)]
        for operands, right in (((a, b.T), first @ second.T), ((a[5:9], b.T), first[5:9] @ second.T)):
            at_root, out = (operands, c[: len(right)]) if comm.rank == root else ((None, None), None)
            with hybrid.testing.pretend(**settings):
                assert hybrid.multiply(*at_root, out=out, comm=comm, root=root) is out
            comm.Barrier()
            np.testing.assert_array_equal(c[: len(right)].astype("c16"), right.astype("c16"), err_msg=f"{name} {settings}")
            comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_nothing_is_sent_or_distributed_for_products_of_shared_matrices(comm):
    """A, B and C have 800,000 bytes each; the ranks tell each other sizes and results alone."""
    a, b, c = (hybrid.empty((316, 316), comm=comm) for _ in range(3))
    filled(comm, a, 1)
    filled(comm, b, 2)
    operands, out = ((a, b), c) if comm.rank == 0 else ((None, None), None)
    hybrid.multiply(*operands, out=out, comm=comm)
    with hybrid.testing.count() as counts:
        hybrid.multiply(*operands, out=out, comm=comm)
    assert counts.bytes_sent < 60_000
    assert (counts.copied_in, counts.copied_out) == (0, 0)
    assert (c == 632).all()
    comm.Barrier()


@pytest.mark.mpi
def test_every_rank_may_fill_rows(comm):
    a = hybrid.empty((np.int64(2 * comm.size), np.uint8(3)), "float32", comm=comm, root=np.int32(0))
    a[2 * comm.rank : 2 * comm.rank + 2] = comm.rank
    comm.Barrier()
    np.testing.assert_array_equal(a, np.repeat(np.arange(comm.size, dtype="float32"), 2)[:, None] * np.ones((1, 3)))
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_on_other_nodes_there_is_nothing_and_products_are_right_all_the_same(comm):
    with hybrid.testing.pretend(ranks_per_node=1):
        a = hybrid.empty((6, 6), comm=comm, root=1)
        assert (a is None) == (comm.rank != 1)
        if comm.rank == 1:
            a[...] = np.arange(36).reshape(6, 6)
        c = hybrid.multiply(*((a, a) if comm.rank == 1 else (None, None)), comm=comm, root=1)
        assert c is None if comm.rank != 1 else np.array_equal(c, a @ a)


@pytest.mark.mpi(min_size=2)
def test_parts_views_and_mixed_operands_are_taken_as_ordinary_arrays(comm):
    a = filled(comm, hybrid.empty((8, 8), comm=comm), np.arange(64.0).reshape(8, 8))
    single, private, pairs = filled(comm, hybrid.empty((7, 7), "f4", comm=comm), 2), np.ones((8, 8)), [(None, None)] * 6
    if comm.rank == 0:
        odd = a.reshape(-1).view("u1")[4 : 4 + 8 * 49].view("f8").reshape(7, 7)
        pairs = [
            (a[:, ::2], private[::2]),
            (a, private),
            (private, a.T),
            (a.view("f4")[:, :8], private.astype("f4")),
            (single, a[:7, :7]),
            (odd, odd),
        ]
        odd[...] = np.arange(49).reshape(7, 7)
    for first, second in pairs:
        c = hybrid.multiply(first, second, comm=comm)
        assert c is None if comm.rank else np.allclose(c, first.astype("f8") @ second)
    comm.Barrier()


def mapped():
    """The files without a name that this process has mapped."""
    gc.collect()
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return {line[4] for line in lines if len(line) > 5 and line[3] != "00:00" and line[5].endswith("(deleted)")}


@pytest.mark.mpi(min_size=2)
def test_the_memory_has_no_name_and_goes_when_the_root_lets_go_of_it(comm):
    ones = [np.ones((2, 2)) if comm.rank == 0 else None] * 2
    hybrid.multiply(*ones, comm=comm)
    before, names = mapped(), set(os.listdir("/dev/shm"))
    a = hybrid.empty((600, 600), comm=comm)
    part = a[5:7]
    assert len(mapped() - before) == 1
    ours = {name for name in set(os.listdir("/dev/shm")) - names if "hybrid" in name}
    assert not ours, "nobody else can open it, and nothing stays when the job is killed"
    comm.Barrier()
    del a
    hybrid.multiply(*ones, comm=comm)
    assert len(mapped() - before) == 1
    del part
    hybrid.multiply(*ones, comm=comm)
    assert not mapped() - before
    for _ in range(5):
        hybrid.empty((600, 600), comm=comm)
    assert len(mapped() - before) <= 1
    other = comm.Dup()
    hybrid.empty((600, 600), comm=other)
    other.Free()
    assert len(mapped() - before) <= 1


OPENED = """
import os, re, stat, sys
named = sys.argv[1] == "named"
if named:
    del os.O_TMPFILE  # as where the file system has no files without a name
opened, original = [], os.open
def noting(path, flags, mode=0o777, **how):
    descriptor = original(path, flags, mode, **how)
    if "/dev/shm" in os.path.realpath(f"/proc/self/fd/{descriptor}"):
        status = os.fstat(descriptor)
        opened.append((str(path), flags, stat.S_IMODE(status.st_mode), status.st_nlink))
    return descriptor
os.open = noting
from mpi4py import MPI
import numpy, hybrid
comm = MPI.COMM_WORLD
os.umask(0)
for _ in range(2):
    a = hybrid.empty((600, 600), comm=comm)
    a[comm.rank] = comm.rank
    comm.Barrier()
    assert (a[:2, 5] == [0, 1]).all()
    comm.Barrier()
ours = [each for each in opened if "hybrid" in each[0] or each[3] == 0]
assert len(ours) >= 2, opened
assert {mode for _, _, mode, _ in ours} == {0o600}
if named:
    names = {re.fullmatch(r"hybrid-.*-([0-9a-f]{16})", os.path.basename(path))[1] for path, *_ in ours}
    assert len(names) == 2, "64 random bits each"
    new = os.O_CREAT | os.O_EXCL
    assert all(flags & new == new or flags & os.O_NOFOLLOW for _, flags, _, _ in ours), ours
    assert not any(os.path.exists(path) for path, *_ in ours), "until all have opened it"
else:
    assert {links for *_, links in ours} == {0}
print("as it should be")
"""


@pytest.mark.launcher
@pytest.mark.parametrize("how", ["without a name", "named"])
def test_no_other_user_can_open_the_memory_or_guess_its_name(tmp_path, how):
    """SECURITY.md: 0600, without a name where the system allows it, else with a random one that is new and no link."""
    program = tmp_path / "opened.py"
    program.write_text(OPENED)
    done = start([sys.executable, program, how], ranks=2)
    assert (done.returncode, done.stdout.count("as it should be")) == (0, 2), done.stderr


@pytest.mark.mpi
def test_odd_wishes_are_refused_on_all_ranks(comm):
    for shape in (3, (3,), (3, -1), (2, 2.5), (1, 2, 3), (True, False), (1 << 63, 0)):
        with refused("shapes", UsageError):
            hybrid.empty(shape, comm=comm)
    for dtype in ("longdouble", "datetime64[s]", "bogus", "<U3"):
        with refused("dtype", UsageError):
            hybrid.empty((2, 2), dtype, comm=comm)
    for root in (99, False, None, 0.0):
        with refused("root", UsageError):
            hybrid.empty((2, 2), comm=comm, root=root)
    if comm.size > 1:
        with refused("ranks-differ", UsageError):
            hybrid.empty((2, 3 if comm.rank == 1 else 2), comm=comm)
        with refused("ranks-differ", UsageError):
            hybrid.multiply(None, None, comm=comm) if comm.rank == 1 else hybrid.empty((3, 3), comm=comm)
    assert hybrid.empty([3, 2], comm=comm).shape == (3, 2)


@pytest.mark.mpi
def test_what_does_not_fit_is_refused(comm):
    for where in (comm, None):
        with refused("host-memory", DoesNotFit):
            hybrid.empty((1 << 40, 1 << 40), comm=where)
        with hybrid.testing.pretend(host_memory="1M"):
            with refused("host-memory", DoesNotFit):
                hybrid.empty((600, 600), comm=where)
            assert hybrid.empty((60, 60), comm=where).shape == (60, 60)
