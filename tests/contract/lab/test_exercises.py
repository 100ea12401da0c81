# SPDX-License-Identifier: MIT
"""docs/learn.md, Exercises: solutions get all points however they are written, errors cost some; a class is graded on the same
shapes, which are drawn anew and given again by --seed."""

import csv
import json
import re

import pytest
from support.lab import DATA, changed, judged, lab
from support.pages import Page
from support.selection import exhaustive

SOLUTIONS = DATA / "solutions"
ELEMENT, RANKS_SOLUTION = SOLUTIONS / "element.cu", SOLUTIONS / "ranks.py"
POINTS = {
    "element": 6, "row": 10, "column": 14, "vector": 6, "barriers": 6, "edges": 6, "stride": 10, "tiles": 14, "coalesce": 10,
    "conflicts": 14, "registers": 18, "ranks": 10,
    "add": 6, "saxpy": 6, "atomics": 6, "reduction": 14, "histogram": 10, "transpose": 14, "stencil": 10, "constant": 10,
}  # fmt: skip
THE_SAME = {"barriers": "tiles", "edges": "tiles"}  # what solves both
HEAD = "__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)\n"

LOOP = "for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];"
STORE = "c[row * m + column] = sum;"
ROW_COLUMN = "int row = blockIdx.y * blockDim.y + threadIdx.y;\n    int column = blockIdx.x * blockDim.x + threadIdx.x;"
TILES = "for (int first = 0; first < l; first += TILE) {"
PRODUCTS = "for (int k = 0; k < TILE; ++k) sum += a_tile[y][k] * b_tile[k][x];"
SHARED = "__shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];"
BARRIER = "__syncthreads();\n"

GRID_STRIDE = f"""// lab: block(64) grid(3)
{HEAD}{{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * m; i += gridDim.x * blockDim.x) {{
        float sum = 0;
        for (int k = 0; k < l; ++k) sum += a[i / m * l + k] * b[k * m + i % m];
        c[i] = sum;
    }}
}}
"""
WARP_A_ROW = f"""// lab: block(32) grid(n)
{HEAD}{{
    float sum = 0;
    for (int k = threadIdx.x; k < l; k += 32) sum += a[blockIdx.x * l + k] * b[k];
    for (int distance = 16; distance; distance /= 2) sum += __shfl_down_sync(0xffffffff, sum, distance);
    if (threadIdx.x == 0) c[blockIdx.x] = sum;
}}
"""
RESULT_FIRST = """// lab: block(64) grid((n + 63) / 64)
__global__ void multiply(float* A, const float* B, const float* C, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += B[i * n + j] * C[j];
    A[i] = sum;
}
"""

