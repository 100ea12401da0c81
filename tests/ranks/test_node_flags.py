# SPDX-License-Identifier: MIT
"""Flags of a rank that is alone on its node, whose memory no other process has cleared."""

from __future__ import annotations

import numpy as np

import hybrid.host.page_memory
from hybrid.ranks.node_flags import NodeFlags
from hybrid.ranks.team import Team


def test_whatever_was_in_memory_no_flag_is_set_at_the_beginning(monkeypatch):
    def used(rows, columns, dtype):
        return np.full((rows, columns), np.iinfo(dtype).max, dtype)

    monkeypatch.setattr(hybrid.host.page_memory, "empty_matrix", used)
    flags = NodeFlags(Team(), 3)
    flags.new_round()
    assert [flags.is_set(0, flag) for flag in range(3)] == [False] * 3
    flags.set_flag(1)
    assert [flags.is_set(0, flag) for flag in range(3)] == [False, True, False]
    flags.new_round()
    assert not flags.is_set(0, 1)
