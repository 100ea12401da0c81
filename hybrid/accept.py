# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.accept`: does every device multiply right, and as fast as the others?"""

import sys

from hybrid.ranks.job_end import end_when_interrupted


def main() -> int:
    """The command: its exit code."""
    end_when_interrupted("hybrid.accept")
    from hybrid.commands.accept import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
