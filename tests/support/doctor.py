# SPDX-License-Identifier: MIT
"""What the tests of the doctor share: how it is started, what its screen says, machines made up."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from support.commands import module, start

from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics import bandwidth

COMMAND = module("hybrid.doctor")
SUBJECTS = ["launcher", "mpi", "placement", "threads", "blas", "slurm", "gpus", "pinned memory", "gpu links", "gpu peers",
            "cuda-aware MPI", "shared memory", "compiler", "kernel cache"]  # fmt: skip
LINE = re.compile(r"(ok|note|unknown|WRONG) +(" + "|".join(SUBJECTS) + r")  (.+)")
SAME = bandwidth.Isolation((("ipc", "1"), ("pid", "1")), ("GPU-0", "GPU-1", "GPU-2"))
THREE = [Gpu(rank, f"GPU-{rank}", "H200") for rank in range(3)]


def run(*arguments, command=COMMAND, **options):
    """Of Slurm and the threads, nothing is taken over from outside."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    hidden = ("HYBRID_", "SLURM_", "OMP_", "CXX", "XDG_CACHE_HOME")
    return start(command, *arguments, hidden=hidden, limit=100, **{"PATH": beside, **options})


def found(text):
    """Verdict and text of each subject; a screen has nothing else but its last line."""
    *lines, last = text.splitlines()
    assert re.fullmatch(r"nothing is wrong(, \d+ unknown)?|1 finding is wrong.*|\d+ findings are wrong.*", last), last
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), lines
    assert [match[2] for match in matches] == SUBJECTS
    assert all("→" in match[3] for match in matches if match[1] == "WRONG")
    return {match[2]: (match[1], match[3].strip()) for match in matches}