I = "int i = blockIdx.x * blockDim.x + threadIdx.x"
# How the file to begin with becomes a solution.
SOLVED = {
    "add": [("// one element of c", f"{I};\n    if (i < n) c[i] = a[i] + b[i];")],
    "saxpy": [("// elements of y", f"for ({I}; i < n; i += gridDim.x * blockDim.x)\n        y[i] = a * x[i] + y[i];")],
    "atomics": [("sum[0] += in[i]", "atomicAdd(sum, in[i])")],
    "reduction": [("if (i < n) atomicAdd(&sums[blockIdx.x], in[i]);",
        "__shared__ int part[256];\n    int t = threadIdx.x;\n    part[t] = i < n ? in[i] : 0;\n"
        "    for (int d = 128; d > 0; d /= 2) {\n        __syncthreads();\n        if (t < d) part[t] += part[t + d];\n    }\n"
        "    if (t == 0) sums[blockIdx.x] = part[0];")],
    "histogram": [("int threads", "__shared__ int own[256];\n    own[threadIdx.x] = 0;\n    __syncthreads();\n    int threads"),
        ("&bins[in[i]], 1);", "&own[in[i]], 1);\n    __syncthreads();\n    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);")],
    "transpose": [("if (x < columns && y < rows) out[x * rows + y] =",
        "__shared__ float tile[32][33];\n    if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] ="),
        ("columns + x];", "columns + x];\n    __syncthreads();\n    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + "
        "threadIdx.y;\n    if (x < rows && y < columns) out[y * rows + x] = tile[threadIdx.x][threadIdx.y];")],
    "stencil": [("in[i + d]", "near[t + RADIUS + d]"), ("if (i < RADIUS ||", "__shared__ float near[256 + 2 * RADIUS];\n"
        "    int t = threadIdx.x, first = i - t - RADIUS;\n    for (int e = t; e < 256 + 2 * RADIUS; e += 256)\n"
        "        near[e] = first + e >= 0 && first + e < n ? in[first + e] : 0;\n    __syncthreads();\n    if (i < RADIUS ||")],
    "constant": [("const float* weights, ", ""), ("__global__", "__constant__ float weights[5] = {1, 2, 4, 2, 1};\n__global__")],
    "column": [("// one column of C", "int column = blockIdx.x * blockDim.x + threadIdx.x;\n    if (column >= m) return;\n"
        "    for (int row = 0; row < n; ++row) {\n        float sum = 0;\n        " + LOOP + "\n        " + STORE + "\n    }")],
    "vector": [("// one element of the vector c; m is 1", "int row = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (row >= n) return;\n    float sum = 0;\n    " + LOOP.replace(" * m + column", "") + "\n    c[row] = sum;")],
    "stride": [("BLOCK_SIZE, BLOCK_SIZE, BLOCK_SIZE, parent.elements", "min(BLOCK_SIZE, parent.width - column * BLOCK_SIZE), "
        "min(BLOCK_SIZE, parent.height - row * BLOCK_SIZE),\n        parent.stride, "
        "parent.elements + row * BLOCK_SIZE * parent.stride + column * BLOCK_SIZE")],
    "coalesce": [("(n + 31) / 32, (m + 7)", "(m + 31) / 32, (n + 7)"), ("row = blockIdx.x * blockDim.x + threadIdx.x",
        "row = blockIdx.y * blockDim.y + threadIdx.y"), ("column = blockIdx.y * blockDim.y + threadIdx.y",
        "column = blockIdx.x * blockDim.x + threadIdx.x")],
    "conflicts": [("[TILE][TILE],", "[TILE][TILE + 1],")],
}  # fmt: skip
ARRAYS = ("add", "saxpy", "atomics", "reduction", "histogram", "transpose", "stencil", "constant")

