# SPDX-License-Identifier: MIT
"""The C++ text that launches a student's kernel as the emulation launches ours: with three matrices."""

from __future__ import annotations

from hybrid.classroom.meaning import Meaning
from hybrid.classroom.student_file import Parameter, StudentFile, StudentKernel
from hybrid.errors import UsageError

ENTRY = "lab_entry"
_SIZES = {"n": "lab_c.lab_rows", "l": "lab_a.lab_columns", "m": "lab_c.lab_columns"}
# For declarations of host functions and variables, which stay.
_HOST_TYPES = """typedef int cudaError_t, cudaMemcpyKind;
typedef void *cudaEvent_t, *cudaStream_t;
struct cudaDeviceProp;
"""
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
            arguments.append(f"const_cast<{element}*>(lab_{of.lower()}.data)")
        else:
            lines += _filled(file, parameter, of.lower(), element)
            arguments.append(f"lab_struct_{of.lower()}")
    body = "\n    ".join([*lines, f"{instance}({', '.join(arguments)});"])
    headers = "".join(f"#include <{name}>\n" for name in file.headers)
    # The file is compiled inside an anonymous namespace, in which the library's headers must not stand.
    return f"""}}
{headers}{_HOST_TYPES}namespace {{
template <typename LabElement> struct LabMatrix {{ LabElement* data; long long lab_rows, lab_columns, lab_stride; }};
#line 1 "{file.path.name}"
{file.compiled}
#line 1 "launch"
__global__ void {ENTRY}(LabMatrix<const {element}> lab_a, LabMatrix<const {element}> lab_b, LabMatrix<{element}> lab_c)
{{
    {body}
}}
"""


def _filled(file: StudentFile, parameter: Parameter, of: str, element: str) -> list[str]:
    lines = [f"{parameter.type} lab_struct_{of};"]
    for name, kind in file.structs[parameter.type].items():
        if kind.endswith("*"):
            lines.append(f"lab_struct_{of}.{name} = const_cast<{element}*>(lab_{of}.data);")
        elif name.lower() in _FIELDS:
            lines.append(f"lab_struct_{of}.{name} = static_cast<{kind}>(lab_{of}.lab_{_FIELDS[name.lower()]});")
        else:
            raise UsageError(
                f"what {name} of the struct {parameter.type} stands for cannot be told: width, height and stride are known"
            )
    return lines
