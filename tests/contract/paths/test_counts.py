# SPDX-License-Identifier: MIT
"""docs/learn.md, Counting paths, exactly: the lecture's figures; any power of any matrix is that of Python's integers, on any
number of ranks and at any length; a wrong product is noticed."""

import json
import sys
from decimal import Decimal

import numpy as np
import pytest
from support.commands import ROOT, module, own_lines, start, successful
from support.forked import quickly
from support.selection import exhaustive

PATHS = module("hybrid.paths")
TEN = ["AB", "AC", "BC", "BD", "BF", "CD", "CE", "DF", "EH", "FG", "FH", "FI", "GH", "GI", "GJ", "HJ", "IJ"]  # figure 1.1
launcher = pytest.mark.launcher


def run(*arguments, **options):
    return quickly(PATHS, *arguments, limit=240, **options)


def shown(done):
    """The names above the matrix, those before it, and its numbers."""
    head, *lines = (line.split() for line in successful(done).stdout.splitlines())
    return head[1:], [line[0] for line in lines], [[int(number) for number in line[1:]] for line in lines]


def adjacency(edges, names):
    return np.array([[int(a + b in edges or b + a in edges) for b in names] for a in names], object)


def power(matrix, length):
    """By Python's integers."""
    matrix = np.array(matrix, object)
    result, square = np.array([[int(i == j) for j in range(len(matrix))] for i in range(len(matrix))], object), matrix
    while length:
        result = result.dot(square) if length & 1 else result
        square, length = square.dot(square), length >> 1
    return result


def counted(folder, matrix, length, *options, **more):
    """All counts, from a file of the matrix."""
    np.savetxt(folder / "graph.csv", np.array(matrix, object), fmt="%d", delimiter=",")
    successful(run("graph.csv", "--length", length, "--out", "counts.json", *options, cwd=folder, **more))
    return np.array([[int(each) for each in row] for row in json.loads((folder / "counts.json").read_text())["walks"]], object)


# --- the lecture


@pytest.mark.parametrize("length", exhaustive([4], [1, 2, 3, 4]))
def test_the_figures_matrices(length):
    """Figures 1.5, 1.8, 1.2 and 1.7."""
    names = list("ABCDEFGHIJ")
    found = shown(run("ten", "--length", length))
    assert found == (names, names, power(adjacency(TEN, names), length).tolist())
    if length == 4:
        assert found[2][0] == [12, 14, 12, 15, 8, 13, 6, 5, 4, 4]  # as printed there


def test_the_numbers_asked_for():
    """Figure 1.4's 7 paths from C to J with the sum that they are, and question 1's 208. Vertices by name or counted from 1."""
    done = successful(run("ten", "--length", 4, "--from", "C", "--to", 10, "--list", "--terms"))
    number, *rest = done.stdout.splitlines()
    assert number == "7"
    assert rest[:7] == ["C-B-F-G-J", "C-B-F-H-J", "C-B-F-I-J", "C-D-F-G-J", "C-D-F-H-J", "C-D-F-I-J", "C-E-H-G-J"]
    _, *table, total, last = rest[7:]
    row, column = [1, 1, 0, 1, 1, 0, 0, 0, 0, 0], [0, 3, 1, 3, 1, 4, 8, 9, 8, 4]  # figure 1.3
    assert [line.split() for line in table] == [
        [name, str(one), str(more), str(one * more)] for name, one, more in zip("ABCDEFGHIJ", row, column, strict=True)
    ]
    assert total.split() == ["sum", "7"]
    assert last == "1·0 + 1·3 + 0·1 + 1·3 + 1·1 + 0·4 + 0·8 + 0·9 + 0·8 + 0·4 = 7"
    assert successful(run("five", "--length", 8, "--from", "A", "--to", "B")).stdout == "208\n"


def test_a_vertex_that_is_not_there_is_refused_beside_those_that_are(tmp_path):
    (tmp_path / "g.txt").write_text("".join(f"v{number} v{number + 1}\n" for number in range(21)))
    for graph, there in (("five", "A, B, C, D, E"), ("g.txt", "the 22 from v0 to v9")):
        done = run(graph, "--length", 2, "--from", "X", cwd=tmp_path)
        (line,) = own_lines(done.stderr)
        assert (done.returncode, done.stdout) == (2, "")
        assert "'X'" in line
        assert there in line


