# SPDX-License-Identifier: MIT
"""Which hosts and cores the ranks are on, and whether their threads fit there."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hybrid.core.problem import record
from hybrid.core.spans import Topology
from hybrid.core.text import counted, ranges
from hybrid.diagnostics.finding import Finding, Unknown, attempt, ranks_by_value
from hybrid.host.threads import THREAD_VARIABLES, Threads, core_quota, usable_cores

_HOSTS_SHOWN = 4
_ANY_BINDING = "mpirun --bind-to none"


@record
class BlasLibrary:
    """A BLAS library that this process has loaded."""

    name: str
    threads: int


@record
class Placement:
    """Where one rank runs, and with how many threads."""

    host: str
    cores: tuple[int, ...]  # that it may use
    quota: float | None  # cores' worth of time that its control group allows
    threads: Threads
    blas: tuple[BlasLibrary, ...] | Unknown
    cores_of_host: int = 0


def inspect(host: str, threads: Threads) -> Placement:
    """This rank's placement. This loads NumPy, whose BLAS reads the number of threads from the environment, where it must be set
    before."""
    return Placement(host, usable_cores(), core_quota(), threads, attempt(_blas_libraries), os.cpu_count() or 0)


def _blas_libraries() -> tuple[BlasLibrary, ...]:
    import numpy  # noqa: F401 (brings its BLAS)
    from threadpoolctl import threadpool_info

    return tuple(
        BlasLibrary(f"{library['internal_api']} {library['version'] or ''}".strip(), library["num_threads"])
        for library in threadpool_info()
        if library["user_api"] == "blas"
    )


def judge(placements: Sequence[Placement], topology: Topology) -> list[Finding]:
    return [_where(placements, topology), _threads(placements, topology), _blas(placements)]


def _where(placements: Sequence[Placement], topology: Topology) -> Finding:
    nodes = topology.nodes
    total = f"{counted(len(placements), 'rank')} on {counted(len(nodes), 'host')}"
    if len(nodes) > _HOSTS_SHOWN:
        sizes = sorted({len(node) for node in nodes})
        each = f"{sizes[0]} on each" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} on each"
        return Finding("placement", "ok", f"{total}, {each} (--json lists them)")
    parts = []
    for node in nodes:
        host = placements[node[0]].host
        for cores, members in ranks_by_value(placements[rank].cores for rank in node).items():
            parts.append(f"{host} rank {ranges([node[member] for member in members])} on cores {ranges(cores)}")
    if len(parts) > 2 * _HOSTS_SHOWN:
        parts = [f"{placements[node[0]].host} rank {ranges(node)}, bound differently (--json lists them)" for node in nodes]
    return Finding("placement", "ok", f"{total}: {'; '.join(parts)}")


def _threads(placements: Sequence[Placement], topology: Topology) -> Finding:
    counts = ranks_by_value((placement.threads.count, placement.threads.reason) for placement in placements)
    text = "; ".join(
        f"{count} a rank ({reason})" if len(counts) == 1 else f"rank {ranges(ranks)}: {count} ({reason})"
        for (count, reason), ranks in list(counts.items())[:_HOSTS_SHOWN]
    )
    if len(counts) > _HOSTS_SHOWN:
        text += "; …"
    crowded = [found for node in topology.nodes if (found := _crowded([placements[rank] for rank in node]))]
    if crowded:
        what, remedy = crowded[0]
        more = f" (and {counted(len(crowded) - 1, 'host')} more)" if len(crowded) > 1 else ""
        return Finding("threads", "wrong", f"{text}: too many, {what}{more}", remedy, code="threads-crowded")
    bound = [rank for rank, placement in enumerate(placements) if placement.threads.count > len(placement.cores)]
    if bound:
        first = placements[bound[0]]
        return Finding(
            "threads",
            "wrong",
            f"{text}: rank {ranges(bound)} has {counted(first.threads.count, 'thread')}, "
            f"bound to {counted(len(first.cores), 'core')}",
            f"bind ranks to more cores ({_ANY_BINDING} or --map-by slot:PE=N, srun -c N), or lower --threads",
            code="threads-bound",
        )
    return Finding("threads", "ok", text)


def _crowded(node: Sequence[Placement]) -> tuple[str, str] | None:
    """What is wrong on a node whose ranks have more threads than its cores can run, and what to do."""
    cores = len({core for placement in node for core in placement.cores})
    quotas = [placement.quota for placement in node if placement.quota is not None]
    usable = max(1.0, min([float(cores), *quotas]))  # a rank has at least one thread, whatever the quota
    threads = sum(placement.threads.count for placement in node)
    if threads <= usable + 1e-9:
        return None
    each = int(usable) // len(node)
    remedy = _fewer_threads(each, node[0].threads.reason) if each else f"start at most {counted(int(usable), 'rank')} there"
    whole = max(placement.cores_of_host for placement in node)
    if min([float(whole), *quotas]) > usable:
        remedy += f", or let them use more of its {whole} cores ({_ANY_BINDING}, a larger srun -c)"
    many, ranks, few = counted(threads, "thread"), counted(len(node), "rank"), counted(f"{usable:g}", "core")
    return f"{many} of {ranks} on {few} of {node[0].host}", remedy


def _fewer_threads(count: int, reason: str) -> str:
    """The remedy that lowers the number of threads to `count`. `reason`: where the number comes from."""
    if reason in THREAD_VARIABLES:
        return f"--threads {count}, or {reason}={count}"
    return f"--threads {count}"


def _blas(placements: Sequence[Placement]) -> Finding:
    most: list[int] = []  # for each rank, how many threads the library with the most has
    names: set[str] = set()
    for rank, placement in enumerate(placements):
        if isinstance(placement.blas, Unknown):
            return Finding("blas", "unknown", f"rank {rank}: {placement.blas.reason}")
        if not placement.blas:
            text = f"rank {rank}: threadpoolctl does not know NumPy's BLAS, so its number of threads is not set"
            return Finding("blas", "note", text, code="blas-threads")
        most.append(max(library.threads for library in placement.blas))
        names.update(library.name for library in placement.blas)
    more = [rank for rank, placement in enumerate(placements) if most[rank] > placement.threads.count]
    if more:
        return Finding(
            "blas",
            "wrong",
            f"{', '.join(sorted(names))} starts {most[more[0]]} threads on rank {ranges(more)}, "
            f"where {placements[more[0]].threads.count} were set",
            "unset what loads NumPy before the command does (sitecustomize, PYTHONSTARTUP), or set OMP_NUM_THREADS",
            code="blas-threads",
        )
    return Finding("blas", "ok", f"{', '.join(sorted(names))} uses no more threads than were set")
