# SPDX-License-Identifier: MIT
"""docs/learn.md, Your own kernel: every fault is found, with its cause and its line, and right kernels in any style are right.

Faults are put into the lectures' two kernels. Each row: the kernel, what is replaced by what, and the findings: a code, and a
part of the line that the finding names ("": it names none).
"""

import json
import re

import pytest
from support.commands import ROOT
from support.lab import DATA, changed, judged, lab
from support.selection import exhaustive

pytestmark = pytest.mark.needs("compiler", "addr2line")

SOLUTIONS = DATA / "solutions"
STYLES = sorted(path.stem for path in (DATA / "kernels").glob("*.cu"))
BASES = {
    "element": (SOLUTIONS / "element.cu").read_text(encoding="utf-8"),
    "tiles": (SOLUTIONS / "tiles.cu").read_text(encoding="utf-8"),
    "square": (ROOT / "docs/examples/element.cu").read_text(encoding="utf-8"),
    "doubles": (SOLUTIONS / "element.cu").read_text(encoding="utf-8").replace("float", "double"),
    **{name: (DATA / f"kernels/{name}.cu").read_text(encoding="utf-8") for name in ("bytes", "batch", "pairs")},
}
TOLD = "lab: block(16, 16)"
LOOP = "for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];"
LEAVE = "if (row >= n || column >= m) return;"
STORE = "c[row * m + column] = sum;"
LOAD_A = "a_tile[y][x] = row < n && first + x < l ? a[row * l + first + x] : 0;"
LOAD_B = "b_tile[y][x] = first + y < l && column < m ? b[(first + y) * m + column] : 0;"
PRODUCTS = "for (int k = 0; k < TILE; ++k) sum += a_tile[y][k] * b_tile[k][x];"
BARRIER = "        __syncthreads();\n"
RACE, BEYOND, NO_VALUE, WRONG = "data-race", "out-of-bounds", "uninitialised", "wrong-elements"
NEVER, SEVERAL, TERMS = "never-written", "several-writers", "wrong-terms"

