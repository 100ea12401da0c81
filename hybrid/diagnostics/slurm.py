# SPDX-License-Identifier: MIT
"""Compares what Slurm gave the job with what the ranks have of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hybrid.core.spans import Topology
from hybrid.core.text import counted
from hybrid.diagnostics.finding import Finding

_READ = ("JOB_ID", "JOB_NUM_NODES", "NTASKS", "STEP_NUM_TASKS", "STEP_NUM_NODES", "CPUS_PER_TASK", "GPUS_ON_NODE", "STEP_GPUS",
         "JOB_GPUS")  # fmt: skip


def inspect(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Slurm's variables of this process without their prefix SLURM_; empty outside of a job."""
    return {name: environment[f"SLURM_{name}"] for name in _READ if environment.get(f"SLURM_{name}")}


def judge(
    variables: Sequence[Mapping[str, str]], cores: Sequence[int], gpus: Sequence[bool], topology: Topology, *, launched: bool
) -> Finding:
    """`variables[rank]`: the rank's, as inspected; `cores[rank]`: how many cores it may use; `gpus[rank]`: whether it has a GPU
    that works; `launched`: a launcher started the ranks, and MPI sees as many.
    """
    job = variables[0]
    if "JOB_ID" not in job:
        return Finding("slurm", "ok", "not in a job")
    ranks, nodes = len(variables), len(topology.nodes)
    given = [
        counted(job.get(name, "an unknown number of"), word)
        for name, word in (("NTASKS", "task"), ("JOB_NUM_NODES", "node"), ("CPUS_PER_TASK", "CPU"))
    ]
    text = f"job {job['JOB_ID']} has {', '.join(given)} a task; MPI has {counted(ranks, 'rank')} on {counted(nodes, 'node')}"
    few = [rank for rank in range(ranks) if 0 < cores[rank] < _number(variables[rank], "CPUS_PER_TASK")]
    if few:
        return Finding(
            "slurm", "wrong", f"{text}; rank {few[0]} may use {counted(cores[few[0]], 'core')} only",
            f"srun does not take -c from sbatch: srun -c {job['CPUS_PER_TASK']}; for mpirun leave binding out (--bind-to none)",
            code="slurm-cores",
        )  # fmt: skip
    without = [rank for rank in range(ranks) if _has_gpus(variables[rank]) and not gpus[rank]]
    if without:
        return Finding(
            "slurm", "wrong", f"{text}; the job has GPUs, and rank {without[0]} cannot use any",
            "see the line on gpus; or give the step its GPUs: srun --gpus-per-task=1, or --gpu-bind=none for all of a node",
            code="slurm-gpus",
        )  # fmt: skip
    tasks = _number(job, "STEP_NUM_TASKS") or _number(job, "NTASKS")
    if tasks > ranks and not launched:
        return Finding(
            "slurm", "note", f"{text}: this is one process; srun or mpirun starts it as {tasks} ranks", code="slurm-tasks"
        )
    remarks = []
    if tasks > ranks:
        remarks.append("fewer ranks than tasks")
    if 0 < tasks < ranks:
        remarks.append("more ranks than tasks, so ranks share what a task was given")
    if _number(job, "JOB_NUM_NODES") > nodes and "STEP_NUM_NODES" not in job:
        remarks.append("some nodes of the job have no rank (does the mpirun know of Slurm? srun does)")
    return Finding(
        "slurm", "note" if remarks else "ok", ": ".join([text, *filter(None, [", ".join(remarks)])]), code="slurm-tasks"
    )


def _number(job: Mapping[str, str], name: str) -> int:
    text = job.get(name, "")
    return int(text) if text.isdecimal() else 0


def _has_gpus(job: Mapping[str, str]) -> bool:
    return bool(job.get("STEP_GPUS") or job.get("JOB_GPUS") or _number(job, "GPUS_ON_NODE"))
