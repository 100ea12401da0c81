# SPDX-License-Identifier: MIT
"""Random numbers of checks that follow from a number."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any

from hybrid.testing.operations import replace

_DRAWING = ("hybrid.verification.", "hybrid.execution.rank_run", "hybrid.diagnostics.acceptance")


@contextmanager
def seed(number: int) -> Iterator[None]:
    """Have the check's random vectors follow from `number` and from how many were drawn in the context.

    So does the seed of an acceptance test's matrices. Other random numbers, such as the names of temporary files, stay random.
    """
    drawn = count()

    def draw(by: Callable[[random.Random, Any], Any], original: Callable[[Any], Any], of: Any) -> Any:
        if not sys._getframe(2).f_globals.get("__name__", "").startswith(_DRAWING):
            return original(of)
        return by(random.Random(f"{number} {next(drawn)}"), of)  # noqa: S311 (nothing is kept secret)

    with ExitStack() as stack:
        replace(stack, secrets, "randbits", partial(draw, random.Random.getrandbits))
        replace(stack, secrets, "randbelow", partial(draw, random.Random.randrange))
        replace(stack, secrets, "choice", partial(draw, random.Random.choice))
        yield
