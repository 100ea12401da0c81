# SPDX-License-Identifier: MIT
"""How many threads a rank takes and how much memory there is, from what the system, Slurm and OpenMP say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.host.memory import host_bytes_in
from hybrid.host.threads import choose_threads, core_quota

EIGHT, MiB = tuple(range(8)), 1 << 20


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
        ([EIGHT], None, [8]),
        ([EIGHT] * 3, None, [2, 2, 2]),
        ([EIGHT] * 20, None, [1] * 20),
        ([(0, 1, 2), (3, 4), (5,)], None, [3, 2, 1]),
        ([(0, 1, 2, 3), (2, 3, 4, 5)], None, [3, 3]),
        ([EIGHT] * 2, 4.0, [2, 2]),
        ([EIGHT] * 2, 3.0, [1, 1]),
        ([EIGHT] * 2, 0.5, [1, 1]),
        ([EIGHT] * 2, 100.0, [4, 4]),
    ],
)
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
