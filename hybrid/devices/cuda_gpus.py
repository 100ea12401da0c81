# SPDX-License-Identifier: MIT
"""The CUDA GPUs that a process can use, and which rank takes which."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from functools import cache

from hybrid.core.installation import install
from hybrid.core.record import record
from hybrid.errors import DeviceUnavailable, one_line

_PEER_ACCESS_ALREADY_ENABLED = 704  # of cudaError_t


@record
class Gpu:
    """A GPU that this process can see; `index` is its number here, which other processes may count differently."""

    index: int
    uuid: str
    name: str
    capability: int = 90  # compute capability, times ten


def usable_gpus() -> list[Gpu]:
    """The GPUs that this process can use. DeviceUnavailable, with the reason, when there is none.

    It creates no CUDA context, which would take memory of GPUs that are not used. Call it after MPI_Init.
    """
    try:
        load_driver()
    except OSError:
        raise DeviceUnavailable("no NVIDIA driver (libcuda.so.1) on this machine") from None
    from hybrid.devices.kernel_cache import trust_own_cache_only

    trust_own_cache_only()
    try:
        import cupy
    except ImportError as error:
        raise DeviceUnavailable(
            f"CuPy cannot be used ({one_line(error)}): {install('cuda13')} (or cuda12)", code="package-missing"
        ) from None
    runtime = cupy.cuda.runtime
    try:
        gpus = [_gpu(index) for index in range(runtime.getDeviceCount())]
    except runtime.CUDARuntimeError as error:
        raise DeviceUnavailable(f"CUDA finds no usable GPU ({one_line(error)})") from None
    if not gpus:
        raise DeviceUnavailable("CUDA finds no GPU (is CUDA_VISIBLE_DEVICES empty?)")
    return gpus


def load_driver() -> ctypes.CDLL:
    """The CUDA driver's library. OSError where there is none."""
    driver = _driver()
    if driver is None:
        raise OSError
    return driver


@cache
def _driver() -> ctypes.CDLL | None:
    """The driver's library, or None. Cached: where there is none, each product would search the disk for it."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@cache
def _gpu(index: int) -> Gpu:
    """The GPU with this index. Cached: cudaGetDeviceProperties takes a millisecond, longer than a small product."""
    from cupy.cuda import runtime

    properties = runtime.getDeviceProperties(index)
    capability = 10 * properties["major"] + properties["minor"]
    return Gpu(index, _uuid(index), properties["name"].decode(), capability)


def _uuid(index: int) -> str:
    """From the driver. CuPy takes the one of cudaGetDeviceProperties for a string, which ends before its first zero byte."""
    driver, device, uuid = load_driver(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if status := driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetUuid_v2(uuid, device):
        raise DeviceUnavailable(
            f"the NVIDIA driver does not tell which GPU number {index} is (CUDA error {status})", code="gpu-failed"
        )
    digits = bytes(uuid).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def enable_peer_access(gpu: int, peer: int) -> None:
    """Let the current device, of index `gpu`, copy from and to another GPU of this process over NVLink or PCIe directly, not
    through host memory."""
    from cupy.cuda import runtime

    if peer == gpu or not runtime.deviceCanAccessPeer(gpu, peer):
        return
    try:
        runtime.deviceEnablePeerAccess(peer)
    except runtime.CUDARuntimeError as error:
        if error.status != _PEER_ACCESS_ALREADY_ENABLED:
            raise


def choose_gpus(gpus_of_ranks: Sequence[Sequence[Gpu]]) -> list[Gpu]:
    """A GPU for each rank, given which ones each can see.

    Each rank takes the one that fewest ranks have taken so far, ranks that see fewest GPUs first. So all GPUs are used before
    one is shared, whether a rank sees all of its node's GPUs or only its own. They are told apart by UUID, for every process
    numbers those it sees from 0.
    """
    users: Counter[str] = Counter()
    chosen: dict[int, Gpu] = {}
    for rank in sorted(range(len(gpus_of_ranks)), key=lambda rank: len(gpus_of_ranks[rank])):
        chosen[rank] = min(gpus_of_ranks[rank], key=lambda gpu: users[gpu.uuid])
        users[chosen[rank].uuid] += 1
    return [chosen[rank] for rank in range(len(gpus_of_ranks))]
