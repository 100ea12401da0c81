# SPDX-License-Identifier: MIT
"""Reads and changes the text of a C or CUDA file: comments, constants, structs, arrays in shared memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hybrid.classroom.arithmetic import evaluated
from hybrid.errors import UsageError

_COMMENT_OR_TEXT = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)|\bR\"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)\""
    r"|(?P<number>\b\d(?:'?\w)*)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)  # 1'000 is a number
_CONSTANT = re.compile(
    r"^[ \t]*(?:#[ \t]*define[ \t]+(?P<macro>\w+)[ \t]+(?P<text>[^\n]+)"
    r"|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?(?:int|unsigned|size_t)\s+(?P<name>\w+)\s*=\s*(?P<value>[^;,]+);)",
    re.MULTILINE,
)
_INTEGER = r"(?:unsigned|signed|short|long|int|size_t|u?int(?:32|64)_t)"
_BASIC = rf"float|double|{_INTEGER}(?:[ \t]+{_INTEGER})*"
_ALIAS = re.compile(
    rf"\btypedef\s+({_BASIC})\s+(\w+)\s*;|\busing\s+(\w+)\s*=\s*({_BASIC})\s*;"
    rf"|#[ \t]*define[ \t]+(\w+)[ \t]+({_BASIC})[ \t]*$",
    re.MULTILINE,
)
_STRUCT = re.compile(r"\b(?:struct|class)\s*(?:__align__\s*\([^)]*\)\s*)?(\w*)\s*\{")
_FIELD = re.compile(r"([\w ]+?)\s*(\**)\s*(?:__restrict__\s+)?(\w+)\s*(?:,|$)")
_SHARED = re.compile(r"(?<!extern )\b__shared__\b([^;{}()]*);")
_ARRAY = re.compile(r"(\w+)\s*((?:\[[^\]]*\]\s*)+)")
_DYNAMIC_SHARED = re.compile(
    r"\bextern\s+(?:volatile\s+)?__shared__\s+(?:__align__\s*\([^)]*\)\s*)?(?:volatile\s+)?([\w: ]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
_WORD = re.compile(r"\w+")
_VARIABLE = re.compile(r"\b__device__(?=[^(){};=]*[;=\[])")
_LINE = re.compile(r'^#line (\d+) "([^"\n]*)"$', re.MULTILINE)
_READ_ONLY = re.compile(r"\b__constant__(?=\s+(?:const|constexpr)\b)|(?<=\bconst)\s+__constant__\b")
_QUALIFIERS = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+((?:\b(?:__\w+__|inline|static|void|extern)\b[ \t]*)+)$", re.MULTILINE
)
_NAMED = re.compile(  # as #define KERNEL(name) __global__ void name
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)\((\w+)\)[ \t]+((?:\b(?:__\w+__|inline|static|void|extern)\b[ \t]*)+)\2[ \t]*$", re.MULTILINE
)
_DIRECTIVE_OR_WORD = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*|\b\w+\b", re.MULTILINE)
_OF_DEVICE = re.compile(r"\b__(?:global|device)__\b")


def blanked(text: str) -> str:
    """The text with spaces in place of comments and of what is in quotes. Every position keeps its place."""
    return _COMMENT_OR_TEXT.sub(lambda found: found[0] if found["number"] else spaces(found[0]), text)


def with_qualifiers(text: str, whole: str = "") -> str:
    """The text with __device__ and __global__ in place of macros that stand for them. `whole`: the text with its own headers,
    which may define some."""
    for macro, _, value in _NAMED.findall(blanked(whole or text)):
        text = re.sub(rf"^([ \t]*[^\s#\n][^\n]*?|[ \t]*)\b{macro}\s*\(\s*(\w+)\s*\)", rf"\1{value}\2", text, flags=re.MULTILINE)
    defined = {name: value.strip() for name, value in _QUALIFIERS.findall(blanked(whole or text)) if _OF_DEVICE.search(value)}
    parts, place = [], 0
    for found in _DIRECTIVE_OR_WORD.finditer(blanked(text)) if defined else ():
        if found[0] in defined:
            parts += [text[place : found.start()], defined[found[0]]]
            place = found.end()
    return "".join([*parts, text[place:]])


def spaces(text: str) -> str:
    """As many spaces as the text has characters, with its line ends."""
    return re.sub(r"[^\n]", " ", text)


def end_of_block(plain: str, opening: int) -> int:
    """The position after the brace that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(plain)):
        depth += {"{": 1, "}": -1}.get(plain[place], 0)
        if not depth:
            return place + 1
    return len(plain)


