# SPDX-License-Identifier: MIT
"""How many threads a rank takes and how much memory there is, from what the system, Slurm and OpenMP say."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from operator import mul
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.selection import examples
from threadpoolctl import threadpool_info

from hybrid.core.forks import Turn
from hybrid.core.problem import Problem, Span, Topology, alike, block, even_pieces, pieces
from hybrid.devices import row_sums
from hybrid.devices.base import Device, EventWait, compiled_loops
from hybrid.devices.row_sums import (
    NOT_INTEGRAL,
    WEIGHTED_ROWS,
    Allowed,
    Integers,
    RowChecksums,
    RowsToSum,
    Sample,
    can_sum,
    checksum_weights,
    compare,
    group_sums,
    mixed_total,
    row_checksums,
    sums_and_squares,
    times,
)
from hybrid.emulation.loaded_soon import wait_until_loaded
from hybrid.errors import DeviceUnavailable
from hybrid.host import threads as threads_of_products
from hybrid.host.memory import RowView, host_bytes_in
from hybrid.host.threads import choose_threads, core_quota, limited_threads, on_threads, product_threads
from hybrid.ranks.team import Team
from hybrid.testing import lacking
from hybrid.verification.freivalds import HostCheck, plan_alone, unsaid

EIGHT, MiB = tuple(range(8)), 1 << 20
LOOP = ctypes.CFUNCTYPE(
    None, *[ctypes.POINTER(each) for each in (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)], ctypes.c_void_p
)


@pytest.mark.parametrize(
    ("asked", "slurm", "openmp", "expected"),
    [
        (3, "5", "6", (3, "--threads")),
        (0, "5", "6", (5, "SLURM_CPUS_PER_TASK")),
        (0, "", "6", (6, "OMP_NUM_THREADS")),
        (0, "", "4,2", (4, "OMP_NUM_THREADS")),
        (0, "", " 4 , 2", (4, "OMP_NUM_THREADS")),
        (0, "many", "2", (2, "OMP_NUM_THREADS")),
        *((0, "", text, (8, "8 cores")) for text in ("", "0", "-2", "many")),
    ],
)
def test_what_is_asked_comes_before_slurm_before_openmp_before_the_cores(asked, slurm, openmp, expected):
    found = choose_threads(asked, 0, [EIGHT], {"SLURM_CPUS_PER_TASK": slurm, "OMP_NUM_THREADS": openmp})
    assert (found.count, found.reason) == expected


@pytest.mark.parametrize(
    ("cores", "quota", "counts"),
    [
        ([EIGHT], None, [8]), ([EIGHT] * 3, None, [2, 2, 2]), ([EIGHT] * 20, None, [1] * 20),
        ([(0, 1, 2), (3, 4), (5,)], None, [3, 2, 1]), ([(0, 1, 2, 3), (2, 3, 4, 5)], None, [3, 3]), ([EIGHT] * 2, 4.0, [2, 2]),
        ([EIGHT] * 2, 3.0, [1, 1]), ([EIGHT] * 2, 0.5, [1, 1]), ([EIGHT] * 2, 100.0, [4, 4]),
    ],
)  # fmt: skip
def test_ranks_share_the_cores_and_the_quota_of_their_node(cores, quota, counts):
    assert [choose_threads(0, rank, cores, {}, quota).count for rank in range(len(cores))] == counts
    assert choose_threads(6, 0, cores, {}, quota).count == 6  # what is asked for may be more


@given(ranks=st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=8), quota=st.none() | st.floats(0.1, 20))
def test_threads_of_all_ranks_never_exceed_cores_or_quota_by_more_than_one_a_rank(ranks, quota):
    cores = [tuple(sorted(each)) for each in ranks]
    counts = [choose_threads(0, rank, cores, {}, quota).count for rank in range(len(cores))]
    assert min(counts) >= 1
    assert sum(counts) < min(len(set().union(*ranks)), quota or 99) + len(ranks)


def made_system(root, available_kib=None, cgroup=None, limits=()):
    """A made-up /proc and /sys. `limits`: (folder of the control group, memory.max, memory.current)."""
    (root / "proc/self").mkdir(parents=True)
    if available_kib is not None:
        (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemFree: 111111 kB\nMemAvailable:   {available_kib} kB\n")
    if cgroup is not None:
        (root / "proc/self/cgroup").write_text(cgroup)
    for folder, most, current in limits:
        place = root / "sys/fs/cgroup" / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(f"{most}\n")
        (place / "memory.current").write_text(f"{current}\n")
    return root


@pytest.mark.parametrize(
    ("available", "cgroup", "limits", "left"),
    [
        (2 * 1024, None, [], 2),
        (10 * 1024, "0::/job/step\n", [("job/step", 5 * MiB, 2 * MiB)], 3),
        (1024, "0::/job\n", [("job", 50 * MiB, 0)], 1),
        *((20 * 1024, "0::/a/b/c\n", [(level, (4 if level == tight else 9) * MiB, MiB) for level in ("", "a", "a/b", "a/b/c")], 3)
          for tight in ("", "a", "a/b", "a/b/c")),
        (20 * 1024, "0::/job/step\n", [("job/step", "max", MiB), ("job", 4 * MiB, MiB)], 3),
        (20 * 1024, "0::/\n", [("", 4 * MiB, MiB)], 3),  # a container sees its own group as the root
        (20 * 1024, "0::/../other/job\n", [("", 4 * MiB, MiB)], 3),  # outside what is mounted
        (1024, "0::/job\n", [("job", MiB, 2 * MiB)], 0),  # beyond its limit: nothing, and not less
        (2048, "5:memory:/job\n1:cpu:/job\n", [("job", MiB, MiB)], 2),  # of the first version
    ],
)  # fmt: skip
def test_memory_is_what_the_system_has_or_the_tightest_control_group_leaves(tmp_path, available, cgroup, limits, left):
    assert host_bytes_in(made_system(tmp_path, available, cgroup, limits)) == left * MiB


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("50000 100000", 0.5), ("", None), ("what", None), (None, None)],
)
def test_the_quota_of_processor_time_is_the_control_groups(tmp_path, text, quota):
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    if text is not None:
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text(text)
    assert core_quota(tmp_path) == quota


def test_commands_settle_their_threads_before_numpy_is_loaded():
    """BLAS reads their number once, when it is loaded."""
    modules = "hybrid.commands.matmul, hybrid.planning.decision, hybrid.ranks.team"
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; assert 'numpy' not in sys.modules"], check=True)


# --- What the CPU computes with threads of this package: products by BLAS of every shape and layout, checksums of rows, and
# parts in order


def by_definition(bits, weights):
    """The checksums of rows of unsigned integers, with Python's."""
    weighted, plain = weights.tolist(), [weight & -weight for weight in weights.tolist()]  # whose places in a word count alone
    rows = [(plain if number % WEIGHTED_ROWS else weighted, row) for number, row in enumerate(bits.tolist())]
    return np.array([sum(map(mul, factors, row)) % 2**64 for factors, row in rows], np.uint64)


