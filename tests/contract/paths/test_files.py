# SPDX-License-Identifier: MIT
"""Graphs in files: each format is read as `--help` says, what is no graph is refused with its line, what is too large before
memory is taken; and what is written can be read."""

import io
import json
import re

import numpy as np
import pytest
from support.commands import module, own_lines, start, successful
from support.forked import quickly
from support.matmul import names_in
from support.selection import exhaustive

PATHS = module("hybrid.paths")
BOTH_WAYS, ONE_WAY = [[0, 1, 0], [1, 0, 1], [0, 1, 0]], [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
MTX = "%%MatrixMarket matrix coordinate {} {}\n"


def run(*arguments, **options):
    return quickly(PATHS, *arguments, limit=240, **options)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, np.array(array), **options)
    return file.getvalue()


def written(folder, name, content):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


# A file, options, and the graph: names and edges.
READ = {
    "edges": ("g.txt", "A B\nB C\n", [], "ABC", BOTH_WAYS),
    "edges with comments and commas": ("g.txt", "\ufeff# a comment\r\n\r\nB, A\r\nB,C # and one here\r\n", [], "ABC", BOTH_WAYS),
    "numbers are sorted as numbers": ("g.txt", "2 10\n10 1\n", [], ["1", "2", "10"], [[0, 0, 1], [0, 0, 1], [1, 1, 0]]),
    "parallel edges, and a vertex alone": ("g.txt", "A B 3\nC\nA A\n", [], "ABC", [[1, 3, 0], [3, 0, 0], [0, 0, 0]]),
    "the most edges": ("g.txt", "A B 9223372036854775807\n", [], "AB", [[0, 2**63 - 1], [2**63 - 1, 0]]),
    "floating point": ("g.txt", "A B 2.0\nB C 1e3", [], "ABC", [[0, 2, 0], [2, 0, 1000], [0, 1000, 0]]),
    "directed": ("g.txt", "A B\nB C\n", ["--directed"], "ABC", ONE_WAY),
    "directed both ways": ("g.txt", "A B\nB A\n", ["--directed"], "AB", [[0, 1], [1, 0]]),
    "a name is no number": ("g.txt", "1 1000000000000\n", [], ["1", "1000000000000"], [[0, 1], [1, 0]]),
    "npy, the most of float32": ("g.npy", npy(np.array([[0, 2**24], [0, 0]], "f4")), [], "12", [[0, 2**24], [0, 0]]),
    "csv": ("g.csv", "0,1,0\n1,0,1\n0,1,0\n", [], "123", BOTH_WAYS),
    "csv by semicolons": ("g.csv", "0;1;0\n1;0;1\n0;1;0", [], "123", BOTH_WAYS),
    "tsv": ("g.tsv", "0\t1\t0\n1\t0\t1\n\n0\t1\t0\n", [], "123", BOTH_WAYS),
    "csv without a corner": ("g.csv", "a,b,c\na,0,1,0\nb,1,0,1\nc,0,1.0,0\n", [], "abc", BOTH_WAYS),
    "csv with names around": ("g.csv", "from/to,7,8,9\n7,0,1,0\n8,1,0,1\n9,0,1,0\n", [], "789", BOTH_WAYS),
    "another format than the ending": ("g.csv", "A B\nB C\n", ["--format", "edges"], "ABC", BOTH_WAYS),
    "mtx, symmetric": ("g.mtx", MTX.format("pattern", "symmetric") + "3 3 2\n2 1\n3 2\n", [], "123", BOTH_WAYS),
    "mtx, real": ("g.mtx", MTX.format("real", "general") + "3 3 2\n1 2 1.0\n2 3 1e0\n", [], "123", ONE_WAY),
    "mtx, array": ("g.mtx", "%%MatrixMarket matrix array integer general\n2 2\n0\n3\n1\n0\n", [], "12", [[0, 1], [3, 0]]),
    **{
        f"npy, {dtype}": ("g.npy", npy(np.asfortranarray(np.array(ONE_WAY, dtype))), [], "123", ONE_WAY)
        for dtype in ("bool", "uint8", "uint64", ">f8", "float32")
    },
}


