# SPDX-License-Identifier: MIT
"""Programs that an experiment starts find its modules as those do that a script starts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from experiments.start import use_checkout


@pytest.fixture(scope="package", autouse=True)
def checkout() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        use_checkout()
        yield
