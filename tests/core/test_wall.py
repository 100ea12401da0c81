# SPDX-License-Identifier: MIT
"""The clock of a command's wall time: which part a moment belongs to, and when the launcher was started."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from hybrid.core.wall import WallTime
from hybrid.errors import DeviceUnavailable


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_each_moment_belongs_to_one_part(clock):
    wall = WallTime("start", 9.0, clock)
    for part, seconds in (("imports", 2), ("fill", 3), ("imports", 4)):
        wall.enter(part)
        clock.now += seconds
    assert wall.parts() == {"start": 1.0, "imports": 6.0, "fill": 3.0}
    clock.now += 5
    assert wall.parts()["imports"] == 11.0
    assert sum(wall.parts().values()) == clock.now - 9.0


def test_a_part_within_another_takes_its_time_from_it_also_when_it_fails(clock):
    wall = WallTime("agree", None, clock)
    clock.now += 1
    with suppress(DeviceUnavailable), wall.within("GPU start"):
        clock.now += 2
        raise DeviceUnavailable
    clock.now += 4
    assert wall.parts() == {"agree": 5.0, "GPU start": 2.0}


PROGRAM = "from hybrid.core.wall import launch_began; print(launch_began())"
DELAY = 0.5  # seconds between a launcher's start and that of its process
RESOLUTION = 0.02  # seconds: of the clock ticks in /proc, with some rounding


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("name", ["mpirun", "shell"])
def test_the_start_is_the_launchers_where_one_is_above_the_process(tmp_path, name):
    shutil.copy(shutil.which("sh"), tmp_path / name)
    before = time.perf_counter()
    command = [tmp_path / name, "-c", f'sleep {DELAY}; "$0" "$@"; exit $?', sys.executable, "-c", PROGRAM]
    began = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) - before
    if name == "mpirun":
        assert -RESOLUTION <= began < time.perf_counter() - before - DELAY
    else:
        assert began >= DELAY - RESOLUTION