# Of each exercise other ways to write it: the solution that is changed, what is replaced by what, and the points.
VARIANTS = {
    "element": {
        "pointers that move": ("element", [(LOOP,
            "const float *p = a + row * l, *q = b + column;\n    for (; p < a + (row + 1) * l; q += m) sum += *p++ * *q;")], 6),
        "work inside an if": ("element", [("if (row >= n || column >= m) return;", "if (row < n && column < m) {"),
            (STORE, f"{STORE}\n    }}")], 6),
        "blocks of one dimension": ("element", [("block(16, 16)", "block(256) grid((n * m + 255) / 256)"),
            (ROW_COLUMN, "int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / m, column = i % m;")], 6),
        "a grid-stride loop": (GRID_STRIDE, [], 6),
        "fused, and the read-only cache": ("element",
            [(LOOP, "for (int k = 0; k < l; ++k) sum = fmaf(__ldg(&a[row * l + k]), b[k * m + column], sum);")], 6),
        "no more than 128 products": ("element", [("k < l;", "k < l && k < 128;")], 4),  # the shape with a long sum
    },
    "row": {
        "rows added up in C": ("row", [("float sum = 0;", "c[row * m + column] = 0;"), ("sum += a", "c[row * m + column] += a"),
            ("        c[row * m + column] = sum;\n", "")], 10),
        "a thread an element": ("element", [], 6),
    },
    "column": {
        "a thread a row": ("row", [], 6),
    },
    "vector": {
        "a warp a row": (WARP_A_ROW, [], 6),
        "the result first": (RESULT_FIRST, [], 6),
        "all in the first element": ("vector", [("c[row] = sum;", "c[0] = sum;")], 0),
    },
    "barriers": {
        "one barrier, two buffers": ("tiles", [(SHARED.partition("float ")[2], "a_tiles[2][TILE][TILE], b_tiles[2][TILE][TILE];"),
            (TILES, TILES + "\n        auto &a_tile = a_tiles[first / TILE % 2], &b_tile = b_tiles[first / TILE % 2];"),
            (f"{PRODUCTS}\n        {BARRIER}", f"{PRODUCTS}\n")], 6),
        "the second at the beginning": ("tiles", [(TILES, f"{TILES}\n        __syncthreads();"),
            (f"{PRODUCTS}\n        {BARRIER}", f"{PRODUCTS}\n")], 6),
    },
    "edges": {
        "whole tiles alone": ("tiles", [(TILES, "for (int first = 0; first + TILE <= l; first += TILE) {")], 0),
        "no tiles at all": ("element", [], 0),
    },
    "tiles": {
        "wrong on whole tiles alone": ("tiles", [("if (row < n && column < m)", "if (row < n && column < m && n % TILE)")], 4),
        "by blocks of one dimension": ("tiles",
            [("#define TILE 16", "// lab: block(256) grid((m + 15) / 16, (n + 15) / 16)\n#define TILE 16"),
            ("int x = threadIdx.x, y = threadIdx.y", "int x = threadIdx.x % TILE, y = threadIdx.x / TILE")], 14),
        "threads that leave before a barrier": ("tiles", [("float sum = 0;", "float sum = 0;\n    if (row >= n) return;")], 0),
        "dynamic shared memory": ("tiles",
            [("#define TILE 16", "// lab: block(16, 16) grid((m + 15) / 16, (n + 15) / 16) shared(2048)\n#define TILE 16"),
            (SHARED, "extern __shared__ float memory[];\n    float *a_tile = memory, *b_tile = memory + TILE * TILE;"),
            ("a_tile[y][x] =", "a_tile[y * TILE + x] ="), ("b_tile[y][x] =", "b_tile[y * TILE + x] ="),
            ("a_tile[y][k] * b_tile[k][x]", "a_tile[y * TILE + k] * b_tile[k * TILE + x]")], 14),
    },
    "coalesce": {
        "neighbours by the remainder": ("coalesce",
            [("block(32, 8) grid((m + 31) / 32, (n + 7) / 8)", "block(256) grid((m + 31) / 32, (n + 7) / 8)"),
            ("blockIdx.y * blockDim.y + threadIdx.y", "blockIdx.y * 8 + threadIdx.x / 32"),
            ("blockIdx.x * blockDim.x + threadIdx.x", "blockIdx.x * 32 + threadIdx.x % 32")], 10),
        "every other column": ("coalesce", [("(m + 31) / 32,", "(m + 63) / 64 * 2,"),
            ("blockIdx.x * blockDim.x + threadIdx.x", "blockIdx.x / 2 * 64 + blockIdx.x % 2 + threadIdx.x * 2")], 0),
    },
    "conflicts": {
        "columns by exclusive or": ("conflicts", [("[TILE + 1]", "[TILE]"), ("a_turned[x][y] =", "a_turned[x][y ^ x] ="),
            ("a_turned[k][y]", "a_turned[k][y ^ k]")], 14),
    },
    "registers": {
        "an element a thread": ("tiles", [("TILE 16", "TILE 32")], 14),
    },
    "stride": {},
}  # fmt: skip


FIRST = ("coalesce", ("every other column",))  # by default


def solution(name):
    name = THE_SAME.get(name, name)
    return changed(lab("start", name).stdout, SOLVED[name]) if name in SOLVED else (SOLUTIONS / f"{name}.cu").read_text("utf-8")


