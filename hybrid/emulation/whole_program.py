# SPDX-License-Identifier: MIT
"""Compiles a whole CUDA program for the CPU, with each access to memory looked at, and runs it in a limited child process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hybrid.emulation.build import COMMON, HERE, POISON, compile_file, compiler, native, takes
from hybrid.emulation.cache import cache_folder, cache_key, cached
from hybrid.emulation.confined import Bounds, confined, installed_with

# In the order of what they need at their beginning.
_RUNTIME = ("findings", "device_memory", "memory_check", "instrumented", "runtime", "api_call", "host_api", "host_api_events")
_FLAGS = (*(flag for flag in COMMON if flag != "-w"), "-DWHOLE_PROGRAM", "-D__CUDA_ARCH__=900")
_CHECKED = (  # DWARF 4, because addr2line of binutils 2.40 takes the lines of headers in DWARF 5 for another file's
    *("-O1", "-g1", "-gdwarf-4", "-fsanitize=thread", "-fsanitize=bounds", "-fno-builtin-printf", "-fno-omit-frame-pointer"),
    *("-Wunused-result", "-Wuninitialized"),
)
_LATER = 5  # seconds after its own limit, at which a program tells where it is
_MOST_OUTPUT = 1 << 20  # bytes that are shown


@dataclass(frozen=True)
class Ran:
    """A process: `status` as of one that was waited for; `findings`: what the runtime told (see findings.h)."""

    status: int
    findings: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Ranks:
    """Of a program of MPI: how many processes, the command that starts them, and the variable that tells each its rank.

    `flags`: what the compiler and the linker need for it.
    """

    number: int
    launcher: Sequence[str]
    variable: str
    flags: Sequence[str]


def built(
    source: Path, text: str, others: Mapping[str, str], more_flags: Sequence[str] = (), reads: Sequence[Path] = ()
) -> tuple[Path, str]:
    """An executable beside `source`, whose text (already rewritten) is given, and the compiler's warnings.

    `others`: own headers by the name by which the text includes them; `more_flags`: the compiler's and the linker's, for OpenMP
    and MPI; `reads`: files that the compiler may read besides. EmulationError of kind "build" if it does not compile.
    """
    program, folder = compiler(), source.parent
    for name, content in {source.name: text, **others}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    flags = [*_FLAGS, *_CHECKED, *native(), *more_flags, *([POISON] if takes(program, POISON) else [])]
    include = ["-include", str(HERE / "host_api.h"), "-iquote", str(folder), f"-ffile-prefix-map={folder}/=", "-x", "c++"]
    log, compiled = cache_folder() / f"{source.stem}.log", folder / "program.o"  # where it stays
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
    key = cache_key(program, flags, *sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp")))

    def compile_in(folder: Path, log: Path, name: str) -> Path:
        compile_file(program, f"{name}.cpp", [*flags, "-c", str(HERE / f"{name}.cpp"), "-o", str(folder / f"{name}.o")], log)
        return folder / f"{name}.o"

    with ThreadPoolExecutor(len(_RUNTIME)) as compiling:
        return list(compiling.map(lambda name: cached(f"program-{name}-{key}.o", partial(compile_in, name=name)), _RUNTIME))


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
    """Run what was built of `source`, and tell of each rank what was found. All have the launcher's status.

    `show` is given what it writes to standard output and standard error. `current`: the folder in which it runs, and to which it
    may write; the caller's if it is None.
    """
    folder = program.parent
    told = [folder / f"findings.{rank}" for rank in range(ranks.number if ranks else 1)]
    for each in told:
        each.unlink(missing_ok=True)  # of an earlier run, which may have made it a link to another file
        each.touch(exist_ok=False)
    environment = {**os.environ, "HYBRID_LAB_FINDINGS": str(folder / "findings"), "HYBRID_LAB_SECONDS": str(seconds)}
    mark = secrets.token_hex(16)
    environment |= {"HYBRID_LAB_MARK": mark, "TMPDIR": str(folder)}
    if ranks:
        environment["HYBRID_LAB_RANK"] = ranks.variable
    current = current or Path.cwd()
    given = [(current / argument).resolve() for argument in arguments if (current / argument).is_file()]
    reads = [source.resolve().parent, *given, *(installed_with(ranks.launcher[0]) if ranks else ())]
    bounds = Bounds(seconds + _LATER, folder, reads, [current], ranks=ranks is not None)
    with (
        confined(bounds) as confine,
        subprocess.Popen(  # noqa: S603
            [*ranks.launcher, str(program), *arguments] if ranks else [str(source), *arguments],
            executable=None if ranks else program,
            stdin=sys.stdin if sys.stdin is not None and _is_file(sys.stdin) else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=current,
            preexec_fn=confine,
        ) as process,
    ):
        overdue = threading.Timer(seconds + _LATER, process.kill)
        overdue.start()
        try:
            _pass_on(process, show)
            status = process.wait()
        finally:
            overdue.cancel()
            process.kill()
    return [Ran(status, tuple(_findings(each, mark))) for each in told]


def _findings(told: Path, mark: str) -> Iterator[dict[str, Any]]:
    """In the lines with the mark: the program could write others, or put something else in the file's place."""
    if told.is_symlink() or not told.is_file():
        return
    for line in told.read_text(encoding="utf-8", errors="replace").splitlines():
        begins, _, text = line.partition(" ")
        if begins == mark:
            each = json.loads(text)
            yield {**each, "file": Path(each["file"]).name} if "file" in each else each


def _is_file(stream: Any) -> bool:
    try:
        return bool(stream.fileno() >= 0)
    except (OSError, ValueError):
        return False


def _pass_on(process: subprocess.Popen[bytes], show: Callable[[str], None]) -> None:
    shown = 0
    assert process.stdout is not None
    for line in process.stdout:
        if shown < _MOST_OUTPUT:
            show(line.decode(errors="replace"))
            shown += len(line)
            if shown >= _MOST_OUTPUT:
                show(f"\n(more than {_MOST_OUTPUT} bytes: the rest is not shown)\n")
