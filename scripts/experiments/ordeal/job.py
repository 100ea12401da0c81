# SPDX-License-Identifier: MIT
"""Jobs of several ranks as users start them: wait for what they print, hit their processes, and see what stays.

What belongs to a job the kernel tells: processes have a variable in their environment that no other job has, and files lie in a
/dev/shm and a /tmp that only this job sees (of root, or where users may make namespaces; elsewhere files are not looked for).
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from experiments.common.frame import OURS
from experiments.start import ROOT
from hybrid.ranks.launcher import family_of, mpirun

LIMIT = 120.0  # seconds in which a job must do what is waited for, on a machine with much else to do
LEAVING = 30.0  # seconds in which all processes of a job must be gone that has ended
SHARED = "/dev/shm"  # noqa: S108 (where MPI libraries make their files)
_VARIABLE = "JOB_OF_EXPERIMENTS"
_OF_MPICH = re.compile(r"mpich_shm_|hydra_hwloc_xmlfile_")
_RANK = re.compile(r"^(?:PMI_RANK|OMPI_COMM_WORLD_RANK)=(\d+)$", re.MULTILINE)
# MPICH's and Open MPI's, and the shell above one on another node.
_DAEMONS = r"hydra_pmi_proxy|hydra_bstrap_proxy|prted"
_OF_LAUNCHERS = re.compile(rf"(\S*/)?({_DAEMONS}|mpiexec\S*|mpirun\S*|prte\w*) |\S*sh .*\b({_DAEMONS})\b")
_CODE = re.compile(r" \[([a-z0-9-]+)\]$")
_prctl, _PDEATHSIG = getattr(ctypes.CDLL(None), "prctl", None), 1  # of Linux


@cache
def open_mpi() -> bool:
    """Whether mpirun is Open MPI's, and not MPICH's."""
    return family_of(mpirun(1)[0]) == "Open MPI"


@cache
def _unshare() -> list[str]:
    """The beginning of a command that may mount what nobody else sees; empty where there is no leave for it."""
    words = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return [] if tried.returncode else words


def may_mount() -> bool:
    return bool(_unshare())


def has_own_tmp() -> bool:
    """Whether a job can have a /tmp of its own: not where what it runs lies there."""
    needed = [Path(path).resolve() for path in (sys.executable, sys.prefix, sys.base_prefix, ROOT)]
    return may_mount() and not any(path.is_relative_to("/tmp") for path in needed)  # noqa: S108


def private(mounts: Mapping[str, str]) -> list[str]:
    """The words before a command that sees these folders (to: from; or "size=…" for an empty tmpfs) where they are mounted."""
    script = "".join(
        f"mount -t tmpfs -o {source} tmpfs {target} && " if source.startswith("size=") else f"mount --bind {source} {target} && "
        for target, source in mounts.items()
    )
    return [*_unshare(), "sh", "-c", script + 'exec "$@"', "sh"] if mounts else []


@dataclass
class End:
    """How a job has ended. `left`: processes and files that stay, without those `of_mpich`."""

    code: int
    out: str
    err: str
    left: list[str] = field(default_factory=list)
    of_mpich: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """Ours on standard error, but for progress. Open MPI's launcher may put a blank before them."""
        return [line.strip() for line in self.err.splitlines() if OURS.match(line.strip())]

    @property
    def codes(self) -> list[str]:
        """Those at the ends of the lines; a line without one is kept as it is."""
        return [found[1] if (found := _CODE.search(line)) else line for line in self.lines]


