# SPDX-License-Identifier: MIT
"""Entry of `python -m hybrid.run program.py`: an unchanged program whose products go to `hybrid.multiply`."""

import sys


def main() -> int:
    """The command: the program's exit code."""
    from hybrid.commands.run import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
