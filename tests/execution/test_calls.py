# SPDX-License-Identifier: MIT
"""What all calls of multiply have in common."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.arrays.product_type import product_type
from hybrid.core.settings import Settings
from hybrid.execution.calls import exactly


@pytest.mark.parametrize(("dtype", "precision"), [("int8", "native"), ("bool", "native"), ("float32", "fast")])
def test_integers_are_never_computed_in_an_arithmetic_that_rounds(dtype, precision):
    types = product_type(np.dtype(dtype), np.dtype(dtype))
    assert exactly(Settings(precision="fast"), types).precision == precision
