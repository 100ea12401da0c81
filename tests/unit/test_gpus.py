# SPDX-License-Identifier: MIT
"""Which rank takes which GPU, on machines made up of lists; where NCCL and machine code are looked for; and how long memory is
locked."""

import lzma
import mmap
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from support.commands import ROOT

from hybrid.classroom.gpu_models import MODELS, model_of, occupancy
from hybrid.devices import cuda_kernels
from hybrid.devices.cuda_gpus import LEAST_OWNER_BYTES, PinnedMemory
from hybrid.host.memory import LEAST_BYTES
from hybrid.kernels.catalogue import KERNELS
from hybrid.planning.decision import Gpu, choose_gpus


def chosen(*visible):
    """The GPUs that ranks take which see these: each rank numbers those that it sees from 0."""
    gpus = choose_gpus([[Gpu(index, name, "made up") for index, name in enumerate(names)] for names in visible])
    return "".join(gpu.uuid for gpu in gpus)


def test_all_gpus_are_used_before_one_is_shared():
    assert (chosen(*["abcd"] * 4), chosen(*["abcd"] * 2), chosen("a", "b", "c")) == ("abcd", "ab", "abc")
    assert chosen("ab", "ba") == "ab", "also where they are numbered otherwise"
    assert chosen("ab", "ab", "cd", "cd") == "abcd"
    assert chosen("a", "ab", "abc") == "abc"
    assert chosen("ab", "a") == "ba", "who sees one gets it, though a rank before sees it, too"


@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), min_size=1, max_size=8), st.integers(1, 12))
def test_every_rank_takes_a_gpu_that_it_sees_and_equal_ranks_share_evenly(visible, ranks):
    assert all(gpu in names for gpu, names in zip(chosen(*visible), visible, strict=True))
    users = Counter(chosen(*["abc"] * ranks)).values()
    assert max(users) - min(users) <= (1 if ranks >= 3 else 0)


NCCL = {  # as CuPy does: it looks once
    "cupy/cuda/nccl.py": "try:\n    from cupy_backends.cuda.libs.nccl import *\nexcept ImportError:\n    available = False\n",
    "cupy_backends/cuda/libs/nccl.py": "import ctypes\n"
    "if not getattr(ctypes, 'opened', {found}):\n    raise ImportError('no libnccl')\navailable, who = True, 'found'\n",
    **{
        f"{each}/__init__.py": ""
        for each in ("cupy", "cupy/cuda", "cupy_backends", "cupy_backends/cuda", "cupy_backends/cuda/libs", "nvidia")
    },
}
LOAD = """
import ctypes
ctypes.CDLL = lambda path, mode: setattr(ctypes, "opened", True) if path.endswith("nvidia/nccl/lib/libnccl.so.2") else 1 / 0
from hybrid.transport.nccl import load_nccl
try:
    print(load_nccl().who, getattr(ctypes, "opened", False))
except Exception as error:
    print(error.code)
"""


@pytest.mark.parametrize(("by_system", "by_pip", "said"), [(1, 1, "found False"), (0, 1, "found True"), (0, 0, "nccl")])
def test_nccl_is_the_systems_else_the_one_that_pip_installed_else_refused(tmp_path, by_system, by_pip, said):
    for name, text in {**NCCL, **({"nvidia/nccl/lib/libnccl.so.2": ""} if by_pip else {})}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("{found}", str(bool(by_system))))
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.strip() == said, done.stderr


class FakeNvrtc:
    """A compiler whose machine code is its options."""

    def __init__(self):
        self.compiled = []
        self.getVersion, self.NVRTCError = lambda: (12, 9), RuntimeError
        self.addNameExpression, self.destroyProgram = lambda *given: None, lambda program: None
        self.getLoweredName = lambda program, expression: f"_Z{expression}"

    def createProgram(self, text, name, headers, names):
        return name

    def compileProgram(self, program, options):
        self.compiled.append((program, options))

    def getCUBIN(self, program):
        return f"cubin {len(self.compiled)}\n".encode()


