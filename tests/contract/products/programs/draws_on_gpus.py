# SPDX-License-Identifier: MIT
"""Products at random on GPUs, or on what stands for them: draws_on_gpus.py SEED COUNT. By several ranks those of a root."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from mpi4py import MPI
from support import cases

ON_CUPY = ("array", "CuPy", "CuPy", "CuPy")
KERNELS = ("naive", "tiled", "register_tiled", "pipelined", "warp_tiled")


def main(seed: int, count: int) -> None:
    comm = MPI.COMM_WORLD
    several = comm.size > 1
    ways = {
        **{name: way for name, way in cases.ON_GPU.items() if not (several and way.flags.get("kernel"))},
        **{f"GPU {kernel}": cases.Way({"device": "cuda", "kernel": kernel}, {}) for kernel in KERNELS},
    }
    if several:
        nodes, peers = {"RANKS_PER_NODE": "1"}, {"TRANSPORT": "peers"}
        ways |= {
            "GPUs of other nodes": cases.Way({"device": "cuda"}, nodes),
            "GPUs, through the host": cases.Way({"device": "cuda", "transport": "host"}, {"PANEL_COLUMNS": "32"}),
            "GPUs, peers": cases.Way({"device": "cuda"}, peers, shapes="full"),
            "GPUs, a grid": cases.Way({"device": "cuda"}, {**nodes, "GRID": f"1x{comm.size}"}),
        }
    if "hybrid.testing.numpy_cupy" in sys.modules:
        ways.pop("GPU, cublas", None)
    narrowed = {"holder_a": ON_CUPY, "holder_b": ON_CUPY}
    alone = {} if several else {"root": ("first",), "group": ("all",)}
    for case in cases.draw(seed, count, ways, **narrowed, **alone):
        cases.run(case, ways, comm if several else None)
    if comm.rank == 0:
        print("right:", count)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
