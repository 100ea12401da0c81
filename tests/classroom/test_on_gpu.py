# SPDX-License-Identifier: MIT
"""What a named GPU would make of a kernel: resident blocks by hand and by the driver, the roofline, registers by nvcc."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hybrid.classroom.examination import chosen
from hybrid.classroom.gpu_models import NAMES, named
from hybrid.classroom.occupancy import occupancy
from hybrid.classroom.on_gpu import OnGpu
from hybrid.classroom.registers import Taken, taken
from hybrid.classroom.student_file import read
from hybrid.commands import lab
from hybrid.errors import UsageError

TILED = Path(__file__).resolve().parents[2] / "docs" / "examples" / "tiled.cu"


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared", "blocks", "limits"),
    [
        # A lecture's: 2 kB of 16 are a tile's, which leaves room for 8 blocks, but 768 threads are 3 blocks of 256.
        ("8800GTX", 256, 10, 2048, 3, {"threads", "registers"}),
        ("8800GTX", 256, 11, 2048, 2, {"registers"}),  # 3 · 256 · 11 > 8192: one register more costs a third
        ("8800GTX", 64, 10, 2048, 8, {"blocks", "shared memory"}),
        ("8800GTX", 64, 10, 2049, 6, {"shared memory"}),  # given in units of 512 bytes
        ("C1060", 256, 16, 2048, 4, {"threads", "registers"}),
        ("C1060", 1024, 8, 0, 0, {"threads"}),  # 1024 are resident, but a block has 512 at most
        ("P100", 256, None, 49 << 10, 0, {"shared memory"}),  # of the 64 kB a block has 48 at most
        ("K40c", 256, 32, 2048, 8, {"threads", "registers"}),
        ("K40c", 1024, 32, 8192, 2, {"threads", "registers"}),
        ("K40c", 1024, 33, 8192, 1, {"registers"}),
        ("K40c", 32, 16, 0, 16, {"blocks"}),
        ("P100", 96, 40, 0, 16, {"registers"}),  # 1280 registers a warp: 51, of which two at a time 50, are 16 blocks of 3
        ("H200", 256, None, 113 << 10, 2, {"shared memory"}),  # with the block's 1 kB of the system's own
        ("H200", 256, None, (113 << 10) + 1, 1, {"shared memory"}),
        ("T4", 1000, 64, 0, 1, {"threads", "registers"}),  # 1000 threads are 32 warps
        ("H200", 1024, 65, 0, 0, {"registers"}),
    ],
)
def test_blocks_that_are_resident(gpu, threads, registers, shared, blocks, limits):
    found = occupancy(named(gpu).multiprocessor, threads, registers, shared)
    assert (found.blocks, set(found.limits)) == (blocks, limits)
    assert found.warps == blocks * -(-threads // 32)


def test_what_each_limit_by_itself_would_let_in():
    """A lecture's 2 kB of 16 hold 8 blocks, and 768 threads 3."""
    found = occupancy(named("8800GTX").multiprocessor, 256, None, 2048)
    assert found.alone == {"blocks": 8, "threads": 3, "shared memory": 8}


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [0, 1000, 40_000])
@pytest.mark.parametrize("threads", [32, 96, 250, 256, 768, 1024])
def test_the_driver_counts_the_same_blocks(real_gpus, threads, shared):
    import cupy

    for kernel in ("c[i] = i;", "double s[40]; for (int k = 0; k < 40; ++k) s[k] = sin(c[i + k]); c[i] = s[i % 7] * s[39];"):
        text = f'extern "C" __global__ void f(double* c) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {kernel} }}'
        function = cupy.RawKernel(text, "f")
        capability = int(cupy.cuda.Device().compute_capability)
        model = next((each for each in map(named, NAMES) if each.capability == capability), None)
        if model is None:
            pytest.skip(f"the lab knows no GPU of compute capability {capability / 10}")
        driver = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, shared)
        assert occupancy(model.multiprocessor, threads, function.num_regs, shared + function.shared_size_bytes).blocks == driver