def test_machine_code_is_shipped_or_kept_and_never_that_of_another_source(monkeypatch, tmp_path):
    nvrtc, libs = FakeNvrtc(), ModuleType("cupy_backends.cuda.libs")
    libs.nvrtc = nvrtc
    for name, module in {"cupy_backends": libs, "cupy_backends.cuda": libs, "cupy_backends.cuda.libs": libs}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path / "cache"))
    sources = tmp_path / "kernels"
    shutil.copytree(KERNELS, sources, ignore=shutil.ignore_patterns("cubins"))
    for name, folder in {"KERNELS": sources, "SHIPPED": sources / "cubins"}.items():
        monkeypatch.setattr(cuda_kernels, name, folder)
    monkeypatch.setattr(cuda_kernels, "_headers", cuda_kernels._headers.__wrapped__)
    assert cuda_kernels.architecture_of(89) == cuda_kernels.architecture_of(86) == "sm_86"
    shipped = cuda_kernels.shipped_file("check.cu", "sm_86")
    shipped.parent.mkdir()
    shipped.write_bytes(lzma.compress(cuda_kernels.packed({"f": "_Zf", "g": "_Zg"}, b"shipped\n")))
    assert cuda_kernels.machine_code("check.cu", ["g"], "sm_86") == ({"f": "_Zf", "g": "_Zg"}, b"shipped\n")
    of_f, of_h = ({"f": "_Zf"}, b"cubin 2\n"), ({"h": "_Zh"}, b"cubin 1\n")
    assert [cuda_kernels.machine_code("check.cu", ["h"], "sm_86") for _ in range(2)] == [of_h, of_h], "kept"
    with pytest.warns(RuntimeWarning, match="7.5"):
        assert [cuda_kernels.machine_code("check.cu", ["f"], "sm_75") for _ in range(2)] == [of_f, of_f]
    (damaged,) = (tmp_path / "cache" / "cubin").glob("check-sm_75-*.cubin")
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"!!\n")
    with pytest.warns(RuntimeWarning, match="compiled"):
        assert cuda_kernels.machine_code("check.cu", ["f"], "sm_75")[1] == b"cubin 3\n"
    for number, changed in enumerate(("check.cu", "matrix.cuh"), start=4):
        with (sources / changed).open("a") as file:
            file.write("// changed\n")
        with pytest.warns(RuntimeWarning, match="compiled"):
            assert cuda_kernels.machine_code("check.cu", ["g"], "sm_86")[1] == b"cubin %d\n" % number
    assert [name for name, _ in nvrtc.compiled] == ["check.cu"] * 5
    assert {option for _, options in nvrtc.compiled for option in options if "arch" in option} == {"-arch=sm_86", "-arch=sm_75"}


@pytest.fixture
def pinned():
    """Memory that a function of the test locks, and what is locked: sizes by place."""
    locked, memory = {}, PinnedMemory()

    def lock(place, size):
        assert all(place + size <= lo or lo + held <= place for lo, held in locked.items()), "locked twice"
        locked[place] = size
        return True

    memory._register, memory._unregister = lock, locked.pop
    return memory, locked


