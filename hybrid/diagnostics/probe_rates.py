# SPDX-License-Identifier: MIT
"""Probes that measure rates: of host links alone and together, of copies between GPUs, and those of the machine model.

`all_ranks` measures the GPUs of all ranks at the same time, by one proxy for each rank. Its argument is JSON: `rank`; `nodes`:
each node's ranks that have a GPU; `measuring`: each node's ranks that measure a link, one for each GPU; `uuids` of all ranks'
GPUs; `index` of this rank's GPU.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hybrid.core.problem import ITEM_SIZES, Span, Topology, pieces
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import pinned_memory, usable_gpus
from hybrid.diagnostics.probes import report
from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import LEAST_FOR_BYTES, fastest, products_of
from hybrid.ranks.messages import Messages
from hybrid.ranks.team import Phase, Team
from hybrid.transport.peers import probe
from hybrid.transport.rank_device import RankDevice

DIRECTIONS = ("to_gpu", "to_host")
_SIZE = 64 << 20  # bytes of a copy
_SHAPE = (_SIZE >> 13, 1024)  # of float64
_SECONDS = 0.1  # aimed at for the copies of a measurement


class HostLink:
    """A device's host link, with buffers on both sides; host memory is pinned if possible."""

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._memory = device, device.reserve(_SIZE, shared=False)
        self._on_device = device.matrix(self._memory, 0, *_SHAPE, "float64")
        self._on_host = np.zeros(_SHAPE)
        device.pin(self._on_host)
        self.pinned = pinned_memory.pin(self._on_host)
        self._copies = dict.fromkeys(DIRECTIONS, 0)

    def alone(self) -> dict[str, float]:
        """Bytes a second in each direction, while nothing else is copied."""
        rates = {}
        for direction in DIRECTIONS:
            for _ in range(2):  # a device's first copy is slower
                rate = self.rate(direction, 1)
            self._copies[direction] = min(200, 1 + int(_SECONDS * rate / _SIZE))
            rates[direction] = self.rate(direction)
        return rates

    def rate(self, direction: str, copies: int = 0) -> float:
        """The bytes a second of `copies` copies; 0: as many as take _SECONDS at the rate that `alone` measured."""
        copies = copies or self._copies[direction]
        for _ in range(copies):
            if direction == "to_gpu":
                self._device.copy_in(self._on_device, self._on_host, [])
            else:
                self._device.copy_out(self._on_host, self._on_device, [])
        return copy_rate(self._device, copies)


def copy_rate(device: CudaDevice, copies: int) -> float:
    """Wait for the copies enqueued since the last call; returns bytes a second."""
    timed = list(device.finish())
    assert len(timed) == copies, (len(timed), copies)
    seconds = max(end for _, _, end in timed) - min(begin for _, begin, _ in timed)
    return _SIZE * copies / seconds


