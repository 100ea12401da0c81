# SPDX-License-Identifier: MIT
"""docs/learn.md: of a right kernel the lab counts loads, sectors of 32 bytes, steps of 32 banks, and branches at which a warp
parts. A kernel with one access a line is compared with CUDA's rules, worked out here for each warp."""

import re

import numpy as np
import pytest
from support.commands import ROOT
from support.lab import DATA, judged, lab

pytestmark = pytest.mark.needs("compiler", "addr2line")

N, L, M = 16, 8, 64  # C in blocks of 32×8: 4 blocks, 32 warps
LANES, SECTOR, BANKS, WARPS = np.arange(32), 32, 32, N * M // 32
ELEMENT = DATA / "solutions" / "element.cu"

# What a warp's lanes x load of B, an element of 4 bytes each, from the beginning of the matrix; and as NumPy has it.
GLOBAL = {
    "b[x]": LANES, "b[31 - x]": 31 - LANES, "b[x + 1]": LANES + 1, "b[x / 2]": LANES // 2, "b[x * 2]": LANES * 2,
    "b[x * 3]": LANES * 3, "b[x * 8]": LANES * 8, "b[x * 15]": LANES * 15, "b[5]": LANES * 0 + 5, "b[x % 8]": LANES % 8,
    "b[x / 16 * 100 + x % 16]": LANES // 16 * 100 + LANES % 16, "b[x ^ 1]": LANES ^ 1,
    "b[x % 2 * 256 + x / 2]": LANES % 2 * 256 + LANES // 2,
}  # fmt: skip
# What they load of shared memory, in elements of 4, 8 and 1 bytes.
SHARED = {
    "s[x]": (LANES, 4), "s[x * 2]": (LANES * 2, 4), "s[x * 3]": (LANES * 3, 4), "s[x * 32 % 1024]": (LANES * 32, 4),
    "s[x * 33 % 1056]": (LANES * 33, 4), "s[x * 16 % 512]": (LANES * 16, 4), "s[7]": (LANES * 0 + 7, 4),
    "s[x % 4 * 32]": (LANES % 4 * 32, 4), "d[x]": (LANES, 8), "d[x * 2]": (LANES * 2, 8), "d[x * 16]": (LANES * 16, 8),
    "c1[x]": (LANES, 1), "c1[x * 4]": (LANES * 4, 1),
}  # fmt: skip


