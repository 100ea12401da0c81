# SPDX-License-Identifier: MIT
"""Jobs of several ranks as users start them: wait for what they print, hit their processes, and see what stays.

What belongs to a job the kernel tells: processes have a variable in their environment that no other job has, and files lie in a
/dev/shm and a /tmp that only this job sees (of root, or where users may make namespaces; elsewhere files are not looked for).
"""

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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.commands import ROOT, mpirun, own_lines

from experiments.bench.network import SLOW, Network, why_not  # noqa: F401 (network namespaces that stand for nodes)

LIMIT = 120.0  # seconds in which a job must do what a test waits for, on a machine with much else to do
LEAVING = 30.0  # seconds in which all processes of a job must be gone that has ended
_TOKEN = "TESTS_JOB"
_OF_MPICH = re.compile(r"mpich_shm_|hydra_hwloc_xmlfile_")
_RANK = re.compile(r"^(?:PMI_RANK|OMPI_COMM_WORLD_RANK)=(\d+)$", re.MULTILINE)
_DAEMON = re.compile(r"\b(hydra_pmi_proxy|hydra_bstrap_proxy|prted)\b")  # of launchers, one on each node
_CODE = re.compile(r" \[([a-z0-9-]+)\]$")
_SHARED = "/dev/shm"
_prctl, _PDEATHSIG = getattr(ctypes.CDLL(None), "prctl", None), 1  # of Linux


@cache
def open_mpi() -> bool:
    """Whether mpirun is Open MPI's, and not MPICH's."""
    said = subprocess.run([mpirun(1)[0], "--version"], capture_output=True, text=True, check=False).stdout
    return any(name in said for name in ("Open MPI", "OpenRTE", "PRRTE"))


@cache
def _unshare() -> list[str]:
    """The beginning of a command that may mount what nobody else sees; empty where there is no leave for it."""
    words = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return [] if tried.returncode else words


def private(mounts: Mapping[str, str]) -> list[str]:
    """The words before a command that sees these folders (to: from; or "size=…" for an empty tmpfs) where they are mounted."""
    script = "".join(
        f"mount -t tmpfs -o {source} tmpfs {target} && " if source.startswith("size=") else f"mount --bind {source} {target} && "
        for target, source in mounts.items()
    )
    return [*_unshare(), "sh", "-c", script + 'exec "$@"', "sh"] if mounts else []


def may_mount() -> bool:
    return bool(_unshare())


@dataclass
class End:
    """How a job has ended. `lines`: ours on standard error, but for progress; `left`: processes and files that stay, without
    those `of_mpich`."""

    code: int
    out: str
    err: str
    left: list[str] = field(default_factory=list)
    of_mpich: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return own_lines(self.err)

    @property
    def codes(self) -> list[str]:
        """Those at the ends of the lines; a line without one is kept as it is."""
        return [found[1] if (found := _CODE.search(line)) else line for line in self.lines]


