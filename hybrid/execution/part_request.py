# SPDX-License-Identifier: MIT
"""How many rows the parts of a product have, and what has to be the same for a later job to go on with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, pieces
from hybrid.core.text import counted, ranges
from hybrid.plan.plan import Plan
from hybrid.selection.decision import Decision

_SECONDS_OF_A_PART = 60.0  # about: so much work does a job lose that is killed
# Operations a second, of float64: too few rather than too many, so that a part takes no longer.
_OF_A_THREAD, _OF_AN_EMULATED_THREAD, _OF_A_GPU = 2e10, 1e8, 3e13
_ROWS_OF_A_RANK = 64  # the fewest in a part: with fewer, too little is computed for each time that B is read
_NAMES_SHOWN = 4  # the most different processors or GPUs that are named

Facts = Mapping[str, str]
ROWS_OF_A_PART = "rows of a part"  # one of the facts that are asked for


def sample_of(problem: Problem, ranks: int) -> Problem:
    """The smallest part that there may be. What is decided for it tells which devices multiply."""
    return Problem(min(problem.n, _ROWS_OF_A_RANK * ranks), problem.l, problem.m, problem.dtype)


def rows_of_a_part(problem: Problem, sample: Decision) -> int:
    """As many rows as these devices multiply in about a minute, or all."""
    threads = sum(placement.threads.count for placement in sample.placements)
    gpus = len({placement.gpu.uuid for placement in sample.placements if placement.gpu})
    speed = {"cpu": threads * _OF_A_THREAD, "cuda": gpus * _OF_A_GPU}.get(sample.plan.device, threads * _OF_AN_EMULATED_THREAD)
    of_a_row = max(1, problem.operations // max(1, problem.n))
    least = sample_of(problem, sample.plan.topology.size).n
    return max(1, min(problem.n, max(least, int(_SECONDS_OF_A_PART * speed / of_a_row))))


def parts_of(problem: Problem, rows: int) -> list[Span]:
    """The rows of each part."""
    return list(pieces(Span(0, problem.n), rows))


def problem_of(problem: Problem, part: Span) -> Problem:
    """The product that gives a part."""
    return Problem(len(part), problem.l, problem.m, problem.dtype)


def arithmetic(decision: Decision, version: str, processors: Sequence[str]) -> dict[str, str]:
    """All on which the last bits of a part may depend beside the operands, where the product is not exact.

    `version`: of this program. `processors`: of all ranks.
    """
    plan = decision.plan
    facts = {
        "ranks": f"{plan.topology.size} on {counted(len(plan.topology.nodes), 'node')}",
        "device": plan.device,
        "kernel": decision.kernel.name,
        "precision": f"{plan.moduli} moduli" if plan.moduli else "native",
        "version": version,
    }
    if plan.device == "cuda":
        facts["GPUs"] = _listed([placement.gpu.name for placement in decision.placements if placement.gpu])
    else:
        facts["threads"] = ranges(sorted({placement.threads.count for placement in decision.placements}))
        facts["processors"] = _listed(processors)
        facts["NumPy"] = f"{np.__version__} with {_blas()}"
    return {**facts, "tiles": _digest_of_tiles(plan)}


def differences(there: Facts, here: Facts) -> Iterator[str]:
    """Each fact that is not the same, in words."""
    for name in {**there, **here}:
        if there.get(name) != here.get(name):
            yield f"{name} {there.get(name, 'not known')} there, {here.get(name, 'not known')} here"


def _listed(names: Sequence[str]) -> str:
    """The names in their order, since they belong to ranks; a single one where all are the same."""
    if len(set(names)) == 1:
        return names[0]
    shown = ", ".join(dict.fromkeys(names[:_NAMES_SHOWN]))
    return f"{shown} ({blake2b(chr(0).join(names).encode(), digest_size=4).hexdigest()})"


def _blas() -> str:
    """The BLAS library with which NumPy was built."""
    try:
        found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{found['name']} {found['version']}"
    except (KeyError, TypeError):
        return "an unknown BLAS"


def _digest_of_tiles(plan: Plan) -> str:
    """A digest of which rank multiplies which rows in which tiles, and in which order it adds them up."""
    return blake2b(repr((plan.shares, plan.grid_layout)).encode(), digest_size=4).hexdigest()
