# SPDX-License-Identifier: MIT
"""The number of CPU threads that a rank uses, and the limit of products by BLAS to that number."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from hybrid.core.problem import record
from hybrid.core.spans import Span, even_pieces, pieces

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


# -------- thread map
# Work by several threads of a process, for NumPy calls that release the GIL. The threads are kept from call to call.

Part = TypeVar("Part")
Result = TypeVar("Result")

CALL_BYTES = 4 << 20  # of the operands of one NumPy call: in smaller calls the threads would mostly wait for the GIL
MOST_THREADS = 16  # more would wait for the GIL between their calls, and each takes temporary memory


class _InPart(threading.local):
    """What this thread is doing."""

    in_part = False


_in_part = _InPart()


def _new_pool() -> None:
    """Make the pool of threads. They start when they are first needed, wait for work without using a core, and end with the
    interpreter."""
    global _pool
    _pool = ThreadPoolExecutor(MOST_THREADS, "hybrid")


_pool: ThreadPoolExecutor
_new_pool()
os.register_at_fork(after_in_child=_new_pool)  # the threads exist in the parent only


def on_threads(threads: int, work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """`work(part)` for each part by `threads` threads, this one among them; the results in order.

    After an exception, or when the caller abandons the iterator, no more parts are begun, and those begun are waited for.
    Within `work`, on_threads uses no more threads.
    """
    parts = list(parts)
    helpers = min(threads, MOST_THREADS, len(parts)) - 1
    if helpers < 1 or _in_part.in_part:
        yield from map(work, parts)
        return
    shared = _Parts(work, parts)
    # This thread takes parts, too: so all are done even if the pool is busy with other work, or this is a thread of the pool.
    helping: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # the limit of threads is reached: those that there are take all parts
            for _ in range(helpers):
                helping.append(_pool.submit(shared.take_all))
        for index in range(len(parts)):
            yield shared.result(index)
    finally:
        shared.todo.clear()
        for helper in helping:
            if not helper.cancel():
                helper.result()
        shared.errors.clear()  # whose tracebacks refer to this list: it would keep all arrays of a failed call


class _Parts(Generic[Part, Result]):
    """The parts of one call of on_threads, which several threads take."""

    def __init__(self, work: Callable[[Part], Result], parts: Iterable[Part]) -> None:
        self._work = work
        self.todo = deque(enumerate(parts))
        self._results: dict[int, Result] = {}
        self.errors: list[BaseException] = []
        self._done: SimpleQueue[int] = SimpleQueue()  # the parts' numbers, each after its result or error

    def take_all(self) -> None:
        """Do parts until none is left."""
        while self._take():
            pass

    def result(self, index: int) -> Result:
        """The result of part `index`, once. Until it is there, this thread does other parts, and waits when none is left."""
        while index not in self._results:
            if self.errors:
                raise self.errors[0]
            if self._done.empty():
                self._take()
            self._done.get()
        return self._results.pop(index)

    def _take(self) -> bool:
        """Do the next part; False if none is left."""
        try:
            index, part = self.todo.popleft()
        except IndexError:
            return False
        _in_part.in_part = True
        try:
            self._results[index] = self._work(part)
        except BaseException as error:  # raised by `result`
            self.errors.append(error)
            self.todo.clear()
        finally:
            _in_part.in_part = False
        self._done.put(index)
        return True


def rows_of_about(at_once: int, rows: Span, row_bytes: int) -> Iterator[Span]:
    """The rows in pieces of at most `at_once` bytes, but of at least one row."""
    return pieces(rows, max(1, at_once // max(1, row_bytes)))


# Read once by the BLAS libraries that NumPy may come with, when they are loaded.
_POOL_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
THREAD_VARIABLES = ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS")  # the first that is set counts

_announced = 1  # threads of products outside `limited_threads`


class _Here(threading.local):
    """What the innermost `limited_threads` of this thread allows; 0 outside of all."""

    threads = 0


_here = _Here()


@record
class Threads:
    """A rank's number of threads, and the reason for it."""

    count: int
    reason: str


