# SPDX-License-Identifier: MIT
"""python -m hybrid.lab run PROGRAM.cu: right programs run and print what they should, wrong ones have their findings."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support.selection import exhaustive

from hybrid.classroom.launches import rewritten
from hybrid.classroom.unsupported import refuse_unsupported
from hybrid.commands import lab
from hybrid.errors import UsageError

pytestmark = pytest.mark.needs("compiler", "addr2line")

PROGRAMS = Path(__file__).resolve().parent / "programs"
DOCS = PROGRAMS.parents[2] / "docs"
RIGHT, WRONG = (sorted(path.stem for path in (PROGRAMS / folder).glob("*.cu")) for folder in ("right", "wrong"))
FRAME = """#include <stdio.h>
__global__ void k(float* x, int n) { KERNEL }
int main(int argc, char** argv) { HOST }
"""


def said(path, word):
    return re.findall(rf"^// {word}: (.*)", path.read_text(), re.MULTILINE)


def ran(path, capsys, *options):
    """The exit code, and what was printed."""
    arguments = " ".join(said(path, "arguments")).split()
    code = lab.work(lab.parse(["run", str(path), *options, "--", *arguments]))
    return code, capsys.readouterr().out


def written(folder, kernel="x[0] = n;", host="k<<<1, 1>>>(nullptr, 0);", name="mine.cu"):
    path = folder / name
    path.write_text(FRAME.replace("KERNEL", kernel).replace("HOST", host))
    return path


@pytest.mark.parametrize("name", exhaustive(["sub_matrices", "much_of_cuda", "never_freed"], RIGHT))
def test_a_right_program_prints_what_it_should(capsys, name):
    path = PROGRAMS / "right" / f"{name}.cu"
    code, out = ran(path, capsys)
    program, _, report = out.partition(f"{path.name}: exit status 0")
    assert code == 0, out
    assert report.endswith("\nno error found\n")
    for expected in said(path, "stdout"):
        assert re.search(expected, program), out
    notes = said(path, "note")
    assert len(notes) == report.count("note: ")
    for expected in notes:
        assert re.search(f"note: .*{expected}|{expected}", report), out


def test_a_vector_in_constant_memory(capsys):
    assert lab.work(lab.parse(["run", str(DOCS / "examples" / "constant.cu"), "--", "70"])) == 0
    assert capsys.readouterr().out.startswith("0 of 70 elements are wrong\n")


@pytest.mark.parametrize(
    "name", exhaustive(["everything_at_once", "one_row_too_many", "endless_kernel", "missing_barrier"], WRONG)
)
def test_a_wrong_program_has_its_findings(capsys, name):
    path = PROGRAMS / "wrong" / f"{name}.cu"
    code, out = ran(path, capsys, *(("--stall", "1") if name.startswith("endless") else ()))
    assert code == 1, out
    assert out.endswith("\nwrong\n")
    for expected in said(path, "expect"):
        assert re.search(expected, out, re.MULTILINE), out


def test_a_finding_shows_the_lines_of_the_file(capsys):
    _, out = ran(PROGRAMS / "wrong" / "missing_barrier.cu", capsys)
    assert re.search(r"stands between them.*\n +8  s\[i\] = x\[i\];\n +9  x\[i\] = s\[63 - i\];\n", out)


def test_the_page_shows_what_is_printed(tmp_path, capsys):
    path = tmp_path / "multiply.cu"
    path.write_text((DOCS / "examples" / "multiply.cu").read_text().replace("row >= A.height", "row > A.height"))
    lab.work(lab.parse(["run", str(path), "--", "10", "15", "8"]))
    out = capsys.readouterr().out.splitlines()
    (shown,) = re.findall(r"```text\n(multiply\.cu:.*?)```", (DOCS / "learn.md").read_text(), re.DOTALL)
    assert [line for line in shown.splitlines() if line not in out] == []


def test_lines_of_own_headers_are_told_as_theirs(tmp_path, capsys):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "kernel.cuh").write_text("// a kernel\n__global__ void k(float* x)\n{\n    x[8] = 0;\n}\n")
    path = tmp_path / "a program.cu"
    path.write_text(
        '#include "parts/kernel.cuh"\nint main()\n{\n    float* x;\n'
        "    cudaMalloc(&x, 32);\n    k<<<1, 1>>>(x);\n    cudaFree(x);\n}"
    )
    _, out = ran(path, capsys)
    assert "line 4 of kernel.cuh writes x[8], and it has 8 elements (allocated in line 5) (k, launched in line 6" in out


def test_the_json_line_has_all_of_it(tmp_path, capsys):
    lines = tmp_path / "lines.jsonl"
    ran(PROGRAMS / "wrong" / "everything_at_once.cu", capsys, "--json", str(lines))
    (line,) = map(json.loads, lines.read_text().splitlines())
    assert (line["command"], line["right"], line["status"], line["launches"]) == ("lab run", False, 0, 1)
    assert len(line["findings"]) == 3
    assert line["first_failed"].startswith("cudaMemcpy in line 20")


def test_a_kernel_of_a_program_can_be_judged_alone(capsys):
    path = PROGRAMS / "right" / "tiles_of_double.cu"
    assert lab.work(lab.parse(["run", str(path), "--kernel", "multiply", "--block", "4,4", "--sizes", "8", "8", "8"])) == 0
    assert capsys.readouterr().out.endswith("\nright\n")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("// no cuBLAS: #include <mpi.h>\n#include <cublas_v2.h>\n", "line 2: cuBLAS: the CPU runtime does not have that"),
        ("texture<float> t;\n", "line 1: textures"),
        ("\nint main() { cudaPitchedPtr p; cudaMalloc3D(&p, cudaExtent{1, 1, 1}); }", "line 2: cudaMalloc3D"),
        ("__global__ void k() {}\n__global__ void q()\n{\n    k<<<1, 1>>>();\n}", r"line 4: .*\(dynamic parallelism\)"),
        ("__global__ void k(float* x)\n{\n    x = new float[8];\n}", "line 3: new within a kernel"),
        ("int main() { k<<<1, 1>>; }", r"line 1: after <<< a launch goes on as in kernel<<<grid, block>>>\(arguments\)"),
    ],
)
def test_what_is_not_supported_is_named(text, what):
    with pytest.raises(UsageError, match=what) as refused:
        refuse_unsupported(text, "mine.cu")
    assert "\n" not in str(refused.value)


def test_a_macro_or_function_of_the_program_is_not_taken_for_cudas():
    refuse_unsupported(
        "#define cudaCheck(x) x\nvoid cudaReport(int line) {}\nint main() { cudaCheck(1); cudaReport(2); }", "mine.cu"
    )


@pytest.mark.parametrize(
    ("launch", "call"),
    [
        ("k<<<1, 2>>>(a, b);", 'cuda_on_cpu::Launched("k", 1, 2).call(k, a, b);'),
        ("if (x) k<<<dim3(f(1, 2), 3), b>>>();", 'if (x) cuda_on_cpu::Launched("k", dim3(f(1, 2), 3), b).call(k);'),
        ("k<T, 2><<<(n + 1) >> 1, 2>>>(a);", 'cuda_on_cpu::Launched("k<T, 2>", (n + 1) >> 1, 2).call(k<T, 2>, a);'),
        (
            "lab :: k<(3 > 2)> <<<g, b, 0, s>>> (a)",
            'cuda_on_cpu::Launched("lab :: k<(3 > 2)>", g, b, 0, s).call(lab :: k<(3 > 2)>, a)',
        ),
        ("k<<<1, /* ), >>> */ 2>>>(')', a)", "cuda_on_cpu::Launched(\"k\", 1, /* ), >>> */ 2).call(k, ')', a)"),
        ("t<<<1, 2>>>(a)", 'cuda_on_cpu::Launched("t", 1, 2).call_template([](auto&... of_kernel) { t(of_kernel...); }, a)'),
        (
            "t<8><<<1, 2>>>(a)",
            'cuda_on_cpu::Launched("t<8>", 1, 2).call_template([](auto&... of_kernel) { t<8>(of_kernel...); }, a)',
        ),
        ("t<8, float><<<1, 2>>>(a)", 'cuda_on_cpu::Launched("t<8, float>", 1, 2).call(t<8, float>, a)'),
        ("// k<<<1, 2>>>(a)", "// k<<<1, 2>>>(a)"),
        ('puts("k<<<1, 2>>>(a)");', 'puts("k<<<1, 2>>>(a)");'),
        ('puts(R"x(")<<<)x");', 'puts(R"x(")<<<)x");'),
        ("S& operator<<<int>(S&);", "S& operator<<<int>(S&);"),
        ("__device__ int x = 1'000;", "__device_variable__ int x = 1'000;"),
        ("__device__ float f(int i);", "__device__ float f(int i);"),
    ],
)
def test_launches_become_calls(launch, call):
    assert rewritten(launch, "mine.cu", {"t": 2}) == call


def test_lines_stay_lines():
    text = "k\n<<<1,\n2>>>\n(a,\n b);\nend"
    assert rewritten(text, "mine.cu", {}).count("\n") == text.count("\n")
    assert rewritten(text, "mine.cu", {}).endswith("\nend")


def test_a_crash_of_the_host_code_is_told_with_its_line(tmp_path, capsys):
    code, out = ran(written(tmp_path, host="\n    int n = argv[1][0];\n    k<<<1, n>>>(nullptr, n);\n"), capsys)
    assert code == 1
    assert "segmentation fault: the host code in line 4" in out
    assert "mine.cu: ended by SIGSEGV" in out


def test_an_error_of_the_compiler_names_the_file_and_the_line(tmp_path, monkeypatch, capfd):
    path = written(tmp_path, host="\n    undeclared(1);\n    k<<<1, 1>>>(nullptr, 0);\n")
    monkeypatch.setattr("sys.argv", ["hybrid.lab", "run", str(path)])
    assert lab.main() == 1
    line = capfd.readouterr().err
    assert "mine.cu:4" in line
    log = re.search(r"\(all of it: (.*)\)$", line.strip())
    assert log is not None, line
    assert "undeclared" in Path(log[1]).read_text()  # the log is still there


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_a_file_is_read(tmp_path, make):
    """A pipe into which nobody writes would be read forever."""
    make(tmp_path / "mine.cu")
    with pytest.raises(UsageError, match=r"mine.cu cannot be read: it is a (pipe, a device or a socket|folder), and no file"):
        lab.work(lab.parse(["run", str(tmp_path / "mine.cu")]))


def test_what_follows_two_dashes_wants_a_program(tmp_path, monkeypatch, capfd):
    path = tmp_path / "mine.cu"
    path.write_text("__global__ void k(float* a, float* b, float* c, int n) { blockIdx.x; }")
    monkeypatch.setattr("sys.argv", ["hybrid.lab", "run", str(path), "--", "8"])
    assert lab.main() == 2
    assert "nothing can follow --" in capfd.readouterr().err
