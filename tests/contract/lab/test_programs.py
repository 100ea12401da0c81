# SPDX-License-Identifier: MIT
"""docs/learn.md, A whole program: it runs as it stands, and each fault of its kernels and of its use of memory is found by its
line. What it has right is not accused."""

import re

import pytest
from support.commands import ROOT
from support.lab import DATA, cases, changed, judged, lab, marks
from support.selection import exhaustive

pytestmark = pytest.mark.needs("compiler", "addr2line")

FAULTS = (DATA / "faults.cu").read_text(encoding="utf-8")
CASES = cases(FAULTS)
ENDING = ["endless", "divided by zero", "large stack", "used by the host", "copied by the host", "crash of the host"]
ALONE = ["block too deep", "crash of the host"]


def found(case):
    return {mark for mark in marks(FAULTS, case) if not mark[0].startswith("cuda")}


def first_failed(case):
    """The CUDA call that fails first: CUDA's name of the error and the line."""
    return {mark for mark in marks(FAULTS, case) if mark[0].startswith("cuda")}


def failed_in(record):
    """The same, as the lab's JSON says it."""
    said = record["first_failed"] or ""
    return {(name, int(line)) for line, name in re.findall(r" line (\d+)\b.*?\((cudaError\w+)\)", said)}


def test_every_fault_of_one_run_is_found_by_its_line_and_nothing_else():
    those = [case for case in CASES if case not in ENDING]
    verdict = judged("run", DATA / "faults.cu", "--", *those)
    assert verdict.code == 1
    assert verdict.findings == set().union(*map(found, those))
    assert failed_in(verdict.record) == first_failed(those[0])


@pytest.mark.parametrize("case", exhaustive(ALONE, CASES))
def test_each_fault_alone(case):
    """With the first CUDA call that fails by it, and its error."""
    verdict = judged("run", DATA / "faults.cu", *(["--stall", 2] if case == "endless" else []), "--", case)
    assert verdict.code == 1
    assert verdict.record["right"] is False
    assert verdict.findings == found(case)
    assert failed_in(verdict.record) == first_failed(case)


def test_races_and_missing_values_of_all_kernels_are_found_in_one_run():
    """And what resembles them is not accused: barriers of blocks and warps, atomic updates, fences, bytes of one's own."""
    verdict = judged("run", DATA / "races.cu")
    assert verdict.code == 1
    assert verdict.findings == marks((DATA / "races.cu").read_text(encoding="utf-8"))
    assert verdict.record["first_failed"] is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["wrong direction", "block too deep", "freed twice"])
def test_whether_a_program_looks_at_its_error_is_told(case):
    """By the value that the call returns, or by the last error after a launch."""
    said = judged("run", DATA / "faults.cu", "--", case).record["first_failed"]
    assert ("does not look" in said) == (case == "freed twice")


NESTED = "\nfor (i = 0; i < 9; ++i) for (j = 0; j < 9; ++j) sum += i + j;"
OF_THREADS, LOCKED = "int x[9] = {3, 5}, most = 0, sum = 0;\n#pragma omp ", "{ if (x[i] > most)\n#pragma omp critical\n{"
LARGEST = "for (int i = 0; i < 9; ++i) { if (x[i] > most) most = x[i]; }"
ALL = "for (int i = 0; i < 9; ++i) sum += x[i];"
STAGED = "cudaMallocHost(&h, 800), cudaMalloc(&d, 800), cudaStreamCreate(&s);\nfor (int i : {1, 2}) { memset(h, i, 800);"

