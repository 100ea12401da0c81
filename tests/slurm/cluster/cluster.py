# SPDX-License-Identifier: MIT
"""A real Slurm cluster on one machine, for tests: namespaces stand for nodes, device files for GPUs; and batch jobs on it.

All of it lives in namespaces of one process, so that nothing of it is seen outside, nothing of the machine's own Slurm
is touched, and the end of that process ends everything. It ends with the process that started it, however that ends.

By hand:  python tests/slurm/cluster/cluster.py [COMMAND…]     starts a cluster and runs COMMAND (a shell) on its login node
          python tests/slurm/cluster/cluster.py --why-not      says why there can be no cluster here, if so
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
PROGRAMS = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm", "ip": "iproute2"}
START_SECONDS = 120
COMMAND_SECONDS = 120


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
        self._place = tempfile.TemporaryDirectory(prefix="hybrid-cluster-", ignore_cleanup_errors=True)
        self.folder = Path(self._place.name)
        self.folder.chmod(0o755)
        _configure(self.folder)
        self.shared = self.folder / "shared"  # for jobs: the same folder on every node
        self.shared.mkdir()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.wait()
        self._place.cleanup()

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
        deadline = time.monotonic() + START_SECONDS
        while self._idle_nodes() < len(NODES):
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


# The nodes, and the files that tell Slurm about them

NETWORK = "10.77.0"
CONTROLLER = "login"  # where slurmctld runs and jobs are submitted
CORES = 32  # pretended ones, as on the nodes of Bridges


@dataclass(frozen=True)
class Node:
    name: str
    gpu: str = ""  # its type; empty: none
    gpus: int = 0


NODES = (
    Node("p100a", "p100", 2),  # Bridges
    Node("p100b", "p100", 2),
    Node("k40a", "k40c", 1),  # the Beowulf cluster
    Node("k40b", "k40c", 1),
    Node("v100", "v100-32", 4),  # Bridges-2
)
PARTITIONS = {"all": NODES, "GPU-small": NODES[:2], "GPU-shared": NODES[4:]}  # the first is the default


def address(index: int) -> str:
    """Of a node, by its place in NODES; -1: the controller's."""
    return f"{NETWORK}.{11 + index}"


