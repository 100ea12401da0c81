# SPDX-License-Identifier: MIT
"""python -m hybrid.lab: right kernels pass, written in many ways, and wrong ones are refused for the right reason."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.commands import without_progress
from support.selection import exhaustive

from hybrid.classroom.examination import Trials
from hybrid.commands import lab
from hybrid.reporting import progress

pytestmark = pytest.mark.needs("compiler")

HERE = Path(__file__).resolve().parent
TILED = HERE.parents[1] / "docs" / "examples" / "tiled.cu"
RIGHT, WRONG = (sorted(path.stem for path in (HERE / folder).glob("*.cu")) for folder in ("right", "wrong"))
STALL = "60"  # seconds that only an endless kernel takes, also beside other tests

_A = "Ms[y][x] = row < Width && k + x < Width ? M[row * Width + k + x] : 0;"
_STORE = "if (row < Width && column < Width) P[row * Width + column] = sum;"
# Errors put into the tiled kernel: what is replaced, at which of its places, by what; and what the lab says.
_RACE = (
    r"data race: line 1[12] writes and line 14 reads [MN]s\[\d+\]\[\d+\], .*: thread \(\d+, \d+\) in line \d+ and then thread "
    r"\(\d+, \d+\) in line \d+, block \(\d, \d\)"
)
MUTANTS = {
    "no first barrier": ("__syncthreads();", 0, "", _RACE),
    "no second barrier": ("__syncthreads();", 1, "", _RACE),
    "a barrier in a branch": (
        "__syncthreads();",
        0,
        "if (row < Width) __syncthreads();",
        "tiled.cu:15, but thread .* waits in tiled.cu:13",
    ),
    "threads that leave early": (_A, 0, f"if (row >= Width || column >= Width) return; {_A}", "barrier"),
    "no test at the edges": (
        _A,
        0,
        "Ms[y][x] = M[row * Width + k + x];",
        r"out of bounds: line 11 reads M\[37\]\[\d+\], and M is 37×37 \(block \(\d, \d\), thread \(\d+, \d+\)\)",
    ),
    "a store without a test": (_STORE, 0, "P[row * Width + column] = sum;", "out of bounds: line 17 writes P"),
    "rows and columns exchanged": (
        _STORE,
        0,
        _STORE.replace("P[row * Width + column]", "P[column * Width + row]"),
        "elements are wrong",
    ),
    "every second tile": ("k += TILE_WIDTH", 0, "k += 2 * TILE_WIDTH", "elements are wrong"),
    "a tile that is too small": (
        "Ms[y][x] = row",
        0,
        "Ms[y][x + 1] = row",
        r"out of bounds: line 11 uses Ms\[y\]\[x \+ 1\] with x \+ 1 = 16: 0 to 15 are there",
    ),
    "a sum that is never begun": (
        "float sum = 0;",
        0,
        "float sum = Ms[y][x];",
        r"uninitialised: line 9 reads Ms\[0\]\[0\] in shared memory, which its block has not written",
    ),
    "no store": (_STORE, 0, "", "elements never written"),
}


def ran(path, capsys, *arguments):
    """The exit code, and what was printed."""
    said = re.findall(r"^// (kernel|block): (.*)", path.read_text(), re.MULTILINE)
    flags = [word for name, value in said for word in (f"--{name}", value)]
    code = lab.work(lab.parse(["run", str(path), "--stall", STALL, *flags, *arguments]))
    return code, capsys.readouterr().out


def mutant(folder, name):
    """The tiled kernel with this error."""
    old, place, new, _ = MUTANTS[name]
    parts = TILED.read_text().split(old)
    path = folder / "tiled.cu"
    path.write_text(old.join(parts[: place + 1]) + new + old.join(parts[place + 1 :]))
    return path


@pytest.mark.parametrize("name", exhaustive(["tiles_with_edges", "struct_with_members", "result_first"], RIGHT))
def test_a_right_kernel_is_right(capsys, name):
    code, out = ran(HERE / "right" / f"{name}.cu", capsys)
    assert code == 0, out
    assert out.endswith("\nright\n")
    assert len(re.findall("global loads per multiply-add", out)) == 2


@pytest.mark.parametrize("name", exhaustive(["endless"], WRONG))
def test_a_wrong_kernel_is_refused_and_told_why(capsys, name):
    path = HERE / "wrong" / f"{name}.cu"
    expected = path.read_text().splitlines()[0].removeprefix("// expect: ")
    in_short = ("--sizes", "8", "8", "8", "--stall", "1") if name == "endless" else ()
    code, out = ran(path, capsys, *in_short)
    assert code == 1, out
    assert re.search(rf"\* .*({expected})", out), out


@pytest.mark.parametrize("name", exhaustive(["a barrier in a branch"], MUTANTS))
def test_an_error_in_the_tiled_kernel_is_found(tmp_path, capsys, name):
    code, out = ran(mutant(tmp_path, name), capsys)
    assert code == 1, out
    assert re.search(rf"\* .*({MUTANTS[name][-1]})", out), out


def test_loads_are_counted(capsys):
    """Each thread of `naive` loads both factors of each term; of a tile of 8×8 every element is used 8 times."""
    _, out = ran(HERE / "right" / "square.cu", capsys, "--sizes", "16", "16", "16")
    assert "global loads per multiply-add: 2 (M 1, N 1); stores per element: 1" in out
    _, out = ran(HERE / "right" / "tiles_with_edges.cu", capsys, "--sizes", "16", "24", "8")
    assert "global loads per multiply-add: 0.25 (a 0.125, b 0.125); stores per element: 1" in out


@pytest.mark.needs("addr2line")
def test_lines_are_told_how_they_use_memory(tmp_path, capsys):
    """Threads of a warp read 32 neighbours in 4 sectors, or the first elements of 32 rows in 32; the columns of a 32×32 tile
    are all in one bank."""
    _, out = ran(HERE / "right" / "rows.cu", capsys, "--sizes", "64", "32", "64")
    assert (
        "line 8 loads from A: 32 sectors of 32 bytes for a warp's request: not coalesced, 12 % of what is moved is wanted" in out
    )
    assert "line 8 loads from B: 1 sector of 32 bytes for a warp's request: broadcast, 32 lanes want the same" in out
    path = tmp_path / "turned.cu"
    text = TILED.read_text().replace("TILE_WIDTH 16", "TILE_WIDTH 32")
    path.write_text(text.replace("Ms[y][x]", "Ms[x][y]").replace("Ms[y][e]", "Ms[e][y]"))
    _, out = ran(path, capsys, "--sizes", "64", "64", "64")
    assert "line 11 loads from M: 4 sectors of 32 bytes for a warp's request: coalesced" in out
    assert "line 11 stores to shared memory: 32-way bank conflicts, for a warp's request" in out
    assert "line 12 stores to shared memory: no bank conflicts, for a warp's request" in out


@pytest.mark.needs("addr2line")
def test_vectors_are_one_request_and_atomic_updates_are_counted(tmp_path, capsys):
    """32 lanes store 512 bytes in 16 sectors. The 8 threads of a row add to its first element, one after the other."""
    path = tmp_path / "four.cu"
    path.write_text(
        "// lab: grid(1, n / 4) block(8, 4)\n"
        "__global__ void four(float* A, float* B, float* C, int n, int l, int m)\n"
        "{\n"
        "    int i = blockIdx.y * 4 + threadIdx.y, j = threadIdx.x * 4;\n"
        "    float4 sum = make_float4(0, 0, 0, 0);\n"
        "    for (int k = 0; k < l; ++k) {\n"
        "        float4 b = *reinterpret_cast<float4*>(B + k * m + j);\n"
        "        sum.x += A[i * l + k] * b.x, sum.y += A[i * l + k] * b.y;\n"
        "        sum.z += A[i * l + k] * b.z, sum.w += A[i * l + k] * b.w;\n"
        "    }\n"
        "    reinterpret_cast<float4*>(C + i * m)[threadIdx.x] = sum;\n"
        "    __syncthreads();\n"
        "    atomicAdd(C + i * m, 0.0f);\n"
        "}\n"
    )
    code, out = ran(path, capsys, "--sizes", "8", "4", "32")
    assert code == 0, out
    assert "line 7 loads from B: 4 sectors of 32 bytes for a warp's request: broadcast, 4 lanes want the same" in out
    assert "line 11 stores to C: 16 sectors of 32 bytes for a warp's request: coalesced" in out
    assert (
        "line 13 updates C atomically: 4 sectors of 32 bytes for a warp's request: 8 lanes at the same element, one after" in out
    )


def test_branches_at_which_lanes_part_are_counted(tmp_path, capsys):
    """A warp has 2 rows of 16 threads. C's 33rd row parts 3 of 51 warps, and its 33rd column 17."""
    path = tmp_path / "branch.cu"
    path.write_text(
        "// lab: grid((m + 15) / 16, (n + 1) / 2) block(16, 2)\n"
        "__global__ void branch(float* A, float* B, float* C, int n, int l, int m)\n"
        "{\n"
        "    int i = blockIdx.y * 2 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;\n"
        "    if (i >= n) return;\n"
        "    if (j >= m) return;\n"
        "    float sum = 0;\n"
        "    for (int k = 0; k < l; ++k)\n"
        "        sum += A[i * l + k] * B[k * m + j];\n"
        "    C[i * m + j] = sum;\n"
        "}\n"
    )
    code, out = ran(path, capsys, "--sizes", "33", "4", "33", "--json", str(tmp_path / "lines"))
    assert code == 0
    assert "divergent branches: line 5 in 3 of 51 executions by a warp, line 6 in 17 of 51 executions by a warp\n" in out
    (case,) = json.loads((tmp_path / "lines").read_text())["cases"]
    assert {each["line"]: each["executions"] for each in case["branches"]}[8] == 51 * (4 + 1)
    code, out = ran(path, capsys, "--sizes", "32", "4", "32")
    assert code == 0
    assert "divergent branches: none\n" in out


