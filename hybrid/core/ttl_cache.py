"""What the system is asked for with every product, and changes slowly."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

SECONDS_TO_LIVE = 0.1  # seconds; looking takes as long as a small product

_Seen = TypeVar("_Seen")


def ttl_cached(look: Callable[[], _Seen]) -> Callable[[], _Seen]:
    """What `look` saw a moment ago at most: LOOK_AGAIN."""

    @lru_cache(maxsize=1)
    def seen(moment: int) -> _Seen:
        return look()

    return lambda: seen(int(time.monotonic() / SECONDS_TO_LIVE))
