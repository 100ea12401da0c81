# SPDX-License-Identifier: MIT
"""python -m hybrid.paths as users start it: the lecture's figures, the formats, what is refused; and how graphs are read."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import ROOT, module, own_lines, start, successful
from support.selection import examples, exhaustive

from hybrid.errors import DoesNotFit, UsageError
from hybrid.graphs import count_output
from hybrid.graphs.graph import read_graph
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

COMMAND = module("hybrid.paths")
TEN = ["AB", "AC", "BC", "BD", "BF", "CD", "CE", "DF", "EH", "FG", "FH", "FI", "GH", "GI", "GJ", "HJ", "IJ"]  # Figure 1.1
LETTERS = "ABCDEFGHIJ"

launcher = pytest.mark.launcher


def rows(text):
    return [list(map(int, line.split())) for line in text.strip().splitlines()]


FIGURES = {
    1: rows("""0 1 1 0 0 0 0 0 0 0
               1 0 1 1 0 1 0 0 0 0
               1 1 0 1 1 0 0 0 0 0
               0 1 1 0 0 1 0 0 0 0
               0 0 1 0 0 0 0 1 0 0
               0 1 0 1 0 0 1 1 1 0
               0 0 0 0 0 1 0 1 1 1
               0 0 0 0 1 1 1 0 0 1
               0 0 0 0 0 1 1 0 0 1
               0 0 0 0 0 0 1 1 1 0"""),  # Figure 1.5, and the left factor of 1.6 and 1.8
    2: rows("""2 1 1 2 1 1 0 0 0 0
               1 4 2 2 1 1 1 1 1 0
               1 2 4 1 0 2 0 1 0 0
               2 2 1 3 1 1 1 1 1 0
               1 1 0 1 2 1 1 0 0 1
               1 1 2 1 1 5 2 1 1 3
               0 1 0 1 1 2 4 2 2 2
               0 1 1 1 0 1 2 4 3 1
               0 1 0 1 0 1 2 3 3 1
               0 0 0 0 1 3 2 1 1 3"""),  # the right factor of Figure 1.8
    3: rows("""2 6 6 3 1 3 1 2 1 0
               6 6 8 7 3 9 3 3 2 3
               6 8 4 8 5 4 3 2 2 1
               3 7 8 4 2 8 3 3 2 3
               1 3 5 2 0 3 2 5 3 1
               3 9 4 8 3 6 10 11 10 4
               1 3 3 3 2 10 8 9 8 8
               2 3 2 3 5 11 9 4 4 9
               1 2 2 2 3 10 8 4 4 8
               0 3 1 3 1 4 8 9 8 4"""),  # Figure 1.2, and the right factor of 1.6
    4: rows("""12 14 12 15 8 13 6 5 4 4
               14 30 22 23 11 21 17 18 15 8
               12 22 27 16 6 23 9 13 8 7
               15 23 16 23 11 19 16 16 14 8
               8 11 6 11 10 15 12 6 6 10
               13 21 23 19 15 48 31 23 20 31
               6 17 9 16 12 31 35 28 26 25
               5 18 13 16 6 23 28 34 29 17
               4 15 8 14 6 20 26 29 26 16
               4 8 7 8 10 31 25 17 16 25"""),  # Figure 1.7
}  # fmt: skip


def run(*arguments, **options):
    return start(COMMAND, *arguments, **options)


def good(*arguments, **options):
    return successful(run(*arguments, **options))


def shown(done):
    """The names above the matrix, those before it, and its numbers."""
    head, *lines = (line.split() for line in done.stdout.splitlines())
    return head[1:], [line[0] for line in lines], [[int(number) for number in line[1:]] for line in lines]


# --- the lecture


@pytest.mark.parametrize("length", FIGURES)
def test_the_figures_matrices(length):
    assert shown(good("ten", "--length", length)) == (list(LETTERS), list(LETTERS), FIGURES[length])


def test_figure_1_3_a_row_times_a_column():
    (_, [vertex], [row]) = shown(good("ten", "--from", "C", "--length", 1))
    assert (vertex, row) == ("C", [1, 1, 0, 1, 1, 0, 0, 0, 0, 0])
    ([vertex], _, column) = shown(good("ten", "--to", "J", "--length", 3))
    assert (vertex, column) == ("J", [[0], [3], [1], [3], [1], [4], [8], [9], [8], [4]])
    assert sum(a * b for a, [b] in zip(row, column, strict=True)) == 7


def test_figures_1_6_and_1_8_are_products_of_the_matrices_shown():
    for length in (2, 3, 4):
        assert (np.array(FIGURES[1]) @ np.array(FIGURES[length - 1]) == FIGURES[length]).all()


@pytest.mark.parametrize(
    ("graph", "length", "tail", "head", "number"),
    [
        ("ten", 4, "C", "J", 7),  # Figure 1.4
        ("ten", 3, "C", "J", 1),
        ("ten", 4, "A", "J", 4),
        ("ten", 4, "2", "3", 22),  # practice 1: P(2,3), counted from 1
        ("ten", 4, "5", "5", 10),
        ("ten", 4, "10", "10", 25),
        ("five", 8, "A", "B", 208),  # question 1
    ],
)
def test_the_numbers_asked_for(graph, length, tail, head, number):
    assert good(graph, "--length", length, "--from", tail, "--to", head).stdout == f"{number}\n"


def test_question_1_s_matrix():
    _, names, matrix = shown(good("five", "--length", 4))
    assert names == list("ABCDE")
    assert matrix == [[9, 3, 6, 11, 1], [3, 15, 8, 7, 11], [6, 8, 8, 8, 6], [11, 7, 8, 15, 3], [1, 11, 6, 3, 9]]


def test_help_says_that_paths_may_repeat_vertices():
    text = " ".join(good("--help").stdout.split())
    assert 'A "path" is meant here as in the lecture: a walk, which may pass the same vertex and the same edge' in text


# --- the arithmetic, and ranks


def test_standard_error_tells_the_arithmetic():
    lines = good("ten", "--length", 4).stderr.splitlines()
    assert lines == [
        "hybrid.paths: ten: 10 vertices, 17 edges that go both ways",
        "hybrid.paths: every number stays below 2^53: exact in plain float64; 2 matrix products",
    ]
    (_, line) = good("five", "--length", 200, "--from", "A", "--to", "B").stderr.splitlines()
    assert re.fullmatch(
        r"hybrid\.paths: numbers up to 2\^\d+ outgrow float32 \(2\^24\), float64 \(2\^53\), int64 \(2\^63\); \d of 9 products in "
        r"plain float64, then exact modulo (\d+) primes of 2\d bits in float64, \1 at once, joined by the Chinese "
        r"remainder theorem; 9 matrix products", line)  # fmt: skip


def python_s(edges, names, length):
    matrix = np.array([[int(a + b in edges or b + a in edges) for b in names] for a in names], object)
    power = np.array([[int(a == b) for b in names] for a in names], object)
    for _ in range(length):
        power = power.dot(matrix)
    return power


@launcher
@pytest.mark.parametrize(
    ("ranks", "dtype"), exhaustive([(0, "float32"), (2, "float64")], itertools.product([0, 1, 2, 3], ["float32", "float64"]))
)
def test_long_paths_are_python_s_integers_on_any_number_of_ranks(ranks, dtype):
    done = good("ten", "--length", 100, "--from", "C", "--to", "J", "--dtype", dtype, "--threads", 1, ranks=ranks)
    assert int(done.stdout) == python_s(TEN, LETTERS, 100)[2, 9]
    assert len(done.stderr.splitlines()) == 2
    assert f"primes of {'8' if dtype == 'float32' else '24'} bits in {dtype}" in done.stderr


@launcher
def test_pretended_nodes_change_nothing():
    expected = good("ten", "--length", 60).stdout
    assert good("ten", "--length", 60, ranks=4, HYBRID_RANKS_PER_NODE="2", HYBRID_THREADS="1").stdout == expected


def test_tables_shorten_long_numbers_and_say_so(tmp_path):
    corner = good("five", "--length", 300, "--print", 1, "--out", tmp_path / "all.json").stdout.splitlines()
    (number,) = re.fullmatch(r"\s+A  (\d{8}…\d{8} \(\d+ digits\))", corner[1]).groups()
    whole = json.loads((tmp_path / "all.json").read_text())
    assert (whole["length"], whole["vertices"]) == (300, list("ABCDE"))
    exact = python_s(["AB", "AE", "BC", "BD", "CD", "DE"], "ABCDE", 300)
    assert [[int(text) for text in row] for row in whole["walks"]] == exact.tolist()
    text = str(exact[0, 0])
    assert number == f"{text[:8]}…{text[-8:]} ({len(text)} digits)"
    assert len(corner) == 2


def test_more_digits_than_python_prints_by_default(tmp_path):
    a, b = 0, 1
    for _ in range(30000):
        a, b = b, a + b
    with count_output.digits_unlimited():
        expected = str(a)
    assert len(expected) > 4300
    (tmp_path / "fibonacci.txt").write_text("a a\na b\nb a\n")
    done = good("fibonacci.txt", "--directed", "--length", 30000, "--from", "a", "--to", "b", "--threads", 1, cwd=tmp_path)
    assert done.stdout == expected + "\n"


# --- files

EDGES = "A B\nB C\n"
BOTH_WAYS = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
ONE_WAY = [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def read(tmp_path, text, name="graph.txt", form=None, *, directed=False, probabilities=False, memory=0):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_graph(str(path), form, directed=directed, probabilities=probabilities, memory=memory)


@pytest.mark.parametrize(
    ("text", "names", "matrix"),
    [
        (EDGES, "ABC", BOTH_WAYS),
        ("\ufeff# a comment\r\n\r\nB, A\r\nB,C # and one here\r\n", "ABC", BOTH_WAYS),
        ("2 10\n10 1\n", ["1", "2", "10"], [[0, 0, 1], [0, 0, 1], [1, 1, 0]]),
        ("A B 3\nC\n", "ABC", [[0, 3, 0], [3, 0, 0], [0, 0, 0]]),
        ("A A\nA B 9223372036854775807\n", "AB", [[1, 2**63 - 1], [2**63 - 1, 0]]),
        ("A B 2.0\nB C 1e3", "ABC", [[0, 2, 0], [2, 0, 1000], [0, 1000, 0]]),
    ],
)
def test_edge_lists(tmp_path, text, names, matrix):
    graph = read(tmp_path, text)
    assert (graph.names, graph.adjacency.tolist()) == (list(names), matrix)
    assert graph.adjacency.dtype == np.int64


def test_directed_edges_go_one_way(tmp_path):
    assert read(tmp_path, EDGES, directed=True).adjacency.tolist() == ONE_WAY
    graph = read(tmp_path, "A B\nB A\n", directed=True)
    assert graph.adjacency.tolist() == [[0, 1], [1, 0]]
    assert str(read(tmp_path, EDGES, directed=True)) == "3 vertices, 2 directed edges"
    assert str(read(tmp_path, "A B\n", directed=True)) == "2 vertices, 1 directed edge"
    assert str(read(tmp_path, "A B\n")) == "2 vertices, 1 edge that goes both ways"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0,1,0\n1,0,1\n0,1,0\n", "123"),
        ("0;1;0\n1;0;1\n0;1;0", "123"),
        ("0\t1\t0\n1\t0\t1\n\n0\t1\t0\n", "123"),
        ("a,b,c\n0,1,0\n1,0,1\n0,1,0\n", "abc"),
        (",a,b,c\na,0,1,0\nb,1,0,1\nc,0,1,0\n", "abc"),
        ("from/to,7,8,9\n7,0,1,0\n8,1,0,1\n9,0,1,0\n", "789"),
        ("a,0,1,0\nb,1,0,1\nc,0,1.0,0\n", "abc"),
        ("a,b,c\na,0,1,0\nb,1,0,1\nc,0,1,0\n", "abc"),
    ],
)
def test_csv_matrices(tmp_path, text, names):
    graph = read(tmp_path, text, "graph.csv")
    assert (graph.names, graph.adjacency.tolist()) == (list(names), BOTH_WAYS)


MATRIX_MARKET = "%%MatrixMarket matrix coordinate {} {}\n"


@pytest.mark.parametrize(
    ("text", "matrix"),
    [
        (MATRIX_MARKET.format("pattern", "symmetric") + "3 3 2\n2 1\n3 2\n", BOTH_WAYS),
        (MATRIX_MARKET.format("integer", "general") + "3 3 2\n1 2 1\n2 3 1\n", ONE_WAY),
        (MATRIX_MARKET.format("real", "general") + "3 3 2\n1 2 1.0\n2 3 1e0\n", ONE_WAY),
        ("%%MatrixMarket matrix array integer general\n2 2\n0\n3\n1\n0\n", [[0, 1], [3, 0]]),
    ],
)
def test_matrix_market(tmp_path, text, matrix):
    graph = read(tmp_path, text, "graph.mtx")
    assert graph.adjacency.tolist() == matrix
    assert graph.names == [str(number + 1) for number in range(len(matrix))]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.uint64, np.float32, ">f8", np.int64])
def test_npy(tmp_path, dtype):
    np.save(tmp_path / "graph.npy", np.asfortranarray(np.array(ONE_WAY, dtype)))
    graph = read_graph(str(tmp_path / "graph.npy"), None, directed=False, probabilities=False)
    assert graph.adjacency.tolist() == ONE_WAY
    assert graph.adjacency.dtype == np.int64


def npy(array, **options):
    import io

    file = io.BytesIO()
    np.save(file, np.array(array), **options)
    return file.getvalue()


REFUSED = [
    ("g.txt", "", "it has no vertices"),
    ("g.txt", "A B x", "line 1: 'x' is not a number"),
    ("g.txt", "A B\nA B C D", "line 2: 4 words, where FROM TO or FROM TO NUMBER is expected"),
    ("g.txt", "A B\nB A", "line 2: repeats the edge of line 1.*a list that names both ways is for --directed"),
    ("g.txt", "A B -1", "line 1: -1 is no number of edges"),
    ("g.txt", "A B 0.5", "line 1: 0.5 is not a whole number of edges .probabilities are for --stochastic."),
    ("g.txt", "A B 9223372036854775808", "is no number of edges: 0 to 2^63-1"),
    ("g.txt", "A B nan", "'nan' is not a number"),
    ("g.txt", b"\xff\xfe\x00A", "cannot be read as edges: it is no text"),
    ("g.csv", "", "it has no vertices"),
    ("g.csv", "0,1\n1\n", "line 2 has 1 numbers, but there are 2 rows: the matrix must be square"),
    ("g.csv", "0,1,1\n1,0,1\n", "line 1 has 3 numbers, but there are 2 rows"),
    ("g.csv", "0,1\n1,x\n", "line 2: 'x' is not a number"),
    ("g.csv", "0,x,1\n1,0,1\n1,1,0\n", "differ|must be square"),
    ("g.csv", "0,1\nx,0\n", "line 2: 'x' is not a number"),
    ("g.csv", "0,0,1\n1,1,0\n", "line 1 has 3 numbers, but there are 2 rows"),
    ("g.csv", "0,1\n1,0\n1,1\n", "line 1 has 2 numbers, but there are 3 rows"),
    ("g.csv", "a,b\nb,0,1\na,1,0\n", "the names above the matrix and before it differ"),
    ("g.csv", "a,a\n0,1\n1,0\n", "two vertices have the same name"),
    ("g.csv", "0,-1\n1,0\n", "line 1: -1 is no number of edges"),
    ("g.csv", "0,1.5\n1,0\n", "line 1: 1.5 is not a whole number"),
    ("g.csv", "0,1e400\n1,0\n", "line 1: 1e400 is not a whole number"),
    ("g.csv", "\x00", "must be square|not a number|cannot be read"),
    ("g.mtx", "nothing of the kind", "it is malformed|no Matrix Market file"),
    ("g.mtx", MATRIX_MARKET.format("integer", "general") + "2 3 1\n1 1 1\n", "not a square matrix: its shape is 2×3"),
    (
        "g.mtx",
        MATRIX_MARKET.format("integer", "general") + "2 2 1\n1 2 -1\n",
        "row 1, column 2 is -1: edges are counted from 0 up",
    ),
    ("g.mtx", MATRIX_MARKET.format("real", "general") + "2 2 1\n1 2 0.5\n", "row 1, column 2 is 0.5: a whole number"),
    ("g.mtx", MATRIX_MARKET.format("complex", "general") + "2 2 1\n1 2 1 0\n", "it holds complex numbers"),
    ("g.mtx", MATRIX_MARKET.format("integer", "general") + "2 2 2\n1 2 1\n1 2 1\n", "names the same element twice"),
    ("g.mtx", MATRIX_MARKET.format("integer", "general") + "2 2 2\n1 2 1\n", "it is cut short: 1 more line must follow"),
    ("g.mtx", "%%MatrixMarket matrix array integer general\n0 0\n", "it has no vertices"),  # which SciPy divides by
    ("g.npy", b"not numpy", "is no .npy file: it does not begin like one"),
    ("g.npy", npy([[object()]], allow_pickle=True), "holds Python objects: matrices of numbers are read"),
    ("g.npy", npy([1, 2]), r"does not hold a matrix: its shape is \(2,\)"),
    ("g.npy", npy([[1j]]), "holds complex128: walks are counted with real numbers"),
    ("g.npy", npy([[1, 2]]), "not a square matrix: its shape is 1×2"),
    ("g.npy", npy(np.zeros((0, 0))), "it has no vertices"),
    ("g.npy", npy([["a"]]), "holds <U1: only numbers"),
    ("g.npy", npy([[np.inf]]), "row 1, column 1 is inf"),
    ("g.npy", npy([[np.nan]]), "row 1, column 1 is nan"),
    ("g.npy", npy([[0.0, 2.0**54], [0, 0]]), "row 1, column 2 is 1.8.*: float64 may have rounded it"),
    ("g.npy", npy(np.array([[2**63]], np.uint64)), "more than 2^63-1 edges"),
]


@pytest.mark.parametrize(("name", "content", "said"), REFUSED)
def test_what_is_no_graph_is_refused(tmp_path, name, content, said):
    with pytest.raises(UsageError, match=said.replace("^", r"\^")) as refusal:
        read(tmp_path, content, name)
    assert str(refusal.value).startswith(str(tmp_path / name))
    assert "\n" not in str(refusal.value)


def test_matrices_that_do_not_fit_are_refused_before_they_are_made(tmp_path):
    for name, text in (("g.txt", EDGES), ("g.csv", "0,1\n1,0\n"), ("g.npy", npy(np.eye(3))),
                       ("g.mtx", MATRIX_MARKET.format("pattern", "general") + "900000 900000 1\n1 2\n")):  # fmt: skip
        with pytest.raises(DoesNotFit, match="100 B are free: use a "):
            read(tmp_path, text, name, memory=100)


def test_without_scipy_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(UsageError, match=r"are read by SciPy: pip install .*\[graphs\]'"):
        read(tmp_path, MATRIX_MARKET.format("pattern", "general") + "1 1 0\n", "g.mtx")


def test_format_overrules_the_name(tmp_path):
    assert read(tmp_path, EDGES, "graph.csv", "edges").adjacency.tolist() == BOTH_WAYS
    with pytest.raises(UsageError, match="--directed is for edge lists"):
        read(tmp_path, "0,1\n1,0\n", "graph.txt", "csv", directed=True)


@examples(60)
@given(
    st.binary(max_size=60) | st.text("01,;x \n#-.AB", max_size=40).map(str.encode), st.sampled_from(["txt", "csv", "npy", "mtx"])
)
def test_any_bytes_are_a_graph_or_refused(tmp_path_factory, content, ending):
    try:
        graph = read(tmp_path_factory.getbasetemp(), content, f"any.{ending}")
    except UsageError as error:
        refused = str(error)
    else:
        refused = ""
        assert graph.adjacency.shape == (len(graph.names),) * 2
        assert (graph.adjacency >= 0).all()
    assert "\n" not in refused


@pytest.mark.parametrize("ending", ["csv", "json", "npy"])
def test_what_is_written_can_be_read(tmp_path, ending):
    path = tmp_path / f"four.{ending}"
    path.write_text("old")
    good("ten", "--length", 4, "--out", path)
    if ending == "json":
        assert [list(map(int, row)) for row in json.loads(path.read_text())["walks"]] == FIGURES[4]
        return
    graph = read_graph(str(path), None, directed=False, probabilities=False)
    assert graph.adjacency.tolist() == FIGURES[4]
    assert graph.names == (list(LETTERS) if ending == "csv" else [str(n) for n in range(1, 11)])


def test_npy_is_refused_where_int64_does_not_hold_the_numbers(tmp_path):
    done = run("ten", "--length", 60, "--out", tmp_path / "c.npy")
    assert done.returncode == 2
    assert "bits, .npy holds int64: use .csv or .json" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    good("ten", "--length", 60, "--out", tmp_path / "c.csv")
    last = (tmp_path / "c.csv").read_text().splitlines()[-1].split(",")
    assert [int(number) for number in last[1:]] == python_s(TEN, LETTERS, 60)[9].tolist()


def test_large_graphs_show_their_corner(tmp_path):
    np.save(tmp_path / "g.npy", np.ones((30, 30), np.int8))
    done = good(tmp_path / "g.npy", "--length", 3, "--print", 4)
    assert shown(done) == (list("1234"), list("1234"), [[900] * 4] * 4)
    assert "the first 4 of 30 vertices are shown: --out FILE writes all" in done.stderr


# --- wrong usage

WRONG = [
    (["ten"], "--length"),
    (["ten", "--length", "x"], "'x' is not a whole number"),
    (["ten", "--length", "-1"], "too small|expected one argument"),
    (["ten", "--length", "4", "--from", "K"], "unknown vertex 'K': one of A, B, C"),
    (["ten", "--length", "4", "--from", "11"], "unknown vertex '11'"),
    (["ten", "--length", "4", "--to", "0"], "unknown vertex '0'"),
    (["eleven", "--length", "4"], "eleven: there is no such file; the example graphs are ten and five"),
    (["ten", "--length", "4", "--dtype", "float16"], "unknown dtype 'float16'"),
    (["ten", "--length", "4", "--format", "xml"], "unknown format 'xml'"),
    (["ten", "--length", "4", "--directed"], "--directed is for edge lists"),
    (["ten", "--length", "4", "--out", "c.txt"], "the name must end in .npy, .csv, .json"),
    (["ten", "--length", "4", "--out", "none/c.csv"], "there is no folder"),
    (["ten", "--length", "4", "--out", "c.csv", "--from", "A"], "--out writes the whole matrix"),
    (["ten", "--length", "4", "--stochastic"], "the probabilities from .* add up to"),
    (["ten", "--length", "1000000000000"], "more primes than"),
    (["ten", "--length", "4", "--kernel", "blass"], "unknown kernel 'blass'"),
    (["ten", "--length", "4", "--lenght", "4"], "unknown option --lenght: did you mean --length?"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_usage_is_one_line_and_exit_2(arguments, said, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(said.replace("?", r"\?"), done.stderr.splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr
    assert len(own_lines(done.stderr)) == len(done.stderr.splitlines())


@launcher
@pytest.mark.parametrize("arguments", [["none.csv"], ["ten", "--from", "K"], ["ten", "--dtype", "float16"]])
def test_wrong_usage_under_mpirun_is_said_once(arguments, tmp_path):
    done = run(*arguments, "--length", 4, ranks=3, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(own_lines(done.stderr)) == 1


@launcher
def test_ranks_started_differently_are_named():
    command = [*mpirun(1), *COMMAND, "ten", "--length", "4", ":", "-n", "1", *COMMAND, "ten", "--length", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = own_lines(done.stderr)
    assert "rank 1 asks for length 5, rank 0 for 4" in line


def test_more_memory_than_there_is_is_refused():
    done = run("ten", "--length", 10**6, HYBRID_HOST_MEMORY="10m")
    assert done.returncode == 1
    assert re.search(r"100 numbers of up to \d+ bits take about .* 10.0 MiB are free: ask for fewer", done.stderr)


@launcher
@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("length", [5, 300])
def test_a_wrong_product_is_noticed(tmp_path, ranks, length):
    program = tmp_path / "wrong.py"
    program.write_text(
        "import sys, numpy, hybrid.devices.cpu, hybrid.commands.paths\n"
        "def wrong(a, b, c):\n"
        "    numpy.matmul(a, b, out=c)\n"
        "    c[0, 0] += 1\n"
        "hybrid.devices.cpu.blas = wrong\n"
        "sys.exit(hybrid.commands.paths.main())\n"
    )
    done = subprocess.run(
        [*(mpirun(ranks) if ranks else []), sys.executable, program, "ten", "--length", str(length), "--device", "cpu"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert "the product is wrong" in own_lines(done.stderr)[-1]


# --- records, probabilities


def test_runs_are_recorded(tmp_path):
    path = tmp_path / "runs.jsonl"
    good("ten", "--length", 4, "--from", "C", "--to", "J", "--json", path)
    good("five", "--length", 100, "--json", path)
    first, second = jsonl.read(str(path))
    assert {name: first[name] for name in ("command", "graph", "length", "from", "to", "vertices", "result", "products")} == {
        "command": "paths", "graph": "ten", "length": 4, "from": "C", "to": "J", "vertices": 10, "result": "7", "products": 2,
    }  # fmt: skip
    assert (second["result"], second["ranks"]) == (None, 1)
    assert "Chinese remainder theorem" in second["arithmetic"]
    done = good("ten", "--length", 4, "--from", "C", "--to", "J", "--json", "-")
    assert json.loads(done.stdout)["result"] == "7"
    assert done.stderr.splitlines()[-1] == "7"


CHAIN = "sun sun 0.9\nsun rain 0.1\nrain sun 0.5\nrain rain 0.5\n"


@launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_markov_chain(tmp_path, ranks):
    (tmp_path / "weather.txt").write_text(CHAIN)
    done = good("weather.txt", "--stochastic", "--length", 3, "--from", "sun", "--to", "rain", ranks=ranks, cwd=tmp_path)
    assert float(done.stdout) == pytest.approx(0.1 * (1 + 0.4 + 0.16), rel=1e-14)
    assert re.search(r"float64, relative error of each probability at most \d\.\de-15; 2 matrix products", done.stderr)
    done = good("weather.txt", "--stochastic", "--length", 100, "--out", "after.npy", cwd=tmp_path, ranks=ranks)
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["rain", "0.166667", "0.833333"],
        ["sun", "0.166667", "0.833333"],
    ]
    np.testing.assert_allclose(np.load(tmp_path / "after.npy"), [[1 / 6, 5 / 6]] * 2)


def test_probabilities_that_do_not_add_up_name_the_vertex(tmp_path):
    (tmp_path / "weather.txt").write_text(CHAIN.replace("0.1", "0.2"))
    done = run("weather.txt", "--stochastic", "--length", 3, cwd=tmp_path)
    assert done.returncode == 2
    assert "the probabilities from sun add up to 1.1, not to 1" in done.stderr
    (tmp_path / "weather.txt").write_text("a a\n")
    assert "FROM TO PROBABILITY is expected" in run("weather.txt", "--stochastic", "--length", 3, cwd=tmp_path).stderr


def test_the_command_loads_no_numpy():
    """Its BLAS would have started its threads before they are settled."""
    program = "import sys, hybrid.paths; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 0


def test_the_examples_are_installed():
    assert re.search(r"^hybrid\.graphs = examples/\*", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
