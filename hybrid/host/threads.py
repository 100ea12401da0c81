# SPDX-License-Identifier: MIT
"""A rank's pool of threads for NumPy calls that release the GIL, and the number of threads, also of BLAS.

The pool's threads start at first use and end with the interpreter. Importing this module does not load NumPy, because the number
of BLAS threads must be settled first.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from hybrid.core.problem import Span, pieces, record
from hybrid.core.text import tell_nobody

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

Part = TypeVar("Part")
Result = TypeVar("Result")

CALL_BYTES = 4 << 20  # of operands per NumPy call: with smaller calls, threads mostly wait for the GIL
MOST_THREADS = 16  # more would wait for the GIL between their calls, and each takes temporary memory
# The most threads of ours that divide a product. With more, BLAS's own do, which are faster, but spin for tens of milliseconds
# after a product, on cores that copies to a GPU need (`spare_cores`).
_own_threads = 4


class _Here(threading.local):
    in_part = False  # this thread works for `on_threads`
    threads = 0  # that `limited_threads` allows; 0 outside


_here = _Here()
# The queue of work, and the number of threads. Without Python locks, because a signal handler may raise before a release.
_queue: SimpleQueue[Callable[[], None]]
_threads: int


def _new_pool() -> None:
    global _queue, _threads
    _queue, _threads = SimpleQueue(), 0


_new_pool()
os.register_at_fork(after_in_child=_new_pool)  # the threads exist in the parent only


def _serve(asked: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        asked.get()()


def _ask(helpers: int, work: Callable[[], None]) -> None:
    """Let this number of threads call `work`; fewer if the system refuses to start more."""
    global _threads
    with suppress(RuntimeError):
        while _threads < helpers:
            start_new_thread(_serve, (_queue,))
            _threads += 1
    for _ in range(min(helpers, _threads)):
        _queue.put(work)


def on_threads(
    threads: int, work: Callable[[Part], Result], parts: Iterable[Part], told: Callable[[list[Result]], object] = tell_nobody
) -> list[Result]:
    """Call `work(part)` for each part by up to `threads` threads, including this one. Returns the results in order.

    `told` gets all results so far, in any order, after each part of this thread. After an exception no new part begins, and
    running ones are waited for. Nested calls within `work` use one thread.
    """
    parts = list(parts)
    helpers = min(threads, MOST_THREADS, len(parts)) - 1
    done = list[Result]()  # in any order
    if helpers < 1 or _here.in_part:
        for part in parts:
            done.append(work(part))
            told(done)
        return done
    results, errors = dict[int, Result](), list[BaseException]()
    todo, helping, ended = deque(range(len(parts))), deque[None](), SimpleQueue[None]()

    def do_all(working: deque[None], told: Callable[[list[Result]], object]) -> None:
        _here.in_part = True
        try:
            while todo:
                working.append(None)
                with suppress(IndexError):  # another thread took the last part
                    number = todo.popleft()
                    try:
                        results[number] = result = work(parts[number])
                        done.append(result)
                        told(done)
                    except BaseException as error:  # raised below
                        errors[:] = [error]
                        todo.clear()
                working.pop()
        finally:
            _here.in_part = False

    def help_out() -> None:
        do_all(helping, tell_nobody)
        ended.put(None)

    try:
        _ask(helpers, help_out)
        do_all(deque(), told)
    except BaseException as error:  # of a signal handler
        errors[:] = [error]
    todo.clear()
    while helping:
        try:
            ended.get()
        except BaseException as error:
            errors[:] = [error]
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(parts))]


def rows_of_about(at_once: int, rows: Span, row_bytes: int) -> Iterator[Span]:
    """The rows in pieces of at most `at_once` bytes, but of at least one row."""
    return pieces(rows, max(1, at_once // max(1, row_bytes)))


# BLAS libraries read these once, when they are loaded.
_POOL_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
THREAD_VARIABLES = ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS")  # the first that is set counts

_announced = 1  # threads of products outside `limited_threads`


@record
class Threads:
    """A rank's number of threads, and what it follows from."""

    count: int
    reason: str


