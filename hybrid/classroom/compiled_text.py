# SPDX-License-Identifier: MIT
"""The part of a student's .cu file that is compiled, for the CPU or by NVRTC: kernels and what they need. Lines keep their
places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hybrid.classroom.c_text import blanked, end_of_block, spaces, with_device_variables, with_dynamic_shared, with_qualifiers
from hybrid.emulation.build import HERE
from hybrid.emulation.compiler_limits import own_headers

INCLUDE = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]*>|\"([^\"\n]*)\")", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_OF_DEVICE = frozenset({"cooperative_groups.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h", "cuda_pipeline.h"})  # as NVRTC has them
_OF_OURS = {"cuda_fp16.h": "half.h", "cooperative_groups.h": "cooperative_groups.h"}  # what stands in place of CUDA's headers
# Lines outside of functions: with types of host code, and declarations of its functions.
_OF_HOST = re.compile(
    r"^[^\n{}#]*\b(?:std\b|cuda(?:Error|Event|Stream)_t|cudaDeviceProp|FILE)[^\n{}#]*;[ \t]*$"
    r"|^(?!.*\b__(?:device|global)__)[ \t]*\w[\w:<>,&* \t]*\([^{};()=\n]*\);[ \t]*$",
    re.MULTILINE,
)
_OF_THE_DEVICE = re.compile(r"__global__|__device__|\bconstexpr\b")
_CLASS = re.compile(r"\b(?:class|struct|union)\b[^()]*$")
_ALIGNED = re.compile(r"\b(?:__align__|alignas|__launch_bounds__)\s*\([^()]*\)|\b__attribute__\s*\(\(.*?\)\)", re.DOTALL)
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_HOST_ONLY = re.compile(r"<<<|\bcuda[A-Z]|\bstd\s*::")
_ALSO_OF_DEVICE = {"abs", "max", "min", "swap"}  # which CUDA has, too
_FOR_NVRTC = {  # what stands in place of headers of C
    r"c?stdint(?:\.h)?": (
        "typedef int int32_t; typedef unsigned uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;\n"
    ),
    r"c?assert(?:\.h)?": "#ifndef assert\n#define assert(...) ((__VA_ARGS__) ? (void)0 : __trap())\n#endif\n",
}


def joined(texts: Mapping[Path, str]) -> str:
    """The first file's text, in which each of its own headers stands where it is first included.

    `texts`: those of the file and of its headers. Only headers in the file's folder are included, since others may be somebody
    else's.
    """
    main = next(iter(texts))
    allowed = {path.resolve() for path in own_headers(main.resolve().parent)} & texts.keys()
    seen: set[Path] = set()

    def of(file: Path) -> str:
        seen.add(file)
        text = texts[file]

        def included(found: re.Match[str]) -> str:
            own = (file.parent / found[3]).resolve() if found[3] else None
            if own is None or not own.is_file():
                return found[0]
            if own not in allowed:
                return f'{found[1]}"{own}"'  # which the compiler may not read, and says so
            if own in seen:
                return ""
            after = text.count("\n", 0, found.start()) + 2
            return f'\n#line 1 "{own.name}"\n{of(own)}\n#line {after} "{file.name}"'

        return INCLUDE.sub(included, text)

    return with_qualifiers(of(main))


def for_cpu(text: str) -> str:
    """The text for the emulated GPU, without includes of CUDA's and C's headers, which are there already. `text`: what `joined`
    returns."""
    return INCLUDE.sub(_not_own, with_dynamic_shared(with_device_variables(_without_host(text))))


def for_gpu(text: str, name: str) -> str:
    """The text for NVRTC. Includes of CUDA's headers stay; C's headers, which NVRTC does not have, are replaced by what they
    declare for kernels. `name`: of the file."""

    def included(found: re.Match[str]) -> str:
        return found[0] if found[2][1:-1] in _OF_DEVICE else _not_own(found)

    headers = "".join(instead for header, instead in _FOR_NVRTC.items() if re.search(rf"#[ \t]*include[ \t]*<{header}>", text))
    kept = _without_host(text)
    plain = blanked(kept)
    for line in _OF_HOST.finditer(plain):
        if plain.count("{", 0, line.start()) == plain.count("}", 0, line.start()):
            kept = kept[: line.start()] + spaces(line[0]) + kept[line.end() :]
    return f'{headers}#line 1 "{name}"\n{INCLUDE.sub(included, kept)}'


def host_functions(text: str) -> set[str]:
    """The names of functions that only the host may call. `text`: what `joined` returns."""
    return _functions(text, _is_of_host) - _functions(text, _OF_THE_DEVICE.search) - _ALSO_OF_DEVICE


def device_functions(text: str) -> set[str]:
    """The names of functions that the host may not call, but for kernels."""
    only = re.compile(r"^(?!.*\b(?:__host__|__global__|constexpr)\b).*\b__device__\b", re.DOTALL)
    return _functions(text, only.search) - _functions(text, lambda head: not only.search(head))


def _functions(text: str, of: Callable[[str], object]) -> set[str]:
    """The names of the functions whose text before the brace is one `of` these."""
    heads = (_ALIGNED.sub("", head) for head, *_ in _blocks(text) if of(head))
    return {called[1] for called in map(_CALLED.search, heads) if called}


def host_bodies(text: str) -> Iterator[tuple[int, int]]:
    """Where the bodies of the host's functions begin and end."""
    return ((opening, end) for head, _, opening, end in _blocks(text) if _is_of_host(head))


