# SPDX-License-Identifier: MIT
"""Which rank takes which GPU, on machines made up of lists."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.devices import cuda_gpus
from hybrid.devices.cuda_gpus import Gpu, choose_gpus
from hybrid.errors import DeviceUnavailable


def seen(*names):
    """What one rank sees: it numbers its GPUs from 0."""
    return [Gpu(index, f"GPU-{name}", "made up") for index, name in enumerate(names)]


def gpu(index):
    return Gpu(index, f"GPU-{index}", "made up")


def letters(gpus):
    return "".join(gpu.uuid.removeprefix("GPU-") for gpu in gpus)


def test_ranks_that_see_all_gpus_take_one_each():
    assert letters(choose_gpus([seen(*"abcd")] * 4)) == "abcd"
    assert [gpu.index for gpu in choose_gpus([seen(*"abcd")] * 4)] == [0, 1, 2, 3]


def test_fewer_ranks_than_gpus_take_the_first():
    assert letters(choose_gpus([seen(*"abcd")] * 2)) == "ab"


def test_ranks_that_see_one_gpu_each_take_it_although_all_call_it_number_0():
    gpus = choose_gpus([seen("a"), seen("b"), seen("c")])
    assert letters(gpus) == "abc"
    assert [gpu.index for gpu in gpus] == [0, 0, 0]


def test_ranks_that_see_the_same_gpus_in_another_order_do_not_meet():
    assert letters(choose_gpus([seen(*"ab"), seen(*"ba")])) == "ab"
    assert [gpu.index for gpu in choose_gpus([seen(*"ab"), seen(*"ba")])] == [0, 0]


@pytest.mark.parametrize(
    ("gpus", "ranks", "users"), [("ab", 5, [2, 3]), ("a", 3, [3]), ("abc", 6, [2, 2, 2]), ("abcd", 7, [1, 2, 2, 2])]
)
def test_too_few_gpus_are_shared_evenly(gpus, ranks, users):
    assert sorted(Counter(letters(choose_gpus([seen(*gpus)] * ranks))).values()) == users


def test_pairs_of_ranks_that_see_a_pair_of_gpus_share_none():
    assert letters(choose_gpus([seen(*"ab"), seen(*"ab"), seen(*"cd"), seen(*"cd")])) == "abcd"


def test_a_rank_that_sees_more_leaves_the_gpu_that_was_taken():
    assert letters(choose_gpus([seen("a"), seen(*"ab"), seen(*"abc")])) == "abc"


@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), min_size=1, max_size=8))
def test_every_rank_takes_a_gpu_it_sees(visible):
    gpus_of_ranks = [seen(*names) for names in visible]
    for rank, gpu in enumerate(choose_gpus(gpus_of_ranks)):
        assert gpu in gpus_of_ranks[rank]


def test_a_rank_that_sees_one_gpu_gets_it_though_a_rank_before_it_sees_it_too():
    assert letters(choose_gpus([seen(*"ab"), seen("a")])) == "ba"


class Driver:
    """Of a machine with three GPUs, whose CUdevices are 10, 11 and 12."""

    def __init__(self, broken=""):
        self.broken, self.contexts = broken, []

    def __getattr__(self, function):
        return lambda *arguments: 100 if function == self.broken else getattr(self, f"_{function}")(*arguments)

    def _cuInit(self, flags):
        return 0

    def _cuDeviceGetCount(self, count):
        count._obj.value = 3
        return 0

    def _cuDeviceGet(self, device, index):
        device._obj.value = 10 + index
        return 0

    def _cuDeviceGetUuid_v2(self, uuid, device):
        uuid[:] = bytes([0, 0xAB, 0, *range(0xB0, 0xBB), device.value, 0])
        return 0

    def _cuDevicePrimaryCtxRetain(self, context, device):
        self.contexts.append(device.value)
        return 0

    def _cuDevicePrimaryCtxRelease_v2(self, device):
        self.contexts.remove(device.value)
        return 0


@pytest.fixture
def driver(monkeypatch):
    def use(driver):
        monkeypatch.setattr(cuda_gpus, "load_driver", lambda: driver)
        monkeypatch.setattr(cuda_gpus, "_awakening", None)
        return driver

    return use


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (2, 2), (4, 1)])
def test_the_context_of_the_gpu_that_a_rank_will_probably_have_is_made_ahead(driver, local_rank, index):
    there = driver(Driver())
    cuda_gpus.wake_driver(local_rank)
    cuda_gpus.use_context_of(gpu(index))
    assert there.contexts == [10 + index]
    cuda_gpus.use_context_of(gpu(0))  # as the root does for other ranks' GPUs
    assert there.contexts == [10 + index]


def test_where_a_rank_has_another_gpu_nothing_of_that_context_stays(driver):
    there = driver(Driver())
    cuda_gpus.wake_driver(0)
    cuda_gpus.use_context_of(gpu(1))
    assert there.contexts == []


@pytest.mark.parametrize("broken", ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_what_the_driver_refuses_ahead_is_left_to_the_first_use(driver, broken):
    there = driver(Driver(broken))
    cuda_gpus.wake_driver(0)
    cuda_gpus.use_context_of(gpu(1))
    assert there.contexts == []


def test_without_a_local_rank_no_context_is_made_and_without_waking_there_is_none_to_release(driver):
    there = driver(Driver())
    cuda_gpus.use_context_of(gpu(0))
    cuda_gpus.wake_driver(None)
    cuda_gpus.use_context_of(gpu(0))
    assert there.contexts == []


def test_a_uuid_keeps_its_bytes_of_zero(driver):
    driver(Driver())
    assert cuda_gpus._uuid(2) == "GPU-00ab00b0-b1b2-b3b4-b5b6-b7b8b9ba0c00"


@pytest.mark.parametrize("broken", ["cuDeviceGet", "cuDeviceGetUuid_v2"])
def test_a_gpu_that_the_driver_does_not_name_is_not_used(driver, broken):
    driver(Driver(broken))
    with pytest.raises(DeviceUnavailable, match=r"the NVIDIA driver does not tell which GPU number 2 is \(CUDA error 100\)"):
        cuda_gpus._uuid(2)
