# SPDX-License-Identifier: MIT
"""The command python -m hybrid.accept: does every rank's device multiply right, and as fast as the others?"""

from __future__ import annotations

import argparse
import signal
import sys

from hybrid.commands.cli import Command, agree
from hybrid.commands.parser import Parser, add_settings, at_least, file_name, number_of, settings_of, whole_number
from hybrid.commands.streams import text_stream
from hybrid.core.settings import Settings
from hybrid.core.text import counted
from hybrid.ranks.team import Team
from hybrid.reporting.progress import Progress

NAME = "hybrid.accept"

_MORE = """\
examples:
  mpirun -n 2 python -m hybrid.accept --minutes 0.1
  srun -N 2 --ntasks-per-node 8 --gres=gpu:8 python -m hybrid.accept --level 3 --json accept.jsonl

  level 1  one size in float64, one rotation; 0 minutes
  level 2  two sizes, float32 and float64; 5 minutes
  level 3  as 2, then square matrices that fill 60 % of the free memory, or as much as time allows; 15 minutes

A rank or link is slow if it takes more than 10 % longer than the median (of two, than the other). docs/cluster.md has the sizes.
exit codes: 0 all accepted, 1 something is wrong or slow, or a failure, 2 wrong usage, 143 asked to end (SIGTERM)
"""


def build_parser() -> Parser:
    summary = "Test that all devices of a job are right and equally fast."
    parser = Parser(prog="python -m hybrid.accept", description=summary, epilog=_MORE)
    parser.add_argument("--minutes", type=number_of("minutes"), metavar="M", help="repeat rotations for M minutes (by level)")
    parser.add_argument("--level", type=whole_number, choices=(1, 2, 3), default=2, help="how much to test, see below (2)")
    expected = "GPUs that each node must use (those given by Slurm or CUDA_VISIBLE_DEVICES; with --device cpu none)"
    parser.add_argument("--expect-gpus", type=at_least(0), metavar="N", help=expected)
    add_settings(parser, "device", "host_memory", "gpu_memory")
    parser.add_argument("--json", type=file_name, metavar="FILE", help="append the result as a JSON line; - for standard output")
    add_settings(parser, "threads", "stall")
    return parser


def parse() -> tuple[argparse.Namespace, Settings]:
    """Options and settings. Whatever the environment says, each device checks its products, and none is repaired."""
    options = build_parser().parse_args()
    return options, settings_of(options, check="on", on_fault="raise")


def work(team: Team, options: argparse.Namespace, settings: Settings) -> int:
    agree(team, options, settings)
    # From here on NumPy may be loaded: BLAS reads the number of threads from the environment.
    from hybrid.diagnostics.acceptance import LEVELS, Acceptance, as_record, judge
    from hybrid.diagnostics.finding import lines
    from hybrid.reporting import jsonl

    level = LEVELS[options.level]
    minutes = level.minutes if options.minutes is None else options.minutes
    test = Acceptance(team, level, 60 * minutes, settings)
    with Progress(team.rank == 0, part=lambda: test.doing):
        test.run()
    given = [0] * len(test.given_gpus) if settings.device in ("cpu", "emulate") else test.given_gpus
    expected = given if options.expect_gpus is None else [options.expect_gpus] * len(given)
    findings = judge(test, expected)
    record = as_record(test, findings) | {"minutes": minutes, "settings": settings.as_dict()}
    with team.phase("report", timed=False):
        if team.rank == 0:
            ranks, done = counted(len(test.names), "rank"), counted(test.rotations, "rotation")
            verdict = "accepted" if record["ok"] else "not accepted"
            last = f"{verdict}: {ranks}, level {level.number}, {done} in {test.elapsed:.1f} s"
            last += ", asked to end" if test.asked_to_end else ""
            print(*lines(findings), last, sep="\n", file=text_stream(options.json))
            if options.json:
                jsonl.write(record, options.json)
            sys.stdout.flush()
    if not record["ok"]:
        return 1
    return 128 + signal.SIGTERM if test.asked_to_end else 0


main = Command(NAME, parse, work).run
