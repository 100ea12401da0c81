# SPDX-License-Identifier: MIT
"""`python -m hybrid`: which commands there are."""

import sys
from importlib import import_module

from hybrid import __version__
from hybrid.core.settings import one_of
from hybrid.errors import UsageError
from hybrid.host.streams import open_streams

COMMANDS = {
    "matmul": "multiply two matrices by all ranks of the job",
    "hello": "every rank greets, from its CPU threads and its GPU",
    "doctor": "find what keeps a job from running well",
    "accept": "test that all devices of a job are right and equally fast",
    "lab": "run a CUDA kernel of your own without a GPU, and find its errors",
    "lectures": "the lectures' figures and programs",
    "paths": "count the paths of a length, exactly, by matrix powers",
}


def main() -> int:
    """Without a word, or with one that asks for help, the list; `python -m hybrid matmul` is `python -m hybrid.matmul`."""
    open_streams()
    word = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if word == "--version":
        print(f"hybrid-runner {__version__}")
        return 0
    if word in ("-h", "--help", "help"):
        print(f"hybrid-runner {__version__}: python -m hybrid.COMMAND --help tells more\n")
        for name, summary in COMMANDS.items():
            print(f"  hybrid.{name:<10}{summary}")
        return 0
    try:
        command = one_of("command", word.removeprefix("hybrid."), COMMANDS)
    except UsageError as error:
        print(f"hybrid: {error}", file=sys.stderr)
        return error.exit_code
    del sys.argv[1]
    return import_module(f"hybrid.{command}").main()


if __name__ == "__main__":
    sys.exit(main())
