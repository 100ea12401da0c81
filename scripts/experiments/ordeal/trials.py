# SPDX-License-Identifier: MIT
"""One trial: a random job, a random blow at a random time, and how the job ended."""

from __future__ import annotations

import random
import re
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.common.records import Line
from experiments.ordeal.job import Job
from hybrid.core.record import record

STALL = 3.0  # seconds, --stall of every job
LIMIT = 30.0  # seconds after the blow, beyond which a job hangs
LATEST = 2.0  # seconds after the start at which the blow falls
PAUSE = 4.5  # seconds for which a whole job is put to sleep: longer than --stall
_OURS = re.compile(r"^hybrid(\.\w+)?: (?!\w+( of product \d+)? …)", re.MULTILINE)  # the others are progress
_SLOW = ("--threads", "1", "--repeat", "3")

# Products that take from a tenth of a second to several, with all parts of the command.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("-m", "hybrid.matmul", "3000", "2500", "2000", *_SLOW),
    ("-m", "hybrid.matmul", "4000", "4000", "4000", "--dtype", "float32", "--fill", "normal", *_SLOW),
    ("-m", "hybrid.matmul", "3500", "3500", "3500", "--check", "host", "--out", "C.npy", "--threads", "1"),
    ("-m", "hybrid.matmul", "300", "200", "150", "--device", "emulate", "--kernel", "tiled", "--repeat", "3"),
    ("-m", "hybrid.paths", "ten", "--length", "9000", "--threads", "1"),
)


@record
class Blow:
    """`signum`: None where the blow is a limit of resources, by its name."""

    name: str
    signum: int | None
    whom: str  # worker, supervisor, rank (both), all, launcher, nobody
    limit: tuple[str, int] | None = None

    @property
    def kills_who_would_speak(self) -> bool:
        """Nobody of ours is left to say a word, or to whom: the launcher itself reports, or the shell."""
        return self.whom == "launcher" or (self.whom in ("supervisor", "rank", "all") and self.signum in _DEADLY)


_DEADLY = (signal.SIGKILL, signal.SIGSEGV)
_ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT, signal.SIGSEGV, signal.SIGUSR2)


def blows(ranks: int) -> list[Blow]:
    """All kinds for a job of so many ranks; 0: without a launcher."""
    whom = ["worker", "supervisor", "rank", *(["launcher"] if ranks else [])]
    ending = [Blow(signal.Signals(signum).name, signum, who) for signum in _ENDING for who in whom]
    standing = [Blow("SIGSTOP", signal.SIGSTOP, who) for who in ("worker", "supervisor", *(["rank"] if ranks > 1 else []))]
    asleep = [Blow("asleep", signal.SIGSTOP, "all")]
    limits = [
        Blow("few files", None, "nobody", ("RLIMIT_NOFILE", 48)),
        Blow("short files", None, "nobody", ("RLIMIT_FSIZE", 1 << 20)),
        Blow("little memory", None, "nobody", ("RLIMIT_AS", 700 << 20)),
    ]
    return ending + standing + asleep + limits


def usual_lines(command: Sequence[str]) -> set[str]:
    """What it says on standard error when all is well."""
    with tempfile.TemporaryDirectory(prefix="ordeal-") as folder:
        job = Job([*_in(folder, command), "--stall", str(STALL)], 0, {}, {})
        job.ended(LIMIT)
        return set(job.said()[1].splitlines())


def _in(folder: str, command: Sequence[str]) -> list[str]:
    return [word if word != "C.npy" else f"{folder}/C.npy" for word in command]


def trial(number: int, dice: random.Random, most_ranks: int, usual: Mapping[Sequence[str], set[str]]) -> Line:
    """The line of one trial. `usual`: what each command says when all is well."""
    ranks = dice.randint(0, most_ranks)
    command, blow = dice.choice(COMMANDS), dice.choice(blows(ranks))
    with tempfile.TemporaryDirectory(prefix="ordeal-") as folder:
        job = Job([*_in(folder, command), "--stall", str(STALL)], ranks, {}, dict([blow.limit] if blow.limit else []))
        try:
            about = {"part": "trial", "number": number, "ranks": ranks, "command_line": list(command)}
            return about | _struck(job, blow, dice, usual[command])
        finally:
            job.end()


def _struck(job: Job, blow: Blow, dice: random.Random, usual: set[str]) -> dict[str, Any]:
    at = dice.uniform(0, LATEST)
    struck, young = blow.signum is not None and not job.ended(at), False
    if struck:
        young = _strike(job, blow, dice)
    began = time.monotonic()
    ended = job.ended(LIMIT)
    seconds = time.monotonic() - began
    left = job.remains()
    code = job.exit_code if ended else None
    out, err = job.said()
    said = [line for line in err.splitlines() if _OURS.match(line) and line not in usual]
    return {
        "blow": blow.name,
        "whom": blow.whom,
        "at": at,
        "struck": struck or blow.signum is None,
        "seconds": seconds,
        "exit_code": code,
        "ended": ended,
        "lines": said[:4],
        "well": _well(blow, code, said, out) or young,
        "left": left,
    }


def _strike(job: Job, blow: Blow, dice: random.Random) -> bool:
    """Whether some rank had no supervisor yet, since Python was still reading modules: then it ends as any program does."""
    assert blow.signum is not None
    processes = job.rank_processes()
    everybody = [process for pair in processes.values() for process in pair]
    one = processes[dice.choice(sorted(processes))] if processes else [job.launcher]
    targets: dict[str, Sequence[int]] = {
        "worker": one[1:] or one,
        "supervisor": one[:1],
        "rank": one,
        "all": everybody,
        "launcher": [job.launcher],
    }
    job.send(blow.signum, targets[blow.whom])
    if blow.name == "asleep":
        time.sleep(PAUSE)
        job.send(signal.SIGCONT, everybody)
    young = len(everybody) < 2 * max(1, job.ranks)
    if young and job.ranks < 2 and blow.signum == signal.SIGSTOP:
        job.send(signal.SIGCONT, targets[blow.whom])  # the only process there is
    return young


def _well(blow: Blow, code: int | None, said: Sequence[str], out: str) -> bool:
    """Whether the job succeeded without a word of complaint, or failed by exactly one."""
    as_usual = not said and bool(out.strip())  # or what was finished when it was asked to end
    if code in (0, 128 + signal.SIGTERM) and as_usual:
        return True
    return bool(code) and (len(said) == 1 or (not said and blow.kills_who_would_speak))
