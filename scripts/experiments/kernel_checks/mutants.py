# SPDX-License-Identifier: MIT
"""Are faults in kernels found without a GPU? Plants them one by one: python scripts/mutants.py kernels [--all] [NAME ...]

Each fault is a small change of a kernel or of a header, such as a barrier left out. The changed kernel runs on the CPU's
CUDA runtime in the mode that finds it soonest, or with --all in every mode. Ends with 1 if a fault goes unnoticed there, or
shows as something else.
"""

import argparse
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from experiments.common import cli, tables, timing
from experiments.kernel_checks import faults, remainder_checks, remainder_faults
from experiments.kernel_checks.faults import SHAPES, Fault
from experiments.start import ROOT
from hybrid.core.settings import one_of
from hybrid.emulation.build import compiler
from hybrid.emulation.checked import Job, Verdict, run_checked
from hybrid.errors import UsageError
from hybrid.host.files import atomic_write
from hybrid.kernels.catalogue import KERNELS

FAULTS = (*faults.FAULTS, *remainder_faults.FAULTS)
TABLE = ROOT / "docs" / "mutants.md"
MODES = ("forward", "reverse", "shuffled", "undefined", "address", "threads")


PREFACE = """# Planted faults, and what finds them

Written by `python scripts/mutants.py kernels --all --write`: each fault is planted into a kernel, which then runs on the CPU's
CUDA runtime. The columns are the modes in which it runs: in forward, reverse and shuffled order of the threads, with asynchronous
copies done as late as allowed, as early, or mixed; and under the compiler's sanitizers for undefined behaviour, addresses and
threads. Each cell says what was noticed first:

| word | meaning |
| --- | --- |
| wrong | C is not A·B |
| canary | A, B or memory beside a matrix was written to |
| race | a data race between threads, or an element of C read or written more than once |
| barrier | a barrier that not all threads reach |
| warp | a warp operation that not all of its lanes call |
| copy | an asynchronous copy that is wrong |
| address, undefined | the sanitizer of this name speaks |
| crash, hang | the process ended by a signal, or not in time |
| – | nothing was noticed in this mode |

From norms on, the kernels are those of products from remainders. What they compute is compared with exact integers.

Faults in all other rooms stand in `tests/mutants`, a JSON object a line, 160 of them drawn at random by Cosmic Ray:
`python scripts/mutants.py run` plants each in a copy of the checkout and runs the tests that should find it.

"""


def plant(fault: Fault, folder: Path) -> Path:
    """The kernel's source with the fault, in `folder`, and those of other kernels that its check launches."""
    own, *beside = remainder_checks.sources_of(fault.kernel) or [timing.kernel_of(fault.kernel).source]
    for original in [KERNELS / own, *(KERNELS / name for name in beside), *KERNELS.glob("*.cuh")]:
        text = original.read_text()
        if original.name == (fault.file or own):
            if fault.old not in text:
                raise LookupError(f"{original.name} no longer has {fault.old!r}, which the fault {fault.name!r} changes")
            text = text.replace(fault.old, fault.new)
        (folder / original.name).write_text(text)
    return folder / own


def tried(fault: Fault, modes: Sequence[str]) -> list[Verdict]:
    """For each mode the first verdict that is not "ok", or an "ok"."""
    with tempfile.TemporaryDirectory() as folder:
        source = plant(fault, Path(folder))
        if check := remainder_checks.CHECKS.get(fault.kernel):
            shapes = check.shapes if fault.shapes == SHAPES else fault.shapes
            return remainder_checks.tried(source, fault.kernel, shapes, modes)
        job = Job(str(source), fault.kernel, fault.dtype, SHAPES[0], fault.capability)
        jobs = [replace(job, shape=shape, mode=mode) for mode in modes for shape in fault.shapes]
        verdicts = run_checked(jobs, seconds=600)
    count = len(fault.shapes)
    return [next((v for v in verdicts[i * count : (i + 1) * count] if v.kind != "ok"), Verdict("ok")) for i in range(len(modes))]


def table(rows: Iterable[tuple[Fault, list[Verdict]]]) -> str:
    cells = [
        [fault.kernel, fault.name, *("–" if verdict.kind == "ok" else verdict.kind for verdict in verdicts)]
        for fault, verdicts in rows
    ]
    return tables.markdown(tables.Table(["kernel", "fault", *MODES], "l" * (len(MODES) + 2), cells))


def work(options: argparse.Namespace) -> int:
    if options.write and not options.all:
        raise UsageError("--write needs --all")
    for name in options.kernels:
        one_of("kernel with planted faults", name, sorted({fault.kernel for fault in FAULTS}))
    chosen = [fault for fault in FAULTS if not options.kernels or fault.kernel in options.kernels]
    compiler()
    missed = []
    if options.all:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            every = tqdm(pool.map(lambda fault: tried(fault, MODES), chosen), total=len(chosen), disable=None)
            rows = list(zip(chosen, every, strict=True))
        missed = [fault for fault, verdicts in rows if verdicts[MODES.index(fault.found_by)].kind != fault.kind]
        print(table(rows), end="")
        if options.write:
            with atomic_write(str(TABLE)) as path:
                path.write_text(PREFACE + table(rows), encoding="utf-8")
    else:
        for fault in chosen:
            (verdict,) = tried(fault, [fault.found_by])
            print(f"{fault.kernel:<18} {fault.name:<50} {fault.found_by:<9} {verdict.kind}", flush=True)
            missed += [fault] if verdict.kind != fault.kind else []
    for fault in missed:
        print(f"MISSED {fault.kernel}: {fault.name}")
    return int(bool(missed))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="only the faults in these kernels")
    parser.add_argument("--all", action="store_true", help="every fault in every mode (many minutes)")
    parser.add_argument("--write", action="store_true", help=f"with --all: write the table to {TABLE.name} in docs")
    return cli.command(parser, work, arguments)