def _configure(folder: Path) -> None:
    """Everything that cluster.sh expects in `folder`."""
    for name in ("state", "spool", "log", "run", "etc", "dev"):
        (folder / name).mkdir(parents=True)
    etc = folder / "etc"
    (etc / "slurm.conf").write_text(_slurm_conf(folder))
    (etc / "gres.conf").write_text(_gres_conf(folder))
    # 22.05 has no word for "none"; version 1 is content with a machine that shows it no control groups.
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (etc / "hosts").write_text(_hosts())
    (etc / "nodes").write_text("".join(f"{node.name} {address(index)}\n" for index, node in enumerate(NODES)))
    key = etc / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    for index in range(max(node.gpus for node in NODES)):
        # Slurm wants a device file for every GPU. These behave like /dev/null.
        os.mknod(folder / "dev" / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _hosts() -> str:
    names = [(address(-1), CONTROLLER), *((address(index), node.name) for index, node in enumerate(NODES))]
    return "127.0.0.1 localhost\n" + "".join(f"{number} {name}\n" for number, name in names)


def _gres_conf(folder: Path) -> str:
    return "AutoDetect=off\n" + "".join(
        f"NodeName={node.name} Name=gpu Type={node.gpu} File={folder}/dev/gpu[0-{node.gpus - 1}]\n" for node in NODES if node.gpus
    )


def _slurm_conf(folder: Path) -> str:
    lines = [
        "ClusterName=pretended",
        f"SlurmctldHost={CONTROLLER}({address(-1)})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/run/munge.socket",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd.%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd.%n.log",
        # A machine's cores are fewer than the nodes pretend to have, so nothing can be bound to them.
        "TaskPlugin=task/none",
        "SlurmdParameters=config_overrides",
        "ProctrackType=proctrack/linuxproc",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1",
        "GresTypes=gpu",
        "MpiDefault=none",
        "EnforcePartLimits=ALL",
        "KillWait=2",
        "MinJobAge=3600",  # finished jobs stay visible: there is no accounting database
        "JobCompType=jobcomp/filetxt",  # for sacct --completion
        f"JobCompLoc={folder}/log/jobs.txt",
        "JobRequeue=0",
        "ReturnToService=2",
    ]
    for index, node in enumerate(NODES):
        gpus = f" Gres=gpu:{node.gpu}:{node.gpus}" if node.gpus else ""
        lines.append(
            f"NodeName={node.name} NodeAddr={address(index)} Sockets=2 CoresPerSocket={CORES // 2} RealMemory=1000{gpus}"
        )
    for index, (name, nodes) in enumerate(PARTITIONS.items()):
        default = " Default=YES" if index == 0 else ""
        members = ",".join(node.name for node in nodes)
        lines.append(f"PartitionName={name} Nodes={members} MaxTime=08:00:00 DefaultTime=00:10:00 State=UP{default}")
    return "\n".join(lines) + "\n"


# Batch jobs: submit, wait within a limit, and read what they left

# How ranks of MPICH on two nodes start: srun by pmi2, for which addresses have to be short (slurm/job.sh), or mpirun.
STARTS = {"srun": {"SRUN_MPI": "pmi2", "MPIR_CVAR_CH4_NETMOD": "ofi"}, "mpirun": {"SRUN_MPI": "none"}}
JOB_SECONDS = 200.0  # most a job may take, waiting included, on a machine with much else to do; pytest allows a test 300
GONE = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")


@dataclass(frozen=True)
class Job:
    """A submitted job, or a whole array of them."""

    cluster: Cluster
    number: int

    def states(self) -> list[str]:
        return [entry["JobState"] for entry in self._shown()]

    def exit_codes(self) -> list[str]:
        """As sacct writes them: exit code and signal."""
        return [entry["ExitCode"] for entry in self._shown()]

    def _shown(self) -> list[dict[str, str]]:
        lines = self.cluster.run("scontrol", "--oneliner", "show", "job", str(self.number)).stdout.splitlines()
        return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines if line.strip()]

    def wait(self, seconds: float = JOB_SECONDS) -> list[str]:
        """The states in which all of it ended."""
        self.wait_until(lambda: all(state in GONE for state in self.states()), seconds)
        return self.states()

    def wait_for_output(self, text: str, seconds: float = JOB_SECONDS) -> None:
        self.wait_until(lambda: text in self.output(), seconds)

    def wait_until(self, holds: Callable[[], bool], seconds: float = JOB_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                states, output = self.states(), self.output()
                self.cancel()
                raise AssertionError(f"not within {seconds} s; the job is {states}\n{output}\n{self.cluster.logs()}")
            time.sleep(0.5)

    def succeed(self, seconds: float = JOB_SECONDS) -> str:
        """Wait for it, demand success, and return its output."""
        states = self.wait(seconds)
        assert set(states) == {"COMPLETED"}, f"{states} {self.exit_codes()}\n{self.output()}"
        return self.output()

    def cancel(self, *options: str) -> None:
        self.cluster.run("scancel", *options, str(self.number))

    def output(self) -> str:
        return "".join(path.read_text() for path in self._files("out"))

    def results(self) -> list[dict[str, Any]]:
        """Its JSON lines, of an array's tasks in their order."""
        return [json.loads(line) for path in self._files("jsonl") for line in path.read_text().splitlines()]

    def _files(self, ending: str) -> list[Path]:
        def task(path: Path) -> int:
            return int((re.search(r"_(\d+)\.", path.name) or [0, 0])[1])

        found = [*self.cluster.shared.glob(f"*-{self.number}.{ending}"), *self.cluster.shared.glob(f"*-{self.number}_*.{ending}")]
        return sorted(found, key=task)

    def processes(self) -> list[str]:
        """Those of its ranks, on all nodes: the number on the login node, and the command."""
        shown = self.cluster.run("pgrep", "--full", "--list-full", "^[^ ]*python[^ ]* -m hybrid", check=False).stdout
        return [line for line in shown.splitlines() if self._has(int(line.split()[0]))]

    def _has(self, process: int) -> bool:
        environment = self.cluster.run("cat", f"/proc/{process}/environ", check=False).stdout
        return f"SLURM_JOB_ID={self.number}" in environment.split("\0")


def submit(cluster: Cluster, script: str, *arguments: str | int, options: str = "", **environment: str) -> Job:
    """Submit a script of slurm/ from the shared folder, on nodes without real GPUs."""
    environment = {"HYBRID_SITE": "no-gpu", **environment}
    said = cluster.run("sbatch", "--parsable", *options.split(), ROOT / "slurm" / script, *map(str, arguments), **environment)
    return Job(cluster, int(said.stdout))


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
