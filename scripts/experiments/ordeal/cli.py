# SPDX-License-Identifier: MIT
"""Does every job end, soon and by one line? python scripts/ordeal.py [--minutes M] [--trials K] [--ranks P] [--json F]

Jobs of 1 to 4 ranks, commands and a program over hybrid.multiply, are started, and at a random time one of their processes, or
all, get a signal, are stopped for good or put to sleep; or the job gets too little of a resource; or its disk, /dev/shm or
memory becomes full, or a link between its ranks is cut (as root, in namespaces and a control group of its own). Counted are jobs
that had not ended after 30 s, the slowest end, failures that were not named by exactly one line of ours, and processes and files
that stayed. Where nobody of ours is left to name it (the launcher or a supervisor was killed, or it is a program that has
none) the launcher's own report is enough, and files that stay are counted apart; so is a launcher that goes on when its job is
gone. Ends with 1 for all that is not counted apart.
"""

import argparse
import random
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

from experiments.common import cli, records, results, schema, tables
from experiments.ordeal.resources import why_not
from experiments.ordeal.trials import COMMANDS, LIMIT, trial, usual_lines

_TRIAL = {
    "number": schema.whole,
    "ranks": schema.whole,
    "blow": schema.name,
    "whom": schema.name,
    "seconds": schema.real,
    "ended": lambda value: isinstance(value, bool),
    "well": lambda value: isinstance(value, bool),
    "left": lambda value: isinstance(value, list) and all(schema.text(path) for path in value),
    "apart": lambda value: isinstance(value, bool),  # nobody of ours could have said or removed anything
    "launcher_hung": lambda value: isinstance(value, bool),
}
_HEADS = ("blow", "to", "trials", "hangs", "slowest end", "not by one line", "stayed", "stayed (apart)", "launcher hung (apart)")


class Results(results.Results):
    command = "ordeal"
    schemas = {"trial": _TRIAL}

    def blocks(self) -> Iterator[tables.Block]:
        kinds = sorted({(line["blow"], line["whom"]) for line in self.lines})
        rows = [
            (blow, whom, *_counts([line for line in self.lines if (line["blow"], line["whom"]) == (blow, whom)]))
            for blow, whom in kinds
        ]
        yield tables.Table(_HEADS, "llrrrrrrr", [*rows, ("all", "", *_counts(self.lines))])

    def exit_code(self) -> int:
        """1 if anything was not as it should be, but for what is counted apart."""
        return int(any(_hung(line) or _unnamed(line) or _stayed(line) for line in self.lines))


def _hung(line: records.Line) -> bool:
    return not (line["ended"] or line["launcher_hung"])


def _unnamed(line: records.Line) -> bool:
    return line["ended"] and not line["well"]


def _stayed(line: records.Line) -> bool:
    return bool(line["left"]) and not line["apart"]


def _counts(lines: Sequence[records.Line]) -> tuple[str, ...]:
    ends = [line["seconds"] for line in lines if line["ended"]]
    return (
        str(len(lines)),
        str(sum(map(_hung, lines))),
        f"{max(ends):.1f} s" if ends else f"over {LIMIT:.0f} s",
        str(sum(map(_unnamed, lines))),
        str(sum(map(_stayed, lines))),
        str(sum(bool(line["left"]) and line["apart"] for line in lines)),
        str(sum(line["launcher_hung"] for line in lines)),
    )


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    dice, began = random.Random(options.seed), time.monotonic()  # noqa: S311 (no secret)
    refused = why_not()
    for name, reason in refused.items():
        if reason:
            print(f"not tried, {name}: {reason}", file=sys.stderr, flush=True)
    resources = [name for name, reason in refused.items() if not reason]
    usual = {command: usual_lines(command) for command in COMMANDS}
    number = 0
    while number < options.trials and time.monotonic() - began < 60 * options.minutes:
        line = trial(number, dice, options.ranks, usual, resources)
        if options.verbose and (_hung(line) or _unnamed(line) or _stayed(line)):
            print({key: value for key, value in line.items() if key != "part"}, flush=True)
        yield line
        number += 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, metavar="M", help="for so long (2)")
    parser.add_argument("--trials", type=cli.at_least_1, default=10**6, metavar="K", help="so many at most")
    parser.add_argument("--ranks", type=cli.at_least_1, default=4, metavar="P", help="at most (4)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of jobs, blows and times")
    parser.add_argument("--verbose", action="store_true", help="show each trial that did not end as it should, when it has ended")
    parser.set_defaults(picture=None)
    cli.add_lines(parser)
    return cli.command(parser, partial(cli.present, results=Results, measured=_measured), arguments)
