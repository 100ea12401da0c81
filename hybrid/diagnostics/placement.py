"""Ranks on hosts and cores, and the threads that share them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.core.spans import Topology
from hybrid.core.text import ranges
from hybrid.diagnostics.finding import Finding, Unknown, alike, attempt, counted
from hybrid.host.threads import THREAD_VARIABLES, Threads, core_quota, usable_cores

_HOSTS_SHOWN = 4


@dataclass(frozen=True)
class Pool:
    """A BLAS library as it was loaded."""

    name: str
    threads: int


@dataclass(frozen=True)
class Seat:
    """One rank's."""

    host: str
    cores: tuple[int, ...]
    quota: float | None
    threads: Threads
    blas: tuple[Pool, ...] | Unknown
    cores_of_host: int = 0


def look(host: str, threads: Threads) -> Seat:
    """Called once the threads have been announced: NumPy is loaded here."""
    return Seat(host, usable_cores(), core_quota(), threads, attempt(_pools), os.cpu_count() or 0)


def _pools() -> tuple[Pool, ...]:
    import numpy  # noqa: F401 (brings its BLAS)
    from threadpoolctl import threadpool_info

    return tuple(
        Pool(f"{pool['internal_api']} {pool['version'] or ''}".strip(), pool["num_threads"])
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    )


def judge(seats: Sequence[Seat], topology: Topology) -> list[Finding]:
    return [_where(seats, topology), _threads(seats, topology), _blas(seats)]


def _where(seats: Sequence[Seat], topology: Topology) -> Finding:
    ranks, nodes = len(seats), topology.nodes
    total = f"{counted(ranks, 'rank')} on {counted(len(nodes), 'host')}"
    if len(nodes) > _HOSTS_SHOWN:
        sizes = sorted({len(node) for node in nodes})
        each = f"{sizes[0]} on each" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} on each"
        return Finding("places", "ok", f"{total}, {each} (--json lists them)")
    parts = []
    for node in nodes:
        for cores, members in alike(seats[rank].cores for rank in node).items():
            who = [node[member] for member in members]
            parts.append(f"{seats[node[0]].host} rank {ranges(who)} on cores {ranges(cores)}")
    if len(parts) > 2 * _HOSTS_SHOWN:
        parts = [f"{seats[node[0]].host} rank {ranges(node)}, bound differently (--json lists them)" for node in nodes]
    return Finding("places", "ok", f"{total}: {'; '.join(parts)}")


def _threads(seats: Sequence[Seat], topology: Topology) -> Finding:
    crowded, strangled = [], []
    for node in topology.nodes:
        there = len({core for rank in node for core in seats[rank].cores})
        quotas = [quota for rank in node if (quota := seats[rank].quota) is not None]
        usable = max(1.0, min([float(there), *quotas]))  # one thread is the least, whatever the quota
        wanted = sum(seats[rank].threads.count for rank in node)
        if wanted > usable + 1e-9:
            most = int(usable)
            each = most // len(node)
            remedy = (
                _fewer_threads(each, seats[node[0]].threads.reason) if each else f"start at most {counted(most, 'rank')} there"
            )
            whole = max(seats[rank].cores_of_host for rank in node)
            if min([float(whole), *quotas]) > usable:
                remedy += f", or let them use more of its {whole} cores (mpirun --bind-to none, a larger srun -c)"
            threads, ranks, cores = counted(wanted, "thread"), counted(len(node), "rank"), counted(f"{usable:g}", "core")
            crowded.append((f"{threads} of {ranks} on {cores} of {seats[node[0]].host}", remedy))
    for rank, seat in enumerate(seats):
        if seat.threads.count > len(seat.cores):
            strangled.append(rank)
    counts = alike((seat.threads.count, seat.threads.reason) for seat in seats)
    text = "; ".join(
        f"{count} a rank ({reason})" if len(counts) == 1 else f"rank {ranges(ranks)}: {count} ({reason})"
        for (count, reason), ranks in list(counts.items())[:_HOSTS_SHOWN]
    )
    if len(counts) > _HOSTS_SHOWN:
        text += "; …"
    if crowded:
        what, remedy = crowded[0]
        more = f" (and {counted(len(crowded) - 1, 'host')} more)" if len(crowded) > 1 else ""
        return Finding("threads", "wrong", f"{text}: too many, {what}{more}", remedy)
    if strangled:
        seat = seats[strangled[0]]
        return Finding(
            "threads",
            "wrong",
            f"{text}: rank {ranges(strangled)} has {counted(seat.threads.count, 'thread')}, "
            f"bound to {counted(len(seat.cores), 'core')}",
            "bind ranks to more cores (mpirun --bind-to none or --map-by slot:PE=N, srun -c N), or lower --threads",
        )
    return Finding("threads", "ok", text)


def _fewer_threads(count: int, reason: str) -> str:
    """What lowers their number: of the variables only the first that is set counts."""
    if reason in THREAD_VARIABLES:
        return f"--threads {count}, or {reason}={count}"
    return f"--threads {count}"


def _blas(seats: Sequence[Seat]) -> Finding:
    most: list[int] = []  # threads of a rank's pools
    names: set[str] = set()
    for rank, seat in enumerate(seats):
        if isinstance(seat.blas, Unknown):
            return Finding("blas", "unknown", f"rank {rank}: {seat.blas.reason}")
        if not seat.blas:
            return Finding(
                "blas", "note", f"rank {rank}: NumPy's BLAS is none that threadpoolctl knows; its threads stay as they are"
            )
        most.append(max(pool.threads for pool in seat.blas))
        names.update(pool.name for pool in seat.blas)
    more = [rank for rank, seat in enumerate(seats) if most[rank] > seat.threads.count]
    if more:
        first = more[0]
        return Finding(
            "blas",
            "wrong",
            f"{', '.join(sorted(names))} starts {most[first]} threads on rank {ranges(more)}, "
            f"where {seats[first].threads.count} were announced",
            "unset what loads NumPy before the command does (sitecustomize, PYTHONSTARTUP), or set OMP_NUM_THREADS",
        )
    return Finding("blas", "ok", f"{', '.join(sorted(names))} keeps to its threads")