@pytest.mark.parametrize(("asked", "spared", "of_blas"), [(2, False, 1), (8, False, 8), (8, True, 1), (32, True, 32)])
def test_few_threads_are_ours_and_many_of_blas_unless_copies_need_the_cores(monkeypatch, asked, spared, of_blas):
    monkeypatch.setattr(threads_of_products, "_own_threads", 4)
    if spared:
        threads_of_products.spare_cores()
    with limited_threads(asked):
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} <= {of_blas}
        assert product_threads() == (asked if of_blas == 1 else 1)


@pytest.mark.parametrize("threads", [0, 1, 2, 5, 40])
def test_results_of_parts_come_in_order_by_as_many_threads_as_asked_for(threads):
    assert list(on_threads(threads, lambda part: part**2, range(100))) == [part**2 for part in range(100)]
    meeting = threading.Barrier(max(1, min(threads, 4)))  # breaks, where fewer come
    assert list(on_threads(threads, lambda part: meeting.wait(240) >= 0, range(max(1, min(threads, 4)))))
    with pytest.raises(ValueError, match="7"):
        list(on_threads(threads, lambda part: int(f"{part}x") if part == 7 else part, range(100)))
    assert list(on_threads(threads, lambda part: sum(on_threads(4, abs, range(part))), range(5))) == [0, 0, 1, 3, 6]  # nested


