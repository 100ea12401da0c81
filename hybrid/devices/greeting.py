"""A process greets: its CPU threads do, and every thread of a kernel on its GPU, or on the CPU that stands for one."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from hybrid.errors import HybridError, one_line
from hybrid.kernels.catalogue import EMULATED_CAPABILITY

if TYPE_CHECKING:
    from hybrid.devices.cuda_gpus import Gpu

SOURCE, KERNEL = "greeting.cu", "greeting"
MOST_LINES = 1 << 16  # of one kernel
MOST_BLOCK = 1024  # threads of a block, on every GPU
MOST_THREADS = 4096  # of the CPU, that one process starts
_BEGINNING = "Hello from block "
_BUFFER_BYTES = 1 << 20  # of a GPU's printf, unless told otherwise
_BYTES_A_LINE = 256  # in that buffer; what a line takes there is nowhere written, so this is plenty


class Greeter(Protocol):
    """What runs the kernel. Its lines are in C's standard output once `finish` has returned."""

    def launch(self, process: int) -> None: ...

    def finish(self) -> None: ...


class GpuGreeter:
    """A GPU of this process. The kernel runs beside the CPU's threads."""

    def __init__(self, gpu: Gpu, blocks: int, threads: int) -> None:
        import cupy

        from hybrid.devices.cuda_kernels import compile_options
        from hybrid.kernels.sources import KERNELS

        self._shape = ((blocks,), (threads,))
        self._cupy = cupy
        self._device = cupy.cuda.Device(gpu.index)
        self._device.use()
        runtime = cupy.cuda.runtime
        # Before a kernel that prints is loaded: then it is too late.
        runtime.deviceSetLimit(runtime.cudaLimitPrintfFifoSize, max(_BUFFER_BYTES, blocks * threads * _BYTES_A_LINE))
        source = (KERNELS / SOURCE).read_text(encoding="utf-8")
        module = cupy.RawModule(code=source, options=compile_options(KERNELS), name_expressions=(KERNEL,))
        self._kernel = module.get_function(KERNEL)

    def launch(self, process: int) -> None:
        import numpy as np

        self._device.use()
        self._kernel(*self._shape, (np.int32(process),))

    def finish(self) -> None:
        self._device.synchronize()  # which shows the buffer, too


class EmulatedGreeter:
    """This CPU. The kernel has run when `launch` returns."""

    def __init__(self, blocks: int, threads: int) -> None:
        from hybrid.emulation.kernel import EmulatedKernel
        from hybrid.kernels.sources import KERNELS

        self._shape = ((blocks, 1), (threads, 1))
        self._kernel = EmulatedKernel(KERNELS / SOURCE, KERNEL, EMULATED_CAPABILITY)

    def launch(self, process: int) -> None:
        import numpy as np

        self._kernel(*self._shape, 0, (np.full((1, 1), process, np.int32),))

    def finish(self) -> None:
        pass


def greet(process: int, processes: int, threads: int, greeter: Greeter | None, kernel_lines: int) -> list[str]:
    """The lines of this process's CPU threads and of its kernel, which prints `kernel_lines` of them.

    HybridError if threads cannot be started or lines of the kernel are missing.
    """
    with captured_output() as output:
        if greeter is not None:
            greeter.launch(process)
        said = _greet_from_threads(process, processes, threads)
        if greeter is not None:
            greeter.finish()
    hellos = [line for line in output if line.startswith(_BEGINNING)]
    others = [line for line in output if not line.startswith(_BEGINNING)]
    if others:  # a library's
        os.write(2, "".join(f"{line}\n" for line in others).encode())
    if greeter is not None and len(hellos) != kernel_lines:
        raise HybridError(f"the kernel printed {len(hellos)} lines instead of {kernel_lines}: fewer blocks or threads may fit")
    return said + hellos


def _greet_from_threads(process: int, processes: int, threads: int) -> list[str]:
    """This thread is number 0, as in OpenMP; all of them are there at the same time."""
    said: list[str] = []
    all_there = threading.Barrier(threads)

    def greet_from(number: int) -> None:
        said.append(f"Greetings from CPU thread {number}/{threads} of process {process}/{processes}!")
        with suppress(threading.BrokenBarrierError):  # a thread could not be started, which is said below
            all_there.wait()

    others = [threading.Thread(target=greet_from, args=(number,), daemon=True) for number in range(1, threads)]
    for number, thread in enumerate(others, 1):
        try:
            thread.start()
        except RuntimeError as error:
            all_there.abort()
            raise HybridError(
                f"only {number} of {threads} threads could be started ({one_line(error)}): --threads {number} or less"
            ) from error
    greet_from(0)
    for thread in others:
        thread.join()
    return said


@contextmanager
def captured_output() -> Iterator[list[str]]:
    """A list that holds, after this context, the lines that C code wrote to standard output, a GPU's printf among it."""
    c: Any = ctypes.CDLL(None)
    lines: list[str] = []
    with tempfile.TemporaryFile() as file:  # no pipe, which nobody would empty
        c.fflush(None)
        standard = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            yield lines
        finally:
            c.fflush(None)
            os.dup2(standard, 1)
            os.close(standard)
        file.seek(0)
        lines += file.read().decode(errors="replace").splitlines()
