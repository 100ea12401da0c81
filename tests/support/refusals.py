# SPDX-License-Identifier: MIT
"""What a call must refuse, by the error's class and code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hybrid.errors import HybridError


@contextmanager
def refused(kind: type[HybridError], *codes: str) -> Iterator[pytest.ExceptionInfo[HybridError]]:
    """A context that must end with this error, of one of these codes."""
    with pytest.raises(kind) as caught:
        yield caught
    code = caught.value.code
    assert code in codes, f"[{code}] {caught.value}"