class Job:
    """Started when made: Python with these arguments, as a program alone (0 ranks) or by mpirun.

    `shared_memory`: how large its /dev/shm is ("3m"), where that is to be another one than the machine's. `words`: before the
    command instead of mpirun's. `limits`: of resources (RLIMIT_…). `ignoring`: signals that it is started to ignore.
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
        **environment: str,
    ) -> None:
        self._token = secrets.token_hex(8)
        self._shared = Path(_SHARED, f"test-of-{os.getpid()}-{self._token}")
        self._temporary = folder / f"tmp-{self._token}"
        self._temporary.mkdir()
        mounts = {}
        if may_mount():
            if shared_memory:
                mounts[_SHARED] = f"size={shared_memory}"
            elif os.access(_SHARED, os.W_OK):
                self._shared.mkdir(mode=0o700)
                mounts[_SHARED] = str(self._shared)
            needed = [Path(path).resolve() for path in (sys.executable, sys.prefix, sys.base_prefix, ROOT)]
            if words is None and not any(path.is_relative_to("/tmp") for path in needed):
                mounts["/tmp"] = str(self._temporary)
                environment = {"TMPDIR": "/tmp", **environment}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
        self.began = time.monotonic()
        launch = words if words is not None else mpirun(ranks) if ranks else []
        self._process = subprocess.Popen(
            [*private(mounts), *launch, sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE if errors is None else errors, text=True,
            errors="replace", cwd=ROOT, start_new_session=True, preexec_fn=lambda: _prepare(limits or {}, ignoring),
            env={**clean, "TMPDIR": str(self._temporary), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 _TOKEN: self._token, **environment},
        )  # fmt: skip
        self._read = ""
        self._overdue = threading.Timer(LIMIT, self.kill)
        self._overdue.start()

    @property
    def launcher(self) -> int:
        """mpirun; of a job without one its process."""
        return self._process.pid

    def wait_for(self, text: str) -> str:
        """Read standard output until a line with this text, which is returned."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._read += line
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not printed within {LIMIT} s: {self.end()}")

    def processes(self) -> dict[int, list[int]]:
        """Of each rank its supervisor and its worker; without a launcher rank 0 has all."""
        ranks: dict[int, list[int]] = {}
        ours = self._ours()
        for process, environment in ours.items():
            rank = _RANK.search(environment)
            if (rank or process == self.launcher or _parent(process) == self.launcher) and _is_python(process):
                ranks.setdefault(int(rank[1]) if rank else 0, []).append(process)
        return {rank: sorted(pair, key=lambda process: _parent(process) in pair) for rank, pair in ranks.items()}

    def launchers(self) -> list[int]:
        """mpirun, and what it has started on each node to start ranks."""
        return [process for process in self._ours() if not _is_python(process)]

    def _ours(self) -> dict[int, str]:
        """The processes that have this job's token, and their environments. Of another user's the kernel tells nothing."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = (entry / "environ").read_text(errors="replace").replace("\0", "\n")
                if f"{_TOKEN}={self._token}\n" in environment:
                    found[int(entry.name)] = environment
        return found

    def send(self, signum: int, *processes: int) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signum)

    def wait(self, seconds: float) -> None:
        """TimeoutExpired where it has not ended after so many seconds."""
        self._process.wait(seconds)

    def kill(self) -> None:
        for process in self._ours():
            self.send(signal.SIGKILL, process)

    def end(self) -> End:
        """Wait for it, and for all of its processes but those of its launcher on other nodes, which are ended."""
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(text or "" for text in self._process.communicate()))
        reader.start()
        _await(self.launcher, LIMIT)
        left = [f"process {process}" for process in self._living(LEAVING)]
        overdue = time.monotonic() - self.began > LIMIT
        self.kill()
        reader.join()
        self._overdue.cancel()
        for folder in (self._shared, self._temporary):
            left += sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []
        of_mpich = [name for name in left if _OF_MPICH.match(name)]
        left = [name for name in left if name not in of_mpich]
        shutil.rmtree(self._shared, ignore_errors=True)
        end = End(self._process.returncode, self._read + said[0], said[1].replace("\0", ""), left, of_mpich)
        assert not overdue, f"it had not ended after {LIMIT} s: {end}"
        return end

    def _living(self, seconds: float) -> list[int]:
        """Those that are still there after so many seconds."""
        deadline = time.monotonic() + seconds
        while left := [process for process in self._ours() if not _DAEMON.search(_command(process))]:
            for process in left:
                _await(process, deadline - time.monotonic())
            if time.monotonic() > deadline:
                return sorted(left)
        return []

    def discard(self) -> None:
        """At the end of a test that may have failed."""
        self._overdue.cancel()
        self.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        shutil.rmtree(self._shared, ignore_errors=True)


Start = Callable[..., Job]


def _prepare(limits: Mapping[str, int], ignoring: Sequence[int]) -> None:
    """In the child. It ends with the tests; what a shell starts in the background ignores interrupts, and so would this."""
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
