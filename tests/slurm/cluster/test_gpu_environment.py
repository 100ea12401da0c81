# SPDX-License-Identifier: MIT
"""What Slurm tells ranks of their GPUs under its many options, and that each rank then takes the right one."""

from __future__ import annotations

import pytest
from jobs import Job

from hybrid.devices.cuda_gpus import Gpu, choose_gpus

LOOK = 'echo "$SLURM_PROCID $(hostname) ${CUDA_VISIBLE_DEVICES-unset}"'
UNSET = "unset"  # then CUDA shows all GPUs of the node

# Options of srun, what CUDA_VISIBLE_DEVICES must be for each rank, and the GPU of the node that each must take.
TWO = "-p GPU-small -N1 -n2"
FOUR = "-p GPU-small -N2 -n4 --ntasks-per-node=2"
CASES = {
    f"{TWO} --gres=gpu:1": (["0", "0"], [0, 0]),
    f"{TWO} --gres=gpu:2": (["0,1", "0,1"], [0, 1]),
    f"{TWO} --gres=gpu:p100:2": (["0,1", "0,1"], [0, 1]),
    f"{TWO} --gpus=2": (["0,1", "0,1"], [0, 1]),
    f"{TWO} --gpus-per-node=2": (["0,1", "0,1"], [0, 1]),
    f"{TWO} --gpus-per-task=1": (["0", "1"], [0, 1]),
    f"{TWO} --gres=gpu:2 --gpu-bind=none": ([UNSET] * 2, [0, 1]),
    f"{TWO} --gpus-per-task=1 --gpu-bind=none": ([UNSET] * 2, [0, 1]),
    f"{TWO} --gres=gpu:2 --gpu-bind=single:1": (["0", "1"], [0, 1]),
    f"{TWO} --gres=gpu:2 --gpu-bind=map_gpu:1,0": (["1", "0"], [1, 0]),
    f"{FOUR} --gpus-per-node=2": (["0,1"] * 4, [0, 1, 0, 1]),
    f"{FOUR} --gpus-per-task=1": (["0", "1"] * 2, [0, 1, 0, 1]),
    f"{FOUR} --gpus-per-task=1 --gpu-bind=none": ([UNSET] * 4, [0, 1, 0, 1]),
    "-p GPU-shared -N1 -n2 --gpus-per-task=2": (["0,1", "2,3"], [0, 2]),
    "-p GPU-shared -N1 -n6 --gres=gpu:4": (["0,1,2,3"] * 6, [0, 1, 2, 3, 0, 1]),
    "-N2 -n2 --gres=gpu:k40c:1": (["0", "0"], [0, 0]),
}


@pytest.mark.parametrize("options", CASES)
def test_each_rank_takes_its_gpu(cluster, options):
    told, taken = CASES[options]
    seen = by_rank(cluster.run("srun", *options.split(), "bash", "-c", LOOK).stdout)
    assert [visible for _, visible in seen] == told
    assert gpus_taken(seen) == taken


WRITE_DOWN = """
import os
rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["SLURM_PROCID"]
with open(f"look-{os.environ['SLURM_JOB_ID']}-{rank}.out", "w") as file:
    print(rank, os.uname().nodename, os.environ.get("CUDA_VISIBLE_DEVICES", "unset"), file=file)
"""


@pytest.mark.parametrize("option", ["--gres=gpu:2", "--gpus-per-node=2", "--gpus=2", "--gpus-per-task=1"])
@pytest.mark.parametrize("start", ["srun", "srun --gpu-bind=none", "mpirun -np 2"])
def test_steps_of_a_batch_job_do_the_same(cluster, option, start):
    """They inherit the batch script's environment, in which Slurm has set CUDA_VISIBLE_DEVICES for all its GPUs."""
    (cluster.shared / "look.py").write_text(WRITE_DOWN)
    script = cluster.shared / "look.sh"
    script.write_text(f"#!/bin/bash\nPATH=$VIRTUAL_ENV/bin:$PATH\n{start} python look.py\n")
    options = ["--output=look-%j.log", "-p", "GPU-small", "-N1", "-n2", option]
    job = Job(cluster, int(cluster.run("sbatch", "--parsable", *options, script).stdout))
    assert job.wait() == ["COMPLETED"]
    seen = by_rank("".join(path.read_text() for path in cluster.shared.glob(f"look-{job.number}-*.out")))
    assert len(seen) == 2
    assert gpus_taken(seen) == [0, 1]


def by_rank(output):
    """(node, what it sees) of each rank."""
    lines = sorted(line.split() for line in output.splitlines())
    return [(node, visible) for _, node, visible in lines]


def gpus_taken(seen):
    """The node's number of the GPU that each rank takes, if the node's GPUs were real."""
    gpus = [[Gpu(index, f"{node} {number}", "") for index, number in enumerate(numbers(visible, node))] for node, visible in seen]
    return [int(gpu.uuid.split()[1]) for gpu in choose_gpus(gpus)]


def numbers(visible, node):
    return range(2 if node.startswith("p100") else 4) if visible == UNSET else visible.split(",")
