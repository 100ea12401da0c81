# SPDX-License-Identifier: MIT
"""How many threads a rank takes, and whose word counts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import ROOT
from support.selection import examples

from hybrid.host.threads import (
    Threads,
    announce_threads,
    choose_threads,
    core_quota,
    limited_threads,
    product_threads,
    usable_cores,
)

EIGHT = tuple(range(8))


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        (3, {"SLURM_CPUS_PER_TASK": "5", "OMP_NUM_THREADS": "6"}, Threads(3, "--threads")),
        (0, {"SLURM_CPUS_PER_TASK": "5", "OMP_NUM_THREADS": "6"}, Threads(5, "SLURM_CPUS_PER_TASK")),
        (0, {"OMP_NUM_THREADS": "6"}, Threads(6, "OMP_NUM_THREADS")),
        (0, {}, Threads(8, "8 cores")),
        (0, {"SLURM_CPUS_PER_TASK": "", "OMP_NUM_THREADS": ""}, Threads(8, "8 cores")),
        (0, {"OMP_NUM_THREADS": "4,2"}, Threads(4, "OMP_NUM_THREADS")),
        (0, {"OMP_NUM_THREADS": " 4 , 2"}, Threads(4, "OMP_NUM_THREADS")),
        (0, {"OMP_NUM_THREADS": "0"}, Threads(8, "8 cores")),
        (0, {"OMP_NUM_THREADS": "-2"}, Threads(8, "8 cores")),
        (0, {"OMP_NUM_THREADS": "many"}, Threads(8, "8 cores")),
        (0, {"SLURM_CPUS_PER_TASK": "many", "OMP_NUM_THREADS": "2"}, Threads(2, "OMP_NUM_THREADS")),
    ],
)
def test_what_is_asked_comes_before_slurm_before_openmp_before_the_cores(asked, environment, expected):
    assert choose_threads(asked, 0, [EIGHT], environment) == expected


@pytest.mark.parametrize(("ranks", "count"), [(1, 8), (2, 4), (3, 2), (4, 2), (8, 1), (20, 1)])
def test_ranks_with_the_same_cores_share_them(ranks, count):
    for rank in range(ranks):
        chosen = choose_threads(0, rank, [EIGHT] * ranks, {})
        assert chosen == Threads(count, f"8 cores ÷ {ranks} ranks" if ranks > 1 else "8 cores")


def test_ranks_bound_to_cores_of_their_own_use_all_of_them():
    cores = [(0, 1, 2), (3, 4), (5,)]
    assert [choose_threads(0, rank, cores, {}) for rank in range(3)] == [
        Threads(3, "3 cores"),
        Threads(2, "2 cores"),
        Threads(1, "1 core"),
    ]


def test_of_cores_that_overlap_in_part_only_those_are_shared():
    assert [choose_threads(0, rank, [(0, 1, 2, 3), (2, 3, 4, 5)], {}).count for rank in range(2)] == [3, 3]


@pytest.mark.parametrize(("quota", "counts"), [(None, [4, 4]), (4.0, [2, 2]), (3.0, [1, 1]), (0.5, [1, 1]), (100.0, [4, 4])])
def test_the_control_groups_quota_is_shared_too(quota, counts):
    assert [choose_threads(0, rank, [EIGHT] * 2, {}, quota).count for rank in range(2)] == counts


def test_what_is_asked_for_may_exceed_the_quota():
    assert choose_threads(6, 0, [EIGHT], {}, quota=1.0).count == 6


@examples(100)
@given(ranks=st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=8), quota=st.none() | st.floats(0.1, 20))
def test_threads_of_all_ranks_never_exceed_cores_or_quota_by_more_than_one_a_rank(ranks, quota):
    cores = [tuple(sorted(each)) for each in ranks]
    counts = [choose_threads(0, rank, cores, {}, quota).count for rank in range(len(cores))]
    assert all(1 <= count <= len(mine) for count, mine in zip(counts, cores, strict=True))
    beyond_one = sum(count for count in counts if count > 1)
    assert beyond_one <= len({core for mine in cores for core in mine}) + 1e-6
    assert quota is None or beyond_one <= quota + 1e-6


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("50000 100000", 0.5), ("", None), ("what", None), (None, None)],
)
def test_the_quota_is_read_from_the_control_group(tmp_path, text, quota):
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "cpu.max").write_text(text)
    assert core_quota(tmp_path) == quota


def test_usable_cores_are_those_this_process_is_bound_to(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5, 3, 4}, raising=False)
    assert usable_cores() == (3, 4, 5)


def test_a_system_without_affinity_offers_all_its_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == (0, 1, 2)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == (0,)


def pools():
    from threadpoolctl import threadpool_info

    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_blas_is_held_to_its_threads_within_the_context_only():
    import numpy  # noqa: F401 (brings its BLAS)

    before = pools()
    assert before, "this NumPy comes with a BLAS that threadpoolctl does not know"
    with limited_threads(2):
        assert set(pools()) == {1}
        assert product_threads() == 2
        with limited_threads(1):
            assert product_threads() == 1
        assert product_threads() == 2
    assert pools() == before


def test_blas_itself_uses_more_threads_than_there_are_of_ours(monkeypatch):
    import numpy  # noqa: F401

    before = pools()
    monkeypatch.setattr("hybrid.host.threads.MOST_THREADS", 1)
    with limited_threads(2):
        assert set(pools()) == {2}
        assert product_threads() == 1
    assert pools() == before


def test_threads_announced_before_numpy_is_loaded_need_no_limiting():
    script = (
        "import sys; from hybrid.host.threads import announce_threads, limited_threads; announce_threads(3); import numpy\n"
        "from hybrid.host.threads import product_threads; assert product_threads() == 3\n"
        "with limited_threads(3): assert 'threadpoolctl' not in sys.modules and product_threads() == 3\n"
        "from threadpoolctl import threadpool_info; print(*{pool['num_threads'] for pool in threadpool_info()})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1"]


@pytest.mark.parametrize("users", [{}, {"OPENBLAS_MAIN_FREE": "0"}])
def test_after_the_announcement_numpy_is_loaded_without_a_change_of_the_environment(users):
    """The GPUs' driver may read it meanwhile."""
    script = (
        "import os, sys; from hybrid.host.threads import announce_threads; announce_threads(3)\n"
        "sys.addaudithook(lambda event, given: event in ('os.putenv', 'os.unsetenv') and print(event, *given))\n"
        "import numpy; print(os.environ['OPENBLAS_MAIN_FREE'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for variable in ("OPENBLAS_MAIN_FREE", "GOTOBLAS_MAIN_FREE"):
        environment.pop(variable, None)
    run = subprocess.run([sys.executable, "-c", script], env=environment | users, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [*(users or {"": "1"}).values()]


def test_announcing_after_numpy_is_loaded_leaves_the_environment_alone():
    import numpy  # noqa: F401

    before = dict(os.environ)
    announce_threads(77)
    assert dict(os.environ) == before


def test_what_settles_the_threads_does_not_load_numpy():
    """Else its BLAS would have started its threads by then."""
    program = (
        "import sys, hybrid.commands.matmul, hybrid.selection.inventory, hybrid.ranks.world; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
