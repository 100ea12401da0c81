# SPDX-License-Identifier: MIT
"""Markov chains: the probabilities after a number of steps, by repeated squaring, with a bound on the rounding errors."""

from __future__ import annotations

import numpy as np

from hybrid.arrays.interop import on_host
from hybrid.core.problem import record
from hybrid.errors import CheckFailed, UsageError
from hybrid.graphs.walks import SQUARE, Multiply, Place, Progress, further_steps, in_host_memory

_OFF = 1e-5  # how far a row's sum may be from 1, since files give probabilities with some six decimals
_MOST_ERROR = 1e-3  # relative; a chain whose rounding errors may be larger is refused
_SECOND_ORDER = 1.01  # factor that covers products of errors, as long as their sum stays below _MOST_ERROR


@record
class Chain:
    """The computation of `length` steps of a chain with so many states. The same on every rank."""

    states: int
    length: int
    dtype: str

    @property
    def products(self) -> int:
        return len(further_steps(self.length))

    def error(self, length: int) -> float:
        """A bound on the relative rounding error of any probability after so many steps, for every order of summation.

        No number is negative, so relative errors only add up: with u half the machine epsilon and l states, (l+2)·u for
        scaling the rows to 1 and l·u for each product of two powers.
        """
        unit = float(np.finfo(self.dtype).eps) / 2
        return _SECOND_ORDER * unit * (length * (self.states + 2) + max(0, length - 1) * self.states)

    def __str__(self) -> str:
        return f"{self.dtype}, relative error of each probability at most {self.error(self.length):.1e}"


def choose_chain(probabilities: np.ndarray, names: list[str], length: int, dtype: str) -> tuple[Chain, np.ndarray, float]:
    """The chain, its matrix with the rows' sums scaled to 1, and by how much these were off at most. UsageError if it is no
    chain, or has too many steps."""
    sums = probabilities.sum(axis=1)
    off = np.abs(sums - 1)
    worst = int(off.argmax())
    if not off[worst] <= _OFF:
        raise UsageError(f"the probabilities from {names[worst]} add up to {sums[worst]:.10g}, not to 1", code="graph")
    chain = Chain(len(probabilities), length, dtype)
    if length > 2**60 or chain.error(length) > _MOST_ERROR:
        more = "" if dtype == "float64" else ", or --dtype float64"
        raise UsageError(
            f"after so many steps rounding alone may change {dtype} probabilities by a thousandth: a smaller --length{more}",
            code="too-long",
        )
    return chain, (probabilities / sums[:, None]).astype(dtype), float(off[worst])


def carry_out(
    chain: Chain, matrix: np.ndarray | None, multiply: Multiply, progress: Progress, place: Place = in_host_memory
) -> np.ndarray | None:
    """The matrix of probabilities after all steps, on rank 0; None on the others. Every rank calls it. Powers stay where `place`
    has put the first one."""
    if matrix is not None:
        matrix = place(matrix)
    power = matrix if matrix is None or chain.length else np.eye(chain.states, dtype=chain.dtype)
    for done, step in enumerate(further_steps(chain.length)):
        progress(done, chain.products)
        power = multiply(power, power if step == SQUARE else matrix)
    return None if power is None else on_host(power)


def confirm(chain: Chain, power: np.ndarray) -> None:
    """CheckFailed where a row's sum is off by more than rounding can explain."""
    off = float(np.abs(power.sum(axis=1, dtype=np.float64) - 1).max())
    allowed = chain.error(max(1, chain.length)) + chain.states * float(np.finfo(np.float64).eps)
    if not off <= allowed:
        raise CheckFailed(f"the probabilities from some vertex add up to 1 ± {off:.1e}, rounding explains {allowed:.1e}")
