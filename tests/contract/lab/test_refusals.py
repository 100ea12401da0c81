# SPDX-License-Identifier: MIT
"""What the lab cannot run is refused in one line with its code and, where it is in the file, its line; nothing is left behind."""

import os
import re
import signal
import subprocess
import time

import pytest
from support.commands import own_lines
from support.lab import DATA, LAB, lab
from support.selection import exhaustive

KERNEL = "__global__ void k(const float* A, const float* B, float* C, int n)\n{\n    BODY\n}\n"
ABC = "__global__ void k(float* a, float* b, float* c"
MAIN = "int main() { k<<<1, 1>>>(); }\n"
REMOVED = "cudaThreadSynchronize"

# What a file holds, the code, and the line that is named.
REFUSED = {
    "no kernel": ("int main() { return 0; }", "lab-kernel", 0),
    "two kernels": ("__global__ void k(float* a) {}\n__global__ void q(float* a) {}", "lab-kernel", 0),
    "no result": ("__global__ void k(float* a, float* b, int n) {}", "lab-parameters", 1),
    "an unknown size": (f"{ABC}, int n, int what) {{}}", "lab-parameters", 0),
    "other integers": ("__global__ void k(long* a, long* b, long* c, int n) {}", "lab-parameters", 1),
    "a struct that is not there": ("__global__ void k(M a, M b, M c) {}", "lab-parameters", 0),
    "an unknown member": ("struct M { int depth; float* e; };\n__global__ void k(M a, M b, M c) {}", "lab-parameters", 0),
    "arrays of rows": ("__global__ void k(float A[8][8], float B[8][8], float C[8][8]) {}", "lab-parameters", 0),
    "no size": (f"{ABC}) {{}}", "lab-parameters", 0),
    "a template": (f"template <int T> {ABC}, int n) {{}}", "lab-kernel", 0),
    "too many threads": (f"// lab: block(64, 64)\n{ABC}, int n) {{ blockIdx.x; }}", "lab-launch", 0),
    "four dimensions": (f"// lab: grid(1, 2, 3, 4)\n{ABC}, int n) {{ blockIdx.x; }}", "lab-launch", 0),
    "too deep": (f"// lab: block(2, 2, 65)\n{ABC}, int n) {{ blockIdx.x; }}", "lab-launch", 0),
    "no arithmetic": (f"// lab: block(n.x)\n{ABC}, int n) {{ blockIdx.x; }}", "lab-launch", 0),
    "a word that is not known": (f"// lab: blocks(16, 16)\n{ABC}, int n) {{}}", "lab-launch", 0),
    "PTX": (KERNEL.replace("BODY", 'asm volatile("nop;");'), "lab-unsupported", 3),
    "matrix units": ("#include <mma.h>\n" + KERNEL.replace("BODY", "nvcuda::wmma::fill_fragment(f, 0);"), "lab-unsupported", 4),
    "groups of several blocks": (KERNEL.replace("BODY", "cooperative_groups::this_grid().sync();"), "lab-unsupported", 3),
    "kernels that launch": (KERNEL.replace("BODY", "k<<<1, 1>>>(A, B, C, n);"), "lab-unsupported", 3),
    "textures": ("texture<float> t;\n" + KERNEL.replace("BODY", "C[0] = tex1D(t, 0);"), "lab-unsupported", 1),
    "memory within a kernel": (KERNEL.replace("BODY", "float* x = new float[8];"), "lab-unsupported", 3),
    "a vector within a kernel": (KERNEL.replace("BODY", "std::vector<float> x(8);"), "lab-unsupported", 3),
    "constant memory without a value": ("__constant__ float f[8];\n" + KERNEL.replace("BODY", "C[0] = f[n];"),
        "lab-unsupported", 0),
    "a function of the host": (f"float f(float x) {{ return x; }}\n{ABC}, int n) {{ c[0] = f(a[0]); }}", "lab-unsupported", 2),
    "cuBLAS": (f"// no cuBLAS: #include <mpi.h>\n#include <cublas_v2.h>\n__global__ void k() {{}}\n{MAIN}", "lab-unsupported", 2),
    "Thrust": (f"#include <thrust/device_vector.h>\n__global__ void k() {{}}\n{MAIN}", "lab-unsupported", 1),
    "CUDA graphs": (f"__global__ void k() {{}}\ncudaGraph_t graph;\n{MAIN}", "lab-unsupported", 2),
    "a call that is not known": (f"__global__ void k() {{}}\nvoid f() {{ cudaMalloc3D(0, 0); }}\n{MAIN}", "lab-unsupported", 2),
    "a zero byte": (f"{KERNEL}\0", "file-format", 0),
    "half a launch": ("__global__ void k() {}\nint main() { k<<<1, 1>>; }\n", "lab-launch", 2),
    # what nvcc refuses
    "a kernel that is called": ("__global__ void k(int* x) { *x = 1; }\nint main() {\n  int* x;\n  k(x); }", "compile-failed", 4),
    "a call that CUDA 13 removed": (f"__global__ void k() {{}}\nvoid f() {{ {REMOVED}(); }}\n{MAIN}", "compile-failed", 2),
    "a kernel that returns a number": (f"__global__ int k() {{ return 1; }}\n{MAIN}", "compile-failed", 1),
    "a function of the device": (
        f"__global__ void k() {{}}\n__device__ int f() {{ return 1; }}\nint g() {{ return f(); }}\n{MAIN}", "compile-failed", 3),
}  # fmt: skip
BY_DEFAULT = ["an unknown size", "too many threads", "PTX", "a zero byte", "cuBLAS", "a kernel that is called",
              "a call that CUDA 13 removed"]  # fmt: skip


