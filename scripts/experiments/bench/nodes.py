# SPDX-License-Identifier: MIT
"""Network namespaces that stand for nodes, and products between them beside MPI_Allgatherv and ScaLAPACK."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np

import hybrid
from experiments.common import frame
from experiments.start import ROOT, SCRIPTS
from hybrid.core.problem import block
from hybrid.errors import DeviceUnavailable, HybridError, one_line
from hybrid.ranks.launcher import family_of, mpirun

# Network namespaces as nodes: each has one link to a switch, of the same rate both ways.
_IP = shutil.which("ip") or "/sbin/ip"
# tc's token bucket filter: the burst size, and the longest wait of a packet.
_BUCKET = ("burst", "256kb", "latency", "50ms")
_SLOW_BUCKET = ("burst", "1600", "latency", "30s")  # one packet at a time, and none is lost
SLOW = "64kbit"  # at this rate a job's start takes seconds, most of them within messages
_NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"')  # is followed by a host's name and a command
# `ssh ADDRESS WORD…` for mpirun: a shell evaluates the words, as with ssh.
_LAUNCHER = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
name=PREFIX$((${1##*.} - 1)); shift
exec ip netns exec "$name" unshare --uts sh -c 'hostname "$0"; eval "$*"' "$name" "$@"
"""
# Other nodes are reachable only by the link. Without "put" ScaLAPACK's pdgemm is faster, and MPICH 4.0 does not hang at its end.
_TRANSPORTS = {
    "MPICH": {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "UCX_TCP_PUT_ENABLE": "n", "FI_PROVIDER": "tcp",
              "FI_TCP_IFACE": "eth0"},
    # Broadcasts of the han module take most of a minute over TCP.
    "Open MPI": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_btl_tcp_if_include": "eth0",
                 "OMPI_MCA_coll": "^han", "OMPI_MCA_osc": "^ucx"},
}  # fmt: skip


