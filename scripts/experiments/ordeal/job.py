# SPDX-License-Identifier: MIT
"""A job of several ranks as its processes: which of them are workers and supervisors, and what stays when they have ended."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hybrid.diagnostics.leftovers import candidates, may_be_used
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


RESOURCES: dict[str, Resource] = {"full disk": full_disk, "full /dev/shm": full_shared_memory, "full memory": full_memory}


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


_RANK_VARIABLES = ("PMI_RANK=", "OMPI_COMM_WORLD_RANK=")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where MPI libraries make their files)
_OF_MPI = re.compile(rf" {SHARED_MEMORY}/(mpich_shm|sm_segment|vader_segment)")
_OF_LAUNCHERS = ("hydra", "mpiexec", "mpirun", "prte")  # MPICH's and Open MPI's
_LEAVING = 10.0  # seconds that processes and files of an ended job may take to go
_CLOCK = 0.02  # seconds by which the times of files may be behind the clock


class Job:
    """Started when made. `limits`: the resources that its processes get, by name (RLIMIT_…). `launch`: the words before the
    command, where they are not those of mpirun."""

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        environment: Mapping[str, str],
        limits: Mapping[str, int],
        launch: Sequence[str] | None = None,
    ) -> None:
        self.ranks = ranks
        if launch is None:
            launch = mpirun(ranks) if ranks else []
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (until the trial is over)
        self.began, self._began_at = time.monotonic(), time.time() - _CLOCK
        self._process = subprocess.Popen(
            [*launch, sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=partial(_prepare, limits),
        )
        self._known: set[int] = {self._process.pid}

    @property
    def launcher(self) -> int:
        return self._process.pid

    def ended(self, within: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
            return True
        return False

    def rank_processes(self) -> dict[int, list[int]]:
        """Of each rank its supervisor and, where there is one by now, its worker."""
        parents = _parents()
        ours = {self._process.pid}
        while more := {child for child, parent in parents.items() if parent in ours} - ours:
            ours |= more
        self._known |= ours
        ranks: dict[int, list[int]] = {}
        for process in sorted(ours):
            rank = _rank_of(process) if self.ranks else 0
            if rank is not None and _runs_python(process):
                ranks.setdefault(rank, []).append(process)
        return {rank: sorted(processes, key=lambda process: parents[process] in processes) for rank, processes in ranks.items()}

    def send(self, signum: int, processes: Sequence[int]) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signum)

    def only_launcher_runs(self) -> bool:
        """Of a job that has not ended: whether nothing of it is there but processes of its launcher."""
        self.rank_processes()
        return not self._running()

    def starts_mpi(self) -> bool:
        """Whether files that MPI makes for some rank may have names still, or are not made yet: until all ranks have started."""
        workers = [processes[-1] for processes in self.rank_processes().values()]
        return self.ranks > 1 and (len(workers) < self.ranks or not all(map(_has_started, workers)))

    def remains(self) -> list[str]:
        """Processes and files that stay after its end, those of its launcher not counted. The processes are ended then."""
        deadline = time.monotonic() + _LEAVING
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.end()
        return left

    def _running(self) -> list[int]:
        """The processes but for those of its launcher, of which one on another node has a shell above it."""
        others = [process for process in self._known if _is_running(process) and not _is_of_launcher(process)]
        return [process for process in others if not any(map(_is_of_launcher, _children(process)))]

    def _left(self) -> list[str]:
        processes = [f"process {process}: {_command(process)}" for process in self._running()]
        files = sorted(path for path in candidates() if self._may_be_ours(path))
        return processes + [str(path) for path in files if not may_be_used(path)]  # another job may be under way

    def _may_be_ours(self, path: Path) -> bool:
        with suppress(FileNotFoundError):
            return path.stat().st_mtime >= self._began_at
        return False

    def end(self) -> None:
        self.rank_processes()
        self.send(signal.SIGKILL, sorted(self._known))
        self._process.wait()

    @property
    def exit_code(self) -> int:
        return self._process.returncode

    def said(self) -> tuple[str, str]:
        """Standard output and standard error."""
        texts = []
        for stream in (self._out, self._err):
            stream.seek(0)
            texts.append(stream.read().replace(b"\0", b"").decode(errors="replace"))  # Open MPI's launcher ends texts with 0
            stream.close()
        return texts[0], texts[1]


def _prepare(limits: Mapping[str, int]) -> None:
    """The child. A shell's background jobs ignore interrupts, and what nohup has started hangups, and so would this."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError, IndexError):
                parents[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
    return parents


def _is_running(process: int) -> bool:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _rank_of(process: int) -> int | None:
    with suppress(OSError):
        for variable in Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0"):
            if variable.startswith(_RANK_VARIABLES):
                return int(variable.partition("=")[2])
    return None


def _has_started(worker: int) -> bool:
    """Whether MPI has its memory, and MPICH's has lost its name."""
    with suppress(OSError):
        maps = Path(f"/proc/{worker}/maps").read_text(errors="replace")
        of_mpi = [line for line in maps.splitlines() if _OF_MPI.search(line)]
        return bool(of_mpi) and not any("mpich_shm" in line and not line.endswith("(deleted)") for line in of_mpi)
    return False


def _is_of_launcher(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip().startswith(_OF_LAUNCHERS)
    return False


def _command(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace").replace("\0", " ").strip()[:60]
    return "ended meanwhile"


def _children(process: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def _runs_python(process: int) -> bool:
    with suppress(OSError):
        return "python" in os.path.basename(os.readlink(f"/proc/{process}/exe"))
    return False