def origin(text: str, place: int, name: str) -> tuple[str, int]:
    """The file and the line of a position, by the last #line before it. `name`: of the file in which the text begins."""
    before, line = 0, 1
    for found in _LINE.finditer(text, 0, place):
        before, line, name = found.end() + 1, int(found[1]), found[2]
    return name, line + text.count("\n", before, place)


def constants_in(plain: str) -> dict[str, int]:
    """Macros and constants that are whole numbers, also those made of others, as #define BLOCK (2 * TILE)."""
    found: dict[str, int] = {}
    texts = {each["macro"] or each["name"]: each["text"] or each["value"] for each in _CONSTANT.finditer(plain)}
    for _ in texts:  # each time at least one more becomes known, or none will
        before = len(found)
        for name, text in texts.items():
            if name not in found:
                try:
                    found[name] = evaluated(re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text), found)
                except UsageError:
                    continue
        if len(found) == before:
            break
    return {name: value for name, value in found.items() if value >= 0}


def aliases_in(plain: str) -> dict[str, str]:
    """Other names that the text gives to float, double and types of whole numbers."""
    found = {}
    for typedef, of_typedef, of_using, using, of_define, define in _ALIAS.findall(plain):
        found[of_typedef or of_using or of_define] = typedef or using or define
    return found


def structs_in(plain: str) -> dict[str, dict[str, str]]:
    """By the names of structs, the types of their fields; member functions are left out."""
    structs, aliases = {}, aliases_in(plain)
    for found in _STRUCT.finditer(plain):
        end = end_of_block(plain, found.end() - 1)
        also = re.match(r"\s*(\w+)\s*;", plain[end:])  # of a typedef
        inner = plain[found.end() : end - 1]
        while (opening := inner.find("{")) >= 0:
            inner = f"{inner[:opening]}();{inner[end_of_block(inner, opening) :]}"
        for name in {found[1], also[1] if also else ""} - {""}:
            fields = _fields(re.sub(r"\b(public|private|protected)\s*:", "", inner))
            structs[name] = {field: _WORD.sub(lambda word: aliases.get(word[0], word[0]), kind) for field, kind in fields.items()}
    return structs


def _fields(text: str) -> dict[str, str]:
    """The types of fields: {"width": "int", "height": "int", "elements": "float*"} for int width, height; float* elements;"""
    fields = {}
    for declaration in (each.strip() for each in text.split(";")):
        first = None if "(" in declaration else _FIELD.match(declaration)
        if first is not None:
            for pointer, name in re.findall(r"(\*?)\s*(?:__restrict__\s+)?(\w+)\s*(?:,|$)", declaration[len(first[1]) :]):
                fields[name] = first[1].strip() + pointer
    return fields


def shared_arrays(plain: str) -> dict[str, tuple[str, ...]]:
    """The texts of the extents of each __shared__ array, by its name."""
    found = {}
    for declaration in _SHARED.findall(plain):
        for name, extents in _ARRAY.findall(declaration):
            texts = tuple(text.strip() for text in re.findall(r"\[([^\]]*)\]", extents))
            if all(texts):
                found[name] = texts
    return found


def arrays_of_threads(text: str, first: int, body: str) -> list[tuple[str, int]]:
    """The name and line of each array without __shared__, from line `first` on, that a kernel with barriers writes at an index of
    its thread, as if others could read it there."""
    if not re.search(r"\b__syncthreads\b|\bsync\s*\(", body):
        return []
    of_thread = "|".join(["threadIdx", *re.findall(r"(\w+)\s*=(?!=)[^;,]*\bthreadIdx\b", body)])
    found = []
    for number, line in enumerate(blanked(text).split("\n")[first - 1 :], first):
        declared = re.match(
            r"\s*(?:volatile\s+)?(?:float|double|int|half|__half)\s+((?:\w+\s*(?:\[[^\]]*\]\s*)+[,;]\s*)+)$", line
        )
        for name in re.findall(r"(\w+)\s*\[[^;]*?\]\s*[,;]", declared[1]) if declared else ():
            if re.search(rf"\b{name}\s*(?:\[[^\]=;]*\])*\[[^\]=;]*\b(?:{of_thread})\b[^;=]*\]\s*=(?!=)", body):
                found.append((name, number))
    return found


