# SPDX-License-Identifier: MIT
"""CUDA contexts: those that are made ahead, and the one in which a thread's calls work."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from support.cuda_driver import Driver

from hybrid.devices import cuda_contexts, kernel_cache
from hybrid.devices.cuda_contexts import callers_context, gpu_context
from hybrid.devices.cuda_gpus import Gpu
from hybrid.ranks.launcher import mpirun

PROGRAM = Path(__file__).parent / "programs" / "contexts_of_ranks.py"


def gpu(index):
    return Gpu(index, f"GPU-{index}", "made up")


@pytest.fixture
def driver(monkeypatch):
    """Has a driver used, by CuPy's bindings of it as well."""

    def use(driver):
        of_cupy = SimpleNamespace(
            ctxGetCurrent=lambda: driver.current,
            ctxSetCurrent=lambda context: setattr(driver, "current", context),
            CUDADriverError=type("CUDADriverError", (RuntimeError,), {}),
        )
        cuda = SimpleNamespace(driver=of_cupy)
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
        monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
        monkeypatch.setattr(cuda_contexts, "load_driver", lambda: driver)
        monkeypatch.setattr(cuda_contexts, "_awakening", None)
        monkeypatch.setattr(kernel_cache, "trust_own_cache_only", lambda: None)  # it would make CuPy's folder
        return driver

    gpu_context.cache_clear()
    yield use
    gpu_context.cache_clear()


def test_a_thread_that_used_no_gpu_has_no_context_afterwards(driver):
    there = driver(Driver())
    with gpu_context(1):
        assert there.current == 111
        assert gpu_context(1).is_current()
        with gpu_context(2):
            assert there.current == 112
            assert not gpu_context(1).is_current()
            with gpu_context(2):
                assert there.current == 112
            assert there.current == 112
        assert there.current == 111
    assert there.current == 0
    assert there.contexts == [11, 12], "each was retained once, and none of GPU 0"


def test_the_context_that_a_caller_uses_is_restored_also_after_an_error(driver):
    there = driver(Driver())
    there.current = 77
    with pytest.raises(KeyError), gpu_context(1):
        raise KeyError
    assert there.current == 77


def test_each_thread_gets_its_own_context_back(driver):
    there, inside, seen = driver(Driver()), threading.Barrier(2), []

    def work(before, leaves):
        there.current = before
        with gpu_context(1):
            inside.wait(10)  # both have entered
            within = there.current
            leaves(10)
        seen.append((before, within, there.current))
        turn.set()

    turn = threading.Event()  # the thread that entered first leaves first, or last
    threads = [threading.Thread(target=work, args=each) for each in ((0, lambda _: None), (77, turn.wait))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(0, 111, 0), (77, 111, 77)]


def test_a_context_that_could_not_be_entered_leaves_nothing_behind(driver, monkeypatch):
    there = driver(Driver())
    there.current = 77
    with gpu_context(1):
        with gpu_context(2), monkeypatch.context() as patch:
            patch.setattr(gpu_context(1), "_make_current", mock.Mock(side_effect=RuntimeError("of an earlier kernel")))
            with pytest.raises(RuntimeError, match="of an earlier kernel"), gpu_context(1):
                pytest.fail("entered")
        assert there.current == 111
    assert there.current == 77


def test_free_memory_is_the_gpus_own_with_what_cupy_keeps(driver):
    there = driver(Driver())
    cupy = sys.modules["cupy"]
    cupy.cuda.runtime = SimpleNamespace(memGetInfo=lambda: (1000 * there.current, 10**6))
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: there.current)
    assert cuda_contexts.pooled_bytes(gpu(2)) == 112
    assert cuda_contexts.free_bytes(gpu(1)) == 111_111
    assert there.current == 0


@pytest.mark.parametrize("before", [0, 77])
def test_a_call_leaves_the_callers_context_as_it_was(driver, before):
    there = driver(Driver())
    there.current = before

    def call():
        with callers_context():
            gpu_context(1).stay()
            with gpu_context(2):
                assert there.current == 112
            assert there.current == 111
            raise KeyError

    with pytest.raises(KeyError):
        call()
    assert there.current == before


