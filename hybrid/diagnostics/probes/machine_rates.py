# SPDX-License-Identifier: MIT
"""Measures, on one GPU, the rates that the plan's machine model needs.

The argument is JSON: `index` of the GPU, null for a CPU that stands for one; `sizes` of square products, smallest first;
`rows` and `widths` (bytes) of the column panels that are copied out of a matrix with rows twice as long as the largest width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybrid.core.problem import ITEM_SIZES
from hybrid.core.spans import Span, pieces
from hybrid.diagnostics.probes.all_ranks import device_of
from hybrid.diagnostics.probes.copy_rates import ITEM, HostLink
from hybrid.diagnostics.probes.protocol import report
from hybrid.errors import code_of, one_line
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, fastest
from hybrid.kernels.remainders import LEAST_FOR_BYTES, products_of

LONG_ENOUGH = 0.02  # seconds of a product: then its launch does not count
_LINK_BYTES = 64 << 20
_TIMES = 3  # products, or copies, that are timed together
_FILL_ROWS = 1024
LARGEST_OF_BYTES = 4096
_MEMORY_BYTES = 512 << 20


def main(argument: str) -> None:
    task = json.loads(argument)
    try:
        measure(device_of(task["index"]), task)
        report(stage="done")
    except Exception as error:  # whatever it is, the rank judges it
        report(failed=one_line(error), code=code_of(error))


def measure(device: Any, task: Mapping[str, Any]) -> None:
    """Report the link's rates, the fastest kernels' rates, and the rates of column panels while a kernel runs."""
    report(stage="link", multiprocessors=multiprocessors(device))
    host_link = HostLink(device, _LINK_BYTES)
    if not host_link.pinned:
        raise RuntimeError("host memory cannot be pinned, so copies do not run at the link's rate")
    link = host_link.alone()
    report(link=link)
    rates: dict[str, float] = {}
    for dtype in reversed(ITEM_SIZES):
        report(stage=f"multiplying {dtype}")
        product = Product.long_enough(device, dtype, task["sizes"])
        rates[dtype] = product.n**3 / product.seconds
        report(multiply_adds=rates, products={"n": product.n, "seconds": product.seconds})
    if device.name == "cuda" and device.gpu.capability >= LEAST_FOR_BYTES:
        report(stage="multiplying bytes")
        report(byte_multiply_adds=byte_rate(device, min(task["sizes"][-1], LARGEST_OF_BYTES)))
        report(memory=memory_rate(device, _MEMORY_BYTES))
    report(stage="copying column panels")
    report(panels=panel_rates(device, product, task["rows"], task["widths"], link["to_gpu"]))


def multiprocessors(device: Any) -> int:
    """How many SMs the GPU has; 0 for a CPU."""
    if device.name != "cuda":
        return 0
    from cupy.cuda import runtime

    return int(runtime.getDeviceProperties(device.gpu.index)["multiProcessorCount"])


class Product:
    """A square product by the fastest kernel. `seconds`: how long it takes."""

    def __init__(self, device: Any, dtype: str, n: int) -> None:
        self.n, self._device = n, device
        capability = device.gpu.capability if device.name == "cuda" else EMULATED_CAPABILITY
        device.use_kernel(fastest(device.name, dtype, n, capability), dtype)
        size = n * n * ITEM_SIZES[dtype]
        memory = device.reserve(3 * size, shared=False)
        self._a, self._b, self._c = (device.matrix(memory, number * size, n, n, dtype) for number in range(3))
        # Random numbers: a GPU at its power limit multiplies zeros faster.
        some = np.random.default_rng(0).standard_normal((min(n, _FILL_ROWS), n)).astype(dtype)
        for rows in pieces(Span(0, n), len(some)):
            for matrix in (self._a, self._b):
                device.copy_in(matrix[rows.slice], some[: len(rows)], [])
        self.start(1)
        list(device.finish())  # the first launch takes longer
        self.start(_TIMES)
        self.seconds = _seconds(device, "multiply") / _TIMES

    @classmethod
    def long_enough(cls, device: Any, dtype: str, sizes: Sequence[int]) -> Product:
        """The first that takes long enough to be timed, or the largest."""
        for n in sizes:
            product = cls(device, dtype, n)
            if product.seconds >= LONG_ENOUGH:
                break
        return product

    def start(self, times: int) -> None:
        """Start to multiply so many times, without waiting for the end."""
        for _ in range(times):
            self._device.multiply(self._a, self._b, self._c, [])


def byte_rate(device: Any, n: int) -> float:
    """Multiply-adds a second of square products modulo two numbers, by the kernel that products from remainders take."""
    bytes_of_one = n * n
    memory = device.reserve(6 * bytes_of_one, shared=False)
    a, b, c = (device.matrix(memory, offset * bytes_of_one, 2 * n, n, "uint8") for offset in (0, 2, 4))
    some = np.random.default_rng(0).integers(0, 255, (min(n, _FILL_ROWS), n), np.uint8)
    for rows in pieces(Span(0, 2 * n), len(some)):
        for matrix in (a, b):
            device.copy_in(matrix[rows.slice], some[: len(rows)], [])
    planes = [device.matrix(memory, offset * bytes_of_one, 2, bytes_of_one, "uint8") for offset in (0, 2)]
    call = device.kernel(products_of(device, "", n, n, 2), (*planes, c, np.int64(n), np.int64(n)))
    for times in (1, _TIMES):  # the first launch takes longer
        list(device.finish())
        device.launch([call] * times, [], "products")
    return 2 * n**3 * _TIMES / _seconds(device, "multiply")


def memory_rate(device: Any, size: int) -> float:
    """Bytes a second that a copy within the device's memory reads and writes."""
    rows = size // ITEM // _FILL_ROWS
    memory = device.reserve(2 * size, shared=False)
    here, there = (device.matrix(memory, offset, rows, _FILL_ROWS, "float64") for offset in (0, rows * _FILL_ROWS * ITEM))
    for times in (1, _TIMES):
        list(device.finish())
        for _ in range(times):
            device.exchange(there, here, [])
    return 2 * here.nbytes * _TIMES / _seconds(device, "exchange")


def panel_rates(device: Any, product: Product, rows: int, widths: Sequence[int], link_rate: float) -> dict[str, float]:
    """Bytes a second of column panels with rows of these many bytes, copied to the device while it multiplies."""
    columns = 2 * max(widths) // ITEM
    here = np.ones((rows, columns))  # of memory that is there: zeros might all be one page
    there = device.matrix(device.reserve(here.nbytes, shared=False), 0, rows, columns, "float64")
    device.pin(here)
    rates = {}
    for width in (widths[0], *widths):  # the first copies take longer
        size = rows * width
        product.start(1 + int(2 * _TIMES * size / link_rate / product.seconds))
        for _ in range(_TIMES):
            device.copy_in(there[:, : width // ITEM], here[:, : width // ITEM], [])
        rates[str(width)] = _TIMES * size / _seconds(device, "copy in")
    return rates


def _seconds(device: Any, phase: str) -> float:
    """The time from the begin of the first to the end of the last operation of this phase since the last call."""
    timed = [(begin, end) for done, begin, end in device.finish() if done == phase]
    return max(end for _, end in timed) - min(begin for begin, _ in timed)
