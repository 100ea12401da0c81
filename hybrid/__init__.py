# SPDX-License-Identifier: MIT
"""Multiply big matrices with MPI ranks, CPU threads and CUDA GPUs.

>>> import numpy, hybrid
>>> hybrid.multiply(numpy.eye(2), numpy.ones((2, 2)))
array([[1., 1.],
       [1., 1.]])

multiply    multiply two matrices with all ranks: a root's arrays, RowBlocks or Block2Ds
plan        decide how such products are computed, and compute none yet
gram        multiply a matrix by its own conjugate transpose: an array, a RowBlock or a file
empty       allocate a matrix in memory that the ranks of a node share
scatter     distribute a root's matrix as RowBlocks
gather      collect RowBlocks or Block2Ds into a matrix at a root
use         a context in which NumPy's and SciPy's products go to `multiply` where that is faster
RowBlock    this rank's consecutive rows of a distributed matrix
Block2D     this rank's block of a matrix that is distributed over a grid

hybrid.errors has the exceptions, hybrid.testing plants faults for tests, `python -m hybrid` lists the commands.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hybrid.core.forks import one_at_a_time

__version__ = "0.1.0"
__all__ = ["Block2D", "RowBlock", "__version__", "empty", "gather", "gram", "multiply", "plan", "scatter", "use"]

if TYPE_CHECKING:
    from hybrid.api import Block2D, RowBlock, empty, gather, gram, multiply, plan, scatter
    from hybrid.interposition.use import use


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # `import hybrid` loads neither NumPy nor MPI: the commands first set the number of threads and check the launcher.
    if name in __all__:
        with one_at_a_time:
            room = import_module("hybrid.interposition.use" if name == "use" else "hybrid.api")
        return getattr(room, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
