# SPDX-License-Identifier: MIT
"""A student's .cu file: which kernels, structs and constants it has, and what of it is compiled for the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hybrid.classroom.c_text import (
    blanked,
    constants_in,
    end_of_block,
    spaces,
    structs_in,
    with_device_variables,
    with_dynamic_shared,
)
from hybrid.errors import UsageError

_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?(?:extern\s+\"C\"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{"
)
_PARAMETER = re.compile(r"(?P<type>\w+(?:\s+\w+)*?)(?:\s*(?P<pointer>\*)\s*|\s+)(?P<name>\w+)\s*(?P<array>\[\s*\])?$")
INCLUDE = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]*>|\"([^\"\n]*)\")", re.MULTILINE)
_NOT_A_TYPE = {"const", "volatile", "__restrict__", "__restrict", "restrict"}
ELEMENTS = {"float": "float32", "double": "float64"}
SCALES = ("alpha", "beta")
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_ALIAS = re.compile(
    r"\btypedef\s+(float|double)\s+(\w+)\s*;|\busing\s+(\w+)\s*=\s*(float|double)\s*;"
    r"|#[ \t]*define[ \t]+(\w+)[ \t]+(float|double)\b"
)
_HEADER = re.compile(r"#[ \t]*include[ \t]*<(\w+(?:\.h)?)>")
_MOST_BYTES = 1 << 20
_OF_DEVICE = frozenset({"cooperative_groups.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h", "cuda_pipeline.h"})  # as NVRTC has them
# Lines outside of functions: with types of host code, and declarations of its functions.
_OF_HOST = re.compile(
    r"^[^\n{}#]*\b(?:std\b|cuda(?:Error|Event|Stream)_t|cudaDeviceProp|FILE)[^\n{}#]*;[ \t]*$"
    r"|^(?!.*\b__(?:device|global)__)[ \t]*\w[\w:<>,&* \t]*\([^{};()=\n]*\);[ \t]*$",
    re.MULTILINE,
)
_FOR_NVRTC = {  # in place of headers of C
    r"c?stdint(?:\.h)?": (
        "typedef int int32_t; typedef unsigned uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;\n"
    ),
    r"c?assert(?:\.h)?": "#ifndef assert\n#define assert(...) ((__VA_ARGS__) ? (void)0 : __trap())\n#endif\n",
}
# Of the C++ library: headers that host code may need, whose declarations stay.
_STANDARD = frozenset({
    "algorithm", "array", "assert.h",
    "cassert", "chrono", "climits", "cmath", "complex", "cstdint", "cstdio", "cstdlib", "cstring",
    "ctime", "fstream", "functional", "iomanip", "iostream", "limits", "limits.h", "map", "math.h", "memory", "numeric", "random",
    "sstream", "stdexcept", "stdint.h", "stdio.h", "stdlib.h", "string", "string.h", "time.h", "tuple", "utility", "vector",
})  # fmt: skip
_NUMBERS = {
    "uint",
    "uint32_t",
    "int32_t",
    "uint64_t",
    "int64_t",
    "ulong",
    "int",
    "unsigned",
    "unsigned int",
    "long",
    "long long",
    "size_t",
    "unsigned long",
    "unsigned long long",
    "short",
}


@dataclass(frozen=True)
class Parameter:
    """`type` without const and pointer: that of the elements, of the number, or the struct's name."""

    name: str
    type: str
    is_pointer: bool

    @property
    def is_number(self) -> bool:
        return not self.is_pointer and self.type in _NUMBERS

    @property
    def is_scale(self) -> bool:
        """alpha or beta of C = alpha·A·B + beta·C"""
        return not self.is_pointer and self.type in ELEMENTS and self.name.lower() in SCALES

    def __str__(self) -> str:
        return f"{self.type}{'*' if self.is_pointer else ''} {self.name}"


@dataclass(frozen=True)
class StudentKernel:
    name: str
    parameters: tuple[Parameter, ...]
    line: int
    body: str  # without comments
    template: tuple[str, ...] = ()  # the names of its parameters

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    def instance(self, arguments: Sequence[str]) -> StudentKernel:
        """With a template's arguments in place of its parameters."""
        values = dict(zip(self.template, arguments, strict=True))
        parameters = tuple(replace(each, type=values.get(each.type, each.type)) for each in self.parameters)
        return replace(self, parameters=parameters)


@dataclass(frozen=True)
class StudentFile:
    """`compiled`: the text with the same lines, but without what only a host compiler of CUDA takes; `for_gpu`: for NVRTC."""

    path: Path
    text: str
    compiled: str
    for_gpu: str
    kernels: tuple[StudentKernel, ...]
    constants: dict[str, int] = field(default_factory=dict)
    structs: dict[str, dict[str, str]] = field(default_factory=dict)  # by name, the types of the fields
    headers: tuple[str, ...] = ()  # of the C++ library
    launch_comment: str = ""  # the rest of a line "// lab:"
    has_main: bool = False

    @property
    def lines(self) -> Sequence[str]:
        return self.text.split("\n")


