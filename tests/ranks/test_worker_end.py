# SPDX-License-Identifier: MIT
"""What a supervisor says of a worker that ended, and with which code: the cause outweighs how the process died of it."""

from __future__ import annotations

import re
import resource
import signal

import pytest

from hybrid.ranks.worker_end import WorkerEnd

KILLED = -signal.SIGKILL
MISSING, STUCK, ASKED, INTERRUPTED = {"missing": "rank 1 on a"}, {"stuck": True}, {"asked": 8.0}, {"interrupted": 9.0}


@pytest.mark.parametrize(
    ("known", "code", "told", "exit_code"),
    [
        ({}, 3, "exited with code 3 before the other ranks were done", 3),
        ({}, 0, "exited with code 0 before the other ranks were done", 1),
        ({}, KILLED, r"was killed by SIGKILL \(out of memory\?\)", 137),
        ({}, -signal.SIGSEGV, "was killed by SIGSEGV", 139),
        (INTERRUPTED, KILLED, "interrupted", 1),
        (ASKED, KILLED, "was asked to end", 143),
        (ASKED | INTERRUPTED, 1, "was asked to end", 143),
        (STUCK, KILLED, r"showed no progress for 2 s and was ended \(.*\)", 1),
        (STUCK | ASKED, KILLED, r"showed no progress for 2 s and was ended \(.*\)", 143),
        (MISSING, KILLED, r"has heard nothing of rank 1 on a for 3\.5 s: .*", 1),
        (MISSING | STUCK, KILLED, r"has heard nothing of rank 1 on a for 3\.5 s: .*", 1),
    ],
)
def test_the_cause_is_told_and_has_its_code(known, code, told, exit_code):
    end = WorkerEnd(stall=2, unheard=3.5, shared_before=1 << 40, **known)
    assert re.fullmatch(told, end.told(code, starting=False))
    assert end.exit_code(code) == exit_code


def test_a_limit_of_processor_time_is_named_where_there_is_one(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (9, 9))
    told = WorkerEnd(stall=2, unheard=3.5, shared_before=1 << 40).told(KILLED, starting=False)
    assert told == "was killed by SIGKILL (out of memory, or beyond the 9 s of processor time that ulimit -t allows?)"


@pytest.mark.parametrize(
    ("variable", "code", "begins"),
    [
        ("OMPI_COMM_WORLD", -signal.SIGABRT, "\nhybrid: rank 2 on "),
        ("OMPI_COMM_WORLD", KILLED, "hybrid: rank 2 on "),
        ("OMPI_COMM_WORLD", 1, "hybrid: rank 2 on "),
        ("PMI", -signal.SIGABRT, "hybrid: rank 2 on "),
    ],
)
def test_the_line_is_one_of_its_own_where_open_mpi_was_printing(monkeypatch, variable, code, begins):
    for name in ("PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(f"{variable}_RANK", "2")
    monkeypatch.setenv(f"{variable}_SIZE", "3")
    line = WorkerEnd(stall=2, unheard=3.5, shared_before=1 << 40).line("multiply", "was asked", code)
    assert line.startswith(begins)
    assert line.endswith(", multiply: was asked\n")
