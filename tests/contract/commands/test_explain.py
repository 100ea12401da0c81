# SPDX-License-Identifier: MIT
"""--explain prints, without GPUs or MPI, the plan that runs: rows, device, kernel, grid, memory, and what is refused, for this
machine or for one you do not have; its numbers follow from the sizes and the machine."""

import os
import re
from itertools import product

import pytest
from support.matmul import WAYS, code_in, good, line_of_failure, record, run
from support.selection import exhaustive

pytestmark = pytest.mark.launcher

MiB, GiB = 1 << 20, 1 << 30
LINK, RATE = 54.8e9, 56e12  # of an NVIDIA H200: bytes a second, and operations of float64


def explained(*arguments, **more):
    return good(*arguments, "--explain", **more).stdout


def bytes_in(text):
    number, unit = re.search(r"([\d.]+) (B|KiB|MiB|GiB|TiB)", text).groups()
    return float(number) * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)


def line(text, begins):
    (found,) = [each for each in text.splitlines() if each.startswith(begins)]
    return found


@pytest.mark.parametrize(
    ("way", "sizes", "more"),
    exhaustive(
        [("alone", (61, 50, 40), ()), ("2 nodes", (61, 50, 40), ("--dtype", "complex64"))],
        product(WAYS, ((61, 50, 40), (64, 64, 64)), ((), ("--dtype", "complex64"), ("--dtype", "int32"))),
    ),
)
def test_what_is_explained_is_what_runs(way, sizes, more):
    ranks, nodes = max(1, WAYS[way][0]), {"2 nodes": 2, "a grid": 4}.get(way, 1)
    told = explained(*sizes, *more, way=way)
    machine = ("--ranks", ranks, "--nodes", nodes, "--device", "cpu")
    environment = {name: value for name, value in WAYS[way][1].items() if name != "HYBRID_RANKS_PER_NODE"}
    assert explained(*sizes, *more, *machine, **environment) == told  # the same for a machine that is described
    ran = record(*sizes, *more, way=way)
    assert f"kernel {ran['kernel']} on {ran['device']}" in told
    rows = re.findall(r"^rank (\d+): rows (\d+:\d+)", told, re.MULTILINE)
    assert rows == [(str(each["rank"]), each["rows"]) for each in ran["placements"]]
    assert len(re.findall(r"^node \d+:", told, re.MULTILINE)) == ran["nodes"] == nodes
    assert ran["grid"] is None or re.search(rf"^grid {ran['grid']}: .*\(chosen\)$", told, re.MULTILINE)
    if not more:
        n, l, m = sizes
        assert told.startswith(f"C ({n}×{m}) = A ({n}×{l}) · B ({l}×{m})  float64")


@pytest.mark.parametrize(("way", "sizes"), [("alone", (100, 100, 100)), ("2 ranks", (1000, 900, 800))])
def test_memory_fits_or_not_for_both_by_the_same_bytes(way, sizes):
    n, l, m = sizes
    machine = ("--ranks", max(1, WAYS[way][0]), "--device", "cpu")
    told = line(explained(*sizes, *machine, "--host-memory", "8G"), "node 0")
    shared, whole = (bytes_in(part) for part in (told.partition("of C: ")[2], told.partition("shared, ")[2]))
    assert shared == pytest.approx(8 * (n * l + l * m + n * m), rel=0.01)
    assert explained(*sizes, *machine, "--host-memory", f"{whole + MiB / 4:.0f}").endswith("it fits\n")
    good(*sizes, way=way, HYBRID_HOST_MEMORY=f"{whole + MiB / 4:.0f}")
    short = f"{whole - MiB / 4:.0f}"
    both = run(*sizes, *machine, "--explain", "--host-memory", short), run(*sizes, "--host-memory", short, way=way)
    lines = [line_of_failure(done, 1) for done in both]
    assert [code_in(each) for each in lines] == ["host-memory"] * 2
    missing = [re.search(r"has [\d.]+ \w+: ([\d.]+ \w+) are missing", each)[1] for each in lines]
    assert missing[0] == missing[1]
    assert 0 < bytes_in(missing[0]) < MiB / 2


