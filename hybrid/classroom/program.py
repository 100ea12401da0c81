# SPDX-License-Identifier: MIT
"""Compiles and runs a student's whole CUDA program on the CPU runtime."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from hybrid.classroom.cuda_text import INCLUDE, blanked, joined, ours, rewritten, with_dynamic_shared
from hybrid.classroom.program_account import Account, account_of, of_all_ranks
from hybrid.classroom.student_file import StudentFile, kernels_of
from hybrid.classroom.unsupported import refuse_host_calls, refuse_unsupported
from hybrid.emulation import whole_program
from hybrid.emulation.child import new_folder
from hybrid.errors import HybridError, StartError, UsageError
from hybrid.ranks.launcher import family_of, mpirun

_OF_CUDA = {  # whose contents the CPU runtime has
    *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "driver_types.h", "vector_types.h"),
    *("device_functions.h", "math_functions.h", "builtin_types.h", "math_constants.h", "vector_functions.h"),
    *("cuda_fp16.h", "cooperative_groups.h", "cooperative_groups/reduce.h"),
    *("cuda_pipeline.h", "cuda_pipeline_primitives.h"),
}
_OPENMP = re.compile(r"^[ \t]*#[ \t]*(?:pragma[ \t]+omp\b|include[ \t]*<omp\.h>)", re.MULTILINE)
_MPI = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]mpi\.h[>\"]", re.MULTILINE)
_USUAL_RANKS = 2


def is_program(file: StudentFile) -> bool:
    """Whether the file has a main function and, itself or in its own headers, launches kernels."""
    return file.has_main and any("<<<" in blanked(text) for text in file.texts.values())


def _for_cpu(file: StudentFile) -> str:
    """The text that is compiled. UsageError where it has what is not supported."""
    text = joined(file.texts, elsewhere=True)
    refuse_unsupported(text, file.path.name)
    templates = {kernel.name: len(kernel.template) for kernel in kernels_of(text)}
    text = with_dynamic_shared(rewritten(text, file.path.name, templates))
    return INCLUDE.sub(lambda found: ours(found) if found[2][1:-1] in _OF_CUDA else found[0], text)


def _started(file: StudentFile, ranks: int) -> whole_program.Ranks:
    """How the program is started on so many ranks. HybridError where there is no MPI."""
    try:
        command = mpirun(ranks)
        variable = "OMPI_COMM_WORLD_RANK" if family_of(command[0]) == "Open MPI" else "PMI_RANK"
        return whole_program.Ranks(ranks, command, variable, _compiler_flags(Path(command[0]).with_name("mpicc")))
    except StartError as missing:
        raise HybridError(f"{file.path} is a program of MPI (mpi.h): {missing}", code="mpi-missing") from None


def ran(
    file: StudentFile,
    arguments: Sequence[str],
    seconds: int,
    show: Callable[[str], None],
    ranks: int | None = None,
) -> Account:
    """Compile and run the program, and return what was found. `show` is given its output. `ranks`: of an MPI program; 2 for None.

    UsageError for what is not supported, EmulationError if it does not compile.
    """
    text = _for_cpu(file)
    refuse_host_calls(joined(file.texts), file.path.name)

    def has(pattern: re.Pattern[str]) -> bool:  # maybe in a comment, which does no harm
        return any(pattern.search(each) for each in file.texts.values())

    flags = ["-fopenmp"] if has(_OPENMP) else []
    started = None
    if has(_MPI):
        started = _started(file, ranks or _USUAL_RANKS)
        flags += started.flags
    elif ranks:
        raise UsageError(
            f"{file.path} includes no mpi.h: it is one process, and --ranks is for programs of MPI", code="option-combination"
        )
    sources = {path.name: each.split("\n") for path, each in file.texts.items()}
    with new_folder() as folder:
        program, warnings = whole_program.built(folder / file.path.name, text, flags)
        outcomes = whole_program.run(program, file.path, arguments, seconds, show, started)
        return of_all_ranks([account_of(outcome, program, warnings, sources, seconds) for outcome in outcomes])


def _compiler_flags(mpicc: Path) -> list[str]:
    """The compiler flags for a C++ program that calls MPI, as its mpicc tells them. StartError where there is none."""
    if not mpicc.exists():
        raise StartError(
            f"no mpicc beside {mpicc.with_name('mpirun')}", "install your MPI's files for developers", code="mpi-missing"
        )
    shown = subprocess.run([str(mpicc), "-show"], capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
    return shlex.split(shown)[1:]
