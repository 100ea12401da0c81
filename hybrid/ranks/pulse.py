# SPDX-License-Identifier: MIT
"""Signs of life between the ranks' supervisors: a rank whose node, container or processes stand still is named by another rank.

A supervisor notices when its worker stands still, but not when it does so itself. So the ranks form a ring, in which each
supervisor sends a datagram to that of the next rank twice a second, and expects those of the rank before. They travel by UDP and
not by MPI, since a supervisor has no MPI, and a worker may be inside BLAS.

A firewall between nodes may let no datagram through, and there nobody is missed. Whether it is a firewall or a node that is gone
shows when the ranks meet: they send datagrams and exchange messages by MPI, until each has heard its neighbour. Where MPI reaches
all ranks for a second and no datagram comes, a firewall stands between. The first datagram alone would not tell: it may be lost,
or late where a message of MPI took another way, and if the network was cut then, nobody would be missed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import closing, suppress

from hybrid.core.problem import record
from hybrid.ranks import heartbeat
from hybrid.ranks.team import Team

INTERVAL = 0.5  # seconds between two datagrams
_ALIVE, _ENDED, _FAILED = b"+", b"-", b"!"
_STOOD_STILL = 4 * INTERVAL  # between two looks at what has come: then this process was stopped itself
_ENDS_SENT = 3  # datagrams may be lost
_FIRST_PAUSE, _ROUNDS = 1e-3, 10  # seconds between two datagrams when ranks meet, twice as many each time, and how many: a second
_KEY_BYTES = 16  # a job's own, which datagrams of others lack
_SIOCGIFADDR = 0x8915  # Linux' ioctl for the IPv4 address of an interface
_THIS_NODE = "127.0.0.1"


@record
class Neighbours:
    """Where a rank's supervisor sends its signs of life, and of which rank it expects some."""

    key: str
    port: int
    addresses: tuple[str, ...]
    watched: int
    near: bool  # the watched rank is on this node: no firewall is between
    host: str  # the watched rank's

    def as_line(self) -> str:
        """These facts in a line, for `from_line`."""
        return f"{self.key} {self.port} {','.join(self.addresses)} {self.watched} {int(self.near)} {self.host}"

    @classmethod
    def from_line(cls, line: str) -> Neighbours:
        key, port, addresses, watched, near, host = line.split(" ", 5)
        return cls(key, int(port), tuple(addresses.split(",")), int(watched), near == "1", host)


@record
class Whereabouts:
    """What other ranks must know of a rank's supervisor. `port`: 0 where it does not listen."""

    host: str
    port: int
    addresses: tuple[str, ...]
    key: str  # rank 0's counts

    @classmethod
    def of_this_rank(cls) -> Whereabouts:
        port = heartbeat.supervisor_port()
        return cls(os.uname().nodename, port, _addresses() if port else (), os.urandom(_KEY_BYTES).hex())


def meet(team: Team, everybody: Sequence[Whereabouts]) -> None:
    """Have the supervisors of all ranks watch each other. Every rank calls it."""
    neighbours = _neighbours(team, everybody)
    if neighbours is not None:
        heartbeat.tell_neighbours(neighbours.as_line())
    watched = everybody[team.rank - 1]
    # Who has no address of this rank's, or does not listen itself, sends nothing.
    far = neighbours is not None and not neighbours.near and bool(watched.port and everybody[team.rank].addresses)
    pause = _FIRST_PAUSE
    for _ in range(_ROUNDS):
        if neighbours is not None:
            # This process sends one, so that it has arrived when the message has: a supervisor may get its core later.
            with suppress(OSError), closing(Pulse()) as first:
                first.start(neighbours.as_line())
        with team.phase("start", timed=False) as meeting:  # a message to every rank
            meeting.mine = not far or heartbeat.neighbour_heard()
        if all(meeting.all):
            break
        time.sleep(pause)
        pause *= 2
    heartbeat.all_met()


def _neighbours(team: Team, everybody: Sequence[Whereabouts]) -> Neighbours | None:
    """This rank's neighbours in the ring of ranks; None where one of the two supervisors does not listen."""
    following, watched = (team.rank + 1) % team.size, (team.rank - 1) % team.size
    there, here = everybody[following], team.node_ranks
    addresses = (_THIS_NODE,) if following in here else there.addresses
    if not (everybody[team.rank].port and there.port and addresses):
        return None
    near = watched in here and everybody[watched].port > 0
    return Neighbours(everybody[0].key, there.port, addresses, watched, near, everybody[watched].host)


