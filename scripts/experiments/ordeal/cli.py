# SPDX-License-Identifier: MIT
"""Does every job end, soon and by one line? python scripts/ordeal.py [--minutes M] [--trials K] [--ranks P] [--json F]

Jobs of 1 to 4 ranks, commands and a program over hybrid.multiply, are started, and at a random time one of their processes, or
all, get a signal, are stopped for good or put to sleep; or the job gets too little memory, or too few files. Counted are
jobs that had not ended after 30 s and four times what their work takes alone, the slowest end, failures that were not named by
exactly one line of ours, and processes and files that stayed. Where nobody of ours is left to name it (the launcher or a
supervisor was killed, or it is a program that has none) the launcher's own report is enough. Counted apart are files that stay
then, or of a job whose MPI had not started; and a launcher that goes on when its job is gone, or has not begun. Ends with 1 for
all that is not counted apart.
Each job has a /dev/shm and a /tmp of its own where it may mount them (as root), so that several ordeals can run at a time; --from
gives one table of the lines of all their runs, also of those that were cut short.
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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.common import frame
from experiments.ordeal.job import Job, may_mount
from experiments.ordeal.trials import COMMANDS, LIMIT, OF_PROGRAMS, trial, usual
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import DeviceUnavailable
from hybrid.ranks.launcher import mpirun

_PROGRAMS = Path(__file__).with_name("programs")

# --- one rank fails at a line

_AT_ONCE = 25  # trials in a job
_ALONE = 600.0  # seconds that they may take
_BAD = ("hung or died", "wrong", "neither")
_HEADS = ("trials", "on all", "on some", "on none", "next right", "next lost", "ended by a line", *_BAD)


def tried_inside(options: argparse.Namespace) -> int:
    """Print what came of the trials, by the kind of error; 1 where anything is not as it should be."""
    counts: dict[str, Counter[str]] = {}
    began, first, dice = time.monotonic(), 0, random.Random(options.seed)  # noqa: S311 (no secret)
    while first < options.trials and time.monotonic() - began < 60 * options.minutes:
        last = min(options.trials, first + _AT_ONCE)
        for line in _tried(options.seed, first, last, dice.randint(2, max(2, options.ranks))):
            first, heads = line["number"] + 1, _judged(line)
            counts.setdefault(line["error"], Counter()).update(heads)
            if options.verbose and any(head in _BAD for head in heads):
                print(json.dumps(line), flush=True)
    counts["all"] = sum(counts.values(), Counter())
    rows = [(error, *(str(of_error[head]) for head in _HEADS)) for error, of_error in sorted(counts.items())]
    print(*frame.printed([frame.Table(("error", *_HEADS), "l" + "r" * len(_HEADS), rows)]), sep="\n", flush=True)
    return int(any(counts["all"][head] for head in _BAD))


def _tried(seed: int, first: int, last: int, ranks: int) -> list[dict[str, Any]]:
    """The lines of these trials, up to one after which the job ended too early."""
    ours: dict[str, Any] = {name: value for name, value in os.environ.items() if name.startswith("HYBRID_")}
    with tempfile.TemporaryDirectory() as folder:
        job = Job([_PROGRAMS / "broken_calls.py", seed, first, last], ranks, folder=Path(folder), limit=_ALONE,
                  **({"HYBRID_STALL": "1"} | ours | OF_PROGRAMS))  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            job.wait(_ALONE)
        end = job.ended(1.0)
    lines = [json.loads(text) for text in end.out.splitlines() if text.startswith("{")]
    if len(lines) < last - first:
        lines.append({"number": first + len(lines), "ranks": ranks, "error": "?", "said": end.err[-3000:]})
    return lines


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


# --- jobs to which something is done

# What is counted, and which trials; what is _FAULTY must not be.
_COUNTED: dict[str, Callable[[frame.Line], bool]] = {
    "trials": lambda line: True,
    "hangs": lambda line: not (line["ended"] or line["launcher_hung"]),
    "went on": lambda line: line["ended"] and not line["exit_code"],  # and did all of their work, which takes some time
    "not by one line": lambda line: line["ended"] and not line["well"],
    "stayed": lambda line: bool(line["left"]) and not line["apart"],
    "stayed (apart)": lambda line: bool(line["left"]) and line["apart"],
    "launcher hung (apart)": lambda line: line["launcher_hung"],
}
_FAULTY = ("hangs", "not by one line", "stayed")


class Results(frame.Results):
    command, again = "ordeal", "python scripts/ordeal.py"

    @classmethod
    def selected(cls, lines: Sequence[frame.Line]) -> list[frame.Line]:
        """Of all runs, also those that were cut short."""
        return [line for line in lines if line.get("part") != frame.END]

    def blocks(self) -> Iterator[frame.Table]:
        groups: dict[tuple[str, str], list[frame.Line]] = {}
        for line in self.lines:
            groups.setdefault((line["fault"], line["whom"]), []).append(line)
        rows = [[*kind, *_counts(lines)] for kind, lines in [*sorted(groups.items()), (("all", ""), list(self.lines))]]
        trials, hangs, *others = _COUNTED
        yield frame.Table(["fault", "to", trials, hangs, "slowest end", *others], "ll" + "r" * (1 + len(_COUNTED)), rows)

    def exit_code(self) -> int:
        """1 if anything was not as it should be, but for what is counted apart."""
        return int(any(map(_is_faulty, self.lines)))


def _is_faulty(line: frame.Line) -> bool:
    return any(_COUNTED[head](line) for head in _FAULTY)


def _counts(lines: Sequence[frame.Line]) -> list[str]:
    trials, hangs, went_on, *others = (sum(map(bool, map(counts, lines))) for counts in _COUNTED.values())
    ends = [line["seconds"] for line in lines if line["ended"] and line["exit_code"]]
    slowest = f"{max(ends):.1f} s" if ends else "–" if went_on else f"over {LIMIT:.0f} s"
    return [str(trials), str(hangs), slowest, *map(str, (went_on, *others))]


def _measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    if not may_mount():
        print("files that stay are not looked for: no leave to mount folders of a job's own", file=sys.stderr, flush=True)
    known = {command: usual(command) for command in COMMANDS}
    dice, began = random.Random(options.seed), time.monotonic()  # noqa: S311 (no secret)
    for number in range(options.trials):
        if time.monotonic() - began > 60 * options.minutes:
            break
        line = trial(number, dice, options.ranks, known)
        if options.verbose and _is_faulty(line):
            print({key: value for key, value in line.items() if key != "part"}, flush=True)
        yield {**line, "seed": options.seed}


# --- random products

LARGEST, LARGEST_PLAYED = 2500, 300  # rows of random matrices, on GPUs and on what plays them


def _random_products(options: argparse.Namespace) -> int:
    player, largest = [], LARGEST
    try:
        usable_gpus()
    except DeviceUnavailable:
        player, largest = ["-m", "hybrid.testing", "--gpus", str(options.ranks)], LARGEST_PLAYED
    launch = mpirun(options.ranks) if options.ranks > 1 else []
    given = map(str, (options.products, 60 * options.minutes, largest, options.seed))
    return subprocess.run([*launch, sys.executable, *player, _PROGRAMS / "random_products.py", *given], check=False).returncode


def _work(options: argparse.Namespace) -> int:
    if options.inside or options.products:
        return (tried_inside if options.inside else _random_products)(options)
    return frame.present(options, Results, _measured)


main = frame.experiment(
    __doc__, Results, _measured,
    frame.option("--minutes", type=float, default=2.0, metavar="M", help="for so long (2)"),
    frame.option("--trials", type=frame.positive, default=10**6, metavar="K", help="K at most"),
    frame.option("--ranks", type=frame.positive, default=4, metavar="P", help="at most (4)"),
    frame.option("--seed", type=int, default=secrets.randbits(32), help="of jobs, faults and times"),
    frame.option("--verbose", action="store_true", help="show each trial that did not end as it should, when it has ended"),
    frame.option("--inside", action="store_true", help="a random line of a call fails on one rank instead"),
    frame.option("--products", type=frame.positive, metavar="K", help="random products instead, at most K in M minutes"),
    work=_work,
)  # fmt: skip