def covers(parts, span):
    ends = [span.lo, *(part.hi for part in parts)]
    return [part.lo for part in parts] == ends[:-1] and ends[-1] == span.hi


def test_no_thread_goes_on_when_a_signal_comes_before_it_is_known(monkeypatch):
    """As of a handler that raises while threads are asked: their caller may free what they work at."""
    begun, may_end, ask, ended = threading.Event(), threading.Event(), threads_of_products._ask, []

    def interrupted(*asked):
        ask(*asked)
        assert begun.wait(240)
        threading.Timer(0.05, may_end.set).start()
        raise InterruptedError

    def work(part):
        begun.set()
        assert may_end.wait(240)
        ended.append(part)

    monkeypatch.setattr(threads_of_products, "_ask", interrupted)
    with pytest.raises(InterruptedError):
        on_threads(2, work, range(4))
    assert ended == [0]


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
    topology = Topology(alike(names))
    assert sorted(rank for ranks in topology.nodes for rank in ranks) == list(range(len(names)))
    assert covers([topology.rows_of_node(node, total) for node in range(len(topology.nodes))], Span(0, total))
    for node, ranks in enumerate(topology.nodes):
        assert {names[rank] for rank in ranks} == {names[ranks[0]]}
        assert covers([topology.rows_of_rank(rank, total) for rank in ranks], topology.rows_of_node(node, total))


# --- Loops in C give what their NumPy form does: the sums and norms of the host's check, whatever the elements are; checksums
# of rows, to the last bit; and the kernels `loops` and `loops_ikj`, whose sums are rounded term after term


SPECIAL = [0.0, -0.0, 1.5, np.nan, np.inf, -np.inf, 1e30, 1e200, 1e-30, 1e-200, 5e-324]
KINDS = st.sampled_from(["integers", "normal", "special"])
DTYPES = st.sampled_from(["float32", "float64"])
SEEDS = st.integers(0, 2**32)
THREADS = st.sampled_from([1, 3])


@pytest.fixture(scope="module", autouse=True)
def _loops_are_loaded():
    can_sum(np.zeros((1, 1)))  # loads them in the background
    wait_until_loaded(60)
    assert can_sum(np.zeros((1, 1))) or lacking("c compiler")


def numbers(rng, shape, dtype, kind):
    values = rng.standard_normal(shape) if kind == "normal" else rng.integers(-9, 10, shape).astype(float)
    if kind == "special":
        places = rng.random(shape) < 0.1
        values[places] = rng.choice(SPECIAL, shape)[places]
    with np.errstate(all="ignore"):
        return values.astype(dtype)


TRANSPOSED = 4  # instead of the number of columns that are more


def both_ways(more, *matrices):
    """The same matrices twice: within wider rows, or transposed, where C can read them, and, while there is no library in C, of
    another byte order."""
    wide = [np.pad(matrix, ((0, 0), (0, more)), constant_values=7)[:, : matrix.shape[1]] for matrix in matrices]
    wide = [np.asfortranarray(each) for each in wide] if more == TRANSPOSED else wide
    assert all(can_sum(each) or (more == TRANSPOSED and can_sum(each.T)) for each in wide)
    yield wide
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_sums, "adder", lambda: SimpleNamespace(loaded=None))
        yield [matrix.astype(matrix.dtype.newbyteorder()) for matrix in matrices]


def assert_close(found, wanted, sizes, relative=1e-14):
    """Within rounding of sums of these sizes, where these are finite."""
    with np.errstate(all="ignore"):
        assert ((np.abs(found - wanted) <= relative * sizes) | ~np.isfinite(sizes)).all()


