# SPDX-License-Identifier: MIT
"""`--resume` of python -m hybrid.matmul: C is computed in parts, each written to the disk before the next, so that a later job
can go on."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid import __version__
from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.core.text import counted
from hybrid.errors import HybridError, UsageError
from hybrid.ranks.heartbeat import tell_how_to_go_on
from hybrid.ranks.launcher import launched
from hybrid.runs.files import code_of_reading

if TYPE_CHECKING:
    from hybrid.commands.matmul_journal import State
    from hybrid.commands.matmul_parts import ProductInParts
    from hybrid.runs.measured import Outcome
    from hybrid.runs.operands import TypedProduct
    from hybrid.selection.decision import Inventory, Machine
    from hybrid.selection.session import Session

_BEGINNING = 4096  # bytes: the header of most formats


def prepared(
    session: Session,
    options: argparse.Namespace,
    settings: Settings,
    typed: TypedProduct,
    inventories: Sequence[Inventory],
) -> ProductInParts:
    """The product, with those of its parts that an earlier job has written. Every rank calls it."""
    from hybrid.commands.matmul_parts import ProductInParts
    from hybrid.runs.matrix_file import new_matrix

    if typed.types.converts:
        raise UsageError(
            f"--resume writes C as it is computed, of float32, float64 or complex numbers, and not of {typed.types.result}: "
            "leave it out, or choose another --dtype",
            code="dtype",
        )
    n, _, m = typed.sizes
    output = new_matrix(options.out, (n, m), typed.result)
    asked = partial(what_is_asked, typed, options, settings)
    product = ProductInParts(session, typed, output, asked, __version__, inventories, settings)
    try:
        product.prepare()
    except BaseException:
        product.close()
        raise
    return product


def carried_out(
    product: ProductInParts, progress: Callable[[str, int, int], None], measuring: Callable[[], AbstractContextManager[None]]
) -> Outcome:
    """Compute the parts that are missing. Every rank calls it. Whoever ends the job meanwhile is told how to go on.

    `measuring`: as for `ProductInParts.run`.
    """
    with closing(product):
        outcome = product.run(progress, partial(_tell, product), measuring)
    tell_how_to_go_on("")
    return outcome


def what_is_asked(product: TypedProduct, options: argparse.Namespace, settings: Settings) -> dict[str, str]:
    """What distinguishes this product from others, in words: only the same product is continued."""
    from hybrid.runs.matrix_file import matrix_name

    def operand(name: str | None) -> str:
        if name is None:
            return options.fill if options.fill == "index" else f"{options.fill} of seed {options.seed}"
        found = matrix_name(name)
        return _fingerprint(found.file) + (f" /{found.inside}" if found.inside else "")

    target = matrix_name(options.out)
    return {
        "sizes": "×".join(map(str, product.sizes)),
        "dtype": str(product.types),
        "A": operand(options.a),
        "B": operand(options.b),
        "C": f"{target.form} /{target.inside}",
        "check": "off" if settings.check == "off" else "on",
    }


def _fingerprint(path: str) -> str:
    """A text for messages that is the same as long as a file, or folder of files, is not changed: its size, the time of its last
    change, and a digest of its first bytes. UsageError where it cannot be read."""
    target = Path(os.path.realpath(path))
    size, changed, digest = 0, 0, blake2b(digest_size=4)
    try:
        for file in sorted(each for each in target.rglob("*") if each.is_file()) if target.is_dir() else (target,):
            found = file.stat()
            size, changed = size + found.st_size, max(changed, found.st_mtime_ns)
            if file == target:
                with open(file, "rb") as opened:
                    digest.update(opened.read(_BEGINNING))
            else:
                name = f"{file.relative_to(target)} {found.st_size} {found.st_mtime_ns}\n"
                digest.update(name.encode(errors="surrogateescape"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", code=code_of_reading(error)) from None
    seconds, nanoseconds = divmod(changed, 10**9)
    return f"{target} ({size} bytes, changed at {seconds}.{nanoseconds:09d}, {digest.hexdigest()})"


def hint_at_left_parts(out: str) -> str:
    """For a command without --resume: a hint at parts that an earlier job has left beside the file of --out; "" if there are
    none."""
    state = _left(out)
    if state is None:
        return ""
    return (
        f"{out}.journal is of a job that had written {counted(state.rows_there, 'row')} of C when it ended: "
        "with --resume the same command goes on there, this one leaves it as it is"
    )


def part_to_explain(machine: Machine, problem: Problem, options: argparse.Namespace, settings: Settings) -> tuple[Problem, str]:
    """A part of the product for `--explain`, and a line about it."""
    from hybrid.commands.matmul_parts import rows_of_a_part, sample_of
    from hybrid.planning.tiling import PlanRequest
    from hybrid.reporting.run_report import parts_line
    from hybrid.selection.decision import Decision, decide

    state = _left(options.out)
    rows = settings.resume_rows or (state.rows if state else 0)
    if not rows:
        sample = decide(machine, PlanRequest(sample_of(problem, machine.topology.size)), settings)
        assert isinstance(sample, Decision), "an assumed machine leaves nothing unknown"
        rows = rows_of_a_part(problem, sample)
    there = state.rows_there if state else 0
    return replace(
        problem, n=min(rows, problem.n)
    ), f"{parts_line(rows, problem.n, there, f'{options.out}.journal').strip()}; the plan of a part:"


def _left(out: str) -> State | None:
    """What the journal beside the file says, without a look at the rows themselves; None where there is none that can be read."""
    from hybrid.commands.matmul_journal import journal_of, read_journal

    if not os.path.lexists(journal := journal_of(_file_of(out))):
        return None
    try:
        return read_journal(journal)
    except HybridError:
        return None


def _file_of(out: str) -> str:
    from hybrid.runs.matrix_file import matrix_name

    return matrix_name(out).file


def _tell(product: ProductInParts) -> None:
    """Leave word how to go on, for whoever ends the job."""
    there = f"{product.rows_there} rows are in {product.name}, go on with: "
    tell_how_to_go_on(there + _command()) or tell_how_to_go_on(f"{there}the same command")


def _command() -> str:
    """The command line by which this job was started."""
    launch = launched()
    before = [launch.name.split()[0], "-n", str(launch.size)] if launch else []
    python, *arguments = sys.orig_argv
    return shlex.join([*before, os.path.basename(python), *arguments])