# --- exact arithmetic


def test_numbers_are_exact_just_below_and_beyond_what_float64_holds(tmp_path):
    """3^k and its neighbours, which no rounding would leave as they are."""
    matrix = np.array([[3, 1], [0, 2]])
    for length in (int(53 / 1.585) - 1, int(53 / 1.585) + 1):
        assert (counted(tmp_path, matrix, length) == power(matrix, length)).all()


def test_a_cycle_s_numbers_do_not_grow_at_any_length(tmp_path):
    length = 10**90
    found = counted(tmp_path, np.eye(3, dtype=int)[[1, 2, 0]], length)  # length % 3 is 1
    assert found.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


@launcher
@pytest.mark.parametrize(
    ("ranks", "options"),
    exhaustive([(2, {})], [(0, {}), (2, {}), (3, {}), (4, {"HYBRID_RANKS_PER_NODE": "2", "HYBRID_THREADS": "1"})]),
)
def test_any_number_of_ranks_and_nodes_counts_the_same(tmp_path, ranks, options):
    """And more digits than Python prints by default are printed."""
    (tmp_path / "g.txt").write_text("A B 999999999\nB C 999999998\nA C 7\n")
    asked = ("g.txt", "--length", 500, "--from", "A", "--to", "B", "--threads", 1)
    done = successful(run(*asked, ranks=ranks, cwd=tmp_path, **options))
    number = power([[0, 999999999, 7], [999999999, 0, 999999998], [7, 999999998, 0]], 500)[0, 1]
    assert len(done.stdout) > 4301
    assert Decimal(done.stdout) == number


@launcher
@pytest.mark.parametrize(("ranks", "length"), exhaustive([(0, 300), (2, 5)], [(0, 5), (0, 300), (2, 5), (2, 300)]))
def test_a_wrong_product_is_noticed(ranks, length):
    """A multiplication that writes one element wrongly, in plain arithmetic and modulo primes."""
    planted = [*module("hybrid.testing"), "--plant", "multiply at=0 times=1 how=element", *PATHS[1:]]
    done = quickly(planted, "ten", "--length", length, "--device", "cpu", ranks=ranks, limit=240)
    assert (done.returncode, done.stdout) == (3, "")
    assert "[check-product]" in own_lines(done.stderr)[-1]


# --- On GPUs

ON_GPUS = ROOT / "tests/support/on_gpus.py"


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    ("size", "length", "largest", "ranks", "copies"),
    [
        (40, 16, 2, 0, 1),  # 2^53 holds all numbers
        pytest.param(40, 16, 2, 2, 1, marks=launcher),
        pytest.param(260, 2, 1 << 26, 0, 4, marks=pytest.mark.exhaustive),  # modulo four primes, one after the other
    ],
)
def test_powers_stay_on_the_gpu(rng, tmp_path, size, length, largest, ranks, copies):
    """Of all products' operands and results, the first operand and the last result alone are copied; and, where a GPU's sums
    would not be exact, what the host checks."""
    matrix = rng.integers(0, largest, (size, size)) * (rng.random((size, size)) < 2 / size)
    np.save(tmp_path / "graph.npy", matrix)
    words = f"paths:graph.npy:--length:{length}:--device:cuda:--out:counts.json"
    command = [sys.executable, "-m", "hybrid.testing", "--gpus", str(max(1, ranks)), ON_GPUS, words]
    done = successful(start(command, ranks=ranks, cwd=tmp_path, HYBRID_GUARD="0"))
    found = json.loads((tmp_path / "counts.json").read_text())["walks"]
    assert [[int(each) for each in row] for row in found] == power(matrix, length).tolist()
    of_ranks = json.loads(done.stdout.splitlines()[-1])
    crossed = [each["crossed"] for each in of_ranks]
    for name in ("copied_in", "copied_out"):
        assert sum(each[name] for each in crossed) == 0, crossed
    for name, most in (("asarray", 2 * copies), ("asnumpy", 1 if copies == 1 else 4 * copies)):
        assert sum(each.get(name, 0) for each in crossed) <= most * matrix.nbytes, crossed
    assert sum(each["multiplied"] for each in of_ranks) >= (copies if copies > 1 else 4)
