# SPDX-License-Identifier: MIT
"""NumPy's own tests of matmul, taken from the installed package, with hybrid.multiply in matmul's place."""

import numpy
import numpy._core.tests.test_multiarray as theirs
import pytest
from support.peers import matmul

PEER = "NumPy, TestMatmul"


class TestMatmul(theirs.TestMatmul):
    types = theirs.TestMatmul.types.translate(dict.fromkeys(map(ord, "qQ")))  # whose results have the equal types l and L

    @pytest.fixture(autouse=True)
    def by_ours(self, ledger):
        assert theirs.TestMatmul.matmul is numpy.matmul
        self.matmul = lambda *operands, **options: matmul(ledger, *operands, **options)
