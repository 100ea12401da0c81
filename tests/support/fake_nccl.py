# SPDX-License-Identifier: MIT
"""What stands for NCCL between CPUs: every rank lays its rows down as files, and takes the others'."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.spans import Span
from hybrid.devices.cpu import CpuDevice
from hybrid.plan.plan import Plan
from hybrid.ranks.node_flags import pauses
from hybrid.transport.device_group import DeviceGroup


class Joint:
    """One rank's part. `log`: what was asked of it, in order."""

    team: Any = None  # of the communicator that was joined last

    def __init__(self, folder: str, rank: int, log: list[Any]) -> None:
        self.folder, self.rank, self.log = Path(folder), rank, log
        self._serial = 0

    def allgather_rows(self, matrix: np.ndarray, rows_of: Sequence[Span]) -> Any:
        serial, self._serial = self._serial, self._serial + 1
        self.log.append(("gather", serial))
        made = self.folder / f"making-{serial}-{self.rank}.npy"
        np.save(made, matrix[rows_of[self.rank].slice])
        made.rename(self._path(serial, self.rank))
        for other, rows in enumerate(rows_of):
            pause = pauses(self.team)
            while not self._path(serial, other).exists():
                next(pause)
            matrix[rows.slice] = np.load(self._path(serial, other))
        return ("gathered", serial)

    def _path(self, serial: int, rank: int) -> Path:
        return self.folder / f"{serial}-{rank}.npy"

    def check(self) -> None:
        self.log.append("check")

    def destroy(self) -> None:
        self._end("leave")

    def abort(self) -> None:
        self._end("abort")

    def _end(self, how: str) -> None:
        self.log.append(how)
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)  # others may be about to write


def stand_in(monkeypatch: Any) -> list[Any]:
    """CPUs can be joined from here on, and the transport nccl chosen; returns the log of what this rank's device is asked."""
    log: list[Any] = []
    joining, hindrance = DeviceGroup.init_communicator, Plan.why_no_nccl.fget

    def init_communicator(self: DeviceGroup, team: Any) -> None:
        monkeypatch.setattr(Joint, "team", team)
        joining(self, team)

    def joined(self: CpuDevice, unique_id: str, rank: int, size: int) -> Joint:
        log.append("join")
        return Joint(unique_id, rank, log)

    def allgather_rows(self: CpuDevice, joint: Joint, matrix: np.ndarray, rows_of: Sequence[Span], after: list[Any]) -> Any:
        events: list[Any] = []
        self._do("exchange", lambda: events.append(joint.allgather_rows(matrix, rows_of)))
        return events[0]

    ways = {
        "load_collectives": lambda self: log.append("prepare"),
        "unique_id": lambda self: tempfile.mkdtemp(prefix=f"hybrid-joined-{os.getpid()}-"),
        "init_communicator": joined,
        "allgather_rows": allgather_rows,
    }
    for name, way in ways.items():
        monkeypatch.setattr(CpuDevice, name, way, raising=False)
    monkeypatch.setattr(DeviceGroup, "init_communicator", init_communicator)
    monkeypatch.setattr(Plan, "why_no_nccl", property(lambda plan: hindrance(replace(plan, device="cuda"))))
    return log
