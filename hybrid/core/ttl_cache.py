# SPDX-License-Identifier: MIT
"""A cache for what is looked up before every product and changes slowly, such as free memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

SECONDS_TO_LIVE = 0.1  # that a value is kept; to look it up anew takes as long as a small product

_Value = TypeVar("_Value")


def ttl_cached(look: Callable[[], _Value]) -> Callable[[], _Value]:
    """`look` with its result kept for SECONDS_TO_LIVE at most."""

    @lru_cache(maxsize=1)
    def value_at(tick: int) -> _Value:
        return look()

    return lambda: value_at(int(time.monotonic() / SECONDS_TO_LIVE))
