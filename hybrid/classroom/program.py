# SPDX-License-Identifier: MIT
"""Compiles and runs a student's whole CUDA program on the CPU runtime."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hybrid.classroom.c_text import blanked, with_dynamic_shared
from hybrid.classroom.compiled_text import INCLUDE, joined, ours
from hybrid.classroom.launches import rewritten
from hybrid.classroom.program_account import Account, account_of, of_all_ranks
from hybrid.classroom.student_file import StudentFile
from hybrid.classroom.student_kernel import kernels_of
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


@dataclass
class _Texts:
    """The texts of a file and of those that it includes."""

    templates: dict[str, int] = field(default_factory=dict)  # how many template parameters each kernel has
    found: dict[Path, tuple[str, str]] = field(default_factory=dict)  # by path: the name in the folder of the build, and the text

    def add(self, path: Path, text: str) -> None:
        """Add a file; the first is the program's own."""
        name = f"{len(self.found)}/{path.name}" if self.found else path.name
        self.found[path] = name, text
        self.templates.update((kernel.name, len(kernel.template)) for kernel in kernels_of(text))

    def have(self, pattern: re.Pattern[str]) -> bool:
        """Whether a file has this pattern, maybe in a comment: it does no harm to compile with OpenMP or MPI what does not use
        it."""
        return any(pattern.search(text) for _, text in self.found.values())

    def for_cpu(self) -> Iterator[tuple[str, str]]:
        """Each file's name and text. UsageError where one has what is not supported."""
        for path, (name, text) in self.found.items():
            refuse_unsupported(text, path.name)
            text = with_dynamic_shared(rewritten(text, path.name, self.templates))
            yield name, INCLUDE.sub(partial(self._included, path.parent), text)

    def _included(self, folder: Path, found: re.Match[str]) -> str:
        name = found[2][1:-1]
        own = self.found.get((folder / name).resolve()) if found[3] else None
        return f'{found[1]}"{own[0]}"' if own else ours(found) if name in _OF_CUDA else found[0]


def is_program(file: StudentFile) -> bool:
    """Whether the file has a main function and, itself or in its own headers, launches kernels."""
    return file.has_main and any("<<<" in blanked(text) for _, text in _texts(file).found.values())


def _texts(file: StudentFile) -> _Texts:
    texts = _Texts()
    for path, text in file.texts.items():
        texts.add(path, text)
    return texts


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
    texts = _texts(file)
    (name, text), *others = texts.for_cpu()
    refuse_host_calls(joined(file.texts), file.path.name)
    flags = ["-fopenmp"] if texts.have(_OPENMP) else []
    started = None
    if texts.have(_MPI):
        started = _started(file, ranks or _USUAL_RANKS)
        flags += started.flags
    elif ranks:
        raise UsageError(
            f"{file.path} includes no mpi.h: it is one process, and --ranks is for programs of MPI", code="option-combination"
        )
    sources = {path.name: text.split("\n") for path, (_, text) in texts.found.items()}
    with new_folder() as folder:
        program, warnings = whole_program.built(folder / name, text, dict(others), flags)
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
