# SPDX-License-Identifier: MIT
"""Compiles kernels of a .cu file into a shared library for the CPU, by the machine's C++ compiler, and caches it on disk."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hybrid.core import private_folder
from hybrid.emulation.errors import EmulationError
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.kernels.sources import KERNELS

HERE = Path(__file__).resolve().parent

# No strict aliasing: kernels load elements as float4 or double2. No contraction to fused multiply-adds: the kernels say where
# they want one. No warnings: nvcc gives those.
_COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
_KERNEL = {
    "": ("-O2",),
    "undefined": ("-O1", "-g1", "-fsanitize=undefined", "-fno-sanitize-recover=all"),
    "address": ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    "threads": ("-O1", "-g1", "-fsanitize=thread"),
    # Not -O0, where every use of a variable that a lambda captures is a counted access, and kernels take minutes. At -O1 two
    # loads of the same element may be merged, as nvcc may do, too.
    "loads": ("-O1", "-fsanitize=thread"),
}
_RUNTIME = {"address": ("-DCHECKS_ADDRESS",), "threads": ("-DCHECKS_THREADS",)}
# "loads" links our own functions (loads.cpp) instead of ThreadSanitizer's runtime.
_LINK = {
    "undefined": ("-fsanitize=undefined",),
    "address": ("-fsanitize=address,undefined",),
    "threads": ("-fsanitize=thread",),
}
CHECKS = tuple(_KERNEL)


def compiler() -> str:
    """The path of a C++17 compiler: $CXX, g++ or clang++. DeviceUnavailable when there is none."""
    return _program(
        "CXX",
        ("g++", "clang++"),
        "C++",
        "CUDA kernels on the CPU (--device emulate) need a C++ compiler: apt-get install g++ (or set CXX)",
    )


def c_compiler() -> str:
    """The path of a C compiler: $CC, gcc, clang or cc. DeviceUnavailable when there is none."""
    return _program(
        "CC",
        ("gcc", "clang", "cc"),
        "C",
        "the loops on the CPU (--kernel loops) need a C compiler: apt-get install gcc (or set CC)",
    )


def _program(variable: str, names: Sequence[str], language: str, missing: str) -> str:
    asked_for = os.environ.get(variable)
    for name in [asked_for] if asked_for else names:
        if path := shutil.which(name):
            return path
    if asked_for:
        raise DeviceUnavailable(f"{variable}={asked_for} is not a program: let it name a {language} compiler, or nothing")
    raise DeviceUnavailable(missing)


def build(source: Path, expressions: Sequence[str], *, capability: int = 90, checks: str = "") -> Path:
    """A shared library with these instances of the kernels in `source` as functions run_0, run_1, ...

    Headers are searched beside `source`, then among the project's kernels. `capability`: the compute capability, times ten,
    that sets __CUDA_ARCH__. EmulationError of kind "build" when they do not compile.
    """
    source = source.resolve()
    flags = (*_COMMON, *_KERNEL[checks], *_native(), f"-D__CUDA_ARCH__={capability * 10}")
    entries = "".join(
        f'extern "C" __attribute__((visibility("default"))) int run_{i}(const cuda_on_cpu::Launch* launch,\n'
        f"    const cuda_on_cpu::Array* arrays, int count, char* error, size_t error_size)\n"
        f"{{ return cuda_on_cpu::start({expression}, launch, arrays, count, error, error_size); }}\n"
        for i, expression in enumerate(expressions)
    )
    headers = sorted({*source.parent.glob("*.cuh"), *KERNELS.glob("*.cuh")})
    program = compiler()
    key = _cache_key(program, flags, entries, source, *headers, *sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp")))
    name = source.stem + (f"-{checks}" if checks else "")
    library = cache_folder() / f"{name}-{key}.so"
    if not _kept(library):
        with _beside(library) as folder:
            text = folder / f"{source.stem}.cpp"
            # The anonymous namespace keeps symbols of several loaded libraries apart.
            text.write_text(f'namespace {{\n#include "{source.name}"\n}}\n{entries}', encoding="utf-8")
            short = [f"-ffile-prefix-map={prefix}/=" for prefix in (source.parent, KERNELS)]  # so that messages say tiled.cu:20
            include = [
                "-include",
                str(HERE / "cuda_on_cpu.h"),
                "-iquote",
                str(source.parent),
                "-I",
                str(HERE),
                "-I",
                str(KERNELS),
            ]
            _compile(program, source.name, [*flags, *short, *include, "-c", str(text), "-o", str(folder / "kernel.o")], library)
            first, last, *others = _runtime(program, checks)
            objects = [first, folder / "kernel.o", last, *others]  # their order in .bss, which runtime.cpp relies on
            link = ["-shared", *_LINK.get(checks, ()), *map(str, objects), "-o", str(folder / "library.so")]
            _compile(program, source.name, link, library)
            _keep(folder / "library.so", library)
    return library


def build_plain(program: str, source: Path, flags: Sequence[str]) -> Path:
    """A shared library of one ordinary C file, by this compiler. EmulationError of kind "build" if it fails."""
    flags = (*flags, "-fPIC", "-shared", *_native())
    library = cache_folder() / f"{source.stem}-{_cache_key(program, flags, source)}.so"
    if not _kept(library):
        with _beside(library) as folder:
            _compile(program, source.name, [*flags, str(source), "-o", str(folder / "library.so")], library)
            _keep(folder / "library.so", library)
    return library


def _runtime(program: str, checks: str) -> list[Path]:
    """The object files that are linked to every kernel, compiled once."""
    flags = (*_COMMON, "-O2", *_RUNTIME.get(checks, ()))
    sources = [*sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp"))]
    cached = cache_folder() / f"runtime-{_cache_key(program, flags, checks, *sources)}"
    names = ["runtime", "loads"] if checks == "loads" else ["runtime"]
    if not _kept(cached):
        with _beside(cached) as folder:
            for edge in ("first", "last"):
                (folder / f"{edge}.cpp").write_text(f'extern "C" {{ alignas(128) char shared_{edge}[128]; }}\n', encoding="utf-8")
                _compile(program, edge, [*flags, "-c", str(folder / f"{edge}.cpp"), "-o", str(folder / f"{edge}.o")], cached)
            for name in names:
                runtime = ["-c", str(HERE / f"{name}.cpp"), "-o", str(folder / f"{name}.o")]
                _compile(program, f"{name}.cpp", [*flags, *runtime], cached)
            try:
                (folder / "done").mkdir(mode=0o700)
                for name in ("first", "last", *names):
                    _keep(folder / f"{name}.o", folder / "done" / f"{name}.o")
                os.rename(folder / "done", cached)
            except OSError:
                if not cached.is_dir():  # else another process put the same there first
                    raise
    return [cached / f"{name}.o" for name in ("first", "last", *names)]


def _compile(program: str, what: str, arguments: Sequence[str], target: Path) -> None:
    """Run the compiler. If it fails, all of its output is written beside `target`, with suffix .log."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace")  # noqa: S603
    except OSError as error:
        raise EmulationError("build", f"the compiler {program} cannot be run: {one_line(error)}") from None
    if done.returncode:
        log = target.with_suffix(".log")
        log.write_text(f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}", encoding="utf-8")
        lines = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines() or ["no message"]
        raise EmulationError("build", f"{what} does not compile for the CPU: {lines[0].strip()} (all of it: {log})")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A temporary folder, from which a finished file is moved to `target` atomically: ranks may build the same at once."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent)
    except OSError as error:
        raise _unusable(target.parent, error) from None
    with folder as path:
        yield Path(path)


