# SPDX-License-Identifier: MIT
"""Tools for tests: plant faults, fix the check's random vectors, pretend a machine, count operations.

>>> import numpy, hybrid.testing
>>> with hybrid.testing.plant("multiply", how="element") as planted:
...     hybrid.multiply(numpy.eye(3), numpy.ones((3, 2)))
Traceback (most recent call last):
hybrid.errors.CheckFailed: the product is wrong: ...
>>> planted.done
True

plant       spoil the data that an operation writes, or make a rank, a disk or a clock fail
seed        make the check's random vectors reproducible
pretend     set settings by environment variables HYBRID_*
count       count exchanges, bytes and multiplications of this rank
lacking     why this machine cannot test something
mpirun      the words that start a command on several ranks here

The first four are contexts that leave nothing behind, even after an exception. `python -m hybrid.testing` does the same to
commands and programs, also under mpirun. No other module of the package uses this one: it costs nothing while nothing is planted.
"""

from __future__ import annotations

from hybrid.ranks.launcher import mpirun
from hybrid.testing.machine import lacking, pretend
from hybrid.testing.planting import Counts, Planted, count, plant, seed

__all__ = ["Counts", "Planted", "count", "lacking", "mpirun", "plant", "pretend", "seed"]
