# SPDX-License-Identifier: MIT
"""docs/learn.md, Your own kernel: a first kernel is judged as what its name says, on shapes with and without whole blocks."""

import pytest
from support.lab import changed, judged
from support.selection import exhaustive

pytestmark = pytest.mark.needs("compiler", "addr2line")

INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
KERNELS = {
    "vector_add": f"void vector_add(const double* a, const double* b, double* c, int n) {{ {INDEX}\n    if (i < n)\n"
    "        c[i] = a[i] + b[i];\n}",
    "saxpy": "void saxpy(int n, float a, const float* x, float* y) {\n"
    f"    for ({INDEX} i < n; i += blockDim.x * gridDim.x)\n        y[i] = a * x[i] + y[i];\n}}",
    "reduce": "void reduce(const int* in, int* out, int n) {\n    __shared__ int s[128];\n"
    f"    {INDEX}\n    int t = threadIdx.x;\n    s[t] = i < n ? in[i] : 0;\n    for (int d = 64; d > 0; d /= 2) {{\n"
    "        __syncthreads();\n        if (t < d) s[t] += s[t + d];\n    }\n    if (t == 0)\n        atomicAdd(out, s[0]);\n}",
    "histogram": f"void histogram(const unsigned char* data, unsigned int* bins, int n) {{ {INDEX}\n    if (i < n)\n"
    "        atomicAdd(&bins[data[i]], 1);\n}",
    "transpose": "void transpose(const float* in, float* out, int width, int height) {\n    __shared__ float tile[16][17];\n"
    "    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;\n"
    "    if (x < width && y < height) tile[threadIdx.y][threadIdx.x] = in[y * width + x];\n    __syncthreads();\n"
    "    x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;\n    if (x < height && y < width)\n"
    "        out[y * height + x] = tile[threadIdx.x][threadIdx.y];\n}",
    "shift": f"void shift(const float* in, float* out, int n) {{\n    __shared__ float s[129];\n    {INDEX}\n"
    "    int t = threadIdx.x;\n    s[t] = i < n ? in[i] : 0;\n    if (t == 0) s[128] = 0;\n    __syncthreads();\n"
    "    float next = s[t + 1];\n    __syncthreads();\n    s[t] = next;\n    if (i < n) out[i] = s[t];\n}",
    "block_max": f"void block_max(const float* in, float* out, int n) {{\n    __shared__ float s[128];\n    {INDEX}\n"
    "    int t = threadIdx.x;\n    s[t] = i < n ? in[i] : -INFINITY;\n    for (int d = 64; d > 0; d /= 2) {\n"
    "        __syncthreads();\n        if (t < d) s[t] = fmaxf(s[t], s[t + d]);\n    }\n"
    "    if (t == 0) out[blockIdx.x] = s[0];\n}",
    "stencil": f"#define R 2\n__global__ void stencil(const float* in, float* out, int n) {{ {INDEX}\n"
    "    if (i < R || i >= n - R) return;\n    float sum = 0;\n    for (int d = -R; d <= R; ++d) sum += in[i + d];\n"
    "    out[i] = sum;\n}",
}
# A kernel, what is replaced by what, the code and a part of the line that are found ("": in none).
FAULTS = [
    ("vector_add", "if (i < n)", "if (i <= n)", "out-of-bounds", "c[i]"),
    ("vector_add", "if (i < n)", "if (i < n - 1)", "never-written", "c[i]"),
    ("saxpy", " + y[i]", "", "wrong-elements", "y[i]"),
    ("reduce", "        __syncthreads();\n", "", "data-race", "s[t] ="),
    ("reduce", "atomicAdd(out, s[0])", "*out += s[0]", "data-race", "*out"),
    ("shift", "float next = s[t + 1];\n    __syncthreads();", "float next = s[t + 1];", "data-race", "float next"),
    ("vector_add", "= a[i] + b[i]", "= 2 * (1 / 2 * (a[i] + b[i]))", "wrong-terms", "1 / 2"),
    ("histogram", "atomicAdd(&bins[data[i]], 1)", "bins[data[i]]++", "data-race", "bins"),
    ("transpose", "tile[threadIdx.x][threadIdx.y]", "tile[threadIdx.y][threadIdx.x]", "wrong-elements", "out["),
    ("block_max", "-INFINITY", "0", "wrong-elements", "out["),
    ("stencil", "d <= R", "d < R", "wrong-elements", "out[i]"),
]


