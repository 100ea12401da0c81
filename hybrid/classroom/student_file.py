# SPDX-License-Identifier: MIT
"""A student's .cu file: which kernels, structs and constants it has, and what of it is compiled for the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hybrid.errors import UsageError

_COMMENT_OR_TEXT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?(?:extern\s+\"C\"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{"
)
_PARAMETER = re.compile(r"(?P<type>\w+(?:\s+\w+)*?)(?:\s*(?P<pointer>\*)\s*|\s+)(?P<name>\w+)\s*(?P<array>\[\s*\])?$")
_CONSTANT = re.compile(
    r"^\s*(?:#\s*define\s+|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?int\s+)(\w+)\s*=?\s*(\d+)\b", re.MULTILINE
)
_STRUCT = re.compile(r"(?:typedef\s+)?struct\s*(\w*)\s*\{([^}]*)\}\s*(\w*)\s*;")
_FIELD = re.compile(r"([\w ]+?)\s*(\**)\s*(\w+)\s*(?:,|;|$)")
_DYNAMIC_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\([^)]*\)\s*)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;")
_INCLUDE = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]*>|\"([^\"\n]*)\")", re.MULTILINE)
_NOT_A_TYPE = {"const", "volatile", "__restrict__", "__restrict", "restrict"}
ELEMENTS = {"float": "float32", "double": "float64"}
_NUMBERS = {"int", "unsigned", "unsigned int", "long", "long long", "size_t", "unsigned long", "unsigned long long", "short"}


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
    lines: tuple[str, ...]
    compiled: str
    kernels: tuple[StudentKernel, ...]
    constants: dict[str, int] = field(default_factory=dict)
    structs: dict[str, dict[str, str]] = field(default_factory=dict)  # by name, the types of the fields
    launch_comment: str = ""  # the rest of a line "// lab:"
    has_main: bool = False


def read(path: str) -> StudentFile:
    """UsageError where there is no such file, or no kernel in it."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8") from None
    plain = _blanked(text)
    kernels = tuple(_kernels(plain, path))
    if not kernels:
        raise UsageError(f"{path} has no kernel: a function that begins with __global__ void")
    comment = re.search(r"//\s*lab:(.*)", text)
    constants = {name: int(value) for name, value in _CONSTANT.findall(plain)}
    structs = {(of or name): _fields(fields) for name, fields, of in _STRUCT.findall(plain)}
    has_main = re.search(r"\bint\s+main\s*\(", plain) is not None
    return StudentFile(
        file,
        tuple(text.splitlines()),
        _for_cpu(text, file),
        kernels,
        constants,
        structs,
        comment[1].strip() if comment else "",
        has_main,
    )


def _blanked(text: str) -> str:
    """Comments, and what stands in quotes, replaced by spaces: every position stays where it is."""
    return _COMMENT_OR_TEXT.sub(lambda found: _spaces(found[0]), text)


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _kernels(plain: str, path: str) -> Iterator[StudentKernel]:
    for found in _KERNEL.finditer(plain):
        line = plain.count("\n", 0, found.start("name")) + 1
        texts = [text.strip() for text in found["parameters"].split(",") if text.strip()]
        body = plain[found.end() : _end_of_block(plain, found.end() - 1)]
        parameters = tuple(_parameter(text, path, line) for text in texts)
        template = tuple(text.partition("=")[0].split()[-1] for text in (found["template"] or "").split(",") if text.strip())
        yield StudentKernel(found["name"], parameters, line, body, template)


def _parameter(text: str, path: str, line: int) -> Parameter:
    words = " ".join(word for word in re.sub(r"([*\[])", r" \1 ", text).split() if word not in _NOT_A_TYPE)
    found = _PARAMETER.match(words)
    if found is None:
        raise UsageError(f"{path}:{line}: the parameter {text!r} is neither a pointer, a number nor a struct")
    return Parameter(found["name"], found["type"], bool(found["pointer"] or found["array"]))


def _fields(text: str) -> dict[str, str]:
    """int width, height; float* elements; as {"width": "int", "height": "int", "elements": "float*"}"""
    fields = {}
    for declaration in text.split(";"):
        first = _FIELD.match(declaration.strip())
        if first is not None:
            for pointer, name in re.findall(r"(\*?)\s*(\w+)\s*(?:,|$)", declaration.strip()[len(first[1]) :]):
                fields[name] = first[1].strip() + pointer
    return fields


def _end_of_block(plain: str, opening: int) -> int:
    """The position after the brace that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(plain)):
        depth += {"{": 1, "}": -1}.get(plain[place], 0)
        if not depth:
            return place + 1
    return len(plain)


def _for_cpu(text: str, file: Path) -> str:
    """Without host functions, whose launches <<<…>>> no C++ compiler takes; headers of CUDA and C are there already."""
    plain, kept, place = _blanked(text), list(text), 0
    while (opening := plain.find("{", place)) >= 0:
        end = _end_of_block(plain, opening)
        begin = max(plain.rfind(mark, 0, opening) for mark in ";}") + 1
        begin = max(begin, place, _after_directives(plain, begin, opening))
        head = plain[begin:opening]
        if re.match(r"\s*(namespace|extern)\b[^(]*$", head):
            place = opening + 1
            continue
        if "(" in head and not re.search(r"__global__|__device__|\bconstexpr\b", head):
            kept[begin:end] = _spaces(text[begin:end])
        place = end
    text = _DYNAMIC_SHARED.sub(r"\1* \2 = static_cast<\1*>(cuda_on_cpu::dynamic_shared_memory());", "".join(kept))
    return _INCLUDE.sub(lambda found: _included(found, file), text)


def _after_directives(plain: str, begin: int, opening: int) -> int:
    """Where the last line ends that is a preprocessor's."""
    lines = list(re.finditer(r"^[ \t]*#[^\n]*(?:\\\n[^\n]*)*\n", plain[begin:opening], re.MULTILINE))
    return begin + lines[-1].end() if lines else begin


def _included(found: re.Match[str], file: Path) -> str:
    own = file.parent / found[3] if found[3] else None
    return f'{found[1]}"{own.resolve()}"' if own is not None and own.is_file() else ""