@pytest.mark.needs("compiler", "addr2line")
@pytest.mark.parametrize(
    ("name", "variants"), exhaustive([FIRST], [FIRST, *((name, tuple(VARIANTS[name])) for name in VARIANTS)])
)
def test_points_for_each_way_to_write_it(tmp_path, name, variants):
    """The solution, other ways, those with errors, and the file to begin with, which has no points; all on the same shapes in one
    run. A file that cannot be judged stops nothing."""
    (tmp_path / "begin.cu").write_text(lab("start", name).stdout)
    (tmp_path / "broken.cu").write_text(f"{HEAD}{{ undeclared(1); }}\n")
    (tmp_path / "not_ours.cu").write_text(f'{HEAD}{{ asm("nop;"); }}\n')
    (tmp_path / "solved.cu").write_text(solution(name))
    files = [tmp_path / f"{each}.cu" for each in ("begin", "none", "broken", "not_ours", "solved")]
    expected = {"begin.cu": 0, "none.cu": 0, "broken.cu": 0, "not_ours.cu": None, "solved.cu": POINTS[name]}
    for number, variant in enumerate(variants):
        base, changes, points = VARIANTS[name][variant]
        text = base if "\n" in base else solution(base)
        files.append(tmp_path / f"{number} {variant}.cu".replace(" ", "_"))
        files[-1].write_text(changed(text, changes), encoding="utf-8")
        expected[files[-1].name] = points
    lines, table = tmp_path / "grades.jsonl", tmp_path / "grades.csv"
    done = lab("grade", name, *files, "--stall", 90, "--seed", 1, "--json", lines, "--csv", table, limit=280)
    assert done.returncode == 0, done.stderr
    graded = {line["file"].rpartition("/")[2]: line for line in map(json.loads, lines.read_text().splitlines())}
    assert {file: line["points"] for file, line in graded.items()} == expected, done.stdout
    assert {(line["of"], line["seed"], line["exercise"]) for line in graded.values()} == {(POINTS[name], 1, name)}
    assert "file-missing" in done.stdout
    assert "broken.cu:2" in done.stdout
    in_table = {line["file"].rpartition("/")[2]: line["points"] for line in csv.DictReader(table.read_text().splitlines())}
    assert in_table == {file: "" if points is None else str(points) for file, points in expected.items()}
    assert f"{len(files) - 1} files judged of {len(files)}" in done.stdout


@pytest.mark.needs("compiler", "addr2line")
@pytest.mark.parametrize("name", exhaustive(["transpose"], ARRAYS))
def test_an_exercise_of_arrays_with_the_teacher_s_cases_and_a_page_for_each_file(tmp_path, name):
    begin = lab("start", name).stdout
    (tmp_path / "begin.cu").write_text(begin)
    (tmp_path / "mine.cu").write_text(solution(name))
    (tmp_path / "cases").write_text("# hidden\n33 95\n" if name == "transpose" else "257\n")
    done = lab(
        *("grade", name, tmp_path / "mine.cu", tmp_path / "begin.cu", "--cases", tmp_path / "cases", "--jobs", 2, "--stall", 90),
        *("--pages", tmp_path / "pages", "--json", tmp_path / "lines"),
        limit=280,
    )
    lines = list(map(json.loads, (tmp_path / "lines").read_text().splitlines()))
    assert [line["points"] for line in lines] == [POINTS[name], 0], done.stdout
    assert "right on 5 of 5 shapes" in lines[0]["why"]
    pages = Page((tmp_path / "pages" / "index.html").read_text(encoding="utf-8")).attributes("href")
    mine, start = ((tmp_path / "pages" / page).read_text(encoding="utf-8") for page in pages)
    assert f"<h2>{POINTS[name]} of {POINTS[name]} points</h2>" in mine
    assert "begin.cu" in start


def test_a_case_that_is_no_shape_is_refused_before_anything_is_judged(tmp_path):
    (tmp_path / "cases").write_text("16 16 16\n16 16\n")
    refused = lab("grade", "element", tmp_path / "none.cu", "--cases", tmp_path / "cases")
    assert (refused.returncode, "line 2" in refused.stderr, "[sizes]" in refused.stderr, refused.stdout) == (2, True, True, "")


@pytest.mark.needs("compiler", "addr2line")
def test_a_fault_on_one_shape_does_not_show_on_the_others(tmp_path):
    """A store beside C on the shape with a long sum, the third of four."""
    text = changed(
        (SOLUTIONS / "element.cu").read_text(), [(STORE, f"{STORE}\n    if (l >= 100 && !row && !column) c[-40] = 1;")]
    )
    (tmp_path / "mine.cu").write_text(text)
    verdict = judged("check", "element", tmp_path / "mine.cu", "--seed", 0)
    assert (verdict.code, verdict.record["points"], verdict.record["of"]) == (1, 4, 6)
    assert "right on 3 of 4" in verdict.said


def shapes_of(exercise, seed):
    """As they are told of a solution."""
    said = judged("check", exercise, ELEMENT, "--seed", seed).said
    return [
        dict(zip("nml", map(int, each), strict=True))
        for each in re.findall(r"^\w+ \((\d+)×(\d+)\) = \w+ \(\d+×(\d+)\)", said, re.MULTILINE)
    ]


