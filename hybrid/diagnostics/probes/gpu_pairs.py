"""All GPUs that one process sees: python -m hybrid.diagnostics.probes.gpu_pairs LIMIT SIZE. Their links, and copies between each two.

SIZE: bytes of a copy.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import Gpu, usable_gpus
from hybrid.diagnostics.probes.copy_rates import Link, pattern, together
from hybrid.diagnostics.probes.protocol import begin, say
from hybrid.errors import one_line

_COPIES = 4


def main() -> None:
    begin(int(sys.argv[1]))
    gpus, size = usable_gpus(), int(sys.argv[2])
    try:
        _measure_links(gpus, size)
        say(stage="reaching")
        _copy_between_all(gpus, size)
    except Exception as error:  # the rank's to judge, whatever it is
        say(failed=one_line(error))


def _measure_links(gpus: list[Gpu], size: int) -> None:
    say(stage="links")
    links = [Link(CudaDevice(gpu), size) for gpu in gpus]
    say(links=[{"uuid": gpu.uuid, "locked": link.locked, "alone": link.alone()} for gpu, link in zip(gpus, links, strict=True)])
    if len(links) > 1:
        say(together=together(links, lambda: None))


def _copy_between_all(gpus: list[Gpu], size: int) -> None:
    import cupy

    runtime = cupy.cuda.runtime
    memory, landing = {}, {}
    for gpu in gpus:
        with cupy.cuda.Device(gpu.index):
            memory[gpu.index] = cupy.asarray(pattern(gpu.index, size))
            landing[gpu.index] = cupy.empty_like(memory[gpu.index])
            cupy.cuda.Device(gpu.index).synchronize()
    pairs = []
    indices = [gpu.index for gpu in gpus]
    for source, into in ((source, into) for source in indices for into in indices if into != source):
        with cupy.cuda.Device(into):
            direct = bool(runtime.deviceCanAccessPeer(into, source))
            if direct:
                runtime.deviceEnablePeerAccess(source)
            stream = cupy.cuda.Stream(non_blocking=True)
            _copy(runtime, landing[into], memory[source], stream)
            before = stream.record()
            for _ in range(_COPIES):
                _copy(runtime, landing[into], memory[source], stream)
            after = stream.record()
            stream.synchronize()
            rate = _COPIES * landing[into].nbytes / (cupy.cuda.get_elapsed_time(before, after) / 1e3)
            right = bool(np.array_equal(cupy.asnumpy(landing[into]), pattern(source, size)))
            landing[into].fill(0)  # what the next copy leaves out must not look like this one's
            cupy.cuda.Device(into).synchronize()
        pairs.append({"source": source, "into": into, "direct": direct, "right": right, "rate": rate})
        say(pairs=pairs)


def _copy(runtime: Any, into: Any, source: Any, stream: Any) -> None:
    runtime.memcpyPeerAsync(into.data.ptr, into.device.id, source.data.ptr, source.device.id, into.nbytes, stream.ptr)


if __name__ == "__main__":
    main()
