# SPDX-License-Identifier: MIT
"""Starts MPI in a process alone, and reports which library it is."""

from __future__ import annotations

from dataclasses import asdict

from hybrid.diagnostics.probes.protocol import report
from hybrid.ranks.mpi import library_in_use, start_mpi


def main() -> None:
    start_mpi()
    report(library=asdict(library_in_use()))
