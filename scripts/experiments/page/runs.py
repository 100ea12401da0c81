# SPDX-License-Identifier: MIT
"""The scripts that a report needs no recorded lines of: they are run, one after the other."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from experiments.start import SCRIPTS

LECTURES = ("lecture_pmpp", "lecture_2d", "lecture_hochberg", "lecture_siegel", "largest", "pascal")  # with --quick
PATHS = ("ten --length 4", "ten --length 4 --from C --to J", "five --length 2000 --from A --to B")


def commands(quick: bool) -> Iterator[list[str]]:
    """What comes after python."""
    for name in LECTURES:
        yield [str(SCRIPTS / f"{name}.py"), *(["--quick"] if quick else [])]
    for asked in PATHS:
        yield ["-m", "hybrid.paths", *shlex.split(asked)]


def run(quick: bool, path: Path) -> list[str]:
    """Run all, which append their lines to `path`; what failed. What each has to say beside its table is on standard error."""
    failed = []
    for words in commands(quick):
        name = shlex.join(["python", *words]).replace(f"{SCRIPTS}/", "scripts/")
        print(name, file=sys.stderr, flush=True)
        # In the file's folder, so that the command recorded in it names no folder of this machine.
        record = [sys.executable, *words, "--json", path.name]
        nothing = subprocess.DEVNULL
        if code := subprocess.run(record, cwd=path.parent, stdin=nothing, stdout=nothing, check=False).returncode:
            failed.append(f"{name}: exit code {code}, the reason is on standard error")
    return failed
