# SPDX-License-Identifier: MIT
"""Measures all GPUs that one process sees: their links to the host, and copies between each two of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import Gpu, usable_gpus
from hybrid.diagnostics.probes.copy_rates import HostLink, pattern, rates_together
from hybrid.diagnostics.probes.protocol import report
from hybrid.errors import code_of, one_line

_COPIES = 4  # that are timed, of each pair


def main(size: str) -> None:
    """`size`: bytes of a copy."""
    try:
        gpus = usable_gpus()
        report(stage="links")
        _measure_links(gpus, int(size))
        report(stage="copying")
        _copy_between_all(gpus, int(size))
        report(stage="done")
    except Exception as error:  # whatever it is, the rank that started this process judges it
        report(failed=one_line(error), code=code_of(error))


def _measure_links(gpus: list[Gpu], size: int) -> None:
    links = [HostLink(CudaDevice(gpu), size) for gpu in gpus]
    rates: list[dict[str, Any]] = [
        {"uuid": gpu.uuid, "pinned": link.pinned, "alone": link.alone()} for gpu, link in zip(gpus, links, strict=True)
    ]
    report(links=rates)
    if len(links) > 1:
        together = rates_together(links, lambda: None)
        report(links=[{**rate, "together": rate_together} for rate, rate_together in zip(rates, together, strict=True)])


def _copy_between_all(gpus: list[Gpu], size: int) -> None:
    """Copy from each GPU to each other, report the rates, and whether the data arrived unchanged."""
    import cupy

    runtime = cupy.cuda.runtime
    sources, targets = {}, {}
    for gpu in gpus:
        with cupy.cuda.Device(gpu.index):
            sources[gpu.index] = cupy.asarray(pattern(gpu.index, size))
            targets[gpu.index] = cupy.empty_like(sources[gpu.index])
            cupy.cuda.Device(gpu.index).synchronize()
    copies: list[dict[str, Any]] = []
    for source, target in ((source, target) for source in gpus for target in gpus if target != source):
        from_memory, into = sources[source.index], targets[target.index]
        with cupy.cuda.Device(target.index):
            direct = bool(runtime.deviceCanAccessPeer(target.index, source.index))
            if direct:
                runtime.deviceEnablePeerAccess(source.index)
            stream = cupy.cuda.Stream(non_blocking=True)
            _copy(runtime, into, from_memory, stream)
            before = stream.record()
            for _ in range(_COPIES):
                _copy(runtime, into, from_memory, stream)
            after = stream.record()
            stream.synchronize()
            rate = _COPIES * into.nbytes / (cupy.cuda.get_elapsed_time(before, after) / 1e3)
            correct = bool(np.array_equal(cupy.asnumpy(into), pattern(source.index, size)))
            into.fill(0)  # or elements that the next copy misses would pass for copied
            cupy.cuda.Device(target.index).synchronize()
        copies.append({"source": source.uuid, "target": target.uuid, "rate": rate, "direct": direct, "correct": correct})
        report(peer_copies=copies)


def _copy(runtime: Any, into: Any, source: Any, stream: Any) -> None:
    runtime.memcpyPeerAsync(into.data.ptr, into.device.id, source.data.ptr, source.device.id, into.nbytes, stream.ptr)