class Network:
    """A context with nodes. `rate`: of each link, in tc's notation (1gbit); empty: unlimited."""

    def __init__(self, nodes: int, rate: str) -> None:
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
                port = f"port{number}"
                _ip("netns", "add", name)
                _ip("link", "add", port, "netns", self._switch, "type", "veth", "peer", "name", "eth0", "netns", name)
                self._in(self._switch, "ip", "link", "set", port, "master", "switch", "up")
                self._in(name, "ip", "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0")
                self._in(name, "ip", "link", "set", "lo", "up")
                self._in(name, "ip", "link", "set", "eth0", "up")
                bucket = _SLOW_BUCKET if self._rate == SLOW else _BUCKET
                for where, device in ((name, "eth0"), (self._switch, port)) if self._rate else ():
                    self._in(where, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", self._rate, *bucket)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        for name in (*self.names, self._switch):
            with suppress(HybridError):
                _ip("netns", "del", name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def launch(self) -> tuple[list[str], dict[str, str]]:
        """The words, and their environment, with which mpirun starts a command on all nodes."""
        words, first, ssh = mpirun(len(self.names)), self.names[0], str(self._folder / "launcher")
        family = family_of(words[0])
        hosts = ",".join(f"10.78.0.{number + 1}:1" for number in range(len(self.names)))
        if family == "MPICH":
            words += ["-launcher", "ssh", "-launcher-exec", ssh, "-iface", "eth0", "-hosts", hosts]
        else:
            words += ["--prtemca", "plm_ssh_agent", ssh, "--prtemca", "prte_if_include", "eth0", "--host", hosts]
        # TMPDIR: what a killed launcher of Open MPI leaves is removed with the folder.
        return [_IP, "netns", "exec", first, *_NAMED, first, *words], {**_TRANSPORTS[family], "TMPDIR": str(self._folder)}

    def run(self, command: Sequence[str], limit: float) -> str:
        """Run a command on all nodes by mpirun; returns its standard output."""
        words, more = self.launch()
        try:
            code, out, err = frame.ended([*words, *command], limit, env={**os.environ, **more}, cwd=self._folder)
        finally:
            for name in self.names:  # not all of the launcher's processes on the nodes end with it
                for process in _ip("netns", "pids", name).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)
        if code is None:
            raise HybridError(f"{' '.join(command[:4])} had not ended after {limit:.0f} s")
        if code:
            raise HybridError(f"{' '.join(command[:4])} failed: {frame.told_error(err, out)}")
        return out

    def bytes_received(self) -> Mapping[str, int]:
        """By node, since the beginning."""
        counter = "/sys/class/net/eth0/statistics/rx_bytes"
        return {name: int(self._in(name, "cat", counter)) for name in self.names}

    @staticmethod
    def _in(name: str, *command: str) -> str:
        return _ip("netns", "exec", name, *command)


def why_not() -> str:
    """Why such a network is impossible here; empty if it is possible."""
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


def _ip(*words: str) -> str:
    done = subprocess.run([_IP, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HybridError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


SHAPES = {
    "square": (4000, 4000, 4000),
    "long sums": (500, 20000, 500),
    "many rows": (20000, 500, 500),
    "many columns": (500, 500, 20000),
}
OURS, PDGEMM = "ours, checked", "pdgemm, C stays"
PROGRAMS = {  # their names in the table; the command's module, or arguments of this one
    OURS: ("hybrid.matmul",),
    "Allgatherv": ("allgather",),
    f"{OURS}, C stays": ("rows",),
    f"{OURS}, 2-D blocks, C stays": ("blocks",),
    "Allgatherv, C stays": ("stays",),
    **{f"{PDGEMM}, blocks of {side}": ("pdgemm", str(side)) for side in (64, 128, 256)},
}
_LIMIT = 300.0  # seconds that a run may take
_ONE_THREAD = ("OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1", "HYBRID_THREADS=1")


class Nodes(frame.Experiment):
    """Is the runner as fast as the network between nodes? python scripts/bench.py nodes [--nodes 2 4] [--rate 1gbit]

    Network namespaces act as nodes, with one rank and thread on each. In turn run our programs, whose products are checked, the
    simplest ones of mpi4py and NumPy (MPI_Allgatherv of B, a product, MPI_Gatherv of C), and ScaLAPACK's pdgemm if installed;
    with C at rank 0, or operands and C distributed. Shown are a product's seconds and the bytes that the busiest node received.
    Needs root.
    """

    command, again = "bench_nodes", "python scripts/bench.py nodes"
    options = (
        frame.option("--nodes", nargs="+", type=frame.positive, default=[2, 4], metavar="P", help="how many (2 4)"),
        frame.option("--rate", default="1gbit", help='of each link, both ways, as tc writes it; "" for no limit (1gbit)'),
        frame.option("--shapes", nargs="+", choices=tuple(SHAPES), default=["square"], metavar="SHAPE", help=", ".join(SHAPES)),
        frame.option("--pairs", type=frame.positive, default=3, help="how often each program runs (3)"),
    )

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        if reason := why_not():
            raise DeviceUnavailable(f"namespaces cannot stand for nodes here: {reason}")
        import mpi4py

        mpi4py.rc.initialize = False  # lines name the MPI, but this process is no rank
        import mpi4py.MPI

        programs = list(PROGRAMS)
        try:
            _scalapack()
        except HybridError as missing:
            print(f"bench_nodes: {missing}: it is not measured", file=sys.stderr)
            programs = [name for name in programs if not name.startswith(PDGEMM)]
        for nodes in options.nodes:
            with Network(nodes, options.rate) as network:
                for shape in options.shapes:
                    runs: dict[str, list[tuple[float, int]]] = {name: [] for name in programs}
                    for _ in frame.shown(range(options.pairs), f"{nodes} nodes, {shape}"):
                        for name, of_program in runs.items():
                            before = network.bytes_received()
                            seconds = _seconds(network, PROGRAMS[name], SHAPES[shape])
                            of_program.append((seconds, max(n - before[node] for node, n in network.bytes_received().items())))
                    for name, of_program in runs.items():
                        times, received = zip(*of_program, strict=True)
                        about = {"nodes": nodes, "rate": options.rate, "shape": shape, "sizes": SHAPES[shape], "program": name}
                        yield {**about, "seconds": frame.spread(times), "received": int(statistics.median(received))}

    def blocks(self) -> Iterator[frame.Table]:
        rows = []
        for line in self.lines:
            shape = f"{line['shape']}, {'×'.join(map(str, line['sizes']))}"
            about = [str(line["nodes"]), line["rate"] or "no limit", shape, line["program"]]
            rows.append([*about, f"{line['seconds']['median']:.2f}", f"{line['received'] / 1e6:.0f} MB"])
        yield frame.Table(("nodes", "links", "shape", "program", "seconds", "busiest node received"), "llllrr", rows)


def _seconds(network: Network, program: Sequence[str], sizes: Sequence[int]) -> float:
    """The seconds of a product by a program on all nodes."""
    words, python = [*program, *map(str, sizes)], ["env", *_ONE_THREAD, f"PYTHONPATH={ROOT}:{SCRIPTS}", sys.executable, "-m"]
    if program == PROGRAMS[OURS]:
        line = network.run([*python, *words, "--device", "cpu", "--fill", "uniform", "--json", "-"], _LIMIT)
        return float(json.loads(line)["total"]["median"])
    guard = [] if program[0] == "pdgemm" else ["mpi4py", "-m"]
    return float(network.run([*python, *guard, "experiments.bench.nodes", *words], _LIMIT))


def _grid_of(processes: int) -> tuple[int, int]:
    """The grid of processes nearest to a square."""
    rows = max(divisor for divisor in range(1, math.isqrt(processes) + 1) if processes % divisor == 0)
    return rows, processes // rows


def on_nodes(way: str, n: int, l: int, m: int) -> None:
    """A product of distributed operands. Rank 0 prints its seconds.

    allgather: the simplest correct program: rows of A and B, Allgatherv of B, Gatherv of C at rank 0; stays: without the Gatherv.
    rows: hybrid.multiply of row blocks, checked, with C distributed; blocks: of blocks of a grid.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    random = np.random.default_rng(comm.rank)

    def rows_of(height: int, width: int) -> np.ndarray:
        return random.random((len(block(height, comm.size, comm.rank)), width))

    def block_of(height: int, width: int) -> hybrid.Block2D:
        down, across = _grid_of(comm.size)
        row, column = divmod(comm.rank, across)
        rows, columns = block(height, down, row), block(width, across, column)
        array = random.random((len(rows), len(columns)))
        return hybrid.Block2D(array, (height, width), [(rows.lo, rows.hi)], [(columns.lo, columns.hi)])

    def gathered(a: np.ndarray, b: np.ndarray) -> None:
        of_a, of_b = ([m * len(block(length, comm.size, rank)) for rank in range(comm.size)] for length in (n, l))
        comm.Allgatherv(b, [whole, of_b])
        part = a @ whole
        if way == "allgather":
            comm.Gatherv(part, [c, of_a])

    def multiplied(a: Any, b: Any) -> None:
        hybrid.multiply(a, b, comm=comm, device="cpu")

    made: Any = rows_of
    multiply: Callable[[Any, Any], None] = gathered
    if way in ("rows", "blocks"):
        made, multiply = block_of if way == "blocks" else lambda *shape: hybrid.RowBlock(rows_of(*shape)), multiplied
        few = made(comm.size, comm.size)
        multiply(few, few)  # warm-up, which makes communicators
    else:
        whole, c = np.empty((l, m)), np.empty((n if comm.rank == 0 else 0, m))
    a, b = made(n, l), made(l, m)
    seconds = frame.seconds_of_all(comm, lambda: multiply(a, b))
    if comm.rank == 0:
        print(seconds)


def _scalapack() -> Any:
    """ScaLAPACK on OpenBLAS. HybridError if it is not installed."""
    blas, library = map(find_library, ("openblas", "scalapack-mpich"))
    if not (blas and library):
        raise HybridError("pdgemm needs ScaLAPACK (apt-get install libscalapack-mpich-dev libopenblas-dev)")
    ctypes.CDLL(blas, ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(library)


def pdgemm(side: int, n: int, l: int, m: int) -> None:
    """ScaLAPACK's product of matrices distributed block-cyclically, in square blocks, over a grid of processes. The first prints
    the seconds; a process ends with 1 if C·x is not A·(B·x)."""

    def by_address(*numbers: int) -> list[Any]:
        return [ctypes.byref(ctypes.c_int(number)) for number in numbers]

    library, rank, size, context = _scalapack(), *(ctypes.c_int() for _ in range(3))
    library.Cblacs_pinfo(ctypes.byref(rank), ctypes.byref(size))
    rows, columns = _grid_of(size.value)
    library.Cblacs_get(-1, 0, ctypes.byref(context))
    library.Cblacs_gridinit(ctypes.byref(context), b"Row", rows, columns)
    random, place = np.random.default_rng(rank.value), divmod(rank.value, columns)

    def made(*shape: int, filled: bool = False) -> tuple[np.ndarray, Any]:
        """This process's part, column-major, and the whole matrix's descriptor."""
        parts = zip(shape, (side, side), place, (0, 0), (rows, columns), strict=True)
        local = [library.numroc_(*by_address(*each)) for each in parts]
        descriptor = (ctypes.c_int * 9)()
        library.descinit_(descriptor, *by_address(*shape, side, side, 0, 0, context.value, max(1, local[0]), 0))
        return np.asfortranarray(random.random(local) if filled else np.full(local, np.nan)), descriptor

    def multiply(*matrices: tuple[np.ndarray, Any]) -> None:
        (height, width), inner = matrices[2][1][2:4], matrices[0][1][3]
        a, b, c = ((part.ctypes.data_as(ctypes.c_void_p), *by_address(1, 1), whole) for part, whole in matrices)
        one, zero = (ctypes.byref(ctypes.c_double(number)) for number in (1, 0))
        library.pdgemm_(b"N", b"N", *by_address(height, width, inner), one, *a, *b, zero, *c)

    a, b, x = made(n, l, filled=True), made(l, m, filled=True), made(m, 1, filled=True)
    c, y, *both = made(n, m), made(l, 1), made(n, 1), made(n, 1)
    multiply(b, x, y)  # also connects the processes
    library.Cblacs_barrier(context, b"All")
    began = time.perf_counter()
    multiply(a, b, c)
    library.Cblacs_barrier(context, b"All")
    seconds = time.perf_counter() - began
    multiply(c, x, both[0])
    multiply(a, y, both[1])
    if rank.value == 0:
        print(seconds, flush=True)
    library.Cblacs_barrier(context, b"All")
    os._exit(not np.allclose(both[0][0], both[1][0], rtol=1e-9, atol=0))


if __name__ == "__main__":  # the name of a program, and its numbers
    if sys.argv[1] == "pdgemm":
        pdgemm(*map(int, sys.argv[2:]))
    else:
        on_nodes(sys.argv[1], *map(int, sys.argv[2:]))
