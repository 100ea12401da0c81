# SPDX-License-Identifier: MIT
"""Solutions of exercises written in many ways get all points, and errors that students make get fewer, for the right reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.selection import exhaustive

from hybrid.classroom.exercise import named
from hybrid.commands import lab

pytestmark = pytest.mark.needs("compiler", "addr2line")

SOLUTIONS = Path(__file__).resolve().parent / "solutions"
HEAD = "__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)\n"

# Of an exercise: the solution that is changed, and what is replaced by what; or a whole text.
ROW_COLUMN = "int row = blockIdx.y * blockDim.y + threadIdx.y;\n    int column = blockIdx.x * blockDim.x + threadIdx.x;"
LEAVE = "if (row >= n || column >= m) return;"
LOOP = "for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];"
STORE = "c[row * m + column] = sum;"
LOAD_A = "a_tile[y][x] = row < n && first + x < l ? a[row * l + first + x] : 0;"
LOAD_B = "b_tile[y][x] = first + y < l && column < m ? b[(first + y) * m + column] : 0;"
TILES = "for (int first = 0; first < l; first += TILE) {"
PRODUCTS = "for (int k = 0; k < TILE; ++k) sum += a_tile[y][k] * b_tile[k][x];"
STORE_WITHIN = "if (row < n && column < m) c[row * m + column] = sum;"
COLUMNS = "for (int column = 0; column < m; ++column) {"
SHARED = "__shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];"
BARRIER = "__syncthreads();\n"

RIGHT = {
    "backwards along k": ("element", "element", {LOOP: LOOP.replace("int k = 0; k < l; ++k", "int k = l - 1; k >= 0; --k")}),
    "pointers that move": (
        "element",
        "element",
        {LOOP: "const float *p = a + row * l, *q = b + column;\n    for (; p < a + (row + 1) * l; q += m) sum += *p++ * *q;"},
    ),
    "other names": (
        "element",
        "element",
        {
            "multiply": "MatMul",
            "const float* a": "float* M",
            "const float* b": "float* N",
            "float* c": "float* P",
            "a[": "M[",
            "b[": "N[",
            "c[": "P[",
        },
    ),
    "work inside an if": ("element", "element", {LEAVE: "if (row < n && column < m) {", STORE: f"{STORE}\n    }}"}),
    "a double sum": ("element", "element", {"float sum": "double sum"}),
    "blocks of one dimension": (
        "element",
        "element",
        {
            "block(16, 16)": "block(256) grid((n * m + 255) / 256)",
            ROW_COLUMN: "int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / m, column = i % m;",
        },
    ),
    "a grid-stride loop": (
        "element",
        f"""// lab: block(64) grid(3)
{HEAD}{{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * m; i += gridDim.x * blockDim.x) {{
        float sum = 0;
        for (int k = 0; k < l; ++k) sum += a[i / m * l + k] * b[k * m + i % m];
        c[i] = sum;
    }}
}}
""",
        {},
    ),
    "rows along x": (
        "element",
        "element",
        {
            "block(16, 16)": "block(16, 16) grid((n + 15) / 16, (m + 15) / 16)",
            "int row": "int column_",
            "int column =": "int row =",
            "int column_": "int column",
        },
    ),
    "restrict, and fused multiply-adds": (
        "element",
        "element",
        {
            "const float* a": "const float* __restrict__ a",
            LOOP: LOOP.replace("sum +=", "sum = fmaf(").replace(" * b[", ", b[").replace("];", "], sum);"),
        },
    ),
    "loads through the read-only cache": ("element", "element", {"a[row * l + k]": "__ldg(&a[row * l + k])"}),
    "two steps at a time": (
        "element",
        "element",
        {
            LOOP: "int k = 0;\n    for (; k + 1 < l; k += 2) sum += a[row * l + k] * b[k * m + column]"
            " + a[row * l + k + 1] * b[(k + 1) * m + column];\n    if (k < l) sum += a[row * l + k] * b[k * m + column];"
        },
    ),
    "a device function": (
        "element",
        "element",
        {
            "__global__": (
                "__device__ float at(const float* matrix, int width, int i, int j) { return matrix[i * width + j]; }\n__global__"
            ),
            "a[row * l + k]": "at(a, l, row, k)",
        },
    ),
    "a macro for the index": (
        "element",
        "element",
        {"__global__": "#define AT(i, j, w) ((i) * (w) + (j))\n__global__", "a[row * l + k]": "a[AT(row, k, l)]"},
    ),
    "rows added up in C": (
        "row",
        "row",
        {
            "float sum = 0;": "c[row * m + column] = 0;",
            "sum += a": "c[row * m + column] += a",
            "        c[row * m + column] = sum;\n": "",
        },
    ),
    "a row with k outside": (
        "row",
        "row",
        {
            COLUMNS + "\n        float sum = 0;\n": "for (int column = 0; column < m; ++column) c[row * m + column] = 0;\n"
            "    for (int k = 0; k < l; ++k) {\n"
            "        float factor = a[row * l + k];\n",
            LOOP: "for (int column = 0; column < m; ++column) c[row * m + column] += factor * b[k * m + column];",
            "        c[row * m + column] = sum;\n": "",
        },
    ),
    "rows in blocks of 128": ("row", "row", {"block(32) grid((n + 31) / 32)": "block(128) grid((n + 127) / 128)"}),
    "a column with while": (
        "column",
        "column",
        {"for (int row = 0; row < n; ++row) {": "int row = 0;\n    while (row < n) {", STORE: f"{STORE}\n        ++row;"},
    ),
    "a column from below": ("column", "column", {"int row = 0; row < n; ++row": "int row = n - 1; row >= 0; --row"}),
    "a warp a row": (
        "vector",
        f"""// lab: block(32) grid(n)
{HEAD}{{
    float sum = 0;
    for (int k = threadIdx.x; k < l; k += 32) sum += a[blockIdx.x * l + k] * b[k];
    for (int distance = 16; distance; distance /= 2) sum += __shfl_down_sync(0xffffffff, sum, distance);
    if (threadIdx.x == 0) c[blockIdx.x] = sum;
}}
""",
        {},
    ),
    "a block a row": (
        "vector",
        f"""// lab: block(64) grid(n)
{HEAD}{{
    __shared__ float sums[64];
    float sum = 0;
    for (int k = threadIdx.x; k < l; k += 64) sum += a[blockIdx.x * l + k] * b[k];
    sums[threadIdx.x] = sum;
    for (int half = 32; half; half /= 2) {{
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }}
    if (threadIdx.x == 0) c[blockIdx.x] = sums[0];
}}
""",
        {},
    ),
    "one barrier, two buffers": (
        "barriers",
        "tiles",
        {
            "a_tile[TILE][TILE], b_tile[TILE][TILE]": "a_tiles[2][TILE][TILE], b_tiles[2][TILE][TILE]",
            TILES: TILES + "\n        auto &a_tile = a_tiles[first / TILE % 2], &b_tile = b_tiles[first / TILE % 2];",
            f"{PRODUCTS}\n        {BARRIER}": f"{PRODUCTS}\n",
        },
    ),
    "the second barrier at the beginning": (
        "barriers",
        "tiles",
        {TILES: f"{TILES}\n        __syncthreads();", f"{PRODUCTS}\n        {BARRIER}": f"{PRODUCTS}\n"},
    ),
    "a number of tiles": (
        "edges",
        "tiles",
        {TILES: "for (int tile = 0; tile < (l + TILE - 1) / TILE; ++tile) {\n        int first = tile * TILE;"},
    ),
    "zeros by multiplication": (
        "edges",
        "tiles",
        {LOAD_A: "a_tile[y][x] = a[min(row, n - 1) * l + min(first + x, l - 1)] * (row < n && first + x < l);"},
    ),
    "a sum that stops at the edge": (
        "edges",
        "tiles",
        {
            LOAD_A: "if (row < n && first + x < l) a_tile[y][x] = a[row * l + first + x];",
            PRODUCTS: f"if (row < n && column < m)\n            {PRODUCTS.replace('TILE', 'min(TILE, l - first)')}",
        },
    ),
    "tiles of 32": ("tiles", "tiles", {"TILE 16": "TILE 32"}),
    "tiles by blocks of one dimension": (
        "tiles",
        "tiles",
        {
            "#define TILE 16": "// lab: block(256) grid((m + 15) / 16, (n + 15) / 16)\n#define TILE 16",
            "int x = threadIdx.x, y = threadIdx.y": "int x = threadIdx.x % TILE, y = threadIdx.x / TILE",
        },
    ),
    "dynamic shared memory": (
        "tiles",
        "tiles",
        {
            "#define TILE 16": "// lab: block(16, 16) grid((m + 15) / 16, (n + 15) / 16) shared(2048)\n#define TILE 16",
            SHARED: "extern __shared__ float memory[];\n    float *a_tile = memory, *b_tile = memory + TILE * TILE;",
            "a_tile[y][x] =": "a_tile[y * TILE + x] =",
            "b_tile[y][x] =": "b_tile[y * TILE + x] =",
            "a_tile[y][k] * b_tile[k][x]": "a_tile[y * TILE + k] * b_tile[k * TILE + x]",
        },
    ),
    "A's tile turned": (
        "tiles",
        "tiles",
        {"a_tile[TILE][TILE]": "a_tile[TILE][TILE + 1]", "a_tile[y][x] =": "a_tile[x][y] =", "a_tile[y][k]": "a_tile[k][y]"},
    ),
    "tiles in a struct": (
        "tiles",
        "tiles",
        {
            "__global__": "struct Tile { float at[TILE][TILE]; };\n__global__",
            SHARED: "__shared__ Tile a_tile, b_tile;",
            "a_tile[y]": "a_tile.at[y]",
            "b_tile[y]": "b_tile.at[y]",
            "b_tile[k]": "b_tile.at[k]",
        },
    ),
    "neighbours by the remainder": (
        "coalesce",
        "coalesce",
        {
            "block(32, 8) grid((m + 31) / 32, (n + 7) / 8)": "block(256) grid((m + 31) / 32, (n + 7) / 8)",
            "blockIdx.y * blockDim.y + threadIdx.y": "blockIdx.y * 8 + threadIdx.x / 32",
            "blockIdx.x * blockDim.x + threadIdx.x": "blockIdx.x * 32 + threadIdx.x % 32",
        },
    ),
    "wide blocks": (
        "coalesce",
        "coalesce",
        {"block(32, 8) grid((m + 31) / 32, (n + 7) / 8)": "block(64, 4) grid((m + 63) / 64, (n + 3) / 4)"},
    ),
    "rows five longer": ("conflicts", "conflicts", {"TILE + 1": "TILE + 5"}),
    "columns by exclusive or": (
        "conflicts",
        "conflicts",
        {"[TILE + 1]": "[TILE]", "a_turned[x][y] =": "a_turned[x][y ^ x] =", "a_turned[k][y]": "a_turned[k][y ^ k]"},
    ),
    "four elements a thread": (
        "coalesce",
        f"""// lab: block(4, 16) grid((m + 15) / 16, (n + 15) / 16)
{HEAD}{{
    int row = blockIdx.y * 16 + threadIdx.y, column = (blockIdx.x * 4 + threadIdx.x) * 4;
    if (row >= n || column >= m) return;
    if (m % 4 == 0) {{
        float4 sum = make_float4(0, 0, 0, 0);
        for (int k = 0; k < l; ++k) {{
            float factor = a[row * l + k];
            float4 of_b = *reinterpret_cast<const float4*>(b + k * m + column);
            sum.x += factor * of_b.x;
            sum.y += factor * of_b.y;
            sum.z += factor * of_b.z;
            sum.w += factor * of_b.w;
        }}
        *reinterpret_cast<float4*>(c + row * m + column) = sum;
        return;
    }}
    for (int j = column; j < min(column + 4, m); ++j) {{
        float sum = 0;
        for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + j];
        c[row * m + j] = sum;
    }}
}}
""",
        {},
    ),
    "the size of a square": (
        "row",
        """// lab: block(64) grid((n + 63) / 64)
