# SPDX-License-Identifier: MIT
"""What the test cluster looks like: its nodes, and the files that tell Slurm about them."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

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


def write(folder: Path) -> None:
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