def usable_cores() -> tuple[int, ...]:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def choose_threads(
    asked: int,
    rank_on_node: int,
    cores_of_node_ranks: Sequence[Sequence[int]],
    environment: Mapping[str, str],
    quota: float | None = None,
) -> Threads:
    """The threads of one rank: `asked`, else SLURM_CPUS_PER_TASK, else OMP_NUM_THREADS, else its part of the usable cores.

    `cores_of_node_ranks`: for each rank of the node the cores that it may use; those that several ranks may use are divided
    among them. `quota`: the number of cores to which the control group limits the processor time of all ranks of the node
    together.
    """
    if asked:
        return Threads(asked, "--threads")
    for variable in THREAD_VARIABLES:
        first = environment.get(variable, "").split(",")[0].strip()  # OpenMP allows a list, one number a nesting level
        if first.isdecimal() and int(first) > 0:
            return Threads(int(first), variable)
    users: dict[int, int] = {}
    for cores in cores_of_node_ranks:
        for core in cores:
            users[core] = users.get(core, 0) + 1
    mine = cores_of_node_ranks[rank_on_node]
    share = sum(1 / users[core] for core in mine)
    if quota is not None:
        share = min(share, quota / len(cores_of_node_ranks))
    sharing = max(users[core] for core in mine)
    reason = f"{len(mine)} {'core' if len(mine) == 1 else 'cores'}" + (f" ÷ {sharing} ranks" if sharing > 1 else "")
    return Threads(max(1, int(share + 1e-9)), reason)


def core_quota(root: Path = Path("/")) -> float | None:
    """The number of cores to which control groups (version 2) limit this process's processor time; None: no limit."""
    try:
        limit, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def announce_threads(count: int) -> None:
    """Have products use so many threads, also outside `limited_threads`, and BLAS start no more. It has no effect once NumPy has
    loaded it."""
    global _announced
    if "numpy" not in sys.modules:
        _announced = count
        for variable in _POOL_VARIABLES:
            os.environ[variable] = str(_of_blas(count))
        # NumPy sets these while it loads OpenBLAS, then deletes them, which other threads must not see: `wake_driver` says why.
        for variable in ("OPENBLAS_MAIN_FREE", "GOTOBLAS_MAIN_FREE"):  # the second up to NumPy 2.2
            os.environ.setdefault(variable, "1")


def _of_blas(count: int) -> int:
    """The threads that BLAS itself uses where products use so many."""
    return 1 if count <= MOST_THREADS else count


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """A context in which products by BLAS use `count` threads: hybrid.host.threads divides them among as many of our own,
    and leaves only more than those to BLAS."""
    before, _here.threads = _here.threads, count
    try:
        with limited_blas(_of_blas(count)):
            yield
    finally:
        _here.threads = before


def threads_allowed() -> int:
    """The threads that `limited_threads` allows, or were announced."""
    return _here.threads or _announced


def product_threads() -> int:
    """Among how many threads of our own a product is to be divided: as many as are allowed; 1 where BLAS divides it, since there
    are more, or nobody can limit this BLAS."""
    may_divide = threads_allowed() <= MOST_THREADS and (_is_announced(1) or _blas_libraries(len(sys.modules)).lib_controllers)
    return threads_allowed() if may_divide else 1


def limited_blas(count: int) -> AbstractContextManager[object]:
    """A context in which BLAS itself uses `count` threads."""
    if _is_announced(count):
        return nullcontext()  # threadpoolctl need not be imported
    libraries = _blas_libraries(len(sys.modules))
    if all(library.num_threads == count for library in libraries.lib_controllers):
        return nullcontext()
    return libraries.limit(limits=count)


def _is_announced(count: int) -> bool:
    """Whether `announce_threads` has set this number of BLAS's threads."""
    return all(os.environ.get(variable) == str(count) for variable in _POOL_VARIABLES)


