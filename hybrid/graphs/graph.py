# SPDX-License-Identifier: MIT
"""A graph: its adjacency matrix and the names of its vertices, from a file or from an example of this package."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from hybrid.core.problem import record
from hybrid.core.settings import one_of
from hybrid.errors import DoesNotFit, UsageError, one_line
from hybrid.graphs.graph_io import LARGEST, Read, from_csv, from_edges, from_matrix_market, from_npy, refuse_large_file

EXAMPLES = {"ten": "ten.csv", "five": "five.edges"}
_BY_ENDING = {".csv": "csv", ".tsv": "csv", ".mtx": "mtx", ".npy": "npy"}
_MOST_NAMED = 20  # vertices that an error lists


@record
class Graph:
    """A graph, or a Markov chain."""

    adjacency: np.ndarray  # [i, j]: the number of edges from i to j, int64; for a Markov chain the probability, float64
    names: list[str]  # of the vertices

    def vertex(self, name: str) -> int:
        """The row of the vertex with this name or, if no vertex's name is a number, with this number: from 1, as in the lecture's
        P(i, j)."""
        if name in self.names:
            return self.names.index(name)
        count, numbered = len(self.names), any(known.isdecimal() for known in self.names)
        if name.isdecimal() and len(name) < 10 and 1 <= int(name) <= count and not numbered:
            return int(name) - 1
        if count > _MOST_NAMED:
            raise UsageError(
                f"there is no vertex {name!r} among the {count} from {self.names[0]} to {self.names[-1]}", code="graph"
            )
        return self.names.index(one_of("vertex", name, self.names))

    def __str__(self) -> str:
        count, matrix = len(self.names), self.adjacency
        what = f"{count} vertices" if count > 1 else "1 vertex"
        if matrix.dtype != np.int64:
            return f"{what}, probabilities"
        edges, loops = _total(matrix), _total(np.diagonal(matrix))
        both_ways = bool((matrix == matrix.T).all())
        lines = (edges + loops) // 2 if both_ways else edges
        noun, verb = ("edge", "goes") if lines == 1 else ("edges", "go")
        return f"{what}, {lines} {noun} that {verb} both ways" if both_ways else f"{what}, {lines} directed {noun}"


def _total(numbers: np.ndarray) -> int:
    """The exact sum."""
    fits = int(numbers.max(initial=0)) * numbers.size <= LARGEST
    return int((numbers if fits else numbers.astype(object)).sum())


def read_graph(source: str, form: str | None, *, directed: bool, probabilities: bool, memory: int = 0) -> Graph:
    """The graph in a file, or the example of that name. Raises UsageError or DoesNotFit, with the file's name.

    `form`: edges, csv, mtx or npy; None: by the ending of the file's name, an edge list for any other. `directed`: the lines of
    an edge list count one way only, as probabilities always do. `memory`: bytes that may be used; 0: what is available.
    """
    path = Path(__file__).parent / "examples" / EXAMPLES[source] if source in EXAMPLES else Path(source)
    form = form or _BY_ENDING.get(path.suffix.lower(), "edges")
    kind = float if probabilities else int
    try:
        if not path.is_file():
            lacking = "not a regular file" if path.exists() else "there is no such file"
            raise UsageError(f"{lacking}; the example graphs are {' and '.join(EXAMPLES)}", code="file-missing")
        if directed and form != "edges":
            raise UsageError(
                "--directed is for edge lists; a matrix says itself which way its edges go", code="option-combination"
            )
        refuse_large_file(path, memory)
        matrix, names = _read(path, form, kind, directed or probabilities, memory)
        return Graph(_as_adjacency(matrix, kind), names or [str(number) for number in range(1, len(matrix) + 1)])
    except (UsageError, DoesNotFit) as error:
        raise type(error)(f"{source}: {error}", code=error.code) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = "it is no text (of UTF-8)" if isinstance(error, UnicodeDecodeError) else one_line(error)
        raise UsageError(f"{source}: cannot be read as {form}: {why}", code="graph") from None


def _read(path: Path, form: str, kind: type, directed: bool, memory: int) -> Read:
    if form == "edges":
        return from_edges(path, kind, directed, memory)
    if form == "csv":
        return from_csv(path, kind, memory)
    return from_matrix_market(path, memory) if form == "mtx" else from_npy(path, memory)


def _as_adjacency(matrix: np.ndarray, kind: type) -> np.ndarray:
    """The matrix as int64, with every number unchanged, or as float64 for probabilities. UsageError where that cannot be."""
    if matrix.shape[0] != matrix.shape[1]:
        raise UsageError(f"not a square matrix: its shape is {'×'.join(map(str, matrix.shape))}", code="graph")
    if not matrix.size:
        raise UsageError("it has no vertices", code="graph")
    if matrix.dtype.kind not in "biuf":
        raise UsageError(f"it holds {matrix.dtype}, not real numbers", code="graph")
    what = "probabilities go from 0 to 1" if kind is float else "edges are counted from 0 up"
    _refuse(matrix, (matrix < 0) | ~np.isfinite(matrix), what)
    if kind is float:
        return np.ascontiguousarray(matrix, np.float64)
    if matrix.dtype.kind == "f":
        _refuse(matrix, matrix != np.rint(matrix), "a whole number of edges is needed (probabilities are for --stochastic)")
        _refuse(matrix, matrix > 2.0 ** (np.finfo(matrix.dtype).nmant + 1), f"{matrix.dtype} may have rounded it")
    elif matrix.dtype.kind == "u":
        _refuse(matrix, matrix > np.uint64(LARGEST), "more than 2^63-1 edges")
    return np.ascontiguousarray(matrix, np.int64)


def _refuse(matrix: np.ndarray, where: np.ndarray, why: str) -> None:
    """UsageError, with the first of these elements, if there is any."""
    if where.any():
        row, column = np.unravel_index(int(np.argmax(where)), where.shape)
        raise UsageError(f"row {row + 1}, column {column + 1} is {matrix[row, column]}: {why}", code="graph")
