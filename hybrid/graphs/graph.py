# SPDX-License-Identifier: MIT
"""A graph: its adjacency matrix and the names of its vertices, from a file or from an example of this package."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import numpy as np

from hybrid.core.problem import Span, record
from hybrid.core.settings import one_of
from hybrid.core.text import counted, readable
from hybrid.errors import DoesNotFit, UsageError, one_line
from hybrid.host.memory import available_host_bytes
from hybrid.runs.matrix_file import MtxFile, open_npy

Read = tuple[np.ndarray, "list[str] | None"]

LARGEST = 2**63 - 1
_COPIES = 4  # of the matrix at a time, while it is read and multiplied
_NUMBER = re.compile(r"[-+.\d][-+.\deE]*", re.ASCII)


def as_number(text: str) -> int:
    """A number of edges; UsageError for anything else."""
    try:
        value = Decimal(text.strip())
        if not 0 <= value <= LARGEST or value != int(value):
            raise ValueError
        return int(value)
    except (ArithmeticError, ValueError):
        raise UsageError(f"{text[:40]!r} is no whole number of edges, 0 to 2^63-1", code="graph") from None


def refuse_too_many(vertices: int, memory: int) -> None:
    """DoesNotFit if a matrix of this many vertices needs too much memory. `memory`: bytes that may be used; 0: all available."""
    _refuse_large(_COPIES * 8 * vertices**2, memory, f"a matrix of {vertices}×{vertices} and its copies take")


def _refuse_large(need: int, memory: int, what: str) -> None:
    free = memory or available_host_bytes()
    if need > free:
        raise DoesNotFit(f"{what} {readable(need)}, {readable(free)} are free: use a smaller graph, or more memory")


@contextmanager
def _in_line(number: int) -> Iterator[None]:
    """A context that puts the line's number before errors' messages."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"line {number}: {error}", code="graph") from None


def from_edges(path: Path, directed: bool, memory: int) -> Read:
    """Lines of FROM TO [NUMBER]; a name alone is a vertex without edges, # begins a comment.

    Vertices are sorted by name, by number if all names are numbers.
    """
    edges: dict[tuple[str, str], tuple[int, int]] = {}  # the number of parallel edges, and the line
    names: set[str] = set()
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].replace(",", " ").split()
            names.update(words[:2])
            if len(words) > 1:
                with _in_line(number):
                    if len(words) > 3:
                        raise UsageError(f"{len(words)} words, where FROM TO or FROM TO NUMBER is expected")
                    tail, head = words[:2]
                    if earlier := edges.get((tail, head)) or (None if directed else edges.get((head, tail))):
                        both = "" if directed else "; a list that names both ways is for --directed"
                        raise UsageError(f"repeats the edge of line {earlier[1]}: give the number of parallel edges{both}")
                    edges[tail, head] = as_number(words[2]) if len(words) == 3 else 1, number
    refuse_too_many(len(names), memory)
    numbers = all(name.isdecimal() for name in names)
    order = sorted(names, key=lambda name: (int(name) if numbers else 0, name))
    row_of = {name: row for row, name in enumerate(order)}
    matrix = np.zeros((len(order), len(order)), np.int64)
    for (tail, head), (value, _) in edges.items():
        matrix[row_of[tail], row_of[head]] = value
        if not directed:
            matrix[row_of[head], row_of[tail]] = value
    return matrix, order