@lru_cache(maxsize=1)
def _blas_libraries(modules_loaded: int) -> ThreadpoolController:
    """The BLAS libraries of this process.

    The search takes a millisecond: it is repeated only when more modules have been loaded.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


# -------- call queue
# Threads that wait for calls and are kept from product to product: handing a call over takes microseconds, and a future takes
# longer.

Call = Callable[[], object]

_MOST_THREADS = 12  # more take longer: they want the GIL between their calls, as does the thread that submits copies and kernels


class _Threads:
    """The threads of the process, which end with it. They take calls from an unbounded queue in the order in which these
    came."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Call, Calls]] = SimpleQueue()
        self._count, self._starting = 0, threading.Lock()

    def have(self, count: int) -> None:
        """Have at least so many threads, up to the most there are, or fewer where no more can be started. RuntimeError where
        there would be none."""
        with self._starting:
            while self._count < min(count, _MOST_THREADS):
                try:
                    threading.Thread(target=self._work, name=f"hybrid-call-{self._count + 1}", daemon=True).start()
                except RuntimeError:  # the limit of threads is reached
                    if not self._count:
                        raise
                    return
                self._count += 1

    def call_soon(self, call: Call, group: Calls) -> None:
        self._calls.put((call, group))

    def _work(self) -> None:
        while True:
            call, group = self._calls.get()
            outcome: BaseException | None = None
            try:
                if not group.abandoned:
                    call()
            except BaseException as error:  # raised by `wait`
                outcome = error
            del call  # the matrices it refers to may be freed as soon as the outcome is known
            group.note(outcome)
            del group, outcome


def _new_threads() -> None:
    global _threads
    _threads = _Threads()


_threads: _Threads
_new_threads()
os.register_at_fork(after_in_child=_new_threads)  # the threads exist in the parent only


class Calls:
    """Calls that belong together. Each is made by one of at least `threads` threads, or of 12 at most. Any thread may add
    one."""

    def __init__(self, threads: int) -> None:
        self._threads, self._begun, self.abandoned = _threads, 0, False
        self._outcomes: list[BaseException | None] = []  # one for each call that has ended
        self._changing = threading.Condition()
        self._threads.have(max(1, threads))

    def soon(self, call: Call) -> None:
        """Have the call made as soon as a thread is free."""
        with self._changing:
            self._begun += 1
        self._threads.call_soon(call, self)

    def note(self, outcome: BaseException | None) -> None:
        """A call has ended, and raised this, or nothing."""
        with self._changing:
            self._outcomes.append(outcome)
            if len(self._outcomes) == self._begun:
                self._changing.notify_all()

    def wait(self) -> None:
        """Wait until all calls have ended. Raises what the first one that failed has raised."""
        for error in filter(None, self._ended()):
            raise error

    def abandon(self) -> None:
        """Make no further call of these, and wait until those under way have ended."""
        self.abandoned = True
        self._ended()

    def _ended(self) -> list[BaseException | None]:
        """What each call raised, or None, when all have ended. If it is interrupted, it can be called again."""
        with self._changing:
            self._changing.wait_for(lambda: len(self._outcomes) == self._begun)
            outcomes, self._outcomes, self._begun = self._outcomes, [], 0
        return outcomes


# -------- blas products
# Products by the BLAS library that NumPy was built with, divided among threads of our own, each of which calls it with one.
#
# BLAS's threads are as fast, but look for work for a tenth of a second after each product (OpenBLAS: 2²⁸ cycles), on the
# cores that whatever follows it needs: on two cores the check of a product took twice as long beside them.

_MOST_TILES_A_THREAD = 4  # so that a thread which is late takes fewer
# Elements of C in a tile from which on a thread gets several. BLAS rearranges a tile's rows of A and columns of B, which takes
# 1 % of the time for 1000×500 elements, 3 % for 500×500 and 9 % for 250×250 (OpenBLAS, one core of an AMD EPYC).
_TILE_ELEMENTS = 500_000
_TILE_TERMS = 10**7  # products of two elements that make a tile worth a thread's while
_TERMS_OF_A_PART = 256  # at least, where threads divide the terms of sums
_MOST_ELEMENTS = 1 << 18  # of which each thread has sums of its own then
_ROWS_ADDED = 256  # at a time: NumPy has no beta = 1, so a · b needs a temporary matrix before it is added