def cache_folder() -> Path:
    """The private folder of compiled libraries, created if needed. DeviceUnavailable if that fails."""
    try:
        return private_folder.cache_folder("emulation")
    except OSError as error:
        raise _unusable("the cache, nor in the folder for temporary files", error) from None


def _unusable(where: Path | str, error: OSError) -> DeviceUnavailable:
    return DeviceUnavailable(f"compiled kernels cannot be kept in {where} ({one_line(error)}): set XDG_CACHE_HOME")


def _kept(path: Path) -> bool:
    """Whether it has been compiled by this user. What is there by that name and is not certainly so is removed."""
    if not os.path.lexists(path):
        return False  # and what another process puts there now stays
    if not private_folder.is_own(path):
        private_folder.discard(path)
        return False
    return True


def _keep(file: Path, target: Path) -> None:
    file.chmod(0o700)
    os.replace(file, target)


def _cache_key(program: str, *parts: object) -> str:
    """A hash of all that a library depends on: texts, files' contents, the compiler and the CPU."""
    digest = hashlib.sha256()
    for part in (_version(program), _cpu(), *parts):
        content = part.name.encode() + part.read_bytes() if isinstance(part, Path) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:20]


@cache
def _version(path: str) -> str:
    try:
        return subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    except OSError as error:
        raise EmulationError("build", f"the compiler {path} cannot be run: {one_line(error)}") from None


@cache
def _cpu() -> str:
    """The model and the features of this CPU, on which -march=native depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}))


def _native() -> tuple[str, ...]:
    return ("-march=native",) if platform.machine() in ("x86_64", "aarch64") else ()
