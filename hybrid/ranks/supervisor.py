"""A guard for every rank: the process the launcher started stays behind and watches the one that works.

A killed or frozen process cannot say what happened to it, and a rank that simply leaves keeps the others waiting.
Its guard can: it knows the phase from a pipe, sees how the worker ended, prints one line and ends with a code that
makes the launcher end the job. It is forked before MPI, NumPy or CUDA exist, so it holds no resource and costs nothing.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from hybrid.ranks.launcher import launched, rank_by_launcher

GRACE = 1.5  # seconds in which a launcher that is ending the whole job does so without a word from every rank
DRAIN = 0.2  # seconds a launcher gets to read what was printed: at the first failure it may throw away the rest
INTERRUPT_DELAY = 0.5  # seconds after which an interrupt of the guard alone is passed on
HEARTBEAT_INTERVAL = 0.1  # the worker writes no more often than this

_AGREED, _REPORTED = "=", "!"  # before an exit code: all ranks end like this · this one does, and has said why
_BORN = "*"  # MPI has started
_LIKELY = {int(signal.SIGKILL): " (out of memory?)", int(signal.SIGBUS): " (is /dev/shm full?)"}
_PR_SET_PDEATHSIG = 1


class _Sign:
    """The worker's end of the pipe."""

    def __init__(self) -> None:
        self.pipe: int | None = None
        self.phase = b""
        self.last = 0.0
        self.asked_to_end = False


_sign = _Sign()


def heartbeat(phase: str | None = None) -> None:
    """Show a sign of progress, with the phase when it changes. Free to call often; does nothing without a guard."""
    if _sign.pipe is None:
        return
    now = time.monotonic()
    name = _sign.phase if phase is None else phase.encode()
    if name == _sign.phase and now - _sign.last < HEARTBEAT_INTERVAL:
        return
    _sign.phase, _sign.last = name, now
    _write(name)


@contextmanager
def busy() -> Iterator[None]:
    """Within this context signs come from another thread: for work in libraries, which may rightly take any time.

    A process that is stopped is still noticed, since all its threads are.
    """
    if _sign.pipe is None:
        yield
        return
    done = threading.Event()

    def keep_beating() -> None:
        while not done.wait(1.0):
            heartbeat()

    beating = threading.Thread(target=keep_beating, daemon=True)
    beating.start()
    try:
        yield
    finally:
        done.set()


def let_launcher_read() -> None:
    """Before an end that makes the launcher end the job: it offers no way to learn that it has read what was printed."""
    time.sleep(DRAIN)


def finish_when_asked() -> None:
    """From now on a SIGTERM does not end this process: it is noted, for `asked_to_end`."""

    def note(signum: int, frame: FrameType | None) -> None:
        _sign.asked_to_end = True

    if threading.current_thread() is threading.main_thread() and _sign.pipe is not None:
        signal.signal(signal.SIGTERM, note)


def asked_to_end() -> bool:
    return _sign.asked_to_end


def settle(code: int, *, agreed: bool = True) -> None:
    """Tell the guard this rank's exit code; nothing is left to be said. Not `agreed`: the others know nothing of it."""
    if agreed:
        heartbeat("end")
    if _sign.pipe is not None:
        _write(f"{_AGREED if agreed else _REPORTED}{code}".encode())


def mpi_started() -> None:
    """Tell the guard that MPI has started; from here on the other ranks may wait for this one."""
    if _sign.pipe is not None:
        _write(_BORN.encode())


def supervised(work: Callable[[], int], stall: float, stillborn: Callable[[str], int | None] | None = None) -> int:
    """Run `work` in a child process under a guard and return the exit code for the launcher.

    The child returns from here as the worker; the parent stays in the watching loop until the child has ended.
    `stall`: seconds without a sign of progress after which the worker counts as stuck (0: never).
    `stillborn`: what the guard does when the worker ended while it started MPI; it is told how, and returns the exit code,
    or None for what else would happen.
    """
    reading, writing = os.pipe()
    guard = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    worker = os.fork()
    if worker:
        os.close(writing)
        _watch(worker, reading, stall, stillborn)
    os.close(reading)
    _die_with(guard)
    _sign.pipe = writing
    heartbeat("start")
    return work()


