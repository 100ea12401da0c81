# SPDX-License-Identifier: MIT
"""A student's .cu file: which kernels, structs and constants it has, and what of it is compiled for the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hybrid.errors import UsageError

_COMMENT_OR_TEXT = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)|\bR\"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)\""
    r"|(?P<number>\b\d(?:'?\w)*)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)  # 1'000 is a number
_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?(?:extern\s+\"C\"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{"
)
_PARAMETER = re.compile(r"(?P<type>\w+(?:\s+\w+)*?)(?:\s*(?P<pointer>\*)\s*|\s+)(?P<name>\w+)\s*(?P<array>\[\s*\])?$")
_CONSTANT = re.compile(
    r"^[ \t]*(?:#\s*define\s+|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?int\s+)(\w+)\s*=?\s*(\d+)\b", re.MULTILINE
)
_STRUCT = re.compile(r"(?:typedef\s+)?struct\s*(\w*)\s*\{([^}]*)\}\s*(\w*)\s*;")
_FIELD = re.compile(r"([\w ]+?)\s*(\**)\s*(\w+)\s*(?:,|;|$)")
_DYNAMIC_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\([^)]*\)\s*)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;")
INCLUDE = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]*>|\"([^\"\n]*)\")", re.MULTILINE)
_NOT_A_TYPE = {"const", "volatile", "__restrict__", "__restrict", "restrict"}
ELEMENTS = {"float": "float32", "double": "float64"}
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_ALIAS = re.compile(
    r"\btypedef\s+(float|double)\s+(\w+)\s*;|\busing\s+(\w+)\s*=\s*(float|double)\s*;"
    r"|#[ \t]*define[ \t]+(\w+)[ \t]+(float|double)\b"
)
_HEADER = re.compile(r"#[ \t]*include[ \t]*<(\w+(?:\.h)?)>")
_MOST_BYTES = 1 << 20
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
    """`compiled`: the text with the same lines, but without what only a host compiler of CUDA takes."""

    path: Path
    text: str
    compiled: str
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
    constants = {name: int(value) for name, value in _CONSTANT.findall(plain)}
    structs = {(of or name): _fields(fields) for name, fields, of in _STRUCT.findall(plain)}
    has_main = re.search(r"\bmain\s*\(", plain) is not None
    return StudentFile(
        path=file,
        text=text,
        compiled=_for_cpu(text, file),
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


def blanked(text: str) -> str:
    """Comments, and what stands in quotes, replaced by spaces: every position stays where it is."""
    return _COMMENT_OR_TEXT.sub(lambda found: found[0] if found["number"] else _spaces(found[0]), text)


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


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


def _fields(text: str) -> dict[str, str]:
    """int width, height; float* elements; as {"width": "int", "height": "int", "elements": "float*"}"""
    fields = {}
    for declaration in text.split(";"):
        first = _FIELD.match(declaration.strip())
        if first is not None:
            for pointer, name in re.findall(r"(\*?)\s*(\w+)\s*(?:,|$)", declaration.strip()[len(first[1]) :]):
                fields[name] = first[1].strip() + pointer
    return fields


def end_of_block(plain: str, opening: int) -> int:
    """The position after the brace that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(plain)):
        depth += {"{": 1, "}": -1}.get(plain[place], 0)
        if not depth:
            return place + 1
    return len(plain)


def _for_cpu(text: str, file: Path) -> str:
    """Without host functions, whose launches <<<…>>> no C++ compiler takes; headers of CUDA and C are there already."""
    plain, kept, place = _DIRECTIVE.sub(lambda found: _spaces(found[0]), blanked(text)), list(text), 0
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
            kept[begin:end] = _spaces(text[begin:end])
        place = end
    return INCLUDE.sub(lambda found: _included(found, file), with_dynamic_shared("".join(kept)))


def with_dynamic_shared(text: str) -> str:
    """With extern __shared__ T name[]; as a pointer to that memory."""
    return _DYNAMIC_SHARED.sub(r"\1* \2 = static_cast<\1*>(cuda_on_cpu::dynamic_shared_memory());", text)


def _included(found: re.Match[str], file: Path) -> str:
    own = file.parent / found[3] if found[3] else None
    return f'{found[1]}"{own.resolve()}"' if own is not None and own.is_file() else ""