def from_csv(path: Path, memory: int) -> Read:
    """A matrix, with or without vertices' names: if not all cells of the first row are numbers, this row and the first column are
    names. The corner cell may be missing.

    The delimiter is the most frequent one in the first line.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        delimiter = max(",;\t", key=first.count)
        refuse_too_many(first.count(delimiter), memory)
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter)
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(cell.strip() for cell in row)]
    names = None
    if rows and not all(map(_NUMBER.fullmatch, rows[0][1])):
        _, above = rows.pop(0)
        names = [row.pop(0) for _, row in rows]
        if names != above[max(0, len(above) - len(names)) :]:
            raise UsageError("the names above the matrix and before it differ", code="graph")
        if len(set(names)) < len(names):
            raise UsageError("two vertices have the same name", code="graph")
    values = []
    for number, row in rows:
        with _in_line(number):
            if len(row) != len(rows):
                raise UsageError(f"{counted(len(row), 'number')} for {counted(len(rows), 'row')}: the matrix must be square")
            values.append([as_number(cell) for cell in row])
    return np.array(values, np.int64).reshape(len(rows), len(rows)), names


def from_matrix(path: Path, form: str, memory: int) -> Read:
    """A matrix in NumPy's format or in Matrix Market's, which SciPy reads. Pickled objects are refused: reading them could run
    any code."""
    file = MtxFile(str(path)) if form == "mtx" else open_npy(str(path))
    if file.dtype.kind not in "biuf":
        raise UsageError(f"it holds {file.dtype}: walks are counted with real numbers", code="graph")
    refuse_too_many(max(file.shape), memory)
    array = np.empty(file.shape, file.dtype)
    file.read(Span(0, file.shape[0]), array)
    return array, None


EXAMPLES = {"ten": "ten.csv", "five": "five.edges"}
_BY_ENDING = {".csv": "csv", ".tsv": "csv", ".mtx": "mtx", ".npy": "npy"}
_MOST_NAMED = 20  # vertices that an error lists


@record
class Graph:
    adjacency: np.ndarray  # [i, j]: the number of edges from i to j, int64
    names: list[str]  # of the vertices

    def vertex(self, name: str) -> int:
        """The row of the vertex with this name; if no name is a number, also of the vertex with this number, from 1 as in the
        lecture's P(i, j)."""
        if name in self.names:
            return self.names.index(name)
        count, numbered = len(self.names), any(known.isdecimal() for known in self.names)
        if name.isdecimal() and len(name) < 10 and 1 <= int(name) <= count and not numbered:
            return int(name) - 1
        if count > _MOST_NAMED:
            raise UsageError(f"no vertex {name!r} among the {count} from {self.names[0]} to {self.names[-1]}", code="graph")
        return self.names.index(one_of("vertex", name, self.names))

    def __str__(self) -> str:
        count, matrix = len(self.names), self.adjacency
        what = f"{count} vertices" if count > 1 else "1 vertex"
        # Exact without overflow: the upper and lower halves of the numbers are added separately.
        edges, loops = (
            (int((each >> 32).sum()) << 32) + int((each & 0xFFFFFFFF).sum()) for each in (matrix, np.diagonal(matrix))
        )
        if (matrix != matrix.T).any():
            return f"{what}, {edges} directed {'edge' if edges == 1 else 'edges'}"
        lines = (edges + loops) // 2
        return f"{what}, {lines} {'edge that goes' if lines == 1 else 'edges that go'} both ways"


def read_graph(source: str, form: str | None, *, directed: bool, memory: int = 0) -> Graph:
    """The graph in a file, or the example of that name. Raises UsageError or DoesNotFit, with the file's name.

    `form`: edges, csv, mtx or npy; None: by the file name's extension, an edge list for unknown ones. `directed`: the lines of an
    edge list count one way only. `memory`: bytes that may be used; 0: all available.
    """
    path = Path(__file__).parent / "examples" / EXAMPLES[source] if source in EXAMPLES else Path(source)
    form = form or _BY_ENDING.get(path.suffix.lower(), "edges")
    try:
        if not path.is_file():
            lacking = "not a regular file" if path.exists() else "there is no such file"
            raise UsageError(f"{lacking}; the example graphs are {' and '.join(EXAMPLES)}", code="file-missing")
        if directed and form != "edges":
            raise UsageError("--directed is for edge lists alone", code="option-combination")
        _refuse_large(path.stat().st_size, memory, "the file takes")
        if form == "edges":
            matrix, names = from_edges(path, directed, memory)
        else:
            matrix, names = from_csv(path, memory) if form == "csv" else from_matrix(path, form, memory)
        return Graph(_as_adjacency(matrix), names or [str(number) for number in range(1, len(matrix) + 1)])
    except (UsageError, DoesNotFit) as error:
        raise type(error)(f"{source}: {error}", code=error.code) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = "it is no text (of UTF-8)" if isinstance(error, UnicodeDecodeError) else one_line(error)
        raise UsageError(f"{source}: cannot be read as {form}: {why}", code="graph") from None


def _as_adjacency(matrix: np.ndarray) -> np.ndarray:
    """The matrix as int64, with every number unchanged. UsageError if that is impossible."""
    if matrix.shape[0] != matrix.shape[1]:
        raise UsageError(f"not a square matrix: its shape is {'×'.join(map(str, matrix.shape))}", code="graph")
    if not matrix.size:
        raise UsageError("it has no vertices", code="graph")
    _refuse(matrix, (matrix < 0) | ~np.isfinite(matrix), "edges are counted from 0 up")
    if matrix.dtype.kind == "f":
        _refuse(matrix, matrix != np.rint(matrix), "a whole number of edges is needed")
        _refuse(matrix, matrix > 2.0 ** (np.finfo(matrix.dtype).nmant + 1), f"{matrix.dtype} may have rounded it")
    elif matrix.dtype.kind == "u":
        _refuse(matrix, matrix > np.uint64(LARGEST), "more than 2^63-1 edges")
    return np.ascontiguousarray(matrix, np.int64)


def _refuse(matrix: np.ndarray, where: np.ndarray, why: str) -> None:
    """UsageError for the first of these elements, if any."""
    if where.any():
        row, column = np.unravel_index(int(np.argmax(where)), where.shape)
        raise UsageError(f"row {row + 1}, column {column + 1} is {matrix[row, column]}: {why}", code="graph")
