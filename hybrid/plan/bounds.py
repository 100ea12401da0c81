# SPDX-License-Identifier: MIT
"""The least data that nodes must exchange for a product: proven bounds, to judge a plan by."""

from __future__ import annotations

import math

from hybrid.core.problem import Problem


def least_received(problem: Problem, nodes: int) -> float:
    """A lower bound of the elements that some node, of any memory, must receive or send, however the elements of A, B and C are
    distributed before and after: that of Al Daas, Ballard, Grigori, Kumar and Rouse (2022).

    A node that computes its part of the multiplications, seen as a box, needs as many elements as the faces of the box have, and
    has a P-th of the matrices before.
    """
    if not (problem.n and problem.l and problem.m):
        return 0.0
    small, middle, large = sorted((problem.n, problem.l, problem.m))
    if nodes * middle <= large:
        needed = (large * middle + large * small) / nodes + middle * small
    elif nodes * small * small <= large * middle:
        needed = 2 * math.sqrt(large * middle * small * small / nodes) + large * middle / nodes
    else:
        needed = 3 * (large * middle * small / nodes) ** (2 / 3)
    return needed - (large * middle + large * small + middle * small) / nodes


def least_received_with(problem: Problem, nodes: int, memory: int) -> float:
    """The same for nodes that can hold `memory` elements: the bound of Smith, Lowery, Langou and van de Geijn (2019) for one
    processor with a fast memory, all of which may be full of operands before. It may be negative."""
    return 2 * problem.n * problem.l * problem.m / nodes / math.sqrt(memory) - 3 * memory
