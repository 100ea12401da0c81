# SPDX-License-Identifier: MIT
"""The part of a student's .cu file that is compiled, for the CPU or by NVRTC: kernels and what they need. Lines keep their
places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hybrid.classroom.c_text import blanked, end_of_block, spaces, with_device_variables, with_dynamic_shared
from hybrid.emulation.compiler_limits import own_headers

INCLUDE = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]*>|\"([^\"\n]*)\")", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_OF_DEVICE = frozenset({"cooperative_groups.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h", "cuda_pipeline.h"})  # as NVRTC has them
# Lines outside of functions: with types of host code, and declarations of its functions.
_OF_HOST = re.compile(
    r"^[^\n{}#]*\b(?:std\b|cuda(?:Error|Event|Stream)_t|cudaDeviceProp|FILE)[^\n{}#]*;[ \t]*$"
    r"|^(?!.*\b__(?:device|global)__)[ \t]*\w[\w:<>,&* \t]*\([^{};()=\n]*\);[ \t]*$",
    re.MULTILINE,
)
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

    return of(main)


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


def _without_host(text: str) -> str:
    """The text without host functions, whose launches <<<…>>> no C++ compiler takes. Every line keeps its place."""
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


def _not_own(found: re.Match[str]) -> str:
    """What an include becomes that is still there after `joined`: a header of the student's, which may not be read, stays."""
    return found[0] if (found[3] or "").startswith("/") else ""