def test_memory_is_locked_whole_when_a_second_product_uses_most_of_it_and_as_long_as_its_owner_lives(pinned):
    memory, locked = pinned
    whole = np.ones((64, LEAST_OWNER_BYTES // 256 + 1))
    most, less, small = whole[:32], whole[33:].T, np.ones(8)
    for _ in range(3):
        assert memory.pin_again([less, small]) == [less, small], "small arrays and parts are left alone"
    assert len(memory.pin_again([most])) == 1
    assert not locked
    assert memory.pin_again([most, less, small]) == [less, small][1:], "a view of locked memory is locked"
    assert locked == {whole.ctypes.data: whole.nbytes}
    view = whole[3:]
    del whole, most, less
    assert locked
    del view
    assert not locked
    assert memory.pin_again([np.ones(LEAST_OWNER_BYTES)], at_once=True) == []
    array, memory._register = np.ones(LEAST_OWNER_BYTES), lambda *_: False
    assert not memory.pin(array)
    assert [len(memory.pin_again([array])) for _ in range(4)] == [1] * 4, "what was refused is not taken for locked"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's malloc")
@pytest.mark.parametrize(("threshold", "own"), [(1 << 17, True), (1 << 30, False)])
def test_smaller_arrays_are_locked_where_malloc_has_given_them_pages_of_their_own(threshold, own):
    program = "import numpy; from hybrid.devices.cuda_gpus import _memory_of; print(bool(_memory_of(numpy.empty(2**18))))"
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(threshold)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().split() == [str(own)]


def test_arrays_on_one_buffer_are_locked_with_all_of_it_as_long_as_one_of_them_lives(pinned):
    memory, locked = pinned
    pages = mmap.mmap(-1, 8 * LEAST_BYTES)
    first, second, small = (np.ndarray(count, np.uint8, pages, at) for count, at in ((4 << 20, 0), (3 << 20, 5 << 20), (9, 7)))
    assert memory.pin(first)
    assert memory.pin_again([second, small]) == [], "at first sight"
    assert locked == {first.ctypes.data: len(pages)}
    del first, small
    assert locked
    del second
    assert not locked
    foreign = as_strided(np.ones(LEAST_OWNER_BYTES), (9, LEAST_OWNER_BYTES // 9))  # the bounds of its memory are unknown
    assert not memory.pin(foreign)


# --- How many blocks are resident on a multiprocessor, and what limits them, is CUDA's arithmetic


# A GPU, the threads and shared bytes of a block, how many are resident, and what limits them.
CASES = [
    # A lecture's: 2 kB of 16 are a tile's, which leaves room for 8 blocks, but 768 threads are 3 blocks of 256.
    ("8800GTX", 256, 2048, 3, {"threads"}),
    ("8800GTX", 64, 2048, 8, {"blocks", "shared memory"}),
    ("8800GTX", 64, 2049, 6, {"shared memory"}),  # given in units of 512 bytes
    ("C1060", 1024, 0, 0, {"threads"}),  # 1024 are resident, but a block has 512 at most
    ("P100", 256, 49 << 10, 0, {"shared memory"}),  # of the 64 kB a block has 48 at most
    ("K40c", 32, 0, 16, {"blocks"}),
    ("H200", 256, 113 << 10, 2, {"shared memory"}),  # with the block's 1 kB of the system's own
    ("H200", 256, (113 << 10) + 1, 1, {"shared memory"}),
    ("T4", 1000, 0, 1, {"threads"}),  # 1000 threads are 32 warps
    ("H200", 65, 0, 21, {"threads"}),  # 65 threads are 3 warps
]


@pytest.mark.parametrize(("gpu", "threads", "shared", "blocks", "limits"), CASES)
def test_blocks_that_are_resident(gpu, threads, shared, blocks, limits):
    found = occupancy(model_of(gpu).multiprocessor, threads, shared)
    assert (found.blocks, set(found.limits), found.warps) == (blocks, limits, blocks * -(-threads // 32))


def test_what_each_limit_by_itself_would_let_in():
    assert occupancy(model_of("8800GTX").multiprocessor, 256, 2048).alone == {"blocks": 8, "threads": 3, "shared memory": 8}


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [0, 1000, 40_000])
@pytest.mark.parametrize("threads", [32, 96, 250, 256, 768, 1024])
def test_the_driver_counts_the_same_blocks(threads, shared):
    """Of a kernel whose registers are no limit."""
    import cupy

    text = 'extern "C" __global__ void f(double* c) { c[threadIdx.x] = threadIdx.x; }'
    function, capability = cupy.RawKernel(text, "f"), int(cupy.cuda.Device().compute_capability)
    model = next((each for each in MODELS if each.capability == capability), None)
    if model is None:
        pytest.skip(f"the lab knows no GPU of compute capability {capability / 10}")
    driver = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, shared)
    assert occupancy(model.multiprocessor, threads, shared + function.shared_size_bytes).blocks == driver
