# SPDX-License-Identifier: MIT
"""Energy and cost of products, as users read them. The processors' counters are made up; on a GPU they are its own."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, module, own_lines, start, successful
from support.fake_rapl import two_processors, zone

COMMAND = module("hybrid.matmul")
METERED = [sys.executable, str(Path(__file__).parent / "programs" / "metered.py")]


@pytest.fixture
def metered(tmp_path):
    two_processors(tmp_path / "powercap")

    def run(*arguments, least=0, **options):
        path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        return successful(start(METERED, tmp_path / "powercap", least, *arguments, "--device", "cpu", **path, **options))

    return run


def record_of(done):
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def line_of(text, name):
    """The one that begins so; empty where there is none."""
    (line,) = [line for line in text.splitlines() if line.startswith(name)] or [""]
    return line


@pytest.mark.launcher
@pytest.mark.parametrize(("ranks", "environment"), [(0, {}), (2, {}), (2, {"HYBRID_RANKS_PER_NODE": "1"})])
def test_the_products_without_warm_ups_are_told_in_table_and_json(metered, ranks, environment):
    more = {"cwd": None, "ranks": ranks, **environment}
    done = metered(90, 80, 70, "--repeat", 3, "--warmup", 2, "--json", "-", **more)
    energy = record_of(done)["energy"]
    assert energy["joules_per_product"] == {"gpu": None, "cpu": (12 + 16 + 20) / 3, "memory": None}
    assert energy["products"] == 3
    assert energy["operations_per_joule"] == 2 * 90 * 80 * 70 / 16
    assert energy["why_not"] == {"gpu": "no GPU is used", "memory": "its counter stood still"}
    line = line_of(done.stderr, "energy: ")
    assert re.fullmatch(r"energy: CPU 16 J a product, 0\.06 MF/s per W \(3 products in \d+\.\d\d s with checks\)", line), line


def test_a_product_in_parts_is_one(metered, tmp_path):
    done = metered(60, 40, 30, "--out", "C.npy", "--resume", "--resume-rows", 20, "--no-check", "--json", "-", cwd=tmp_path)
    assert record_of(done)["energy"]["joules_per_product"]["cpu"] == 4 + 8 + 12
    assert re.search(r"^energy: CPU 24 J a product, .*\(1 product in \d+\.\d\d s\)$", done.stderr, re.MULTILINE)


def test_too_short_a_time_is_no_figure_but_a_reason(metered):
    done = metered(90, 80, 70, "--repeat", 2, "--json", "-", "--price", "0.30/kWh", least=1000)
    found = record_of(done)
    assert found["energy"]["joules_per_product"] == {"gpu": None, "cpu": None, "memory": None}
    assert "s are too short for its counter, which needs 1000 s" in found["energy"]["why_not"]["cpu"]
    assert found["cost_per_product"] is None
    line = line_of(done.stderr, "energy: ")
    too_short = r"energy: CPU not told, \S+ s are too short for its counter \(1000 s at least: --repeat \d+\)"
    assert re.fullmatch(too_short, line), line
    assert line_of(done.stderr, "cost: ") == "cost: not known at 0.3/kWh, its energy is not known"


def test_the_cost_is_told_where_a_price_is_given(metered):
    done = metered(90, 80, 70, "--repeat", 3, "--json", "-", HYBRID_PRICE="900/kWh")
    assert record_of(done)["cost_per_product"] == pytest.approx(900 * 8 / 3.6e6)
    assert line_of(done.stderr, "cost: ") == "cost: 0.002 a product at 900/kWh"
    assert "cost_per_product" not in record_of(metered(90, 80, 70, "--json", "-"))
    done = metered(90, 80, 70, "--price", "2.50/GPU-h")
    assert line_of(done.stdout, "cost: ") == "cost: not known at 2.5/GPU-h, no GPU is used"


def test_without_counters_no_line_tells_of_energy(tmp_path):
    zone(tmp_path, "0", "psys", 0)  # of the whole machine: it is no processor's
    done = start(METERED, tmp_path, 0, 9, 9, 9, "--device", "cpu", "--json", "-", PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    assert "energy" not in successful(done).stderr
    energy = record_of(done)["energy"]
    assert set(energy["joules_per_product"].values()) == {None}
    assert energy["why_not"]["cpu"].endswith("it has no RAPL zones of processors")


@pytest.mark.parametrize(("flags", "environment"), [(("--price", "3"), {}), ((), {"HYBRID_PRICE": "3"})])
def test_what_is_no_price_is_refused_in_a_line(flags, environment):
    done = start(COMMAND, 9, 9, 9, *flags, **environment)
    assert done.returncode == 2
    (line,) = own_lines(done.stderr)
    assert line.endswith("'3' is no price: such as 2.50/GPU-h, 20/node-h or 0.30/kWh")


@pytest.mark.gpu
def test_a_real_gpu_tells_what_products_take():
    for repeat in (30, 300, 3000):  # until they take long enough for its counter
        asked = (4096, 4096, 4096, "--device", "cuda", "--json", "-", "--price", "2/GPU-h", "--repeat", repeat)
        done = successful(start(COMMAND, *asked, limit=120))
        found, energy = record_of(done), record_of(done)["energy"]
        if energy["seconds"] >= 1:
            break
        assert "too short for its counter" in energy["why_not"]["gpu"]
    joules = energy["joules_per_product"]["gpu"]
    watts = joules * energy["products"] / energy["seconds"]
    assert 20 < watts < 2000, energy
    assert found["cost_per_product"] == pytest.approx(2 * found["total"]["median"] / 3600)
    assert re.match(r"energy: GPU \d", line_of(done.stderr, "energy: "))