def sectors_of(elements, item=4):
    return len(np.unique(elements * item // SECTOR))


def steps_of(elements, item):
    """Half-warps one after the other where an element has 8 bytes; a bank gives one word at a time, to all lanes that want it."""
    together, steps = min(32, 128 // max(4, item)), 0
    for first in range(0, 32, together):
        at = elements[first : first + together] * item
        words = np.unique(np.concatenate([(at + byte) // 4 for byte in range(0, item, 4)]))
        steps += np.bincount(words % BANKS).max()
    return steps, 32 // together


def with_accesses(accesses, shared=""):
    """A right kernel, in which each of these adds nothing to a sum, in a line of its own."""
    lines = "".join(f"    sum += 0.0f * {access};\n" for access in accesses)
    return (
        "/* dim3 threads(32, 8), blocks(ceil(m / 32.0), (n + 7) / 8); */\n"
        "__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)\n{\n"
        f"{shared}    int x = threadIdx.x, row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 32 + x;\n"
        "    float sum = 0;\n"
        f"{lines}    for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];\n    c[row * m + column] = sum;\n}}\n"
    )


def requests(folder, text):
    """Of a right kernel, by line: those to global and those to shared memory."""
    path = folder / "mine.cu"
    path.write_text(text)
    verdict = judged("run", path, "--sizes", N, L, M)
    assert verdict.code == 0, verdict.said
    lines = text.splitlines()
    return {
        (lines[each["line"] - 1].strip(), each["kind"]): each for each in verdict.record["cases"][0]["requests"]
    }, verdict.said


def test_sectors_of_global_memory_and_steps_of_the_banks_of_shared_memory(tmp_path):
    fill = (
        "    __shared__ float s[1056];\n    __shared__ double d[512];\n    __shared__ char c1[128];\n"
        "    for (int i = threadIdx.y * 32 + threadIdx.x; i < 1056; i += 256) {\n        s[i] = 1;\n"
        "        if (i < 512) d[i] = 1;\n        if (i < 128) c1[i] = 1;\n    }\n    __syncthreads();\n"
    )
    text = with_accesses([*GLOBAL, *SHARED], fill)
    found, said = requests(tmp_path, text)
    number_of = {line.strip(): number for number, line in enumerate(text.splitlines(), 1)}
    for access, elements in GLOBAL.items():
        line = f"sum += 0.0f * {access};"
        one, different = found[line, "load"], len(np.unique(elements))
        told = re.search(rf"line {number_of[line]} loads from b: (.*)", said)[1]
        expected = {
            "requests": WARPS,
            "lanes": 32 * WARPS,
            "addresses": different * WARPS,
            "sectors": sectors_of(elements) * WARPS,
            "bytes": 4 * different * WARPS,
        }
        assert {name: one[name] for name in expected} == expected, access
        # Coalesced: all that is moved is wanted. Four lanes and more that want the same element are a broadcast.
        is_broadcast, is_coalesced = different * 4 <= 32, different * 4 == sectors_of(elements) * SECTOR
        assert ("not coalesced" in told) is (not is_broadcast and not is_coalesced), told
        assert ("broadcast" in told) is is_broadcast, told
    for access, (elements, item) in SHARED.items():
        one, (steps, least) = found[f"sum += 0.0f * {access};", "load"], steps_of(elements, item)
        assert (one["requests"], one["steps"], one["least_steps"]) == (WARPS, steps * WARPS, least * WARPS), access
    assert f"line {number_of['sum += 0.0f * s[x * 2];']} loads from shared memory: 2-way" in said


@pytest.mark.exhaustive
def test_vectors_are_one_request_and_atomic_updates_are_counted(tmp_path):
    """32 lanes store 512 bytes in 16 sectors; the 8 threads of a row add to its first element one after the other."""
    text = (
        "// lab: grid(1, n / 4) block(8, 4)\n"
        "__global__ void four(float* A, float* B, float* C, int n, int l, int m)\n{\n"
        "    int i = blockIdx.y * 4 + threadIdx.y, j = threadIdx.x * 4;\n    float4 sum = make_float4(0, 0, 0, 0);\n"
        "    for (int k = 0; k < l; ++k) {\n"
        "        float4 b = *reinterpret_cast<float4*>(B + k * m + j);\n"
        "        sum.x += A[i * l + k] * b.x, sum.y += A[i * l + k] * b.y, sum.z += A[i * l + k] * b.z, "
        "sum.w += A[i * l + k] * b.w;\n    }\n"
        "    reinterpret_cast<float4*>(C + i * m)[threadIdx.x] = sum;\n    __syncthreads();\n    atomicAdd(C + i * m, 0.0f);\n}\n"
    )
    (tmp_path / "four.cu").write_text(text)
    verdict = judged("run", tmp_path / "four.cu", "--sizes", 8, 4, 32)
    assert verdict.code == 0, verdict.said
    by_line = {(each["line"], each["kind"]): each for each in verdict.record["cases"][0]["requests"]}
    load, store, update = by_line[7, "load"], by_line[10, "store"], by_line[12, "atomic"]
    assert (load["requests"], load["lanes"], load["addresses"], load["sectors"]) == (8, 256, 64, 32)
    assert (store["requests"], store["addresses"], store["sectors"], store["bytes"]) == (2, 64, 32, 1024)
    assert (update["requests"], update["lanes"], update["addresses"], update["sectors"]) == (2, 64, 8, 8)


def test_branches_at_which_lanes_part_and_loads_for_each_multiply_add(tmp_path):
    """A warp has 2 rows of 16 threads. C's 33rd row parts 3 of 51 warps, and its 33rd column 17; the loop none."""
    text = (
        "// launch: branch<<<dim3((m + 15) / 16, (n + 1) / 2), dim3(16, 2)>>>(A, B, C, n, l, m)\n"
        "__global__ void branch(float* A, float* B, float* C, int n, int l, int m)\n{\n"
        "    int i = blockIdx.y * 2 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;\n"
        "    if (i >= n) return;\n    if (j >= m) return;\n    float sum = 0;\n    for (int k = 0; k < l; ++k)\n"
        "        sum += A[i * l + k] * B[k * m + j];\n    C[i * m + j] = sum;\n}\n"
    )
    path = tmp_path / "branch.cu"
    path.write_text(text)
    verdict = judged("run", path, "--sizes", 33, 4, 33)
    branches = {each["line"]: (each["executions"], each["divergent"]) for each in verdict.record["cases"][0]["branches"]}
    assert {line: each for line, each in branches.items() if each[1]} == {5: (51, 3), 6: (51, 17)}
    assert branches[8] == (51 * (4 + 1), 0)
    assert verdict.record["cases"][0]["loads"] == [33 * 4 * 33] * 2
    assert "global loads per multiply-add: 2 (A 1, B 1); stores per element: 1" in verdict.said


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", ["tiled"])
def test_the_page_s_counters_are_printed(program):
    said = lab("run", program).stdout
    shown = re.findall(r"```text\n(  global loads.*?)```", (ROOT / "docs/learn.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    assert [line for line in shown.splitlines() if line not in said.splitlines()] == []