def test_a_race_shows_both_lines_of_the_file(tmp_path, capsys):
    _, out = ran(mutant(tmp_path, "no second barrier"), capsys, "--sizes", "32", "32", "32")
    assert re.search(r"\n +11  Ms\[y\]\[x\] = .*\n +14  for \(int e = 0; .*\n", out)


def test_a_kernel_for_whole_tiles_is_told_so(tmp_path, capsys):
    _, out = ran(mutant(tmp_path, "no test at the edges"), capsys)
    assert out.splitlines()[-2] == "right where C consists of whole blocks, wrong where it does not"


def test_the_json_line_has_all_of_it(tmp_path, capsys):
    lines = tmp_path / "lines.jsonl"
    ran(mutant(tmp_path, "every second tile"), capsys, "--json", str(lines), "--sizes", "32", "32", "32", "--seed", "3")
    (line,) = map(json.loads, lines.read_text().splitlines())
    (case,) = line["cases"]
    assert (line["command"], line["right"], line["kernel"], case["wrong"]) == ("lab run", False, "MatrixMulKernel", 1024)
    assert any("1024 of 1024 elements are wrong" in finding for finding in case["findings"])


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_elements(tmp_path, capsys):
    path = mutant(tmp_path, "rows and columns exchanged")
    first, second = (ran(path, capsys, "--sizes", "16", "16", "16", "--seed", "5")[1] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int main() { return 0; }", "no kernel"),
        ("__global__ void k(float* a, float* b, int n) {}", "takes 2 matrices"),
        ("__global__ void k(float* a, float* b, float* c, int n, int what) {}", "--let what=SIZE"),
        ("__global__ void k(int* a, int* b, int* c, int n) {}", "float and double"),
        ("__global__ void k(M a, M b, M c) {}", "the parameter M a is no pointer"),
        ("struct M { int depth; float* e; };\n__global__ void k(M a, M b, M c) {}", "what depth of the struct M stands for"),
        ("// lab: block(64, 64)\n__global__ void k(float* a, float* b, float* c, int n) { blockIdx.x; }", "1 to 1024 threads"),
        (
            "// lab: grid(1, 2, 3, 4)\n__global__ void k(float* a, float* b, float* c, int n) { blockIdx.x; }",
            "x, y and z are taken",
        ),
        ("// lab: block(2, 2, 65)\n__global__ void k(float* a, float* b, float* c, int n) { blockIdx.x; }", "at most 64 in z"),
        ("// lab: block(n.x)\n__global__ void k(float* a, float* b, float* c, int n) { blockIdx.x; }", "no arithmetic"),
        ("template <int T> __global__ void k(float* a, float* b, float* c, int n) {}", "is a template"),
        (
            "__global__ void k(float* a) {}\n__global__ void q(float* a) {}",
            "--kernel NAME, or a line // lab: kernel(NAME), chooses one",
        ),
        ("__global__ void k(float A[8][8], float B[8][8], float C[8][8]) {}", "the parameter float A[8][8] is an array of rows"),
        (
            "__global__ void k(float* a, float* b, float* c) {}",
            "is told no size, so it is for matrices of one shape: --sizes n l m",
        ),
        (
            "// lab: blocks(16, 16)\n__global__ void k(float* a, float* b, float* c, int n) {}",
            "blocks(…) is not known; kernel, grid,",
        ),
        (
            "float f(float x) { return x; }\n__global__ void k(float* a, float* b, float* c, int n) { c[0] = f(a[0]); }",
            "mine.cu, line 2: f is a function of the host: __device__ is missing before it",
        ),
        ("#include <thrust/device_vector.h>\nint main() { return 0; }", "mine.cu, line 1: Thrust and CUB"),
    ],
)
def test_what_cannot_be_told_is_wrong_usage(tmp_path, monkeypatch, capfd, text, said):
    path = tmp_path / "mine.cu"
    path.write_text(text)
    monkeypatch.setattr("sys.argv", ["hybrid.lab", "run", str(path)])
    assert lab.main() == 2
    error = without_progress(capfd.readouterr().err)
    assert said in error
    assert error.count("\n") == 1


