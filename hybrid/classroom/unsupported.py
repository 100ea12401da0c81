# SPDX-License-Identifier: MIT
"""Refuses kernels and whole CUDA programs that use what the CPU runtime does not have."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from hybrid.classroom.cuda_text import (
    blanked,
    device_functions,
    functions_of_device,
    host_bodies,
    host_functions,
    launches_in,
    origin,
)
from hybrid.classroom.student_file import StudentFile, StudentKernel, kernels_of
from hybrid.emulation.build import HERE
from hybrid.errors import HybridError, UsageError

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_HEADERS = {
    r"cublas": "cuBLAS",
    r"GL/|glut": "OpenGL",
    r"cusparse|cusolver|cufft|cudnn|nccl": "a library of CUDA's",
    r"curand": "cuRAND",
    r"thrust/|cub/|cuda/": "Thrust, CUB and libcu++",
    r"cuda_bf16|cuda_fp8|mma\.h": "bfloat16, 8-bit numbers and matrix units",
    r"cooperative_groups/(?:memcpy_async|scan)": "copies and scans of cooperative groups",
}
_WORDS = {
    r"\btexture\s*<|\btex[123]D\w*\s*[(<]|\bcudaTextureObject_t\b|\bsurf[123]D": "textures",
    r"\bcublas[A-Z]\w*\s*\(": "cuBLAS",
    r"\bcurand\w*\s*\(": "cuRAND",
    r"\bcudaGraph(?!ics)\w+": "CUDA graphs",
    r"\bcudaGraphics\w+|\bcudaGL\w+": "OpenGL",
    r"\bthis_(?:multi_)?grid\b|\bgrid_group\b|\b(?:this_cluster|cluster_group)\b": "groups of several blocks",
}
_DEVICE_WORDS = {  # in functions that run on the device
    r"\b(?:malloc|free)\s*\(|\bnew\b|\bdelete\b": "{} within a kernel",
    r"\b__nv_bfloat162?\b": "{}",
    r"\b(?:nvcuda|wmma)\b": "matrix units (wmma)",
    r"\b(?:asm|__asm__)\b": "PTX instructions (asm)",
    r"\bstd::(?:vector|string|map|cout|cerr|endl)\b": "{} within a kernel",
    r"\bcudaGridDependencySynchronize\b|\bcudaDeviceSynchronize\b": "{} within a kernel",
}
_CONSTANT_WITHOUT_VALUE = re.compile(r"\b__constant__\s+[\w\s]+?\b(\w+)\s*(?:\[[^\]]*\]\s*)*;")
_CALL = re.compile(r"\b(cuda[A-Z]\w*)\s*\(")
_REMOVED = {  # by CUDA 13: what takes its place
    "cudaThreadSynchronize": "cudaDeviceSynchronize",
    "cudaThreadExit": "cudaDeviceReset",
    "cudaThreadSetCacheConfig": "cudaDeviceSetCacheConfig",
    "cudaThreadSetLimit": "cudaDeviceSetLimit",
}
_REMOVED_IN = 13
_GLOBAL = re.compile(r"\b__global__\b(?:\s*__launch_bounds__\s*\([^()]*\))?([^();{}]*)\(")
_NOT_A_DEFINITION = {"return", "else", "case", "do"}


def refuse_unsupported(text: str, name: str) -> None:
    """UsageError if the text, of a file of this name, uses what is not supported; it says what, and in which line."""
    plain = blanked(text)
    launches = [launch.opening for launch in launches_in(text, name)]

    def refuse(place: int, what: str) -> None:
        file, line = origin(text, place, name)
        raise UsageError(f"{file}, line {line}: {what}: the CPU runtime does not have that", code="lab-unsupported")

    for found in _INCLUDE.finditer(text):
        what = next((what for pattern, what in _HEADERS.items() if re.match(pattern, found[1])), "")
        if what and plain[found.start() : found.end()].strip():
            refuse(found.start(), what)
    for pattern, what in _WORDS.items():
        if word := re.search(pattern, plain):
            refuse(word.start(), what)
    for _, begin, end in functions_of_device(plain):
        if inner := [place for place in launches if begin <= place < end]:
            refuse(inner[0], "a kernel that launches a kernel (dynamic parallelism)")
        for pattern, what in _DEVICE_WORDS.items():
            if word := re.compile(pattern).search(plain, begin, end):
                refuse(word.start(), what.format(word[0].rstrip(" (")))
    known = set(re.findall(r"\bcuda[A-Z]\w*", (HERE / "host_api.h").read_text(encoding="utf-8")))
    for call in _CALL.finditer(plain):
        if call[1] not in known and not _is_defined(plain, call[1]):
            refuse(call.start(), call[1])


def refuse_host_calls(text: str, name: str) -> None:
    """UsageError if a kernel or device function calls a function that only the host may call. `text`: the file's of this name,
    with its own headers."""
    plain, hosts = blanked(text), host_functions(text)
    for _, begin, end in functions_of_device(plain) if hosts else ():
        for called, place in _calls(hosts, plain, begin, end):
            if not re.search(rf"\b{called}\s*=[^=]", plain[begin:end]):
                file, line = origin(text, place, name)
                raise UsageError(
                    f"{file}, line {line}: {called} is a function of the host: __device__ is missing before it",
                    code="lab-unsupported",
                )


def refuse_as_nvcc(text: str, name: str, cuda: int) -> None:
    """HybridError where nvcc of this version of CUDA refuses it. `text`: the file's of this name, with its own headers."""
    plain = blanked(text)

    def refuse(place: int, what: str) -> None:
        file, line = origin(text, place, name)
        raise HybridError(f"{file}, line {line}: {what}", code="compile-failed")

    for found in _GLOBAL.finditer(plain):
        if not re.search(r"\bvoid\b", plain[max(plain.rfind(mark, 0, found.start()) for mark in ";}") + 1 : found.end()]):
            refuse(found.start(), "a kernel (__global__) returns void, and hands its results over in device memory")
    for name_of, place in _calls({kernel.name for kernel in kernels_of(text)}, plain, 0, len(plain)):
        refuse(place, f"{name_of} is a kernel: its launch has <<<grid, block>>> before the arguments")
    of_device = device_functions(text)
    for begin, end in host_bodies(text):
        for name_of, place in _calls(of_device, plain, begin, end):
            refuse(place, f"{name_of} is a function of the device: the host may call it with __host__ before it")
    for call in _CALL.finditer(plain) if cuda >= _REMOVED_IN else ():
        if instead := _REMOVED.get(call[1], ""):
            refuse(call.start(), f"CUDA 13 has no {call[1]}: {instead} takes its place (--cuda 12 takes the program as it is)")


