# SPDX-License-Identifier: MIT
"""Does every job end, soon and by one line? python scripts/ordeal.py [--minutes M] [--trials K] [--ranks P] [--json F]

Jobs of 1 to 4 ranks, commands and a program over hybrid.multiply, are started, and at a random time one of their processes, or
all, get a signal, are stopped for good or put to sleep; or the job gets too little of a resource; or its disk, /dev/shm or
memory becomes full (as root, in namespaces and a control group of its own). Counted are jobs that had not ended after 30 s and
four times what their work takes alone, the slowest end, failures that were not named by exactly one line of ours, and processes
and files that stayed. Where nobody of ours is left to name it (the launcher or a supervisor was killed, or it is a program that
has none) the launcher's own report is enough. Counted apart are files that stay then, or of a job whose MPI had not started; and
a launcher that goes on when its job is gone, or has not begun. Ends with 1 for all that is not counted apart.
--only: one kind of fault. Each job has a /dev/shm and a /tmp of its own where it may mount them (as root), so that several
ordeals can run at a time; --from gives one table of the lines of all their runs, also of those that were cut short.
--products K: something else, K random products by --ranks GPUs, or what NumPy plays where there are none: is each right, and does
no memory stay pinned, or taken, when its array is gone (programs/random_products.py)? One line of JSON, and 1 if not.
--inside: something else, one of 2 to P ranks raises at a random line of a call of hybrid.multiply, or is interrupted there. On
which ranks is that raised, and is the next call right, or does it say that the communicator is lost?
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.common import frame
from experiments.ordeal.job import may_mount
from experiments.ordeal.trials import COMMANDS, LIMIT, OF_PROGRAMS, faults, trial, usual, why_not
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import DeviceUnavailable, UsageError
from hybrid.ranks.launcher import mpirun

_PROGRAM = Path(__file__).with_name("programs") / "broken_calls.py"
_AT_ONCE = 100  # trials in a job
_INSIDE_HEADS = (
    "trials",
    "on all",
    "on some",
    "on none",
    "next right",
    "next lost",
    "ended by a line",
    "hung or died",
    "wrong",
    "neither",
)
_BAD = _INSIDE_HEADS[-3:]


def tried_inside(seed: int, trials: int, seconds: float, most_ranks: int, *, verbose: bool) -> int:
    """Print what came of the trials, by the kind of error; 1 where anything is not as it should be."""
    counts: dict[str, Counter[str]] = {}
    began, first, dice = time.monotonic(), 0, random.Random(seed)  # noqa: S311 (no secret)
    while first < trials and time.monotonic() - began < seconds:
        for line in _job(seed, first, min(trials, first + _AT_ONCE), dice.randint(2, max(2, most_ranks))):
            first = line["number"] + 1
            heads = _judged(line)
            counts.setdefault(line["error"], Counter()).update(heads)
            if verbose and any(head in _BAD for head in heads):
                print(json.dumps(line), flush=True)
            if time.monotonic() - began > seconds:
                break
    counts["all"] = sum(counts.values(), Counter())
    rows = [(error, *(str(of_error[head]) for head in _INSIDE_HEADS)) for error, of_error in sorted(counts.items())]
    print(*frame.printed([frame.Table(("error", *_INSIDE_HEADS), "l" + "r" * len(_INSIDE_HEADS), rows)]), sep="\n", flush=True)
    return int(any(counts["all"][head] for head in _BAD))


def _job(seed: int, first: int, last: int, ranks: int) -> Iterator[dict[str, Any]]:
    """The lines of these trials, up to one after which the job ends too early."""
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed below)
    job = subprocess.Popen(
        [*mpirun(ranks), sys.executable, str(_PROGRAM), str(seed), str(first), str(last)],
        env={"HYBRID_STALL": "1", **os.environ, **OF_PROGRAMS},
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    try:
        assert job.stdout is not None
        for text in job.stdout:
            if text.startswith("{"):
                line = json.loads(text)
                first = line["number"] + 1
                yield line
        if first < last:
            job.wait()
            errors.seek(0)
            yield {"number": first, "ranks": ranks, "error": "?", "said": errors.read()[-3000:]}
    finally:
        job.terminate()
        job.communicate()
        errors.close()


def _judged(line: dict[str, Any]) -> list[str]:
    """The columns to which a trial adds."""
    if "next" not in line:
        return ["trials", "ended by a line" if "[rank-missing]" in line["said"] else "hung or died"]
    raised = sum(map(bool, line["said"]))
    if "wrong" in (*line["said"], *line["next"]):
        then = "wrong"
    elif not any(line["next"]):
        then = "next right"
    else:
        then = "next lost" if all(said.startswith("lost") for said in line["next"]) else "neither"
    return ["trials", "on none" if not raised else "on all" if raised == len(line["said"]) else "on some", then]


RANDOM_PRODUCTS = Path(__file__).with_name("programs") / "random_products.py"
LARGEST, LARGEST_PLAYED = 2500, 300  # rows of random matrices, on GPUs and on what plays them
_COUNTED = ("trials", "hangs", "slowest end", "went on", "not by one line", "stayed", "stayed (apart)", "launcher hung (apart)")
_HEADS = ("fault", "to", *_COUNTED)


class Results(frame.Results):
    command, again = "ordeal", "python scripts/ordeal.py"

    @classmethod
    def selected(cls, lines: Sequence[frame.Line]) -> list[frame.Line]:
        """Of all runs, also those that were cut short."""
        return [line for line in lines if line.get("part") != frame.END]

    def blocks(self) -> Iterator[frame.Block]:
        kinds = sorted({(line["fault"], line["whom"]) for line in self.lines})
        rows = [
            (fault, whom, *_counts([line for line in self.lines if (line["fault"], line["whom"]) == (fault, whom)]))
            for fault, whom in kinds
        ]
        yield frame.Table(_HEADS, "llrrrrrrrr", [*rows, ("all", "", *_counts(self.lines))])

    def exit_code(self) -> int:
        """1 if anything was not as it should be, but for what is counted apart."""
        return int(any(_hung(line) or _unnamed(line) or _stayed(line) for line in self.lines))


def _hung(line: frame.Line) -> bool:
    return not (line["ended"] or line["launcher_hung"])


def _unnamed(line: frame.Line) -> bool:
    return line["ended"] and not line["well"]


def _stayed(line: frame.Line) -> bool:
    return bool(line["left"]) and not line["apart"]


def _counts(lines: Sequence[frame.Line]) -> tuple[str, ...]:
    ends = [line["seconds"] for line in lines if line["ended"] and line["exit_code"]]
    went_on = sum(line["ended"] and not line["exit_code"] for line in lines)  # and did all of their work, which takes some time
    return (
        str(len(lines)),
        str(sum(map(_hung, lines))),
        f"{max(ends):.1f} s" if ends else "–" if went_on else f"over {LIMIT:.0f} s",
        str(went_on),
        str(sum(map(_unnamed, lines))),
        str(sum(map(_stayed, lines))),
        str(sum(bool(line["left"]) and line["apart"] for line in lines)),
        str(sum(line["launcher_hung"] for line in lines)),
    )


def _measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    reasons = why_not()
    if options.only:
        _refuse_untried(options.only, options.ranks, reasons)
    if not may_mount():
        print(
            "files that stay are not looked for: no leave to mount folders of a job's own",
            file=sys.stderr,
            flush=True,
        )
    for name, reason in reasons.items():
        if reason:
            print(f"not tried, {name}: {reason}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and the job that is under way is ended
    known = {command: usual(command) for command in COMMANDS}
    resources = [name for name, reason in reasons.items() if not reason]
    dice, began = random.Random(options.seed), time.monotonic()  # noqa: S311 (no secret)
    for number in range(options.trials):
        if time.monotonic() - began > 60 * options.minutes:
            break
        line = trial(number, dice, options.ranks, known, resources, options.only)
        if options.verbose and (_hung(line) or _unnamed(line) or _stayed(line)):
            print({key: value for key, value in line.items() if key != "part"}, flush=True)
        yield {**line, "seed": options.seed}


def _refuse_untried(only: str, most_ranks: int, reasons: Mapping[str, str]) -> None:
    """UsageError where no job here can have this fault."""
    can = [name for name, reason in reasons.items() if not reason]
    names = {fault.name for ranks in range(most_ranks + 1) for command in COMMANDS for fault in faults(ranks, command, can)}
    if only not in names:
        raise UsageError(f"--only {only}: no job can have that here, but {', '.join(sorted(names))}")


def _random_products(options: argparse.Namespace) -> int:
    player, largest = [], str(LARGEST)
    try:
        usable_gpus()
    except DeviceUnavailable:
        player, largest = ["-m", "hybrid.testing", "--gpus", str(options.ranks)], str(LARGEST_PLAYED)
    launch = [*mpirun(options.ranks), *shlex.split(os.environ.get("BENCH_LAUNCHER", ""))] if options.ranks > 1 else []
    given = [str(options.products), str(60 * options.minutes), largest, str(options.seed)]
    return subprocess.run([*launch, sys.executable, *player, RANDOM_PRODUCTS, *given], check=False).returncode


def _work(options: argparse.Namespace) -> int:
    if options.inside:
        return tried_inside(options.seed, options.trials, 60 * options.minutes, options.ranks, verbose=options.verbose)
    if options.products:
        return _random_products(options)
    return frame.present(options, Results, _measured)


main = frame.experiment(
    __doc__, Results, _measured,
    frame.option("--minutes", type=float, default=2.0, metavar="M", help="for so long (2)"),
    frame.option("--trials", type=frame.positive, default=10**6, metavar="K", help="so many at most"),
    frame.option("--ranks", type=frame.positive, default=4, metavar="P", help="at most (4)"),
    frame.option("--only", metavar="FAULT", help="this one, such as 'full disk' or SIGKILL"),
    frame.option("--seed", type=int, default=secrets.randbits(32), help="of jobs, faults and times"),
    frame.option("--verbose", action="store_true", help="show each trial that did not end as it should, when it has ended"),
    frame.option("--inside", action="store_true", help="a random line of a call fails on one rank instead"),
    frame.option("--products", type=frame.positive, metavar="K", help="random products instead, at most K in M minutes"),
    work=_work,
)  # fmt: skip
