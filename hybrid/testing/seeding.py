# SPDX-License-Identifier: MIT
"""Random numbers of checks that follow from a number."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

from hybrid.testing.operations import replace

_DRAWING = ("hybrid.verification.", "hybrid.diagnostics.acceptance")


@contextmanager
def seed(number: int) -> Iterator[None]:
    """Have the check's random vectors follow from `number` and from how many were drawn in the context.

    So does the seed of an acceptance test's matrices. Other random numbers, such as the names of temporary files, stay random.
    """
    drawn = count()

    def draw(original: Callable[[int], int], bits: int) -> int:
        if not sys._getframe(2).f_globals.get("__name__", "").startswith(_DRAWING):
            return original(bits)
        return random.Random(f"{number} {next(drawn)}").getrandbits(bits)  # noqa: S311 (nothing is kept secret)

    with ExitStack() as stack:
        replace(stack, secrets, "randbits", draw)
        yield