def test_every_gpu_is_found_by_its_name_however_it_is_written():
    assert [named(name.lower()).name for name in NAMES] == list(NAMES)
    assert named("RTX 4090").name == "RTX4090"
    with pytest.raises(UsageError, match=r"no GPU .gtx. here: one of 8800GTX, GT9600M, GT330M, "):
        named("gtx")
    for name in NAMES:
        assert 0 < named(name).multiprocessor.threads <= 2048


def on(gpu, intensity, dtype="float32"):
    model = named(gpu)
    return OnGpu(model, Taken(None, "not known"), 256, 0, occupancy(model.multiprocessor, 256, None, 0), dtype, intensity)


def test_the_roofline_is_flat_from_where_memory_is_fast_enough():
    assert on("K40c", 2.0).attainable == 2 * 288
    assert on("K40c", 100.0).attainable == 4290
    assert on("K40c", 100.0, "float64").attainable == 1430
    assert on("K40c", None).attainable is None
    assert "bound by global memory" in " ".join(on("K40c", 2.0).told())
    assert "bound by arithmetic" in " ".join(on("K40c", 100.0).told())
    assert "8800GTX has no float64 arithmetic" in " ".join(on("8800GTX", 2.0, "float64").told())


def test_what_does_not_fit_is_said():
    model = named("H200")
    none = OnGpu(model, Taken(None, "x"), 1024, 0, occupancy(model.multiprocessor, 1024, 100, 0), "float32", 1.0)
    assert list(none.told())[-1] == "  no block is resident on a multiprocessor: too much of registers"


@pytest.mark.needs("compiler")
def test_the_lab_tells_occupancy_and_roofline(tmp_path, capsys):
    """Of each tile 16 columns are read from 16 rows: 2·16·16·16 operations for 2·16·16 elements, and once the 16·16 of P."""
    out = tmp_path / "lines"
    code = lab.work(lab.parse(["run", str(TILED), "--sizes", "64", "64", "64", "--gpu", "h200", "--json", str(out)]))
    text, line = capsys.readouterr().out, json.loads(out.read_text())["on_gpu"]
    assert code == 0
    assert "on H200 (compute capability 9.0): " in text
    assert "2048 bytes of shared memory a block of 256 threads\n" in text
    assert line["intensity"] == 2 * 64**3 / (4 * (2 * 64**3 / 16 + 64**2))
    assert line["shared"] == 2048
    assert line["attainable_gflops"] == line["intensity"] * 4800
    assert text.index("roofline: ") < text.index("\nright")


NVRTC_LOG = """ptxas info    : Compiling entry function '_Z15MatrixMulKernelPfS_S_i' for 'sm_75'
ptxas info    : Function properties for _Z15MatrixMulKernelPfS_S_i
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 38 registers, used 1 barriers, 2048 bytes smem
"""


# Stands for CuPy's module: knows sm_75 and newer, and compiles what has no error.
NVRTC = """import re


class NVRTCError(Exception):
    pass


def getVersion():
    return 13, 0


def createProgram(text, name, headers, names):
    return text


def addNameExpression(program, expression):
    assert expression == "MatrixMulKernel"


def compileProgram(program, options):
    if int(re.search(r"sm_([0-9]+)", " ".join(options))[1]) < 75:
        raise NVRTCError("NVRTC_ERROR_INVALID_OPTION (5)")
    if "undeclared" in program:
        raise NVRTCError("NVRTC_ERROR_COMPILATION (6)")
    while "endless" in program:
        pass


def getProgramLog(program):
    return 'tiled.cu(9): error: identifier "undeclared" is undefined' if "undeclared" in program else LOG


def destroyProgram(program):
    pass


"""


@pytest.fixture
def nvrtc(tmp_path, monkeypatch):
    """The compiler's child process, too, imports this one, or fails to where its text is empty."""
    from hybrid.classroom import registers

    def says(text):
        package = tmp_path / "modules" / "cupy_backends"
        (package / "cuda" / "libs").mkdir(parents=True)
        for folder in (package, package / "cuda", package / "cuda" / "libs"):
            (folder / "__init__.py").touch()
        (package / "cuda" / "libs" / "nvrtc.py").write_text(text or "raise ImportError('no NVRTC')")
        monkeypatch.syspath_prepend(tmp_path / "modules")

    with_all = shutil.which
    monkeypatch.setattr(registers.shutil, "which", lambda name: None if name == "nvcc" else with_all(name))
    return says


