"""How many elements can be copied at once."""

from __future__ import annotations

from collections.abc import Iterable

from hybrid.core.problem import WIDEST_COPY


def copy_width(item_size: int, addresses_and_strides: Iterable[int]) -> int:
    """Elements of the widest copy, up to 16 bytes, that all these addresses and row strides (in bytes) allow."""
    numbers = list(addresses_and_strides)
    width = WIDEST_COPY // item_size
    while width > 1 and any(number % (width * item_size) for number in numbers):
        width //= 2
    return width