@pytest.mark.needs("c compiler")
@settings(max_examples=80)
@given(
    *[st.integers(1, 150)] * 2, st.integers(0, TRANSPOSED), st.sampled_from([1, 7, 64]), THREADS, DTYPES, KINDS, SEEDS
)  # fmt: skip
def test_sums_and_squares_of_groups(rows, columns, more, group, threads, dtype, kind, seed):
    rng = np.random.default_rng(seed)
    values, x = numbers(rng, (rows, columns), dtype, kind), rng.standard_normal(columns)
    (sums, squares, largest), (wanted, wanted_squares, wanted_largest) = (
        (*group_sums(each, x, group, looked := Integers(), threads), looked.largest) for (each,) in both_ways(more, values)
    )
    with np.errstate(all="ignore"):
        assert_close(sums, wanted, sums_and_squares(np.abs(values.astype(np.float64)), np.abs(x), group)[0])
    np.testing.assert_allclose(squares, wanted_squares, rtol=1e-13, atol=0, equal_nan=True)
    assert largest == wanted_largest


@pytest.mark.needs("c compiler")
@settings(max_examples=20)
@given(st.integers(1, 300), st.integers(1, 1300), st.integers(1, 20), st.integers(0, TRANSPOSED), THREADS, DTYPES, KINDS, SEEDS)
def test_products_with_the_sums(rows, inner, columns, more, threads, dtype, kind, seed):
    rng = np.random.default_rng(seed)
    a, y = numbers(rng, (rows, inner), dtype, kind), rng.standard_normal((inner, columns))
    (product, norms, largest), (wanted, wanted_norms, wanted_largest) = (
        (*times(each, y, looked := Integers(), threads), looked.largest) for (each,) in both_ways(more, a)
    )
    np.testing.assert_array_equal(np.isfinite(product), np.isfinite(wanted))
    with np.errstate(all="ignore"):
        assert_close(product, wanted, np.abs(a).astype(np.float64) @ np.abs(y))
    np.testing.assert_allclose(norms, wanted_norms, rtol=1e-13, equal_nan=True)
    assert largest == wanted_largest


@pytest.mark.needs("c compiler")
@settings(max_examples=60)
@given(
    st.integers(1, 90), st.sampled_from([1, 63, 64, 200, 4200]), st.integers(0, 3), DTYPES, KINDS, KINDS, st.booleans(), SEEDS
)  # fmt: skip
def test_comparison_of_sums(rows, columns, more, dtype, kind, of_norms, integral, seed):
    rng, groups = np.random.default_rng(seed), -(-columns // 64)
    c, x = numbers(rng, (rows, columns), dtype, kind), rng.standard_normal(columns)
    with np.errstate(all="ignore"):
        right = sums_and_squares(np.nan_to_num(c.astype(np.float64)), x, 64)[0]
        sums = right + 1e-3 * (1 + np.abs(right)) * rng.standard_normal((rows, groups))
    limits = np.full(groups, 1e-300), 1e-301, rng.uniform(1e30, 1e300, groups)
    norms_a, norms_b = (np.abs(numbers(rng, size, "float64", of_norms)) for size in (rows, groups))
    norms_a *= 100.0 ** rng.integers(4)  # C's sums are small beside them where terms cancel
    allowed, found = Allowed(norms_b, 1e-8, 0.02, *limits, integral), []
    for (each,) in both_ways(more, c):
        found.append(sums.copy())
        compare(each, x, 64, found[-1], norms_a, allowed, 2)
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-40)


