"""A CUDA GPU: three streams (in, multiply, out), ordered by events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid.devices import Mark
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.kernels.catalogue import Kernel
from hybrid.plan import padded

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Gpu:
    """A GPU this process can see; `index` is this process's own numbering."""

    index: int
    uuid: str
    name: str
    capability: int = 90  # compute capability, times ten


def usable_gpus() -> list[Gpu]:
    """The GPUs this process can really use. DeviceUnavailable, with the reason, when there is none.

    Asked without making a CUDA context on a GPU that will not be used. Call it after MPI has started.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceUnavailable("no NVIDIA driver (libcuda.so.1) on this machine") from None
    try:
        import cupy
    except ImportError as error:
        raise DeviceUnavailable(
            f"CuPy cannot be used ({one_line(error)}): pip install 'hybrid-runner[cuda13]' (or cuda12)"
        ) from None
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
        properties = [runtime.getDeviceProperties(index) for index in range(count)]
    except runtime.CUDARuntimeError as error:
        raise DeviceUnavailable(f"CUDA finds no usable GPU ({one_line(error)})") from None
    if not count:
        raise DeviceUnavailable("CUDA finds no GPU (is CUDA_VISIBLE_DEVICES empty?)")
    return [
        Gpu(index, _uuid(bytes(entry["uuid"])), entry["name"].decode(), 10 * entry["major"] + entry["minor"])
        for index, entry in enumerate(properties)
    ]


def _uuid(raw: bytes) -> str:
    digits = raw[:16].hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def free_bytes(gpu: Gpu) -> int:
    """Memory of the GPU that is free now, with what CuPy's pool holds for this process."""
    import cupy

    with cupy.cuda.Device(gpu.index):
        return int(cupy.cuda.runtime.memGetInfo()[0]) + cupy.get_default_memory_pool().free_bytes()


def choose_gpu(rank_on_node: int, gpus_of_node_ranks: Sequence[Sequence[Gpu]]) -> Gpu:
    """The GPU for one rank of a node, given which GPUs each of the node's ranks sees.

    Ranks take the GPU of those they see that fewest others took, those that see fewest GPUs first: all GPUs are used
    before one is shared, whether every rank sees all of them or each only its own. UUIDs tell them apart, since each
    rank numbers what it sees from 0.
    """
    users: dict[str, int] = {}
    for rank in sorted(range(len(gpus_of_node_ranks)), key=lambda rank: len(gpus_of_node_ranks[rank])):
        chosen = min(gpus_of_node_ranks[rank], key=lambda gpu: users.get(gpu.uuid, 0))
        if rank == rank_on_node:
            return chosen
        users[chosen.uuid] = users.get(chosen.uuid, 0) + 1
    raise IndexError(rank_on_node)


class CudaDevice:
    """One GPU. Buffers are CuPy arrays; host rows are copied from and to ordinary NumPy arrays."""

    name = "cuda"
    staged = True

    def __init__(self, gpu: Gpu, kernel: Kernel, dtype: str) -> None:
        import cupy

        from hybrid.devices.cuda_kernels import multiplication

        self.gpu = gpu
        self._cupy = cupy
        self._device = cupy.cuda.Device(gpu.index)
        self._device.use()
        self._multiply = multiplication(kernel, dtype, gpu.capability)
        self._streams = {phase: cupy.cuda.Stream(non_blocking=True) for phase in ("copy in", "multiply", "copy out")}
        self._timed: list[tuple[str, Any, Any]] = []
        self._host_zero = 0.0
        self._zero: Any = None

    def buffer(self, rows: int, columns: int, dtype: str) -> Any:
        width = padded(columns, self._cupy.dtype(dtype).itemsize)
        return self._cupy.empty((rows, width), dtype)[:, :columns]

    def copy_in(self, into: Any, source: np.ndarray) -> Mark:
        return self._do("copy in", [], lambda stream: self._copy(into.data.ptr, into, source.ctypes.data, source, stream))

    def multiply(self, a: Any, b: Any, c: Any, after: list[Mark]) -> Mark:
        return self._do("multiply", after, lambda stream: self._multiply(a, b, c))

    def copy_out(self, into: np.ndarray, source: Any, after: list[Mark]) -> Mark:
        return self._do("copy out", after, lambda stream: self._copy(into.ctypes.data, into, source.data.ptr, source, stream))

    def finish(self) -> list[tuple[str, float, float]]:
        for stream in self._streams.values():
            stream.synchronize()
        elapsed = self._cupy.cuda.get_elapsed_time
        done = [
            (phase, self._host_zero + elapsed(self._zero, begin) / 1e3, self._host_zero + elapsed(self._zero, end) / 1e3)
            for phase, begin, end in self._timed
        ]
        self._timed, self._zero = [], None
        return done

    def _do(self, phase: str, after: list[Mark], work: Callable[[Any], None]) -> Mark:
        self._device.use()
        stream = self._streams[phase]
        if self._zero is None:
            self._zero = stream.record()
            self._zero.synchronize()
            self._host_zero = time.perf_counter()
        for mark in after:
            stream.wait_event(mark)
        begin = stream.record()
        with stream:
            work(stream)
        end = stream.record()
        self._timed.append((phase, begin, end))
        return end

    def _copy(self, into: int, into_array: Any, source: int, source_array: Any, stream: Any) -> None:
        rows, columns = source_array.shape
        if not (rows and columns):
            return
        runtime = self._cupy.cuda.runtime
        runtime.memcpy2DAsync(
            into,
            into_array.strides[0],
            source,
            source_array.strides[0],
            columns * source_array.itemsize,
            rows,
            runtime.memcpyDefault,
            stream.ptr,
        )
