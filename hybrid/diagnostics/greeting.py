# SPDX-License-Identifier: MIT
"""Greetings from a process's CPU threads, and from every thread of a kernel on its GPU or the emulated one."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hybrid.errors import HybridError, one_line
from hybrid.kernels.catalogue import EMULATED_CAPABILITY

if TYPE_CHECKING:
    from hybrid.planning.decision import Gpu

SOURCE, KERNEL = "greeting.cu", "greeting"
MOST_LINES = 1 << 16  # of one kernel
MOST_BLOCK = 1024  # threads per block, CUDA's limit
MOST_THREADS = 4096  # CPU threads that one process starts
_PREFIX = "Hello from block "  # of the kernel's lines
_DEFAULT_FIFO_BYTES = 1 << 20  # of device printf's buffer (cudaLimitPrintfFifoSize)
_BYTES_PER_LINE = 256  # in that buffer: generous, since CUDA does not document the bytes of a line


# Launches the kernel for the process of this number; the returned function waits until the lines are in C's standard output.
Greeter = Callable[[int], Callable[[], object]]


def gpu_greeter(gpu: Gpu, blocks: int, threads: int) -> Greeter:
    """A greeter on a GPU of this process. The launch is asynchronous: the kernel runs while the CPU threads greet."""
    import cupy
    import numpy as np

    from hybrid.devices.cuda_gpus import use_context_of
    from hybrid.devices.cuda_kernels import architecture_of, load_kernels

    use_context_of(gpu)
    device, runtime = cupy.cuda.Device(gpu.index), cupy.cuda.runtime
    device.use()
    # The limit cannot change once a kernel that prints is loaded.
    runtime.deviceSetLimit(runtime.cudaLimitPrintfFifoSize, max(_DEFAULT_FIFO_BYTES, blocks * threads * _BYTES_PER_LINE))
    kernel = load_kernels(SOURCE, [KERNEL], architecture_of(gpu.capability))[KERNEL]

    def launch(process: int) -> Callable[[], object]:
        device.use()
        kernel((blocks,), (threads,), (np.int32(process),))
        return device.synchronize  # which also flushes printf's buffer to standard output

    return launch


def emulated_greeter(blocks: int, threads: int) -> Greeter:
    """A greeter on the emulated GPU, whose launches are synchronous."""
    import numpy as np

    from hybrid.emulation.kernel import EmulatedKernel
    from hybrid.kernels.catalogue import KERNELS

    kernel = EmulatedKernel(KERNELS / SOURCE, KERNEL, EMULATED_CAPABILITY)

    def launch(process: int) -> Callable[[], object]:
        kernel((blocks, 1), (threads, 1), 0, (np.full((1, 1), process, np.int32),))
        return lambda: None

    return launch


def greet(process: int, processes: int, threads: int, greeter: Greeter | None, kernel_lines: int) -> list[str]:
    """The lines of this process's CPU threads, then of its kernel. HybridError if there are too few of either."""
    with captured_output() as output:
        finish = greeter(process) if greeter else lambda: None
        said = _greet_from_threads(process, processes, threads)
        finish()
    from_kernel = [line for line in output if line.startswith(_PREFIX)]
    others = [line for line in output if not line.startswith(_PREFIX)]
    if others:  # a library's
        os.write(2, "".join(f"{line}\n" for line in others).encode())
    if len(from_kernel) != kernel_lines:
        raise HybridError(f"the kernel printed {len(from_kernel)} of {kernel_lines} lines: fewer --blocks", code="threads")
    return said + from_kernel


def _greet_from_threads(process: int, processes: int, threads: int) -> list[str]:
    """The lines of `threads` CPU threads; the calling thread is number 0, as in OpenMP. A barrier keeps all threads alive until
    the last has greeted."""
    said: list[str] = []
    barrier = threading.Barrier(threads)

    def greet_from(number: int) -> None:
        said.append(f"Greetings from CPU thread {number}/{threads} of process {process}/{processes}!")
        with suppress(threading.BrokenBarrierError):  # a thread could not be started: raised below
            barrier.wait()

    others = [threading.Thread(target=greet_from, args=(number,), daemon=True) for number in range(1, threads)]
    for number, thread in enumerate(others, 1):
        try:
            thread.start()
        except RuntimeError as error:
            barrier.abort()
            raise HybridError(f"only {number} of {threads} threads started ({one_line(error)})", code="threads") from error
    greet_from(0)
    for thread in others:
        thread.join()
    return said


@contextmanager
def captured_output() -> Iterator[list[str]]:
    """A context that captures standard output of C code and of printf in kernels. The list gets the lines at the end."""
    c: Any = ctypes.CDLL(None)
    lines: list[str] = []
    with tempfile.TemporaryFile() as file:  # not a pipe, which would block when full
        c.fflush(None)
        stdout = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            yield lines
        finally:
            c.fflush(None)
            os.dup2(stdout, 1)
            os.close(stdout)
        file.seek(0)
        lines += file.read().decode(errors="replace").splitlines()
