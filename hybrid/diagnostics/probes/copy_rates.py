# SPDX-License-Identifier: MIT
"""Times copies over a device's link to its host, each direction by itself, by the same calls as a product's copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybrid.devices.base import Device

DIRECTIONS = ("to_gpu", "to_host")
ITEM, COLUMNS = 8, 1024
_SECONDS = 0.1  # that the copies of a measurement shall take
_MOST_COPIES = 200


class HostLink:
    """A device's link, with buffers of `size` bytes on both sides; host memory is pinned if it can be."""

    def __init__(self, device: Device, size: int) -> None:
        self._device, self._size = device, size
        rows = size // (ITEM * COLUMNS)
        self._memory = device.reserve(size, shared=False)
        self._on_device = device.matrix(self._memory, 0, rows, COLUMNS, "float64")
        self._on_host = np.zeros((rows, COLUMNS))
        self.pinned = _pin(device, self._on_host)
        self._copies = dict.fromkeys(DIRECTIONS, 0)

    def alone(self) -> dict[str, float]:
        """Bytes a second of each direction, while nothing else is copied."""
        rates = {}
        for direction in DIRECTIONS:
            for _ in range(2):  # a device's first copy is slower
                self.start(direction, 1)
                rate = self.rate(direction, 1)
            self._copies[direction] = min(_MOST_COPIES, 1 + int(_SECONDS * rate / self._size))
            self.start(direction)
            rates[direction] = self.rate(direction)
        return rates

    def start(self, direction: str, copies: int = 0) -> None:
        """Start copies without waiting for them. `copies`: by default as many as take _SECONDS at the rate of `alone`."""
        for _ in range(copies or self._copies[direction]):
            if direction == "to_gpu":
                self._device.copy_in(self._on_device, self._on_host, [])
            else:
                self._device.copy_out(self._on_host, self._on_device, [])

    def rate(self, direction: str, copies: int = 0) -> float:
        """Wait for what was started, and return its bytes a second."""
        return copy_rate(self._device, self._size, copies or self._copies[direction])


def copy_rate(device: Device, size: int, copies: int) -> float:
    """Bytes a second of the copies handed to the device since the last call; waits for them."""
    timed = list(device.finish())
    assert len(timed) == copies, (len(timed), copies)
    seconds = max(end for _, _, end in timed) - min(begin for _, begin, _ in timed)
    return size * copies / seconds


def rates_together(links: Sequence[HostLink], barrier: Callable[[], object]) -> list[dict[str, float]]:
    """Bytes a second of each link, while all copy. `barrier`: waits for the other processes that measure."""
    rates: list[dict[str, float]] = [{} for _ in links]
    for direction in DIRECTIONS:
        barrier()
        for link in links:
            link.start(direction)
        for link, measured in zip(links, rates, strict=True):
            measured[direction] = link.rate(direction)
    return rates


def _pin(device: Device, array: np.ndarray) -> bool:
    """Whether the array's memory is pinned; a CPU that stands for a GPU needs no pinning."""
    if device.name != "cuda":
        return True
    from hybrid.devices.cuda_gpus import pinned_memory

    device.pin(array)
    return pinned_memory.pin(array)


def pattern(seed: int, size: int) -> np.ndarray:
    """`size` bytes of random numbers that only this seed gives."""
    return np.random.default_rng(seed).random((size // (ITEM * COLUMNS), COLUMNS))