@pytest.mark.exhaustive
@pytest.mark.needs("compiler", "addr2line")
def test_shapes_are_drawn_anew_and_given_again_by_their_seed():
    first, again, other = (shapes_of("element", seed) for seed in (1, 1, 2))
    assert first == again != other
    whole, edges, long, tiny = first
    assert (whole["n"] % 16, whole["l"] % 16, whole["m"] % 16) == (0, 0, 0)
    assert all(size % 2 for size in edges.values())
    assert edges["n"] != edges["m"]
    assert long["l"] >= 100
    assert max(tiny.values()) < 16
    seeds = {judged("check", "element", ELEMENT).record["seed"] for _ in range(2)}
    assert len(seeds) == 2  # where none is given


def test_exercises_are_listed_and_their_hints_come_one_by_one():
    listed = dict(re.findall(r"^(\w+) +(\d+) points", lab("exercises").stdout, re.MULTILINE))
    assert {name: int(points) for name, points in listed.items()} == POINTS
    none, one, two = (lab("exercises", "barriers", "--hint", hints).stdout for hints in (0, 1, 2))
    assert [text.count("Hint") for text in (none, one, two)] == [0, 1, 2]
    assert one.partition("Hint 1")[2].splitlines()[0] == two.partition("Hint 1")[2].splitlines()[0]
    refused = lab("start", "tile")
    assert (refused.returncode, "[setting]" in refused.stderr, refused.stdout) == (2, True, "")


# --- the exercise `ranks`, a Python program with mpi4py

ENDS = "comm.rank or product(a[:3], b)\n    raise SystemExit(0)"
RANKS = {
    "B is not sent": ("comm.bcast(b)", "b if comm.rank == 0 else None", 0),
    "all rows at rank 0": ("np.array_split(a, comm.size)", "[a] + [a[:0]] * (comm.size - 1)", 0),
    "parts the wrong way round": ("np.concatenate(parts)", "np.concatenate(parts[::-1])", 0),
    "one part": ("np.concatenate(parts)", "parts[0]", 0),
    "nothing returned": ("np.concatenate(parts)", "None", 0),
    "no Python": ("product):", "product)", 0),
    "no such function": ("def multiply", "def product", 0),
    "rows that must divide": ("np.array_split(a, comm.size)", "np.split(a, comm.size)", 0),
    "ranks that wait for each other": ("b = comm.bcast(b)", "b = comm.bcast(b) if comm.rank < 2 else comm.recv()", 2),
    "ended early": ("b = comm.bcast(b)", ENDS, 0),
}


@pytest.mark.exhaustive
@pytest.mark.launcher
def test_a_program_of_ranks_that_is_right():
    verdict = judged("check", "ranks", RANKS_SOLUTION, "--stall", 90)
    assert (verdict.code, verdict.record["points"]) == (0, 10), verdict.said


@pytest.mark.launcher
@pytest.mark.parametrize("error", exhaustive([], RANKS))
def test_an_error_of_a_program_of_ranks_costs_points(tmp_path, error):
    """Tried on one to four ranks; one that ends before its work is done has no points."""
    old, new, points = RANKS[error]
    (tmp_path / "mine.py").write_text(changed(RANKS_SOLUTION.read_text(encoding="utf-8"), [(old, new)]), encoding="utf-8")
    verdict = judged("check", "ranks", tmp_path / "mine.py", "--seed", 1, "--stall", 15 if "wait" in error else 90)
    assert (verdict.code, verdict.record["points"]) == (1, points), verdict.said


@pytest.mark.launcher
@pytest.mark.exhaustive
def test_a_program_of_ranks_that_makes_up_its_results_gets_no_points(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import sys, os, json\n\n\ndef multiply(comm, a, b, product):\n"
        "    sizes = [list(map(int, each.split(','))) for each in sys.argv[4:]]\n"
        "    lines = [{'sizes': each, 'rows': [1], 'shape': [1, 1], 'c': 'AA=='} for each in sizes]\n"
        "    open(sys.argv[2], 'w').write(chr(10).join(map(json.dumps, lines)) + chr(10))\n    os._exit(0)\n"
    )
    verdict = judged("check", "ranks", tmp_path / "mine.py", "--stall", 90)
    assert (verdict.code, verdict.record["points"]) == (1, 0), verdict.said