FAULTS = {
    # threads of a block that do not wait
    "barriers of the warp": ("tiles",
        [(f"{BARRIER}        {PRODUCTS}\n{BARRIER}", f"        __syncwarp();\n        {PRODUCTS}\n{BARRIER}")],
        {(RACE, "b_tile[y][x] ="), (WRONG, "")}),  # a warp has whole rows of A
    "a barrier in a branch": ("tiles",
        [(f"{BARRIER}        {PRODUCTS}", f"        if (row < n) __syncthreads();\n        {PRODUCTS}")],
        {("kernel-barrier", "__syncthreads"), (RACE, "a_tile[y][x] ="), (RACE, "b_tile[y][x] =")}),
    "blocks that write the same": ("element", [("c[row * m", "c[row % 16 * m")],
        {(RACE, "c[row % 16"), (NEVER, ""), (WRONG, ""), (SEVERAL, "")}),
    "a factor that is overwritten": ("element", [("const float* a", "float* a"), (STORE, f"{STORE}\n    a[row * l] = 0;")],
        {(RACE, "sum += a"), (RACE, "a[row * l] = 0"), (BEYOND, ""), (WRONG, "")}),
    # memory that is not there
    "one term too many": ("element", [("k < l;", "k <= l;")], {(BEYOND, "sum += a"), (TERMS, "k <= l")}),
    "and for or": ("element", [("n || column", "n && column")], {(BEYOND, "sum += a"), (TERMS, "n && column")}),
    "mixed axes": ("element", [(TOLD, ""), ("blockIdx.y * blockDim.y", "blockIdx.y * blockDim.x")],
        {(NEVER, "] = sum"), (TERMS, "int row"), (WRONG, "")}),
    "no test at A's edge": ("tiles", [(LOAD_A, LOAD_A.replace("row < n && ", ""))], {(BEYOND, "a_tile[y][x] =")}),
    "no test before the store": ("tiles", [("if (row < n && column < m) c[", "c[")],
        {(BEYOND, "c[row * m"), (RACE, "c[row * m")}),
    "a tile that is too small": ("tiles", [("b_tile[TILE][TILE]", "b_tile[TILE - 1][TILE]")],
        {(BEYOND, "b_tile[y][x] =")}),
    "a vector at any address": ("element", [(LOOP, "float4 four = *(const float4*)&a[row * l + 1];\n    sum = four.x;")],
        {("illegal-address", "float4 four")}),
    "a null pointer": ("element", [(STORE, f"float* p = nullptr;\n    p[row] = sum;\n    {STORE}")],
        {("illegal-address", "p[row]")}),
    # values that nobody has written
    "a sum that is never begun": ("element", [("float sum = 0;", "float sum;")],
        {("no-value", "= sum"), (TERMS, "float sum"), (WRONG, "")}),
    "a part of a tile": ("tiles", [(LOAD_A, "if (row < n && first + x < l) a_tile[y][x] = a[row * l + first + x];")],
        {(NO_VALUE, "sum += a_tile"), (WRONG, "")}),
    # loops, launches, arithmetic
    "a loop without an end": ("element", [("k < l; ++k", "k < l;")], {("no-end", "sum += a")}),
    "a division by zero": ("element", [("a[row * l + k]", "a[row * l + k / (n - n)]")], {("zero-division", "sum += a")}),
    "a failed assertion": ("element", [("__global__", "#include <assert.h>\n__global__"),
        (STORE, f"assert(row != 3);\n    {STORE}")], {("kernel-assert", "assert(")}),
    "a grid that is rounded down": ("element", [("block(16, 16)", "block(16, 16) grid(m / 16, n / 16)")],
        {(NEVER, "= sum"), (WRONG, ""), ("lab-launch", "")}),
    "a test too strict": ("element", [(LEAVE, "if (row >= n - 1 || column >= m) return;")], {(NEVER, "= sum"), (WRONG, "")}),
    # what C is instead
    "one k too few": ("element", [("k < l;", "k < l - 1;")], {(TERMS, "sum += a"), (WRONG, "")}),
    "an integer sum": ("element", [("float sum", "int sum")], {(TERMS, "int sum"), (WRONG, "")}),
    "a float sum of doubles": ("doubles", [("double sum", "float sum")], {(TERMS, "float sum"), (WRONG, "")}),
    "one wrong element": ("element", [("= sum;", "= row == 18 && column == 5 ? 0 : sum;")], {(WRONG, "")}),
    "every second tile": ("tiles", [("first += TILE)", "first += 2 * TILE)")], {(TERMS, "sum += a_tile"), (WRONG, "")}),
    "A's tile turned": ("tiles", [("a_tile[y][x] =", "a_tile[x][y] =")], {(TERMS, "a_tile[x][y] ="), (WRONG, "")}),
    "one index for k": ("tiles", [("* b_tile[k][x]", "* b_tile[y][x]")], {(TERMS, "* b_tile[y]"), (WRONG, "")}),
    "a tile of a transposed matrix": ("tiles",
        [(LOAD_B, "int of = blockIdx.x * TILE + y;\n        b_tile[y][x] = of < m && first + x < l ? b[of * l + first + x] : 0;"),
         ("#define", "// b is stored transposed, m x l\n#define")], {(TERMS, "b_tile[y][x] ="), (WRONG, "")}),
    "a component twice": ("pairs", [("two.y;", "two.x;")], {(TERMS, "sum.y"), (WRONG, "")}),
    "a tile of ints": ("tiles", [("__shared__ float", "__shared__ int")], {(TERMS, "__shared__ int"), (WRONG, "")}),
    "B by columns": ("square", [("N[k * Width + column]", "N[column * Width + k]")],
        {("transposed-index", "N[column"), (WRONG, "")}),
    "M in N's place": ("square", [("N[k * Width", "M[k * Width")], {("wrong-operand", "M[k"), (WRONG, "")}),
    "another row stride": ("element", [("a[row * l", "a[row * m")],
        {("wrong-stride", "a[row * m"), (BEYOND, "a[row * m"), (WRONG, "")}),
    # numbers that are too small, on large shapes
    "rows in a byte": ("element", [("int row", "signed char row")], {(BEYOND, "sum += a"), (TERMS, "signed char row")}),
    "columns in a byte": ("element", [("int column", "unsigned char column")],
        {(TERMS, "unsigned char"), (RACE, "] = sum"), (NEVER, ""), (SEVERAL, ""), (WRONG, "")}),
    "an array of 64": ("element", [("float sum = 0;", "float sum = 0, row_of_a[64];"),
        (LOOP, "for (int k = 0; k < l; ++k) row_of_a[k] = a[row * l + k];\n    "
        "for (int k = 0; k < l; ++k) sum += row_of_a[k] * b[k * m + column];")], {(BEYOND, "row_of_a[k] =")}),
    "sums of bytes in 16 bits": ("bytes", [("int sum", "int16_t sum")], {(TERMS, "int16_t sum"), (WRONG, "")}),
    "a byte that counts squares": ("square", [("int k", "unsigned char k")], {("no-end", "sum +=")}),
    "products of a batch too near": ("batch",
        [("(b * M + row) * K", "row * K"), ("    float sum", "    A += b * M * N;\n    float sum")],
        {(TERMS, "A += b"), (BEYOND, "sum +="), (WRONG, "")}),
    # memory and lanes of others
    "a tile without __shared__": ("tiles",
        [("__shared__ float a_tile[TILE][TILE],", "float a_tile[TILE][TILE];\n    __shared__ float")],
        {(TERMS, "float a_tile"), ("no-value", ""), (WRONG, "")}),
    "lanes that have left": ("element", [(LOOP, f"if (threadIdx.x % 2) return;\n    {LOOP}"),
        (STORE, "c[row * m + column] = __shfl_xor_sync(~0u, sum, 1);")], {(NO_VALUE, "__shfl_xor"), (NEVER, ""), (WRONG, "")}),
}  # fmt: skip
# A barrier that is missing is on the page (below), and values that nobody has written are in races.cu.
BY_DEFAULT = ["a loop without an end", "M in N's place", "a grid that is rounded down"]


