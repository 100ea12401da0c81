"""The doctor's way through all subjects: every rank looks, all of them judge, each finding is one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hybrid.core.text import ranges
from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics import bandwidth, compilers, cuda_aware_mpi, gpu_peers, gpus, host_links, limits, mpi, placement, slurm
from hybrid.diagnostics.finding import Finding, Unknown
from hybrid.errors import StartError
from hybrid.host.threads import Threads
from hybrid.ranks.team import Team

_WORDS = {"ok": "ok", "note": "note", "unknown": "unknown", "wrong": "WRONG"}


@dataclass(frozen=True)
class Examination:
    """All findings, and what is known of each rank."""

    findings: tuple[Finding, ...]
    seats: tuple[placement.Seat, ...]
    gpus: tuple[Gpu | None, ...]
    traffic: bandwidth.Traffic = bandwidth.Traffic()  # noqa: RUF009 (never changes)

    @property
    def well(self) -> bool:
        return all(finding.verdict != "wrong" for finding in self.findings)


def examine(team: Team, threads: Sequence[Threads], unstarted: StartError | None = None) -> Examination:
    """Every rank calls it and gets the same. `unstarted`: why this process is no rank of its launcher's job."""
    with team.phase("places", timed=False) as sitting:
        sitting.mine = placement.look(team.host, threads[team.rank])
    with team.phase("mpi", timed=False) as asking:
        asking.mine = mpi.look(started=unstarted is None)
    with team.phase("tools", timed=False) as building:
        building.mine = compilers.look() if team.leads_node else None
    with team.phase("limits", timed=False) as measuring:
        measuring.mine = (limits.look(team.host), slurm.look())
    seats: list[placement.Seat] = sitting.all
    hosts = [seat.host for seat in seats]
    bounds = [bound for bound, _ in measuring.all]
    work = _gpus_at_work(team)
    trials = work.trials
    working = [isinstance(trial, gpus.Trial) and trial.works for trial in trials]
    together = unstarted is None and bool(asking.all[0].launcher)
    findings = [
        *mpi.judge(asking.all, unstarted),
        *placement.judge(seats, team.topology),
        slurm.judge([word for _, word in measuring.all], [len(seat.cores) for seat in seats], working, team.topology,
                    together=together),
        *gpus.judge(work.sights, work.chosen, trials, team.topology, hosts),
        limits.judge_locked(bounds, [(trial.locked, trial.lock_trouble) if isinstance(trial, gpus.Trial) and trial.works else None
                                     for trial in trials]),
        host_links.judge(work.moved),
        gpu_peers.judge(work.moved, work.chosen, work.around),
        cuda_aware_mpi.judge(work.answers),
        limits.judge_shared(bounds),
        *compilers.judge(building.all, hosts, gpus=any(working)),
    ]  # fmt: skip
    return Examination(tuple(findings), tuple(seats), tuple(work.chosen), work.moved)


@dataclass(frozen=True)
class _Work:
    """What all ranks know of their GPUs."""

    sights: list[gpus.Sight | Unknown]
    chosen: list[Gpu | None]
    trials: list[gpus.Trial | Unknown | None]
    around: list[bandwidth.Surroundings]
    moved: bandwidth.Traffic
    answers: list[str | Unknown | None]


def _gpus_at_work(team: Team) -> _Work:
    with team.phase("gpus", timed=False) as seeing:
        seeing.mine = gpus.look()
    chosen = gpus.choose(seeing.all)
    mine = chosen[team.rank]
    with team.phase("gpus at work", timed=False) as working:
        working.mine = gpus.try_out(mine) if mine is not None else None
    visible = [sight.usable if isinstance(sight, gpus.Sight) else () for sight in seeing.all]
    with team.phase("gpus together", timed=False) as placing:
        placing.mine = bandwidth.surroundings(visible[team.rank])
    sound = [isinstance(trial, gpus.Trial) and trial.works for trial in working.all]
    moved = bandwidth.look(team, [gpu if works else None for gpu, works in zip(chosen, sound, strict=True)], visible)
    with team.phase("gpus and mpi", timed=False) as moving:
        moving.mine = cuda_aware_mpi.look(mine.index) if mine is not None and team.leads_node else None
    return _Work(seeing.all, chosen, working.all, placing.all, moved, moving.all)


def screen(findings: Sequence[Finding]) -> str:
    """One line a finding, and a last one."""
    width = max(len(finding.subject) for finding in findings)
    lines = []
    for finding in findings:
        remedy = f" → {finding.remedy}" if finding.remedy else ""
        lines.append(f"{_WORDS[finding.verdict]:<7}  {finding.subject:<{width}}  {finding.text}{remedy}")
    wrong = sum(finding.verdict == "wrong" for finding in findings)
    unknown = sum(finding.verdict == "unknown" for finding in findings)
    said = "nothing is wrong" if not wrong else "1 finding is wrong" if wrong == 1 else f"{wrong} findings are wrong"
    return "\n".join([*lines, said + (f", {unknown} unknown" if unknown else "")])


def as_record(examination: Examination) -> dict[str, Any]:
    """What `--json` writes."""
    return {
        "command": "doctor",
        "ranks": len(examination.seats),
        "ok": examination.well,
        "findings": [vars(finding) for finding in examination.findings],
        "placements": [
            {
                "rank": rank,
                "host": seat.host,
                "cores": ranges(seat.cores),
                "threads": seat.threads.count,
                "gpu": gpu.name if gpu else None,
                "uuid": gpu.uuid if gpu else None,
            }
            for rank, (seat, gpu) in enumerate(zip(examination.seats, examination.gpus, strict=True))
        ],
        "links": [asdict(link) for link in examination.traffic.links],
        "passages": [asdict(passage) for passage in examination.traffic.passages],
    }