def text(name):
    return KERNELS[name] if name == "stencil" else f"__global__ {KERNELS[name]}"


@pytest.mark.parametrize("name", exhaustive(["reduce", "transpose"], KERNELS))
def test_a_right_one_is_right_and_named(tmp_path, name):
    path = tmp_path / "first.cu"
    path.write_text(text(name))
    verdict = judged("run", path)
    assert (verdict.code, verdict.findings) == (0, set()), verdict.said
    assert bool(verdict.record["computes"]) == (name != "shift")


@pytest.mark.parametrize(("rows", "columns"), exhaustive([("n", "m")], [("n", "m"), ("m", "n")]))
@pytest.mark.parametrize("order", ["int {rows}, int {columns}", "int {columns}, int {rows}"])
def test_rows_and_columns_have_any_name_and_order(tmp_path, rows, columns, order):
    path = tmp_path / "first.cu"
    sizes = order.format(rows=rows, columns=columns)
    named = text("transpose").replace("int width, int height", sizes).replace("width", columns).replace("height", rows)
    path.write_text(named)
    assert judged("run", path).code == 0


def test_one_size_is_the_width_of_a_square_matrix(tmp_path):
    path = tmp_path / "first.cu"
    named = text("transpose").replace("int width, int height", "int n").replace("width", "n").replace("height", "n")
    named = named.replace("[16][17]", "[32][33]").replace("* 16", "* 32")
    path.write_text(named)
    assert judged("run", path).code == 0
    path.write_text(changed(named, [("x < n && y < n) tile", "x <= n && y < n) tile")]))
    assert judged("run", path).code == 1


ALSO_RIGHT = [  # dynamic shared memory may be declared right behind the brace; of signed numbers those count that have a bin
    ("vector_add", "{ int i", "{extern __shared__ double s[]; s[threadIdx.x] = 0; int i"), ("histogram", "unsigned char", "int"),
    ("histogram", "data[i]]", "(data[i] - 'a') / 4]"),
    ("histogram", f"int n) {{ {INDEX}\n    if (i < n", f"int n, float lo, float hi) {{ {INDEX}\n    if (i < n && data[i] < hi"),
    ("transpose", "    if (x < height &&", "    volatile float unused = tile[threadIdx.x][threadIdx.y];\n    if (x < height &&"),
    ("vector_add", "{ int i", "{ auto put = [](double* to, int at, double x) { to[at] = x; }; int i"),
    ("histogram", "&bins[data[i]]", "bins + data[i]"),  # the launch is tried with other blocks, and one for each row
    ("transpose", KERNELS["transpose"].partition("[17];")[2],
     "\n    int x = threadIdx.x, left = blockIdx.x * 16, top = blockIdx.y * 16;\n    for (int y = threadIdx.y; y < 16; y += 4)\n"
     "        if (top + y < height && left + x < width) tile[y][x] = in[(top + y) * width + left + x];\n    __syncthreads();\n"
     "    for (int y = threadIdx.y; y < 16; y += 4)\n        if (top + x < height && left + y < width)\n"
     "            out[(left + y) * height + top + x] = tile[x][y];\n}"),
    ("shift", f"const float* in, float* out, int n) {{\n    __shared__ float s[129];\n    {INDEX}",
     "const float* from, float* to, int n) {\n    __shared__ float s[129];\n    const float* in = from + blockIdx.x * n;\n"
     "    float* out = &to[blockIdx.x * n];\n    int i = threadIdx.x;"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), ALSO_RIGHT)
def test_another_form_is_right_too(tmp_path, name, old, new):
    path = tmp_path / "first.cu"
    put = [("c[i] = a[i] + b[i]", "put(c, i, a[i] + b[i])")] if "put" in new else []
    path.write_text(changed(text(name), [(old, new), *put]))
    assert judged("run", path).code == 0


@pytest.mark.parametrize(("name", "old", "new", "code", "part"), exhaustive(FAULTS[2:4], FAULTS))
def test_a_wrong_one_is_found_with_its_line(tmp_path, name, old, new, code, part):
    path = tmp_path / "first.cu"
    path.write_text(changed(text(name), [(old, new)]))
    verdict = judged("run", path)
    lines = path.read_text().splitlines()
    assert verdict.code == 1
    assert [each for each, line in verdict.findings if each == code and part in lines[line - 1]], verdict.said