class Job:
    """Started when made: Python with these arguments, as a program alone (0 ranks) or by mpirun.

    `shared_memory`: how large its /dev/shm is ("3m"), where that is to be one of its own.
    `words`: before the command instead of mpirun's, of a job that has this machine's /tmp. `limits`: of resources (RLIMIT_…).
    `ignoring`: signals that it is started to ignore. `limit`: seconds after which it is ended. `environment`: beside this
    process's, but for HYBRID_….
    """

    def __init__(
        self,
        arguments: Sequence[object],
        ranks: int = 0,
        *,
        folder: Path,
        shared_memory: str = "",
        words: Sequence[str] | None = None,
        limits: Mapping[str, int] | None = None,
        ignoring: Sequence[int] = (),
        errors: int | None = None,
        limit: float = LIMIT,
        **environment: str,
    ) -> None:
        self.ranks, self._token, self._limit = ranks, secrets.token_hex(8), limit
        self._shared = Path(SHARED, f"job-of-{os.getpid()}-{self._token}")
        self.temporary = folder / f"tmp-{self._token}"
        self.temporary.mkdir()
        mounts = {}
        if may_mount():
            if shared_memory:
                mounts[SHARED] = f"size={shared_memory}"
            elif os.access(SHARED, os.W_OK):
                self._shared.mkdir(mode=0o700)
                mounts[SHARED] = str(self._shared)
            if words is None and has_own_tmp():
                mounts["/tmp"] = str(self.temporary)  # noqa: S108
                environment = {"TMPDIR": "/tmp", **environment}  # noqa: S108
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (until it has ended)
        self.began = time.monotonic()
        launch = words if words is not None else mpirun(ranks) if ranks else []
        self._process = subprocess.Popen(
            [*private(mounts), *launch, sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err if errors is None else errors, cwd=ROOT,
            start_new_session=True, preexec_fn=lambda: _prepare(limits or {}, ignoring),
            env={**clean, "TMPDIR": str(self.temporary), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 _VARIABLE: self._token, **environment},
        )  # fmt: skip
        self._overdue = threading.Timer(limit, self.kill)
        self._overdue.daemon = True
        self._overdue.start()

    @property
    def launcher(self) -> int:
        """mpirun; of a job without one its process."""
        return self._process.pid

    @property
    def out(self) -> str:
        """What it has printed on standard output."""
        return _text(self._out.fileno())

    def wait_for(self, text: str) -> None:
        """Wait until there is a line with this text on standard output."""
        while text not in self.out.rpartition("\n")[0]:
            if self._process.poll() is not None and text not in self.out:
                raise AssertionError(f"{text!r} was not printed within {self._limit} s: {self.end()}")
            time.sleep(0.02)

    def wait(self, seconds: float) -> None:
        """TimeoutExpired where it has not ended after so many seconds."""
        self._process.wait(seconds)

    def processes(self) -> dict[int, list[int]]:
        """Of each rank its supervisor and, where there is one by now, its worker; without a launcher rank 0 has all."""
        ranks: dict[int, list[int]] = {}
        for process, environment in self._ours().items():
            rank = _RANK.search(environment)
            if (rank or process == self.launcher or _parent(process) == self.launcher) and _is_python(process):
                ranks.setdefault(int(rank[1]) if rank else 0, []).append(process)
        return {rank: sorted(pair, key=lambda process: _parent(process) in pair) for rank, pair in ranks.items()}

    def launchers(self) -> list[int]:
        """mpirun, and what it has started on each node to start ranks."""
        return [process for process in self._ours() if not _is_python(process)]

    def others(self) -> list[int]:
        """All of its processes but those of its launcher."""
        return sorted(process for process in self._ours() if not _OF_LAUNCHERS.match(_command(process)))

    def _ours(self) -> dict[int, str]:
        """The processes that have this job's token, and their environments. Of another user's the kernel tells nothing, nor of
        what has ended and waits for its parent."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = (entry / "environ").read_text(errors="replace").replace("\0", "\n")
                if f"{_VARIABLE}={self._token}\n" in environment:
                    found[int(entry.name)] = environment
        return found

    def send(self, signum: int, *processes: int) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signum)

    def kill(self) -> None:
        self.send(signal.SIGKILL, *self._ours())

    def end(self) -> End:
        """Wait for it, and for all of its processes but those of its launcher on other nodes, which are ended."""
        _await(self.launcher, self._limit)
        overdue, end = time.monotonic() - self.began > self._limit, self.ended(LEAVING)
        assert not overdue, f"it had not ended after {self._limit} s: {end}"
        return end

    def ended(self, leaving: float) -> End:
        """What stays of it after so many seconds, which is ended and removed, as is the job itself where it goes on."""
        deadline = time.monotonic() + leaving
        while (left := self.others()) and time.monotonic() < deadline:
            for process in left:
                _await(process, deadline - time.monotonic())
        told = [f"process {process}: {_command(process)[:60]}" for process in left]
        self.kill()
        self._process.wait()
        for folder in (self._shared, self.temporary):
            told += sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []
        of_mpich = [name for name in told if _OF_MPICH.match(name)]
        end = End(self._process.returncode, self.out, _text(self._err.fileno()), [], of_mpich)
        end.left = [name for name in told if name not in of_mpich]
        self.discard()
        return end

    def discard(self) -> None:
        """End it where it has not ended, and remove what it has left."""
        self._overdue.cancel()
        self.kill()
        self._process.wait()
        self._out.close()
        self._err.close()
        shutil.rmtree(self._shared, ignore_errors=True)
        shutil.rmtree(self.temporary, ignore_errors=True)


def _text(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).replace(b"\0", b"").decode(errors="replace")


def _prepare(limits: Mapping[str, int], ignoring: Sequence[int]) -> None:
    """In the child. It ends with its parent; what a shell starts in the background ignores interrupts, and so would this."""
    if _prctl is not None:
        _prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN if signum in ignoring else signal.SIG_DFL)
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))


def _await(process: int, seconds: float) -> None:
    """Wait until the process has ended, for so many seconds at most."""
    with suppress(OSError):  # it is gone
        descriptor = os.pidfd_open(process)
        select.select([descriptor], [], [], max(0.0, seconds))
        os.close(descriptor)


def _command(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def _parent(process: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _is_python(process: int) -> bool:
    with suppress(OSError):
        return "python" in Path(f"/proc/{process}/exe").readlink().name
    return False