@pytest.mark.needs("c compiler")
@settings(max_examples=80)
@given(
    st.integers(1, 90), st.integers(1, 600) | st.integers(1, 20), st.sampled_from([1, 5, 8, 13, 64, 200, 700]), st.integers(0, 3),
    THREADS, DTYPES,
    KINDS, KINDS, st.booleans(), SEEDS,
)  # fmt: skip
def test_a_rank_alone_compares_in_one_pass_what_it_sums_of_a_and_b(
    rows, inner, columns, more, threads, dtype, kind, of_b, reverse, seed
):
    rng, problem = np.random.default_rng(seed), Problem(rows, inner, columns, dtype)
    a, b = numbers(rng, (rows, inner), dtype, kind), numbers(rng, (inner, columns), dtype, of_b)
    with np.errstate(all="ignore"):
        c = (a.astype(np.float64) @ b + 1e-3 * rng.standard_normal((rows, columns))).astype(dtype)
        c[rng.integers(rows)] = np.rint(c[rng.integers(rows)])
    found, rows_of = [], slice(None, None, -1 if reverse else 1)

    def compared(a_, b_, c_, multiply=None):
        views = (RowView(each, Span(0, len(each))) for each in (a_[rows_of], b_, c_[rows_of]))
        return HostCheck(Team(), plan_alone(problem), tuple(views), threads, unsaid).compared(seed, multiply)

    for a_, b_, c_ in both_ways(more, a, b, c):
        found.append(compared(a_, b_, c_))
        into = np.full_like(c_, 7)

        def some_rows(matrices, sizes, steps, unused, into=into, right=c_):
            first = abs(matrices[2] - into[rows_of].ctypes.data) // into.strides[0]
            into[rows_of][first : first + sizes[1]] = right[rows_of][first : first + sizes[1]]

        def all_rows(into=into, right=c_):
            into[...] = right

        loop = LOOP(some_rows)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(row_sums, "matmul_loop", lambda char, loop=loop: ctypes.cast(loop, ctypes.c_void_p).value)
            in_passing = compared(a_, b_, into, all_rows)
        assert in_passing.totals[2:] == found[-1].totals[2:]
        sizes, wanted_sizes = ([size for *_, size in each.worst] for each in (in_passing, found[-1]))
        assert sizes == pytest.approx(wanted_sizes, rel=1e-3, abs=1e-2)
    one, wanted = found
    looked_at = slice(None, None, 2 if one.largest[2] == NOT_INTEGRAL else 1)  # else nobody looks at A
    assert one.largest[looked_at] == pytest.approx(wanted.largest[looked_at], rel=1e-2, abs=0.1)
    assert one.totals[2:] == wanted.totals[2:]
    for (row, group, size), (wanted_row, wanted_group, wanted_size) in zip(one.worst, wanted.worst, strict=True):
        assert (row, group) == (wanted_row, wanted_group) or size == pytest.approx(wanted_size, rel=1e-2, abs=1e4)


