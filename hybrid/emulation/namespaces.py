# SPDX-License-Identifier: MIT
"""Separates a child process by Linux's namespaces, where a user may make some: it gets a network of its own and, for ranks, a
/dev/shm of its own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial

_MOUNTS, _IPC, _USER, _NETWORK = 0x20000, 0x8000000, 0x10000000, 0x40000000  # CLONE_NEW… of unshare(2)
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP of netdevice(7)
_SHARED_MEMORY = b"size=512m,mode=1777"


def leave_the_network(library: ctypes.CDLL) -> None:
    """From now on this process, and what it starts, has no network."""
    if library.unshare(_USER | _NETWORK):
        raise OSError("unshare(2)")


def keep_to_itself(library: ctypes.CDLL) -> None:
    """As `leave_the_network`, but with a loopback interface and a /dev/shm of its own, for ranks that have to find each other."""
    user, group = os.geteuid(), os.getegid()
    if library.unshare(_USER | _NETWORK | _MOUNTS | _IPC):
        raise OSError("unshare(2)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        interface = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, interface))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))
    if library.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), _SHARED_MEMORY):
        raise OSError("mount(2)")


@cache
def possible(separated: Callable[[ctypes.CDLL], None]) -> bool:
    """Whether this system lets this user call `separated`, one of the functions above. It is tried in a child process."""
    program = shutil.which("true")
    if not sys.platform.startswith("linux") or program is None:
        return False
    try:
        subprocess.run([program], preexec_fn=partial(separated, ctypes.CDLL(None)), check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False
    return True