Product = tuple[np.ndarray, np.ndarray, np.ndarray]  # a, b, c


def blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a · b by as many threads as `limited_threads` allows. Transposed views are multiplied as they lie."""
    blas_all([(a, b, c)])


def blas_all(products: Iterable[Product]) -> None:
    """c = a · b for all of these, likewise."""
    tiles = []
    for a, b, c in products:
        if _is_own_transpose(a, b):
            with limited_blas(threads_allowed()):
                np.matmul(a, b, out=c)
        else:
            tiles += [partial(_multiply, a, b, c, *tile) for tile in _tiles(c, a.shape[1])]
    _do_all(tiles)


def blas_of_long_sums(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a · b, likewise, for sums of many terms that make few elements: each thread adds up some of the terms, so that what it
    reads of a and b no other thread reads."""
    parts = even_pieces(Span(0, a.shape[1]), max(_TERMS_OF_A_PART, -(-a.shape[1] // product_threads())))
    if len(parts) < 2 or c.size > _MOST_ELEMENTS:
        return blas(a, b, c)
    first, *others = on_threads(product_threads(), _warning_as_here(lambda terms: a[:, terms.slice] @ b[terms.slice]), parts)
    np.add(first, others[0], out=c)
    for other in others[1:]:
        c += other
    return None


def add_by_blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c += a · b, likewise."""
    _do_all(partial(_add, a, b, c, *tile) for tile in _tiles(c, a.shape[1]))


def _multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, rows: Span, columns: Span) -> None:
    np.matmul(a[rows.slice], b[:, columns.slice], out=c[rows.slice, columns.slice])


def _add(a: np.ndarray, b: np.ndarray, c: np.ndarray, rows: Span, columns: Span) -> None:
    for some in pieces(rows, _ROWS_ADDED):
        c[some.slice, columns.slice] += a[some.slice] @ b[:, columns.slice]


def _is_own_transpose(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether b is a's transpose in the same memory. NumPy lets BLAS compute half of such a product and mirrors it, so that it is
    symmetric to the last bit, but only if it sees all of it."""
    return a.ctypes.data == b.ctypes.data and a.shape == b.shape[::-1] and a.strides == b.strides[::-1]


def _do_all(tiles: Iterable[Callable[[], None]]) -> None:
    for _ in on_threads(product_threads(), _warning_as_here(lambda tile: tile()), tiles):
        pass


def _warning_as_here(work: Callable[[Part], Result]) -> Callable[[Part], Result]:
    """`work` for other threads, with this thread's handling of NumPy's warnings, which each thread has for itself."""
    handling: dict[str, Any] = {**np.geterr(), "call": np.geterrcall()}

    def do(part: Part) -> Result:
        with np.errstate(**handling):
            return work(part)

    return do


def _tiles(c: np.ndarray, terms: int) -> list[tuple[Span, Span]]:
    """Rows and columns of tiles that make up C. Of each size there are about as many for every thread, and C is cut where less is
    read: each thread reads what it needs of A and B for its tile."""
    (rows, columns), threads = c.shape, product_threads()
    worthwhile = max(1, rows * columns * terms // _TILE_TERMS)
    a_thread = max(1, min(_MOST_TILES_A_THREAD, worthwhile // threads, rows * columns // (threads * _TILE_ELEMENTS)))
    count = min(worthwhile, a_thread * threads) if threads > 1 else 1
    cuts = [(across, count // across) for across in range(1, count + 1) if count % across == 0]
    across, along = min(cuts, key=lambda cut: cut[0] * columns + cut[1] * rows)
    return list(product(_cut(rows, across), _cut(columns, along)))


def _cut(size: int, parts: int) -> list[Span]:
    return list(even_pieces(Span(0, size), max(1, -(-size // parts))))
