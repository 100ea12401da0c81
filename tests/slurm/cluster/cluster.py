# SPDX-License-Identifier: MIT
"""A real Slurm cluster on one machine, for tests: namespaces stand for nodes, device files for GPUs.

All of it lives in namespaces of one process, so that nothing of it is seen outside, nothing of the machine's own Slurm
is touched, and the end of that process ends everything. It ends with the process that started it, however that ends.

By hand:  python tests/slurm/cluster/cluster.py [COMMAND…]     starts a cluster and runs COMMAND (a shell) on its login node
          python tests/slurm/cluster/cluster.py --why-not      says why there can be no cluster here, if so
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import configuration

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
PLACE = Path(tempfile.gettempdir())
PREFIX = "hybrid-cluster-"
PROGRAMS = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm", "ip": "iproute2"}
START_SECONDS = 30
COMMAND_SECONDS = 60


def why_not() -> str:
    """Why no cluster can be started here; empty if one can."""
    if sys.platform != "linux":
        return "a cluster of namespaces needs Linux"
    if os.geteuid() != 0:
        return "a cluster of namespaces needs root"
    missing = sorted({package for program, package in PROGRAMS.items() if _find(program) is None})
    if missing:
        return f"not installed: {', '.join(missing)} (install_slurm in .ci/run installs it)"
    refused = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "mount", "-t", "tmpfs", "tmpfs", "/run"],
        capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
    )  # fmt: skip
    return f"no namespaces here: {refused.stderr.strip()}" if refused.returncode else ""


def _find(program: str) -> str | None:
    return shutil.which(program, path=_path(os.environ))


def _path(environment: Mapping[str, str]) -> str:
    return f"{environment.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"


class Cluster:
    """A running cluster; use it in a `with`."""

    def __enter__(self) -> Cluster:
        place = _lock(PLACE)  # a folder that is not yet locked would look left behind to another test run
        remove_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=PLACE))
        self.folder.chmod(0o755)
        # The kernel unlocks it when this process ends: what can be locked was left behind.
        self._held = _lock(self.folder)
        os.close(place)
        try:
            configuration.write(self.folder)
            self.shared = self.folder / "shared"  # for jobs: the same folder on every node
            self.shared.mkdir()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        _stop(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._held)

    def _start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "HYBRID"))}
        with (self.folder / "log" / "cluster.log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    # The kernel ends it with this process, and all the others with it.
                    "setpriv", "--pdeathsig", "KILL",
                    "unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
                    HERE / "cluster.sh", self.folder, ROOT, sys.prefix, sys.base_prefix,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**environment, "PATH": _path(environment)},
            )  # fmt: skip
        (self.folder / "pid").write_text(str(self._process.pid))
        deadline = time.monotonic() + START_SECONDS
        while self._idle_nodes() < len(configuration.NODES):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"the cluster did not start:\n{self.logs()}")
            time.sleep(0.1)

    def _idle_nodes(self) -> int:
        if not (self.folder / "run" / "slurmctld.pid").exists():
            return 0
        seen = self.run("sinfo", "--noheader", "--Node", "--partition=all", "--states=idle", "--format=%N", check=False)
        return len(seen.stdout.split())

    def command(self, *command: str | Path) -> list[str]:
        """`command` as it is started from outside to run on the login node."""
        (first,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return ["nsenter", "--target", first, "--all", "env", f"--chdir={self.shared}", *map(str, command)]

    def environment(self, added: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of a command on the login node. Nothing of HYBRID_* and of Slurm is taken over from outside."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HYBRID_", "SLURM", "SBATCH"))}
        slurm = {"SLURM_CONF": str(self.folder / "etc" / "slurm.conf"), "PATH": _path(clean)}
        return {**clean, **slurm, "HYBRID_ROOT": str(ROOT), "VIRTUAL_ENV": sys.prefix, **(added or {})}

    def run(self, *command: str | Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node."""
        done = subprocess.run(
            self.command(*command),
            env=self.environment(environment), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted((self.folder / "log").iterdir()))


def remove_leftovers() -> None:
    """Stop and remove clusters whose test run is gone."""
    for folder in PLACE.glob(f"{PREFIX}*"):
        if folder.lstat().st_uid != os.geteuid():
            continue
        try:
            lock = _lock(folder, fcntl.LOCK_NB)
        except OSError:  # in use, or gone
            continue
        _stop(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path, how: int = 0) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _stop(folder: Path) -> None:
    """End the process in the pid file, if it is still this cluster's, and wait until it is gone."""
    try:
        pid = int((folder / "pid").read_text())
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + START_SECONDS
    while _is_of(pid, folder) and time.monotonic() < deadline:
        for process in (*_children(pid), pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:  # started by a test run that was killed
            time.sleep(0.1)


def _is_of(pid: int, folder: Path) -> bool:
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main(arguments: Sequence[str]) -> int:
    reason = why_not()
    if list(arguments) == ["--why-not"]:
        print(reason, end="\n" if reason else "")
        return 0
    if reason:
        print(reason, file=sys.stderr)
        return 1
    with Cluster() as cluster:
        command = cluster.command(*(arguments or ["bash"]))
        return subprocess.run(command, env=cluster.environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