def test_it_needs_no_mpi_no_gpu_and_no_room(tmp_path):
    for name in ("mpi4py", "cupy"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name} here')")
    told = explained(1000, 2000, 3000, "--ranks", 8, "--gpus-per-node", 4, "--gpu-memory", "141G", "--host-memory", "1T",
                     anew=True,
        PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")  # fmt: skip
    assert "rank 7: rows 875:1000" in told
    assert "node 1: ranks 4–7" in told
    assert told.endswith("it fits\n")


def test_a_large_machine_is_explained_in_its_bytes_and_seconds():
    n = 100_000
    told = explained(n, n, n, "--ranks", 8, "--gpus-per-node", 8, "--check", "off", "--precision", "native")
    assert told.splitlines()[0].endswith("matrices 223.5 GiB")
    assert "kernel tensor on cuda" in told
    assert bytes_in(line(told, "node 0").partition("of C: ")[2]) == pytest.approx(24 * n * n, rel=0.001)
    buffers = 8 * (n // 8 * n + n * (n + n // 8))  # a row block of A, all of B, and the row block of C
    third = line(told, "rank 3")
    assert "rows 37500:50000" in third
    assert third.endswith("GPU 3")
    assert bytes_in(third.rpartition(", ")[2]) == pytest.approx(buffers, rel=0.001)
    copied, multiplied, back = (float(seconds) for seconds in re.findall(r"after ([\d.]+) s", line(told, "expected of rank 0")))
    assert copied == pytest.approx(2 * (n // 8) * n * 8 / LINK, rel=0.01)  # its row block of A, and its part of B
    assert 2 * n**3 / 8 / RATE <= multiplied < 1.1 * 2 * n**3 / 8 / RATE
    assert multiplied <= back < multiplied + 0.1
    assert "--host-memory" in told.splitlines()[-1]  # memory is checked where it is given


def test_no_time_is_expected_of_a_kernel_whose_speed_is_not_known():
    assert "expected of" not in explained(9, 9, 9, "--gpus-per-node", 1, "--kernel", "naive")


@pytest.mark.parametrize(("memory", "what"), [("141G", ""), ("300G", "rank"), ("1G", "A or B"), ("1M", "refused")])
def test_a_gpu_holds_all_or_streams_or_is_refused(memory, what):
    n = 100_000
    arguments = (n, n, n, "--explain", "--ranks", 4, "--gpus-per-node", 4, "--precision", "native", "--gpu-memory", memory)
    if what == "refused":
        assert code_in(line_of_failure(run(*arguments), 1)) == "gpu-memory"
        return
    told = good(*arguments).stdout
    assert ("cannot hold" in told) == (what == "A or B"), told
    assert re.search(r"[AB] is stationary", told) or what != "A or B"
    for each in re.findall(r"^rank \d+: .*", told, re.MULTILINE):
        assert bytes_in(each.rpartition(", ")[2]) <= int(memory[:-1]) * GiB


def test_remainders_are_explained_with_their_memory_and_bound():
    n = 16_000
    told = explained(n, n, n, "--gpus-per-node", 1, "--check", "off")
    bound = re.search(r"([\d.e-]+)·\|A\|\|B\|", line(told, "precision "))[1]
    assert float(bound) < 1e-12
    assert bytes_in(line(told, "rank 0").rpartition(", ")[2]) > (3 * 8 + 2 * 10) * n**2
    short = explained(n, n, n, "--gpus-per-node", 1, "--check", "off", "--gpu-memory", "8G")
    assert line(short, "precision ").startswith("precision native")


def test_grids_of_nodes_are_explained_with_what_each_receives():
    n, item = 4000, 8
    told = explained(n, n, n, "--ranks", 8, "--nodes", 4, "--device", "cpu", "--grid", "2x2")
    others, root = n * n * item * (1 / 4 + 3 / 8), n * n * item * (1 / 4 + 3 / 8 + 3 / 4)
    chosen = line(told, "grid 2x2")
    assert chosen.endswith("(chosen)")
    assert [float(number) for number in re.findall(r"([\d.]+) MiB", chosen)][:2] == pytest.approx(
        [others / MiB, root / MiB], abs=0.1
    )
    least = item * (3 * (n**3 / 4) ** (2 / 3) - 3 * n * n / 4)
    bound = line(told, "at least")
    assert bytes_in(bound) == pytest.approx(least, rel=0.01)
    assert float(re.search(r"([\d.]+) × that", bound)[1]) == pytest.approx(others / least, abs=0.01)
    assert "rank 5: rows 2500:3000 of A and 2500:3000 of B" in told
    auto = explained(20000, 20000, 20000, "--device", "cpu", "--ranks", 32, "--nodes", 16, "--network", "1Gbit/s")
    (best,) = re.findall(r"^grid (\S+): .* ([\d.]+) s of its link \(chosen\)$", auto, re.MULTILINE)
    (rows,) = re.findall(r"^grid rows: .* ([\d.]+) s of its link$", auto, re.MULTILINE)
    assert best[0] != "rows"
    assert float(best[1]) < float(rows)
    on_gpus = explained(n, n, n, "--ranks", 4, "--nodes", 4, "--gpus-per-node", 1)
    assert line(on_gpus, "grid rows").endswith("(chosen)")  # every node gets all of B there, unless a grid is asked for


def test_between_nodes_what_travels_is_told():
    two = ("--ranks", 4, "--nodes", 2)
    text = line(explained(4000, 3000, 2000, "--dtype", "float32", *two), "between nodes")
    assert bytes_in(re.search(r"[\d.]+ \w+ of C", text)[0]) == pytest.approx(
        2000 * 2000 * 4, rel=0.01
    )  # half of C back to node 0
    big = explained(100_000, 100_000, 100_000, "--ranks", 1024, "--nodes", 128, "--gpus-per-node", 8, "--grid", "16x8")
    assert "… and " in big  # ranks that are not shown


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("--ranks", 4, "--nodes", 4, "--gpus-per-node", 1, "--grid", "2x2", "--transport", "nccl"), "transport"),
        (("--ranks", 4, "--nodes", 4, "--gpus-per-node", 1, "--transport", "peers"), "transport"),
        (("--ranks", 4, "--device", "cpu", "--transport", "nccl"), "transport"),
        (("--gpus-per-node", 1, "--capability", "5.0", "--kernel", "tensor"), "kernel-unfit"),
        (("--ranks", 8, "--gpus-per-node", 8, "--host-memory", "1M"), "host-memory"),
        (("--gpu", "K40c"), "setting"),
        (("--gpu", "no such"), "setting"),
        (("--gpu", "H100", "--capability", "9.0"), "option-combination"),
    ],
)
def test_what_such_a_machine_cannot_do_is_refused_once(asked, code):
    for way in ("alone", "2 ranks")[: 1 + (code == "host-memory")]:
        assert code_in(line_of_failure(run(4000, 3000, 2000, "--explain", *asked, way=way))) == code


def test_a_gpu_by_name_is_forecast_from_published_rates():
    for gpu, least, most in (("RTX 4090", 15, 20), ("rtx5080", 15, 20), ("B200", 3, 5)):
        told = explained(16_000, 16_000, 16_000, "--gpu", gpu)
        assert least <= float(re.search(r"kernels ([\d.]+) × as fast", told)[1]) <= most
        assert re.match(r".* NVIDIA's .* nothing was measured here\n", told)


def test_transports_are_explained_with_what_is_tried():
    told = explained(4000, 3000, 2000, "--ranks", 4, "--nodes", 2, "--gpus-per-node", 2, "--transport", "nccl")
    assert "NCCL" in line(told, "transport nccl")
    assert line(told, "transport nccl").endswith("refused")
    assert "GPU to GPU" in line(told, "between nodes")
    auto = line(explained(4000, 3000, 2000, "--ranks", 4, "--gpus-per-node", 4), "transport peers")
    assert auto.endswith("host")
