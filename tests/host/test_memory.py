# SPDX-License-Identifier: MIT
"""How much memory there is, from the files the system tells it in."""

from __future__ import annotations

import os

import numpy as np
import pytest

import hybrid
from hybrid.core.text import readable
from hybrid.core.ttl_cache import ttl_cached
from hybrid.host import memory
from hybrid.host.memory import available_host_bytes, free_bytes_in, host_bytes_in

MiB = 1 << 20


def made_system(root, available_kib=None, cgroup=None, limits=()):
    """A made-up /proc and /sys. `limits`: (folder of the control group, memory.max, memory.current)."""
    (root / "proc/self").mkdir(parents=True)
    if available_kib is not None:
        text = f"MemTotal:       99999999 kB\nMemFree:          111111 kB\nMemAvailable:   {available_kib} kB\nBuffers: 5 kB\n"
        (root / "proc/meminfo").write_text(text)
    if cgroup is not None:
        (root / "proc/self/cgroup").write_text(cgroup)
    for folder, most, current in limits:
        place = root / "sys/fs/cgroup" / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(f"{most}\n")
        (place / "memory.current").write_text(f"{current}\n")
    return root


def test_available_is_what_the_system_says(tmp_path):
    assert host_bytes_in(made_system(tmp_path, 2048)) == 2 * MiB


def test_a_control_groups_limit_less_its_use_counts_where_it_is_smaller(tmp_path):
    system = made_system(tmp_path, 10 * 1024, "0::/job/step\n", [("job/step", 5 * MiB, 2 * MiB)])
    assert host_bytes_in(system) == 3 * MiB


def test_a_larger_limit_than_the_system_has_changes_nothing(tmp_path):
    system = made_system(tmp_path, 1024, "0::/job\n", [("job", 50 * MiB, 0)])
    assert host_bytes_in(system) == MiB


@pytest.mark.parametrize("tightest", ["", "job", "job/step", "job/step/task"])
def test_the_tightest_level_of_the_hierarchy_counts(tmp_path, tightest):
    levels = ["", "job", "job/step", "job/step/task"]
    limits = [(level, 4 * MiB if level == tightest else 9 * MiB, MiB) for level in levels]
    assert host_bytes_in(made_system(tmp_path, 20 * 1024, "0::/job/step/task\n", limits)) == 3 * MiB


def test_levels_without_a_limit_are_passed_over(tmp_path):
    system = made_system(tmp_path, 20 * 1024, "0::/job/step\n", [("job/step", "max", MiB), ("job", 4 * MiB, MiB)])
    assert host_bytes_in(system) == 3 * MiB


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    assert host_bytes_in(made_system(tmp_path, 20 * 1024, "0::/\n", [("", 4 * MiB, MiB)])) == 3 * MiB


def test_a_group_outside_what_is_mounted_sets_no_limit_but_the_mounted_ones_do(tmp_path):
    system = made_system(tmp_path, 20 * 1024, "0::/../other/job\n", [("", 4 * MiB, MiB)])
    assert host_bytes_in(system) == 3 * MiB


def test_a_group_beyond_its_limit_leaves_nothing_and_not_less(tmp_path):
    assert host_bytes_in(made_system(tmp_path, 1024, "0::/job\n", [("job", MiB, 2 * MiB)])) == 0


def test_groups_of_the_first_version_are_not_taken_for_the_second(tmp_path):
    system = made_system(tmp_path, 2048, "5:memory:/job\n1:cpu:/job\n", [("job", MiB, MiB)])
    assert host_bytes_in(system) == 2 * MiB


WHOLE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_system_without_proc_is_taken_at_its_whole_memory(tmp_path):
    assert host_bytes_in(tmp_path) == WHOLE


def test_a_system_that_does_not_tell_what_is_available_still_gives_a_number(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       9999 kB\nMemFree:        1111 kB\n")
    assert 0 < host_bytes_in(tmp_path) <= WHOLE


def test_memory_given_back_a_moment_ago_is_seen_before_a_product_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "_host_bytes_lately", lambda: 1)
    np.testing.assert_array_equal(hybrid.multiply(np.ones((3, 3)), np.ones((3, 3)), device="cpu"), np.full((3, 3), 3.0))


def test_memory_is_looked_at_again(monkeypatch):
    looks = []
    monkeypatch.setattr(memory, "host_bytes_in", lambda root: looks.append(root) or 1)
    monkeypatch.setattr(memory, "_host_bytes_lately", ttl_cached(memory._host_bytes))
    monkeypatch.setattr("time.monotonic", iter([10.0, 10.01, 11.0]).__next__)
    for _ in range(3):
        available_host_bytes()
    assert len(looks) == 2
    available_host_bytes(now=True)
    assert len(looks) == 3


def test_this_system_has_some_memory_and_some_room_in_its_folders(tmp_path):
    assert 0 < available_host_bytes() <= WHOLE
    assert free_bytes_in(tmp_path) > 0


def test_room_in_a_folder_is_what_an_ordinary_user_may_take(monkeypatch, tmp_path):
    class Status:
        f_bavail, f_bfree, f_frsize, f_bsize = 3, 5, 4096, 1 << 20

    monkeypatch.setattr(os, "statvfs", lambda folder: Status)
    assert free_bytes_in(tmp_path) == 3 * 4096


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (MiB, "1.0 MiB"),
        (2.5 * 2**30, "2.5 GiB"),
        (2**40, "1.0 TiB"),
        (5000 * 2**40, "4.9 PiB"),
        (1.5 * 2**60, "1.5 EiB"),
        (5000 * 2**60, "5000.0 EiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_bytes_are_shown_in_the_unit_that_fits(count, text):
    assert readable(count) == text
