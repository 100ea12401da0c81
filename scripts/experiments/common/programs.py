# SPDX-License-Identifier: MIT
"""Runs of the runner's own command, in processes of their own."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from experiments.common.records import Line
from experiments.common.wording import told_error
from hybrid.errors import HybridError
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl


def matmul(ranks: int, n: int, *options: str, watch: Callable[[int], None] = lambda process: None) -> Line:
    """What `mpirun -n RANKS python -m hybrid.matmul n n n` records. `watch` is told the launcher's process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        words = [*mpirun(ranks), sys.executable, "-m", "hybrid.matmul", *[str(n)] * 3, *options, "--json", str(path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as job:
            watch(job.pid)
            output, errors = job.communicate()
        if job.returncode:
            raise HybridError(f"{ranks} ranks failed: {told_error(errors, output)}")
        (line,) = jsonl.read(str(path))
        return line
