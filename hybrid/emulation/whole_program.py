# SPDX-License-Identifier: MIT
"""Compiles a whole CUDA program for the CPU, such that each access to memory is checked, and runs it in a confined child
process."""

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
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.problem import record
from hybrid.emulation.build import COMMON, HERE, POISON, compile_file, compiler, native, runtime_object, takes
from hybrid.emulation.cache import cache_folder
from hybrid.emulation.child import supervised
from hybrid.emulation.confined import Bounds, confined, installed_with, of_students

# In this order each is initialized after those that it needs for that.
_RUNTIME = (
    "findings",
    "device_memory",
    "memory_check",
    "instrumented",
    "runtime",
    "api_call",
    "product",
    "host_api",
    "host_api_events",
)
_FLAGS = (*(flag for flag in COMMON if flag != "-w"), "-DWHOLE_PROGRAM", "-D__CUDA_ARCH__=900")
_CHECKED = (  # DWARF 4, because addr2line of binutils 2.40 takes the lines of headers in DWARF 5 for another file's
    *("-O1", "-g1", "-gdwarf-4", "-fsanitize=thread", "-fsanitize=bounds", "-fno-builtin-printf", "-fno-omit-frame-pointer"),
    "-fno-ipa-reference-addressable",  # static variables of the host, which kernels may not use, stay variables
    "-fno-tree-sra",  # a float4 is loaded by one instruction, as by a GPU
    *("-Wunused-result", "-Wuninitialized", "-Wmaybe-uninitialized"),
)
_LATER = 5  # seconds that a program has beyond its limit, at which it tells where it is
_MOST_OUTPUT = 1 << 20  # bytes that are shown
_MOST_OF_ARRAYS = 64 << 20  # bytes, as in findings.h


@record
class Ran:
    """One process of a program that has run."""

    status: int  # as `Popen.wait` returns it
    findings: tuple[dict[str, Any], ...]  # of the runtime (see findings.h)


@record
class Ranks:
    """How an MPI program is compiled and started."""

    number: int  # of processes
    launcher: Sequence[str]  # the command that starts them
    variable: str  # the environment variable that has each process's rank
    flags: Sequence[str]  # of the compiler and the linker


def built(
    source: Path, text: str, others: Mapping[str, str], more_flags: Sequence[str] = (), reads: Sequence[Path] = ()
) -> tuple[Path, str]:
    """Compile a program; returns an executable beside `source`, and the compiler's warnings.

    `source`: where its text, which has been rewritten, is put. `others`: the texts of its own headers, by the name by which it
    includes them. `more_flags`: the compiler's and the linker's, for OpenMP and MPI. `reads`: files that the compiler may read
    besides. EmulationError of kind "build" if it does not compile.
    """
    program, folder = compiler(), source.parent
    for name, content in {source.name: text, **others}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    flags = [*_FLAGS, *_CHECKED, *native(), *more_flags, *([POISON] if takes(program, POISON) else [])]
    include = ["-include", str(HERE / "host_api.h"), "-iquote", str(folder), f"-ffile-prefix-map={folder}/=", "-x", "c++"]
    log, compiled = cache_folder() / f"{source.stem}.log", folder / "program.o"  # the log outlives the folder
    with ThreadPoolExecutor(1) as others_compile:
        runtime = others_compile.submit(_runtime, program)
        arguments = [*flags, *include, "-c", str(source), "-o", str(compiled)]
        warnings = compile_file(program, source.name, arguments, log, [folder, *reads])
        objects = [*map(str, runtime.result()), str(compiled)]
    link = [*objects, *more_flags, "-ldl", "-lm", "-lpthread", "-o", str(folder / "program")]
    compile_file(program, source.name, link, log)
    return folder / "program", warnings


def _runtime(program: str) -> list[Path]:
    """The object files that are linked to every program, compiled once."""
    flags = (*_FLAGS, "-O2", "-w")
    with ThreadPoolExecutor(len(_RUNTIME)) as compiling:
        return list(compiling.map(lambda name: runtime_object(program, name, flags, "program-"), _RUNTIME))


