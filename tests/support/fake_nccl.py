# SPDX-License-Identifier: MIT
"""What stands for NCCL between CPUs: every rank lays its rows down as files, and takes the others'.

Sends and receives are asynchronous, as on a GPU: what arrives is written at any time after `receive`, which is here whenever any
event is asked for, and a send is complete when the other rank has received.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.spans import Span
from hybrid.devices.cpu import CpuDevice
from hybrid.plan import possible_transports
from hybrid.ranks.node_flags import pauses
from hybrid.transport.device_group import DeviceGroup


class Joint:
    """One rank's part. `log`: what was asked of it, in order."""

    team: Any = None  # of the communicator that was joined last

    def __init__(self, folder: str, rank: int, log: list[Any]) -> None:
        self.folder, self.rank, self.log = Path(folder), rank, log
        self._serial = 0
        self._moved: dict[tuple[int, int], int] = {}  # by sender and receiver, how many messages so far
        self._receiving: deque[Received] = deque()

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

    def send(self, matrix: np.ndarray, to: int) -> Any:
        self.log.append(("send", to, matrix.shape))
        there = self._message(self.rank, to)
        made = there.with_name(f"making-{there.name}")
        np.save(made, matrix)
        made.rename(there)
        return Sent(there)

    def receive(self, into: np.ndarray, source: int) -> Any:
        self.log.append(("receive", source, into.shape))
        event = Received(self._message(source, self.rank), into)
        self._receiving.append(event)
        return event

    def go_on(self) -> None:
        """Receive what has come, in the order in which that was asked for."""
        while self._receiving and self._receiving[0].path.exists():
            event = self._receiving.popleft()
            event.into[:] = np.load(event.path)
            event.path.unlink()
            event.complete = True

    def _message(self, sender: int, receiver: int) -> Path:
        number = self._moved[sender, receiver] = self._moved.get((sender, receiver), 0) + 1
        return self.folder / f"from-{sender}-to-{receiver}-{number}.npy"

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
        self._receiving.clear()
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)  # others may be about to write


class Sent:
    """The event of a send."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def complete(self) -> bool:
        return not self._path.exists()


class Received:
    """The event of a receive."""

    def __init__(self, path: Path, into: np.ndarray) -> None:
        self.path, self.into, self.complete = path, into, False


def stand_in(monkeypatch: Any) -> list[Any]:
    """CPUs can be joined from here on, and the transport nccl chosen; returns the log of what this rank's device is asked."""
    log: list[Any] = []
    joints: list[Joint] = []
    done = CpuDevice.done
    joining, hindrance = DeviceGroup.init_communicator, possible_transports.why_no_nccl

    def init_communicator(self: DeviceGroup, team: Any) -> None:
        monkeypatch.setattr(Joint, "team", team)
        joining(self, team)

    def unique_id(self: CpuDevice) -> str:
        folder = tempfile.mkdtemp(prefix=f"hybrid-joined-{os.getpid()}-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # another rank may write there after this one's last removal
        return folder

    def joined(self: CpuDevice, unique_id: str, rank: int, size: int) -> Joint:
        log.append("join")
        joints[:] = [Joint(unique_id, rank, log)]
        return joints[0]

    def allgather_rows(self: CpuDevice, joint: Joint, matrix: np.ndarray, rows_of: Sequence[Span], after: list[Any]) -> Any:
        events: list[Any] = []
        self._do("exchange", lambda: events.append(joint.allgather_rows(matrix, rows_of)))
        return events[0]

    def send(self: CpuDevice, joint: Joint, matrix: np.ndarray, to: int, after: list[Any]) -> Any:
        assert all(is_done(self, event) for event in after), "on a CPU, all that is sent is computed already"
        return joint.send(matrix, to)

    def receive(self: CpuDevice, joint: Joint, into: np.ndarray, source: int, after: list[Any]) -> Any:
        return joint.receive(into, source)

    def copy_received(self: CpuDevice, into: np.ndarray, source: np.ndarray, after: list[Any]) -> Any:
        assert all(event.complete for event in after), "a copy to pageable memory would block the host"
        return self._do("copy out", lambda: np.copyto(into, source))

    def is_done(self: CpuDevice, event: Any) -> bool:
        for joint in joints:
            joint.go_on()
        return event.complete if isinstance(event, Sent | Received) else done(self, event)

    ways = {
        "load_collectives": lambda self: log.append("prepare"),
        "unique_id": unique_id,
        "init_communicator": joined,
        "allgather_rows": allgather_rows,
        "send": send,
        "receive": receive,
        "copy_received": copy_received,
        "done": is_done,
    }
    for name, way in ways.items():
        monkeypatch.setattr(CpuDevice, name, way, raising=False)
    monkeypatch.setattr(DeviceGroup, "init_communicator", init_communicator)
    monkeypatch.setattr(possible_transports, "why_no_nccl", lambda plan: hindrance(replace(plan, device="cuda")))
    return log
