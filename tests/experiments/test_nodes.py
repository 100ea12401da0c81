# SPDX-License-Identifier: MIT
"""scripts/bench_nodes.py: nodes that are network namespaces, and what their interfaces count."""

from __future__ import annotations

import argparse

import pytest
from support.selection import exhaustive

from experiments.nodes import cli
from experiments.nodes.network import Network, why_not
from hybrid.errors import HybridError
from hybrid.reporting import jsonl

SMALL = (300, 240, 200)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(cli.SHAPES, "square", SMALL)


def test_rates_are_those_of_tc():
    assert [cli.bits_per_second(text) for text in ("1gbit", "2.5mbit", "100kbit", "8bit", "")] == [1e9, 2.5e6, 1e5, 8, 0]
    for wrong in ("fast", "1gb", "-1gbit"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"{wrong} is no rate, such as 1gbit"):
            cli.rate(wrong)


def test_the_least_is_what_the_others_have_of_b_and_c():
    assert cli.least_bytes((8, 6, 5), 2) == 8 * 5 * (4 + 3)
    assert cli.least_bytes((8, 6, 5), 1) == 0


def test_where_there_can_be_no_namespaces_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(cli, "why_not", lambda: "needs root")
    assert cli.main([]) == 1
    assert "namespaces cannot stand for nodes here: needs root" in capsys.readouterr().err


@pytest.mark.launcher
@pytest.mark.parametrize("nodes", exhaustive([2], [2, 4]))
def test_both_programs_run_on_all_nodes_and_receive_what_they_must(tmp_path, capsys, nodes):
    if reason := why_not():
        pytest.skip(reason)
    path = str(tmp_path / "nodes.jsonl")
    assert cli.main(["--nodes", str(nodes), "--rate", "", "--pairs", "1", "--json", path]) == 0
    printed = capsys.readouterr().out
    assert cli.main(["--from", path]) == 0
    assert capsys.readouterr().out == printed
    lines = [line for line in jsonl.read(path) if line["part"] == "nodes"]
    assert [line["program"] for line in lines] == [cli.OURS, cli.ALLGATHER]
    least = cli.least_bytes(SMALL, nodes)
    # Interfaces also count the packets' heads, and what starts the ranks, and of ours the check.
    assert all(least < line["received"] < 1.25 * least + 300_000 for line in lines), (least, lines)


@pytest.mark.launcher
def test_a_program_that_fails_is_named():
    if reason := why_not():
        pytest.skip(reason)
    with Network(1, "") as network, pytest.raises(HybridError, match="false failed"):
        network.run(["false"], 20)