def refusal(done):
    """The code, and the line that is named, of one line on standard error."""
    (line,) = own_lines(done.stderr)
    assert done.stdout == ""
    number = re.search(r"\.cu, line (\d+)", line)
    return re.search(r" \[([\w-]+)\]$", line)[1], int(number[1]) if number else 0


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("name", exhaustive(BY_DEFAULT, REFUSED))
def test_what_cannot_be_told_or_run_is_refused_with_its_line(tmp_path, name):
    text, code, line = REFUSED[name]
    (tmp_path / "mine.cu").write_text(text)
    done = lab("run", "mine.cu", cwd=tmp_path)
    assert (done.returncode, refusal(done)) == (1 if code == "compile-failed" else 2, (code, line))
    if REMOVED in text:
        assert lab("run", "mine.cu", "--cuda", 12, cwd=tmp_path).returncode == 0


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("given", "said"), [("float* a", "1 matrix"), ("float* a, float* b", "2 matrices")])
def test_matrices_are_counted_in_words(tmp_path, given, said):
    (tmp_path / "mine.cu").write_text(f"__global__ void k({given}, int n) {{}}")
    (line,) = own_lines(lab("run", "mine.cu", "--sizes", 2, 2, 2, cwd=tmp_path).stderr)
    assert f") takes {said}: " in line


@pytest.mark.needs("compiler")
def test_what_resembles_those_is_taken(tmp_path):
    """What only host code uses, names of the program's own, comments."""
    (tmp_path / "mine.cu").write_text(
        "#include <cuda_fp16.h>\n#define cudaCheck(x) x\nvoid cudaReport(int line) {}\n"
        "#define OF_DEVICE __device__ inline\nvoid host() { cudaCheck(1); cudaReport(2); __half* x; delete new int; }\n"
        + KERNEL.replace(
            "BODY",
            "int new_row = threadIdx.y, half = threadIdx.x; float sum = 0;  // malloc(1), __half\n"
            "    for (int k = 0; k < n; ++k) sum += A[new_row * n + k] * B[k * n + half];\n    C[new_row * n + half] = sum;",
        )
    )
    assert lab("run", "mine.cu", "--sizes", 4, 4, 4, cwd=tmp_path).returncode == 0


