# SPDX-License-Identifier: MIT
"""`hybrid.use`: BLAS calls of NumPy and SciPy go to `hybrid.multiply` if that is faster."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Real
from types import TracebackType
from typing import Any, TypeVar

import hybrid
from hybrid.core.problem import Problem, Topology
from hybrid.core.settings import OF_CALLS, Settings, as_int
from hybrid.core.text import warn
from hybrid.devices.cuda_gpus import cuda_driver, usable_gpus
from hybrid.errors import CheckFailed, DeviceUnavailable, HybridError, RankMissing, UsageError, one_line
from hybrid.interposition.blas_calls import GEMM, TYPES, Product, counts, raise_soon, redirection
from hybrid.planning.decision import may_use_gpus, this_processor, threads_of_ranks
from hybrid.planning.machine_model import MachineModel
from hybrid.ranks.team import Requests, team_of

# Rooms whose own BLAS calls are left to BLAS.
_OUR_ROOMS = tuple(f"hybrid.{room}." for room in ("execution", "host", "devices", "verification", "arrays", "transport"))
_MOST_REFUSED = 1000  # shapes remembered
_NEVER = float("inf")
_GPU_START = 1.0  # seconds to load CuPy and start a GPU: 1.07 on an H100's host

_SMALLEST, _LARGEST, _STEP = 16, 1 << 20, 1.1  # sizes of square matrices to try
Shape = tuple[int, int, int, int, int]  # kind and type of blas_calls, and m, n, k
Function = TypeVar("Function", bound=Callable[..., Any])


class Gain:
    """The seconds that `hybrid.multiply` saves, negative if BLAS is faster. `threads`: of BLAS; `gpus`: ranks with a GPU each;
    `cpu_threads`: of all ranks without GPUs. With neither, `hybrid.multiply` never gains."""

    def __init__(self, model: MachineModel, threads: int, gpus: int, cpu_threads: int) -> None:
        self._model, self._threads, self._gpus, self._cpu_threads = model, threads, gpus, cpu_threads
        self._may_gain = bool(gpus or cpu_threads)

    def of(self, shape: Shape) -> float:
        if not self._may_gain:
            return 0.0
        kind, number, m, n, k = shape
        # A complex product becomes a real one, with twice as many columns of A, and rows and columns of B.
        problem = Problem(m, k, n, TYPES[number]) if number < 2 else Problem(m, 2 * k, 2 * n, TYPES[number - 2])
        blas = self._model.blas_seconds(problem, self._threads) / (1 if kind == GEMM else 2)
        if not self._gpus:
            return blas - self._model.cpus_seconds(problem, self._cpu_threads)
        moved = problem.bytes_of_matrices  # through staging buffers: the arrays are new
        return blas - min(self._model.gpu_seconds(problem, each, through_slots=moved) for each in (1, self._gpus))

    def threshold(self, number: int) -> float:
        """Multiply-adds of the smallest square product that gains. `number`: the index of its type in TYPES."""
        edge = _SMALLEST
        while self._may_gain and edge < _LARGEST:
            if self.of((GEMM, number, edge, edge, edge)) > 0:
                return edge**3
            edge = int(edge * _STEP)
        return _NEVER


@dataclass
class Report:
    """The statistics of a `use`."""

    products: int = 0  # computed by hybrid.multiply
    operations: int = 0  # of these: two per multiply-add
    calls: int = 0  # of gemm, syrk and herk in all, without other threads' calls while hybrid.multiply computed a product
    operations_of_calls: int = 0
    seconds_saved: float = 0.0  # by the machine model
    faults: int = 0  # products that failed their check and were recomputed by BLAS
    refused: int = 0  # products that hybrid.multiply refused and BLAS computed
    why_refused: str = ""  # the last reason

    def __str__(self) -> str:
        share = self.operations / self.operations_of_calls if self.operations_of_calls else 0.0
        text = (
            f"{self.products} of {self.calls} products, {self.operations:.3g} operations ({share:.1%}), "
            f"{self.seconds_saved:.3g} s saved by the machine model, {self.faults} faults, {self.refused} refused"
        )
        return f"{text}: {self.why_refused}" if self.why_refused else text


class use:
    """A context in which `hybrid.multiply` computes the products of NumPy and SciPy wherever it is faster than BLAS.

    It redirects calls of BLAS's gemm, syrk and herk for float32, float64, complex64 and complex128: `@`, `dot`, `einsum`,
    `tensordot`, `scipy.linalg.blas` and all that uses them, but not products within LAPACK. Results have the same error bounds as
    BLAS's, but may differ in the last bits. It applies to all threads of the process; processes forked meanwhile use only BLAS.
    BLAS computes what `hybrid.multiply` refuses, or what fails its check.

    Parameters
    ----------
    comm
        An mpi4py communicator whose ranks share the products. Every rank enters the context: the root continues at once, and the
        others serve its products until it leaves. None: this process alone.
    root
        The rank whose products these are. Only those of its main thread are shared.
    threshold
        Multiply-adds from which on a product goes to `hybrid.multiply`, faster or not. None: the machine model decides.
    **options
        The keywords of `hybrid.multiply` from `kernel` on.

    Raises
    ------
    HybridError
        When the context is entered: without a C compiler, or if this NumPy's calls of BLAS cannot be redirected.

    Examples
    --------
    >>> import numpy, hybrid
    >>> with hybrid.use(threshold=1) as used:
    ...     c = numpy.ones((20, 30)) @ numpy.ones((30, 10))
    >>> used.report().products
    1

    As a decorator it does the same for a function. With a comm, only the root calls the function; other ranks get None.
    """

    def __init__(self, comm: Any = None, *, root: int = 0, threshold: float | None = None, **options: Any) -> None:
        if unknown := options.keys() - OF_CALLS:
            raise TypeError(f"use() got an unexpected keyword argument {min(unknown)!r}")
        if threshold is not None and not (isinstance(threshold, Real) and threshold >= 0):
            raise UsageError(f"threshold must be a number of multiply-adds, not {threshold!r}", code="number")
        self._comm, self._root, self._threshold, self._options = comm, as_int(root), threshold, options
        self._depth = 0  # of nested starts
        self._requests: Requests | None = None  # to the ranks that share the root's products
        self._gain: Gain | None = None  # None: BLAS computes all products
        self._gpu_is_known, self._could_gain = False, 0.0
        self._refused: set[Shape] = set()
        self._report = Report()
        self._counted = (0, 0)  # `counts()` when last added to the report

    # --- start and end

    def start(self) -> use:
        """Enter the context. With a comm, ranks other than the root return when the root has left it."""
        with _switching:
            self._depth += 1
            if self._depth > 1:
                return self
            try:
                if self._prepare():
                    self._counted = counts()
                    _active.append(self)
                    _offer_to_newest()
                    return self
            except BaseException:
                self._depth = 0
                self._stop()
                raise
        self._serve()
        self._depth = 0
        return self

    def _serve(self) -> None:
        """Multiply with the root until it leaves the context."""
        requests, self._requests = self._requests, None
        assert requests is not None
        while (options := requests.receive()) is not None:
            try:
                hybrid.multiply(None, None, comm=self._comm, root=self._root, **options)
            except HybridError as error:
                if not error.on_all_ranks:  # else the root has the error, too, and continues without this product
                    raise
        requests.free()

    def stop(self) -> None:
        """Leave the context: modules call BLAS directly again."""
        with _switching:
            self._depth = max(0, self._depth - 1)
            if not self._depth:
                self._stop()

    def _stop(self) -> None:
        if self in _active:
            self._count()
            _active.remove(self)
            _offer_to_newest()
            if self._requests is not None:
                self._requests.send(None)
                self._requests.free()
        self._requests = None

    __enter__ = start

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __call__(self, function: Function) -> Function:
        @wraps(function)
        def within(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named) if self._depth else None

        return within  # type: ignore[return-value]

    def report(self) -> Report:
        """The statistics so far, also after the end."""
        with _switching:
            self._count()
        return replace(self._report)

    def _count(self) -> None:
        """Add what BLAS has computed since the last time."""
        if self in _active:
            now = counts()
            self._report.calls += now[0] - self._counted[0]
            self._report.operations_of_calls += 2 * (now[1] - self._counted[1])
            self._counted = now

    # --- what is faster

    def _prepare(self) -> bool:
        """Collective: find out which products are faster. Returns whether to redirect this rank's calls; other ranks serve."""
        settings = Settings.gather(self._options)
        model = MachineModel.read(settings.machine)
        threads = threads_of_ranks(Topology(((0,),)), Settings(), [this_processor()])[0].count  # of this process's BLAS
        by_gpu, ranks, cpu_threads = may_use_gpus(settings) and cuda_driver() is not None, 1, 0
        self._gpu_is_known = self._threshold is not None
        if self._gpu_is_known:
            by_gpu = by_gpu and not _why_no_gpu()
        team = team_of(self._comm, self._options.get("stall"))
        team.refuse_no_rank(self._root)
        if team.size > 1:
            with team.together(), team.phase("agree", timed=False) as looking:
                looking.mine = by_gpu and not _why_no_gpu(), this_processor()
            with_gpu, processors = zip(*looking.all, strict=True)
            by_gpu, self._gpu_is_known, ranks = all(with_gpu), True, team.size
            if any(with_gpu) and not by_gpu:
                raise DeviceUnavailable(f"no usable GPU on rank {with_gpu.index(False)}: mend that, or choose device cpu")
            self._requests = Requests(self._comm, self._root)
            if team.rank != self._root:
                return False
            cpu_threads = sum(each.count for each in threads_of_ranks(team.topology, settings, processors))
        self._gain = Gain(model, threads, ranks if by_gpu else 0, cpu_threads)
        return True

    @property
    def thresholds(self) -> list[float]:
        """Multiply-adds of the smallest products to offer, by TYPES."""
        if self._threshold is not None and self._gain is not None:
            return [self._threshold] * len(TYPES)
        return [self._gain.threshold(number) if self._gain is not None else _NEVER for number in range(len(TYPES))]

    def _is_faster(self, shape: Shape) -> bool:
        """Whether to compute a product. A GPU is started when earlier products could have saved the time that this takes, so that
        no program gets much slower."""
        if self._gain is None or shape in self._refused:
            return False
        seconds = self._gain.of(shape)
        if seconds <= 0 and self._threshold is None:
            return False
        if not self._gpu_is_known:
            self._could_gain += seconds
            if self._could_gain < _GPU_START:
                return False
            self._gpu_is_known = True
            if why := _why_no_gpu():
                self._give_up(why)
        return self._gain is not None

    def _give_up(self, why: str) -> None:
        """Leave all products to BLAS from now on."""
        self._gain, self._report.why_refused = None, why
        _offer_to_newest()

    # --- one product

    def offered(self, address: int) -> bool:
        """Compute the product of a BLAS call, if faster. Returns whether it was computed."""
        product = Product.from_address(address)
        shape = product.kind, product.type, product.m, product.n, product.k
        on_this_thread = self._requests is None or threading.current_thread() is threading.main_thread()
        if _is_our_call() or not on_this_thread or not self._is_faster(shape):
            return False
        from hybrid.interposition.computed import computed, write  # loads NumPy, which the program may want to load later

        try:
            result, c = computed(product, self._multiply, self._options)
        except Exception as error:
            if not (isinstance(error, HybridError | MemoryError) or type(error).__module__.startswith("cupy")):
                raise  # usually of a signal handler
            self._record(error, shape)
            return False
        if result is not c:
            try:
                write(product, result, c)
            except BaseException as interrupt:  # of a signal handler; C is written in part, so BLAS must not add to it
                raise_soon(interrupt)
                write(product, result, c)
        report, operations = self._report, product.m * product.n * product.k * (2 if product.kind == GEMM else 1)
        report.products, report.calls = report.products + 1, report.calls + 1
        report.operations, report.operations_of_calls = report.operations + operations, report.operations_of_calls + operations
        report.seconds_saved += self._gain.of(shape) if self._gain is not None else 0.0
        return True

    def _multiply(self, a: Any, b: Any, c: Any, out: Any, options: Mapping[str, Any]) -> Any:
        if self._requests is None:
            return hybrid.multiply(a, b, c, out=out, **options)
        self._requests.send(options)
        return hybrid.multiply(a, b, c, comm=self._comm, root=self._root, out=out, **options)

    def _record(self, error: Exception, shape: Shape) -> None:
        """Record why BLAS must compute a product."""
        code = getattr(error, "code", "")
        if code == "interrupted":  # on another rank
            raise_soon(KeyboardInterrupt())
        elif isinstance(error, CheckFailed):
            self._report.faults += 1
            warn(f"{one_line(error)}; BLAS has computed it instead")
        else:
            self._report.refused, self._report.why_refused = self._report.refused + 1, one_line(error)
            if isinstance(error, RankMissing):
                self._give_up(one_line(error))
            elif len(self._refused) < _MOST_REFUSED:
                self._refused.add(shape)


_active: list[use] = []  # started ones, the newest last
_switching = threading.RLock()


def _offer_to_newest() -> None:
    """Offer products to the newest active `use`."""
    if _active:
        newest = _active[-1]
        redirection.begin(newest.offered, newest.thresholds)
    else:
        redirection.end()


def _end_in_child() -> None:
    """A forked process uses only BLAS: neither CUDA nor MPI works in it."""
    global _switching
    _switching = threading.RLock()
    _active.clear()
    redirection.end()


os.register_at_fork(after_in_child=_end_in_child)


@atexit.register
def _stop_all() -> None:
    for each in reversed(_active[:]):
        each._stop()


def _why_no_gpu() -> str:
    """Why this process can use no GPU; empty if it can."""
    try:
        usable_gpus()
    except DeviceUnavailable as missing:
        return str(missing)
    return ""


def _is_our_call() -> bool:
    """Whether this thread's call of BLAS comes from hybrid itself."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_OUR_ROOMS):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
