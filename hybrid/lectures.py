# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.lectures NAME`: the lectures' figures and programs, from a checkout or an installed package."""

import sys

from hybrid.ranks.job_end import end_when_interrupted


def main() -> int:
    """The command: its exit code."""
    end_when_interrupted("hybrid.lectures")
    from hybrid.commands.lectures import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
