# SPDX-License-Identifier: MIT
"""ScaLAPACK's product, to compare with: where Debian's libscalapack-mpich-dev is installed, compiled for the run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from hybrid.emulation.build import c_compiler
from hybrid.errors import DeviceUnavailable, HybridError

_SOURCE = Path(__file__).with_name("programs") / "pdgemm.c"
_LIBRARIES = ("-lscalapack-mpich", "-lopenblas", "-lm")
BLOCKS = (64, 128, 256)  # rows and columns of the blocks that are tried


def build(folder: Path) -> Path:
    """The program, in this folder. HybridError that says what is missing."""
    program = folder / "pdgemm"
    try:
        compiler = c_compiler()
    except DeviceUnavailable:
        raise HybridError("pdgemm needs a C compiler (apt-get install gcc)") from None
    made = subprocess.run(
        [compiler, "-O2", "-o", str(program), str(_SOURCE), *_LIBRARIES], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise HybridError("pdgemm needs ScaLAPACK (apt-get install libscalapack-mpich-dev libopenblas-dev)")
    return program


def command(program: Path, sizes: Sequence[int], processes: int, block: int) -> list[str]:
    """One product by so many processes of one thread each, in the grid that is nearest to a square."""
    return ["env", "OPENBLAS_NUM_THREADS=1", str(program), *map(str, (*sizes, *grid_of(processes), block))]


def grid_of(processes: int) -> tuple[int, int]:
    """The one nearest to a square."""
    rows = max(divisor for divisor in range(1, processes + 1) if processes % divisor == 0 and divisor * divisor <= processes)
    return rows, processes // rows
