# SPDX-License-Identifier: MIT
"""The arithmetic of energy: processors' counters that go round, which of them count, and what readings come to for one
product."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_rapl import RANGE, add, two_processors, zone

from hybrid.core.energy import CPU, GPU, MEMORY, Energy
from hybrid.host.rapl import Rapl


def test_processors_and_their_memory_count_and_parts_of_them_do_not(tmp_path):
    package, memory, other_package, _ = two_processors(tmp_path)
    rapl = Rapl(tmp_path)
    assert rapl.joules() == {CPU: 0.0, MEMORY: 0.0}
    add(package, 20_000_000)
    add(other_package, 5_000_000)
    add(memory, 3_000_000)
    add(tmp_path / "intel-rapl:0:0" / "energy_uj", 11_000_000)  # cores, which the package has counted
    add(tmp_path / "intel-rapl:2" / "energy_uj", 99_000_000)  # the whole machine
    assert [rapl.joules() for _ in range(2)] == 2 * [{CPU: 25.0, MEMORY: 3.0}]  # what is read twice counts once


@given(st.integers(0, RANGE - 1), st.lists(st.integers(0, RANGE - 1), min_size=1, max_size=20))
def test_a_counter_may_go_round_between_any_two_readings(tmp_path_factory, before, steps):
    folder = tmp_path_factory.mktemp("powercap")
    counter = zone(folder, "0", "package-0", before)
    rapl = Rapl(folder)
    for done in range(1, len(steps) + 1):
        add(counter, steps[done - 1])
        assert rapl.joules()[CPU] == pytest.approx(sum(steps[:done]) / 1e6)


def test_counters_that_are_not_there_or_go_away_are_named(tmp_path):
    with pytest.raises(OSError, match="no RAPL zones"):
        Rapl(tmp_path / "powercap")
    zone(tmp_path, "2", "psys", 0)
    with pytest.raises(OSError, match="no RAPL zones"):
        Rapl(tmp_path)
    counter = zone(tmp_path, "0", "package-0", 0)
    rapl = Rapl(tmp_path)
    if os.geteuid():  # root may read everything
        counter.chmod(0)
        with pytest.raises(PermissionError):
            Rapl(tmp_path)
    counter.unlink()
    with pytest.raises(FileNotFoundError) as lost:
        rapl.joules()
    assert lost.value.filename == str(counter)


def test_what_was_read_is_divided_by_the_products():
    energy = Energy({GPU: 900.0, CPU: 300.0}, {MEMORY: "no counter"}, 3, 2.0)
    assert energy.as_record() == {
        "joules_per_product": {GPU: 300.0, CPU: 100.0, MEMORY: None},
        "why_not": {MEMORY: "no counter"},
        "products": 3,
        "seconds": 2.0,
    }
    still = Energy({GPU: 0.0, CPU: 3.0}, {}, 1, 2.0)  # a counter that stands still tells nothing
    assert still.as_record()["joules_per_product"] == {GPU: None, CPU: 3.0, MEMORY: None}


@pytest.mark.parametrize(
    ("seconds", "known"), [(0.09, []), (0.1, [CPU, MEMORY]), (0.99, [CPU, MEMORY]), (1.0, [GPU, CPU, MEMORY])]
)
def test_a_time_that_is_too_short_for_a_counter_tells_nothing(seconds, known):
    """The least times are those of the table in docs/use.md."""
    record = Energy({GPU: 9.0, CPU: 3.0, MEMORY: 1.0}, {}, 1, seconds).as_record()
    assert [kind for kind, joules in record["joules_per_product"].items() if joules is not None] == known
    assert set(record["why_not"]) == {GPU, CPU, MEMORY} - set(known)
