# SPDX-License-Identifier: MIT
"""What tests of devices that are joined across ranks share."""

from __future__ import annotations

import pytest


@pytest.fixture
def own(comm, log):
    """A communicator on which nothing has been joined yet, and nothing is left joined. `log`: the module's fixture that lets
    CPUs be joined."""
    copy = comm.Dup()
    yield copy
    copy.Free()