@pytest.mark.parametrize(
    "name",
    exhaustive(
        ["edges with comments and commas", "parallel edges, and a vertex alone", "directed", "csv with names around",
         "mtx, symmetric", "npy, >f8"],
        READ,
    ),
)  # fmt: skip
def test_a_graph_is_read(tmp_path, name):
    """Paths of length 1 are the edges."""
    file, content, options, names, edges = READ[name]
    if file.endswith("mtx"):
        pytest.importorskip("scipy.io")
    written(tmp_path, file, content)
    successful(run(file, "--length", 1, *options, "--out", "edges.json", cwd=tmp_path))
    read = json.loads((tmp_path / "edges.json").read_text())
    assert (read["vertices"], [[int(each) for each in row] for row in read["walks"]]) == (list(names), edges)


# A file that is none, its code, and the line of the file that is named.
REFUSED = {
    "nothing": ("g.txt", "", "graph", 0), "no number": ("g.txt", "A B\nB C x", "graph", 2),
    "four words": ("g.txt", "A B\nA B C D", "graph", 2), "an edge twice": ("g.txt", "A B\nB A", "graph", 2),
    "a negative number": ("g.txt", "A B -1", "graph", 1), "half an edge": ("g.txt", "A B 0.5", "graph", 1),
    "too many edges": ("g.txt", "A B 9223372036854775808", "graph", 1), "not a number": ("g.txt", "A B nan", "graph", 1),
    "no text": ("g.txt", b"\xff\xfe\x00A", "graph", 0), "a row too short": ("g.csv", "0,1\n1\n", "graph", 2),
    "a column too many": ("g.csv", "0,1,1\n1,0,1\n", "graph", 1), "no number in csv": ("g.csv", "0,1\n1,x\n", "graph", 2),
    "names that differ": ("g.csv", "a,b\nb,0,1\na,1,0\n", "graph", 0),
    "a name twice": ("g.csv", "a,a\na,0,1\na,1,0\n", "graph", 0),
    "a fraction": ("g.csv", "0,1.5\n1,0\n", "graph", 1), "infinity": ("g.csv", "0,1e400\n1,0\n", "graph", 1),
    "no Matrix Market": ("g.mtx", "nothing of the kind", "file-format", 0),
    "not square": ("g.mtx", MTX.format("integer", "general") + "2 3 1\n1 1 1\n", "graph", 0),
    "complex": ("g.mtx", MTX.format("complex", "general") + "2 2 1\n1 2 1 0\n", "graph", 0),
    "an element twice": ("g.mtx", MTX.format("integer", "general") + "2 2 2\n1 2 1\n1 2 1\n", "file-format", 0),
    "cut short": ("g.mtx", MTX.format("integer", "general") + "2 2 2\n1 2 1\n", "file-format", 0),
    "no npy": ("g.npy", b"not numpy", "file-format", 0),
    "objects": ("g.npy", npy([[object()]], allow_pickle=True), "no-numbers", 0),
    "a vector": ("g.npy", npy([1, 2]), "dimensions", 0), "complex numbers": ("g.npy", npy([[1j]]), "graph", 0),
    "words": ("g.npy", npy([["a"]]), "no-numbers", 0), "nan": ("g.npy", npy([[np.nan]]), "graph", 0),
    "rounded": ("g.npy", npy([[0.0, 2.0**54], [0, 0]]), "graph", 0),
    "beyond int64": ("g.npy", npy(np.array([[2**63]], np.uint64)), "graph", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", exhaustive(["an edge twice", "a row too short", "cut short", "objects", "rounded"], REFUSED))
def test_what_is_no_graph_is_refused_with_its_line(tmp_path, name):
    file, content, code, line = REFUSED[name]
    if file.endswith("mtx"):
        pytest.importorskip("scipy.io")
    done = run(written(tmp_path, file, content), "--length", 1, cwd=tmp_path)
    (said,) = own_lines(done.stderr)
    named = re.search(r"\bline (\d+)", said)
    assert (done.returncode, done.stdout, said.endswith(f"[{code}]")) == (2, "", True), said
    assert (int(named[1]) if named and line else line) == line
    assert file in said
    assert "1 numbers" not in said


# What a file promises is more than 8 MiB of memory, which HYBRID_HOST_MEMORY says there are.
TOO_LARGE = {
    "vertices": ("far.mtx", MTX.format("integer", "general") + f"{10**12} {10**12} 1\n1 {10**12} 1\n", "host-memory"),
    "entries": ("many.mtx", MTX.format("integer", "general") + "3 3 1000000000\n1 1 1\n", "file-format"),
    "a full matrix": ("full.mtx", "%%MatrixMarket matrix array integer general\n1000000 1000000\n1\n", "host-memory"),
    "columns": ("wide.csv", "1," * 1_000_000 + "1\n", "host-memory"),
    "rows": ("tall.csv", "0\n" * 1_000_000, "graph"),
    "names": ("names.txt", "".join(f"a{number} b{number}\n" for number in range(60_000)), "host-memory"),
    "a line": ("line.txt", "a " * 1_000_000, "graph"),
    "the file": ("large.txt", "#" + "x" * (9 << 20), "host-memory"),
}


@pytest.mark.parametrize("name", exhaustive(["vertices", "names"], TOO_LARGE))
def test_what_is_too_large_is_refused_before_memory_is_taken(tmp_path, name):
    """With little address space left: more would end with another code."""
    file, content, code = TOO_LARGE[name]
    if file.endswith("mtx"):
        pytest.importorskip("scipy.io")
    limited = ["bash", "-c", 'ulimit -v 2000000; exec "$@"', "bash", *PATHS, written(tmp_path, file, content), "--length"]
    done = start(limited, 1, cwd=tmp_path, limit=240, HYBRID_HOST_MEMORY="8m", OPENBLAS_NUM_THREADS="1")
    assert own_lines(done.stderr)[-1].endswith(f"[{code}]"), done.stderr
    assert done.returncode in (1, 2)


def test_more_numbers_than_memory_holds_are_refused():
    done = run("ten", "--length", 10**6, HYBRID_HOST_MEMORY="10m")
    assert (done.returncode, done.stdout) == (1, "")
    assert own_lines(done.stderr)[-1].endswith("[host-memory]")


@pytest.mark.parametrize("ending", exhaustive(["csv"], ["csv", "npy", "json"]))
def test_what_is_written_can_be_read(tmp_path, ending):
    """The counts of length 4 as a graph: its paths of length 2 are those of length 8. What was there is replaced."""
    written(tmp_path, f"four.{ending}", "old")
    successful(run("ten", "--length", 4, "--out", f"four.{ending}", cwd=tmp_path))
    successful(run("ten", "--length", 8, "--out", "eight.npy", cwd=tmp_path))
    if ending == "json":
        found = np.array([[int(each) for each in row] for row in json.loads((tmp_path / "four.json").read_text())["walks"]])
        assert (found @ found == np.load(tmp_path / "eight.npy")).all()
    else:
        successful(run(f"four.{ending}", "--length", 2, "--out", "again.npy", cwd=tmp_path))
        assert (np.load(tmp_path / "again.npy") == np.load(tmp_path / "eight.npy")).all()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".") or "tmp" in path.name]


def test_npy_is_refused_where_int64_does_not_hold_the_numbers(tmp_path):
    written(tmp_path, "edge.txt", "A B 3037000500\n")  # whose square is 2^63 and a few
    done = run("edge.txt", "--length", 2, "--out", "c.npy", cwd=tmp_path)
    assert (done.returncode, own_lines(done.stderr)[-1].rpartition(" ")[2]) == (2, "[dtype]")
    assert names_in(tmp_path) == ["edge.txt"]


def test_npy_is_refused_before_a_product_where_int64_surely_does_not_hold_the_numbers(tmp_path):
    """The heading comes after the refusal. Not where only the bound exceeds int64: the last power of a path graph is zero."""
    done = run("ten", "--length", 10**4, "--out", "c.npy", cwd=tmp_path)
    assert (done.returncode, [line.rpartition(" ")[2] for line in own_lines(done.stderr)]) == (2, ["[dtype]"])
    written(tmp_path, "path.txt", "".join(f"{each} {each + 1} 1000\n" for each in range(30)))
    successful(run("path.txt", "--directed", "--length", 31, "--out", "c.npy", cwd=tmp_path))
    assert not np.load(tmp_path / "c.npy").any()
