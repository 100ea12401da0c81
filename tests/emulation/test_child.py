# SPDX-License-Identifier: MIT
"""Child processes that run kernels: what one may do that runs somebody's code."""

from __future__ import annotations

import json
import os

import pytest

from hybrid.emulation.child import run_child

CHILD = "support.limited_child"


def test_a_limited_child_gets_little_memory_and_writes_no_large_file():
    ended = run_child(CHILD, [], "", 20, limited=True)
    found = json.loads(ended.out)
    assert (found["memory"], found["written"]) == (-1, -1)


@pytest.mark.needs("namespaces")
def test_a_limited_child_has_a_network_of_its_own():
    ended = run_child(CHILD, [], "", 20, limited=True)
    assert json.loads(ended.out)["network"] != os.readlink("/proc/self/ns/net")


def test_a_child_that_does_not_end_is_told_from_one_that_failed():
    assert run_child(CHILD, [{}], "", 1).status is None
    assert run_child("no_such_module", [], "", 20).status == 1