TIMED = """float seconds; cudaEvent_t e; cudaEventCreate(&e), cudaEventRecord(e), cudaEventSynchronize(e);
cudaEventElapsedTime(&seconds, e, e);"""
SCALED = "float one = 1, all = 0; MPI_HOW(&one, &all, 1, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); scale<<<1, 1>>>(1 / all);"
BETWEEN_EVENTS = """float ms; cudaEvent_t b, e; cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
cudaEventCreate(&b), cudaEventCreate(&e), cudaEventRecord(b); k<<<1, 1, 0, s>>>(), cudaEventRecord(e);
cudaEventSynchronize(e), cudaEventElapsedTime(&ms, b, e);"""
WEIGHTS = """float w[9] = {1, 2}, *d; cudaMalloc(&d, 36); cudaMemcpyToSymbol(weights, w, BYTES);
weigh<<<1, 9>>>(d); cudaMemcpy(w, d, 36, cudaMemcpyDeviceToHost); cudaFree(d);"""
IN_PARTS = """cudaMalloc(&d, 16), cudaMemset(d, 1, 16);
for (int first : {0, 4}) cudaMemcpy(h + first, d, 16, cudaMemcpyDeviceToHost);
free(h);"""
KERNELS = """__global__ void k() {}
__constant__ float weights[9];
__global__ void scale(float by) {}
__global__ void weigh(float* x) { x[threadIdx.x] = weights[threadIdx.x]; }
__global__ void multiply(long long* a, long long* b, long long* c, int n, int more)
{
    for (int k = 0; k < n; ++k) more += a[threadIdx.y * n + k] * b[k * n + threadIdx.x];
    c[threadIdx.y * n + threadIdx.x] = more;
}
__global__ void by_columns(long long* a, long long* b, long long* c, int n)
{
    long long sum = 0;
    for (int k = 0; k < n; ++k) sum += a[k * n + threadIdx.x] * b[threadIdx.y * n + k];
    c[threadIdx.y * n + threadIdx.x] = sum;
}
"""
ROW_MAJOR = "a[1] = 7; by_columns<<<1, dim3(8, 8)>>>(b, a, c, 8); cudaDeviceSynchronize();"
PRODUCT = """long long *a, *b, *c; for (auto each : {&a, &b, &c}) cudaMallocManaged(each, 512);
for (int i = 0; i < 64; ++i) a[i] = b[i] = i * i; multiply<<<1, dim3(8, 8)>>>(a, b, c, 8,"""


@pytest.mark.parametrize(("does", "codes"), [
    ('puts("FAILED: 0");', []),
    ('puts("difference 3: FAILED");', ["own-check"]),
    (f"int i, j, sum = 0;\n#pragma omp parallel for private(j) reduction(+:sum){NESTED}", []),
    (f"int i, j, sum = 0;\n#pragma omp parallel for{NESTED}", ["data-race", "data-race"]),
    (f"{OF_THREADS}parallel for\n{LARGEST}", ["data-race"]),
    (f"{OF_THREADS}parallel for reduction(max:most)\n{LARGEST}", []),
    (f"{OF_THREADS}parallel for\n{LARGEST.replace('{', LOCKED)} }}", []),
    (f"{OF_THREADS}parallel for\nfor (int i = 0; i < 9; ++i) {{ sum = 2 * i, x[i] = sum * sum; }}", ["data-race"]),
    (f"{OF_THREADS}parallel for\nfor (int i = 0; i < 9; ++i) {{ if (i == 8) sum = 2 * i; }}", []),
    (f"{OF_THREADS}parallel reduction(+:sum)\n{ALL}", ["wrong-terms"]),
    (f"{OF_THREADS}parallel reduction(+:sum)\n{{\n#pragma omp for\n{ALL}\n}}", []),
    (f"{OF_THREADS}parallel reduction(+:sum)\n{{ int x[9] = {{}};\n{ALL} }}", []),
    ("\n#pragma omp parallel num_threads(3)\n{ k<<<1, 1>>>(); cudaDeviceSynchronize(); }", []),
    (f"{PRODUCT} 0); cudaDeviceSynchronize();", []),
    (f"{PRODUCT} 1); cudaDeviceSynchronize();", ["wrong-elements"]),
    (PRODUCT.replace("multiply<<<1, dim3(8, 8)>>>(a, b, c, 8,", ROW_MAJOR), []),
    ("int n = argc + 6; double part = 1 / n; printf(\"%g\", part);", ["always-zero"]),
    ("int n = argc + 6; double part = 1.0 / n, whole = 7 / 2 * part; printf(\"%g\", whole);", []),
    (BETWEEN_EVENTS, ["too-early"]),
    (BETWEEN_EVENTS.replace("(), ", "(), cudaStreamSynchronize(s), "), []),
    (WEIGHTS.replace("BYTES", "9"), ["uninitialised"]),
    (WEIGHTS.replace("BYTES", "32"), []),
    ("k<<<1, 2000>>>(); if (cudaGetLastError() == cudaErrorInvalidConfiguration) k<<<1, 1>>>();", []),
    (f"{TIMED} seconds /= 1000;", []),
    (TIMED, ["wrong-unit"]),
    (f"int *h = (int*)calloc(8, 4), *d; {IN_PARTS}", []),
    (f"int *h = (int*)calloc(9, 4), *d; {IN_PARTS}", ["never-written"]),
    (f"int *h, *d; cudaStream_t s; {STAGED} cudaMemcpyAsync(d, h, 800, cudaMemcpyDefault, s); }}", ["data-race"]),
])  # fmt: skip
def test_what_a_program_says_itself_and_does_beside_its_kernels_is_told(tmp_path, does, codes):
    main = f"#include <string.h>\nint main(int argc, char**) {{ k<<<1, 1>>>(); cudaDeviceSynchronize(); {does} }}"
    (tmp_path / "own.cu").write_text(f"#include <stdio.h>\n{KERNELS}{main}\n")
    record = judged("run", tmp_path / "own.cu").record
    assert ([each["code"] for each in record["findings"]], record["right"]) == (codes, not codes)