def pattern(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(_SHAPE)


class _NoMessages(Messages):
    """A proxy sends no messages. Its rank kills it if others fail."""

    def __init__(self) -> None:
        self.serial, self.lost = 0, ""

    def end_if_others_failed(self) -> None:
        pass


class ProxyTeam(Team):
    """The proxies of the ranks in `topology`. A failed proxy must report `failed` and exit; then the ranks kill the others."""

    def __init__(self, rank: int, topology: Topology) -> None:
        super().__init__()
        self.rank, self.size = rank, 1 + max(max(node) for node in topology.nodes)
        self.topology = self._real_topology = topology
        self._messages = _NoMessages()  # also of one proxy, which is not `alone`: the rank passes its results on

    def _end_phase(self, phase: Phase, failure: BaseException | None) -> None:
        if failure is not None:
            raise failure
        self.messages.serial += 1
        report(to_others=base64.b64encode(pickle.dumps(phase.mine)).decode())
        if not (answer := sys.stdin.readline()):
            sys.exit("the rank has ended")
        phase.all = [None if part is None else pickle.loads(base64.b64decode(part)) for part in json.loads(answer)]


def all_ranks(argument: str) -> None:
    task = json.loads(argument)
    team = ProxyTeam(task["rank"], Topology(tuple(tuple(node) for node in task["nodes"])))
    device = CudaDevice(usable_gpus()[task["index"]])
    report(stage="links")
    _measure_links(team, device, task)
    if any(len(node) > 1 for node in team.topology.nodes):
        report(stage="opening")
        probe(RankDevice(team, lambda gpu: device))
        report(stage="fetching")
        _fetch_from_all(team, device, task["uuids"])
    report(stage="done")


def _measure_links(team: ProxyTeam, device: CudaDevice, task: dict[str, Any]) -> None:
    """Measure each GPU's link while the others of its node are idle, then all links of a node at once."""
    of_node: list[int] = task["measuring"][team.node]
    rates: dict[str, Any] = {}
    with team.phase("links", timed=False):
        link = HostLink(device) if team.rank in of_node else None
    for turn in range(max(len(ranks) for ranks in task["measuring"])):
        with team.phase("links", timed=False):
            if link is not None and of_node.index(team.rank) == turn:
                rates = {"uuid": task["uuids"][team.rank], "pinned": link.pinned, "alone": link.alone()}
                report(links=[rates])
    together = {}
    for direction in DIRECTIONS:
        with team.phase("links", timed=False):
            pass  # a barrier
        if link is not None:
            together[direction] = link.rate(direction)
    if len(of_node) > 1 and together:
        report(links=[{**rates, "together": together}])


def _fetch_from_all(team: ProxyTeam, device: CudaDevice, uuids: list[str]) -> None:
    """In each round all ranks copy at the same time, each from another rank's GPU of its node, until each has copied from all.
    Reports the rates. DeviceUnavailable if the data arrive wrong."""
    node, shape, copies = team.node_ranks, (*_SHAPE, "float64"), []
    with team.phase("fetching", timed=False) as handles:
        memory = device.reserve(2 * _SIZE, shared=True)
        target = device.matrix(memory, _SIZE, *shape)
        own = pattern(team.rank)  # referenced until it is copied
        device.copy_in(device.matrix(memory, 0, *shape), own, [])
        device.finish()
        handles.mine = device.handle(memory)
    with team.phase("fetching", timed=False):
        opened = {rank: device.open(handles.all[rank]) for rank in node if rank != team.rank}
    for distance in range(1, max(map(len, team.topology.nodes))):
        source = node[(node.index(team.rank) + distance) % len(node)] if distance < len(node) else None
        memory_there = None if source is None else device.matrix(opened[source], 0, *shape)
        rate = 0.0
        for count in (1, 8):  # the first fetch is slower
            with team.phase("fetching", timed=False):
                if memory_there is not None:
                    for _ in range(count):
                        device.exchange(target, memory_there, [])
                    rate = copy_rate(device, count)
        with team.phase("fetching", timed=False):
            if source is not None:
                arrived = np.full(target.shape, np.nan)
                device.copy_out(arrived, target, [])
                device.finish()
                if not np.array_equal(arrived, pattern(source)):
                    what = f"what was fetched from the GPU of rank {source} is not what lies there"
                    raise DeviceUnavailable(what, code="gpu-data")
                if uuids[source] != uuids[team.rank]:
                    copies.append({"source": uuids[source], "target": uuids[team.rank], "rate": rate})
    report(peer_copies=copies)
    with team.phase("fetching", timed=False):
        for other in opened.values():
            device.close(other)
    with team.phase("fetching", timed=False):
        pass  # memory may be freed only after all other processes have closed it


_SIZES = (1024, 2048, 4096, 8192)  # of the measured products, until one takes long enough
_LONG_ENOUGH = 0.02  # seconds of a product that make its launch negligible
_TIMES = 3  # products or copies timed together
_FILL_ROWS = 1024


def machine_rates(index: str) -> None:
    """Report the link's rates and those of the fastest kernels. `index`: of the GPU."""
    device = CudaDevice(usable_gpus()[int(index)])
    report(stage="link", multiprocessors=device.multiprocessors)
    host_link = HostLink(device)
    if not host_link.pinned:
        raise RuntimeError("host memory cannot be pinned, so copies do not run at the link's rate")
    report(link=host_link.alone())
    rates: dict[str, float] = {}
    for dtype in reversed(ITEM_SIZES):
        report(stage=f"multiplying {dtype}")
        for n in _SIZES:
            seconds = product_seconds(device, dtype, n)
            if seconds >= _LONG_ENOUGH:
                break
        rates[dtype] = n**3 / seconds
        report(multiply_adds=rates)
    if device.gpu.capability >= LEAST_FOR_BYTES:
        report(stage="multiplying bytes")
        report(byte_multiply_adds=byte_rate(device, 4096))
        report(memory=memory_rate(device))
    report(stage="done")


def product_seconds(device: CudaDevice, dtype: str, n: int) -> float:
    """The time of a square product by the fastest kernel."""
    device.use_kernel(fastest("cuda", dtype, n, device.gpu.capability), dtype)
    size = n * n * ITEM_SIZES[dtype]
    memory = device.reserve(3 * size, shared=False)
    a, b, c = (device.matrix(memory, number * size, n, n, dtype) for number in range(3))
    # Random numbers, since a GPU at its power limit multiplies zeros faster.
    _fill(device, (a, b), np.random.default_rng(0).standard_normal((min(n, _FILL_ROWS), n)).astype(dtype))
    return _seconds(device, "multiply", lambda: device.multiply(a, b, c, []))


def byte_rate(device: Any, n: int) -> float:
    """Multiply-adds a second of square products modulo two numbers, with the kernel for products from remainders."""
    bytes_of_one = n * n
    memory = device.reserve(6 * bytes_of_one, shared=False)
    a, b, c = (device.matrix(memory, offset * bytes_of_one, 2 * n, n, "uint8") for offset in (0, 2, 4))
    _fill(device, (a, b), np.random.default_rng(0).integers(0, 255, (min(n, _FILL_ROWS), n), np.uint8))
    planes = [device.matrix(memory, offset * bytes_of_one, 2, bytes_of_one, "uint8") for offset in (0, 2)]
    call = device.kernel(products_of(device, "", n, n, 2), (*planes, c, np.int64(n), np.int64(n)))
    return 2 * n**3 / _seconds(device, "multiply", lambda: device.launch([call], [], "products"))


def memory_rate(device: CudaDevice) -> float:
    """Bytes a second, read plus written, of a copy within the device's memory."""
    size = 8 * _SIZE
    memory = device.reserve(2 * size, shared=False)
    here, there = (device.matrix(memory, offset, 8 * _SHAPE[0], _SHAPE[1], "float64") for offset in (0, size))
    return 2 * size / _seconds(device, "exchange", lambda: device.exchange(there, here, []))


def _fill(device: CudaDevice, matrices: tuple[Any, ...], some: np.ndarray) -> None:
    """Fill the matrices with these rows, again and again."""
    for matrix in matrices:
        for rows in pieces(Span(0, matrix.shape[0]), len(some)):
            device.copy_in(matrix[rows.slice], some[: len(rows)], [])


def _seconds(device: CudaDevice, phase: str, enqueue: Callable[[], object]) -> float:
    """The time of one of several operations after the first, which takes longer."""
    for times in (1, _TIMES):
        list(device.finish())
        for _ in range(times):
            enqueue()
    timed = [(begin, end) for done, begin, end in device.finish() if done == phase]
    return float(max(end for _, end in timed) - min(begin for begin, _ in timed)) / _TIMES
