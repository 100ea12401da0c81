# SPDX-License-Identifier: MIT
"""NumPy's own tests of matmul, taken from the installed package, with hybrid.multiply in matmul's place. What it computes is
NumPy's; what it alone refuses has a code that a page documents."""

from collections import Counter

import numpy as np
import numpy._core.tests.test_multiarray as theirs
import pytest

import hybrid
from hybrid.errors import HybridError

DOCUMENTED = {  # codes of refusals of what NumPy takes, and where this is said
    "dtype": "docs/python.md#types",
    "no-numbers": "docs/python.md#types",
    "out": "docs/python.md#gemm-vectors-and-stacks",
    "overlap": "hybrid.multiply: out must not overlap a or b",
    "overflow": "docs/python.md#integers",
    "dimensions": "docs/python.md#gemm-vectors-and-stacks",
}


def alike(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    if (found.shape, found.dtype) != (expected.shape, expected.dtype) or found.dtype.kind not in "fc":
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    tolerance = 100 * np.finfo(found.dtype).eps
    return np.allclose(found, expected, tolerance, tolerance * max(1.0, np.abs(expected).max(initial=0)), equal_nan=True)


@pytest.fixture(scope="module")
def became():
    """Of so many calls: right, refused by NumPy as well, and by which codes by ours alone."""
    counts = Counter()
    yield counts
    assert counts.keys() <= {"right", "refused by both", *DOCUMENTED}
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


class TestMatmul(theirs.TestMatmul):
    types = theirs.TestMatmul.types.translate(dict.fromkeys(map(ord, "qQ")))  # whose results have the equal types l and L

    @pytest.fixture(autouse=True)
    def by_ours(self, became):
        assert theirs.TestMatmul.matmul is np.matmul
        self.became = became

    def matmul(self, a, b, *positional, **options):
        """Our product, compared with NumPy's; NumPy's where ours is refused, so that the test goes on."""
        options |= {"out": positional[0]} if positional else {}
        out = options.get("out")
        out = out[0] if isinstance(out, tuple) else out
        if set(options) - {"out", "dtype"} or not isinstance(out, np.ndarray | None):
            return np.matmul(a, b, **options)  # hybrid.multiply has no axes, casting, order, signature or subok
        before = None if out is None else out.copy()
        try:
            found = hybrid.multiply(a, b, **{**options, "out": out})
        except HybridError as refusal:
            try:
                expected = np.matmul(a, b, **options)
            except Exception:
                self.became["refused by both"] += 1
                raise
            self.became[refusal.code] += 1
            return expected
        assert alike(found, np.matmul(a, b, **{**options, "out": before}))
        self.became["right"] += 1
        return found
