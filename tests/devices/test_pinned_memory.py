# SPDX-License-Identifier: MIT
"""Host memory locked for the links: once, for as long as it lives, and not longer."""

from __future__ import annotations

import contextlib
import gc
import mmap
import sys
import types
import warnings

import numpy as np
import pytest

from hybrid.devices.pinned_memory import LEAST_BYTES, LEAST_OWNER_BYTES, PinnedMemory, pinned_memory

ELEMENTS = LEAST_OWNER_BYTES // 8 + 64


class Driver:
    """Stands for CUDA: knows which memory is locked, and refuses what it would refuse."""

    def __init__(self, refuses=False):
        self.locked = {}
        self.history = []
        self.refuses = refuses

    def register(self, address, size):
        if self.refuses:
            return False
        assert all(address + size <= lo or lo + held <= address for lo, held in self.locked.items()), "locked twice"
        self.locked[address] = size
        self.history.append((address, size))
        return True

    def unregister(self, address):
        del self.locked[address]


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def locks(driver):
    return PinnedMemory(driver.register, driver.unregister)


def address(array):
    return array.ctypes.data


def test_memory_is_locked_once_and_unlocked_before_it_goes(driver, locks):
    array = np.ones(ELEMENTS)
    assert locks.pin(array)
    assert locks.pin(array)
    assert driver.history == [(address(array), array.nbytes)]
    del array
    assert driver.locked == {}


def test_a_view_keeps_its_owners_memory_locked(driver, locks):
    array = np.ones((64, ELEMENTS // 64))
    locks.pin(array)
    view = array[10:].T
    del array
    assert len(driver.locked) == 1
    assert locks.pin(view)
    assert len(driver.history) == 1
    del view
    assert driver.locked == {}


def test_overlapping_views_end_as_one_lock_around_both(driver, locks):
    array = np.ones(ELEMENTS)
    half = ELEMENTS // 2
    first, second = array[: half + 10], array[half:]
    assert locks.pin(first)
    assert locks.pin(second)
    assert driver.locked == {address(array): array.nbytes}
    assert locks.pin(first)
    assert len(driver.history) == 2
    del array, first, second
    assert driver.locked == {}


def test_two_arrays_are_locked_apart(driver, locks):
    first, second = np.ones(ELEMENTS), np.ones(ELEMENTS)
    locks.pin(first)
    locks.pin(second)
    assert len(driver.locked) == 2
    del first
    assert list(driver.locked) == [address(second)]


def test_mappings_have_pages_of_their_own_and_are_locked_from_less_on(driver, locks):
    memory = mmap.mmap(-1, LEAST_BYTES)
    array = np.ndarray(LEAST_BYTES // 8, np.float64, buffer=memory)
    assert locks.pin(array)
    assert not locks.pin(np.ones(LEAST_BYTES // 8))
    del array
    assert driver.locked == {}


def test_small_arrays_are_left_alone(driver, locks):
    assert not locks.pin(np.ones(LEAST_OWNER_BYTES // 8 - 1))
    assert not locks.pin(np.ones(ELEMENTS)[: LEAST_BYTES // 8 - 1])
    assert not locks.pin(np.ones((0, 5)))
    assert driver.history == []


def test_what_cannot_be_locked_is_not_taken_for_locked():
    driver = Driver(refuses=True)
    locks = PinnedMemory(driver.register, driver.unregister)
    array = np.ones(ELEMENTS)
    assert not locks.pin(array)
    driver.refuses = False
    assert locks.pin(array)
    del array
    assert driver.locked == {}


def test_a_locked_array_cannot_be_resized_in_place(locks):
    """Its memory would move under the lock."""
    array = np.ones(ELEMENTS)
    locks.pin(array)
    with pytest.raises(ValueError, match="resize"):
        array.resize(2 * ELEMENTS, refcheck=False)


def test_read_only_arrays_and_their_writeable_owner(driver, locks):
    array = np.ones(ELEMENTS)
    fixed = array.view()
    fixed.flags.writeable = False
    assert locks.pin(fixed)
    assert locks.pin(array)
    assert len(driver.history) == 1


def test_memory_of_a_file_is_unlocked_while_it_is_still_mapped(tmp_path, driver, locks):
    mapped = np.memmap(tmp_path / "matrix", np.float64, "w+", shape=(ELEMENTS,))
    still_mapped = []

    def unregister(where):
        with open("/proc/self/maps") as maps:
            ranges = [line.split()[0].split("-") for line in maps]
        still_mapped.append(any(int(lo, 16) <= where < int(hi, 16) for lo, hi in ranges))
        driver.unregister(where)

    locks = PinnedMemory(driver.register, unregister)
    part = mapped[100:]
    assert locks.pin(part)
    assert locks.pin(np.asarray(part))
    del mapped, part
    gc.collect()
    assert still_mapped == [True]


def test_an_array_over_foreign_memory_is_its_own_owner(driver, locks):
    memory = mmap.mmap(-1, ELEMENTS * 8)
    array = np.frombuffer(memory, np.float64)
    assert locks.pin(array[5:])
    del array
    assert driver.locked == {}
    memory.close()


def test_after_an_owner_has_gone_its_id_may_be_anothers(driver, locks):
    for _ in range(50):
        array = np.ones(ELEMENTS)
        assert locks.pin(array)
        assert driver.locked == {address(array): array.nbytes}
        del array


class FakeRuntime:
    """CUDA's, which refuses with this status."""

    class CUDARuntimeError(RuntimeError):
        def __init__(self, status):
            super().__init__(f"cudaError {status}")
            self.status = status

    def __init__(self, status):
        self._status = status

    def hostRegister(self, address, size, flags):
        raise self.CUDARuntimeError(self._status)

    def hostUnregister(self, address):
        raise AssertionError("nothing was locked")


def test_memory_is_unlocked_where_it_was_locked(monkeypatch):
    here, done = [2], []  # the index of the current GPU
    runtime = types.SimpleNamespace(
        CUDARuntimeError=RuntimeError,
        getDevice=lambda: here[-1],
        hostRegister=lambda address, size, flags: done.append(("locked", address, here[-1])),
        hostUnregister=lambda address: done.append(("unlocked", address, here[-1])),
    )

    @contextlib.contextmanager
    def gpu_context(index):
        here.append(index)
        yield
        here.pop()

    monkeypatch.setattr("hybrid.devices.pinned_memory.gpu_context", gpu_context)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime)))
    monkeypatch.setitem(sys.modules, "cupy.cuda", types.SimpleNamespace(runtime=runtime))
    pinned_memory.cache_clear()
    try:
        array = np.ones(ELEMENTS)
        place = address(array)
        assert pinned_memory().pin(array)
        here[:] = [0]
        del array
    finally:
        pinned_memory.cache_clear()
    assert done == [("locked", place, 2), ("unlocked", place, 2)]


@pytest.mark.parametrize(("status", "told"), [(712, 0), (801, 1)], ids=["locked by the caller", "not supported"])
def test_memory_that_cannot_be_locked_is_told(monkeypatch, status, told):
    cuda = types.SimpleNamespace(runtime=FakeRuntime(status))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    pinned_memory.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert not pinned_memory().pin(np.ones(ELEMENTS))
    finally:
        pinned_memory.cache_clear()
    assert len(seen) == told
    assert all("cannot be page-locked (CUDARuntimeError: cudaError 801)" in str(one.message) for one in seen)
