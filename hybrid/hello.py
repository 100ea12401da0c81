# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.hello`: every rank greets from its CPU threads and from its GPU."""

import sys

from hybrid.ranks.job_end import end_when_interrupted


def main() -> int:
    """The command: its exit code."""
    end_when_interrupted("hybrid.hello")
    from hybrid.commands.hello import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
