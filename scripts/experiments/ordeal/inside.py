# SPDX-License-Identifier: MIT
"""Trials of another kind: on one rank of a program over `hybrid.multiply` a random line raises. Does any rank wait for ever, and
is the next call right?"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.common import tables
from experiments.ordeal.trials import OF_PROGRAMS
from hybrid.ranks.launcher import mpirun

_PROGRAM = Path(__file__).with_name("programs") / "broken_calls.py"
_AT_ONCE = 100  # trials in a job
_HEADS = (
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
_BAD = _HEADS[-3:]


def tried(seed: int, trials: int, seconds: float, most_ranks: int, *, verbose: bool) -> int:
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
    rows = [(error, *(str(of_error[head]) for head in _HEADS)) for error, of_error in sorted(counts.items())]
    print(*tables.printed([tables.Table(("error", *_HEADS), "l" + "r" * len(_HEADS), rows)]), sep="\n", flush=True)
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
