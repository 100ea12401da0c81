# SPDX-License-Identifier: MIT
"""Finds out what the parameters of a student's kernel are: A, B, C or a size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hybrid.classroom.student_file import StudentFile
from hybrid.classroom.student_kernel import ELEMENTS, SCALES, Parameter, StudentKernel
from hybrid.core.problem import record
from hybrid.errors import UsageError

_SIZES = "n (rows of A and C), l (columns of A, rows of B) or m (columns of B and C)"
_ROWS, _COLUMNS = (
    ("h", "height", "rows", "row", "nrows", "numrows"),
    ("w", "width", "columns", "cols", "col", "ncols", "numcolumns", "numcols", "ld", "stride"),
)
_OF_MATRIX = {  # rows and columns, by the names that lectures give to matrices
    **dict.fromkeys(("a", "m", "md", "d_a", "dm"), ("n", "l")),
    **dict.fromkeys(("b", "n", "nd", "d_b", "dn"), ("l", "m")),
    **dict.fromkeys(("c", "p", "pd", "d_c", "dp"), ("n", "m")),
}
_LEADING = re.compile(r"ld_?([abc])", re.IGNORECASE)
_VECTOR = re.compile(r"vec", re.IGNORECASE)
ALPHA, BETA = 2, 3  # whole numbers, so that sums stay exact


@record
class Meaning:
    """What a kernel's parameters are."""

    of: tuple[str, ...]  # for each parameter "A", "B", "C", "n", "l", "m", "alpha" or "beta"
    dtype: str
    square: bool  # one size stands for all three, or for n and l where B is a vector
    vector: bool = False  # B is a vector, so m is 1

    @property
    def scales(self) -> tuple[float, float]:
        """The values of alpha and beta in C = alpha·A·B + beta·C."""
        return (ALPHA if "alpha" in self.of else 1), (BETA if "beta" in self.of else 0)

    def on(self, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
        """The shape on which the kernel is run in place of this one: itself, unless the kernel takes square matrices or a
        vector."""
        n, l, m = sizes
        if self.square:
            n = l = max(n, l if self.vector else max(l, m))
        return n, l, (1 if self.vector else n if self.square else m)

    @property
    def limit(self) -> str:
        """Why the kernel does not take every shape; "" if it does."""
        square = "has one size, so its matrices are square" if self.square else ""
        return " and ".join(filter(None, (square, "multiplies by a vector" if self.vector else "")))

    def names(self, kernel: StudentKernel) -> tuple[str, str, str]:
        """What the kernel calls A, B and C."""
        called = dict(zip(self.of, (each.name for each in kernel.parameters), strict=True))
        return called["A"], called["B"], called["C"]

    def row_strides(self, kernel: StudentKernel) -> dict[str, str]:
        """What BLAS calls lda, ldb and ldc, each with its matrix, where it is what it is of matrices stored row by row."""
        of = {each.name: size for each, size in zip(kernel.parameters, self.of, strict=True) if each.is_number}
        named = {name: _LEADING.fullmatch(name) for name in of}
        return {name: found[1].upper() for name, found in named.items() if found and of[name] == _by_matrix(name.lower())}

    def told(self, kernel: StudentKernel) -> str:
        """A line that says what the kernel's parameters are, where their names do not, and the type."""
        pairs = [(each.name, of) for each, of in zip(kernel.parameters, self.of, strict=True)]
        if self.square:
            pairs = [(name, ("n = l" if self.vector else "n = l = m") if of == "n" else of) for name, of in pairs]
        values = dict(zip(SCALES, self.scales, strict=True))
        pairs = [(name, f"{values[of]:g}" if of in values else of) for name, of in pairs]
        return "; ".join([*(f"{name} is {of}" for name, of in pairs if name != of), *(["m is 1"] * self.vector), self.dtype])


def meaning_of(file: StudentFile, kernel: StudentKernel, let: Mapping[str, str]) -> Meaning:
    """What the parameters are. `let`: the sizes that parameters are, as the user says. UsageError where that leaves something
    open."""
    for each in kernel.parameters:
        if "[" in each.type:
            raise UsageError(
                f"{kernel.name}: the parameter {each} is an array of rows: the lab hands over pointers, as float* A, whose "
                "elements are A[row * columns + column]",
                code="lab-parameters",
            )
        if not (each.is_number or each.is_pointer or each.is_scale or each.type in file.structs):
            raise UsageError(
                f"{kernel.name}: the parameter {each} is no pointer, no whole number, no alpha or beta, and no struct of "
                f"{file.path.name}",
                code="lab-parameters",
            )
    matrices = [each for each in kernel.parameters if not (each.is_number or each.is_scale)]
    if len(matrices) != 3:
        raise UsageError(
            f"{kernel} takes {len(matrices)} matrices: the lab runs kernels that multiply A by B into C", code="lab-parameters"
        )
    elements = {_element(file, each) for each in matrices}
    if len(elements) > 1 or not elements <= ELEMENTS.keys():
        raise UsageError(
            f"{file.path.name}, line {kernel.line}: {kernel}: the elements are {', '.join(sorted(elements))}; matrices of "
            "float, double, half or int are multiplied here",
            code="lab-parameters",
        )
    numbers = [each for each in kernel.parameters if each.is_number]
    names = [each.name for each in matrices]
    by_a_vector = _by_a_vector(names, kernel.body)
    of_numbers = _sizes([each.name for each in numbers], let, by_a_vector=bool(by_a_vector))
    letters = dict(zip(names, by_a_vector or _letters(names, kernel.body), strict=True))
    of = tuple({**of_numbers, **letters}.get(each.name, each.name.lower()) for each in kernel.parameters)
    vector = bool(by_a_vector) or any(letter == "B" and _VECTOR.search(name) for name, letter in letters.items())
    return Meaning(of, ELEMENTS[elements.pop()], len(numbers) == 1, vector)


def _letters(names: Sequence[str], body: str) -> str:
    """Which of "A", "B" and "C" each matrix is, in the order of the parameters.

    Their names decide, if they are A, B, C or M, N, P. Else C is what the kernel writes, a vector is B, and the others come in
    the order A, B.
    """
    bare = [re.sub(r"^(d|dev|g|h|mat)_|_(d|dev|mat)$|(?<=^.)d$", "", name.lower()) for name in names]
    for usual in ("abc", "mnp"):
        if sorted(bare) == sorted(usual):
            return "".join("ABC"[usual.index(name)] for name in bare)
    written = [name for name in names if is_written(name, body)]
    result = written[0] if len(written) == 1 else names[-1]
    factors = [name for name in names if name != result]
    if _VECTOR.search(factors[0]) and not _VECTOR.search(factors[1]):
        factors.reverse()
    return "".join("C" if name == result else "AB"[factors.index(name)] for name in names)


def _by_a_vector(names: Sequence[str], body: str) -> str:
    """The letters as `_letters` gives them, for a kernel that multiplies by a vector; "" for others.

    It is one where a factor and the result are indexed by a single variable, and the other factor by both, as in
    out[i] += matrix[i * n + j] * vector[j].
    """
    written = [name for name in names if is_written(name, body)]
    indices = {name: re.findall(rf"(?<![\w.]){name}\s*\[([^\[\]]*)\]", body) for name in names}
    simple = [name for name, found in indices.items() if found and all(re.fullmatch(r"\s*\w+\s*", each) for each in found)]
    computed = [name for name, found in indices.items() if any("*" in each for each in found)]
    if len(written) != 1 or len(simple) != 2 or len(computed) != 1 or written[0] not in simple:
        return ""
    variables = {index.strip() for name in simple for index in indices[name]}
    if any(not variables <= set(re.findall(r"\w+", index)) for index in indices[computed[0]]):
        return ""
    return "".join("C" if name == written[0] else "A" if name in computed else "B" for name in names)


def indices_of(name: str, body: str) -> list[str]:
    """The texts of the indices by which a kernel uses this array."""
    return re.findall(rf"(?<![\w.]){name}\s*\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", body)


def is_written(name: str, body: str) -> bool:
    """Whether the kernel assigns to an element of this matrix, as name[…] = or name.elements[…] +=, or adds to one atomically."""
    index = r"(?:\.\w+)?\s*\[(?:[^\[\]]|\[[^\[\]]*\])*\]"
    return re.search(rf"(?<![\w.]){name}{index}\s*(?:[-+*/]?=(?!=)|\+\+)|\batomic\w+\s*\(\s*&\s*{name}\b", body) is not None


def _element(file: StudentFile, parameter: Parameter) -> str:
    """The C type of a matrix's elements."""
    if parameter.is_pointer:
        return parameter.type
    fields = file.structs[parameter.type]
    pointers = [kind[:-1].replace("const", "").strip() for kind in fields.values() if kind.endswith("*")]
    if len(pointers) != 1:
        raise UsageError(
            f"the struct {parameter.type} has {len(pointers)} pointers: one is wanted, to the elements", code="lab-parameters"
        )
    return pointers[0]


def _sizes(names: Sequence[str], let: Mapping[str, str], *, by_a_vector: bool) -> dict[str, str]:
    """Which of "n", "l" and "m" each whole number is, by its name."""
    if unknown := set(let) - set(names):
        raise UsageError(
            f"--let {sorted(unknown)[0]}: the kernel has no such number; it has {', '.join(names) or 'none'}",
            code="lab-parameters",
        )
    if wrong := [(name, size) for name, size in let.items() if size not in ("n", "l", "m")]:
        raise UsageError(f"--let {wrong[0][0]}={wrong[0][1]}: a size is {_SIZES}", code="lab-parameters")
    if len(names) == 1:
        return {names[0]: "n"}
    lower = [name.lower() for name in names]
    if {"m", "n", "k"} <= set(lower) and "l" not in lower:  # BLAS: C is m×n, and k is summed over
        usual = {"m": "n", "n": "m", "k": "l"}
    else:
        usual = {"n": "n", "l": "l", "m": "m"}
    sizes = {}
    for name in names:
        size = let.get(name) or usual.get(name.lower()) or _by_matrix(name.lower())
        if by_a_vector and not size:  # there is one matrix
            size = "n" if name.lower() in _ROWS else "l" if name.lower() in _COLUMNS else ""
        if not size:
            raise UsageError(f"what {name} stands for cannot be told: --let {name}=SIZE says it, {_SIZES}", code="lab-parameters")
        sizes[name] = size
    return sizes


def _by_matrix(name: str) -> str:
    """The size that a name such as wA, height_B or numCColumns stands for; "" for others."""
    name = re.sub(r"^num_?", "", name)
    for extents, place in ((_ROWS, 0), (_COLUMNS, 1)):
        for extent in extents:
            for matrix, sizes in _OF_MATRIX.items():
                if name in (f"{extent}{matrix}", f"{extent}_{matrix}", f"{matrix}{extent}", f"{matrix}_{extent}"):
                    return sizes[place]
    return ""
