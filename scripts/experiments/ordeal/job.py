# SPDX-License-Identifier: MIT
"""Jobs of several ranks as users start them: wait for their output, send signals to their processes, and find what they leave.

A job's processes have a unique variable in their environment. Its files are in a /dev/shm and a /tmp of its own, which needs root
or user namespaces; elsewhere files are not looked for.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments.common.frame import OURS
from experiments.start import ROOT
from hybrid.ranks.launcher import family_of, mpirun

LIMIT = 120.0  # seconds that a job may take on a busy machine
LEAVING = 30.0  # seconds after a job's end in which all of its processes must be gone
SHARED = "/dev/shm"  # noqa: S108 (MPI libraries create files there)
_VARIABLE = "JOB_OF_EXPERIMENTS"
_OF_MPICH = re.compile(r"mpich_shm_|hydra_hwloc_xmlfile_")
_RANK = re.compile(r"^(?:PMI_RANK|OMPI_COMM_WORLD_RANK)=(\d+)$", re.MULTILINE)
# MPICH's and Open MPI's, and the shell that starts one on another node.
_DAEMONS = r"hydra_pmi_proxy|hydra_bstrap_proxy|prted"
_OF_LAUNCHERS = re.compile(rf"(\S*/)?({_DAEMONS}|mpiexec\S*|mpirun\S*|prte\w*) |\S*sh .*\b({_DAEMONS})\b")
_CODE = re.compile(r" \[([a-z0-9-]+)\]$")
_prctl, _PDEATHSIG = getattr(ctypes.CDLL(None), "prctl", None), 1  # Linux's


@cache
def open_mpi() -> bool:
    return family_of(mpirun(1)[0]) == "Open MPI"


@cache
def _unshare() -> list[str]:
    """The beginning of a command with mounts that no other process sees; empty without permission."""
    words = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return [] if tried.returncode else words


def may_mount() -> bool:
    return bool(_unshare())


def has_own_tmp() -> bool:
    """Whether a job can have its own /tmp: not if it runs files from there."""
    needed = [Path(path).resolve() for path in (sys.executable, sys.prefix, sys.base_prefix, ROOT)]
    return may_mount() and not any(path.is_relative_to("/tmp") for path in needed)  # noqa: S108


def private(mounts: Mapping[str, str]) -> list[str]:
    """The beginning of a command with these mounts (target: source folder, or "size=…" for an empty tmpfs)."""
    script = "".join(
        f"mount -t tmpfs -o {source} tmpfs {target} && " if source.startswith("size=") else f"mount --bind {source} {target} && "
        for target, source in mounts.items()
    )
    return [*_unshare(), "sh", "-c", script + 'exec "$@"', "sh"] if mounts else []


@dataclass
class End:
    """How a job has ended. `left`: processes and files that it has left, except those `of_mpich`."""

    code: int
    out: str
    err: str
    left: list[str]
    of_mpich: list[str]

    @property
    def lines(self) -> list[str]:
        """Our messages on standard error, without progress. Open MPI's launcher may put a blank before them."""
        return [line.strip() for line in self.err.splitlines() if OURS.match(line.strip())]

    @property
    def codes(self) -> list[str]:
        """The codes at the ends of the lines; a line without a code is kept."""
        return [found[1] if (found := _CODE.search(line)) else line for line in self.lines]


class Job:
    """Starts Python with these arguments, without a launcher (0 ranks) or by mpirun.

    `shared_memory`: the size ("3m") of a tmpfs for its /dev/shm. `words`: replace mpirun's before the command, and the job then
    uses this machine's /tmp. `limits`: of resources (RLIMIT_…). `ignoring`: signals ignored from the start. `limit`: seconds
    after which the job is killed. `environment`: added to this process's, without HYBRID_….
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
        """The process of mpirun, or of a job without one."""
        return self._process.pid

    @property
    def out(self) -> str:
        return _text(self._out.fileno())

    def wait_for(self, text: str) -> None:
        """Wait for a complete line with this text on standard output."""
        while text not in self.out.rpartition("\n")[0]:
            if self._process.poll() is not None and text not in self.out:
                raise AssertionError(f"{text!r} was not printed within {self._limit} s: {self.end()}")
            time.sleep(0.02)

    def has_ended(self, within: float) -> bool:
        """Whether the job ends within these seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
        return self._process.returncode is not None

    def processes(self) -> dict[int, list[int]]:
        """Each rank's supervisor, and its worker once it exists; without a launcher rank 0 has all."""
        ranks: dict[int, list[int]] = {}
        for process, environment in self._ours().items():
            rank = _RANK.search(environment)
            if (rank or process == self.launcher or _parent(process) == self.launcher) and _is_python(process):
                ranks.setdefault(int(rank[1]) if rank else 0, []).append(process)
        return {rank: sorted(pair, key=lambda process: _parent(process) in pair) for rank, pair in ranks.items()}

    def launchers(self) -> list[int]:
        """mpirun and its daemons on the nodes."""
        return [process for process in self._ours() if not _is_python(process)]

    def others(self) -> list[int]:
        """All processes of the job except its launcher's."""
        return sorted(process for process in self._ours() if not _OF_LAUNCHERS.match(_command(process)))

    def _ours(self) -> dict[int, str]:
        """The processes with this job's token, and their environments; without other users' processes and zombies."""
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
        """Wait for the job and all of its processes except its launcher's, which are killed."""
        in_time = self.has_ended(self._limit - (time.monotonic() - self.began))
        end = self.ended(LEAVING)
        assert in_time, f"it had not ended after {self._limit} s: {end}"
        return end

    def ended(self, leaving: float) -> End:
        """Find what the job has left after `leaving` seconds; then kill its processes, itself if need be, and remove its
        files."""
        deadline = time.monotonic() + leaving
        while (still := self.others()) and time.monotonic() < deadline:
            time.sleep(0.05)
        told = [f"process {process}: {_command(process)[:60]}" for process in still]
        self.kill()
        self._process.wait()
        for folder in (self._shared, self.temporary):
            told += sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []
        of_mpich = [name for name in told if _OF_MPICH.match(name)]
        left = [name for name in told if name not in of_mpich]
        end = End(self._process.returncode, self.out, _text(self._err.fileno()), left, of_mpich)
        self.discard()
        return end

    def discard(self) -> None:
        """Kill the job, and remove its files."""
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
    """In the child: die with the parent, and reset SIGINT and SIGHUP, which a shell's background processes ignore."""
    if _prctl is not None:
        _prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN if signum in ignoring else signal.SIG_DFL)
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))


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
