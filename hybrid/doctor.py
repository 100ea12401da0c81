# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.doctor`: are MPI, cores, GPUs and links of this job wired right?"""

import sys

from hybrid.ranks.job_end import end_when_interrupted


def main() -> int:
    """The command: its exit code."""
    end_when_interrupted("hybrid.doctor")
    from hybrid.commands.doctor import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