def usable_cores() -> tuple[int, ...]:
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
    """A rank's threads: `asked`, else SLURM_CPUS_PER_TASK, else OMP_NUM_THREADS, else its share of the usable cores.

    `cores_of_node_ranks`: the affinity of each rank of the node; cores in several ranks' affinities are divided among them.
    `quota`: the control group's limit of processor time, in cores, for all ranks of the node together.
    """
    if asked:
        return Threads(asked, "--threads")
    for variable in THREAD_VARIABLES:
        first = environment.get(variable, "").split(",")[0].strip()  # OpenMP allows a list, a number per nesting level
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
    """The limit of processor time by control groups (version 2), in cores; None: no limit."""
    try:
        limit, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def announce_threads(count: int) -> None:
    """Set the number of threads of products outside `limited_threads`, and of BLAS. Without effect if NumPy is loaded."""
    global _announced
    if "numpy" not in sys.modules:
        _announced = count
        for variable in _POOL_VARIABLES:
            os.environ[variable] = str(_blas_threads(count))
        # Unless they are set, NumPy sets and deletes these around loading OpenBLAS, which may crash cuInit: see `wake_driver`.
        for variable in ("OPENBLAS_MAIN_FREE", "GOTOBLAS_MAIN_FREE"):  # the second up to NumPy 2.2
            os.environ.setdefault(variable, "1")
        # OpenBLAS's threads spin for 2¹² cycles after a product, instead of 2²⁶, on cores that the check needs.
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "12")


def spare_cores() -> None:
    """From now on avoid BLAS's own threads: their spinning would slow down copies to and from GPUs."""
    global _own_threads
    _own_threads = MOST_THREADS


def own_threads() -> int:
    """The most threads of ours that divide a product; with more, BLAS's own threads do."""
    return _own_threads


def undivided(count: int) -> int:
    """BLAS's own threads for a product that is too small to divide."""
    return 1 if _own_threads == MOST_THREADS else count


def _blas_threads(count: int) -> int:
    """BLAS's own threads if products use `count`."""
    return 1 if count <= own_threads() else count


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """A context in which products of hybrid.host.blas use `count` threads: ours up to `own_threads`, else BLAS's own."""
    before, _here.threads = _here.threads, count
    try:
        with limited_blas(_blas_threads(count)):
            yield
    finally:
        _here.threads = before


def threads_allowed() -> int:
    """The threads that `limited_threads` or `announce_threads` set."""
    return _here.threads or _announced


def product_threads() -> int:
    """The number of our threads that divide a product; 1 if BLAS's own threads do, or BLAS's threads cannot be limited."""
    return threads_allowed() if threads_allowed() <= own_threads() and can_limit_blas() else 1


def can_limit_blas() -> bool:
    """Whether `limited_blas(1)` is effective."""
    return _is_announced(1) or bool(_blas_libraries().lib_controllers)


def limited_blas(count: int) -> AbstractContextManager[object]:
    """A context in which BLAS itself uses `count` threads."""
    if _is_announced(count):
        return nullcontext()  # without importing threadpoolctl
    libraries = _blas_libraries()
    if all(library.num_threads == count for library in libraries.lib_controllers):
        return nullcontext()
    return _with_threads(libraries.lib_controllers, count)


@contextmanager
def _with_threads(libraries: Sequence[Any], count: int) -> Iterator[None]:
    """threadpoolctl's limits, but also restored after an interrupt while they are set."""
    before = [library.num_threads for library in libraries]
    try:
        for library in libraries:
            library.set_num_threads(count)
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)


def _is_announced(count: int) -> bool:
    return all(os.environ.get(variable) == str(count) for variable in _POOL_VARIABLES)


_libraries: tuple[int, ThreadpoolController] | None = None  # the number of modules at the last search, and its result


def _blas_libraries() -> ThreadpoolController:
    """The BLAS libraries of this process. The search takes a millisecond, and is repeated only when modules were loaded."""
    global _libraries
    if _libraries is None or _libraries[0] != len(sys.modules):
        from threadpoolctl import ThreadpoolController

        _libraries = len(sys.modules), ThreadpoolController().select(user_api="blas")
    return _libraries[1]