def _watch(worker: int, pipe: int, stall: float, stillborn: Callable[[str], int | None] | None) -> NoReturn:
    asked_to_end = False
    interrupted = 0.0

    def note_interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted  # a terminal interrupts the worker as well: only if it lives on is it told
        interrupted = time.monotonic()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        nonlocal asked_to_end
        asked_to_end = True
        with suppress(ProcessLookupError):
            os.kill(worker, signum)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, note_interrupt)
    phase, said, stuck = "start", "", False
    heard = looked = time.monotonic()
    while True:
        if time.monotonic() - looked > 2:
            heard = time.monotonic()  # the guard itself was stopped, with the whole job
        looked = time.monotonic()
        if interrupted and looked - interrupted > INTERRUPT_DELAY:
            interrupted = 0.0
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGINT)
        if select.select([pipe], [], [], 0.25)[0]:
            text = os.read(pipe, 65536).decode()
            if not text:
                break  # the worker has ended
            heard = time.monotonic()
            for line in text.split("\n")[:-1]:
                if line[:1] in (_AGREED, _REPORTED):
                    said = line
                elif line == _BORN:
                    stillborn = None
                else:
                    phase = line
            continue
        silent = time.monotonic() - heard
        if asked_to_end and silent > GRACE:
            os.kill(worker, signal.SIGKILL)
        # A stopped process is named before those that merely wait for it inside MPI, where no sign can be given.
        if stall and silent > (stall if _is_stopped(worker) else stall + GRACE):
            stuck = True
            os.kill(worker, signal.SIGKILL)
            break
    _, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    failed_unheard = stuck or code < 0  # even after the last word: the others may wait for it in MPI's end
    if said.startswith(_AGREED) and not failed_unheard:
        _leave(int(said[1:]))
    if not said and stillborn is not None and not asked_to_end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nobody left to pass it on to
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        instead = stillborn(_happened(code, stall if stuck else 0, asked_to_end))
        if instead is not None:
            _leave(instead)
    if not said or (failed_unheard and said.startswith(_AGREED)):
        if asked_to_end:
            time.sleep(GRACE)  # a launcher that ends the whole job kills this process now
        happened = _happened(code, stall if stuck else 0, asked_to_end)
        # One write: lines of different ranks must not cut each other.
        os.write(2, f"hybrid: rank {rank_by_launcher()} on {socket.gethostname()}, {phase}: {happened}\n".encode())
    if launched() is not None and (phase == "start" or failed_unheard):
        # Others may wait for this rank. MPICH's launcher ends them when a process is killed; for an exit code it does not
        # while MPI starts, and never those on other nodes.
        let_launcher_read()
        os.kill(os.getpid(), signal.SIGKILL)
    _leave(int(said[1:]) if said.startswith(_REPORTED) else 128 - code if code < 0 else code or 1)


def _happened(code: int, stall: float, asked_to_end: bool) -> str:
    if stall:
        return f"showed no progress for {stall:g} s and was ended"
    if asked_to_end:
        return "was asked to end"
    if code < 0:
        return f"was killed by {_name(-code)}" + _LIKELY.get(-code, "")
    return f"left with exit code {code} before the others were done"


def _is_stopped(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _leave(code: int) -> NoReturn:
    if code and launched() is not None:
        let_launcher_read()
    os._exit(code)  # the parent of a fork owns nothing that needs cleaning up


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def _write(text: bytes) -> None:
    assert _sign.pipe is not None
    try:
        os.write(_sign.pipe, text + b"\n")
    except BrokenPipeError:
        os._exit(1)  # the guard is gone: the launcher has ended this rank


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process when its guard ends (Linux; elsewhere the broken pipe tells it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
