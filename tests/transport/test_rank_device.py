# SPDX-License-Identifier: MIT
"""What a rank's device keeps from product to product."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hybrid.ranks.team import Team
from hybrid.transport.rank_device import RankDevice

MiB = 1 << 20


@pytest.fixture
def rank_device():
    return RankDevice("key", SimpleNamespace(reserve=lambda size, shared: bytearray(size)))


def plans(count):
    return [SimpleNamespace(shares=(number,)) for number in range(count)]


def made_again(rank_device, wanted, device_bytes=0):
    """Of these plans, those for which nothing was kept."""
    made = []
    for plan in wanted:
        rank_device.once_for_plan("views", plan, lambda plan=plan: made.append(plan) or plan, device_bytes)
    return made


def test_products_of_two_shapes_in_turn_make_their_views_once(rank_device):
    first, second = plans(2)
    assert made_again(rank_device, [first, second] * 3) == [first, second]


def test_what_is_kept_is_of_the_plan_and_of_its_name(rank_device):
    plan, other = plans(2)
    assert rank_device.once_for_plan("views", plan, lambda: 1) == 1
    assert rank_device.once_for_plan("sums", plan, lambda: 2) == 2
    assert rank_device.once_for_plan("views", other, lambda: 3) == 3
    assert rank_device.once_for_plan("views", plan, lambda: 4) == 1


def test_of_many_plans_those_used_last_are_kept(rank_device):
    first, *others = plans(5)
    made_again(rank_device, [first, *others[:3], first, others[3]])
    assert made_again(rank_device, [first, others[0]]) == [others[0]]


def test_plans_whose_checks_take_much_of_the_device_are_not_kept_together(rank_device):
    first, second = plans(2)
    made_again(rank_device, [first], device_bytes=60 * MiB)
    assert rank_device.reserved_for_check == 60 * MiB
    made_again(rank_device, [second], device_bytes=5 * MiB)
    assert rank_device.reserved_for_check == 5 * MiB
    assert made_again(rank_device, [second, first], device_bytes=100 * MiB) == [first]  # alone it may take more


def test_what_could_not_be_made_takes_nothing_of_the_device(rank_device):
    def fail():
        raise MemoryError

    (plan,) = plans(1)
    for _ in range(2):
        with pytest.raises(MemoryError):
            rank_device.once_for_plan("views", plan, fail, MiB)
    assert rank_device.reserved_for_check == 0
    assert made_again(rank_device, [plan, plan], device_bytes=MiB) == [plan]
    assert rank_device.reserved_for_check == MiB


def test_memory_that_is_reserved_anew_has_none_of_the_old_views(rank_device):
    (plan,) = plans(1)
    rank_device.reserve(Team(), 10)
    made_again(rank_device, [plan], device_bytes=MiB)
    rank_device.reserve(Team(), 10)
    assert made_again(rank_device, [plan]) == []
    rank_device.reserve(Team(), 11)
    assert rank_device.reserved_for_check == 0
    assert made_again(rank_device, [plan]) == [plan]
