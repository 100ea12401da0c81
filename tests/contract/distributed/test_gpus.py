# SPDX-License-Identifier: MIT
"""docs/algorithm.md, Transports, and docs/python.md, Calls: GPUs of ranks by each transport, with NumPy in CuPy's place and,
where there are GPUs, on them. A rank uses one GPU, the least used of its node; contexts and page-locked memory are given back."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import pytest
from support.commands import start

PROGRAM = Path(__file__).with_name("programs") / "on_gpus.py"
RANKS = [1, 2, pytest.param(3, marks=pytest.mark.exhaustive), pytest.param(4, marks=pytest.mark.exhaustive)]


def seen(part, ranks, gpus=0, real=False):
    """What each rank of the program has seen."""
    stand_in = [] if real else ["-m", "hybrid.testing", "--gpus", gpus]
    done = start([sys.executable, *map(str, stand_in), str(PROGRAM)], part, gpus, ranks=ranks, limit=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def real_gpus():
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


@pytest.mark.needs("compiler")
@pytest.mark.launcher
@pytest.mark.parametrize("ranks", RANKS)
def test_products_are_right_by_every_way(ranks):
    found = seen("products", ranks, ranks)
    assert [len(of_rank["ways"]) for of_rank in found] == [5 if ranks == 1 else 11] * ranks


@pytest.mark.needs("compiler")
@pytest.mark.launcher
@pytest.mark.parametrize("ranks", RANKS[:3])
def test_faults_on_the_way_to_and_from_gpus_are_found(ranks):
    found = seen("faults", ranks, ranks)
    assert found[0]["faults"] >= (3 if ranks == 1 else 12)


@pytest.mark.needs("compiler")
@pytest.mark.launcher
@pytest.mark.parametrize(("ranks", "gpus"), [(1, 2), (2, 2), (3, 2), pytest.param(4, 4, marks=pytest.mark.exhaustive)])
def test_a_rank_has_contexts_of_its_own_gpu_and_leaves_nothing_locked(ranks, gpus):
    """The root has those of others, too, where it drives all copies."""
    found = seen("memory", ranks, gpus)
    for rank, of_rank in enumerate(found):
        assert of_rank["still_locked"] == 0
        if rank:
            assert of_rank["contexts"] == [rank % gpus]
    assert 0 in found[0]["contexts"]
    assert found[0]["locked"] > 0


@pytest.mark.gpu
@pytest.mark.launcher
@pytest.mark.parametrize(
    ("part", "ranks"),
    [*product(["products", "memory"], [1, 2, 3]), ("faults", 1), ("faults", 2)],
)
def test_the_same_holds_on_gpus(part, ranks):
    gpus = real_gpus()
    found = seen(part, ranks, gpus, real=True)
    for rank, of_rank in enumerate(found if part == "memory" else ()):
        assert of_rank["still_locked"] == 0
        assert not rank or of_rank["contexts"] == [rank % gpus]