def _calls(names: Collection[str], plain: str, begin: int, end: int) -> Iterator[tuple[str, int]]:
    """The names and places of calls of these functions, without launches and declarations."""
    pattern = re.compile(rf"(?<![\w.:>])({'|'.join(names)})\s*(?:<[^;(){{}}]*>\s*)?\(")
    for call in pattern.finditer(plain, begin, end) if names else ():
        before = re.search(r"(\w+)\s*$", plain[max(begin, call.start() - 80) : call.start()])
        if "<<<" not in call[0] and (before is None or before[1] in _NOT_A_DEFINITION):
            yield call[1], call.start()


def _is_defined(plain: str, name: str) -> bool:
    """Whether the program itself has a macro or a function of this name."""
    if re.search(rf"#[ \t]*define[ \t]+{name}\b", plain):
        return True
    declared = re.findall(rf"(\w+)[\s*&]+{name}\s*\([^;{{]*\)\s*[;{{]", plain)
    return any(word not in _NOT_A_DEFINITION for word in declared)


def refuse_without_host(file: StudentFile, kernel: StudentKernel) -> None:
    """UsageError if the kernel reads constant memory that only host code would fill, which does not run."""
    for name in _CONSTANT_WITHOUT_VALUE.findall(blanked(file.compiled)):
        if re.search(rf"\b{name}\b", kernel.body):
            how = "run the whole program, without --kernel" if file.has_main else "give it a value where it is declared"
            raise UsageError(
                f"{kernel.name} reads the constant memory {name}, which only host code fills: {how}", code="lab-unsupported"
            )
