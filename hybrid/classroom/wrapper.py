# SPDX-License-Identifier: MIT
"""Writes the C++ texts that launch a student's kernel: from an entry that takes three matrices, as our kernels do, and from a
whole program."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.classroom.meaning import Meaning
from hybrid.classroom.student_file import StudentFile
from hybrid.classroom.student_kernel import SCALES, Parameter, StudentKernel
from hybrid.errors import UsageError

ENTRY = "lab_entry"
_ELEMENTS = {"float32": "float", "float64": "double", "int32": "int", "float16": "half"}
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
    """The file's text, followed by the entry that calls the kernel. `instance`: the kernel's name, with a template's
    arguments."""
    element = _ELEMENTS[meaning.dtype]
    lines, arguments = _arguments(file, kernel, meaning)
    body = "\n    ".join([*lines, f"{instance}({', '.join(arguments)});"])
    # The file is compiled inside an anonymous namespace, in which the library's headers must not stand.
    return f"""}}
{_headers(file)}{_HOST_TYPES}namespace {{
template <typename LabElement> struct LabMatrix {{ LabElement* data; long long lab_rows, lab_columns, lab_stride; }};
#line 1 "{file.path.name}"
{file.compiled}
#line 1 "launch"
__global__ void {ENTRY}(LabMatrix<const {element}> lab_a, LabMatrix<const {element}> lab_b, LabMatrix<{element}> lab_c)
{{
    {body}
}}
"""


def as_program(file: StudentFile, kernel: StudentKernel, instance: str, meaning: Meaning) -> str:
    """The file's text, followed by a main function that launches the kernel once. The program's arguments are n, l, m, x, y and z
    of the grid and of the block, and the bytes of dynamic shared memory."""
    lines, arguments = _arguments(file, kernel, meaning)
    body = "\n    ".join(lines)
    given = "".join(f", {argument}" for argument in arguments)
    return f"""{_headers(file)}namespace {{
#line 1 "{file.path.name}"
{file.compiled}
#line 1 "launch"
struct LabMatrix {{ {_ELEMENTS[meaning.dtype]}* data; long long lab_rows, lab_columns; }};
LabMatrix lab_matrix(long long lab_rows, long long lab_columns, bool lab_has_values)
{{
    LabMatrix lab_one{{nullptr, lab_rows, lab_columns}};
    size_t lab_bytes = lab_rows * lab_columns * sizeof(*lab_one.data);
    auto* lab_values = static_cast<decltype(lab_one.data)>(malloc(lab_bytes));
    for (long long lab_i = 0; lab_i < lab_rows * lab_columns; ++lab_i) lab_values[lab_i] = lab_i % 13 + 1;
    (void)cudaMalloc(&lab_one.data, lab_bytes);
    if (lab_has_values) (void)cudaMemcpy(lab_one.data, lab_values, lab_bytes, cudaMemcpyHostToDevice);
    free(lab_values);
    return lab_one;
}}
}}
int main(int, char** lab_given)
{{
    long long lab_number[10];
    for (int lab_i = 0; lab_i < 10; ++lab_i) lab_number[lab_i] = atoll(lab_given[lab_i + 1]);
    LabMatrix lab_a = lab_matrix(lab_number[0], lab_number[1], true), lab_b = lab_matrix(lab_number[1], lab_number[2], true),
              lab_c = lab_matrix(lab_number[0], lab_number[2], {"true" if "beta" in meaning.of else "false"});
    {body}
    cuda_on_cpu::allow_shared(static_cast<int>(lab_number[9]));
    dim3 lab_grid(lab_number[3], lab_number[4], lab_number[5]), lab_block(lab_number[6], lab_number[7], lab_number[8]);
    cuda_on_cpu::Launched("{kernel.name}", lab_grid, lab_block, lab_number[9]).call({instance}{given});
    return cudaDeviceSynchronize();
}}
"""


def program_of_arrays(file: StudentFile, kernel: StudentKernel, instance: str, kinds: Sequence[str]) -> str:
    """The file's text, followed by a main function that launches a kernel of arrays and numbers, and writes all arrays to a file.
    The program's arguments are that file, x, y and z of the grid and of the block, the bytes of dynamic shared memory, and for
    each parameter its value or its length. `kinds`: of the arrays, how each begins."""
    begins, arguments = iter(kinds), []
    arrays: list[str] = []
    for number, each in enumerate(kernel.parameters, 8):
        value = f"lab_number({number})"
        if each.is_pointer:
            values = sum(text == "values" for text in kinds[: len(arrays)])
            kind = ("values", "zeros", "unwritten").index(next(begins))
            arrays.append(f"    auto lab_{each.name} = lab_array<{each.type}>({value}, {values}, {kind});")
            arguments.append(f"lab_{each.name}.data")
        else:
            arguments.append(f"static_cast<{each.type}>({value})")
    kept = "\n".join(f"    lab_{each.name}.keep(lab_file);" for each in kernel.parameters if each.is_pointer)
    return f"""{_headers(file)}namespace {{
#line 1 "{file.path.name}"
{file.compiled}
#line 1 "launch"
template <typename LabT> struct LabArray {{
    LabT *data, *values;
    size_t size;
    void keep(FILE* lab_file)
    {{
        (void)cudaMemcpy(values, data, size * sizeof(LabT), cudaMemcpyDeviceToHost);
        fwrite(values, sizeof(LabT), size, lab_file);
    }}
}};
template <typename LabT> LabArray<LabT> lab_array(long long lab_size, int lab_which, int lab_kind)
{{
    LabArray<LabT> lab_one{{nullptr, static_cast<LabT*>(malloc(lab_size * sizeof(LabT))), static_cast<size_t>(lab_size)}};
    memset(lab_one.values, lab_kind == 2 ? 0xA5 : 0, lab_size * sizeof(LabT));
    for (unsigned lab_i = 0; lab_i < lab_size && !lab_kind; ++lab_i) {{
        int lab_value = ((lab_i + 7919 * lab_which) * 2654435761u >> 16) % 19;
        lab_one.values[lab_i] = static_cast<LabT>(LabT(-1) < LabT(0) ? lab_value - 9 : lab_value);
    }}
    (void)cudaMalloc(&lab_one.data, lab_size * sizeof(LabT));
    (void)cudaMemcpy(lab_one.data, lab_one.values, lab_size * sizeof(LabT), cudaMemcpyHostToDevice);
    return lab_one;
}}
}}
int main(int, char** lab_given)
{{
    auto lab_number = [&](int lab_i) {{ return atoll(lab_given[lab_i + 1]); }};
{chr(10).join(arrays)}
    cuda_on_cpu::allow_shared(static_cast<int>(lab_number(7)));
    dim3 lab_grid(lab_number(1), lab_number(2), lab_number(3)), lab_block(lab_number(4), lab_number(5), lab_number(6));
    cuda_on_cpu::Launched("{kernel.name}", lab_grid, lab_block, lab_number(7)).call({", ".join([instance, *arguments])});
    if (cudaError_t lab_error = cudaDeviceSynchronize()) return lab_error;
    FILE* lab_file = fopen(lab_given[1], "wb");
{kept}
    return fclose(lab_file);
}}
"""


def _headers(file: StudentFile) -> str:
    return "".join(f"#include <{name}>\n" for name in file.headers)


def _arguments(file: StudentFile, kernel: StudentKernel, meaning: Meaning) -> tuple[list[str], list[str]]:
    """The lines that come before the kernel's call, and the arguments of the call."""
    element = _ELEMENTS[meaning.dtype]
    lines: list[str] = []
    arguments = []
    for parameter, of in zip(kernel.parameters, meaning.of, strict=True):
        if parameter.is_number:
            arguments.append(f"static_cast<{parameter.type}>({_SIZES[of]})")
        elif parameter.is_scale:
            arguments.append(f"{parameter.type}({dict(zip(SCALES, meaning.scales, strict=True))[of]})")
        elif parameter.is_pointer:
            arguments.append(f"const_cast<{element}*>(lab_{of.lower()}.data)")
        else:
            lines += _filled(file, parameter, of.lower(), element)
            arguments.append(f"lab_struct_{of.lower()}")
    return lines, arguments


def _filled(file: StudentFile, parameter: Parameter, of: str, element: str) -> list[str]:
    """The lines that fill a struct which stands for a matrix."""
    lines = [f"{parameter.type} lab_struct_{of};"]
    for name, kind in file.structs[parameter.type].items():
        what = field_of(parameter, name, kind)
        if what == "elements":
            lines.append(f"lab_struct_{of}.{name} = const_cast<{element}*>(lab_{of}.data);")
        else:
            lines.append(f"lab_struct_{of}.{name} = static_cast<{kind}>(lab_{of}.lab_{what});")
    return lines


def field_of(parameter: Parameter, name: str, kind: str) -> str:
    """What a field of a struct stands for: "elements", "rows" or "columns". UsageError where its name does not tell."""
    if kind.endswith("*"):
        return "elements"
    if name.lower() in _FIELDS:
        return _FIELDS[name.lower()]
    raise UsageError(
        f"what {name} of the struct {parameter.type} stands for cannot be told: width, height and stride are known",
        code="lab-parameters",
    )
