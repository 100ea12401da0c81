# SPDX-License-Identifier: MIT
"""`python -m hybrid`: which commands there are."""

import sys

from hybrid import __version__
from hybrid.host.streams import open_streams

COMMANDS = {
    "matmul": "multiply two matrices by all ranks of the job",
    "hello": "every rank greets, from its CPU threads and its GPU",
    "doctor": "find what keeps a job from running well",
    "accept": "test that all devices of a job are right and equally fast",
    "lab": "run a CUDA kernel of your own without a GPU, and find its errors",
    "paths": "count the paths of a length, exactly, by matrix powers",
}


def main() -> int:
    open_streams()
    print(f"hybrid-runner {__version__}: python -m hybrid.COMMAND --help tells more\n")
    for name, summary in COMMANDS.items():
        print(f"  hybrid.{name:<8}{summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
