# SPDX-License-Identifier: MIT
"""The number of CPU threads that a rank uses, and the limit of products by BLAS to that number."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid.core.record import record
from hybrid.host.thread_map import MOST_THREADS

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

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
    """A context in which products by BLAS use `count` threads: hybrid.host.blas_products divides them among as many of our own,
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
