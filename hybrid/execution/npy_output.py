# SPDX-License-Identifier: MIT
"""C as a .npy file: written by all ranks of the root's node, each its rows, and named when it is whole."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, pieces
from hybrid.host.files import discard, publish, refuse_unwritable, temporary_name, write_whole, written_to
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team

_BYTES_AT_ONCE = 32 << 20


def refuse_unwritable_product(team: Team, problem: Problem, path: str) -> None:
    """As `refuse_unwritable`, with the size of the file, of which the root has the word."""
    refuse_unwritable(path, _file_size(problem) if team.rank == 0 else 0)


def _file_size(problem: Problem) -> int:
    return len(_header((problem.n, problem.m), np.dtype(problem.dtype))) + problem.n * problem.m * problem.item_size


def _header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    header = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(header, described)
    return header.getvalue()


def write_product(team: Team, plan: Plan, c: np.ndarray, path: str) -> None:
    """Every rank calls it; `c` is the gathered C on the root's node."""
    with team.phase("write", timed=False) as naming:
        naming.mine = temporary_name(path) if team.rank == plan.root else None
    beside: Path = naming.all[plan.root]
    try:
        with team.phase("write", timed=False), written_to(path, beside, _file_size(plan.problem)):
            if team.node == plan.root_node:
                _write_rows(team, beside, c, plan.c_rows_at_the_end(team.rank))
        with team.phase("write", timed=False), written_to(path, beside, _file_size(plan.problem)):
            if team.rank == plan.root:
                publish(beside, path)
    except BaseException:
        if team.rank == plan.root:
            discard(beside)
        raise


def _write_rows(team: Team, path: Path, matrix: np.ndarray, rows: Span) -> None:
    # Not through a memory map: a full disk is then an error and not a SIGBUS.
    header = _header(matrix.shape, matrix.dtype)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        write_whole(descriptor, header, 0)
        at = len(header) + rows.lo * matrix.shape[1] * matrix.itemsize
        data = memoryview(matrix[rows.slice].reshape(-1).view(np.uint8).data)
        for part in pieces(Span(0, len(data)), _BYTES_AT_ONCE):
            write_whole(descriptor, data[part.slice], at + part.lo)
            team.enter("write")
    finally:
        os.close(descriptor)
