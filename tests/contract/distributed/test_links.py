# SPDX-License-Identifier: MIT
"""Between nodes as many bytes travel as the plan says, by the interfaces' own counters, and the doctor names a slow link.

Network namespaces stand for nodes: root is needed.
"""

import json
import re
import sys
from itertools import product

import pytest
from support.commands import module, start
from support.jobs import Network, why_not
from support.selection import exhaustive

from hybrid.errors import HybridError

SIZES = 1000, 900, 800
MOST_RUNS = 6  # on a busy machine TCP sends packets again, which only adds: the fewest bytes of some runs are the program's
ALONG_K = 2, "1x1x2", "0"
WAYS = exhaustive([ALONG_K], [ALONG_K, *product([4], ("rows", "2x2", "1x2x2"), "01")])


@pytest.fixture(autouse=True)
def namespaces():
    if reason := why_not():
        pytest.skip(f"needs {reason}")


def planned(nodes, grid):
    """The bytes that a node receives, and those of the busiest one, as --explain tells them: in tenths of a MiB."""
    asked = (*SIZES, "--explain", "--device", "cpu", "--ranks", nodes, "--nodes", nodes, "--grid", grid)
    told = start(module("hybrid.matmul"), *asked).stdout
    (found,) = re.findall(rf"^grid {grid}: a node receives (\S+) MiB, the busiest (\S+) MiB \(chosen\)$", told, re.MULTILINE)
    return [float(number) * 2**20 for number in found]


@pytest.mark.launcher
@pytest.mark.parametrize(("nodes", "grid", "staged"), WAYS)
def test_every_node_receives_the_bytes_of_the_plan(nodes, grid, staged):
    """Three products less one, so without the start of the ranks; the heads of packets add less than 4 %."""
    command = ["env", f"HYBRID_STAGED={staged}", *module("hybrid.matmul"), *map(str, SIZES), "--device", "cpu", "--threads", "1"]
    a_node, busiest = planned(nodes, grid)
    fewest = {"1": [sys.maxsize] * nodes, "3": [sys.maxsize] * nodes}
    with Network(nodes, "") as network:
        for _ in range(MOST_RUNS):
            for repeat, least in fewest.items():
                before = network.bytes_received()
                network.run([*command, "--grid", grid, "--check", "off", "--repeat", repeat], 120)
                after = network.bytes_received()
                least[:] = [min(old, after[name] - before[name]) for old, name in zip(least, network.names, strict=True)]
            of_a_product = [(three - one) / 2 for one, three in zip(fewest["1"], fewest["3"], strict=True)]
            if 0.97 <= max(of_a_product) / busiest <= 1.04 and sorted(of_a_product)[-2] <= 1.04 * a_node:
                return
    pytest.fail(f"{of_a_product} bytes of each node, planned {a_node}, the busiest {busiest}")


@pytest.mark.exhaustive
@pytest.mark.launcher
def test_the_doctor_names_a_slow_link_and_measures_the_network_for_the_plan(tmp_path):
    path = tmp_path / "doctor.jsonl"
    with Network(3, "200mbit") as network:
        network.slow_down(network.names[1], "20mbit")
        with pytest.raises(HybridError):
            network.run([*module("hybrid.doctor"), "--threads", "1", "--json", str(path)], 200)
        slow = f"{network.names[0]} to {network.names[1]}"
    (line,) = map(json.loads, path.read_text().splitlines())
    (finding,) = [finding for finding in line["findings"] if finding["subject"] == "node links"]
    assert (finding["verdict"], finding["code"]) == ("wrong", "slow-link")
    assert finding["text"].startswith(slow)
    asked = (9000, 9000, 9000, "--explain", "--device", "cpu", "--ranks", 3, "--nodes", 3)
    told = start(module("hybrid.matmul"), *asked, HYBRID_MACHINE=str(path)).stdout
    assert re.search(r"s of its link \(chosen\)", told)
