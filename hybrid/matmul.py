# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.matmul n l m`: C (n×m) = A (n×l) · B (l×m) by all ranks of the job."""

import gc
import sys

from hybrid.core.timeline import wall
from hybrid.ranks.launcher import end_when_interrupted


def main() -> int:
    """The command: its exit code."""
    wall.enter("imports")
    end_when_interrupted("hybrid.matmul")
    gc.disable()  # until all modules are loaded: their objects stay, so collecting garbage would only take time
    from hybrid.commands.matmul import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
