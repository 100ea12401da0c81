"""hybrid.devices.staging: copies through slots by threads, with functions of the test in place of the CUDA driver's."""

import ctypes
import random
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from hybrid.devices import staging
from hybrid.emulation.loaded_soon import wait_until_loaded
from hybrid.errors import DeviceUnavailable

pytestmark = pytest.mark.needs("compiler")

SIDE = [("x", "Q"), ("y", "Q"), ("kind", "I"), ("host", "P"), ("device", "P"), ("array", "P"), ("pitch", "Q")]
TYPES = {"Q": ctypes.c_size_t, "I": ctypes.c_uint, "P": ctypes.c_void_p}


class Side(ctypes.Structure):
    _fields_ = [(name, TYPES[kind]) for name, kind in SIDE]


class Copy(ctypes.Structure):
    _fields_ = [("source", Side), ("into", Side), ("width", ctypes.c_size_t), ("rows", ctypes.c_size_t)]


class Gpu:
    """The driver's functions: a stream's operations are done one after the other by a thread of its own, some time later."""

    def __init__(self, each=4, slot_bytes=4096):
        self.streams, self.recorded, self.complete, self.lock = {}, {}, {}, threading.Condition()
        self.fails = lambda: False
        self.pause, self.gate = 0.0, threading.Event()
        functions = {"enter": (lambda context: 0, 1), "copy": (self.copy, 2), "record": (self.record, 2)}
        functions |= {"follow": (self.follow, 3), "wait": (self.wait, 1)}
        self.kept = {
            name: ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * arguments)(function)
            for name, (function, arguments) in functions.items()
        }
        staging.copier()
        wait_until_loaded(60)
        library = staging.copier().loaded
        self.memory = np.empty(3 * each * slot_bytes, np.uint8)
        driver = staging.Driver(**{name: ctypes.cast(each, ctypes.c_void_p) for name, each in self.kept.items()})
        streams = (ctypes.c_void_p * (2 * each))(*range(100, 100 + 2 * each))
        events = (ctypes.c_void_p * (3 * each))(*range(1000, 1000 + 6 * each, 2))
        address = library.new_workers(ctypes.byref(driver), each, self.memory.ctypes.data, slot_bytes, streams, events)
        self.workers = SimpleNamespace(address=address, driver=driver, context=nullcontext())
        self.copies = staging.SlotCopies(self.workers, 50, each, 1)
        self.events = iter(range(10_000, 1_000_000, 2))

    def enqueue(self, stream, work):
        with self.lock:
            if stream not in self.streams:
                self.streams[stream] = []
                threading.Thread(target=self.serve, args=(stream,), daemon=True).start()
            self.streams[stream].append(work)
            self.lock.notify_all()
        return 0

    def serve(self, stream):
        while True:
            with self.lock:
                self.lock.wait_for(lambda: self.streams[stream])
                work = self.streams[stream][0]
            work()
            with self.lock:
                del self.streams[stream][0]
                self.lock.notify_all()

    def copy(self, address, stream):
        of = Copy.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(Copy)))
        if self.fails():
            return 700

        def move():
            time.sleep(self.pause * random.random())
            source, into = (each.device if each.kind == 2 else each.host for each in (of.source, of.into))
            for row in range(of.rows):
                ctypes.memmove(into + row * of.into.pitch, source + row * of.source.pitch, of.width)

        return self.enqueue(stream, move)

    def record(self, event, stream):
        with self.lock:
            self.recorded[event] = number = self.recorded.get(event, 0) + 1
        return self.enqueue(stream, lambda: self.complete.update({event: number}))

    def follow(self, stream, event, flags):
        number = self.recorded.get(event, 0)
        return self.enqueue(stream, lambda: self.until(lambda: self.complete.get(event, 0) >= number))

    def wait(self, event):
        number = self.recorded.get(event, 0)
        self.until(lambda: self.complete.get(event, 0) >= number)
        return 0

    def until(self, true):
        with self.lock:
            self.lock.wait_for(true)

    def event(self):
        return SimpleNamespace(ptr=next(self.events))

    def bring(self, host, device, ready=None):
        done = self.event()
        return self.copies.copy(host, (device.ctypes.data, device.strides[0]), ready, done, out=False)

    def take(self, host, device, ready=None):
        return self.copies.copy(host, (device.ctypes.data, device.strides[0]), ready, None, out=True)


@pytest.fixture
def gpu():
    made = Gpu()
    yield made
    made.gate.set()
    made.copies.give_up()


def matrices(rows, columns, dtype, form):
    values = np.random.default_rng(rows).integers(0, 256, rows * columns * dtype.itemsize, np.uint8).view(dtype)
    host = values.reshape(rows, columns)
    if form == "columns of a wider one":
        host = np.concatenate([host, host], axis=1)[:, :columns]
    if form == "every second row":
        host = np.repeat(host, 2, axis=0)[::2]
    if form == "transposed":
        host = np.asfortranarray(host)
    if form == "read only":
        host.flags.writeable = False
    return host, np.zeros((rows, columns + 5), dtype)[:, :columns]


