# SPDX-License-Identifier: MIT
"""Products on GPUs for which NumPy stands, one for each rank, by every transport: products_by_numpy.py FOLDER."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpi4py import MPI
from support import mpi_nccl, numpy_cupy

comm = MPI.COMM_WORLD
numpy_cupy.install(Path(sys.argv[1]), comm.size)
mpi_nccl.install(comm)

import cupy  # noqa: E402
import numpy as np  # noqa: E402

import hybrid  # noqa: E402
from hybrid.plan import gather_layout  # noqa: E402
from hybrid.plan.arithmetic import most_moduli  # noqa: E402
from hybrid.selection import decision  # noqa: E402
from hybrid.selection.precision import Precision  # noqa: E402

gather_layout.PIECE_BYTES = 4000  # so that C of other nodes comes in more pieces than there are slots
PIECES = {"PANEL_ROWS": "33", "PANEL_COLUMNS": "40"}
PEERS = {"TRANSPORT": "peers"} if comm.size > 1 else {}
NODES = {"RANKS_PER_NODE": "1"}
OF_SEVERAL = {
    "nccl": {**NODES, "TRANSPORT": "nccl", **PIECES},
    "grid": {**NODES, "GRID": f"1x{comm.size}", **PIECES},
}
WAYS = {
    "peers": PEERS,
    "pieces": {**PEERS, **PIECES},
    "slabs": {**PEERS, "PANEL_ROWS": "33", "SLAB_ROWS": "32"},
    "host": {"TRANSPORT": "host", **PIECES},
    "out of core": {"TRANSPORT": "host", "GPU_MEMORY": "200k"},
    "nodes": NODES,
    **(OF_SEVERAL if comm.size > 1 else {}),
}
REPEATS = {"native": 3, "fast": 2}  # by precision
as_usual = decision.choose_precision
decision.choose_precision = lambda settings, *of: (
    Precision(most_moduli("float64"), "small, too") if settings.precision == "fast" else as_usual(settings, *of)
)
random = np.random.default_rng(7)
a, b = random.standard_normal((70, 90)), random.standard_normal((90, 60))


def check(c, what):
    assert np.abs(np.asarray(c) - a @ b).max() < 1e-10, what


def at_root(*arrays):
    return arrays if comm.rank == 0 else (None,) * len(arrays)


for name, settings in WAYS.items():
    before = {f"HYBRID_{setting}": value for setting, value in {**settings, "POISON": "1"}.items()}
    os.environ.update(before)
    for precision in REPEATS:
        how = {"comm": comm, "device": "cuda", "precision": precision}
        for kind in (np.asarray, cupy.asarray):
            c = hybrid.multiply(*at_root(kind(a), kind(b)), **how)
            assert comm.rank or type(c) is type(kind(a))
            comm.rank or check(c, name)
            blocks = [hybrid.RowBlock(kind(np.array_split(each, comm.size)[comm.rank])) for each in (a, b)]
            for _ in range(REPEATS[precision]):
                c = hybrid.multiply(*blocks, **how).array
                assert type(c) is type(kind(a))
                check(np.concatenate(comm.allgather(np.asarray(c))), f"{name}, row blocks")
        transposed = at_root(np.ascontiguousarray(a.T), np.asfortranarray(b))
        c = hybrid.multiply(*transposed, transpose_a=True, **how)
        comm.rank or check(c, f"{name}, transposed")
    for setting in before:
        del os.environ[setting]

# GPUs are given back: where the next product uses none, and with the communicator.
links = {"comm": comm, "device": "cuda", "transport": "peers" if comm.size > 1 else None}
hybrid.multiply(*at_root(a, b), **links)
numpy_cupy.contexts.clear()
hybrid.multiply(*at_root(b.T, a.T), **links)
hybrid.multiply(*at_root(a, b), comm=comm, device="cpu")
other = comm.Dup()
hybrid.multiply(*at_root(np.asfortranarray(a), b), comm=other, device="cuda")
other.Free()
gc.collect()
assert comm.rank == 0 or numpy_cupy.contexts == {comm.rank + 1}, "of another rank's GPU, which is the root's part alone"
assert numpy_cupy.here.context == 0, "a call leaves a context current"
assert not numpy_cupy.without_context, f"CUDA would create a context on GPU 0 for {dict(numpy_cupy.without_context)}"
if comm.rank == 0:
    print(*sorted({each.partition("<")[0] for each in numpy_cupy.calls}), *sorted(mpi_nccl.calls))
