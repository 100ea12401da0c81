# SPDX-License-Identifier: MIT
"""Kernels beside those of the catalogue, on streams of a CUDA GPU. They are compiled at first use and launched with prepared
arguments; several that are always launched together become a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid.devices.base import Event, KernelCall
from hybrid.devices.cuda_contexts import GpuContext
from hybrid.devices.cuda_gpus import Gpu
from hybrid.devices.cuda_kernels import compiled_functions, matrix_argument
from hybrid.devices.prepared_launch import PreparedLaunch, allow_shared_memory, prefer_shared_memory
from hybrid.kernels.catalogue import Launch


class CudaQueues:
    """The KernelQueues of a CUDA GPU."""

    def __init__(
        self,
        cupy: Any,
        context: GpuContext,
        gpu: Gpu,
        enqueue: Callable[[Sequence[Event], Callable[[Any], None], str], Event],
    ) -> None:
        """`enqueue(after, launch, queue)`: has `launch(stream)` enqueue work behind these events, on the queue's stream."""
        self._cupy, self._context, self._enqueue = cupy, context, enqueue
        self._functions: dict[tuple[str, str], Any] = {}  # by source and expression
        self.capability = gpu.capability
        self.multiprocessors = int(cupy.cuda.Device(gpu.index).attributes["MultiProcessorCount"])

    def compile_ahead(self, launches: Sequence[Launch]) -> None:
        of_source: dict[str, list[Launch]] = {}
        for launch in launches:
            if (launch.source, launch.expression) not in self._functions:
                of_source.setdefault(launch.source, []).append(launch)
        for of_one in of_source.values():
            self._functions |= self._compiled(of_one)

    def _compiled(self, launches: Sequence[Launch]) -> dict[tuple[str, str], Any]:
        """The functions of these launches, which are of one source."""
        source, shared = launches[0].source, {launch.expression: launch.shared_bytes for launch in launches}
        with self._context:
            functions = compiled_functions(source, [*shared], launches[0].architecture)
            for expression, function in functions.items():
                # As the kernels of products want it: a kernel that wants another division of an SM's memory waits until it is
                # idle.
                prefer_shared_memory(function)
                allow_shared_memory(function, shared[expression])
        return {(source, expression): function for expression, function in functions.items()}

    def kernel(self, launch: Launch, arguments: Sequence[Any]) -> KernelCall:
        self.compile_ahead([launch])
        function = self._functions[launch.source, launch.expression]
        packed = [each if isinstance(each, np.generic) else matrix_argument(each) for each in arguments]
        with self._context:
            prepared = PreparedLaunch(function, launch.grid, launch.block, packed, launch.shared_bytes)
        return lambda stream: prepared(stream.ptr)

    def clearing(self, matrix: Any, byte: int) -> KernelCall:
        return lambda stream: self._cupy.cuda.runtime.memsetAsync(matrix.data.ptr, byte, matrix.nbytes, stream.ptr)

    def together(self, calls: Sequence[KernelCall]) -> KernelCall:
        return Together(calls)

    def host_memory(self, shape: tuple[int, int], dtype: str) -> np.ndarray:
        size = shape[0] * shape[1]
        pinned = self._cupy.cuda.alloc_pinned_memory(size * np.dtype(dtype).itemsize)
        return np.frombuffer(pinned, dtype, size).reshape(shape)

    def enqueue(self, calls: Sequence[KernelCall], after: list[Event], queue: str) -> Event:
        def launch(stream: Any) -> None:
            for call in calls:
                call(stream)

        return self._enqueue(after, launch, queue)


class Together:
    """Makes several calls, one after the other; from the second time on as one CUDA graph.

    A launch takes the host up to 20 µs, and a tile has two dozen. But building a graph takes longer than launching its kernels
    once. It is captured on the stream on which it is launched: its kernels keep the priority of that stream.
    """

    def __init__(self, calls: Sequence[KernelCall]) -> None:
        self._calls, self._was_called = calls, False
        self._graph: Any = None

    def __call__(self, stream: Any) -> None:
        if self._graph is None and self._was_called:
            self._graph = self._captured(stream)
        if self._graph is not None:
            self._graph.launch(stream)
            return
        self._was_called = True
        for call in self._calls:
            call(stream)

    def _captured(self, stream: Any) -> Any:
        stream.begin_capture()
        try:
            for call in self._calls:
                call(stream)
        finally:
            graph = stream.end_capture()
        return graph