def test_without_a_driver_there_is_no_context_to_keep(monkeypatch):
    monkeypatch.setattr(cuda_contexts, "load_driver", mock.Mock(side_effect=OSError))
    with callers_context():
        pass


@pytest.mark.parametrize("broken", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_a_gpu_without_a_context_is_refused(driver, broken):
    driver(Driver(broken))
    with pytest.raises(RuntimeError, match="100"), gpu_context(1):
        pytest.fail("entered")


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (2, 2), (4, 1)])
def test_the_context_of_the_gpu_that_a_rank_will_probably_have_is_made_ahead(driver, local_rank, index):
    there = driver(Driver())
    cuda_contexts.wake_driver(local_rank)
    cuda_contexts.use_context_of(gpu(index))
    assert there.contexts == [10 + index]
    cuda_contexts.use_context_of(gpu(0))  # for a later product
    assert there.contexts == [10 + index]


def test_where_a_rank_has_another_gpu_nothing_of_that_context_stays(driver):
    there = driver(Driver())
    cuda_contexts.wake_driver(0)
    cuda_contexts.use_context_of(gpu(1))
    assert there.contexts == []


def test_where_a_rank_has_no_gpu_no_context_stays(driver):
    there = driver(Driver())
    cuda_contexts.wake_driver(0)
    cuda_contexts.use_context_of(None)
    assert there.contexts == []


def test_a_context_that_is_still_being_made_is_waited_for(driver, monkeypatch):
    there, released = driver(Driver()), threading.Event()
    monkeypatch.setattr(there, "_cuInit", lambda flags: 0 * released.wait(10), raising=False)
    cuda_contexts.wake_driver(0)
    threading.Timer(0.1, released.set).start()
    cuda_contexts.use_context_of(gpu(1))
    cuda_contexts._awakening.join()
    assert there.contexts == []


def test_the_environment_is_as_it_stays_before_the_driver_reads_it(driver, monkeypatch):
    """CuPy's folder is in it."""
    there, done = driver(Driver()), []
    monkeypatch.setattr(kernel_cache, "trust_own_cache_only", lambda: done.append("folder"))
    monkeypatch.setattr(there, "_cuInit", lambda flags: done.append("cuInit") or 0, raising=False)
    cuda_contexts.wake_driver(0)
    cuda_contexts._awakening.join()
    assert done == ["folder", "cuInit"]


def test_where_no_thread_can_be_started_the_driver_starts_at_first_use(driver, monkeypatch):
    there = driver(Driver())
    monkeypatch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
    cuda_contexts.wake_driver(0)
    cuda_contexts.use_context_of(gpu(1))
    assert there.contexts == []


@pytest.mark.parametrize("broken", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_what_the_driver_refuses_ahead_is_left_to_the_first_use(driver, broken):
    there = driver(Driver(broken))
    cuda_contexts.wake_driver(0)
    cuda_contexts.use_context_of(gpu(1))
    assert there.contexts == []


def test_without_a_local_rank_no_context_is_made_and_without_waking_there_is_none_to_release(driver):
    there = driver(Driver())
    cuda_contexts.use_context_of(gpu(0))
    cuda_contexts.wake_driver(None)
    cuda_contexts.use_context_of(gpu(0))
    assert there.contexts == []


@pytest.mark.gpu
@pytest.mark.parametrize("checksums", ["C", "NumPy"])
def test_ranks_leave_no_context_on_other_ranks_gpus(real_gpus, checksums):
    """Also those whose programs use NumPy alone, for which CuPy would create one on GPU 0."""
    if len(real_gpus) < 2:
        pytest.skip("the machine has one GPU")
    command = [*mpirun(2), sys.executable, str(PROGRAM), checksums]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    of_rank_1 = [line for line in run.stdout.splitlines() if line.startswith("rank 1: ")]
    assert of_rank_1 == ["rank 1: contexts of GPUs [1], current 0"]
