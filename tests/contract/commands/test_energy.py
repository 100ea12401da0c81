# SPDX-License-Identifier: MIT
"""Energy and cost (docs/use.md): what the processors' counters say of the products that are timed, divided by their number; too
short a time and missing counters are no figure but a reason. The counters are made up, in a folder that stands for the
system's."""

import json
import os
import re
import shlex

import pytest
from support.commands import start, successful
from support.fake_rapl import two_processors, zone
from support.matmul import doing, good, record

from hybrid.testing import mpirun

NODES = {"HYBRID_RANKS_PER_NODE": "1"}
OPERATIONS = 2 * 90 * 80 * 70

# Each product that rank 0 multiplies takes 4 J more of the first processor than the one before, and 40 ms.
METERED = """
import time
from pathlib import Path
counter, products = Path("/sys/class/powercap/intel-rapl:0/energy_uj"), []
def now(into, source, before):
    products.append(into)
    beside = counter.with_name("beside")
    beside.write_text(f"{int(counter.read_text()) + 4_000_000 * len(products)}")
    beside.replace(counter)
    time.sleep(0.04)
"""


@pytest.fixture
def metered(tmp_path):
    """The command where the folder stands for /sys/class/powercap."""
    (tmp_path / "powercap").mkdir()
    words_of_it = doing(METERED, "multiply rank=0 times=None", tmp_path / "metered.py")

    def run(*arguments, ranks=0, counters=two_processors, **environment):
        counters(tmp_path / "powercap")
        command = [*(mpirun(ranks) if ranks else []), *words_of_it, *arguments, "--device", "cpu"]
        there = "/sys/class/powercap"
        mount = f"mount -t tmpfs tmpfs /sys/class && mkdir {there} && mount --bind {tmp_path}/powercap {there}"
        words = f"{mount} && cd {tmp_path} && exec {shlex.join(map(str, command))}"
        users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        return successful(start(["unshare", *users, "--mount", "sh", "-c", words], limit=120, **environment))

    return run


def of(done):
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def line_of(text, name):
    return next((line for line in text.splitlines() if line.startswith(name)), "")


pytestmark = pytest.mark.launcher
on_made_up_counters = pytest.mark.needs("namespaces")


@on_made_up_counters
@pytest.mark.parametrize(("ranks", "environment"), [(0, {}), (2, NODES)])
def test_the_timed_products_are_told_in_table_and_json_line(metered, ranks, environment):
    """After two that are not: 12 + 16 + 20 + 24 J. Ranks that pretend to be nodes read one host's counters once."""
    done = metered(90, 80, 70, "--repeat", 4, "--warmup", 2, "--json", "-", "--price", "900/kWh", ranks=ranks, **environment)
    energy = of(done)["energy"]
    assert energy["joules_per_product"] == {"gpu": None, "cpu": pytest.approx(18.0), "memory": None}
    assert energy["products"] == 4
    assert energy["seconds"] >= 0.16
    assert energy["operations_per_joule"] == pytest.approx(OPERATIONS / 18)
    assert set(energy["why_not"]) == {"gpu", "memory"}
    line = line_of(done.stderr, "energy: ")
    assert line.startswith("energy: CPU 18 J a product, 0.06 MF/s per W (4 products in ")
    assert of(done)["cost_per_product"] == pytest.approx(900 * 18 / 3.6e6)
    assert line_of(done.stderr, "cost: ").startswith("cost: 0.0045 a product")


@on_made_up_counters
def test_a_product_in_parts_is_one(metered):
    done = metered(60, 40, 30, "--out", "C.npy", "--resume", "--resume-rows", 20, "--no-check", "--json", "-")
    assert of(done)["energy"]["joules_per_product"]["cpu"] == pytest.approx(4 + 8 + 12)
    assert "CPU 24 J a product" in line_of(done.stderr, "energy: ")


@on_made_up_counters
def test_too_short_a_time_is_no_figure_but_says_how_often_to_repeat(metered):
    done = metered(90, 80, 70, "--json", "-", "--price", "0.30/kWh")
    found = of(done)
    if found["energy"]["seconds"] >= 0.1:  # on a busy machine
        assert found["energy"]["joules_per_product"]["cpu"] is not None
        return
    assert set(found["energy"]["joules_per_product"].values()) == {None}
    assert "too short" in found["energy"]["why_not"]["cpu"]
    assert found["cost_per_product"] is None
    repeat = int(re.search(r"--repeat (\d+)", line_of(done.stderr, "energy: "))[1])
    assert repeat * found["energy"]["seconds"] >= 0.1
    assert "not known" in line_of(done.stderr, "cost: ")


@on_made_up_counters
def test_without_counters_of_processors_no_line_tells_of_energy(metered):
    others = lambda folder: (zone(folder, "0", "psys", 0), zone(folder, "0:0", "core", 0))  # noqa: E731
    done = metered(90, 80, 70, "--repeat", 3, "--json", "-", counters=others)
    assert "energy" not in done.stderr
    assert set(of(done)["energy"]["joules_per_product"].values()) == {None}
    assert "/sys/class/powercap" in of(done)["energy"]["why_not"]["cpu"]


def test_the_cost_is_that_of_the_time_in_the_last_line():
    """On this machine, whatever its counters."""
    ran = record(90, 80, 70, "--repeat", 3, HYBRID_PRICE="36000/node-h")
    assert ran["cost_per_product"] == pytest.approx(10 * ran["total"]["median"])
    two = record(90, 80, 70, "--price", "36000/node-h", ranks=2, **NODES)
    assert two["cost_per_product"] == pytest.approx(10 * two["total"]["median"])  # nodes that are only pretended cost nothing
    assert "no GPU" in line_of(good(90, 80, 70, "--price", "2.50/GPU-h").stdout, "cost: ")


@pytest.mark.gpu
def test_a_real_gpu_tells_what_products_take():
    for repeat in (30, 300, 3000):  # until they take long enough for its counter
        found = record(4096, 4096, 4096, "--device", "cuda", "--price", "2/GPU-h", "--repeat", repeat, limit=300)
        if found["energy"]["seconds"] >= 1:
            break
        assert "too short" in found["energy"]["why_not"]["gpu"]
    energy = found["energy"]
    watts = energy["joules_per_product"]["gpu"] * energy["products"] / energy["seconds"]
    assert 20 < watts < 2000, energy
    assert found["cost_per_product"] == pytest.approx(2 * found["total"]["median"] / 3600)
