# SPDX-License-Identifier: MIT
"""The doctor's examination. For each subject every rank inspects what it sees, and then all judge what all have found. Each
finding is one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from hybrid.core.problem import record
from hybrid.core.text import ranges
from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics import checks, gpus, links
from hybrid.diagnostics.finding import Finding, Unknown
from hybrid.errors import StartError
from hybrid.host.threads import Threads
from hybrid.ranks.team import Team

_SLOW = 2.0  # a link between nodes that takes so many times as long as the others is slow; other jobs may use it, too
T = TypeVar("T")


@record
class Examination:
    """All findings, and what is known of each rank."""

    findings: tuple[Finding, ...]
    placements: tuple[checks.Placement, ...]
    gpus: tuple[Gpu | None, ...]
    measured: links.Measurements = links.Measurements()
    node_links: tuple[links.NodeLink, ...] = ()

    @property
    def ok(self) -> bool:
        return all(finding.verdict != "wrong" for finding in self.findings)


def examine(team: Team, threads: Sequence[Threads], unstarted: StartError | None = None) -> Examination:
    """Examine everything. Every rank calls it and gets the same.

    `threads[rank]`: the rank's number of threads. `unstarted`: why this process, which a launcher started, is no rank of a job.
    """
    placements = _of_all(team, "placement", lambda: checks.inspect_placement(team.host, threads[team.rank]))
    mpi_of_ranks = _of_all(team, "mpi", lambda: checks.inspect_mpi(started=unstarted is None))
    tools = _of_all(team, "tools", lambda: checks.inspect_tools() if team.leads_node else None)
    limits_of_ranks = _of_all(team, "limits", lambda: checks.inspect_limits(team.host))
    slurm_variables = _of_all(team, "slurm", checks.inspect_slurm)
    found = _examine_gpus(team)
    hosts = [rank.host for rank in placements]
    between_nodes = links.measure_node_links(team, hosts)
    working = [trial is not None and trial.works for trial in found.trials]
    pinned = [(trial.pinned, trial.pin_trouble) if trial is not None and trial.works else None for trial in found.trials]
    launched = unstarted is None and bool(mpi_of_ranks[0].launcher)
    findings = [
        *checks.judge_mpi(mpi_of_ranks, unstarted),
        *checks.judge_placement(placements, team.topology),
        *links.judge_node_links(between_nodes, _SLOW),
        checks.judge_slurm(slurm_variables, [len(rank.cores) for rank in placements], working, team.topology, launched=launched),
        *gpus.judge(found.visible, found.chosen, found.trials, hosts),
        checks.judge_pinned(limits_of_ranks, pinned),
        links.judge_host_links(found.measured),
        links.judge_peers(found.measured, found.chosen, found.isolation),
        checks.judge_shared(limits_of_ranks),
        *checks.judge_tools(tools, hosts, gpus=any(working)),
    ]
    return Examination(tuple(findings), tuple(placements), tuple(found.chosen), found.measured, tuple(between_nodes))


def _of_all(team: Team, name: str, inspect: Callable[[], T]) -> list[T]:
    """What `inspect` returns on each rank. `name`: of the phase."""
    with team.phase(name, timed=False) as phase:
        phase.mine = inspect()
    return phase.all


@record
class _GpusOfRanks:
    """What was found of the GPUs: lists with an entry for each rank, and the measurements of all."""

    visible: list[gpus.VisibleGpus | Unknown]
    chosen: list[Gpu | None]
    trials: list[gpus.Trial | None]
    isolation: list[links.Isolation]
    measured: links.Measurements


def _examine_gpus(team: Team) -> _GpusOfRanks:
    """Look for GPUs, try each rank's, and measure those that work."""
    visible = _of_all(team, "gpus", gpus.inspect)
    chosen = gpus.choose(visible)
    mine = chosen[team.rank]
    trials = _of_all(team, "gpu trials", lambda: gpus.try_out(mine) if mine is not None else None)
    isolation = _of_all(team, "isolation", lambda: links.isolation(gpus.usable_of(visible[team.rank])))
    working = [gpu if trial is not None and trial.works else None for gpu, trial in zip(chosen, trials, strict=True)]
    measured = links.measure(team, working)
    return _GpusOfRanks(visible, chosen, trials, isolation, measured)


def as_text(findings: Sequence[Finding]) -> str:
    """A line for each finding, and a last one that counts what is wrong."""
    width = max(len(finding.subject) for finding in findings)
    lines = [finding.line(width) for finding in findings]
    wrong = sum(finding.verdict == "wrong" for finding in findings)
    unknown = sum(finding.verdict == "unknown" for finding in findings)
    last = "nothing is wrong" if not wrong else "1 finding is wrong" if wrong == 1 else f"{wrong} findings are wrong"
    return "\n".join([*lines, last + (f", {unknown} unknown" if unknown else "")])


def as_record(examination: Examination) -> dict[str, Any]:
    """What `--json` writes."""
    return {
        "command": "doctor",
        "ranks": len(examination.placements),
        "ok": examination.ok,
        "findings": [vars(finding) for finding in examination.findings],
        "placements": [
            {
                "rank": rank,
                "host": found.host,
                "cores": ranges(found.cores),
                "threads": found.threads.count,
                "gpu": gpu.name if gpu else None,
                "uuid": gpu.uuid if gpu else None,
            }
            for rank, (found, gpu) in enumerate(zip(examination.placements, examination.gpus, strict=True))
        ],
        "links": [asdict(link) for link in examination.measured.links],
        "node_links": [asdict(link) for link in examination.node_links],
        "peer_copies": [asdict(copy) for copy in examination.measured.peer_copies],
    }
