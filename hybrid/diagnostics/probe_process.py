# SPDX-License-Identifier: MIT
"""Runs probes in child processes outside the MPI job. A probe's result is its report, and how it ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import hybrid
from hybrid.core.problem import record
from hybrid.errors import HybridError
from hybrid.ranks.heartbeat import busy, heartbeat
from hybrid.ranks.team import Team

LIMIT = 60  # seconds a probe may take
_MARGIN = 5  # seconds beyond its limit in which a probe ends itself
_POLL = 0.1  # seconds between two checks whether another rank has failed
_KILL_WAIT = 5  # seconds to wait for a killed process: one that hangs in a driver may never end
# With these variables, a child that starts MPI would join this job as a second process of its rank.
_OF_LAUNCHERS = (
    *("PMI_", "PMI2_", "PMIX_", "PRTE_", "HYDI_", "HYDRA_", "MPIEXEC_", "SLURM_", "SRUN_"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_APP_", "OMPI_FILE_", "OMPI_FIRST_", "OMPI_NUM_", "OMPI_ARGV", "OMPI_COMMAND"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_MCA_prte", "OMPI_MCA_initial_wdir"),
)


@record
class ProbeResult:
    report: Mapping[str, Any]
    ended: str  # how the probe ended, in words; "" if well


def run_probe(probe: str, *arguments: str, limit: int = LIMIT) -> ProbeResult:
    """Run the probe `module.function` of this package for at most `limit` seconds."""
    with _Probe([probe, str(limit), *arguments], limit) as process, suppress(HybridError):  # `ended` has the reason
        process.next_message(Team())
    failed = process.report.get("failed")
    return ProbeResult(process.report, process.ended or (f"failed: {failed}" if failed else ""))


def run_proxies(team: Team, probe: str, argument: str | None, limit: int) -> ProbeResult | None:
    """Run one probe for each rank, its proxy, all at the same time and for at most `limit` seconds. Every rank calls it, with
    None as `argument` for no proxy. Returns the result of this rank's proxy, even if another rank's failed."""
    with (
        nullcontext() if argument is None else _Probe([probe, str(limit), argument], limit) as proxy,
        suppress(HybridError),  # raised on all ranks when a proxy fails; each still has its own proxy's report
    ):
        while True:
            with team.phase("proxies", timed=False) as exchange:
                exchange.mine = proxy and proxy.next_message(team)
            if not any(exchange.all):
                break
            if proxy is not None:
                proxy.answer(exchange.all)
    return None if proxy is None else ProbeResult(proxy.report, proxy.ended)


class _Probe:
    """A process that runs a probe; the context's end kills it. `ended`: how it ended, in words, "" if well."""

    def __init__(self, words: Sequence[str], limit: int) -> None:
        """Start it in its own process group, without the launcher's variables, able to import what this process can."""
        self.report: dict[str, Any] = {}
        self.ended = ""
        self._limit, self._deadline, self._unread = limit, time.monotonic() + limit + _MARGIN, b""
        search_path = [str(Path(hybrid.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, search_path))
        command = [sys.executable, "-m", "hybrid.diagnostics.probes", *words]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the context)
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process: Any = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)  # noqa: S603

    def __enter__(self) -> _Probe:
        return self

    def __exit__(self, *failure: object) -> None:
        """Kill the probe and all processes that it started."""
        with suppress(ProcessLookupError, PermissionError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_WAIT)
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(BrokenPipeError):
                file.close()

    def next_message(self, team: Team) -> str | None:
        """The probe's message to the other ranks' probes; None if it has ended well instead. HybridError if it has failed."""
        while (line := self._next_line(team)) is not None:
            if line.startswith("{"):
                with suppress(json.JSONDecodeError):  # a line that a library has printed
                    self.report |= json.loads(line)
            if "to_others" in self.report:
                return str(self.report.pop("to_others"))
        code = None
        with suppress(subprocess.TimeoutExpired), busy():
            code = self._process.wait(max(0.0, self._deadline - time.monotonic()))
        self.ended = self._end(code)
        if self.ended or "failed" in self.report:
            raise HybridError(self.ended or str(self.report["failed"]), code="probe-failed")
        return None

    def answer(self, messages: Sequence[str | None]) -> None:
        """Send all probes' messages to this one."""
        with suppress(BrokenPipeError):  # the probe has ended: `next_message` finds out how
            self._process.stdin.write(json.dumps(messages).encode() + b"\n")
            self._process.stdin.flush()

    def _next_line(self, team: Team) -> str | None:
        """The next line of output; None at the end of the output or of the time. PhaseEnded if another rank's probe fails."""
        output = self._process.stdout
        while b"\n" not in self._unread:
            heartbeat()
            if not team.alone:
                team.messages.end_if_others_failed()
            if time.monotonic() > self._deadline:
                return None
            has_ended = self._process.poll() is not None  # before the read, which then gets the last output
            if select.select([output], [], [], 0 if has_ended else _POLL)[0]:
                if not (read := os.read(output.fileno(), 1 << 16)):
                    return None
                self._unread += read
            elif has_ended:  # a grandchild may hold the pipe open
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _end(self, code: int | None) -> str:
        """How the probe ended, in words; "" if well. `code`: its exit code; None if it has to be killed."""
        if code == 0:
            return ""
        if code is None or code == -signal.SIGALRM:
            return f"took more than {self._limit} s"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"ended with {code}" + (f": {lines[-1]}" if lines else "")