def extents_of(plain: str, constants: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The extents of each __shared__ array, by its name; arrays whose extents are not known are left out."""
    found = {}
    for name, texts in shared_arrays(plain).items():
        try:
            found[name] = tuple(evaluated(text, constants) for text in texts)
        except UsageError:
            continue
    return found


def element_text(name: str, number: int, extents: tuple[int, ...]) -> str:
    """The name of an array's element, as Ms[2][3]. Elements are numbered row by row."""
    indices = []
    for extent in reversed(extents[1:]):
        indices.append(number % extent)
        number //= extent
    return name + "".join(f"[{index}]" for index in (number, *reversed(indices)))


def dynamic_arrays(plain: str) -> list[str]:
    """The names by which the file calls dynamic shared memory."""
    return list(dict.fromkeys(name for _, name in _DYNAMIC_SHARED.findall(plain)))


def with_dynamic_shared(text: str) -> str:
    """The text in which each extern __shared__ T name[]; is a pointer to that memory. If it is declared outside of functions,
    each function that uses it gets its own pointer."""
    plain = blanked(text)
    functions = _device_functions(plain)
    inserted: list[tuple[int, int, str]] = []  # begin, end, and what stands there instead
    for declared in _DYNAMIC_SHARED.finditer(plain):
        kind, name = declared[1], declared[2]
        pointer = f"{kind}* {name} = static_cast<{kind}*>(cuda_on_cpu::dynamic_shared_memory());"
        if any(begin < declared.start() < end for _, begin, end in functions):
            inserted.append((declared.start(), declared.end(), pointer))
            continue
        inserted.append((declared.start(), declared.end(), " " + "\n" * declared[0].count("\n")))
        for head, begin, end in functions:
            is_used = re.search(rf"\b{name}\b", plain[begin:end]) and declared.end() <= begin
            if is_used and not re.search(rf"\b{name}\b", head):
                inserted.append((begin, begin, f" {pointer}"))
    parts, place = [], 0
    for begin, end, instead in sorted(inserted):
        parts += [text[place:begin], instead]
        place = end
    return "".join([*parts, text[place:]])


def with_device_variables(text: str) -> str:
    """The text in which variables with __device__ are placed where kernels may use them. Functions keep their __device__, and
    constants need none. Without __noinline__, which as a macro would be one in the C++ library's headers, too, and without a
    second `static` at shared variables."""
    text = re.sub(r"\b__noinline__\b|\bstatic\s+(?=__shared__)|(?<=__shared__)\s+static\b", lambda word: spaces(word[0]), text)
    plain, parts, place = blanked(text), [], 0
    found = [*_VARIABLE.finditer(plain), *_READ_ONLY.finditer(plain)]
    for each in sorted(found, key=lambda one: one.start()):
        declaration = plain[each.start() :].split(";", 1)[0].split("=", 1)[0]
        is_constant = each.re is _READ_ONLY or re.search(r"\bconst(expr)?\b", declaration)
        parts += [text[place : each.start()], " " if is_constant else "__device_variable__"]
        place = each.end()
    return "".join([*parts, text[place:]])


def _device_functions(plain: str) -> list[tuple[str, int, int]]:
    """For each kernel and device function: the text before its brace, and where its body begins and ends."""
    found, place = [], 0
    while (opening := plain.find("{", place)) >= 0:
        head = plain[max(plain.rfind(mark, 0, opening) for mark in ";}{") + 1 : opening]
        if "(" in head and _OF_DEVICE.search(head):
            end = end_of_block(plain, opening)
            found.append((head, opening + 1, end))
            place = end
        else:
            place = opening + 1  # of a namespace or a struct, in which functions may stand
    return found
