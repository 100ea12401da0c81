# SPDX-License-Identifier: MIT
"""Batch jobs on the test cluster: submit, wait within a limit, and read what they left."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cluster import ROOT, Cluster

# How ranks of MPICH on two nodes start: srun by pmi2, for which addresses have to be short (slurm/job.sh), or mpirun.
STARTS = {"srun": {"SRUN_MPI": "pmi2", "MPIR_CVAR_CH4_NETMOD": "ofi"}, "mpirun": {"SRUN_MPI": "none"}}
SECONDS = 200.0  # most a job may take, waiting included, on a machine with much else to do; pytest allows a test 300
GONE = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


@dataclass(frozen=True)
class Job:
    """A submitted job, or a whole array of them."""

    cluster: Cluster
    number: int

    def states(self) -> list[str]:
        return [entry["JobState"] for entry in self._shown()]

    def exit_codes(self) -> list[str]:
        """As sacct writes them: exit code and signal."""
        return [entry["ExitCode"] for entry in self._shown()]

    def _shown(self) -> list[dict[str, str]]:
        lines = self.cluster.run("scontrol", "--oneliner", "show", "job", str(self.number)).stdout.splitlines()
        return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines if line.strip()]

    def wait(self, seconds: float = SECONDS) -> list[str]:
        """The states in which all of it ended."""
        self.wait_until(lambda: all(state in GONE for state in self.states()), seconds)
        return self.states()

    def wait_for_output(self, text: str, seconds: float = SECONDS) -> None:
        self.wait_until(lambda: text in self.output(), seconds)

    def wait_until(self, holds: Callable[[], bool], seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                states, output = self.states(), self.output()
                self.cancel()
                raise AssertionError(f"not within {seconds} s; the job is {states}\n{output}\n{self.cluster.logs()}")
            time.sleep(0.5)

    def succeed(self, seconds: float = SECONDS) -> str:
        """Wait for it, demand success, and return its output."""
        states = self.wait(seconds)
        assert set(states) == {"COMPLETED"}, f"{states} {self.exit_codes()}\n{self.output()}"
        return self.output()

    def cancel(self, *options: str) -> None:
        self.cluster.run("scancel", *options, str(self.number))

    def output(self) -> str:
        return "".join(path.read_text() for path in self._files("out"))

    def results(self) -> list[dict[str, Any]]:
        """Its JSON lines, of an array's tasks in their order."""
        return [json.loads(line) for path in self._files("jsonl") for line in path.read_text().splitlines()]

    def _files(self, ending: str) -> list[Path]:
        def task(path: Path) -> int:
            return int((re.search(r"_(\d+)\.", path.name) or [0, 0])[1])

        found = [*self.cluster.shared.glob(f"*-{self.number}.{ending}"), *self.cluster.shared.glob(f"*-{self.number}_*.{ending}")]
        return sorted(found, key=task)

    def processes(self) -> list[str]:
        """Those of its ranks, on all nodes: the number on the login node, and the command."""
        shown = self.cluster.run("pgrep", "--full", "--list-full", "^[^ ]*python[^ ]* -m hybrid", check=False).stdout
        return [line for line in shown.splitlines() if self._has(int(line.split()[0]))]

    def _has(self, process: int) -> bool:
        environment = self.cluster.run("cat", f"/proc/{process}/environ", check=False).stdout
        return f"SLURM_JOB_ID={self.number}" in environment.split("\0")


def submit(cluster: Cluster, script: str, *arguments: str | int, options: str = "", **environment: str) -> Job:
    """Submit a script of slurm/ from the shared folder, on nodes without real GPUs."""
    environment = {"HYBRID_SITE": "no-gpu", **environment}
    said = cluster.run("sbatch", "--parsable", *options.split(), ROOT / "slurm" / script, *map(str, arguments), **environment)
    return Job(cluster, int(said.stdout))
