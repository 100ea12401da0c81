# SPDX-License-Identifier: MIT
"""How many registers and how much shared memory a student's kernel takes, by NVIDIA's compiler where this machine has one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

from hybrid.classroom.student_file import StudentFile
from hybrid.classroom.student_kernel import StudentKernel
from hybrid.core.problem import record
from hybrid.emulation.child import new_folder, python_environment
from hybrid.emulation.compiler_limits import own_headers, run_limited
from hybrid.emulation.confined import of_python
from hybrid.emulation.errors import EmulationError
from hybrid.errors import HybridError, one_line

# From this compute capability on, times ten, a thread has up to 255 registers, and addresses have 64 bits, so a kernel takes
# about as many registers on one GPU as on another.
_COMPARABLE_FROM = 35
_TYPES = {"float": "f", "double": "d", "int": "i", "unsigned": "j", "bool": "b", "long": "l"}


@record
class Resources:
    """What one instance of a kernel takes of a GPU, as NVIDIA's assembler (ptxas) says."""

    registers: int = 0  # of a thread
    shared: int = 0  # bytes that the source declares
    stack: int = 0  # bytes of a thread
    spill_stores: int = 0  # bytes
    spill_loads: int = 0
    most_threads: int = 0  # of a block, by its __launch_bounds__; 0: it has none


def resources_in(log: str, ptx: str = "") -> dict[str, Resources]:
    """By mangled name, what `--ptxas-options=-v` says in `log` of each kernel, with the functions that it calls. `ptx`: the
    kernels' PTX, for their __launch_bounds__."""
    bounds = {
        name: int(x) * int(y) * int(z)
        for name, x, y, z in re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), (\d+), (\d+)", ptx)
    }
    found = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = part.split("'")[1]
        local = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if registers is None:
            raise HybridError(f"the compiler's log says nothing of the registers of {name}", code="compile-failed")
        stack, stores, loads = (sum(map(int, column)) for column in zip(*local, strict=True)) if local else (0, 0, 0)
        found[name] = Resources(int(registers[1]), int(shared[1]) if shared else 0, stack, stores, loads, bounds.get(name, 0))
    return found


@record
class Taken:
    """What a kernel takes of a GPU."""

    of: Resources | None  # None where it is not known
    how: str  # by which compiler and for which GPUs it is known, or why it is not


def taken(file: StudentFile, kernel: StudentKernel, instance: str, capability: int) -> Taken:
    """What this instance of the kernel takes on GPUs of this compute capability, times ten."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return _by_nvrtc(file, kernel, instance, capability)
    architecture = _nearest(nvcc, capability)
    if architecture != capability and capability < _COMPARABLE_FROM:
        return Taken(None, f"not known: this nvcc compiles for no GPU older than sm_{architecture}")
    with new_folder() as folder:
        source = folder / file.path.name
        # A template is compiled where something refers to an instance.
        refers = f"\nvoid* lab_reference() {{ return reinterpret_cast<void*>(&{instance}); }}\n"
        source.write_bytes(file.path.read_bytes() + refers.encode())
        command = [nvcc, "-cubin", f"-arch=sm_{architecture}", "-Xptxas", "-v", "-w", "-I", str(file.path.parent)]
        try:
            arguments = [*command, "-o", str(folder / "cubin"), str(source)]
            reads = own_headers(file.path.resolve().parent)
            done = run_limited("the kernel", arguments, {**os.environ, "TMPDIR": str(folder)}, reads, folder)
        except EmulationError as error:
            return Taken(None, f"not known: {one_line(error)}")
    found = [] if done.returncode else _of_instance(done.stderr, kernel.name, instance)
    if len(found) != 1:
        return Taken(None, f"not known: nvcc does not compile it for sm_{architecture}")
    closest = "" if architecture == capability else ", the nearest that it compiles for"
    return Taken(found[0], f"by nvcc for sm_{architecture}{closest}")


def _by_nvrtc(file: StudentFile, kernel: StudentKernel, instance: str, capability: int) -> Taken:
    """What the kernel takes as NVRTC compiles it, which the extras cuda12 and cuda13 bring."""
    if capability < _COMPARABLE_FROM:
        return Taken(None, "not known: NVRTC compiles for no GPU as old as this")
    with new_folder() as folder:
        source = folder / file.path.name
        source.write_text(file.for_gpu, encoding="utf-8")
        command = [sys.executable, "-m", "hybrid.classroom.nvrtc_log", str(source), instance, str(capability)]
        reads, lists = of_python()
        try:
            headers = own_headers(file.path.resolve().parent)
            environment = {**python_environment(), "TMPDIR": str(folder)}
            done = run_limited("the kernel", command, environment, [*reads, *headers], folder, lists)
        except EmulationError as error:
            return Taken(None, f"not known: {one_line(error)}")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Taken(None, f"not known: the process that compiles with NVRTC ended: {said}")
    told = json.loads(done.stdout)
    if "unavailable" in told:
        why = told["unavailable"]
        return Taken(None, "not known without nvcc or NVRTC" if "cannot be loaded" in why else f"not known: {why}")
    found = _of_instance(told["log"], kernel.name, instance)
    if len(found) != 1:
        return Taken(None, f"not known: NVRTC says nothing of {instance}")
    architecture = told["architecture"]
    closest = "" if architecture == capability else ", the nearest that it compiles for"
    return Taken(found[0], f"by NVRTC for sm_{architecture}{closest}")


def _nearest(nvcc: str, capability: int) -> int:
    """The compute capability nearest to this one that nvcc compiles for."""
    out = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    known = [int(number) for number in re.findall(r"compute_(\d+)\b", out)]
    return min(known, key=lambda each: abs(each - capability), default=capability)


def _of_instance(log: str, name: str, instance: str) -> list[Resources]:
    """What the compiler's log says of kernels of this name, and for a template with the instance's arguments."""
    inner = re.fullmatch(r"[^<]*<(.*)>\s*", instance)
    arguments = [text.strip() for text in inner[1].split(",")] if inner else []
    encoded = "".join(_TYPES.get(text, rf"L\w{text}E" if text.isdecimal() else r"\w+?") for text in arguments)
    pattern = re.compile(rf"_Z(?:N\w*?)?{len(name)}{name}" + (f"I{encoded}E" if arguments else "(?!I)"))
    return [resources for mangled, resources in resources_in(log).items() if pattern.match(mangled) or mangled == name]
