# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.lab run FILE.cu`: is a CUDA kernel that multiplies matrices right, and if not, why?"""

import sys

from hybrid.ranks.interrupts import end_when_interrupted


def main() -> int:
    """The command: its exit code."""
    end_when_interrupted("hybrid.lab")
    from hybrid.commands.lab import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
