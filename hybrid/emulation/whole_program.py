# SPDX-License-Identifier: MIT
"""Compiles a whole CUDA program for the CPU, with a check of each access to memory, and runs it in a confined child process."""

from __future__ import annotations

import codecs
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hybrid.core.problem import record
from hybrid.emulation.build import COMMON, HERE, POISON, compile_file, compiler, native, runtime_object, takes
from hybrid.emulation.cache import cache_folder
from hybrid.emulation.child import supervised
from hybrid.emulation.confined import Bounds, confined, installed_with, of_students

_FLAGS = (*(flag for flag in COMMON if flag != "-w"), "-DWHOLE_PROGRAM", "-D__CUDA_ARCH__=900")
_UNDEFINED = ("-fsanitize=bounds", "-fsanitize=signed-integer-overflow", "-fsanitize=shift-exponent", "-fsanitize=return")
_CHECKED = (  # DWARF 4: addr2line of binutils 2.40 gives DWARF 5 lines of headers to another file
    *("-O1", "-g1", "-gdwarf-4", "-fsanitize=thread", *_UNDEFINED, "-fno-builtin-printf", "-fno-omit-frame-pointer"),
    "-fno-ipa-reference-addressable",  # keeps the host's static variables: a kernel's access to them is an error
    "-fno-tree-sra",  # one instruction loads a float4, as on a GPU
    *("-fstack-protector-strong", "-U_FORTIFY_SOURCE"),  # fortified functions would bypass host_memory.cpp
    *("-Wunused-result", "-Wuninitialized", "-Wmaybe-uninitialized"),
)
_WRAPPED = tuple(f"-Wl,--wrap={name}" for name in ("memcpy", "memmove", "memset"))  # see host_memory.cpp
_LATER = 5  # seconds after its limit, for the program to report where it is
_MOST_OUTPUT = 1 << 20  # bytes shown
_MOST_OF_ARRAYS = 64 << 20  # bytes, as in runtime.h
_HANDED_OVER = {"arrays", "ended", "writers", "sites", "branches", "trace"}  # members of events that lie in shared memory


@record
class ProcessResult:
    status: int  # as `Popen.wait` returns it
    findings: tuple[dict[str, Any], ...]  # of the runtime (see runtime.h)


@record
class Ranks:
    """How an MPI program is compiled and started."""

    number: int
    launcher: Sequence[str]  # mpirun with its arguments
    variable: str  # the environment variable with a process's rank
    flags: Sequence[str]  # for the compiler and the linker


def built(source: Path, text: str, more_flags: Sequence[str] = ()) -> tuple[Path, str]:
    """Write the rewritten text to `source` and compile it; returns the executable, beside `source`, and the compiler's warnings.

    `more_flags`: for compiler and linker, of OpenMP and MPI. EmulationError of kind "build" if the text does not compile.
    """
    program, folder = compiler(), source.parent
    source.write_text(text, encoding="utf-8")
    flags = [*_FLAGS, *_CHECKED, *native(), *more_flags, *([POISON] if takes(program, POISON) else [])]
    include = ["-include", str(HERE / "host_api.h"), f"-ffile-prefix-map={folder}/=", "-x", "c++"]
    log, compiled = cache_folder() / f"{source.stem}.log", folder / "program.o"  # the log outlives the folder
    with ThreadPoolExecutor(1) as others_compile:
        runtime = others_compile.submit(runtime_object, program, "program")
        arguments = [*flags, *include, "-c", str(source), "-o", str(compiled)]
        warnings = compile_file(program, source.name, arguments, log, [folder])
        objects = [str(runtime.result()), str(compiled)]
    link = [*objects, *more_flags, *_WRAPPED, "-ldl", "-lm", "-lpthread", "-o", str(folder / "program")]
    compile_file(program, source.name, link, log)
    return folder / "program", warnings