def read(path: str) -> StudentFile:
    """UsageError where there is no such file."""
    return parsed(Path(path), text_of(path))


def parsed(file: Path, text: str) -> StudentFile:
    """A file of this name with this text."""
    plain = blanked(text)
    comment = re.search(r"//\s*lab:(.*)", text)
    constants = constants_in(plain)
    structs = structs_in(plain)
    has_main = re.search(r"\bmain\s*\(", plain) is not None
    return StudentFile(
        path=file,
        text=text,
        compiled=_for_cpu(text, file),
        for_gpu=_for_gpu(text, file),
        kernels=kernels_of(text),
        constants=constants,
        structs=structs,
        headers=tuple(
            dict.fromkeys(name for name in re.findall(r"#[ \t]*include[ \t]*<(\w+(?:\.h)?)>", text) if name in _STANDARD)
        ),
        launch_comment=comment[1].strip() if comment else "",
        has_main=has_main,
    )


def kernels_of(text: str) -> tuple[StudentKernel, ...]:
    plain = blanked(text)
    return tuple(_kernels(plain, _aliases(plain)))


def text_of(path: str) -> str:
    """UsageError where there is no such file, or none of text."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            what = "a folder" if file.is_dir() else "a pipe, a device or a socket"
            raise UsageError(f"{path} cannot be read: it is {what}, and no file")
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _MOST_BYTES or b"\0" in content:
        raise UsageError(
            f"{path} is no source file: it has {len(content)} bytes, and a zero among them or more than {_MOST_BYTES}"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n")


def _aliases(plain: str) -> dict[str, str]:
    """Other names of float and double."""
    found = {}
    for typedef, of_typedef, of_using, using, of_define, define in _ALIAS.findall(plain):
        found[of_typedef or of_using or of_define] = typedef or using or define
    return found


def _kernels(plain: str, aliases: dict[str, str]) -> Iterator[StudentKernel]:
    for found in _KERNEL.finditer(plain):
        line = plain.count("\n", 0, found.start("name")) + 1
        texts = [text.strip() for text in found["parameters"].split(",") if text.strip()]
        body = plain[found.end() : end_of_block(plain, found.end() - 1)]
        parameters = tuple(_parameter(text, aliases) for text in texts)
        template = tuple(text.partition("=")[0].split()[-1] for text in (found["template"] or "").split(",") if text.strip())
        yield StudentKernel(found["name"], parameters, line, body, template)


def _parameter(text: str, aliases: dict[str, str]) -> Parameter:
    """What cannot be taken has its text as the type: it matters only if this kernel is to be launched."""
    words = " ".join(word for word in re.sub(r"([*\[])", r" \1 ", text).split() if word not in _NOT_A_TYPE)
    found = _PARAMETER.match(words)
    if found is None:
        return Parameter(words, words, is_pointer=False)
    kind = found["type"].removeprefix("struct ")
    return Parameter(found["name"], aliases.get(kind, kind), bool(found["pointer"] or found["array"]))


def _for_cpu(text: str, file: Path) -> str:
    """Headers of CUDA and C are there already."""
    kept = with_dynamic_shared(with_device_variables(_without_host(text)))
    return INCLUDE.sub(lambda found: _included(found, file), kept)


def _for_gpu(text: str, file: Path) -> str:
    """CUDA's own headers stay. NVRTC has none of C, but what they declare for kernels."""

    def included(found: re.Match[str]) -> str:
        return found[0] if found[2][1:-1] in _OF_DEVICE else _included(found, file)

    headers = "".join(instead for header, instead in _FOR_NVRTC.items() if re.search(rf"#[ \t]*include[ \t]*<{header}>", text))
    kept = _without_host(text)
    plain = blanked(kept)
    for line in _OF_HOST.finditer(plain):
        if plain.count("{", 0, line.start()) == plain.count("}", 0, line.start()):
            kept = kept[: line.start()] + spaces(line[0]) + kept[line.end() :]
    return f'{headers}#line 1 "{file.name}"\n{INCLUDE.sub(included, kept)}'


def _without_host(text: str) -> str:
    """Without host functions, whose launches <<<…>>> no C++ compiler takes. Every line stays where it is."""
    plain, kept, place = _DIRECTIVE.sub(lambda found: spaces(found[0]), blanked(text)), list(text), 0
    while (opening := plain.find("{", place)) >= 0:
        end = end_of_block(plain, opening)
        begin = max(plain.rfind(mark, 0, opening) for mark in ";}") + 1
        begin = max(begin, place)
        head = plain[begin:opening].lstrip()
        begin = opening - len(head)  # directives before a function stay
        if re.match(r"\s*(namespace|extern)\b[^(]*$", head):
            place = opening + 1
            continue
        if "(" in head and not re.search(r"__global__|__device__|\bconstexpr\b", head):
            kept[begin:end] = spaces(text[begin:end])
        place = end
    return "".join(kept)


def _included(found: re.Match[str], file: Path) -> str:
    own = file.parent / found[3] if found[3] else None
    return f'{found[1]}"{own.resolve()}"' if own is not None and own.is_file() else ""
