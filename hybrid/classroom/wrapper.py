# SPDX-License-Identifier: MIT
"""The C++ text that launches a student's kernel as the emulation launches ours: with three matrices."""

from __future__ import annotations

from hybrid.classroom.meaning import Meaning
from hybrid.classroom.student_file import Parameter, StudentFile, StudentKernel
from hybrid.errors import UsageError

ENTRY = "lab_entry"
_SIZES = {"n": "c.rows", "l": "a.columns", "m": "c.columns"}
_FIELDS = {  # of a struct that is a matrix, by what they are called
    **dict.fromkeys(("width", "w", "columns", "cols", "stride", "pitch", "ld"), "columns"),
    **dict.fromkeys(("height", "h", "rows"), "rows"),
}


def wrapped(file: StudentFile, kernel: StudentKernel, instance: str, meaning: Meaning) -> str:
    """The file's text, and after it the entry. `instance`: the kernel's name, with a template's arguments."""
    element = {"float32": "float", "float64": "double"}[meaning.dtype]
    lines, arguments = [], []
    for parameter, of in zip(kernel.parameters, meaning.of, strict=True):
        if parameter.is_number:
            arguments.append(f"static_cast<{parameter.type}>({_SIZES[of]})")
        elif parameter.is_pointer:
            arguments.append(f"const_cast<{element}*>({of.lower()}.data)")
        else:
            lines += _filled(file, parameter, of.lower(), element)
            arguments.append(f"lab_{of.lower()}")
    body = "\n    ".join([*lines, f"{instance}({', '.join(arguments)});"])
    return f"""#line 1 "{file.path.name}"
{file.compiled}
#line 1 "launch"
template <typename T> struct LabMatrix {{ T* data; long long rows, columns, stride; }};
__global__ void {ENTRY}(LabMatrix<const {element}> a, LabMatrix<const {element}> b, LabMatrix<{element}> c)
{{
    {body}
}}
"""


def _filled(file: StudentFile, parameter: Parameter, of: str, element: str) -> list[str]:
    lines = [f"{parameter.type} lab_{of};"]
    for name, kind in file.structs[parameter.type].items():
        if kind.endswith("*"):
            lines.append(f"lab_{of}.{name} = const_cast<{element}*>({of}.data);")
        elif name.lower() in _FIELDS:
            lines.append(f"lab_{of}.{name} = static_cast<{kind}>({of}.{_FIELDS[name.lower()]});")
        else:
            raise UsageError(
                f"what {name} of the struct {parameter.type} stands for cannot be told: width, height and stride are known"
            )
    return lines
