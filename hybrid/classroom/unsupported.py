# SPDX-License-Identifier: MIT
"""What a whole CUDA program may have that the CPU runtime does not."""

from __future__ import annotations

import re

from hybrid.classroom.c_text import blanked, end_of_block
from hybrid.classroom.launches import launches_in
from hybrid.emulation.build import HERE
from hybrid.errors import UsageError

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_HEADERS = {
    r"cublas": "cuBLAS",
    r"cusparse|cusolver|cufft|cudnn|nccl": "a library of CUDA's",
    r"curand": "cuRAND",
    r"thrust/|cub/|cuda/": "Thrust and CUB",
    r"cooperative_groups": "cooperative groups",
    r"cuda_fp16|cuda_bf16|mma\.h": "half precision and matrix units",
}
_WORDS = {
    r"\btexture\s*<|\btex[123]D\w*\s*[(<]|\bcudaTextureObject_t\b|\bsurf[123]D": "textures",
    r"\bcublas[A-Z]\w*\s*\(": "cuBLAS",
    r"\bcurand\w*\s*\(": "cuRAND",
    r"\bcudaGraph\w+": "CUDA graphs",
}
_CALL = re.compile(r"\b(cuda[A-Z]\w*)\s*\(")
_DEVICE_FUNCTION = re.compile(r"\b__(?:global|device)__\b[^;{}=]*\)[^;{}()=]*\{")
_NOT_A_DEFINITION = {"return", "else", "case"}


def refuse_unsupported(text: str, name: str) -> None:
    """UsageError in a line: what is not there, and in which line of the file `name`."""
    plain = blanked(text)
    launches = [launch.opening for launch in launches_in(text, name)]

    def refuse(place: int, what: str) -> None:
        raise UsageError(f"{name}, line {text.count(chr(10), 0, place) + 1}: {what}: the CPU runtime does not have that")

    for found in _INCLUDE.finditer(text):
        what = next((what for pattern, what in _HEADERS.items() if re.match(pattern, found[1])), "")
        if what and plain[found.start() : found.end()].strip():
            refuse(found.start(), what)
    for pattern, what in _WORDS.items():
        if word := re.search(pattern, plain):
            refuse(word.start(), what)
    for function in _DEVICE_FUNCTION.finditer(plain):
        end = end_of_block(plain, function.end() - 1)
        body = plain[function.end() : end]
        if inner := [place for place in launches if function.end() <= place < end]:
            refuse(inner[0], "a kernel that launches a kernel (dynamic parallelism)")
        if allocation := re.search(r"\b(?:malloc|free)\s*\(|\bnew\b|\bdelete\b", body):
            refuse(function.end() + allocation.start(), f"{allocation[0].rstrip(' (')} within a kernel")
    known = set(re.findall(r"\bcuda[A-Z]\w*", (HERE / "host_api.h").read_text(encoding="utf-8")))
    for call in _CALL.finditer(plain):
        if call[1] not in known and not _is_defined(plain, call[1]):
            refuse(call.start(), call[1])


def _is_defined(plain: str, name: str) -> bool:
    """Whether the program itself has a macro or a function of this name."""
    if re.search(rf"#[ \t]*define[ \t]+{name}\b", plain):
        return True
    declared = re.findall(rf"(\w+)[\s*&]+{name}\s*\([^;{{]*\)\s*[;{{]", plain)
    return any(word not in _NOT_A_DEFINITION for word in declared)
