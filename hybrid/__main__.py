# SPDX-License-Identifier: MIT
"""`python -m hybrid`: which commands there are."""

import sys
from importlib import import_module

from hybrid import __version__
from hybrid.commands.streams import open_streams
from hybrid.core.settings import one_of
from hybrid.errors import HybridError, UsageError, with_code
from hybrid.ranks.launcher import rank_by_launcher

COMMANDS = {
    "matmul": "multiply two matrices by all ranks of the job",
    "hello": "every rank greets, from its CPU threads and its GPU",
    "doctor": "find what keeps a job from running well",
    "accept": "test that all devices of a job are right and equally fast",
    "lab": "run a CUDA kernel of your own without a GPU, and find its errors",
    "lectures": "the lectures' figures and programs",
    "paths": "count the paths of a length, exactly, by matrix powers",
    "run": "run an unchanged program, whose products all ranks compute",
}
FOR_SHELLS = {
    "completion": "print completion of the commands hybrid-... for bash and zsh",
    "man": "write their manual pages to a folder",
}


def main() -> int:
    """List the commands, or run one: `python -m hybrid matmul` is `python -m hybrid.matmul`."""
    open_streams()
    word = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if (command := word.removeprefix("hybrid.")) in COMMANDS:
        del sys.argv[1]
        code: int = import_module(f"hybrid.{command}").main()
        return code
    if rank_by_launcher() != 0:  # rank 0 answers
        return 0
    try:
        if word in ("-h", "--help", "help"):
            _list()
        elif word == "--version":
            print(f"hybrid-runner {__version__}")
        else:
            _serve_shell(one_of("command", command, [*COMMANDS, *FOR_SHELLS]), sys.argv[2:])
    except HybridError as error:
        print(f"hybrid: {with_code(error, error.code)}", file=sys.stderr)
        return error.exit_code
    return 0


def _list() -> None:
    print(f"hybrid-runner {__version__}: python -m hybrid.COMMAND --help tells more\n")
    for name, summary in COMMANDS.items():
        print(f"  hybrid.{name:<12}{summary}")
    print()
    for word, summary in FOR_SHELLS.items():
        print(f"  hybrid {word:<12}{summary}")


def _serve_shell(word: str, given: list[str]) -> None:
    from hybrid.commands import shell

    if given in (["-h"], ["--help"]):
        print(f"usage: python -m hybrid {word}{' FOLDER' if word == 'man' else ''}\n\n{FOR_SHELLS[word]}")
        return
    if len(given) != (word == "man"):
        raise UsageError(f"python -m hybrid {word} takes {'the name of a folder' if word == 'man' else 'nothing more'}")
    if word == "completion":
        print(shell.completion(list(COMMANDS)), end="")
    else:
        for page in shell.write_manual(given[0], list(COMMANDS)):
            print(page)


if __name__ == "__main__":
    sys.exit(main())
