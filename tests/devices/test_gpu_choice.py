# SPDX-License-Identifier: MIT
"""Which rank takes which GPU, on machines made up of lists."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cuda_driver import Driver

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


@pytest.fixture
def driver(monkeypatch):
    def use(driver):
        monkeypatch.setattr(cuda_gpus, "load_driver", lambda: driver)
        return driver

    return use


def test_a_uuid_keeps_its_bytes_of_zero(driver):
    driver(Driver())
    assert cuda_gpus._uuid(2) == "GPU-00ab00b0-b1b2-b3b4-b5b6-b7b8b9ba0c00"


@pytest.mark.parametrize("broken", ["cuDeviceGet", "cuDeviceGetUuid_v2"])
def test_a_gpu_that_the_driver_does_not_name_is_not_used(driver, broken):
    driver(Driver(broken))
    with pytest.raises(DeviceUnavailable, match=r"the NVIDIA driver does not tell which GPU number 2 is \(CUDA error 100\)"):
        cuda_gpus._uuid(2)