def test_a_program_that_is_right_prints_what_it_prints():
    """Templates, streams, symbols, z, managed memory, pitches, events, OpenMP, groups; text that only looks like a launch."""
    path = DATA / "much_of_cuda.cu"
    verdict = judged("run", path, "--", 9, 11)
    assert (verdict.code, verdict.findings, verdict.record["status"]) == (0, set(), 0), verdict.said
    expected = re.findall(r"^// prints: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert verdict.said.splitlines()[: len(expected)] == expected
    assert len(verdict.record["notes"]) == 3  # streams, times, and memory that is never freed
    assert verdict.record["arguments"] == ["9", "11"]


@pytest.mark.exhaustive
def test_the_exit_code_is_1_where_the_program_s_is_not_0():
    verdict = judged("run", DATA / "faults.cu", "--", "exit status")
    assert (verdict.code, verdict.record["status"], verdict.record["right"]) == (1, 3, False)
    assert (verdict.findings, verdict.record["launches"]) == (set(), 1)
    assert verdict.said.startswith("hello\n")


def test_the_program_of_the_page_and_the_error_that_the_page_puts_into_it(tmp_path):
    """What the page shows is printed."""
    text = (ROOT / "docs/examples/multiply.cu").read_text(encoding="utf-8")
    (tmp_path / "multiply.cu").write_text(changed(text, [("row >= A.height", "row > A.height")]))
    done = lab("run", "multiply.cu", "--", 10, 15, 8, cwd=tmp_path)
    (shown,) = re.findall(r"```text\n(multiply\.cu:.*?)```", (ROOT / "docs/learn.md").read_text(encoding="utf-8"), re.DOTALL)
    assert done.returncode == 1
    assert [line for line in shown.splitlines() if line not in done.stdout.splitlines()] == []


def test_lines_of_the_program_s_own_headers_are_told_as_theirs(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/kernel.cuh").write_text("// a kernel\n__global__ void k(float* x)\n{\n    x[8] = 0;\n}\n")
    (tmp_path / "mine.cu").write_text(
        '#include "parts/kernel.cuh"\nint main()\n{\n    float* x;\n    cudaMalloc(&x, 32);\n'
        "    k<<<1, 1>>>(x);\n    cudaFree(x);\n}\n"
    )
    (finding,) = judged("run", tmp_path / "mine.cu").record["findings"]
    assert finding["code"] == "out-of-bounds"
    assert "line 4 of kernel.cuh" in finding["text"]


@pytest.mark.launcher
@pytest.mark.parametrize(("options", "ranks"), exhaustive([((), 2)], [((), 2), (("--ranks", 3), 3)]))
def test_what_is_found_names_the_rank(tmp_path, options, ranks):
    """A program of MPI runs on two ranks, or on as many as --ranks says."""
    (tmp_path / "ranks.cu").write_text(
        "#include <mpi.h>\n#include <stdio.h>\n__global__ void k(int* x) { x[threadIdx.x] = 1; }\n"
        "int main(int argc, char** argv)\n{\n    int rank, size, *x;\n    MPI_Init(&argc, &argv);\n"
        "    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);\n    cudaMalloc(&x, 16);\n"
        "    k<<<1, 4 + (rank == 1)>>>(x);\n    cudaDeviceSynchronize();\n    cudaFree(x);\n"
        '    if (rank == 0) printf("%d ranks\\n", size);\n    double one = 1, ref = 2, sum[1];\n'
        "    MPI_Reduce(&one, sum, 1, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);\n    if (ref - sum[0] > 9.f) size = 0;\n"
        "    MPI_Finalize();\n}\n"
    )
    verdict = judged("run", tmp_path / "ranks.cu", *options)
    expected = {("out-of-bounds", 3), ("mpi-memory", 15), ("one-sided", 16)}
    assert (verdict.code, verdict.findings, verdict.record["launches"]) == (1, expected, ranks), verdict.said
    assert f"{ranks} ranks\n" in verdict.said
    assert re.search(r"rank 1: out of bounds", verdict.said)
    assert failed_in(verdict.record) == {("cudaErrorIllegalAddress", 11)}


@pytest.mark.launcher
@pytest.mark.parametrize(("sends", "code"), exhaustive([("", "not-sent")], [
    ("MPI_Bcast(h, 64, MPI_FLOAT, 0, MPI_COMM_WORLD);", ""),
    ("MPI_Bcast(h, 64, MPI_FLOAT, 0, MPI_COMM_WORLD); MPI_Bcast(&rank, 1, MPI_INT, rank, MPI_COMM_WORLD);", "mpi-memory"),
    (f"MPI_Bcast(h, 64, MPI_FLOAT, 0, MPI_COMM_WORLD); {SCALED.replace('HOW', 'Reduce')}", "not-sent"),
    (f"MPI_Bcast(h, 64, MPI_FLOAT, 0, MPI_COMM_WORLD); {SCALED.replace('HOW', 'Allreduce').replace('0, MPI', 'MPI')}", ""),
    ("if (rank) MPI_Bcast(h, 64, MPI_FLOAT, 0, MPI_COMM_WORLD); else MPI_Bcast(h, 64, MPI_FLOAT, 0, MPI_COMM_WORLD);", ""),
    ("", "not-sent"),
    ("if (rank) MPI_Recv(h, 64, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, &s); else MPI_Isend(SENT), MPI_Wait(&r, &s), h[0] = 7;", ""),
    ("if (rank) MPI_Recv(h, 64, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, &s); else MPI_Isend(SENT), h[0] = 7, MPI_Wait(&r, &s);",
     "mpi-memory"),
]))  # fmt: skip
def test_what_ranks_compute_with_has_reached_them(tmp_path, sends, code):
    main = """int main(int argc, char** argv)
{
    int rank;
    MPI_Request r;
    MPI_Status s;
    MPI_Init(&argc, &argv), MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float h[64] = {}, *a, *b, *c;
    for (int i = 0; rank == 0 && i < 64; ++i) h[i] = i % 7;
    SENDS
    for (auto each : {&a, &b, &c}) cudaMalloc(each, 256);
    cudaMemcpy(b, h, 256, cudaMemcpyHostToDevice);
    for (float& each : h) each = 2;
    cudaMemcpy(a, h, 256, cudaMemcpyHostToDevice);
    multiply<<<1, dim3(8, 8)>>>(a, b, c, 8, 0);
    cudaMemcpy(h, c, 256, cudaMemcpyDeviceToHost);
    MPI_Finalize();
}
"""
    sent = "#define SENT h, 64, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, &r\n"
    text = f"#include <mpi.h>\n{sent}{KERNELS.replace('long long', 'float')}{main.replace('SENDS', sends)}"
    (tmp_path / "ranks.cu").write_text(text)
    verdict = judged("run", tmp_path / "ranks.cu")
    assert {found for found, _ in verdict.findings} == {*([code] if code else [])}, verdict.said


@pytest.mark.launcher
@pytest.mark.exhaustive
def test_a_message_that_nobody_sends_is_told_with_its_line(tmp_path):
    (tmp_path / "waits.cu").write_text(
        "#include <mpi.h>\n__global__ void k() {}\nint main(int argc, char** argv)\n{\n    int rank;\n"
        "    MPI_Init(&argc, &argv);\n"
        "    MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n"
        "    if (rank == 0) MPI_Recv(&rank, 1, MPI_INT, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);\n    MPI_Finalize();\n"
        "    k<<<1, 1>>>();\n}\n"
    )
    verdict = judged("run", tmp_path / "waits.cu", "--stall", 3)
    assert verdict.code == 1
    assert verdict.findings == {("no-end", 8)}  # of the rank that receives, not of the one that waits for it to end
    assert "rank 0: the host code had not ended" in verdict.said
    assert "MPI_Recv waits for a message of rank 1" in verdict.said


LONG = """__global__ void sum(const int* x, int* y)
{
    int all = 0;
    for (int i = 0; i < 3000; ++i) all += x[(i + threadIdx.x) % 8];
    y[blockIdx.x * 256 + threadIdx.x] = all;
}
int main()
{
    static int h[64 * 256], *x, *y;
    cudaMalloc(&x, 32), cudaMalloc(&y, sizeof h);
    cudaMemcpy(x, h, 32, cudaMemcpyHostToDevice);
    for (int i = 0; i < 3; ++i) sum<<<64, 256>>>(x, y);
    h[5] = 1;
    cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost);
    cudaFree(x), cudaFree(y);
    return h[5];
}
"""


@pytest.mark.exhaustive
def test_of_long_launches_some_blocks_are_looked_at(tmp_path):
    (tmp_path / "long.cu").write_text(LONG)
    verdict = judged("run", tmp_path / "long.cu")
    assert (verdict.code, verdict.findings) == (0, set()), verdict.said
    assert "accesses of some blocks of 3 launches" in verdict.said
    (tmp_path / "longer.cu").write_text(LONG.replace("64", "6400"))
    assert "blocks of the launch in line 12 were left out" in judged("run", tmp_path / "longer.cu", "--stall", 9).said


TWO_DEVICES = """__global__ void set(int* x) { x[threadIdx.x] = 1; }
int main()
{
    int *a, *b, count, can, h[32];
    cudaGetDeviceCount(&count);
    cudaMalloc(&a, 128);
    cudaSetDevice(count - 1);
    cudaMalloc(&b, 128);
    BETWEEN
    set<<<1, 32>>>(b);
    cudaDeviceSynchronize();
    cudaMemcpyPeer(a, 0, b, 1, 128);
    cudaFree(b);
    cudaSetDevice(0);
    cudaMemcpy(h, a, 128, cudaMemcpyDeviceToHost);
    cudaFree(a);
    return h[can] - 1;
}
"""


def test_each_device_has_its_memory_and_its_streams(tmp_path):
    cases = {
        "can = 0;": (2, set()),
        "cudaSetDevice(can = 0);": (2, {("illegal-address", 1)}),
        "cudaDeviceCanAccessPeer(&can, 1, 0); cudaSetDevice(0); cudaDeviceEnablePeerAccess(can--, 0);": (2, set()),
        "cudaSetDevice(1 - (can = 0));": (1, set()),
    }
    for number, (between, (devices, findings)) in enumerate(cases.items()):
        (tmp_path / f"{number}.cu").write_text(TWO_DEVICES.replace("BETWEEN", between))
        verdict = judged("run", tmp_path / f"{number}.cu", *(["--devices", 1] if devices == 1 else []))
        assert verdict.findings == findings, verdict.said
        assert ("device 1 is not there" in verdict.said) == (devices == 1)


@pytest.mark.exhaustive
def test_what_kernels_print_comes_where_the_host_waits_for_it(tmp_path):
    (tmp_path / "greet.cu").write_text(
        '#include <stdio.h>\n__global__ void greet() { printf("kernel %d\\n", threadIdx.x); }\nint main()\n{\n'
        '    puts("before");\n    greet<<<1, 2>>>();\n    puts("launched");\n    cudaDeviceSynchronize();\n    puts("after");\n'
        "    greet<<<1, 2>>>();\n}\n"
    )
    verdict = judged("run", tmp_path / "greet.cu")
    assert verdict.said.splitlines()[:5] == ["before", "launched", "kernel 0", "kernel 1", "after"]
    assert verdict.code == 0
    assert len(verdict.record["notes"]) == 1  # the last two are not shown


MISTAKES = (DATA / "mistakes.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", ["", "scaled", "other", *cases(MISTAKES)])
def test_what_a_launch_computes_is_compared_with_the_product_of_what_it_was_given(case):
    """And what nobody reads, or copies back, is told; sums in other layouts, scaled, and of other operations are not accused."""
    verdict = judged("run", DATA / "mistakes.cu", "--", case)
    assert verdict.findings == marks(MISTAKES, case), verdict.said
    assert (verdict.code == 0) == (not verdict.findings)
    said = {
        "rounded down": "from k = 24 on are not in the sum: 6 products of 30",
        "first term missing": "the products of k = 0 are not in the sum",
        "last term only": "its last product alone",
        "without B": "it is A · A, without B",
        "edge": "all rows from 6 on",
        "exchanged": "gives B for a and A for b",
        "half back": "912 of 1,824 bytes of C",
        "small grid": "has 16 × 24 threads (x × y) for the 19 × 24 elements of C",
        "": "the product of 1 launch",
        "other": "the product of 1 launch",  # that with B transposed
    }
    assert said.get(case, "") in verdict.said


ORDER = (DATA / "order.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", exhaustive(["", "copy not awaited", "clock", "not ready"], ["", *cases(ORDER)]))
def test_what_nothing_orders_is_told(case):
    """Copies and kernels in streams, results and clocks that the host reads too soon, events; halves of an array are no race."""
    verdict = judged("run", DATA / "order.cu", "--", case)
    assert verdict.findings == {mark for mark in marks(ORDER, case) if not mark[0].startswith("cuda")}, verdict.said
    assert failed_in(verdict.record) == {mark for mark in marks(ORDER, case) if mark[0].startswith("cuda")}
    assert (verdict.code == 0) == (not marks(ORDER, case))


REASONS = {
    "copy of too much": r"it copies 80 bytes into d \(allocated in line \d+\), which has 10",
    "wrong direction": "cudaMemcpyHostToDevice, but its destination is host memory and its source x .*is cudaMemcpyDeviceToHost",
    "freed twice": r"x \(allocated in line \d+\) was freed already, by cudaFree in line \d+",
    "too much shared memory": "50,000 bytes of dynamic shared memory, where 49,152 are possible",
    "block too large": r"block 32×33 = 1,056 threads",
    "empty grid": "grid is 1×0 blocks",
    "no memory": "8,000,000,000 bytes, and of the device's 268,435,456",
    "no such device": "device 1 is not there",
}


@pytest.mark.parametrize("case", exhaustive(["copy of too much", "empty grid"], REASONS))
def test_a_cuda_error_comes_with_the_rule_that_is_broken_and_both_values(case):
    assert re.search(REASONS[case], judged("run", DATA / "faults.cu", "--", case).record["first_failed"])


HOST = (DATA / "host.cu").read_text(encoding="utf-8")
LAST = ["beyond a local array", "no return"]  # which end the program


@pytest.mark.parametrize("cases", [["right"], [each for each in cases(HOST) if each not in LAST], *([each] for each in LAST)])
def test_host_code_that_misuses_memory_is_told_by_its_line(cases):
    """And nothing else, where it uses its heap as it may."""
    verdict = judged("run", DATA / "host.cu", "--", *cases)
    assert verdict.findings == set().union(*(marks(HOST, case) for case in cases)), verdict.said
    assert verdict.code == (cases != ["right"])
    said = {
        "one too many": "y[100], and it has 100 elements (allocated in line 78)",
        "beyond a vector": "v[15], and it has 15 elements",
        "used after free": "reads z[15] after line 97 has freed it",
        "freed twice by the host": "frees z (allocated in line 100), which line 101 has freed",
        "set too much": "writes 800 bytes from y[0] on, and it has 100 elements",
        "copied to too little": "writes 400 bytes from z[0] on, and it has 25 elements",
        "beyond pinned memory": "z[10], and it has 10 elements (allocated in line 112)",
        "index overflows": "46341 * 46341 overflows",
        "beyond an array": "few[k] with k = 4: 0 to 3 are there",
        "copied without a value": "d[9], which line 70 copied from part",
        "read without a value": "by free(), but new[] gave it, which delete[] frees",
        "right": "1103515245 overflows",  # a note
    }
    assert [said[case] for case in cases if said.get(case, "") not in repr(verdict.record)] == []