def run(
    program: Path,
    source: Path,
    arguments: Sequence[str],
    seconds: int,
    show: Callable[[str], None],
    ranks: Ranks | None = None,
    *,
    current: Path | None = None,
) -> list[Ran]:
    """Run what was built of `source`; returns what was found in each rank, of which all have the launcher's status.

    `show` is given what it writes to standard output and standard error. `current`: the folder in which it runs, and to which it
    may write; the caller's if it is None.
    """
    folder, current = program.parent, current or Path.cwd()
    files = [folder / f"findings.{rank}" for rank in range(ranks.number if ranks else 1)]
    for file in files:
        file.unlink(missing_ok=True)  # of an earlier run, which may have made it a link to another file
        file.touch(exist_ok=False)
        if current == Path.cwd():  # a program of its own, whose products are looked at
            with open(f"{file}.arrays", "xb") as arrays:
                arrays.truncate(_MOST_OF_ARRAYS)
    mark = secrets.token_hex(16)
    given = [(current / argument).resolve() for argument in arguments if (current / argument).is_file()]
    reads = [source.resolve().parent, *given, *(installed_with(ranks.launcher[0]) if ranks else ())]
    bounds = Bounds(seconds + _LATER, folder, reads, [current], ranks=ranks is not None)
    with confined(bounds) as confine:
        ended = supervised(
            [*ranks.launcher, str(program), *arguments] if ranks else [str(source), *arguments],
            seconds + _LATER,
            confine,
            show=_Shown(show),
            executable=None if ranks else program,
            stdin=sys.stdin if sys.stdin is not None and _is_file(sys.stdin) else subprocess.DEVNULL,
            env=_environment(folder, seconds, mark, ranks),
            cwd=current,
        )
    status = -signal.SIGKILL if ended.status is None else ended.status
    return [Ran(status, tuple(_findings(file, mark))) for file in files]


def _environment(folder: Path, seconds: int, mark: str, ranks: Ranks | None) -> dict[str, str]:
    """What the runtime in the program reads: where its findings go, with which mark, and when it has to tell where it is."""
    return {
        **of_students(os.environ, folder),
        "HYBRID_LAB_FINDINGS": str(folder / "findings"),
        "HYBRID_LAB_SECONDS": str(seconds),
        "HYBRID_LAB_MARK": mark,
        **({"HYBRID_LAB_RANK": ranks.variable} if ranks else {}),
    }


def _findings(file: Path, mark: str) -> Iterator[dict[str, Any]]:
    """The findings in a rank's file. Only lines with the mark are the runtime's: the program could write others there, or put
    something else in the file's place."""
    if file.is_symlink() or not file.is_file():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        begins, _, text = line.partition(" ")
        if begins == mark:
            each = json.loads(text)
            if each["event"] == "product":
                each["arrays"] = _arrays(each, file)
            yield {**each, "file": Path(each["file"]).name} if "file" in each else each


def _arrays(event: dict[str, Any], file: Path) -> list[np.ndarray]:
    """The arrays of a launch: two that it has read, the third, also as it was before, and which instruction has written what."""
    memory, place = np.memmap(f"{file}.arrays", mode="r"), event["place"]
    dtype = {"f": "f4", "d": "f8", "i": "i4"}[event["type"]]
    counts = [count for _, count, _ in event["operands"]]
    found = []
    for kind, count in ((dtype, counts[0]), (dtype, counts[1]), (dtype, counts[2]), (dtype, counts[2]), ("u4", counts[2])):
        found.append(np.frombuffer(memory, kind, count, place))
        place += -(-found[-1].nbytes // 8) * 8
    return found


def _is_file(stream: Any) -> bool:
    try:
        return bool(stream.fileno() >= 0)
    except (OSError, ValueError):
        return False


class _Shown:
    """Shows the first _MOST_OUTPUT bytes of a process's output."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._left = show, _MOST_OUTPUT
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, data: bytes) -> None:
        if self._left > 0:
            self._show(self._decoder.decode(data[: self._left]))
            self._left -= len(data)
            if self._left <= 0:
                self._show(f"\n(more than {_MOST_OUTPUT} bytes: the rest is not shown)\n")