@pytest.mark.needs("compiler")
def test_shared_memory_is_counted_without_nvcc_as_well(capsys, nvrtc):
    nvrtc("")
    assert lab.work(lab.parse(["run", str(TILED), "--sizes", "16", "16", "16", "--gpu", "K40c"])) == 0
    assert "registers (not known without nvcc or NVRTC), 2048 bytes of shared memory" in capsys.readouterr().out


def edited(tmp_path, new):
    """The kernel's sum begins otherwise."""
    path = tmp_path / "tiled.cu"
    path.write_text(TILED.read_text().replace("float sum = 0", f"float sum = {new}"))
    return chosen(read(path), "")


def test_registers_by_nvrtc_where_there_is_no_nvcc(tmp_path, nvrtc):
    nvrtc(f"{NVRTC}LOG = {NVRTC_LOG!r}\n")
    chose = chosen(read(TILED), "")
    assert taken(*chose, 75).how == "by NVRTC for sm_75"
    older = taken(*chose, 35)
    assert (older.of.registers, older.of.shared, older.how) == (38, 2048, "by NVRTC for sm_75, the nearest that it compiles for")
    assert taken(*edited(tmp_path, "undeclared"), 90).how.startswith(
        "not known: NVRTC does not compile it: tiled.cu(9): error: identifier"
    )


def test_nvrtc_has_a_compilers_limits(tmp_path, monkeypatch, nvrtc):
    from hybrid.emulation import compiler_limits

    nvrtc(f"{NVRTC}LOG = {NVRTC_LOG!r}\n")
    monkeypatch.setattr(compiler_limits, "_SECONDS", 2)
    assert taken(*edited(tmp_path, "endless"), 90).how.startswith(
        "not known: the kernel does not compile within 2 s of processor time"
    )


@pytest.mark.gpu
def test_nvrtc_and_the_driver_tell_the_same_registers(real_gpus, monkeypatch):
    from hybrid.classroom import registers
    from hybrid.devices.own_kernel import OwnKernel

    monkeypatch.setattr(registers.shutil, "which", lambda name: None)
    file, kernel, instance = chosen(read(TILED), "")
    found = taken(file, kernel, instance, real_gpus[0].capability)
    assert found.of is not None, found
    assert (found.of.registers, found.of.shared) == OwnKernel(file.for_gpu, instance).resources[:2]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="compiles with nvcc")
def test_nvcc_tells_the_registers_of_the_instance(tmp_path):
    path = tmp_path / "two.cu"
    path.write_text(
        "template <typename T, int N> __global__ void f(T* a) { __shared__ T s[N]; s[threadIdx.x] = a[0]; a[1] = s[1]; }\n"
        "__global__ void g(float* a, int n) { a[n] = 1; }\n"
        "int main() { f<float, 8><<<1, 8>>>(nullptr); g<<<1, 1>>>(nullptr, 1); }\n"
    )
    for wanted, shared in (("f<float, 16>", 64), ("f<double, 16>", 128), ("f<float, 8>", 32), ("g", 0)):
        file, kernel, instance = chosen(read(path), wanted)
        found = taken(file, kernel, instance, 90)
        assert found.of is not None, found
        assert found.of.shared == shared
        assert found.of.registers > 0
    old = taken(*chosen(read(path), "g"), 10)
    assert old.of is None
    assert "compiles for no GPU older than" in old.how


def test_registers_are_not_guessed_where_nvcc_fails(tmp_path, monkeypatch):
    from hybrid.classroom import registers

    program = tmp_path / "nvcc"
    program.write_text('#!/bin/sh\n[ "$1" = --list-gpu-arch ] && echo compute_90 && exit\necho error >&2; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(registers.shutil, "which", lambda name: str(program))
    found = taken(*chosen(read(TILED), ""), 90)
    assert found == Taken(None, "not known: nvcc does not compile it for sm_90")
