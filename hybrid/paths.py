# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.paths GRAPH --length L`: how many walks of a length lead from where to where?"""

import sys

from hybrid.ranks.job_end import end_when_interrupted


def main() -> int:
    """The command: its exit code."""
    end_when_interrupted("hybrid.paths")
    from hybrid.commands.paths import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