@pytest.mark.launcher
def test_the_lab_runs_alone():
    done = lab("gpus", ranks=2)
    assert (done.returncode, done.stdout) == (2, "")
    assert "without mpirun" in done.stderr


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("more", exhaustive([""], ["", f"\n__global__ void one() {{ }}\n{MAIN.replace('k<', 'one<')}"]))
def test_an_error_of_the_compiler_names_the_file_and_the_line(tmp_path, more):
    (tmp_path / "mine.cu").write_text(f"{ABC}, int n)\n{{\n    float x = undeclared;\n}}\n{more}")
    done = lab("run", "mine.cu", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = own_lines(done.stderr)
    assert "mine.cu:3" in line
    assert "[compile-failed]" in line


@pytest.mark.needs("compiler")
def test_without_a_compiler_it_is_said_what_to_install(tmp_path):
    done = lab("run", "tiled", PATH=str(tmp_path), CXX="")
    assert done.returncode == 1
    assert own_lines(done.stderr)[-1].endswith("[no-compiler]")


ENDS = [(signal.SIGINT, 1, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated")]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("signum", "status", "code"), exhaustive(ENDS[:2], ENDS))
def test_an_interrupt_ends_it_in_a_line_and_leaves_nothing(tmp_path, signum, status, code):
    """Of a kernel that never ends: neither a process nor a file."""
    (tmp_path / "endless.cu").write_text(
        f"{ABC}, int n)\n{{\n    for (volatile int k = 0; k < 1;) {{}}\n    c[n * n - 1] = a[0] * b[0];\n}}\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*LAB, "run", "endless.cu", "--stall", "200"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path, start_new_session=True
    ) as process:
        until = time.monotonic() + 120
        while not [*tmp_path.glob("hybrid-lab-*/program/*")]:
            assert process.poll() is None
            assert time.monotonic() < until, "no compiler began"
            time.sleep(0.05)
        os.killpg(process.pid, signum)
        _, error = process.communicate(timeout=120)  # less than the kernel has
    assert process.returncode == status
    assert [line for line in own_lines(error) if f"[{code}]" in line]
    assert [path.name for path in tmp_path.iterdir()] == ["endless.cu"]


# Each line twice as long as the one before.
MACROS = "#define X0 1+\n" + "".join(f"#define X{i + 1} X{i} X{i}\n" for i in range(27))


@pytest.mark.needs("compiler")
@pytest.mark.exhaustive
def test_macros_that_expand_without_end_are_given_up(tmp_path):
    """The compilers have 20 s of processor time and 2 GiB."""
    (tmp_path / "mine.cu").write_text(f"{MACROS}{ABC}, int n) {{ c[0] = X27 0; }}\n")
    done = lab("run", "mine.cu", cwd=tmp_path, limit=280)
    assert done.returncode == 1
    assert "[compile-failed]" in own_lines(done.stderr)[-1]


HEADERS = [
    ("sizes.h", "sizes.h", True),
    ("classmate.cu", "classmate.cu", False),
    ("class/classmate.h", "../class/classmate.h", False),
]


@pytest.mark.needs("landlock", "compiler")
@pytest.mark.parametrize(("beside", "named", "is_right"), exhaustive([HEADERS[1]], HEADERS))
def test_a_compiler_reads_own_headers_and_no_files_of_others(tmp_path, beside, named, is_right):
    """Not what lies beside the file, as in the folder of a class, and not what lies elsewhere."""
    path, other = tmp_path / "own" / "mine.cu", tmp_path / ("own" if "/" not in beside else "") / beside
    for each in (path, other):
        each.parent.mkdir(exist_ok=True)
    other.write_text("// what is compiled with it\n")
    path.write_text(f'#include "{named}"\n{(DATA / "solutions" / "element.cu").read_text()}')
    done = lab("run", path, "--sizes", 4, 4, 4)
    assert (done.returncode == 0, "Permission denied" in done.stderr + done.stdout) == (is_right, not is_right)