def test_an_error_of_the_compiler_names_the_file_and_the_line(tmp_path, monkeypatch, capfd):
    path = tmp_path / "mine.cu"
    path.write_text("__global__ void k(float* a, float* b, float* c, int n)\n{\n    float x = undeclared;\n}\n")
    monkeypatch.setattr("sys.argv", ["hybrid.lab", "run", str(path)])
    assert lab.main() == 1
    assert "mine.cu:3" in capfd.readouterr().err


def test_an_interrupt_ends_it_in_a_line_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "hybrid.lab", "run", str(HERE / "wrong" / "endless.cu"), "--stall", "60"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True) as process:
        while not list(tmp_path.glob("hybrid-lab-*")):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=45)  # less than the kernel has
    assert (process.returncode, without_progress(error)) == (1, "hybrid.lab: interrupted\n")
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


@pytest.mark.parametrize("words", [["run"], ["check", "tiles"]])
def test_what_takes_longer_is_shown_to_be_under_way(monkeypatch, capfd, words):
    """It takes until it has been shown."""
    shown, tick, examined = threading.Event(), progress.Progress.tick, Trials.examined

    def ticks(self):
        tick(self)
        shown.set()

    def examines(self, shapes):
        assert shown.wait(20)
        return examined(self, shapes)

    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress.Progress, "tick", ticks)
    monkeypatch.setattr(Trials, "examined", examines)
    assert lab.work(lab.parse([*words, str(TILED)])) == 0
    told = capfd.readouterr()
    assert re.match(rf"hybrid: {words[0]} \S*tiled.cu … \d+ s\n", told.err)
    assert "hybrid:" not in told.out


def test_the_lab_runs_alone(monkeypatch, capfd):
    monkeypatch.setattr("sys.argv", ["hybrid.lab", "run", "none.cu"])
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert lab.main() == 2
    assert "without mpirun" in capfd.readouterr().err
