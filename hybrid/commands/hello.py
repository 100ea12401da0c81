# SPDX-License-Identifier: MIT
"""The command python -m hybrid.hello: every rank greets from its CPU threads and from its GPU."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid.commands.cli import Command, agree
from hybrid.commands.parser import Parser, add_settings, at_least, settings_of
from hybrid.core.settings import Settings
from hybrid.core.text import ranges, tell_nobody
from hybrid.diagnostics.finding import ranks_by_value
from hybrid.errors import DeviceUnavailable, HybridError, StartError, UsageError, one_line
from hybrid.host.threads import usable_cores
from hybrid.kernels.catalogue import EMULATED_CAPABILITY
from hybrid.ranks.launcher import launched
from hybrid.ranks.mpi import library_in_use
from hybrid.ranks.team import Team
from hybrid.reporting.progress import Progress

if TYPE_CHECKING:
    from hybrid.planning.decision import Gpu

NAME = "hybrid.hello"
SOURCE, KERNEL = "greeting.cu", "greeting"
MOST_LINES = 1 << 16  # of one kernel
MOST_BLOCK = 1024  # threads per block, CUDA's limit
MOST_THREADS = 4096  # CPU threads that one process starts
_PREFIX = "Hello from block "  # of the kernel's lines
_DEFAULT_FIFO_BYTES = 1 << 20  # of device printf's buffer (cudaLimitPrintfFifoSize)
_BYTES_PER_LINE = 256  # in that buffer: generous, since CUDA does not document the bytes of a line

_MORE = f"""\
examples:
  mpirun -n 2 python -m hybrid.hello
  srun -n 2 -c 4 --gres=gpu:1 python -m hybrid.hello --where
  python -m hybrid.hello --blocks 2 --threads-per-block 32 --threads 1

Standard output has ranks · (threads + blocks · threads per block) + 1 lines, and with --where one more per rank. Standard error
has MPI's thread level, and why a kernel ran on the CPU. At most {MOST_LINES} lines per kernel, {MOST_BLOCK} threads per block.

exit codes: 0 all well, 1 a failure, also when a rank had neither GPU nor compiler for the kernel, 2 wrong usage
"""


def build_parser() -> Parser:
    summary = "Every rank greets, from its CPU threads and its GPU."
    parser = Parser(prog="python -m hybrid.hello", description=summary, epilog=_MORE)
    parser.add_argument("--blocks", type=at_least(1), default=3, metavar="B", help="blocks of the kernel (3)")
    parser.add_argument("--threads-per-block", type=at_least(1, MOST_BLOCK), default=4, metavar="T", help="threads per block (4)")
    add_settings(parser, "device", device="auto, cuda, emulate (the kernel on the CPU), or cpu: no kernel at all (auto)")
    parser.add_argument("--where", action="store_true", help="also show each rank's host, cores and GPU")
    add_settings(parser, "threads", "stall")
    return parser


def parse() -> tuple[argparse.Namespace, Settings]:
    """Options and settings; UsageError for what no GPU can do."""
    options = build_parser().parse_args()
    if options.blocks * options.threads_per_block > MOST_LINES:
        raise UsageError(f"more than {MOST_LINES} lines a rank: fewer --blocks or --threads-per-block", code="number")
    return options, settings_of(options)


def work(team: Team, options: argparse.Namespace, settings: Settings) -> int:
    with team.phase("agree", timed=False):
        thread_level = "started alone: no MPI, so no thread level"
        if launched() is not None:
            library = library_in_use()
            if not library.threads_suffice:  # a higher level than asked for is fine
                what = f"{library.name} provides MPI_THREAD_{library.provided}, FUNNELED is needed"
                raise StartError(what, code="mpi-threads")
            thread_level = f"MPI thread level {library.asked} asked for, {library.provided} provided ({library.name})"
    threads = agree(team, options, settings)[team.rank].count
    with Progress(team.rank == 0, part=lambda: team.doing):
        gpu = _choose_gpu(team, settings)
        with team.phase("prepare", timed=False) as preparing:
            if threads > MOST_THREADS:
                raise UsageError(f"{threads} CPU threads a rank are too many: --threads {MOST_THREADS} or less", code="number")
            greeter, device, preparing.mine = _prepare(options, settings, gpu, team.rank)
    if team.rank == 0:  # to standard error, since the number of lines on standard output is fixed
        print(f"{NAME}: {thread_level}", file=sys.stderr)
        for (runs_kernel, why), ranks in ranks_by_value(preparing.all).items():
            if why and settings.device != "cpu":
                what = "the GPU's greetings come from the CPU, emulated" if runs_kernel else "no greetings from a GPU"
                who = "" if len(ranks) == team.size else f"rank {ranges(ranks)}: "
                print(f"{NAME}: {who}{what}: {why}", file=sys.stderr)
    lines_of_kernel = options.blocks * options.threads_per_block if greeter else 0
    with team.phase("barrier", timed=False):
        pass
    began = time.perf_counter()
    with team.phase("greet", timed=False) as greeting:
        lines = greet(team.rank, team.size, threads, greeter, lines_of_kernel)
        if options.where:
            where = f"{team.host}, cores {ranges(usable_cores())}, {device}"
            lines.insert(0, f"Process {team.rank}/{team.size} is on {where}")
        greeting.mine = "".join(f"{line}\n" for line in lines)
    seconds = time.perf_counter() - began
    with team.phase("report", timed=False):
        if team.rank == 0:
            print(*greeting.all, f"Time: {seconds:.6f}\n", sep="", end="", flush=True)
    return 0 if all(runs_kernel for runs_kernel, _ in preparing.all) or settings.device == "cpu" else 1


def _choose_gpu(team: Team, settings: Settings) -> Gpu | str:
    """This rank's GPU, or why it has none. The others use theirs all the same."""
    from hybrid.devices.cuda_gpus import usable_gpus
    from hybrid.planning.decision import choose_gpus

    if settings.device in ("cpu", "emulate"):
        return "asked for"
    with team.phase("prepare", timed=False) as visible:
        try:
            visible.mine = usable_gpus(), ""
        except DeviceUnavailable as missing:
            if settings.device == "cuda":
                raise
            visible.mine = (), str(missing)
    gpus, why_none = zip(*visible.all, strict=True)
    return choose_gpus(gpus)[team.rank] or str(why_none[team.rank])


