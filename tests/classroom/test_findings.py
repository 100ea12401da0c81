# SPDX-License-Identifier: MIT
"""What is said of a single kernel: the threads, the elements and the lines of each error, once, and on one screen."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from support.selection import exhaustive

from hybrid.classroom.case_findings import kind_of, without_repetition
from hybrid.classroom.elements import mistaken_for, operands
from hybrid.classroom.examination import chosen
from hybrid.classroom.launch import launch_of
from hybrid.classroom.meaning import meaning_of
from hybrid.classroom.student_file import read
from hybrid.classroom.wording import index_told
from hybrid.commands import lab
from hybrid.errors import UsageError

pytestmark = pytest.mark.needs("compiler", "addr2line")

TILES = """#define TILE 16
__global__ void mul(const float* A, const float* B, float* C, int n, int l, int m)
{
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < l; k += TILE) {
        As[y][x] = row < n && k + x < l ? A[row * l + k + x] : 0;
        Bs[y][x] = k + y < l && column < m ? B[(k + y) * m + column] : 0;
        __syncthreads();
        for (int e = 0; e < TILE; ++e) sum += As[y][e] * Bs[e][x];
        __syncthreads();
    }
    if (row < n && column < m) C[row * m + column] = sum;
}
"""
ELEMENT = """__global__ void mul(const float* A, const float* B, float* C, int n, int l, int m)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= m) return;
    float sum = 0;
    for (int k = 0; k < l; ++k) sum += A[row * l + k] * B[k * m + column];
    C[row * m + column] = sum;
}
"""
THREAD = r"\(block \(\d, \d\), thread \(\d+, \d+\)\)"


def ran(folder, capsys, text, *options, replaced=()):
    """The exit code, and what was printed about this text, in which some parts are replaced by others."""
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    path = folder / "mine.cu"
    path.write_text(text)
    code = lab.work(lab.parse(["run", str(path), "--stall", "60", *options]))
    return code, capsys.readouterr().out


# Errors put into these kernels: what is replaced by what, and what the lab says.
FINDINGS = {
    "shared memory without a value": (
        TILES,
        ("As[y][x] = row < n && k + x < l ? A[row * l + k + x] : 0;", "if (k + x < l) As[y][x] = A[row * l + k + x];"),
        rf"uninitialised: line 11 reads As\[\d+\]\[5\] in shared memory, which its block has not written {THREAD}",
    ),
    "one term too many": (
        TILES,
        ("e < TILE", "e <= TILE"),
        rf"out of bounds: line 11 uses As\[y\]\[e\] with e = 16: 0 to 15 are there {THREAD}",
    ),
    "C is not set to 0": (
        ELEMENT,
        ("column] = sum", "column] += sum"),
        rf"uninitialised: line 7 reads C\[0\]\[0\], which no thread has written {THREAD}",
    ),
    "a row before the first": (
        ELEMENT,
        ("A[row * l", "A[(row - 1) * l"),
        rf"out of bounds: line 6 reads A\[-1\]\[0\], and A is 32×5 {THREAD}",
    ),
    "a wrong element": (
        ELEMENT,
        ("= sum;", "= row == 18 && column == 5 ? 0 : sum;"),
        r"1 of 512 elements are wrong, the first C\[18\]\[5\]: 0 instead of [\d.]+, written by block \(0, 1\), thread \(5, 2\)",
    ),
    "a barrier without parentheses": (
        TILES,
        ("__syncthreads();\n        for", "__syncthreads;\n        for"),
        "data race: line 8 writes and line 11 reads As",
    ),
    "blocks that race": (
        ELEMENT,
        ("C[row * m", "C[row % 16 * m"),
        rf"data race: line 7 writes C\[0\]\[0\] in different threads, of different blocks {THREAD}",
    ),
}


@pytest.mark.parametrize("name", exhaustive(["shared memory without a value", "a wrong element"], FINDINGS))
def test_the_thread_the_element_and_the_line_are_told(tmp_path, capsys, name):
    text, replaced, said = FINDINGS[name]
    code, out = ran(tmp_path, capsys, text, "--sizes", "32", "5", "16", replaced=[replaced])
    assert code == 1
    assert re.search(rf"\* .*{said}", out), out


def test_what_comes_again_is_told_once_and_in_a_few_words(tmp_path, capsys):
    code, out = ran(tmp_path, capsys, ELEMENT, replaced=[("A[row * l + k]", "A[row * l + k / (n - n)]")])
    assert code == 1
    assert "  * again what was found above: a division by zero in line 6\n" in out
    code, out = ran(tmp_path, capsys, ELEMENT, replaced=[("const float* A", "float* A"), ("    C[", "    A[0] = 0;\n    C[")])
    assert code == 1
    (again,) = re.findall("what was found above: (.*)", out)
    assert len(set(again.split("; "))) == len(again.split("; "))


def test_an_endless_kernel_has_half_of_the_time_on_the_second_shape(tmp_path, capsys):
    lines = tmp_path / "lines.jsonl"
    text = ELEMENT.replace("++k", "")
    ran(tmp_path, capsys, text, "--stall", "2", "--json", str(lines))
    (line,) = map(json.loads, lines.read_text().splitlines())
    times = [re.search(r"had not ended after (.*?);", finding)[1] for case in line["cases"] for finding in case["findings"]]
    assert times == ["2 s, which --stall sets", "1 s, half of what --stall sets"]


def test_a_race_names_both_threads_and_all_is_on_one_screen(tmp_path, capsys):
    """In both shapes, whose second shows the lines no more."""
    code, out = ran(tmp_path, capsys, TILES, replaced=[("        __syncthreads();\n        for", "        for")])
    assert code == 1
    race = r"data race: line 8 writes and line 10 reads As\[\d+\]\[\d+\], in different threads of a block, .*"
    assert re.search(
        rf"{race}: thread \(\d+, \d+\) in line (8|10) and then thread \(\d+, \d+\) in line (8|10), block \(0, 0\)\n", out
    )
    assert "also what was found above" in out or "again what was found above" in out
    assert out.count("for (int e = 0; e < TILE; ++e)") == 1
    assert "uninitialised" not in out  # which follows from the race
    assert len(out.splitlines()) < 35


def test_all_findings_are_in_the_json_line(tmp_path, capsys):
    lines = tmp_path / "lines"
    ran(tmp_path, capsys, TILES, "--json", str(lines), replaced=[("        __syncthreads();\n        for", "        for")])
    first, second = json.loads(lines.read_text())["cases"]
    for case in (first, second):
        assert sum(text.startswith("data race") for text in case["findings"]) >= 2


def test_what_a_kernel_prints_is_shown(tmp_path, capsys):
    text = "#include <stdio.h>\n" + ELEMENT
    store = "C[row * m + column] = sum;"
    code, out = ran(
        tmp_path, capsys, text, "--sizes", "4", "4", "4", replaced=[(store, f'{store}\n    printf("%d %d\\n", row, column);')]
    )
    assert code == 0
    assert "  the kernel prints:\n      0 0\n      0 1\n" in out
    assert "\n      and 8 lines more; --json FILE keeps all\n" in out


def test_a_column_of_wrong_elements_is_drawn_as_a_line(tmp_path, capsys):
    _, out = ran(tmp_path, capsys, ELEMENT, "--sizes", "37", "5", "1", replaced=[("= sum;", "= row == 2 ? 0 : sum;")])
    assert "\n    ..x..................................\n" in out


def test_only_the_first_of_findings_that_differ_in_elements_and_threads_stays():
    race = "data race: line 7 writes and line 9 reads As[{}][1], in different threads: thread ({}, 0) in line 9, block (0, 0)"
    no_value = "uninitialised: line 9 reads {}[0][1] in shared memory (block (0, 0), thread (0, 0))"
    found = [no_value.format("As"), race.format(0, 1), race.format(2, 3), no_value.format("Bs")]
    assert without_repetition(found) == [race.format(0, 1), no_value.format("Bs")]
    assert kind_of("line 7 reads A[37][0], and A is 37×37") != kind_of("line 8 reads A[37][0], and A is 37×37")


@pytest.mark.parametrize(
    ("source", "place", "index", "of_type", "told"),
    [
        ("sum += As[y][e + 1] * 2;", "]", 16, "'float [16]'", "As[y][e + 1] with e + 1 = 16: 0 to 15 are there"),
        ("sum += t.v[4];", "]", 4, "'float [4]'", "t.v[4]: 0 to 3 are there"),
        ("sum += x[a[i]];", "]]", 9, "'int [8]'", "x[a[i]] with a[i] = 9: 0 to 7 are there"),
        ("LOAD(i);", ")", 9, "'int [8]'", "index 9: 0 to 7 are there"),
        ("", "", 9, "'int [8]'", "index 9: 0 to 7 are there"),
    ],
)
def test_an_index_beyond_an_array_is_told_as_the_line_has_it(source, place, index, of_type, told):
    column = source.rfind(place) + len(place)
    assert index_told(source, column, index, of_type) == told


@pytest.mark.parametrize("shape", [(5, 5, 5), (4, 3, 6)])
@pytest.mark.parametrize("alpha", [1, 2])
def test_a_wrong_product_is_known_by_its_elements(shape, alpha):
    a, b, _, right = operands(shape, "float32", 7, (alpha, 0))
    n, l, m = shape
    by_columns = (a.reshape(l, n).T, b.reshape(m, l).T)
    assert mistaken_for(alpha * (a @ by_columns[1]), a, b, alpha) == "B"
    assert mistaken_for(alpha * (by_columns[0] @ b), a, b, alpha) == "A"
    assert mistaken_for(right.T.reshape(n, m), a, b, alpha) == "C"
    assert mistaken_for((alpha * by_columns[0] @ by_columns[1]).T.reshape(n, m), a, b, alpha) == "ABC"
    if n == l == m:
        assert mistaken_for(alpha * a @ a, a, b, alpha) == "AA"
        assert mistaken_for(alpha * b @ b, a, b, alpha) == "BB"
    one_wrong = right.copy()
    one_wrong[1, 1] += 1
    for c in (one_wrong, np.full_like(right, np.nan)):
        assert mistaken_for(c, a, b, alpha) == ""


def test_which_factor_is_read_wrongly_is_said(tmp_path, capsys):
    """And the launch is not doubted then."""
    square = "__global__ void k(float* M, float* N, float* P, int w) { int r = threadIdx.y, c = threadIdx.x; float sum = 0; "
    kernel = square + "for (int i = 0; i < w; ++i) sum += M[r * w + i] * N[c * w + i]; P[r * w + c] = sum; }"
    code, out = ran(tmp_path, capsys, kernel, "--sizes", "5", "5", "5")
    assert code == 1
    assert "  * row and column are exchanged in the index of N: with N stored column by column, P would be right\n" in out
    assert "may be wrong" not in out


BY_COLUMNS = """__global__ void gemm(int m, int n, int k, const float* A, int lda, const float* B, int ldb, float* C, int ldc)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= m || j >= n) return;
    float sum = 0;
    for (int p = 0; p < k; ++p) sum += A[i + p * lda] * B[p + j * ldb];
    C[i + j * ldc] = sum;
}
"""


def test_of_leading_dimensions_the_options_for_columns_are_named(tmp_path, capsys):
    let = "--let lda=n --let ldb=l --let ldc=n"
    grid = ("--grid", "(m + 15) / 16,(n + 15) / 16", "--block", "16,16")  # the kernel's own m and n
    code, out = ran(tmp_path, capsys, BY_COLUMNS)
    assert code == 1
    assert f"  row strides: lda, ldb, ldc; of matrices that are stored column by column: {let}\n" in out
    code, out = ran(tmp_path, capsys, BY_COLUMNS, *let.split(), *grid)
    assert code == 1
    assert "with A, B and C stored column by column, as BLAS and Fortran have it, C would be right" in out
    assert "row strides" not in out
    with pytest.raises(UsageError, match="--let ldb=k: a size is n"):
        ran(tmp_path, capsys, BY_COLUMNS, "--let", "lda=n", "--let", "ldb=k")


def test_the_map_has_the_kernel_s_name_of_c(tmp_path, capsys):
    replaced = [("float* C", "float* P"), ("C[row * m + column] = sum", "P[row * m + column] = row > 3 ? sum : 0")]
    _, out = ran(tmp_path, capsys, ELEMENT, replaced=[("const float* A, const float* B", "const float* M, const float* N"),
                                                      ("A[", "M["), ("B[", "N["), *replaced])  # fmt: skip
    assert re.search(r"\n    a character is ([0-9×]+ elements|an element) of P", out)


def test_threads_in_z_are_launched_and_named(tmp_path, capsys):
    text = "// lab: grid((m + 7) / 8, (n + 3) / 4, 2) block(8, 4, 2)\n" + ELEMENT.replace(
        "if (row", "if (blockIdx.z == 0 || threadIdx.z == 0 || row"
    )
    code, out = ran(tmp_path, capsys, text)
    assert (code, "1×4×2 blocks of 8×4×2 threads: right" in out) == (0, True)
    code, out = ran(tmp_path, capsys, text, replaced=[("= sum", "= sum + 1")])
    assert code == 1
    assert "written by block (0, 0, 1), thread (0, 0, 1)" in out
    with pytest.raises(UsageError, match="a picture shows blocks and threads by x and y, and this launch has a z"):
        lab.work(lab.parse(["show", str(tmp_path / "mine.cu")]))


def test_a_warp_for_each_element_and_leading_dimensions(tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(
        "__global__ void k(int m, int n, int k, float* A, int lda, float* B, int ldb, float* C, int ldc)\n"
        "{ int warp = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize; C[warp / n * ldc + warp % n] = A[lda] * B[ldb]; }\n"
    )
    file, kernel, _ = chosen(read(path), "")
    meaning = meaning_of(file, kernel, {})
    assert meaning.of == ("n", "m", "l", "A", "l", "B", "m", "C", "m")
    assert launch_of(file, kernel, meaning, {}).at({"n": 8, "l": 3, "m": 5}) == ((10, 1), (128, 1), 0)
