"""The CUDA GPUs a process can use, and which of them is whose."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Thread

from hybrid.errors import DeviceUnavailable, one_line


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
        _load_driver()
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
        gpus = [_gpu(index) for index in range(runtime.getDeviceCount())]
    except runtime.CUDARuntimeError as error:
        raise DeviceUnavailable(f"CUDA finds no usable GPU ({one_line(error)})") from None
    if not gpus:
        raise DeviceUnavailable("CUDA finds no GPU (is CUDA_VISIBLE_DEVICES empty?)")
    return gpus


@cache
def _load_driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def wake_driver() -> None:
    """Let CUDA's driver, where there is one, start in the background: a quarter of a second or more. It makes no context."""

    def start() -> None:
        with suppress(OSError):  # who uses it will say so
            _load_driver().cuInit(0)

    with suppress(RuntimeError):  # no thread more is allowed
        Thread(target=start, daemon=True).start()


@cache
def _gpu(index: int) -> Gpu:
    """Kept: the driver takes a millisecond to tell, longer than a small product."""
    from cupy.cuda import runtime

    entry = runtime.getDeviceProperties(index)
    return Gpu(index, _uuid(bytes(entry["uuid"])), entry["name"].decode(), 10 * entry["major"] + entry["minor"])


def _uuid(raw: bytes) -> str:
    digits = raw[:16].hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def free_bytes(gpu: Gpu) -> int:
    """Memory of the GPU that is free now, with what CuPy's pool holds for this process."""
    import cupy

    with cupy.cuda.Device(gpu.index):
        return int(cupy.cuda.runtime.memGetInfo()[0]) + pooled_bytes(gpu)


def pooled_bytes(gpu: Gpu) -> int:
    """Memory of the GPU that CuPy's pool holds for this process and nothing uses."""
    import cupy

    with cupy.cuda.Device(gpu.index):
        return int(cupy.get_default_memory_pool().free_bytes())


def choose_gpus(gpus_of_ranks: Sequence[Sequence[Gpu]]) -> list[Gpu]:
    """A GPU for each rank, given which ones each sees.

    Ranks take the GPU of those they see that fewest others took, those that see fewest GPUs first: all GPUs are used
    before one is shared, whether every rank sees all of them or each only its own. UUIDs tell them apart, since each
    rank numbers what it sees from 0, and ranks of other nodes see others.
    """
    users: Counter[str] = Counter()
    chosen: dict[int, Gpu] = {}
    for rank in sorted(range(len(gpus_of_ranks)), key=lambda rank: len(gpus_of_ranks[rank])):
        chosen[rank] = min(gpus_of_ranks[rank], key=lambda gpu: users[gpu.uuid])
        users[chosen[rank].uuid] += 1
    return [chosen[rank] for rank in range(len(gpus_of_ranks))]
