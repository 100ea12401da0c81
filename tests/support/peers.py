# SPDX-License-Identifier: MIT
"""Counts what peers' own cases get from hybrid.multiply: right, refused with a documented code, or wrong."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybrid
from hybrid.errors import HybridError

ROWS = pytest.StashKey[list[str]]()  # of the table that a run in one process prints at its end
DOCUMENTED = {  # codes of refusals of what the peer's product takes, and where this is said
    "dtype": "docs/python.md#types",
    "no-numbers": "docs/python.md#types",
    "out": "docs/python.md#gemm-vectors-and-stacks",
    "overlap": "hybrid.multiply: out must not overlap a or b",
    "overflow": "docs/python.md#integers",
    "argument": "hybrid.multiply has no axes, casting, order, signature or subok",
    "blocks": "docs/python.md#blocks-of-a-grid: the parts of a transpose's product must be those of a grid",
    "dimensions": "docs/python.md#gemm-vectors-and-stacks",
}


class Ledger:
    """What became of a peer's calls."""

    def __init__(self) -> None:
        self.right = self.both_refuse = 0
        self.refused: Counter[str] = Counter()
        self.wrong: list[str] = []

    def judge(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        """Our product, compared with the peer's; the peer's where ours is refused, so that its test goes on."""
        try:
            found = ours()
        except HybridError as refusal:
            try:
                expected = theirs()
            except Exception:
                self.both_refuse += 1
                raise
            self.refused[refusal.code] += 1
            return expected
        expected = theirs()
        if not alike(found, expected):
            self.wrong.append(f"{found!r} is not {expected!r}")
        self.right += 1
        return found


def alike(found: Any, expected: Any) -> bool:
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.dtype.kind not in "fc":
        return bool((found == expected).all())
    tolerance = 100 * np.finfo(found.dtype).eps
    return bool(
        np.allclose(found, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max(initial=0)), equal_nan=True)
    )


@pytest.fixture(scope="module")
def ledger(request: pytest.FixtureRequest) -> Any:
    """One for each module. At its end nothing may be wrong, or refused without being documented."""
    made = Ledger()
    yield made
    refused = ", ".join(f"{count} {code}" for code, count in sorted(made.refused.items())) or "none"
    row = f"| {request.module.PEER} | {made.right} | {len(made.wrong)} | {made.both_refuse} | {refused} |"
    request.config.stash.setdefault(ROWS, []).append(row)
    assert made.wrong == []
    assert set(made.refused) <= set(DOCUMENTED)


def matmul(ledger: Ledger, a: Any, b: Any, *positional: Any, **options: Any) -> Any:
    """numpy.matmul, by hybrid.multiply."""
    if positional:
        options["out"] = positional[0]
    if set(options) - {"out", "dtype"}:
        ledger.refused["argument"] += 1
        return np.matmul(a, b, **options)
    given = options.pop("out", None)
    out = given[0] if isinstance(given, tuple) else given
    if out is None:
        return ledger.judge(lambda: hybrid.multiply(a, b, **options), lambda: np.matmul(a, b, **options))
    if not isinstance(out, np.ndarray):
        return np.matmul(a, b, out=out, **options)
    before = out.copy()

    def theirs() -> Any:
        into = before.copy()
        return np.matmul(a, b, out=into, **options)

    def both() -> Any:
        np.matmul(a, b, out=out, **options)
        return out

    def ours() -> Any:
        if isinstance(outcome, HybridError):
            raise outcome
        return outcome

    try:
        outcome = hybrid.multiply(a, b, out=out, **options)
    except HybridError as refused:
        outcome = refused
    return ledger.judge(ours, both if isinstance(outcome, HybridError) else theirs)
