# SPDX-License-Identifier: MIT
"""Network namespaces of this machine that stand for nodes: each has one link to a switch, of a chosen rate both ways."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from experiments.common.frame import ended, told_error
from hybrid.errors import HybridError, one_line
from hybrid.ranks.launcher import family_of, mpirun

_IP = shutil.which("ip") or "/sbin/ip"
# Of tc's token bucket: what may pass at once, and how long a packet may wait.
_BUCKET = ("burst", "256kb", "latency", "50ms")
_SLOW_BUCKET = ("burst", "1600", "latency", "30s")  # one packet after the other, and none is lost
SLOW = "64kbit"  # on links of this rate a job's start takes seconds, most of them amid messages
_NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"')  # then a host's name, and a command
# `ssh ADDRESS WORD…` for mpirun: the words are a shell's, as ssh has it.
_LAUNCHER = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
name=PREFIX$((${1##*.} - 1)); shift
exec ip netns exec "$name" unshare --uts sh -c 'hostname "$0"; eval "$*"' "$name" "$@"
"""
# The only way to another node is the link. Without "put" ScaLAPACK's pdgemm is faster, and MPICH 4.0 does not hang at its end.
_TRANSPORTS = {
    "MPICH": {
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "eth0",
        "UCX_TCP_PUT_ENABLE": "n",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "eth0",
    },
    # Its han module's broadcasts over TCP take most of a minute.
    "Open MPI": {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
        "OMPI_MCA_btl_tcp_if_include": "eth0",
        "OMPI_MCA_coll": "^han",
        "OMPI_MCA_osc": "^ucx",
    },
}


class Network:
    """While in the `with`, there are so many nodes. `rate`: of each link, as tc writes it (1gbit); empty: not limited."""

    def __init__(self, nodes: int, rate: str, ranks_per_node: int = 1) -> None:
        self._ranks_per_node, self.ranks = ranks_per_node, nodes * ranks_per_node
        self._prefix = f"hn{os.getpid()}-"
        self.names = [f"{self._prefix}{number}" for number in range(nodes)]
        self._switch, self._rate = f"{self._prefix}switch", rate
        self._folder = Path(tempfile.mkdtemp(prefix=f"hybrid-nodes-{os.getpid()}-"))

    def __enter__(self) -> Network:
        try:
            launcher = self._folder / "launcher"
            launcher.write_text(_LAUNCHER.replace("PREFIX", self._prefix))
            launcher.chmod(0o700)
            _ip("netns", "add", self._switch)
            self._in(self._switch, "ip", "link", "add", "switch", "type", "bridge")
            self._in(self._switch, "ip", "link", "set", "switch", "up")
            for number, name in enumerate(self.names):
                self._connect(name, number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self, name: str, number: int) -> None:
        port = f"port{number}"
        _ip("netns", "add", name)
        _ip("link", "add", port, "netns", self._switch, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._in(self._switch, "ip", "link", "set", port, "master", "switch", "up")
        self._in(name, "ip", "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0")
        self._in(name, "ip", "link", "set", "lo", "up")
        self._in(name, "ip", "link", "set", "eth0", "up")
        if self._rate:
            for where, device in ((name, "eth0"), (self._switch, port)):
                self._in(where, "tc", "qdisc", "add", "dev", device, "root", *_bucket(self._rate))

    def __exit__(self, *failure: object) -> None:
        for name in (*self.names, self._switch):
            with suppress(HybridError):
                _ip("netns", "del", name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def launch(self) -> tuple[list[str], dict[str, str]]:
        """The words before a command with which mpirun starts it on all nodes, and their environment."""
        words, first, ssh = mpirun(self.ranks), self.names[0], str(self._folder / "launcher")
        family = family_of(words[0])
        hosts = ",".join(f"10.78.0.{number + 1}:{self._ranks_per_node}" for number in range(len(self.names)))
        if family == "MPICH":
            words += ["-launcher", "ssh", "-launcher-exec", ssh, "-iface", "eth0", "-hosts", hosts]
        else:
            words += ["--prtemca", "plm_ssh_agent", ssh, "--prtemca", "prte_if_include", "eth0", "--host", hosts]
        # What Open MPI's launcher leaves in the temporary folder when it is killed goes with this one.
        return [_IP, "netns", "exec", first, *_NAMED, first, *words], {**_TRANSPORTS[family], "TMPDIR": str(self._folder)}

    def run(self, command: Sequence[str], limit: float) -> str:
        """Standard output of a command that mpirun has started on all nodes."""
        words, more = self.launch()
        try:
            code, out, err = ended([*words, *command], limit, env={**os.environ, **more}, cwd=self._folder)
        finally:
            for name in self.names:  # the launcher's processes on the nodes do not all end with it
                for process in _ip("netns", "pids", name).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)
        if code is None:
            raise HybridError(f"{' '.join(command[:4])} had not ended after {limit:.0f} s")
        if code:
            raise HybridError(f"{' '.join(command[:4])} failed: {told_error(err, out)}")
        return out

    def bytes_received(self) -> Mapping[str, int]:
        """By each node, from the beginning."""
        counter = "/sys/class/net/eth0/statistics/rx_bytes"
        return {name: int(self._in(name, "cat", counter)) for name in self.names}

    @staticmethod
    def _in(name: str, *command: str) -> str:
        return _ip("netns", "exec", name, *command)


def why_not() -> str:
    """Why there can be no such network here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if missing := [program for program in ("ip", "tc", "unshare") if shutil.which(program) is None]:
        return f"needs {', '.join(missing)} (iproute2, util-linux)"
    if family_of(mpirun(1)[0]) not in _TRANSPORTS:
        return f"needs an mpirun of {' or '.join(_TRANSPORTS)}"
    try:
        with Network(1, ""):
            return ""
    except HybridError as refused:
        return one_line(refused)


def _bucket(rate: str) -> tuple[str, ...]:
    return ("tbf", "rate", rate, *(_SLOW_BUCKET if rate == SLOW else _BUCKET))


def _ip(*words: str) -> str:
    done = subprocess.run([_IP, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HybridError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
