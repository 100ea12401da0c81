# SPDX-License-Identifier: MIT
"""A student's .cu file: its kernels, structs and constants, and the text that is compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from hybrid.classroom.c_text import blanked, constants_in, structs_in, with_qualifiers
from hybrid.classroom.compiled_text import INCLUDE, for_cpu, for_gpu, joined
from hybrid.classroom.student_kernel import StudentKernel, kernels_of
from hybrid.core.problem import record
from hybrid.errors import UsageError

_MOST_BYTES = 1 << 20
# Of the C++ library: headers that host code may need, whose declarations stay.
_STANDARD = frozenset({
    "algorithm", "array", "assert.h",
    "cassert", "chrono", "climits", "cmath", "complex", "cstdint", "cstdio", "cstdlib", "cstring",
    "ctime", "fstream", "functional", "iomanip", "iostream", "limits", "limits.h", "map", "math.h", "memory", "numeric", "random",
    "sstream", "stdexcept", "stdint.h", "stdio.h", "stdlib.h", "string", "string.h", "time.h", "tuple", "utility", "vector",
})  # fmt: skip


@record
class StudentFile:
    """A file that was read."""

    path: Path
    text: str
    texts: Mapping[Path, str]  # its own, and those of its own headers
    compiled: str  # the text for the CPU: the same lines, but without what only nvcc takes
    for_gpu: str  # the text for NVRTC
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
    """The file at this path. UsageError where there is none."""
    return parsed(texts_of(path))


def texts_of(path: str) -> dict[Path, str]:
    """The file's text, and those of its own headers and of the headers that these include."""
    texts: dict[Path, str] = {}

    def collect(file: Path) -> None:
        texts[file] = text_of(str(file))
        for _, _, quoted in INCLUDE.findall(texts[file]):
            header = (file.parent / quoted).resolve()
            if quoted and header.is_file() and header not in texts:
                collect(header)

    collect(Path(path))
    return texts


def parsed(texts: Mapping[Path, str]) -> StudentFile:
    """The first of these files; the others are its own headers."""
    file, text = next(iter(texts.items()))
    whole = joined(texts)
    plain = blanked(whole)
    comment = re.search(r"//\s*lab:(.*)", text)
    return StudentFile(
        path=file,
        text=text,
        texts=texts,
        compiled=for_cpu(whole),
        for_gpu=for_gpu(whole, file.name),
        kernels=kernels_of(with_qualifiers(text, whole), whole),
        constants=constants_in(plain),
        structs=structs_in(plain),
        headers=tuple(
            dict.fromkeys(name for name in re.findall(r"#[ \t]*include[ \t]*<(\w+(?:\.h)?)>", whole) if name in _STANDARD)
        ),
        launch_comment=comment[1].strip() if comment else "",
        has_main=re.search(r"\bmain\s*\(", blanked(text)) is not None,
    )


def text_of(path: str) -> str:
    """The text of a file. UsageError where there is no such file, or where it is not a text."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            what = "a folder" if file.is_dir() else "a pipe, a device or a socket"
            raise UsageError(f"{path} cannot be read: it is {what}, and no file", code="file-unreadable")
        content = file.read_bytes()
    except OSError as error:
        code = "file-missing" if isinstance(error, FileNotFoundError) else "file-unreadable"
        raise UsageError(f"{path} cannot be read: {error.strerror}", code=code) from None
    if len(content) > _MOST_BYTES or b"\0" in content:
        raise UsageError(
            f"{path} is no source file: it has {len(content)} bytes, and a zero among them or more than {_MOST_BYTES}",
            code="file-format",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n")
