# SPDX-License-Identifier: MIT
"""The command python -m hybrid.run program.py: runs an unchanged program within `hybrid.use`; all ranks compute its products."""

from __future__ import annotations

import argparse
import atexit
import builtins
import os
import pkgutil
import re
import runpy
import signal
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import hybrid
from hybrid.commands.cli import PATIENCE, agree_on_options, answer_failed, fail, fail_before_start, is_switched_on, show_traceback
from hybrid.commands.parser import Parser, add_settings, number_of
from hybrid.commands.streams import name_foreign_variables, print_line
from hybrid.core.settings import Settings
from hybrid.errors import HybridError, UsageError
from hybrid.ranks import heartbeat, supervisor
from hybrid.ranks.launcher import handle, heed, launched, rank_by_launcher
from hybrid.ranks.team import Team, start_world, world_communicator

NAME = "hybrid.run"
_OF_MULTIPLY = ("device", "precision", "check", "threads", "stall")
_LEFT_TO_THE_PROGRAM = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # sent to all ranks
_USES_MPI = re.compile(rb"^\s*(?:import|from)\s+mpi4py\b", re.MULTILINE)
_OUTSIDE = (__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_EXAMPLES = """\
examples:
  python -m hybrid.run program.py --its --options
  mpirun -n 4 python -m hybrid.run --report -m package.module

Only rank 0 runs the program. The other ranks compute its products with their GPUs or cores until it ends.
Exit code, standard streams, signals and sys.argv are the program's.
"""


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m hybrid.run",
        usage="%(prog)s [options] PROGRAM [its arguments]\n       %(prog)s [options] -m MODULE [its arguments]",
        description="Run an unchanged Python program: all ranks compute its NumPy and SciPy products where that is faster.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="a Python file, and its arguments")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, as python -m does")
    least = "take every product of at least N multiply-adds, faster or not (the machine model decides)"
    parser.add_argument("--threshold", type=number_of("multiply-adds"), metavar="N", help=least)
    parser.add_argument("--report", action="store_true", help="at the end, report on standard error what was done")
    add_settings(parser, *_OF_MULTIPLY)
    return parser


def parse() -> argparse.Namespace:
    """The options. UsageError for wrong ones, and for programs that several ranks cannot run."""
    options = build_parser().parse_args()
    if not (words := options.module if options.module is not None else options.program):
        raise UsageError("name a program: python -m hybrid.run program.py", code="usage")
    if options.module is None and not os.path.exists(words[0]):
        raise UsageError(f"there is no file {words[0]}", code="file-missing")
    # The program's file, if it can be found without importing a package.
    spec = find_spec(words[0]) if options.module is not None and "." not in words[0] else None
    source = Path(words[0] if options.module is None else (spec and spec.origin) or "")
    launch = launched()
    if launch is not None and launch.size > 1 and source.is_file() and _USES_MPI.search(source.read_bytes()):
        remedy = "start it with mpirun python, and have it call hybrid.multiply or hybrid.use(comm)"
        raise UsageError(f"{source} uses MPI itself, and would run on rank 0 alone: {remedy}", code="option-combination")
    return options


def main() -> int:
    try:
        options = parse()
        name_foreign_variables(NAME)
        chosen = {name: getattr(options, name) for name in _OF_MULTIPLY if getattr(options, name) is not None}
        settings = Settings.gather(chosen)
    except HybridError as error:
        return answer_failed(NAME, error)
    run = _Run(options, settings, chosen)
    launch = launched()
    if launch is None or launch.size == 1:
        return run.alone()
    if not is_switched_on("HYBRID_GUARD"):
        return run.as_rank()
    return supervisor.supervised(run.as_rank, settings.stall, None)


