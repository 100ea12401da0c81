# SPDX-License-Identifier: MIT
"""The command python -m hybrid.doctor: are this machine, this environment and this job fit for the other commands?"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from hybrid.commands.cli import Command, agree_on_options, settle_threads
from hybrid.commands.parser import Parser, add_settings, file_name, settings_of
from hybrid.commands.streams import text_stream
from hybrid.core.settings import Settings
from hybrid.core.text import counted
from hybrid.errors import StartError
from hybrid.ranks.team import Team
from hybrid.reporting.progress import Progress

NAME = "hybrid.doctor"

_MORE = """\
examples:
  python -m hybrid.doctor
  mpirun -n 2 python -m hybrid.doctor
  srun -N 2 --ntasks-per-node 4 python -m hybrid.doctor --json -

One line a finding: ok, note (it works, but could do better), unknown (and why), or WRONG, with what to do.
exit codes: 0 nothing is wrong, 1 something is, or a failure, 2 wrong usage
"""


def build_parser() -> Parser:
    parser = Parser(prog="python -m hybrid.doctor", description="Find what keeps a job from running well.", epilog=_MORE)
    line = "append the findings, and the machine's numbers for HYBRID_MACHINE, as a JSON line; - for standard output"
    parser.add_argument("--json", type=file_name, metavar="FILE", help=line)
    add_settings(parser, "threads", "stall")
    return parser


def parse() -> tuple[argparse.Namespace, Settings]:
    options = build_parser().parse_args()
    return options, settings_of(options)


def unstarted(error: StartError, options: argparse.Namespace, settings: Settings) -> int:
    """On rank 0, if the launcher's processes are not the ranks of one job: examine this process alone."""
    return work(Team(), options, settings, error)


def work(team: Team, options: argparse.Namespace, settings: Settings, error: StartError | None = None) -> int:
    """Examine the job, and report on rank 0. `error`: why this process is no rank of a job."""
    from hybrid.diagnostics.finding import lines
    from hybrid.reporting import jsonl

    agree_on_options(team, options, settings)
    with Progress(team.rank == 0, part=lambda: team.doing):
        threads = settle_threads(team, settings)
        from hybrid.diagnostics.checks import examine  # loads NumPy

        findings, record = examine(team, threads, error, for_model=bool(options.json))
    verdicts = Counter(each.verdict for each in findings)
    with team.phase("report", timed=False):
        if team.rank == 0:
            last = f"{counted(verdicts['wrong'], 'finding')} wrong" if verdicts["wrong"] else "nothing is wrong"
            last += f", {verdicts['unknown']} unknown" if verdicts["unknown"] else ""
            print(*lines(findings), last, sep="\n", file=text_stream(options.json), flush=True)
            if options.json:
                jsonl.write({"command": "doctor", **record}, options.json)
                sys.stdout.flush()
    return 1 if verdicts["wrong"] else 0


main = Command(NAME, parse, work, unstarted).run
