"""A probe's run: what it said, and how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import hybrid
from hybrid.ranks.heartbeat import busy

LIMIT = 60  # seconds a probe may take
_LAST_BREATH = 5  # seconds that a killed process gets: one that a driver holds on to may never end
# By these a process would take itself for a rank of this job when it starts MPI, and disturb it.
_OF_LAUNCHERS = (
    *("PMI_", "PMI2_", "PMIX_", "PRTE_", "HYDI_", "HYDRA_", "MPIEXEC_", "SLURM_", "SRUN_"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_APP_", "OMPI_FILE_", "OMPI_FIRST_", "OMPI_NUM_", "OMPI_ARGV", "OMPI_COMMAND"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_MCA_prte", "OMPI_MCA_initial_wdir"),
)


@dataclass(frozen=True)
class Told:
    """All that a probe said, and how it ended: "" for well."""

    said: Mapping[str, Any]
    ended: str


def ask(probe: str, *arguments: str, limit: int = LIMIT) -> Told:
    """Run the module `probe` of hybrid.diagnostics.probes."""
    return ask_program(program(probe, limit, *arguments), limit)


def program(probe: str, limit: int, *arguments: str) -> list[str]:
    """The command that runs the module `probe` of hybrid.diagnostics.probes."""
    return [sys.executable, "-m", f"hybrid.diagnostics.probes.{probe}", str(limit), *arguments]


def ask_program(command: Sequence[str], limit: int) -> Told:
    """Run a probe, outside of this job, for `limit` seconds and a few at most."""
    # Files: a pipe would stay open as long as anything that the probe started.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, busy():
        process = begin(command, subprocess.DEVNULL, output, errors)
        try:
            code: int | None = process.wait(limit + 5)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
        output.seek(0)
        return Told(_said(output.read().decode(errors="replace")), how_it_ended(code, limit, errors))


def begin(command: Sequence[str], stdin: int, output: IO[bytes] | int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a probe outside of this job, which can import what this process can."""
    found_here = [str(Path(hybrid.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, found_here))
    return subprocess.Popen(  # noqa: S603
        command, stdin=stdin, stdout=output, stderr=errors, env=environment, start_new_session=True
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """It, and all that it started."""
    with suppress(ProcessLookupError, PermissionError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_BREATH)


def how_it_ended(code: int | None, limit: int, errors: IO[bytes]) -> str:
    """In words, "" for well. `code`: None where it had to be ended."""
    if code == 0:
        return ""
    if code is None or code == -signal.SIGALRM:
        return f"took more than {limit} s"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    errors.seek(0)
    last_words = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return f"ended with {code}" + (f": {last_words[-1]}" if last_words else "")


def _said(output: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for line in output.splitlines():
        known |= words_of(line)
    return known


def words_of(line: str) -> dict[str, Any]:
    """What a probe says by this line of its output; nothing, where the line is a library's."""
    if line.startswith("{"):
        with suppress(json.JSONDecodeError):
            said = json.loads(line)
            if isinstance(said, dict):
                return said
    return {}
