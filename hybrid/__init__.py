# SPDX-License-Identifier: MIT
"""Multiply big matrices with MPI ranks, CPU threads and CUDA GPUs.

>>> import numpy, hybrid
>>> hybrid.multiply(numpy.eye(2), numpy.ones((2, 2)))
array([[1., 1.],
       [1., 1.]])

help(hybrid.multiply) and so on tell more of

multiply    the product of two matrices by all ranks: of a root's arrays, of RowBlocks or of Block2Ds
plan        the same, decided before it is computed: for many products alike
gram        a matrix by its own conjugate transpose: of arrays, RowBlocks and files
empty       a matrix in memory that the ranks of a node share
scatter     a root's matrix as RowBlocks
gather      RowBlocks or Block2Ds as a matrix at a root
use         within it, NumPy's and SciPy's own products are computed so where that is faster
RowBlock    some consecutive rows of a distributed matrix
Block2D     a rank's rows and columns of a matrix that is distributed over a grid

What is raised stands in hybrid.errors. Tests plant faults by hybrid.testing. `python -m hybrid` lists the commands.
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
    # `import hybrid` loads neither NumPy nor MPI: the commands start with threads and launcher still to be settled.
    if name in __all__:
        with one_at_a_time:
            room = import_module("hybrid.interposition.use" if name == "use" else "hybrid.api")
        return getattr(room, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