def planted(folder, name):
    base, changes, expected = FAULTS[name]
    text = changed(BASES[base], changes)
    path = folder / "mine.cu"
    path.write_text(text, encoding="utf-8")
    return path, text.splitlines(), expected


@pytest.mark.parametrize("name", exhaustive(BY_DEFAULT, FAULTS))
def test_a_fault_is_found_with_its_cause_and_line(tmp_path, name):
    path, lines, expected = planted(tmp_path, name)
    verdict = judged("run", path, "--stall", 2 if any(code == "no-end" for code, _ in expected) else 90, "--seed", 3)
    assert (verdict.code, verdict.record["right"]) == (1, False)
    found = {(code, lines[line - 1] if line else "") for code, line in verdict.findings}
    assert {
        (code, next((part for of, part in expected if of == code and part in line), line)) for code, line in found
    } == expected


@pytest.mark.parametrize("name", exhaustive([], STYLES))  # by default test_confinement.py has a right kernel
def test_a_right_kernel_in_any_style_is_right(name):
    """Names, types, structs, templates, launches; on a shape of whole tiles and on one that is not."""
    path = DATA / "kernels" / f"{name}.cu"
    flags = [
        word
        for flag, value in re.findall(r"^// (kernel|block): (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
        for word in (f"--{flag}", value)
    ]
    verdict = judged("run", path, "--stall", 90, *flags)
    assert (verdict.code, verdict.findings) == (0, set()), verdict.said
    assert all(case["right"] and not case["wrong"] for case in verdict.record["cases"])


WHOLE = [
    ("square", "16 divides our Width"),
    ("tiles", "all dimensions are multiples of 16"),
    ("tiles", "n, l, m: multiples of 16"),
]


@pytest.mark.parametrize(("base", "states"), exhaustive(WHOLE[:1], WHOLE))
def test_a_kernel_for_whole_tiles_alone_is_told_so(tmp_path, base, states):
    """One of three sizes, and one of square matrices."""
    path, *_ = planted(tmp_path, "no test at A's edge")
    if base == "square":
        text = (ROOT / "docs/examples/tiled.cu").read_text(encoding="utf-8")
        path.write_text(changed(text, [("row < Width && k + x < Width ?", "true ?")]), encoding="utf-8")
    verdict = judged("run", path)
    first, *others = (case["right"] for case in verdict.record["cases"])
    assert (first, {*others}) == (True, {False})
    assert "right on the first shape" in verdict.said
    path.write_text(f"// {states}\n{path.read_text()}")
    assert judged("run", path).code == 0


def test_the_page_s_finding_is_printed_with_both_lines_and_once(tmp_path):
    """docs/learn.md shows it; it is said in full for the first shape only."""
    path = tmp_path / "tiled.cu"
    text = (ROOT / "docs/examples/tiled.cu").read_text(encoding="utf-8")
    path.write_text(changed(text, [("* Ns[e][x];\n        __syncthreads();", "* Ns[e][x];")]), encoding="utf-8")
    said = lab("run", path).stdout
    (shown,) = re.findall(r"```text\n(P \(32×32\).*?)```", (ROOT / "docs/learn.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [line for line in shown.splitlines() if line not in said.splitlines()] == []
    assert (said.count("for (int e = 0"), said.count("--json")) == (1, 0)
    assert len(said.splitlines()) < 40


def test_who_wrote_the_wrong_element_and_where_c_is_wrong(tmp_path):
    path, *_ = planted(tmp_path, "one wrong element")
    verdict = judged("run", path, "--sizes", 32, 5, 16)
    (case,) = verdict.record["cases"]
    (finding,) = case["findings"]
    assert case["wrong"] == 1
    assert all(part in finding["text"] for part in ("c[18][5]", "block (0, 1)", "thread (5, 2)"))
    assert re.search(r"^ +\.+x\.+$", verdict.said, re.MULTILINE)  # in the map


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_elements(tmp_path):
    path, *_ = planted(tmp_path, "every second tile")
    first, again, other = (judged("run", path, "--sizes", 64, 64, 64, "--seed", seed) for seed in (5, 5, 6))
    assert first.record["cases"] == again.record["cases"] != other.record["cases"]
    assert (first.record["seed"], first.record["launch"].count("shared")) == (5, 0)
    assert "a is A; b is B; c is C;" in first.said


@pytest.mark.exhaustive
def test_what_a_kernel_prints_is_shown(tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(
        changed("#include <stdio.h>\n" + BASES["element"], [(STORE, f'{STORE}\n    printf("%d %d\\n", row, column);')]),
        encoding="utf-8",
    )
    verdict = judged("run", path, "--sizes", 3, 4, 2)
    assert verdict.code == 0
    assert verdict.record["cases"][0]["printed"] == [f"{row} {column}" for row in range(3) for column in range(2)]
    assert "      2 1\n" in verdict.said


@pytest.mark.exhaustive
def test_threads_in_z_are_launched_and_named(tmp_path):
    path = tmp_path / "mine.cu"
    text = changed(
        BASES["element"],
        [
            ("block(16, 16)", "grid((m + 7) / 8, (n + 3) / 4, 2) block(8, 4, 2)"),
            ("if (row", "if (blockIdx.z == 0 || threadIdx.z == 0 || row"),
        ],
    )
    path.write_text(text, encoding="utf-8")
    assert judged("run", path, "--sizes", 9, 5, 11).code == 0
    path.write_text(text.replace("= sum", "= sum + 1"), encoding="utf-8")
    (finding,) = judged("run", path, "--sizes", 9, 5, 11).record["cases"][0]["findings"]
    assert all(part in finding["text"] for part in ("block (0, 0, 1)", "thread (0, 0, 1)"))


COLUMNS = """__global__ void gemm(int m, int n, int k, const float* A, int lda, const float* B, int ldb, float* C, int ldc)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= m || j >= n) return;
    float sum = 0;
    for (int p = 0; p < k; ++p) sum += A[i + p * lda] * B[p + j * ldb];
    C[i + j * ldc] = sum;
}
"""


VECTOR = """__global__ void gemv(int m, int n, const float* A, const float* x, float* y)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m) return;
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += A[j * m + i] * x[j];
    y[i] = sum;
}
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", [COLUMNS, VECTOR], ids=["matrix", "vector"])
def test_matrices_by_columns_are_right_where_the_layout_says_so(tmp_path, text):
    """As BLAS has them, with leading dimensions; or where the file says so."""
    path = tmp_path / "mine.cu"
    path.write_text(f"// column-major\n{text}")
    assert judged("run", path).code == 0
    assert judged("run", path, "--layout", "columns").code == 0
    path.write_text(changed(text, [("] = sum", "] = sum + 1")]))
    assert judged("run", path, "--layout", "columns").code == 1


@pytest.mark.parametrize("sizes", exhaustive(["n m"], ["n m", "m n", "rows l"]))
def test_the_sizes_of_a_matrix_times_a_vector_follow_from_its_index(tmp_path, sizes):
    rows, columns = sizes.split()
    text = VECTOR.replace("A[j * m + i]", "A[i * n + j]")
    names = {"m": rows, "n": columns}
    (tmp_path / "mine.cu").write_text(re.sub(r"\b[mn]\b", lambda name: names[name[0]], text))
    assert judged("run", tmp_path / "mine.cu").code == 0


def test_a_right_kernel_is_judged_by_what_it_computes_not_by_what_it_says(tmp_path):
    """It writes its own verdict to every file that may be the lab's, and ends the process before the lab could say anything."""
    line = json.dumps(
        {"outcome": {"c": "", "loads": [0, 0], "stores": 0, "stopped": "", "wrong": [], "never": [], "outside": []}}
    )
    path = tmp_path / "forged.cu"
    path.write_text(
        '#include <string.h>\nextern "C" { long write(int, const void*, unsigned long); void _exit(int); }\n'
        "__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)\n{\n"
        f"    const char text[] = {json.dumps(line + chr(10))};\n    for (int file = 3; file < 12; ++file)\n"
        "        for (int i = 0; i < 3; ++i)\n            if (::write(file, text, strlen(text)) < 0) break;\n    ::_exit(0);\n}\n"
    )
    verdict = judged("check", "element", path)
    assert (verdict.code, verdict.record["points"]) == (1, 0)


@pytest.mark.exhaustive
def test_a_large_launch_runs_in_every_order_too(tmp_path):
    """Of which not all reads are looked at."""
    verdict = judged("run", ROOT / "docs/examples/element.cu", "--sizes", 256, 256, 256)
    assert (verdict.code, "right in every order" in verdict.said) == (0, True), verdict.said