def run(
    program: Path,
    source: Path,
    arguments: Sequence[str],
    seconds: int,
    show: Callable[[str], None],
    ranks: Ranks | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    current: Path | None = None,
    arrays: Sequence[np.ndarray] = (),
    launches: int = 1,
) -> list[ProcessResult]:
    """Run the executable that was built from `source`; returns each rank's findings, all with the launcher's exit status.

    `show`: gets standard output and standard error. `current`: the program's working folder, which it may write to; the caller's
    by default. `variables`: of its environment. `arrays`: copied to it through shared memory. `seconds`: the limit of each of the
    `launches`.
    """
    folder, current = program.parent, current or Path.cwd()
    mark = secrets.token_hex(16)
    given = [(current / argument).resolve() for argument in arguments if (current / argument).is_file()]
    reads = [source.resolve().parent, *given, *(installed_with(ranks.launcher[0]) if ranks else ())]
    limit = launches * seconds + _LATER
    stdin = subprocess.DEVNULL
    with suppress(AttributeError, OSError, ValueError):  # None, io.UnsupportedOperation, closed
        stdin = sys.stdin.fileno()
    settings = {  # for the runtime
        "HYBRID_LAB_FINDINGS": str(folder / "findings"),
        "HYBRID_LAB_SECONDS": str(seconds),
        "HYBRID_LAB_MARK": mark,
        **({"HYBRID_LAB_RANK": ranks.variable} if ranks else {}),
    }
    bounds = Bounds(limit, folder, reads, [current], ranks=ranks is not None)
    with ExitStack() as opened:
        numbers = range(ranks.number if ranks else 1)
        files = [opened.enter_context(_new(folder / f"findings.{rank}")) for rank in numbers]
        memories = [opened.enter_context(_new(folder / f"findings.{rank}.arrays")) for rank in numbers]
        for memory in memories:
            memory.truncate(_MOST_OF_ARRAYS)
            for array in arrays:
                memory.write(array.tobytes())
                memory.seek(-memory.tell() % 8, os.SEEK_CUR)
            memory.flush()
        confine = opened.enter_context(confined(bounds))
        ended = supervised(
            [*ranks.launcher, str(program), *arguments] if ranks else [str(source), *arguments],
            limit,
            confine,
            show=_first_of(show),
            executable=None if ranks else program,
            stdin=stdin,
            env={**of_students(os.environ, folder), **settings, **(variables or {})},
            cwd=current,
        )
        status = -signal.SIGKILL if ended.status is None else ended.status
        return [ProcessResult(status, tuple(_findings(*each, mark))) for each in zip(files, memories, strict=True)]


def _new(file: Path) -> BinaryIO:
    """A new file, in place of an earlier run's; kept open, so that no file that the program puts in its place is read."""
    file.unlink(missing_ok=True)
    return open(file, "x+b")


def _findings(findings: BinaryIO, memory: BinaryIO, mark: str) -> Iterator[dict[str, Any]]:
    """The findings in a rank's file: the lines with the mark, since the program could write others there."""

    def handed_over(where: Sequence[int]) -> np.ndarray:
        place, size = where
        return np.frombuffer(os.pread(memory.fileno(), size, place).ljust(size, b"\0"), "u1")  # the program may truncate the file

    findings.seek(0)
    for line in findings.read().decode(errors="replace").splitlines():
        begins, _, text = line.partition(" ")
        if begins == mark:
            each = json.loads(text)
            for name in _HANDED_OVER & each.keys():
                each[name] = handed_over(each[name]) if isinstance(each[name][0], int) else [*map(handed_over, each[name])]
            yield {**each, "file": Path(each["file"]).name} if "file" in each else each


def _first_of(show: Callable[[str], None]) -> Callable[[bytes], None]:
    """A function that shows the first _MOST_OUTPUT bytes that it is given."""
    decoder, left = codecs.getincrementaldecoder("utf-8")(errors="replace"), _MOST_OUTPUT

    def shown(data: bytes) -> None:
        nonlocal left
        if left > 0:
            show(decoder.decode(data[:left]))
            left -= len(data)
            if left <= 0:
                show(f"\n(more than {_MOST_OUTPUT} bytes: the rest is not shown)\n")

    return shown
