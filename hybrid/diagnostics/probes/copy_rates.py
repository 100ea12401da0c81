"""How fast a device's link to the host is, each direction by itself, with the copies that products use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid.devices.base import Device

DIRECTIONS = ("copy in", "copy out")
ITEM, COLUMNS = 8, 1024
_SECONDS = 0.1  # of copies, once it is known how long one takes
_MOST_COPIES = 200


class Link:
    """Of one device. `size`: bytes of a copy, in host memory and on the device; the host's are locked if that can be."""

    def __init__(self, device: Device, size: int) -> None:
        self._device, self._size = device, size
        rows = size // (ITEM * COLUMNS)
        self._memory = device.reserve(size, shared=False)
        self._there = device.matrix(self._memory, 0, rows, COLUMNS, "float64")
        self._here = np.zeros((rows, COLUMNS))
        self.locked = lock(device, self._here)
        self._copies = dict.fromkeys(DIRECTIONS, 0)

    def alone(self) -> dict[str, float]:
        """Bytes a second of each direction."""
        rates = {}
        for direction in DIRECTIONS:
            for copies in (1, 1):  # a device takes longer for what it does first
                self.start(direction, copies)
                rate = self.rate(direction, copies)
            self._copies[direction] = min(_MOST_COPIES, 1 + int(_SECONDS * rate / self._size))
            self.start(direction)
            rates[direction] = self.rate(direction)
        return rates

    def start(self, direction: str, copies: int = 0) -> None:
        """Without waiting for their end. `copies`: by default what fills the time at the rate it has alone."""
        for _ in range(copies or self._copies[direction]):
            if direction == "copy in":
                self._device.copy_in(self._there, self._here, [])
            else:
                self._device.copy_out(self._here, self._there, [])

    def rate(self, direction: str, copies: int = 0) -> float:
        """Of what was started, once it has ended."""
        return rate_of(self._device, self._size, copies or self._copies[direction])


def rate_of(device: Device, size: int, copies: int) -> float:
    """Bytes a second of all copies handed to the device since it was asked last."""
    timed = list(device.finish())
    assert len(timed) == copies, (len(timed), copies)
    seconds = max(end for _, _, end in timed) - min(begin for _, begin, _ in timed)
    return size * copies / seconds


def together(links: Sequence[Link], meet: Any) -> list[dict[str, float]]:
    """Bytes a second of each link, all at the same time. `meet`: wait for whoever else measures."""
    rates: list[dict[str, float]] = [{} for _ in links]
    for direction in DIRECTIONS:
        meet()
        for link in links:
            link.start(direction)
        for link, measured in zip(links, rates, strict=True):
            measured[direction] = link.rate(direction)
    return rates


def lock(device: Device, array: np.ndarray) -> bool:
    """Whether copies to and from the host memory run at the link's full speed."""
    if device.name != "cuda":
        return True
    from hybrid.devices.pinned_memory import pinned_memory

    device.pin(array)
    return pinned_memory().pin(array)


def pattern(seed: int, size: int) -> np.ndarray:
    """Random numbers that only this seed gives."""
    return np.random.default_rng(seed).random((size // (ITEM * COLUMNS), COLUMNS))
