# SPDX-License-Identifier: MIT
"""The nodes are as separate as those of a real cluster, and products cross the network between them."""

from __future__ import annotations

import json

import pytest
from configuration import NODES
from jobs import STARTS, Job, submit


def test_every_node_has_its_own_name_address_and_temporary_folders(cluster):
    look = "touch /tmp/$(hostname) /dev/shm/$(hostname); echo $(hostname) $(ip -4 -o address show eth0) $(ls /tmp /dev/shm)"
    lines = cluster.run("srun", "--nodes", str(len(NODES)), "bash", "-c", look).stdout.splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(node.name for node in NODES)
    assert len({line.split()[4] for line in lines}) == len(NODES)
    for line in lines:
        others = {node.name for node in NODES} - {line.split()[0]}
        assert not others & set(line.split()), line


@pytest.mark.parametrize("start", STARTS, ids=["srun", "mpirun"])
def test_two_nodes_of_two_ranks_exchange_rows_over_the_network(cluster, start):
    n, l, m = 500, 400, 300
    before = sent_to("p100a", cluster), sent_to("p100b", cluster)
    options = "-N 2 --ntasks-per-node=2 -p GPU-small"
    job = submit(cluster, "matmul.sbatch", n, l, m, "--fill", "uniform", options=options, HYBRID_DEVICE="cpu", **start)
    output = job.succeed()
    assert "4 ranks on 2 nodes" in output
    for rank, node in enumerate(["p100a", "p100a", "p100b", "p100b"]):
        assert f"  rank {rank}  {node}  " in output
    (result,) = job.results()
    assert result["check"]["ok"]
    # Half of C at least goes to the root's node, and half of B each way.
    assert sent_to("p100a", cluster) - before[0] > 8 * (n * m + l * m) // 2
    assert sent_to("p100b", cluster) - before[1] > 8 * l * m // 2


# MPICH sends 4 KiB with an address, most of which lies in the memory behind it and so is what was there before.
START = """
import os
kept = [os.urandom(size) for size in range(600, 6000, 4)]
del kept[::2]
from mpi4py import MPI
print(f"{MPI.COMM_WORLD.size} ranks")
"""


def test_ranks_on_two_nodes_start_whatever_is_in_their_memory(cluster):
    """Random bytes make the longest requests to the launcher, of which Slurm's pmi2 plugin would read a part only."""
    (cluster.shared / "start.py").write_text(START)
    script = cluster.shared / "start.sh"
    script.write_text('#!/bin/bash\nset -euo pipefail\nsource "$HYBRID_ROOT/slurm/job.sh"\nlaunch python start.py\n')
    options = ["--output=start-%j.out", "-p", "GPU-small", "-N2", "-n2"]
    job = Job(cluster, int(cluster.run("sbatch", "--parsable", *options, script).stdout))
    assert job.succeed().count("2 ranks") == 2


def sent_to(node, cluster):
    """Bytes that crossed the wire to `node`."""
    (link,) = json.loads(cluster.run("ip", "-json", "-statistics", "link", "show", f"to-{node}").stdout)
    return link["stats64"]["tx"]["bytes"]