def _addresses() -> tuple[str, ...]:
    """The IPv4 addresses at which other nodes may reach this one."""
    found = []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without one
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return tuple(address for address in found if not address.startswith("127."))  # its own network with itself


class Pulse:
    """The signs of life of one supervisor: what it sends, and when it last heard of its neighbour."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._sent = 0.0
        self._heard: float | None = None  # None: its rank has ended, or nothing can be heard
        self._ever_heard = mmap.mmap(-1, 1)  # a flag that the worker shares, which is forked from this process
        self._neighbours: Neighbours | None = None
        self._failed: float | None = None  # when the word came that some rank has failed

    def fileno(self) -> int:
        return self._socket.fileno()

    def sources(self) -> list[Pulse]:
        """What a supervisor's loop is to wait for: this, once it has neighbours, so that they meet without delay."""
        return [] if self._neighbours is None else [self]

    def ever_heard(self) -> bool:
        """Whether the neighbour has been heard; the worker may ask, too."""
        return bool(self._ever_heard[0])

    def start(self, line: str) -> None:
        """Have neighbours, whom `line` describes: the first sign of life goes to one, and from now on silence of the other
        counts."""
        self._neighbours = Neighbours.from_line(line)
        self._heard = self._sent = time.monotonic()
        self._send(_ALIVE)

    def all_met(self) -> None:
        """Note that MPI has reached all ranks since `start`: if the neighbour's datagram has not, a firewall stands between."""
        if self._neighbours is not None and not (self._neighbours.near or self.ever_heard()):
            self._heard = None

    def beat(self) -> None:
        """Send a sign of life when it is time, and note those that have come. To be called in every turn of the supervisor's
        loop."""
        now = time.monotonic()
        if now - self._sent >= INTERVAL:
            self._sent = now
            self._send(_ALIVE)
        self._listen()

    def sees_end(self, patience: float) -> bool:
        """Wait until the neighbour has ended as this rank has; False where it stands still for longer than `patience` seconds. Of
        another node's it does not wait: the word that it has ended may be lost."""
        if self._neighbours is None or not self._neighbours.near:
            return True
        listened = time.monotonic()
        while self._heard is not None:
            if self.silence() > patience:
                return False
            select.select([self._socket], [], [], INTERVAL)
            if time.monotonic() - listened > _STOOD_STILL:
                self.forgive()
            listened = time.monotonic()
            self._listen()
        return True

    def forgive(self) -> None:
        """Note that this process itself stood still: its neighbour's silence until now tells nothing."""
        if self._heard is not None:
            self._heard = time.monotonic()

    def silence(self) -> float:
        """The seconds since the neighbour was heard, or since `start`; 0 where it has ended, or a firewall stands between."""
        return 0.0 if self._heard is None else time.monotonic() - self._heard

    @property
    def watched(self) -> str:
        """The rank that this one watches, for a message."""
        assert self._neighbours is not None
        return f"rank {self._neighbours.watched} on {self._neighbours.host}"

    def close(self) -> None:
        self._socket.close()

    def end(self, *, failed: bool = False) -> None:
        """Tell the neighbour that this rank ends: nobody is to miss it from now on. `failed`: and that the job is to end, which
        each rank passes on to the next."""
        for _ in range(_ENDS_SENT):
            self._send(_FAILED if failed else _ENDED)

    def since_failure(self) -> float:
        """The seconds since the word came that the job is to end, since some rank has failed; 0 without one."""
        self._listen()
        return 0.0 if self._failed is None else time.monotonic() - self._failed

    def _send(self, sign: bytes) -> None:
        if self._neighbours is not None:
            for address in self._neighbours.addresses:
                with suppress(OSError):  # no way there: at the worst it is not heard, and not missed
                    self._socket.sendto(bytes.fromhex(self._neighbours.key) + sign, (address, self._neighbours.port))

    def _listen(self) -> None:
        with suppress(BlockingIOError):
            while self._neighbours is not None:
                self._hear(self._socket.recv(64))

    def _hear(self, datagram: bytes) -> None:
        assert self._neighbours is not None
        if datagram == bytes.fromhex(self._neighbours.key) + _ALIVE:
            self._heard, self._ever_heard[0] = time.monotonic(), 1
        elif datagram == bytes.fromhex(self._neighbours.key) + _ENDED:
            self._heard = None
        elif datagram == bytes.fromhex(self._neighbours.key) + _FAILED and self._failed is None:
            self._heard, self._failed = None, time.monotonic()
            self.end(failed=True)