__global__ void square(float* P, float* M, float* N, int Width)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= Width) return;
    for (int column = 0; column < Width; ++column) {
        float sum = 0;
        for (int k = 0; k < Width; ++k) sum += M[row * Width + k] * N[k * Width + column];
        P[row * Width + column] = sum;
    }
}
""",
        {},
    ),
    "the result first": (
        "vector",
        """// lab: block(64) grid((n + 63) / 64)
__global__ void multiply(float* out, float* matrix, float* vector, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += matrix[i * n + j] * vector[j];
    out[i] = sum;
}
""",
        {},
    ),
    "the book's own names, in which A is the result": (
        "vector",
        """// lab: block(32) grid((n + 31) / 32)
__global__ void multiply(float* A, const float* B, const float* C, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += B[i * n + j] * C[j];
    A[i] = sum;
}
""",
        {},
    ),
    "sums without loops": (
        "registers",
        "registers",
        {
            "for (int i = 0; i < 2; ++i)\n                for (int j = 0; j < 2; ++j) sums[i][j] += a_column[i] * b_row[j];": (
                "sums[0][0] += a_column[0] * b_row[0];\n            sums[0][1] += a_column[0] * b_row[1];\n"
                "            sums[1][0] += a_column[1] * b_row[0];\n            sums[1][1] += a_column[1] * b_row[1];"
            )
        },
    ),
}

# Besides what is replaced, what the lab says of it.
WRONG_VALUES, BEYOND, RACE, NEVER = "elements are wrong", "out of bounds", "data race", "never written"
WRONG = {
    "one k too few": ("element", "element", {"k < l;": "k < l - 1;"}, WRONG_VALUES),
    "one k too many": ("element", "element", {"k < l;": "k <= l;"}, BEYOND),
    "k from 1 on": ("element", "element", {"int k = 0;": "int k = 1;"}, WRONG_VALUES),
    "A with B's width": ("element", "element", {"a[row * l + k]": "a[row * m + k]"}, f"{BEYOND}|{WRONG_VALUES}"),
    "B with A's width": ("element", "element", {"b[k * m + column]": "b[k * l + column]"}, f"{BEYOND}|{WRONG_VALUES}"),
    "C with A's width": ("element", "element", {STORE: "c[row * l + column] = sum;"}, f"{BEYOND}|{WRONG_VALUES}|{NEVER}"),
    "B turned": ("element", "element", {"b[k * m + column]": "b[column * l + k]"}, WRONG_VALUES),
    "A turned": ("element", "element", {"a[row * l + k]": "a[k * n + row]"}, WRONG_VALUES),
    "a sum that is never begun": ("element", "element", {"float sum = 0;": "float sum;"}, "never been given a value|NaN"),
    "no test of the row": ("element", "element", {LEAVE: "if (column >= m) return;"}, BEYOND),
    "no test of the column": ("element", "element", {LEAVE: "if (row >= n) return;"}, f"several threads|{BEYOND}|{RACE}"),
    "a test with and": (
        "element",
        "element",
        {LEAVE: "if (row >= n && column >= m) return;"},
        f"several threads|{BEYOND}|{RACE}",
    ),
    "a test too strict": ("element", "element", {LEAVE: "if (row >= n - 1 || column >= m) return;"}, NEVER),
    "a test that lets one more pass": ("element", "element", {LEAVE: "if (row > n || column >= m) return;"}, BEYOND),
    "rows of the block alone": (
        "element",
        "element",
        {"blockIdx.y * blockDim.y + threadIdx.y": "threadIdx.y"},
        f"{NEVER}|several",
    ),
    "columns of the block alone": (
        "element",
        "element",
        {"blockIdx.x * blockDim.x + threadIdx.x": "threadIdx.x"},
        f"{NEVER}|several",
    ),
    "the number of blocks for that of threads": (
        "element",
        "element",
        {"blockDim.x": "gridDim.x"},
        f"{NEVER}|several|{WRONG_VALUES}",
    ),
    "blocks and threads exchanged": (
        "element",
        "element",
        {"blockIdx.x * blockDim.x + threadIdx.x": "threadIdx.x * blockDim.x + blockIdx.x"},
        f"{NEVER}|several",
    ),
    "an integer sum": ("element", "element", {"float sum": "int sum"}, WRONG_VALUES),
    "the last product alone": ("element", "element", {"sum += a": "sum = a"}, WRONG_VALUES),
    "a difference": ("element", "element", {"sum += a": "sum -= a"}, WRONG_VALUES),
    "C added to": ("element", "element", {STORE: "c[row * m + column] += sum;"}, "NaN|are wrong"),
    "a store to A": (
        "element",
        "element",
        {"const float* a": "float* a", STORE: f"{STORE}\n    a[row * l] = 0;"},
        f"{RACE}|writes a",
    ),
    "a loop without an end": ("element", "element", {"k < l; ++k": "k < l; k += 0"}, "never ends|had not ended"),
    "one block alone": (
        "element",
        "element",
        {"block(16, 16)": "block(16, 16) grid(1, 1)"},
        NEVER,
    ),
    "a grid for whole blocks": (
        "element",
        "element",
        {"block(16, 16)": "block(16, 16) grid(m / 16, n / 16)"},
        "cannot be launched",
    ),
    "a vector in place of B": (
        "element",
        f"""// lab: block(1, 16) grid(1, (n + 15) / 16)
{HEAD.replace("b,", "b_vector,")}{{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int k = 0; row < n && k < l; ++k) sum += a[row * l + k] * b_vector[k];
    if (row < n) c[row] = sum;
}}
""",
        {},
        NEVER,
    ),
    "one row too few": ("row", "row", {"row >= n": "row >= n - 1"}, NEVER),
    "rows beyond C": ("row", "row", {"    if (row >= n) return;\n": ""}, BEYOND),
    "a sum over all columns": (
        "row",
        "row",
        {f"{COLUMNS}\n        float sum = 0;": f"float sum = 0;\n    {COLUMNS}"},
        WRONG_VALUES,
    ),
    "no more than 128 products": ("element", "element", {"k < l;": "k < l && k < 128;"}, WRONG_VALUES),
    "no more than 64 columns": ("element", "element", {LEAVE: LEAVE.replace("column >= m", "column >= min(m, 64)")}, NEVER),
    "columns up to l": ("row", "row", {"column < m;": "column < l;"}, f"{BEYOND}|{NEVER}|several"),
    "columns in the wrong order of memory": ("column", "column", {"c[row * m + column]": "c[column * n + row]"}, WRONG_VALUES),
    "a thread an element for rows": ("row", "element", {}, "0 of 4 points: no more threads than rows"),
    "a thread an element for columns": ("column", "element", {}, "0 of 4 points: no more threads than columns"),
    "an element a thread": (
        "registers",
        "tiles",
        {"TILE 16": "TILE 32"},
        "0 of 4 points: at most a thread for every four elements",
    ),
    "a thread a row is not coalesced": ("column", "row", {}, "0 of 4 points"),
    "a column too many": ("column", "column", {"column >= m": "column > m"}, f"{BEYOND}|{RACE}|several"),
    "rows up to m": ("column", "column", {"row < n;": "row < m;"}, f"{BEYOND}|{NEVER}"),
    "the vector by rows": ("vector", "vector", {"b[k]": "b[row]"}, f"{WRONG_VALUES}|{BEYOND}"),
    "a row of the wrong length": ("vector", "vector", {"a[row * l + k]": "a[row * n + k]"}, f"{BEYOND}|{WRONG_VALUES}"),
    "all rows in the first element": ("vector", "vector", {"c[row] = sum;": "c[0] = sum;"}, f"{NEVER}|{RACE}|several"),
    "reduction without a barrier": ("vector", RIGHT["a block a row"][1].replace("        __syncthreads();\n", ""), {}, RACE),
    "sums of half a warp": ("vector", RIGHT["a warp a row"][1].replace("distance = 16", "distance = 8"), {}, WRONG_VALUES),
    "no first barrier": ("barriers", "tiles", {f"        {BARRIER}        for": "        for"}, RACE),
    "no second barrier": ("barriers", "tiles", {f"{PRODUCTS}\n        {BARRIER}": f"{PRODUCTS}\n"}, RACE),
    "a barrier after the loop": (
        "barriers",
        "tiles",
        {f"{PRODUCTS}\n        {BARRIER}    }}": f"{PRODUCTS}\n    }}\n    __syncthreads();"},
        RACE,
    ),
    "a barrier within the inner loop alone": (
        "barriers",
        "tiles",
        {
            f"        {BARRIER}        {PRODUCTS}": f"        {PRODUCTS.replace('sum +=', '__syncthreads(), sum +=')}",
            f"\n        {BARRIER}    }}": "\n    }",
        },
        RACE,
    ),
    "barriers for the warp alone": ("barriers", "tiles", {"__syncthreads()": "__syncwarp()"}, RACE),
    "a barrier in a branch": (
        "edges",
        "tiles",
        {f"        {BARRIER}        for": "        if (row < n) __syncthreads();\n        for"},
        "barrier|reach",
    ),
    "threads that leave before the barrier": (
        "edges",
        "tiles",
        {"float sum = 0;": "float sum = 0;\n    if (row >= n || column >= m) return;"},
        "barrier|" + WRONG_VALUES + "|NaN",
    ),
    "whole tiles alone": ("edges", "tiles", {TILES: "for (int first = 0; first + TILE <= l; first += TILE) {"}, WRONG_VALUES),
    "no test of A's row": ("edges", "tiles", {LOAD_A: LOAD_A.replace("row < n && ", "")}, BEYOND),
    "no test along A": ("edges", "tiles", {LOAD_A: LOAD_A.replace(" && first + x < l", "")}, f"{BEYOND}|{WRONG_VALUES}"),
    "no test along B": ("edges", "tiles", {LOAD_B: LOAD_B.replace("first + y < l && ", "")}, BEYOND),
    "no test of B's column": ("edges", "tiles", {LOAD_B: LOAD_B.replace(" && column < m", "")}, BEYOND),
    "no test before the store": ("edges", "tiles", {STORE_WITHIN: STORE}, f"{BEYOND}|several|{RACE}"),
    "ones beyond the edge": (
        "edges",
        "tiles",
        {LOAD_A: LOAD_A.replace(": 0", ": 1"), LOAD_B: LOAD_B.replace(": 0", ": 1")},
        WRONG_VALUES,
    ),
    "nothing stored beyond the edge": (
        "edges",
        "tiles",
        {LOAD_A: "if (row < n && first + x < l) a_tile[y][x] = a[row * l + first + x];"},
        f"NaN|{WRONG_VALUES}",
    ),
    "A's tile by columns": ("tiles", "tiles", {"a_tile[y][x] =": "a_tile[x][y] ="}, WRONG_VALUES),
    "B's tile by columns": ("tiles", "tiles", {"b_tile[k][x]": "b_tile[x][k]"}, WRONG_VALUES),
    "the same tile again and again": ("tiles", "tiles", {"a[row * l + first + x]": "a[row * l + x]"}, WRONG_VALUES),
    "every second tile": ("tiles", "tiles", {"first += TILE": "first += 2 * TILE"}, WRONG_VALUES),
    "a tile too narrow": ("tiles", "tiles", {"b_tile[TILE][TILE]": "b_tile[TILE - 1][TILE]"}, BEYOND),
    "half of a tile": ("tiles", "tiles", {"k < TILE;": "k < TILE / 2;"}, WRONG_VALUES),
    "a tile of 8": ("tiles", "tiles", {"TILE 16": "TILE 8"}, "0 of 4 points: at most 0.125"),
    "no shared memory": ("tiles", "element", {}, "0 of 4 points: shared memory is used"),
    "the wrong way round": (
        "coalesce",
        "coalesce",
        {
            "block(32, 8) grid((m + 31) / 32, (n + 7) / 8)": "block(8, 32) grid((m + 7) / 8, (n + 31) / 32)",
            "block(8, 32)": "block(1, 256)",
            "grid((m + 7) / 8, (n + 31) / 32)": "grid(m, (n + 255) / 256)",
        },
        "0 of 4 points",
    ),
    "an even row": ("conflicts", "conflicts", {"TILE + 1": "TILE + 2"}, "0 of 4 points"),
    "not turned, but written in columns": ("conflicts", "conflicts", {"TILE + 1": "TILE"}, "0 of 4 points"),
    "turned on one side": ("conflicts", "conflicts", {"a_turned[k][y]": "a_turned[y][k]"}, WRONG_VALUES),
    "sums exchanged": ("registers", "registers", {"sums[i][j] +=": "sums[j][i] +="}, WRONG_VALUES),
    "one sum for all": ("registers", "registers", {"sums[i][j] +=": "sums[0][0] +="}, WRONG_VALUES),
    "half of the tile loaded": (
        "registers",
        "registers",
        {"for (int i = y; i < TILE; i += HALF)": "for (int i = y; i < HALF; i += HALF)"},
        f"NaN|{WRONG_VALUES}",
    ),
    "the lower half's rows stored above": (
        "registers",
        "registers",
        {"row = top + y + i * HALF": "row = top + y + i"},
        f"several|{NEVER}|{RACE}",
    ),
}


def checked(folder, capsys, exercise, text, replaced, stall="60"):
    """The exit code and what was said of it. A slow machine takes many seconds for what is right."""
    if text in [path.stem for path in SOLUTIONS.glob("*.cu")]:
        text = (SOLUTIONS / f"{text}.cu").read_text()
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "mine.cu"
    path.write_text(text)
    code = lab.work(lab.parse(["check", exercise, str(path), "--stall", stall]))
    return code, capsys.readouterr().out


@pytest.mark.parametrize("name", exhaustive(["one barrier, two buffers", "a warp a row"], RIGHT))
def test_a_solution_written_differently_gets_all_points(tmp_path, capsys, name):
    exercise, text, replaced = RIGHT[name]
    code, out = checked(tmp_path, capsys, exercise, text, replaced)
    points = named(exercise).points
    assert (code, out.splitlines()[-1]) == (0, f"{exercise}: {points} of {points} points"), out


@pytest.mark.parametrize("name", exhaustive(["no second barrier", "an even row"], WRONG))
def test_an_error_costs_points_and_is_named(tmp_path, capsys, name):
    exercise, text, replaced, said = WRONG[name]
    code, out = checked(tmp_path, capsys, exercise, text, replaced, "3" if "end" in name.split() else "60")
    assert code == 1
    assert any(each in out for each in said.split("|")), out
