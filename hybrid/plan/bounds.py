# SPDX-License-Identifier: MIT
"""How little data the nodes can exchange: proven bounds, to judge a plan by."""

from __future__ import annotations

import math

from hybrid.core.problem import Problem


def least_received(problem: Problem, nodes: int, memory: int = 0) -> float:
    """Elements that some node must receive or send, wherever each element of A, B and C lies before and after.

    `memory`: elements that a node can hold; 0: as many as it wants.
    """
    bound = _with_any_memory(problem, nodes)
    return max(bound, least_received_with(problem, nodes, memory)) if memory else bound


def _with_any_memory(problem: Problem, nodes: int) -> float:
    """Of Al Daas, Ballard, Grigori, Kumar and Rouse (2022): a node that does its part of the multiplications needs faces of a box
    of so many, and has a P-th of the matrices."""
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
    """Of Smith, Lowery, Langou and van de Geijn (2019) for one processor with a fast memory, of which all may be there before."""
    return 2 * problem.n * problem.l * problem.m / nodes / math.sqrt(memory) - 3 * memory