@pytest.mark.parametrize("form", ["whole", "columns of a wider one", "every second row", "transposed", "read only"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_matrix_comes_in_and_goes_out_as_it_is(gpu, form, dtype):
    for rows, columns in ((1, 1), (1, 3000), (3000, 1), (70, 90), (257, 129), (3, 5000)):
        host, device = matrices(rows, columns, np.dtype(dtype), form)
        gpu.wait(gpu.bring(host, device).recorded().ptr)
        assert device.tobytes() == host.tobytes()
        back = np.zeros((rows, columns + 3), dtype)[:, :columns]
        gpu.take(back, device).wait_until_reached()
        assert back.tobytes() == host.tobytes()
        gpu.copies.settle()


def test_arrivals_are_recorded_in_their_order_each_behind_its_own_parts(gpu):
    gpu.pause = 2e-3
    pairs = [matrices(40, 60 + number, np.dtype("float64"), "whole") for number in range(30)]
    events = [gpu.bring(*pair) for pair in pairs]
    last = events[-1].recorded()
    gpu.wait(last.ptr)
    assert all(event.is_reached() for event in events)
    for host, device in pairs:
        assert np.array_equal(host.view(np.uint64), device.view(np.uint64)), "the last one's event covers all"
    gpu.copies.settle()


def test_a_copy_begins_after_its_event(gpu):
    held, (host, device) = gpu.event(), matrices(60, 60, np.dtype("float64"), "whole")
    gpu.enqueue(7, gpu.gate.wait)
    gpu.record(held.ptr, 7)
    coming = gpu.bring(host, device, held)
    out = np.zeros_like(host)
    going = gpu.take(out, device, held)
    time.sleep(0.05)  # in which a copy that did not wait for its event would be done
    assert not device.any()
    assert not out.any()
    assert not going.is_reached()
    gpu.gate.set()
    gpu.wait(coming.recorded().ptr)
    assert np.array_equal(host.view(np.uint64), device.view(np.uint64))
    going.wait_until_reached()
    gpu.copies.settle()


def test_a_flag_is_set_when_the_event_for_other_ranks_is_recorded(gpu):
    for early in (True, False):
        gpu.pause, flag, ipc = 1e-3, np.zeros(1, np.int64), gpu.event()
        host, device = matrices(60, 60, np.dtype("float64"), "whole")
        event = gpu.bring(host, device)
        if not early:
            event.wait_until_reached()
        event.announce(ipc, flag.ctypes.data, 7)
        event.wait_until_reached()
        assert flag[0] == 7
        gpu.wait(ipc.ptr)
        assert np.array_equal(host.view(np.uint64), device.view(np.uint64))
    gpu.copies.settle()


def test_a_failure_is_told_to_whoever_waits_and_the_next_copies_are_right(gpu):
    host, device = matrices(80, 80, np.dtype("float64"), "whole")
    left = [5]
    gpu.fails = lambda: left.append(left.pop() - 1) or left[0] < 0
    event = gpu.bring(host, device)
    with pytest.raises(DeviceUnavailable, match="700"):
        event.recorded()
    wait = gpu.copies._library.wait_for_event
    wait.argtypes = [ctypes.c_void_p]
    assert wait(event.ptr) == 700
    with pytest.raises(DeviceUnavailable):
        gpu.copies.settle()
    gpu.copies.give_up()
    gpu.fails = lambda: False
    gpu.wait(gpu.bring(host, device).recorded().ptr)
    assert np.array_equal(host.view(np.uint64), device.view(np.uint64))
    gpu.copies.settle()


def test_what_is_given_up_is_touched_no_more_and_has_failed(gpu):
    gpu.pause = 5e-3
    pairs = [matrices(100, 100, np.dtype("float64"), "whole") for _ in range(20)]
    gpu.enqueue(7, gpu.gate.wait)
    held = gpu.event()
    gpu.record(held.ptr, 7)
    outs = [np.zeros((100, 100)) for _ in range(10)]
    events = [gpu.bring(*pair) for pair in pairs] + [gpu.take(out, pairs[0][1]) for out in outs]
    threading.Timer(0.1, gpu.gate.set).start()
    gpu.take(outs[0], pairs[0][1], held)
    gpu.copies.give_up()
    before = [out.copy() for out in outs]
    for out in outs:
        out[:] = 3
    with pytest.raises(DeviceUnavailable):
        events[-1].wait_until_reached()
    time.sleep(0.05)  # in which a thread that still wrote would be seen
    assert all((out == 3).all() for out in outs)
    assert any(not each.all() for each in before)


def test_pages_are_populated_and_keep_what_is_in_them(gpu):
    array = np.arange(1 << 20, dtype=np.float64)
    gpu.copies.populate(array)
    gpu.copies.settle()
    assert np.array_equal(array, np.arange(1 << 20))
