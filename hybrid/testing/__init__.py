# SPDX-License-Identifier: MIT
"""The one way into the inside, for tests: plant a fault, fix the check's random vectors, pretend a machine, count what is done.

>>> import numpy, hybrid.testing
>>> with hybrid.testing.plant("multiply", how="element") as planted:
...     hybrid.multiply(numpy.eye(3), numpy.ones((3, 2)))
Traceback (most recent call last):
hybrid.errors.CheckFailed: the product is wrong: ...
>>> planted.done
True

plant       spoil what an operation writes, or have a rank or a disk fail
seed        have the check's random vectors follow from a number
pretend     settings, as environment variables HYBRID_*, for a while
count       exchanges, bytes and multiplications of this rank
lacking     why this machine cannot test something
mpirun      how a command is started on several ranks here

Each of the first four is a context that leaves nothing behind, also after an exception. `python -m hybrid.testing` does the same
to commands and programs, below mpirun too. Nothing else in the package knows of this one: while nothing is planted, it costs
nothing.
"""

from __future__ import annotations

from hybrid.ranks.launcher import mpirun
from hybrid.testing.machine import lacking, pretend
from hybrid.testing.planting import Counts, Planted, count, plant, seed

__all__ = ["Counts", "Planted", "count", "lacking", "mpirun", "plant", "pretend", "seed"]