def _without_host(text: str) -> str:
    """The text without host functions, whose launches <<<…>>> no C++ compiler takes. Every line keeps its place."""
    kept = list(text)
    for head, begin, opening, end in _blocks(text):
        if _is_of_host(head):
            kept[begin:end] = spaces(text[begin:end])
        elif _CLASS.search(head):
            for first, last in _host_bodies(text, opening, end):
                kept[first:last] = spaces(text[first:last])
    return "".join(kept)


def _blocks(text: str) -> Iterator[tuple[str, int, int, int]]:
    """Functions and types outside of others: the text before the brace, where it begins, the brace, and where its block ends."""
    plain, place = _plain(text), 0
    while (opening := plain.find("{", place)) >= 0:
        end = end_of_block(plain, opening)
        begin = max(plain.rfind(mark, 0, opening) for mark in ";}") + 1
        begin = max(begin, place)
        head = plain[begin:opening].lstrip()
        if re.match(r"\s*(namespace|extern)\b[^(]*$", head):
            place = opening + 1
            continue
        yield head, opening - len(head), opening, end  # directives before a function stay
        place = end


def _host_bodies(text: str, opening: int, end: int) -> Iterator[tuple[int, int]]:
    """Of a class, where the insides of member functions begin and end that use what only host code has."""
    plain, place = _plain(text), opening + 1
    while (inner := plain.find("{", place, end)) >= 0:
        after = end_of_block(plain, inner)
        head = plain[max(plain.rfind(mark, 0, inner) for mark in ";{}") + 1 : inner]
        if _CLASS.search(head):
            place = inner + 1
            continue
        if not _OF_THE_DEVICE.search(head) and _HOST_ONLY.search(plain, inner, after):
            yield inner + 1, after - 1
        place = after


def _plain(text: str) -> str:
    return _DIRECTIVE.sub(lambda found: spaces(found[0]), blanked(text))


def _is_of_host(head: str) -> bool:
    """Whether the text before a brace is that of a function which only the host calls."""
    return "(" in _ALIGNED.sub("", head) and not _OF_THE_DEVICE.search(head)


def _not_own(found: re.Match[str]) -> str:
    """What an include becomes that is still there after `joined`: a header of the student's, which may not be read, stays."""
    return found[0] if (found[3] or "").startswith("/") else ours(found)


def ours(found: re.Match[str]) -> str:
    """The include of our header in place of CUDA's; "" for one whose content is always there."""
    name = _OF_OURS.get(found[2][1:-1])
    return f'{found[1]}"{HERE / name}"' if name else ""