@pytest.mark.needs("c compiler")
@example(2, 2, 0, "f2", "C", Sample(1, 0), "F", 0)
@settings(max_examples=60)
@given(
    st.integers(0, 70) | st.integers(0, 700),
    st.integers(0, 40),
    st.integers(0, 5),
    st.sampled_from(["f2", "f4", "f8"]),
    st.sampled_from("ABC"),
    st.builds(Sample, st.sampled_from([1, 1, 2, 16]), st.integers(0, 15)),
    st.sampled_from("CF"),
    SEEDS,
)
def test_checksums_of_rows(rows, columns, first, dtype, operand, sample, order, seed):
    """Of all bits: any bytes may be elements. Results are added to what was there, and nothing beside them is written. Some rows
    of C are summed again at the end, when what came late counts."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 256, (rows, np.dtype(dtype).itemsize * (columns + 8)), np.uint8).view(dtype)
    weights, where = checksum_weights(columns + 8, whole.itemsize), Span(first, first + columns)
    wanted, whole, late = np.empty(rows, np.uint64), whole.copy(order), whole[1:2].copy()
    row_checksums(whole[:, where.slice], weights[where.slice], wanted, sample)
    lines = (np.arange(columns) * whole.itemsize // 64 + np.arange(rows)[:, None] + sample.first) % sample.step == 0
    bits = np.ascontiguousarray(whole[:, where.slice]).view(f"u{whole.itemsize}")
    np.testing.assert_array_equal(wanted, by_definition(np.where(lines, bits, 0), weights[where.slice]))
    for loaded in (row_sums.adder().loaded, None):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(row_sums.adder(), "loaded", loaded)
            sums = RowChecksums(3, 1, sample)
        checksums, totals = np.full(rows + 3, 7, np.uint64), np.full(3, 8, np.uint64)
        if operand == "C":
            whole[1:2] = 0
        sums.sum(RowsToSum(operand, whole, Span(0, rows), where, weights, checksums, 2, totals, 1, 5), None, Device())
        whole[1:2] = late
        sums.wait()
        np.testing.assert_array_equal(checksums, [7, 7, *wanted, 7])
        assert totals.tolist() == [8, 8 + mixed_total(wanted, 5), 8]


@pytest.mark.needs("c compiler")
@pytest.mark.parametrize("ends", ["right", "failed", "abandoned"])
@pytest.mark.parametrize("threads", [1, 3])
def test_checksums_of_rows_that_copies_bring(rng, threads, ends):
    """Each after its own event, in whichever order these come; a failed copy is told."""
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    complete = [threading.Event() for _ in range(9)]

    def wait(event):
        complete[event - 1].wait()
        return 7 if (event, ends) == (5, "failed") else 0

    waits = [function(lambda context: 0), function(wait)]
    enter, wait_for = (ctypes.cast(each, ctypes.c_void_p) for each in waits)
    device = SimpleNamespace(event_wait=EventWait(enter, None, wait_for))
    matrices = [rng.standard_normal((int(rng.integers(1, 700)), 60)) for _ in complete]
    sums, weights, totals = RowChecksums(threads), checksum_weights(60, 8), np.zeros(9, np.uint64)
    for number, matrix in enumerate(matrices):
        into, every = np.zeros(len(matrix), np.uint64), (Span(0, len(matrix)), Span(0, 60))
        rows = RowsToSum("ABC"[number % 3], matrix, *every, weights, into, 0, totals, number, 5)
        sums.sum(rows, SimpleNamespace(ptr=number + 1), device)
    for number in rng.permutation(9).tolist():
        complete[number].set()
    if ends == "right":
        sums.wait()
        wanted = [mixed_total(by_definition(matrix.view("u8"), weights), 5) for matrix in matrices]
        np.testing.assert_array_equal(totals, wanted)
    elif ends == "failed":
        with pytest.raises(DeviceUnavailable, match="CUDA error 7"):
            sums.wait()
    sums.abandon()


@pytest.mark.needs("c compiler")
@pytest.mark.parametrize("name", ["loops", "loops_ikj"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (33, 70, 41), (4, 0, 3), (0, 3, 2), (2, 3, 0)])
def test_every_bit_of_the_kernels_is_that_of_sums_in_order(rng, name, dtype, shape):
    (n, l, m), wide = shape, [rng.standard_normal((70, 80)).astype(dtype) for _ in range(3)]
    a, b, c = (matrix[:rows, 3 : 3 + columns] for matrix, rows, columns in zip(wide, (n, l, n), (l, m, m), strict=True))
    in_order, beside = np.zeros((n, m), dtype), wide[2].copy()
    for k in range(l):
        in_order = in_order + a[:, k : k + 1] * b[k : k + 1, :]
    c[...] = np.nan
    compiled_loops(name, dtype)(a, b, c)
    beside[:n, 3 : 3 + m] = in_order
    np.testing.assert_array_equal(wide[2], beside)


# Compilations


def test_the_end_of_a_forked_process_leaves_a_compilation_its_folder(tmp_path):
    script = """
import os, sys, threading
from hybrid.emulation.cache import cached

def compile_in(folder, log):
    begun.set()
    ended.wait()
    (folder / "library").write_bytes(b"compiled")
    return folder / "library"

begun, ended = threading.Event(), threading.Event()
compiling = threading.Thread(target=lambda: print(cached("library", compile_in).name))
compiling.start()
begun.wait()
if not os.fork():
    sys.exit()
os.wait()
ended.set()
"""
    command = [sys.executable, "-W", "ignore", "-c", script]  # from 3.12 on Python warns of forks beside threads
    done = subprocess.run(command, env={**os.environ, "HYBRID_CACHE": str(tmp_path)}, capture_output=True)
    assert (done.stdout, done.stderr) == (b"library\n", b"")


# Turns


def test_an_interrupt_at_any_moment_leaves_a_turn_free():
    turn, before = Turn(), signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(300):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + 1e-7 * number)
                while True:
                    with turn:
                        pass
            with turn:
                pass
    finally:
        signal.signal(signal.SIGALRM, before)