# Launches the kernel, and waits until its lines are in C's standard output.
Greeter = tuple[Callable[[], object], Callable[[], object]]


def _prepare(
    options: argparse.Namespace, settings: Settings, gpu: Gpu | str, process: int
) -> tuple[Greeter | None, str, tuple[bool, str]]:
    """The greeter with its compiled kernel, or None; its device, as --where shows it; whether the kernel runs, and why not on a
    GPU ("" on one)."""
    shape = options.blocks, options.threads_per_block
    if settings.device == "cpu":
        return None, "no kernel", (False, "asked for")
    if not isinstance(gpu, str):
        return gpu_greeter(gpu, *shape, process), f"{gpu.uuid} ({gpu.name})", (True, "")
    try:
        return emulated_greeter(*shape, process), "no GPU (emulated)", (True, gpu)
    except HybridError as cannot:
        if settings.device == "emulate":
            raise
        return None, "no GPU", (False, f"{gpu}; {cannot}")


def gpu_greeter(gpu: Gpu, blocks: int, threads: int, process: int) -> Greeter:
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
    # To synchronize also flushes printf's buffer to standard output.
    return partial(kernel, (blocks,), (threads,), (np.int32(process),)), device.synchronize


def emulated_greeter(blocks: int, threads: int, process: int) -> Greeter:
    """A greeter on the emulated GPU, whose launches are synchronous."""
    import numpy as np

    from hybrid.emulation.kernel import EmulatedKernel
    from hybrid.kernels.catalogue import KERNELS

    kernel = EmulatedKernel(KERNELS / SOURCE, KERNEL, EMULATED_CAPABILITY)
    return partial(kernel, (blocks, 1), (threads, 1), 0, (np.full((1, 1), process, np.int32),)), tell_nobody


def greet(process: int, processes: int, threads: int, greeter: Greeter | None, kernel_lines: int) -> list[str]:
    """The lines of this process's CPU threads, then of its kernel. HybridError if there are too few of either."""
    launch, finish = greeter or (tell_nobody, tell_nobody)
    with captured_output() as output:
        launch()
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


main = Command(NAME, parse, work).run
