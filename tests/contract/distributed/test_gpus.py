# SPDX-License-Identifier: MIT
"""docs/algorithm.md, Transports, and docs/python.md, Calls: GPUs of ranks by each transport, with NumPy in CuPy's place and,
where there are GPUs, on them. A rank uses one GPU, the least used of its node; contexts and page-locked memory are given back."""

import json
import sys
from itertools import product

import pytest
from support.commands import ROOT, start
from support.selection import exhaustive

PROGRAM = ROOT / "tests/support/on_gpus.py"
PARTS = "memory", "products", "faults", "chains"


def seen(ranks, gpus, parts=PARTS, real=False):
    """What each rank of the program has seen."""
    stand_in = [] if real else ["-m", "hybrid.testing", "--gpus", gpus]
    done = start([sys.executable, *map(str, stand_in), str(PROGRAM)], *parts, ranks=ranks, limit=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_given_back(found, gpus):
    """A rank has a context of its own GPU alone; the root has those of others, too, where it drives all copies."""
    for rank, of_rank in enumerate(found):
        assert of_rank["still_locked"] == 0
        assert not rank or of_rank["contexts"] == [rank % gpus]


@pytest.mark.needs("compiler")
@pytest.mark.launcher
@pytest.mark.parametrize(("ranks", "gpus"), exhaustive([(2, 2)], [(1, 1), (1, 2), (2, 2), (3, 2), (3, 3), (4, 4)]))
def test_products_are_right_by_every_way_faults_are_found_and_all_is_given_back(ranks, gpus):
    found, has_nccl = seen(ranks, gpus), 1 < ranks <= gpus
    assert [len(of_rank["ways"]) for of_rank in found] == [5 if ranks == 1 else 11 if has_nccl else 8] * ranks
    assert found[0]["faults"] >= (12 if has_nccl else 3)
    assert_given_back(found, gpus)
    assert 0 in found[0]["contexts"]
    assert found[0]["locked"] > 0


@pytest.mark.gpu
@pytest.mark.launcher
@pytest.mark.parametrize(("part", "ranks"), [*product(["products", "memory"], [1, 2, 3]), *product(["faults", "chains"], [1, 2])])
def test_the_same_holds_on_gpus(part, ranks):
    import cupy

    gpus = cupy.cuda.runtime.getDeviceCount()
    found = seen(ranks, gpus, [part], real=True)
    if part == "memory":
        assert_given_back(found, gpus)
