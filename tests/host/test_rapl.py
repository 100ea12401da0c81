# SPDX-License-Identifier: MIT
"""The processors' counters of energy, in a folder that stands for the system's."""

from __future__ import annotations

import os
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_rapl import RANGE, add, two_processors, zone

from hybrid.core.energy import CPU, MEMORY
from hybrid.host.rapl import Rapl


def test_processors_and_their_memory_count_and_parts_of_them_do_not(tmp_path):
    package, memory, other_package, _ = two_processors(tmp_path)
    rapl = Rapl(tmp_path)
    assert rapl.joules() == {CPU: 0.0, MEMORY: 0.0}
    add(package, 20_000_000)
    add(other_package, 5_000_000)
    add(memory, 3_000_000)
    add(tmp_path / "intel-rapl:0:0" / "energy_uj", 11_000_000)
    add(tmp_path / "intel-rapl:2" / "energy_uj", 99_000_000)
    assert rapl.joules() == {CPU: 25.0, MEMORY: 3.0}
    assert rapl.tells_memory


def test_what_the_counters_had_before_is_not_counted_and_what_is_read_twice_counts_once(tmp_path):
    counter = zone(tmp_path, "0", "package-0-die-0", 123_456_789)
    rapl = Rapl(tmp_path)
    add(counter, 2_000_000)
    assert [rapl.joules() for _ in range(2)] == [{CPU: 2.0}, {CPU: 2.0}]
    assert not rapl.tells_memory


@given(st.integers(0, RANGE - 1), st.lists(st.integers(0, RANGE - 1), min_size=1, max_size=20))
def test_a_counter_may_go_round_between_any_two_readings(tmp_path_factory, before, steps):
    folder = tmp_path_factory.mktemp("powercap")
    counter = zone(folder, "0", "package-0", before)
    rapl = Rapl(folder)
    for done in range(1, len(steps) + 1):
        add(counter, steps[done - 1])
        assert rapl.joules()[CPU] == pytest.approx(sum(steps[:done]) / 1e6)


def test_readings_from_two_threads_lose_nothing(tmp_path):
    counter = zone(tmp_path, "0", "package-0", 0)
    rapl = Rapl(tmp_path)
    add(counter, 4_000_000)
    threads = [Thread(target=lambda: [rapl.joules() for _ in range(200)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rapl.joules() == {CPU: 4.0}


def test_without_counters_the_folder_is_named(tmp_path):
    with pytest.raises(OSError, match="no RAPL zones") as missing:
        Rapl(tmp_path / "powercap")
    assert missing.value.filename == str(tmp_path / "powercap")
    zone(tmp_path, "0", "psys", 0)  # of the whole machine, which holds parts that are counted elsewhere
    with pytest.raises(OSError, match="no RAPL zones"):
        Rapl(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_counter_for_root_alone_is_named(tmp_path):
    counter = zone(tmp_path, "0", "package-0", 0)
    counter.chmod(0)
    with pytest.raises(PermissionError) as refused:
        Rapl(tmp_path)
    assert refused.value.filename == str(counter)


def test_a_counter_that_goes_away_is_named(tmp_path):
    counter = zone(tmp_path, "0", "package-0", 0)
    rapl = Rapl(tmp_path)
    counter.unlink()
    with pytest.raises(FileNotFoundError) as lost:
        rapl.joules()
    assert lost.value.filename == str(counter)
