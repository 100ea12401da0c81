"""MPI, started by a process alone: python -m hybrid.diagnostics.probes.mpi LIMIT"""

from __future__ import annotations

import sys
from dataclasses import asdict

from hybrid.diagnostics.probes.protocol import begin, say


def main() -> None:
    begin(int(sys.argv[1]))
    import mpi4py

    mpi4py.rc(thread_level="funneled")
    from mpi4py import MPI

    from hybrid.ranks.mpi_library import library_in_use

    say(library=asdict(library_in_use()), size=MPI.COMM_WORLD.Get_size())


if __name__ == "__main__":
    main()
