# SPDX-License-Identifier: MIT
"""Proxies on a CPU that copies like a GPU, one for each rank: proxies_on_cpu.py RANKS_PER_NODE RANKS_WITHOUT FAULT

Rank 0 prints what was measured, as JSON. FAULT is one of rank 1's proxy, "" for none.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics import bandwidth, proxy_ranks
from hybrid.ranks.team import Team

FAULTY = Path(__file__).with_name("faulty_proxy.py")
send = proxy_ranks.run_proxies


def send_cpu(team, command, limit, fault=""):
    """What the doctor sends, but for its size and the device."""
    if command is None:
        return send(team, None, limit)
    task = {**json.loads(command[-1]), "index": None, "size": 1 << 20}
    return send(team, [sys.executable, str(FAULTY), str(limit), json.dumps(task), fault if team.rank == 1 else ""], limit)


def main():
    from mpi4py import MPI

    ranks_per_node, without, fault = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    team = Team(MPI.COMM_WORLD)
    team.pretend_nodes(ranks_per_node)
    chosen = [None if rank in without else Gpu(0, f"GPU-{rank}", "CPU") for rank in range(team.size)]
    limit = 8 if fault == "sleep" else 50
    bandwidth.run_proxies = lambda team, command, _: send_cpu(team, command, limit, fault)
    moved = bandwidth.measure(team, chosen)
    if team.rank == 0:
        print(json.dumps(asdict(moved)))


if __name__ == "__main__":
    main()
