# SPDX-License-Identifier: MIT
"""Does every job end, soon and by one line? python scripts/ordeal.py [--minutes M] [--trials K] [--ranks P] [--json F]

Jobs of 1 to 4 ranks are started, and at a random time one of their processes, or all, get a signal, are stopped for good or put
to sleep; or the job gets too little of a resource. Counted are jobs that had not ended after 30 s, the slowest end, failures
that were not named by exactly one line of ours, and processes and files that stayed. Where nobody can name it (the launcher or
a supervisor was killed) the launcher's own report is enough. Ends with 1 if a job hung, or processes of one stayed.
"""

import argparse
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial

from experiments.common import cli, records, results, schema, tables
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
}


class Results(results.Results):
    command = "ordeal"
    schemas = {"trial": _TRIAL}

    def blocks(self) -> Iterator[tables.Block]:
        heads = ("blow", "to", "trials", "hangs", "slowest end", "not by one line", "something stayed")
        kinds = sorted({(line["blow"], line["whom"]) for line in self.lines})
        rows = [
            (blow, whom, *_counts([line for line in self.lines if (line["blow"], line["whom"]) == (blow, whom)]))
            for blow, whom in kinds
        ]
        yield tables.Table(heads, "llrrrrr", [*rows, ("all", "", *_counts(self.lines))])

    def exit_code(self) -> int:
        """1 if a job hung, or processes of it stayed."""
        stayed = (path for line in self.lines for path in line["left"])
        return int(any(not line["ended"] for line in self.lines) or any(path.startswith("process ") for path in stayed))


def _counts(lines: Sequence[records.Line]) -> tuple[str, ...]:
    ends = [line["seconds"] for line in lines if line["ended"]]
    return (
        str(len(lines)),
        str(sum(not line["ended"] for line in lines)),
        f"{max(ends):.1f} s" if ends else f"over {LIMIT:.0f} s",
        str(sum(line["ended"] and not line["well"] for line in lines)),
        str(sum(bool(line["left"]) for line in lines)),
    )


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    dice, began = random.Random(options.seed), time.monotonic()  # noqa: S311 (no secret)
    usual = {command: usual_lines(command) for command in COMMANDS}
    number = 0
    while number < options.trials and time.monotonic() - began < 60 * options.minutes:
        line = trial(number, dice, options.ranks, usual)
        if options.verbose and (not line["ended"] or not line["well"] or line["left"]):
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
