# SPDX-License-Identifier: MIT
"""A student's file with headers of its own: its structs, constants and device functions may stand there, and its host code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.selection import exhaustive

from hybrid.classroom.student_file import read
from hybrid.commands import lab
from hybrid.errors import UsageError

pytestmark = pytest.mark.needs("compiler", "addr2line")

PROGRAMS = Path(__file__).resolve().parents[2] / "docs" / "programs"
HEADER = """#pragma once
#include <stdio.h>
#include "sizes.h"
typedef struct { int width, height; real* elements; } Matrix;
__device__ real at(Matrix M, int row, int column)
{
    return M.elements[row * M.width + column];
}
static void launch(void (*kernel)(Matrix, Matrix, Matrix), Matrix A, Matrix B, Matrix C)
{
    kernel<<<dim3(1, 1), dim3(BLOCK_SIZE, BLOCK_SIZE)>>>(A, B, C);
    printf("%d\\n", cudaDeviceSynchronize());
}
"""
SIZES = "typedef double real;\n#define BLOCK_SIZE 8\n"
KERNEL = """#include "matrix.h"
#include "sizes.h"
__global__ void product(Matrix A, Matrix B, Matrix C)
{
    int row = blockIdx.y * BLOCK_SIZE + threadIdx.y, column = blockIdx.x * BLOCK_SIZE + threadIdx.x;
    if (row >= C.height || column >= C.width) return;
    real sum = 0;
    for (int k = 0; k < A.width; ++k) sum += at(A, row, k) * at(B, k, column);
    C.elements[row * C.width + column] = sum;
}
"""


def files(folder, kernel=KERNEL, header=HEADER):
    for name, text in (("matrix.h", header), ("sizes.h", SIZES), ("mine.cu", kernel)):
        (folder / name).write_text(text)
    return folder / "mine.cu"


def ran(capsys, *arguments):
    code = lab.work(lab.parse(["run", *map(str, arguments)]))
    return code, capsys.readouterr().out


def test_structs_constants_and_types_of_headers_are_known(tmp_path, capsys):
    code, out = ran(capsys, files(tmp_path))
    assert code == 0
    assert "mine.cu, line 3: product(Matrix A, Matrix B, Matrix C)\n  float64\n" in out
    assert "guessed from BLOCK_SIZE" in out
    assert " blocks of 8×8 threads: right" in out
    assert "line 9 stores to C: " in out


def test_an_error_in_a_header_names_the_header(tmp_path, capsys):
    code, out = ran(capsys, files(tmp_path, header=HEADER.replace("row * M.width + column", "row * M.width + column + 1")))
    assert code == 1
    assert "out of bounds: line 7 of matrix.h reads B[" in out
    refused = files(tmp_path, header=HEADER.replace("return M", 'asm("nop;"); return M'))
    with pytest.raises(UsageError, match=r"matrix.h, line 7: PTX instructions \(asm\)"):
        lab.work(lab.parse(["run", str(refused)]))


def test_lines_of_the_file_stay_where_they_are(tmp_path, capsys):
    path = files(tmp_path, kernel=KERNEL.replace("row * C.width", "100 * row * C.width"))
    code, out = ran(capsys, path, "--sizes", 8, 8, 8)
    assert code == 1
    assert "out of bounds: line 9 writes C[" in out
    assert "         9  C.elements[100 * row" in out
    assert '#line 3 "mine.cu"' not in read(str(path)).compiled.split("__global__")[1]


def test_the_tile_of_a_header_can_be_changed(tmp_path, capsys):
    assert lab.work(lab.parse(["show", str(files(tmp_path)), "--tile", "2"])) == 0
    assert "2×2 blocks of 2×2 threads" in capsys.readouterr().out


KERNELS = [
    ("multNoShare", "MatMulKernel", (9, 5, 7)),
    ("multShare", "MatMulKernel", (9, 5, 7)),
    ("matmul1", "multiply", (9, 5, 7)),
    ("matmul2", "multiply", (9, 5, 7)),
    ("mm2d", "global_memory", (9, 9, 9)),
    ("mm2d", "shared_memory", (9, 9, 9)),
]


@pytest.mark.parametrize(("program", "kernel", "sizes"), exhaustive([KERNELS[1], KERNELS[5]], KERNELS))
def test_kernels_of_the_documents_programs_are_right(capsys, program, kernel, sizes):
    code, out = ran(capsys, PROGRAMS / f"{program}.cu", "--kernel", kernel, "--sizes", *sizes)
    assert code == 0, out
