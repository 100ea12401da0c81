# SPDX-License-Identifier: MIT
"""What a single kernel has that the CPU runtime does not is named, with its line, before anything is compiled."""

from __future__ import annotations

import pytest

from hybrid.classroom.examination import chosen
from hybrid.classroom.student_file import read
from hybrid.errors import UsageError

KERNEL = "__global__ void k(const float* A, const float* B, float* C, int n)\n{\n    BODY\n}\n"


@pytest.mark.parametrize(
    ("before", "body", "said"),
    [
        (
            "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n",
            "cg::sync(cg::this_thread_block());",
            "mine.cu, line 2: cooperative groups: the CPU runtime does not have that",
        ),
        ("#include <cuda_fp16.h>\n", "C[0] = __half2float(__float2half(A[0]));", r"line 4: half precision \(__half2float\)"),
        ("", "half x = A[0];", r"line 3: half precision \(half x\)"),
        ("", 'asm volatile("nop;");', r"line 3: PTX instructions \(asm\)"),
        ("#include <mma.h>\n", "nvcuda::wmma::fill_fragment(f, 0);", r"line 4: matrix units \(wmma\)"),
        ("", "k<<<1, 1>>>(A, B, C, n);", r"line 3: a kernel that launches a kernel"),
        ("texture<float> t;\n", "C[0] = tex1D(t, 0);", "line 1: textures"),
        ("", "float* x = new float[8];", "line 3: new within a kernel"),
        ("", "std::vector<float> x(8);", "line 3: std::vector within a kernel"),
        ("__constant__ float f[8];\n", "C[0] = f[n];", "k reads the constant memory f, .*: give it a value where it is declared"),
        (
            "__constant__ int f;\nint main() { cudaMemcpyToSymbol(f, &f, 4); }\n",
            "C[0] = f;",
            "which only host code fills: run the whole program, without --kernel",
        ),
    ],
)
def test_it_is_refused_by_name(tmp_path, before, body, said):
    path = tmp_path / "mine.cu"
    path.write_text(before + KERNEL.replace("BODY", body))
    with pytest.raises(UsageError, match=said) as refused:
        chosen(read(str(path)), "")
    assert "\n" not in str(refused.value)


def test_what_only_host_code_uses_is_not(tmp_path):
    """Its functions are left out; so are headers."""
    path = tmp_path / "mine.cu"
    host = (
        "#include <cublas_v2.h>\n#include <cuda_fp16.h>\nvoid host() { cublasHandle_t h; cublasCreate(&h); __half x; new int; }\n"
    )
    path.write_text(host + KERNEL.replace("BODY", "int new_row = n, half = n / 2; C[half] = half; // malloc(1), __half"))
    assert chosen(read(str(path)), "")[2] == "k"
