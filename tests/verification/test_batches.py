# SPDX-License-Identifier: MIT
"""Operations of a product's check that are enqueued together."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from hybrid.verification.batches import Batches

MiB = 1 << 20


@pytest.fixture
def done():
    """What was enqueued: the operations of each batch, and the events that it waits for."""
    return []


@pytest.fixture
def batches_for(done):
    def together(operations, *, beside):
        names = [operation.args[0] for operation in operations]
        done.append(f"made {len(names)}")

        def enqueue(after):
            done.append((names, list(after)))
            return f"end of {names}" + (" beside" if beside else "")

        return enqueue

    return lambda size: Batches(SimpleNamespace(together=together), size)


def operations(count):
    return [partial(print, number) for number in range(count)]


def test_operations_wait_for_all_events_of_their_batch_in_the_order_in_which_they_came(done, batches_for):
    batches, (first, second, third) = batches_for(0), operations(3)
    batches.add(first)
    batches.add(second, ["one"])
    batches.add(third, ["two", "three"])
    assert not done
    batches.flush()
    batches.flush()
    assert done == ["made 3", ([0, 1, 2], ["one", "two", "three"])]


def test_a_batch_that_reads_enough_is_not_kept_back(done, batches_for):
    batches, all_three = batches_for(0), operations(3)
    for each in all_three:
        batches.add(each, [each.args[0]], 20 * MiB)
    assert done == ["made 2", ([0, 1], [0, 1])]
    batches.flush()
    assert done[2:] == ["made 1", ([2], [2])]


def test_a_large_product_has_few_batches(done, batches_for):
    batches = batches_for(80_000 * MiB)
    for each in operations(800):
        batches.add(each, size=100 * MiB)
    assert [each for each in done if isinstance(each, str)] == ["made 100"] * 8


def test_the_batches_of_one_product_serve_the_next(done, batches_for):
    batches, (first, second, third) = batches_for(0), operations(3)
    for _ in range(2):
        batches.begin()
        batches.add(first, ["event"])
        batches.add(second)
        batches.flush()
        batches.add(third)
        batches.flush()
    assert [each for each in done if isinstance(each, str)] == ["made 2", "made 1"]


def test_what_follows_a_batch_beside_the_others_does_not_wait_for_it_but_it_waits_for_all_before(done, batches_for):
    batches, (first, second, third) = batches_for(0), operations(3)
    for _ in range(2):
        batches.begin()
        assert batches.flush_beside() == []
        batches.add(first, ["event"])
        batches.flush()
        batches.add(second, ["another"])
        assert batches.flush_beside() == ["end of [1] beside"]
        batches.add(third)
        batches.flush()
    enqueued = [each for each in done if not isinstance(each, str)]
    assert enqueued == [([0], ["event"]), ([1], ["end of [0]", "another"]), ([2], [])] * 2


def test_what_a_product_that_failed_has_left_is_forgotten(done, batches_for):
    batches, (first, second) = batches_for(0), operations(2)
    batches.add(first, ["event"])
    batches.begin()
    batches.add(second)
    batches.flush()
    assert done == ["made 1", ([1], [])]
