# SPDX-License-Identifier: MIT
"""On several nodes, too, a rank that is killed ends the job in one line that names its node, and all is gone there; and a slow
link is no failure (docs/failures.md). Network namespaces stand for nodes: root is needed."""

import signal

import pytest
from support.jobs import SLOW, Network, why_not
from support.selection import exhaustive

REASON = why_not()
pytestmark = [pytest.mark.launcher, pytest.mark.skipif(bool(REASON), reason=REASON)]

PRODUCT = ("-m", "hybrid.matmul", "--device", "cpu", "--threads", 1)


@pytest.fixture
def on_nodes(start):
    """A job with a rank on each of so many nodes."""

    def one(network, *arguments):
        words, environment = network.launch()
        return start([*PRODUCT, *arguments], len(network.names), words=words, **environment)

    return one


@pytest.mark.parametrize("rank", exhaustive([1], [0, 1, 2]))
def test_a_rank_that_is_killed_on_any_node_ends_the_job(on_nodes, rank):
    with Network(3, "1gbit") as network:
        job = on_nodes(network, 300, 300, 300, "--repeat", 10**6)
        job.wait_for("C (300×300)")
        job.send(signal.SIGKILL, job.processes()[rank][1])
        end = job.end()
    assert end.code != 0
    assert (end.codes, end.left) == (["killed"], []), end
    assert f"rank {rank} on {network.names[rank]}, " in end.lines[0]


@pytest.mark.exhaustive
def test_a_slow_link_is_no_failure(on_nodes):
    with Network(2, SLOW) as network:
        end = on_nodes(network, 60, 50, 40, "--stall", 20).end()
    assert (end.code, end.lines, end.left) == (0, [], [])
