# SPDX-License-Identifier: MIT
"""Finds the kernels in the text of a .cu file: their names, parameters and bodies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hybrid.classroom.c_text import aliases_in, blanked, end_of_block
from hybrid.core.problem import record

_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?(?:(?:static|inline|extern\s+\"C\")\s+)*"
    r"(?:__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:static\s+)?void|void\s+__global__)\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{"
)
_PARAMETER = re.compile(r"(?P<type>\w+(?:\s+\w+)*?)(?:\s*(?P<pointer>\*)\s*|\s+)(?P<name>\w+)\s*(?P<array>\[\s*\])?$")
_NOT_A_TYPE = {"const", "volatile", "__restrict__", "__restrict", "restrict"}
ELEMENTS = {"float": "float32", "double": "float64", "int": "int32", "half": "float16", "__half": "float16"}
REALS = ("float", "double")
SCALES = ("alpha", "beta")
_NUMBERS = {  # words of the types of whole numbers
    *("unsigned", "signed", "short", "long", "int", "size_t", "uint", "ulong"),
    *("int32_t", "uint32_t", "int64_t", "uint64_t"),
}


@record
class Parameter:
    """A parameter of a kernel."""

    name: str
    type: str  # without const and pointer: of the elements, or of the number, or the struct's name
    is_pointer: bool

    @property
    def is_number(self) -> bool:
        return not self.is_pointer and set(self.type.split()) <= _NUMBERS

    @property
    def is_scale(self) -> bool:
        """Whether it is alpha or beta of C = alpha·A·B + beta·C."""
        return not self.is_pointer and self.type in REALS and self.name.lower() in SCALES

    def __str__(self) -> str:
        return f"{self.type}{'*' if self.is_pointer else ''} {self.name}".strip()


@record
class StudentKernel:
    """A kernel as its text has it."""

    name: str
    parameters: tuple[Parameter, ...]
    line: int
    body: str  # without comments
    template: tuple[str, ...] = ()  # the names of its parameters

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    def instance(self, arguments: Sequence[str]) -> StudentKernel:
        """The kernel with these arguments in place of its template's parameters."""
        values = dict(zip(self.template, arguments, strict=True))
        parameters = tuple(replace(each, type=values.get(each.type, each.type)) for each in self.parameters)
        return replace(self, parameters=parameters)


def kernels_of(text: str, whole: str = "") -> tuple[StudentKernel, ...]:
    """The kernels in a text. `whole`: the text with its own headers, which may define other names of types."""
    return tuple(_kernels(blanked(text), aliases_in(blanked(whole or text))))


def _kernels(plain: str, aliases: dict[str, str]) -> Iterator[StudentKernel]:
    for found in _KERNEL.finditer(plain):
        line = plain.count("\n", 0, found.start("name")) + 1
        texts = [text.strip() for text in found["parameters"].split(",") if text.strip()]
        body = plain[found.end() : end_of_block(plain, found.end() - 1)]
        parameters = tuple(_parameter(text, aliases) for text in texts)
        template = tuple(text.partition("=")[0].split()[-1] for text in (found["template"] or "").split(",") if text.strip())
        yield StudentKernel(found["name"], parameters, line, body, template)


def _parameter(text: str, aliases: dict[str, str]) -> Parameter:
    """A parameter. One that cannot be parsed has its text as the type, which matters only if this kernel is to be launched."""
    words = " ".join(word for word in re.sub(r"([*\[])", r" \1 ", text).split() if word not in _NOT_A_TYPE)
    found = _PARAMETER.match(words)
    if found is None:
        whole = re.sub(r"\s*([\[\]])\s*", r"\1", words)
        return Parameter("", whole, is_pointer=False)
    kind = found["type"].removeprefix("struct ")
    return Parameter(found["name"], aliases.get(kind, kind), bool(found["pointer"] or found["array"]))
