# SPDX-License-Identifier: MIT
"""The acceptance test's parts: rotated matrices, who is to blame, who is slow, what fits, and its page."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, Topology
from hybrid.core.timeline import Timeline
from hybrid.diagnostics.acceptance import WrongProduct, blamed_rank, own_seconds, run
from hybrid.diagnostics.acceptance_findings import SLOW, judge_links, judge_products, judge_speeds
from hybrid.diagnostics.acceptance_levels import FILLED, LEVELS, Case, Level, Pace, large_size
from hybrid.diagnostics.bandwidth import Link, Measurements, PeerCopy, Rates
from hybrid.diagnostics.node_links import NodeLink
from hybrid.diagnostics.node_links import judge as judge_node_links
from hybrid.plan.capacity import FreeMemory
from hybrid.ranks.team import Team
from hybrid.reporting.acceptance_page import page

CASE = Case(128, 256, 256, "float64")
OTHER = Case(128, 256, 256, "float32")
NAMES = ["rank 0 on a", "rank 1 on a", "rank 2 on b, H200 GPU-2"]


@pytest.mark.parametrize(
    ("fault", "rank"),
    [
        ("rank 1 on h, H200 GPU-1 multiplied wrong: row 3, columns 0:64", 1),
        ("rows 0:4 of B reached the device of rank 12 on h with other values than they have in memory", 12),
        ("rows 0:4 of B did not reach rank 2 on h as they are on rank 0 on h", 2),
        ("row 9 of C, columns 3: wrong by 1.00e+00", 2),
        ("row 4 of C", 1),
        ("the product is wrong: error 1, tolerance 0", None),
    ],
)
def test_the_rank_to_blame_is_the_one_a_fault_names_or_whose_row_it_is(fault, rank):
    assert blamed_rank(fault, [Span(0, 4), Span(4, 8), Span(8, 12)]) == rank


def test_only_the_multiplications_of_timed_products_count():
    timeline = Timeline()
    for repeat, phase, seconds in [(-1, "multiply", 9), (0, "multiply", 1), (0, "copy in", 5), (1, "multiply", 2)]:
        timeline.repeat = repeat
        timeline.add(phase, 10.0, 10.0 + seconds)
    assert own_seconds(timeline) == [1, 2]


def wrong(rank, block):
    return WrongProduct(CASE, 0, rank, block, "row 3 of C")


def test_wrong_products_are_one_line_a_rank():
    (fine,) = judge_products([], NAMES, 7)
    assert (fine.verdict, fine.text) == ("ok", "7 products checked, all right")
    first, second = judge_products([wrong(2, 0), wrong(1, 1), wrong(2, 2), wrong(2, 0)], NAMES, 9)
    assert first.text.startswith(
        "rank 1 on a: 1 wrong product of 9, with row block 1; first of float64 128×256×256 a rank: row 3"
    )
    assert second.text.startswith("rank 2 on b, H200 GPU-2: 3 wrong products of 9, with row block 0,2; ")
    assert {first.verdict, second.verdict} == {"wrong"}


def test_the_same_rows_wrong_on_several_ranks_are_the_memorys_fault():
    devices = judge_products([wrong(0, 1), wrong(0, 2)], NAMES, 9)
    rows = judge_products([wrong(0, 1), wrong(2, 1)], NAMES, 9)
    (nobody,) = judge_products([wrong(None, None)], NAMES, 9)
    assert ["its device" in finding.remedy for finding in devices + rows] == [True, False, False]
    assert nobody.text.startswith("no single rank: 1 wrong product of 9; ")


def named(findings):
    return [finding.text.partition(":")[0] for finding in findings if finding.verdict == "wrong"]


@pytest.mark.parametrize(
    ("of_ranks", "slow"),
    [
        ([1.0, 1.0, 1.09], []),
        ([1.0, 1.0, 1.2], [2]),
        ([1.0, 1.2, 1.2], []),  # the median is 1.2
        ([1.0, 0.5, 1.2], [2]),
        ([1.0, 1.05], []),
        ([1.2, 1.0], [0]),  # of two each is compared with the other
    ],
)
def test_who_takes_ten_percent_longer_than_the_median_is_slow(of_ranks, slow):
    names = NAMES[: len(of_ranks)]
    findings = judge_speeds({CASE: [[seconds] * 3 for seconds in of_ranks]}, names)
    assert named(findings) == [names[rank] for rank in slow]
    assert slow or [finding.verdict for finding in findings] == ["ok"]


def test_each_type_is_judged_by_itself_and_over_all_sizes():
    slow_in_one_size = {CASE: [[1.0], [1.0], [1.5]], Case(1, 1, 1, "float64"): [[1.0] * 3, [1.0] * 3, [1.0] * 3]}
    assert named(judge_speeds(slow_in_one_size, NAMES)) == []
    (finding,) = judge_speeds({CASE: [[1.0], [1.0], [1.5]], OTHER: [[1.0], [1.0], [1.0]]}, NAMES)
    assert "by 50 % with float64 (" in finding.text


def test_what_cannot_be_compared_is_not():
    (alone,) = judge_speeds({CASE: [[1.0]]}, NAMES[:1])
    assert (alone.verdict, alone.text) == ("ok", "not compared: there is one rank")
    for too_little in ({CASE: [[0.001], [0.004]]}, {CASE: [[1.0], []]}, {}):
        (finding,) = judge_speeds(too_little, NAMES[:2])
        assert (finding.verdict, finding.text[:13]) == ("note", "not compared:")


def test_slow_links_are_named_against_their_own_kind():
    def measured(last):
        links = [Link(f"GPU-{number}", number, "h", True, Rates(50e9, last if number == 2 else 50e9)) for number in range(3)]
        copies = [PeerCopy("GPU-0", "GPU-1", 300e9), PeerCopy("GPU-1", "GPU-0", 300e9), PeerCopy("GPU-1", "GPU-2", 200e9)]
        return Measurements(tuple(links), (*copies, PeerCopy("GPU-2", "GPU-0", 20e9, direct=False)))

    back, peer = judge_links([measured(25e9), measured(24e9), measured(50e9)])  # the median of three
    assert back.text == "GPU-2 of rank 2 on h: slow, 25.00 GB/s GPU to host; the median has 50.00 GB/s"
    assert peer.text == "GPU-1 to GPU-2: slow, 200.00 GB/s GPU to GPU, direct; the median has 300.00 GB/s"
    assert len(judge_links([measured(46e9)])) == 1


def test_a_slow_link_between_nodes_is_named():
    names = [("a", "b"), ("b", "c"), ("c", "a")]
    links = [NodeLink(*ends, (rate, 1.1 * rate, 0.3 * rate)) for ends, rate in zip(names, (25e9, 12.5e6, 24e9), strict=True)]
    (finding,) = judge_node_links([*links, *links], SLOW)
    assert (finding.subject, finding.verdict) == ("node links", "wrong")
    assert finding.text == "b to c: slow, 12.50 MB/s; the median has 24.00 GB/s"
    (finding,) = judge_node_links([links[0], links[2]], SLOW)
    assert (finding.verdict, finding.text) == ("ok", "2 links around the ring of nodes: 24.00 GB/s to 25.00 GB/s")
    assert judge_node_links([], SLOW) == []


def test_large_products_fill_the_memory_or_the_time():
    free = [FreeMemory("h", 3 * 800**2 * 8, 1 << 40), FreeMemory("h", 1 << 40, 1 << 40)]
    topology, fast = Topology(((0, 1),)), Pace(1e-15, 0.0)
    assert large_size(topology, free, "float64", 1.0, fast) == int((FILLED * 800**2) ** 0.5)
    on_gpu = [FreeMemory("h", 1 << 40, 1 << 40, 2 * 300**2 * 4, f"GPU-{rank}") for rank in range(2)]
    assert large_size(topology, on_gpu, "float32", 1.0, fast) == int((FILLED * 300**2) ** 0.5)
    slow = Pace.of(Problem(10, 10, 10), 1.0, 1.5)
    assert slow.seconds(20) == pytest.approx(8 * 1.0 + 4 * 0.5)
    size = large_size(topology, free, "float64", slow.seconds(40), slow)
    assert 36 <= size <= 40
    assert large_size(topology, free, "float64", 0.0, slow) == 2  # a row a rank


def test_large_products_come_after_the_others_as_far_as_memory_and_time_allow():
    level, memory, told = Level(4, 0.0, {"cpu": ((8, 16, 16),)}, ("float64",), 1, True, True), 250 << 20, []
    settings = Settings(device="cpu", threads=1, host_memory=memory)
    outcome = run(Team(), level, 0.5, settings, told.append)
    small, *large = outcome.seconds
    assert (small, [case.dtype for case in large]) == (Case(8, 16, 16, "float64"), ["float32", "float64"])
    for case, item in zip(large, (4, 8), strict=True):
        assert 16 < case.l == case.m == case.rows
        assert 3 * item * case.l**2 <= FILLED * memory
    assert outcome.rotations >= 1
    assert told[0] == "float64 8×16×16 a rank: warm-up"
    assert (outcome.wrong, outcome.left_out, outcome.links) == ([], [], [])


def test_every_level_has_sizes_for_every_device():
    assert all(level.cases(device) for level in LEVELS.values() for device in ("cpu", "cuda", "emulate"))


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_escapes_what_it_shows():
    evil = "<script>alert(1)</script>&\"'"
    record = {
        "ranks": 1, "level": 1, "device": evil, "ok": False, "products": 6, "rotations": 1, "seconds": 1.0,
        "findings": [{"subject": evil, "verdict": "wrong", "text": evil, "remedy": evil}],
        "wrong": [{"rank": 0}],
        "placements": [{"rank": 0, "host": evil, "cores": evil, "threads": 1, "gpu": evil, "uuid": evil}],
        "multiply": [{"rows": 1, "l": 2, "m": 3, "dtype": evil, "ranks": [{"median": 0.5, "min": 0.5, "max": 0.5}]}],
        "watched": [{"trouble": evil, "power": None}],
    }  # fmt: skip
    text = page(record, evil)
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    assert "script" not in tags.seen
    assert text.count("&lt;script&gt;") == 11
    assert '<span class="wrong">not accepted</span>' in text
    assert "1 wrong product<" in text