class _Run:
    """The run of a program. After it, Python joins its threads, and calls its atexit functions and at last `_end`, which was
    registered first."""

    def __init__(self, options: argparse.Namespace, settings: Settings, chosen: dict[str, Any]) -> None:
        self._options, self._settings, self._chosen, self._code = options, settings, chosen, 0
        self._used: Any = None
        self._process = 0
        self._team: Team | None = None

    def alone(self) -> int:
        """Run the program in this process; returns its exit code."""
        try:
            self._use(None)
        except HybridError as error:
            return answer_failed(NAME, error)
        ended_by = self._run_program()
        if isinstance(ended_by, KeyboardInterrupt):  # Python then exits by the signal
            sys.excepthook = lambda *_: None
            raise ended_by
        return self._code

    def as_rank(self) -> int:
        team: Team | None = None
        try:
            heed(signal.SIGINT)
            team = self._team = start_world(patience=PATIENCE)
            heartbeat.mpi_started()
            agree_on_options(team, self._options, self._settings)
            heartbeat.leave_group()
            for signum in _LEFT_TO_THE_PROGRAM if team.rank else ():
                signal.signal(signum, signal.SIG_IGN)
            self._use(world_communicator(team))
            if team.rank:
                self._end_together(team)
                return self._code
        except BaseException as error:
            show_traceback()
            return fail_before_start(NAME, error) if team is None else fail(NAME, team, error)
        handle(signal.SIGINT, signal.default_int_handler)
        team.enter("program")
        heartbeat.busy().__enter__()  # to the end of the process
        if isinstance(self._run_program(), KeyboardInterrupt):
            self._code = 128 + signal.SIGINT
        return self._code

    def _use(self, comm: Any) -> None:
        """Start `hybrid.use`; on ranks other than 0 it returns when the program has ended."""
        self._used = hybrid.use(comm, threshold=self._options.threshold, **self._chosen)
        self._used.start()
        if rank_by_launcher() == 0:
            self._process = os.getpid()
            atexit.register(self._end)  # runs after the program's own atexit functions

    def _end(self) -> None:
        with suppress(OSError, ValueError):  # the program may have closed it
            sys.stdout.flush()
        if os.getpid() != self._process:  # forked by the program
            if self._team is not None:
                os._exit(self._code)  # mpi4py would finalize MPI, which does not work here
            return
        try:
            self._used.stop()
            if self._options.report:
                print_line(NAME, self._used.report())
            if self._team is not None:
                self._end_together(self._team)
        except BaseException as error:
            if self._team is None:
                raise
            fail(NAME, self._team, error)

    def _end_together(self, team: Team) -> None:
        """Every rank ends with the program's exit code."""
        with team.phase("end", timed=False) as ending:
            ending.mine = self._code
        self._code = ending.all[0]
        heartbeat.report_exit_code(self._code)

    def _run_program(self) -> BaseException | None:
        """Run the program, and set its exit code. Returns the exception that ended it, after Python's excepthook has shown it."""
        try:
            self._become_program()
        except SystemExit as left:
            self._code = _exit_code(left.code)
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename in _OUTSIDE:
                trace = trace.tb_next
            self._code = 1
            try:
                sys.excepthook(type(error), error.with_traceback(trace), trace)
            except SystemExit as left:
                self._code = _exit_code(left.code)
            return error
        return None

    def _become_program(self) -> None:
        """Run the program as this process's __main__, which stays: the program's threads and atexit functions may need it."""
        words = self._options.module if self._options.module is not None else self._options.program
        sys.argv[:] = words
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        if self._options.module is not None:
            runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]
        elif pkgutil.get_importer(words[0]) is None:
            path = os.path.abspath(words[0])
            if not getattr(sys.flags, "safe_path", False):
                sys.path[0] = os.path.dirname(os.path.realpath(path))
            main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
            exec(main.__loader__.source_to_code(main.__loader__.get_data(path), path), main.__dict__)  # noqa: S102
        else:  # a folder or archive with a module __main__
            sys.path[0] = os.path.abspath(words[0])
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]


def _exit_code(said: object) -> int:
    """Python's exit code for sys.exit(said)."""
    if said is None or isinstance(said, int):
        return int(said or 0) & 0xFF
    print(said, file=sys.stderr)
    return 1
