# SPDX-License-Identifier: MIT
"""Events of GPUs are destroyed in their GPU's context, whichever thread drops the last reference to them."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from hybrid.devices.cuda_contexts import _current_context, gpu_context
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_events import OpenedEvent, RecordedEvent


class Context:
    """A context manager that tells whether it is entered."""

    entered = False

    def __enter__(self):
        self.entered = True

    def __exit__(self, *error):
        self.entered = False

    def is_current(self):
        return self.entered


class Handle:
    """What CuPy destroys with the last reference to it: an event, or a stream."""

    ptr = 7

    def __init__(self, context, destroyed):
        self._context, self._destroyed = context, destroyed

    def __del__(self):
        self._destroyed.append(self._context.entered)


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)


def test_a_recorded_event_and_its_stream_are_destroyed_in_the_context():
    context, destroyed = Context(), []
    events = [RecordedEvent(context, Handle(context, destroyed), Handle(context, destroyed))]
    assert events[0].ptr == 7
    in_a_thread(events.clear)
    assert destroyed == [True, True]


def test_where_the_context_is_current_it_is_not_entered_again():
    class Current(Context):
        entered = True

        def __enter__(self):
            destroyed.append("entered")

    context, destroyed = Current(), []
    event = RecordedEvent(context, Handle(context, destroyed), Handle(context, destroyed))
    del event
    assert destroyed == [True, True]


def test_another_processs_event_is_destroyed_in_the_context():
    context, destroyed = Context(), []
    runtime = SimpleNamespace(
        ipcOpenEventHandle=lambda handle: handle + 1, eventDestroy=lambda event: destroyed.append((event, context.entered))
    )
    events = [OpenedEvent(context, runtime, 6)]
    in_a_thread(events.clear)
    assert destroyed == [(7, True)]


def test_an_event_that_could_not_be_opened_is_not_destroyed():
    def refuse(handle):
        raise RuntimeError("of another host")

    with pytest.raises(RuntimeError, match="another host"):
        OpenedEvent(Context(), SimpleNamespace(ipcOpenEventHandle=refuse, eventDestroy=pytest.fail), 6)


def test_what_a_device_keeps_is_freed_in_its_context_by_any_thread():
    context, destroyed = Context(), []
    device = object.__new__(CudaDevice)
    device._context, device._all_streams = context, [Handle(context, destroyed)]
    devices = [device]
    del device
    in_a_thread(devices.clear)
    assert destroyed == [True]


def test_a_device_that_could_not_be_made_frees_nothing():
    object.__new__(CudaDevice)


@pytest.mark.gpu
def test_a_thread_that_drops_the_last_event_gets_no_context(real_gpus):
    """CuPy's events alone give it one: that of GPU 0."""
    cupy, context = pytest.importorskip("cupy"), gpu_context(real_gpus[-1].index)
    contexts = []

    def drop(events):
        contexts.append(_current_context())
        events.clear()
        contexts.append(_current_context())

    with context:
        stream = cupy.cuda.Stream(non_blocking=True)
        of_cupy, recorded = [stream.record()], [RecordedEvent(context, stream.record(), stream)]
        in_a_thread(lambda: drop(recorded))
        assert contexts == [0, 0]
        in_a_thread(lambda: drop(of_cupy))
        del stream
    assert contexts[3], "CuPy, or CUDA, has changed: are contexts still to be cared for?"
