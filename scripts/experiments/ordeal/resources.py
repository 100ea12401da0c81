# SPDX-License-Identifier: MIT
"""Resources that run out while a job runs: in namespaces and control groups that no other process sees."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.ordeal.job import SHARED_MEMORY, Job
from hybrid.ranks.launcher import mpirun

_MIB = 1 << 20
_DISK, _SHARED = 160, 420  # MiB: the matrices of a job fit, and not much more
_MEMORY = (150, 500)  # MiB that a job may take: fewer than it would
_GROUPS = Path("/sys/fs/cgroup")
_AT_ONCE = bytes(4 * _MIB)
_EMPTIED = 3.0  # seconds in which the processes of an ended job leave its control group


@dataclass
class Place:
    """Where a job is started, and what happens to it there. `launch`: the words before its command."""

    launch: Sequence[str]
    strike: Callable[[Job], None] = lambda job: None


Resource = Callable[[int, str, random.Random], AbstractContextManager[Place]]  # of so many ranks, with a folder of its own


@contextmanager
def full_disk(ranks: int, folder: str, dice: random.Random) -> Iterator[Place]:
    """The folder's disk is filled by others."""
    yield Place(_mounted(folder, _DISK, ranks), lambda job: _fill(job, folder))


@contextmanager
def full_shared_memory(ranks: int, folder: str, dice: random.Random) -> Iterator[Place]:
    """The node's shared memory is filled by others."""
    yield Place(_mounted(SHARED_MEMORY, _SHARED, ranks), lambda job: _fill(job, SHARED_MEMORY))


@contextmanager
def full_memory(ranks: int, folder: str, dice: random.Random) -> Iterator[Place]:
    """The kernel ends a process of the job when there is no memory left."""
    first_version = (_GROUPS / "memory").is_dir()
    group = (_GROUPS / "memory" if first_version else _GROUPS) / f"ordeal-{os.getpid()}"
    group.mkdir()
    try:
        most = group / ("memory.limit_in_bytes" if first_version else "memory.max")
        most.write_text(str(dice.randint(*_MEMORY) * _MIB))
        join = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        yield Place(["sh", "-c", join, str(group), *_mpirun(ranks)])
    finally:
        deadline = time.monotonic() + _EMPTIED
        while True:
            try:
                group.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


RESOURCES: dict[str, Resource] = {
    "full disk": full_disk,
    "full /dev/shm": full_shared_memory,
    "full memory": full_memory,
}


def why_not() -> dict[str, str]:
    """Of each resource why it cannot be taken away here; empty where it can."""
    mounts = _tried(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
    return {"full disk": mounts, "full /dev/shm": mounts, "full memory": _no_groups()}


def _tried(words: Sequence[str]) -> str:
    if shutil.which(words[0]) is None:
        return f"needs {words[0]}"
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return " ".join(done.stderr.split()) if done.returncode else ""


def _no_groups() -> str:
    try:
        with full_memory(0, "", random.Random(0)) as place:  # noqa: S311 (no secret)
            return _tried([*place.launch, "true"])
    except OSError as error:
        return f"needs leave to make control groups: {error.strerror}"


def _mpirun(ranks: int) -> list[str]:
    return mpirun(ranks) if ranks else []


def _mounted(folder: str, size: int, ranks: int) -> list[str]:
    mount = f'mount -t tmpfs -o size={size}m tmpfs "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, folder, *_mpirun(ranks)]


def _fill(job: Job, folder: str) -> None:
    """As the job sees the folder."""
    with suppress(OSError), open(f"/proc/{job.launcher}/root{folder}/others", "wb", buffering=0) as file:  # until it is full
        while file.write(_AT_ONCE):
            pass
