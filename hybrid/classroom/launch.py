# SPDX-License-Identifier: MIT
"""How to launch a student's kernel, from options, the file's comment or guesses: which parameters are A, B, C and sizes, and the
grid and block."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybrid.classroom.cuda_text import blanked, extents_of, indices_of, shared_arrays, split, value_of
from hybrid.classroom.student_file import ELEMENTS, SCALES, Parameter, StudentFile, StudentKernel
from hybrid.core.problem import record
from hybrid.errors import UsageError

# --- parameters

_SIZES = "n (rows of A and C), l (columns of A, rows of B) or m (columns of B and C)"
_ROWS = ("h", "height", "rows", "row", "nrows", "numrows")
_COLUMNS = ("w", "width", "columns", "cols", "col", "ncols", "numcolumns", "numcols", "ld", "stride")
_OF_MATRIX = {  # rows and columns of a matrix with this name in lectures
    **dict.fromkeys(("a", "m", "md", "d_a", "dm"), ("n", "l")),
    **dict.fromkeys(("b", "n", "nd", "d_b", "dn"), ("l", "m")),
    **dict.fromkeys(("c", "p", "pd", "d_c", "dp"), ("n", "m")),
}
_BY_MATRIX = {  # the size that a name such as wA, height_B or CColumns means
    name: sizes[place]
    for extents, place in ((_COLUMNS, 1), (_ROWS, 0))
    for extent in extents
    for matrix, sizes in _OF_MATRIX.items()
    for name in (f"{extent}{matrix}", f"{extent}_{matrix}", f"{matrix}{extent}", f"{matrix}_{extent}")
}
_LEADING = {f"ld{line}{matrix}": {"b": "l"}.get(matrix, "n") for line in ("", "_") for matrix in "abc"}  # column-major
_PITCH = re.compile(r"(?:pitch|p)_?([abc])|([abc])_?pitch|pitch", re.IGNORECASE)  # of a matrix's rows
_TURNED = {"A": "B", "B": "A", "n": "m", "m": "n"}
_VECTOR = re.compile(r"vec", re.IGNORECASE)
ALPHA, BETA = 2, 3  # whole numbers, so that sums stay exact
_BATCH = "2"


@record
class Meaning:
    of: tuple[str, ...]  # for each parameter "A", "B", "C", "n", "l", "m", "alpha", "beta", or a pitch such as "4 * n"
    dtype: str  # of C
    of_factors: str  # the dtype of A and B
    square: bool  # one size is all three, or n and l if B is a vector
    vector: bool = False  # B is a vector, so m is 1
    by_columns: bool = False  # column-major: the kernel's A is our Bᵀ, its B our Aᵀ, its C our Cᵀ, and n and m are exchanged
    adds: bool = False  # the kernel only adds to C, atomically: C = A·B + C
    batch: int = 1  # products in a launch
    inner: str = "l"  # n or m if the kernel has no other number for it: A or B is square

    @property
    def scales(self) -> tuple[float, float]:
        """The values of alpha and beta in C = alpha·A·B + beta·C."""
        return (ALPHA if "alpha" in self.of else 1), (BETA if "beta" in self.of else int(self.adds))

    def on(self, sizes: Sequence[int]) -> tuple[int, int, int]:
        """This shape, or the nearest that a kernel of square matrices or of a vector can take."""
        n, l, m = sizes[::-1] if self.by_columns else sizes
        if self.square:
            n = l = max(n, l if self.vector else max(l, m))
        m = 1 if self.vector else n if self.square else m
        l = {"n": n, "l": l, "m": m}[self.inner]
        return (m, l, n) if self.by_columns else (n, l, m)

    @property
    def types(self) -> str:
        return self.dtype if self.dtype == self.of_factors else f"{self.of_factors} into {self.dtype}"

    def names(self, kernel: StudentKernel) -> tuple[str, str, str]:
        """The kernel's names of A, B and C."""
        called = dict(zip(self.of, (each.name + "ᵀ" * self.by_columns for each in kernel.parameters), strict=True))
        return called["A"], called["B"], called["C"]

    def told(self, kernel: StudentKernel) -> str:
        """A line with the type, and the meaning of each parameter whose name does not tell it."""
        as_told = _TURNED if self.by_columns else {}
        pairs = [(each.name, as_told.get(of, of)) for each, of in zip(kernel.parameters, self.of, strict=True)]
        if self.square:
            pairs = [(name, ("n = l" if self.vector else "n = l = m") if of == "n" else of) for name, of in pairs]
        values = dict(zip(SCALES, self.scales, strict=True))
        pairs = [(name, f"{values[of]:g}" if of in values else of) for name, of in pairs]
        also = ["m is 1"] * self.vector + ["the kernel adds to C"] * self.adds
        also += [f"{self.batch} products in a launch"] * (self.batch > 1)
        told = "; ".join([*(f"{name} is {of}" for name, of in pairs if name != of), *also, self.types])
        return f"{told}, stored column by column: transposes are told" if self.by_columns else told


def meaning_of(file: StudentFile, kernel: StudentKernel, let: Mapping[str, str], by_columns: bool) -> Meaning:
    """The meaning of the kernel's parameters. `let`: the user's choice of n, l or m for parameters. `by_columns`: matrices are
    column-major. UsageError for parameters that the lab cannot supply or tell apart."""
    for each in kernel.parameters:
        if not (each.is_number or each.is_pointer or each.is_scale or each.type in file.structs):
            what = f"no pointer such as float* A, no whole number, no alpha or beta, and no struct of {file.path.name}"
            raise UsageError(f"{kernel.name}: the parameter {each} is {what}", code="lab-parameters")
    matrices = [each for each in kernel.parameters if not (each.is_number or each.is_scale)]
    if len(matrices) != 3:
        taken = "1 matrix" if len(matrices) == 1 else f"{len(matrices)} matrices"
        what = "the lab runs kernels that multiply A by B into C"
        raise UsageError(f"{kernel} takes {taken}: {what}", code="lab-parameters")
    numbers = [each for each in kernel.parameters if each.is_number]
    names, body = [each.name for each in matrices], kernel.accesses
    pitches = {each.name: found for each in numbers if each.name not in let and (found := _PITCH.fullmatch(each.name))}
    pitches = pitches if len(pitches) < len(numbers) else {}
    sizes = [each.name for each in numbers if each.name not in pitches]
    by_a_vector, known = _by_a_vector(names, sizes, body)
    if by_columns:
        if not all(each.is_pointer for each in matrices):
            raise UsageError(f"{kernel}: --layout columns is for pointers, and no structs", code="option-combination")
        known |= {name: _LEADING[name.lower()] for name in sizes if name.lower() in _LEADING}
    letters = dict(zip(names, by_a_vector or _letters(names, body), strict=True))
    of_factors, dtype = _types(file, kernel, {each: letters[each.name] for each in matrices})
    in_bytes = f"{np.dtype(of_factors).itemsize} * " * bool(re.search(r"\bchar\s*(?:const\s*)?\*", kernel.indices))
    columns = {name: {"a": "l", "": "n"}.get((found[1] or found[2] or "").lower(), "m") for name, found in pitches.items()}
    columns = {name: in_bytes + ("n" if len(sizes) == 1 else size) for name, size in columns.items()}
    of_sizes = _sizes(sizes, let, known, of_a_batch=bool(kernel.batch))
    sizes = [name for name in sizes if of_sizes[name] != _BATCH]
    of_names = {**of_sizes, **columns, **letters}
    of = tuple(of_names.get(each.name, each.name.lower()) for each in kernel.parameters)
    of = tuple(_TURNED.get(each, each) for each in of) if by_columns else of
    vector = bool(by_a_vector) or any(letter == "B" and _VECTOR.search(name) for name, letter in letters.items())
    adds = "beta" not in of and any(letter == "C" and _is_only_added_to(name, body) for name, letter in letters.items())
    inner = "l"
    if len(sizes) == 2 and not vector and set(of) >= {"n", "m"} and len(of) == len(matrices) + len(numbers):
        of_a = " ".join(index for name, letter in letters.items() if letter == "A" for index in indices_of(name, body))
        inner = next((of_names[name] for name in sizes if re.search(rf"\*\s*{name}\b|\b{name}\s*\*", of_a)), "l")
    return Meaning(of, dtype, of_factors, len(sizes) == 1, vector, by_columns, adds, int(_BATCH) if kernel.batch else 1, inner)


def may_be_by_columns(file: StudentFile, kernel: StudentKernel) -> bool:
    """Whether a comment speaks of column-major matrices, or the kernel has BLAS's leading dimensions."""
    said = re.search(r"\bcol(?:umn)?s?[- ]?major|\bFortran\b|\bcolumn by column", file.text, re.IGNORECASE)
    return said is not None or any(each.name.lower() in _LEADING for each in kernel.parameters)


def _letters(names: Sequence[str], body: str) -> str:
    """A letter "A", "B" or "C" for each matrix, in the order of the parameters.

    The names decide if they are A, B, C or M, N, P. Otherwise C is the one that the kernel writes, a vector is B, and the rest
    are A and B in this order.
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


def _by_a_vector(names: Sequence[str], sizes: Sequence[str], body: str) -> tuple[str, dict[str, str]]:
    """For a kernel that multiplies a matrix by a vector: the letters, as from `_letters`, and for each size n or l, from the
    matrix's index. "" for other kernels.

    In such a kernel a single variable indexes a factor, another one the result, and both the other factor, as in
    out[i] += matrix[i * n + j] * vector[j].
    """
    written = [name for name in names if is_written(name, body)]
    indices = {name: re.findall(rf"(?<![\w.]){name}\s*\[([^\[\]]*)\]", body) for name in names}
    simple = [name for name, found in indices.items() if found and all(re.fullmatch(r"\s*\w+\s*", each) for each in found)]
    computed = [name for name, found in indices.items() if any("*" in each for each in found)]
    if len(written) != 1 or len(simple) != 2 or len(computed) != 1 or written[0] not in simple:
        return "", {}
    variables = {index.strip() for name in simple for index in indices[name]}
    if any(not variables <= set(re.findall(r"\w+", index)) for index in indices[computed[0]]):
        return "", {}
    of = {}
    for size in sizes:
        if found := re.search(rf"(\w+)\s*\*\s*{size}\b|\b{size}\s*\*\s*(\w+)", indices[computed[0]][0]):
            is_row = (found[1] or found[2]) in map(str.strip, indices[written[0]])
            of = {other: "n" if is_row else "l" for other in sizes if len(sizes) == 2} | {size: "l" if is_row else "n"}
    return "".join("C" if name == written[0] else "A" if name in computed else "B" for name in names), of


def is_written(name: str, body: str) -> bool:
    """Whether the kernel stores to this array, as in name[…] =, name.elements[…] += or *name =, or updates it atomically."""
    element = rf"(?<![\w.]){name}(?:\.\w+)?\s*\[(?:[^\[\]]|\[[^\[\]]*\])*\](?:\.[xyzw]\b)?|(?:^|[;{{}})])\s*\*\s*{name}"
    return re.search(rf"(?:{element})\s*(?:[-+*/]?=(?!=)|\+\+)", body) is not None or is_updated(name, body)


def is_updated(name: str, body: str) -> bool:
    """Whether the kernel updates this array atomically."""
    return re.search(rf"\batomic\w+\s*\(\s*&?\s*\(?\s*{name}\b", body) is not None


def _is_only_added_to(name: str, body: str) -> bool:
    """Whether the kernel only adds to this array, atomically, and stores nothing through a cast, as in cast<float4*>(C)[i] =."""
    stored = re.search(rf"\b{name}\b[^;{{}}]*\)\s*\[[^\]]*\]\s*=(?!=)", body)
    return is_updated(name, body) and not stored and not is_written(name, re.sub(r"\batomicAdd\b", "", body))


_SUMS = {"float16": ("float16", "float32"), "float32": ("float32", "float64"), "int8": ("int32",)}  # else as the factors


def _types(file: StudentFile, kernel: StudentKernel, matrices: Mapping[Parameter, str]) -> tuple[str, str]:
    """The dtypes of A and B, and of C. UsageError for others than the lab multiplies. `matrices`: with their letters."""
    of = {letter: _element(file, each) for each, letter in matrices.items()}
    factor, result = ELEMENTS.get(of["A"], ""), ELEMENTS.get(of["C"], "")
    if of["A"] != of["B"] or not factor or result not in _SUMS.get(factor, (factor,)):
        what = f"the elements are {', '.join(sorted({*of.values()}))}; matrices of float, double, half or int are multiplied here"
        raise UsageError(f"{file.path.name}, line {kernel.line}: {kernel}: {what}", code="lab-parameters")
    return factor, result


def _element(file: StudentFile, parameter: Parameter) -> str:
    """The C type of a matrix's elements."""
    if parameter.is_pointer:
        return parameter.type
    fields = file.structs[parameter.type]
    pointers = [kind[:-1].replace("const", "").strip() for kind in fields.values() if kind.endswith("*")]
    if len(pointers) != 1:
        what = f"{len(pointers)} pointers: one is wanted, to the elements"
        raise UsageError(f"the struct {parameter.type} has {what}", code="lab-parameters")
    return pointers[0]


def _sizes(names: Sequence[str], let: Mapping[str, str], known: Mapping[str, str], *, of_a_batch: bool) -> dict[str, str]:
    """Which of "n", "l" and "m" each whole number is: as `let` or `known` say, else by its name. `of_a_batch`: what none of this
    tells is the number of products."""
    if unknown := set(let) - set(names):
        what = f"the kernel has no such number; it has {', '.join(names) or 'none'}"
        raise UsageError(f"--let {sorted(unknown)[0]}: {what}", code="lab-parameters")
    if wrong := [(name, size) for name, size in let.items() if size not in ("n", "l", "m")]:
        raise UsageError(f"--let {wrong[0][0]}={wrong[0][1]}: a size is {_SIZES}", code="lab-parameters")
    if len(names) == 1:
        return {names[0]: "n"}
    lower = [name.lower() for name in names]
    if {"m", "n", "k"} <= set(lower) and "l" not in lower:  # BLAS: C is m×n, and k is summed over
        usual = {"m": "n", "n": "m", "k": "l"}
    else:
        usual = {"n": "n", "l": "l", "m": "m"}
    rows, columns = ([name for name in lower if name in of] for of in (_ROWS, _COLUMNS))
    if len(names) == 3 and len(rows) == len(columns) == 1:  # as height, inner, width
        (inner,) = {*lower} - {*rows, *columns}
        if usual.get(inner, "l") == "l" and inner not in _BY_MATRIX:
            usual = {rows[0]: "n", columns[0]: "m", inner: "l"}
    sizes: dict[str, str] = {}
    for name in names:
        size = let.get(name) or known.get(name) or usual.get(name.lower()) or _BY_MATRIX.get(re.sub(r"^num_?", "", name.lower()))
        size = size or _BATCH * (of_a_batch and _BATCH not in sizes.values())
        if not size:
            raise UsageError(f"what {name} stands for cannot be told: --let {name}=SIZE says it, {_SIZES}", code="lab-parameters")
        sizes[name] = size
    return sizes


EVERY_SIZE = "every size"
_EVERY = r"(?<!block )(?<!grid )(?<!tile )(?:[Dd]imensions|[Ss]izes|[Ee]xtents|[Ee]dges|[Ss]ides|[Mm]atrices)"
_NOT_STATED = re.compile(r"\b(?:not|no|need|any|even|if|when|otherwise|or|unless|pad\w*)\b|n't\b", re.IGNORECASE)


def multiples_of(file: StudentFile, kernel: StudentKernel) -> dict[str, tuple[int, int]]:
    """The sizes that the file says are multiples of a constant, in a comment or an assert: for each the constant and the line."""
    sizes, found = [each.name for each in kernel.parameters if each.is_number], dict[str, tuple[int, int]]()
    size = rf"\b({'|'.join([*sizes, _EVERY])})\b"
    is_multiple = rf"{size}(?=(?:[^.;\w]+\w+){{0,6}}?[^.;\w]+(?:multiples? of|divisible by)\s+(\w+))"
    leaves_none, divides = rf"{size}\s*%\s*(\w+)\s*==\s*0\b", rf"\b(\w+)\s+divides\s+(?:\w+\s+){{0,2}}?{size}"
    for number, said in _statements(file):
        stated = re.findall(is_multiple, said) + re.findall(leaves_none, said)
        for name, text in stated + [pair[::-1] for pair in re.findall(divides, said)]:
            if value := value_of(text, file.constants):
                found.update(dict.fromkeys([name] if name in sizes else sizes or [EVERY_SIZE], (value, number)))
    return found


def _statements(file: StudentFile) -> Iterator[tuple[int, str]]:
    """Comments and asserts that state something, each with its line."""
    for number, (line, plain) in enumerate(zip(file.lines, blanked(file.text).split("\n"), strict=True), 1):
        comment = next((line[place:] for place, letter in enumerate(plain) if letter != line[place]), "")
        asserted = re.search(r"\bassert\s*\(.*", plain)
        yield number, asserted[0] if asserted else "" if _NOT_STATED.search(comment) else comment


_NAMED_TRANSPOSED = re.compile(r"(?:d|\w*_)?[a-z]_?t|\w+_t|\w+trans(?:posed?)?", re.IGNORECASE)


def said_transposed(file: StudentFile, kernel: StudentKernel, meaning: Meaning, letter: str) -> str:
    """What says that this matrix is stored column by column: its name, as AT or b_t, or the line of a comment; "" for nothing."""
    named = dict(zip(meaning.of, (each.name for each in kernel.parameters), strict=True))
    if _NAMED_TRANSPOSED.fullmatch(name := named[letter]):
        return "its name"
    rows, columns = (named.get(size, "(?!)") for size in {"A": "nl", "B": "lm", "C": "nm"}[letter])
    of = rf"\b(?:{name}|{letter})"
    marked = (
        rf"{of}(?:\s*\^\s*\{{?T\b|ᵀ|'(?!\w)|\s+(?:\w+\s+){{0,3}}[Tt]ransposed?\b)|\b[Tt]ransposed?\s+(?:of\s+|matrix\s+)*{of}\b"
    )
    turned = rf"{of}\s*(?:is\b|[:=(])?\s*[\[(]?{columns}\s*(?:x|×|\*|by)\s*{rows}\b"
    lines = (number for number, said in _statements(file) if re.search(rf"{marked}|{turned}", said) and not _TILE.search(said))
    return next((f"line {number}" for number in lines), "")


# --- the launch

Extents = tuple[int, ...]  # x and y, or x, y and z

_TILE, _Y = re.compile(r"tile|block", re.IGNORECASE), re.compile(r"(?:threadIdx|blockIdx)\.y")
# The kernel divides a thread's number by the warp size.
_BY_WARPS = re.compile(r"blockIdx\.x[^;]*(?:/\s*\(?(?:warpSize|32|WARP\w*)\b|>>\s*5\b)")
# It divides it by the threads that compute an element together.
_OF_A_GROUP = re.compile(r"blockIdx\.x[^;]*/\s*(\d+)\b")
# Names of a matrix struct's fields.
FIELDS_OF_ROWS, FIELDS_OF_COLUMNS = ("height", "rows", "h"), ("width", "columns", "cols", "w", "stride", "pitch", "ld")
_OF_COMMENT = ("kernel", "grid", "block", "shared")
_OF_NAME = re.compile(r"(\w+(?=\()|kernel|grid|block|shared)\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
_LONGEST = 32  # side of a square block
_DEFAULT_TILE, _WARP = 16, 32
_MOST_THREADS, _MOST_DEEP, _MOST_SHARED = 1024, 64, 227 << 10  # of a block, and of its z
_ENOUGH_SHARED = "49152"  # bytes that every GPU has
_OF_VECTOR = re.compile(r"\b(?:float|int|uint|double)([24])\s*\*")


@record
class Launch:
    """A launch configuration: arithmetic expressions of n, l, m and the file's constants."""

    grid: tuple[str, ...]  # x and y, or x, y and z
    block: tuple[str, ...]
    shared: str  # bytes of dynamic shared memory
    why: str  # where the expressions are from
    is_guess: bool = False
    follows_block: bool = False  # the grid is computed from the block
    others: tuple[Launch, ...] = ()  # of a guess: what else is plausible, the most plausible first

    def at(self, sizes: Mapping[str, int]) -> tuple[Extents, Extents, int]:
        """Grid, block and bytes of dynamic shared memory for these sizes and constants. UsageError if CUDA could not launch
        them."""
        grid, block = (tuple(_evaluated(text, sizes) for text in texts) for texts in (self.grid, self.block))
        shared = _evaluated(self.shared, sizes)
        of_grid, of_block = ("×".join(map(str, each)) for each in (grid, block))
        why = ""
        if min(grid) < 1:
            why = f"a grid of {of_grid} blocks cannot be launched: grid({', '.join(self.grid)})"
        elif shared > _MOST_SHARED:
            why = f"{shared} bytes of shared memory are more than a block can have, {_MOST_SHARED}"
        elif min(block) < 1 or math.prod(block) > _MOST_THREADS or any(deep > _MOST_DEEP for deep in block[2:]):
            why = f"a grid of {of_grid} blocks of {of_block} threads cannot be launched: a block has 1 to 1024 threads, "
            why += f"at most {_MOST_DEEP} in z"
        if why:
            raise UsageError(why, code="lab-launch")
        return grid, block, shared

    def block_at(self, sizes: Mapping[str, int]) -> Extents:
        """The block for these sizes and constants, even if it cannot be launched."""
        return tuple(_evaluated(text, sizes) for text in self.block)

    def instead_of(self, wrong: Launch) -> Launch:
        """This launch, with which the kernel is right, in place of a guess with which it is wrong."""
        return replace(self, why=f"guessed, since the kernel is right with it, and wrong with {wrong}")

    def __str__(self) -> str:
        text = f"grid({', '.join(self.grid)}) block({', '.join(self.block)})"
        return text + (f" shared({self.shared})" if self.shared != "0" else "")


def _evaluated(text: str, names: Mapping[str, int]) -> int:
    if (value := value_of(text, names)) is None:
        raise UsageError(f"{text!r} is no arithmetic of whole numbers and {', '.join(names)}", code="lab-launch")
    return value


def launch_of(
    file: StudentFile, kernel: StudentKernel, meaning: Meaning | None, flags: Mapping[str, str], rows: str = ""
) -> Launch:
    """The launch from the options, from the comment "// lab: grid(…) block(…)", or else guessed from the kernel's built-in
    variables, its arrays and the file's constants.

    `meaning`: None for a kernel that multiplies no matrices; its only size is n, or of two sizes `rows` is n and the other m.
    `flags`: the options; like the comment, they may use n, l and m or the kernel's own names of sizes.
    """
    body, is_product = kernel.indices, meaning is not None
    by_rows = bool(rows) or is_by_rows(kernel)
    of = meaning.of if meaning is not None else ["n" if each.name == rows or not by_rows else "m" for each in kernel.parameters]
    own = {each.name: size for each, size in zip(kernel.parameters, of, strict=True) if each.is_number}
    given = {name: flags.get(name) or within_comment(file.launch_comment, name) for name in ("grid", "block", "shared")}
    said = {name: re.sub(r"\b[A-Za-z_]\w*", lambda word: own.get(word[0], word[0]), text) for name, text in given.items()}
    outer = ("n", "m") if meaning is not None and _has_rows_along_x(kernel, meaning) else ("m", "n")
    whole, has_y, has_blocks = "n * m" if is_product else "n", _Y.search(body) is not None, "blockIdx" in body
    tile = _tile(file, kernel) or ("" if is_product or has_y else _threads_of_arrays(file, kernel))
    why = f"guessed{f' from {tile}' if tile else ''}: a thread for each element{' of C' * is_product}"
    block: tuple[str, ...] = (tile or str(_DEFAULT_TILE),) * 2 if has_y else (tile or ("128" if is_product else "256"), "1")
    if is_product and not has_blocks:
        block, why = (outer if has_y else ("m", "1")), "guessed: the kernel reads no blockIdx, so there is one block"
        why = "guessed: a block for each product" if kernel.batch else why
    elif is_product and not has_y:
        why = "guessed: the kernel reads no y, so there is a thread for each element of C, or more than enough"
        if _BY_WARPS.search(body) and not said["block"]:
            whole = "32 * n * m"
            why = "guessed: the kernel divides by a warp's 32 threads, so there is a warp for each element of C"
    is_told, is_asked = (any(each.get(name) for name in ("grid", "block")) for each in (said, flags))
    if is_told:
        why = "as asked for" if is_asked else "from the comment // lab:"
    elif in_words := _in_words(file, own):
        said |= in_words
        is_told, why = True, "from the comment on the launch"
    block = _extents(said["block"]) if said["block"] else block
    covering = (_blocks_of(outer[0], block[0]), _blocks_of(outer[1], block[1])) if has_y else (_blocks_of(whole, block[0]), "1")
    grid = _extents(said["grid"]) if said["grid"] else covering if has_blocks else ("1", "1")
    if not is_product and is_by_rows(kernel) and not said["grid"]:
        grid, why = ("n", "1"), "guessed: a block for each row"
    is_dynamic = "cuda_on_cpu::dynamic_shared_memory" in file.compiled and not said["shared"]
    guesses = [(grid, block)]
    if has_blocks and not is_told:
        guesses = _guesses(file, kernel, grid, block, outer, whole)
    elif has_blocks and is_product and not said["grid"]:
        guesses += [each for each in _guesses(file, kernel, grid, block, outer, whole) if each[1] == block]
        guesses += _by_warps(kernel, [block])
    is_told = is_told and len(guesses) == 1
    if is_product and guesses[0] != (grid, block):
        why = "guessed from the factors of blockIdx"
    item = 2 * np.dtype(meaning.of_factors).itemsize if meaning is not None else 8  # a tile of A and one of B
    launches = [
        Launch(grid, block, said["shared"] or (f"{item} * {block[0]} * {block[1]}" if is_dynamic else "0"), why)
        for grid, block in guesses
    ]
    if kernel.batch and not said["grid"]:
        axis = "xyz".index(kernel.batch)
        launches = [replace(each, grid=(*(*each.grid, "1")[:axis], _BATCH, *each.grid[axis + 1 :])) for each in launches]
    if is_dynamic:
        launches.insert(1, replace(launches[0], shared=_ENOUGH_SHARED))
    first, *others = (replace(each, is_guess=not is_told or is_dynamic, follows_block=not said["grid"]) for each in launches)
    return replace(first, others=tuple(others))


def is_by_rows(kernel: StudentKernel) -> bool:
    """Whether a block's first element is its number times a size: a row begins there."""
    sizes = "|".join(each.name for each in kernel.parameters if each.is_number) or "(?!)"
    begins = rf"\bblockIdx\.x\s*\*\s*(?:{sizes})\b|\b(?:{sizes})\s*\*\s*blockIdx\.x"
    return not _Y.search(kernel.indices) and re.search(begins, kernel.indices) is not None


def _guesses(
    file: StudentFile, kernel: StudentKernel, grid: tuple[str, ...], block: tuple[str, ...], outer: tuple[str, str], whole: str
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Plausible grids and blocks of a kernel. `grid`, `block`: the guess for a thread to each element. `outer`: the sizes along x
    and y. `whole`: the number of elements.

    What multiplies blockIdx is the part of C that a block computes; without a factor, a block computes a row, a column or an
    element. An axis without threadIdx has a single thread.
    """
    body, steps = kernel.indices, [_step(kernel, axis, file.constants) for axis in "xy"]
    length, blocks, is_product = _threads_of_arrays(file, kernel), list[tuple[str, ...]](), whole != "n"
    if not is_product and not _Y.search(body):
        is_scaled = not is_by_rows(kernel)
        blocks = [(each, "1") for each in (length, steps[0], "128", "512", "1024") if each and each != "1"]
        return [(grid, block), *(((_blocks_of(whole, each[0]) if is_scaled else grid[0], "1"), each) for each in blocks)]
    if not _Y.search(body):
        blocks = [(length, "1"), block] if length else [block]
        is_scaled = steps[0] != "1" or "gridDim" in body
        grids = [re.sub(rf"\b{block[0]}\b", length, grid[0])] * bool(length) if is_scaled else ["n * m", "n", "m"]
        threads = _OF_A_GROUP.findall(body)
        grids += (
            [_blocks_of(f"{of} * {whole}", block[0]) for of in threads] if threads else [_blocks_of(whole, steps[0] or block[0])]
        )
        return [(grid, block), *(((size, "1"), each) for each in blocks for size in grids)]
    values = [value_of(step, file.constants) if step else None for step in steps]
    if "threadIdx.y" not in body:
        x, y = values
        counts = [str(x * y // part) for part in (16, 64, 8, 4, 1, 2, 32)] if x and y and x * y > 1 else []
        counts = [*filter(None, [length]), *counts, "128"]
        blocks = [(count, "1") for count in counts if _WARP <= int(count) <= _MOST_THREADS]
    else:
        x, y = (value or 1 for value in values)
        parts = [(x // of_x, y // of_y) for of_x, of_y in ((1, 1), (2, 2), (1, 2), (1, 4), (2, 1), (4, 4), (1, 8))]
        blocks = [(str(a), str(b)) for a, b in parts if min(a, b) > 1 and _WARP <= a * b <= _MOST_THREADS]
        if blocks and (x, y) == (int(blocks[0][0]), int(blocks[0][1])):
            blocks[0] = (steps[0] or "", steps[1] or "")
        # such as blockIdx.y * TILE * 2
        is_coarse = not is_product or any("*" in (step or "") for step in steps)
        blocks = [block, *blocks] if is_coarse or not blocks else [blocks[0], block, *blocks[1:]]
        steps = [None if step == "1" else step for step in steps]
    found = []
    for each in blocks:
        parts_of_c = [step or each[axis] for axis, step in enumerate(steps)]
        for sizes in (outer, outer[::-1]):
            covering = tuple(size if of == "1" else _blocks_of(size, of) for size, of in zip(sizes, parts_of_c, strict=True))
            found.append((covering, each))
    wide = [
        ((_blocks_of(outer[0], f"{each[0]} * {of}"), y), each) for (_, y), each in found[:1] for of in _OF_VECTOR.findall(body)
    ]
    blocks = [("32", y) for y in dict.fromkeys(filter(None, [*map(str, values), "8", "4"])) if y.isdecimal() and 1 < int(y) <= 32]
    # First the usual sizes along x and y in all blocks, then exchanged ones in the first, then threads of several columns.
    return list(dict.fromkeys([*found[::2], found[1], *wide, *_by_warps(kernel, blocks)]))


def _by_warps(kernel: StudentKernel, blocks: Sequence[tuple[str, ...]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Grids with these blocks for a kernel whose warps, numbered by threadIdx.y, compute a row each."""
    if "threadIdx.y" not in kernel.indices:
        return []
    grids = [((_blocks_of("n", y), "1") if "blockIdx.x" in kernel.indices else ("1", _blocks_of("n", y))) for _, y, *_ in blocks]
    return list(zip(grids, blocks, strict=True))


def strict_launches(kernel: StudentKernel, launch: Launch) -> Iterator[Launch]:
    """Other launches on which a kernel that is right with this guess must be right: of few blocks where it strides by the grid,
    and of blocks that are not square where it mixes their axes."""
    grid = list(launch.grid)
    for axis, name in enumerate("xy"):
        strides = "|".join([rf"[^;]*\bgridDim\.{name}\b", *re.findall(rf"(\w+)\s*=(?!=)[^;=]*\bgridDim\.{name}\b", kernel.body)])
        if re.search(rf"\+=\s*(?:{strides})", kernel.body):
            grid[axis] = "2"
    if grid != list(launch.grid):
        why = "since the kernel strides by its grid, it has to be right with a small one, too"
        yield replace(launch, grid=tuple(grid), why=why)
    mixed = re.search(r"\bblock(?:Idx|Dim)\.(?:x\s*\*\s*block(?:Idx|Dim)\.y|y\s*\*\s*block(?:Idx|Dim)\.x)", kernel.body)
    if mixed and launch.block == (str(_DEFAULT_TILE),) * 2 and "__shared__" not in kernel.body:
        grid = [re.sub(rf"\b{_DEFAULT_TILE}\b", of, text) for of, text in zip(("32", "8"), launch.grid, strict=True)]
        yield replace(launch, grid=tuple(grid), block=("32", "8"), why=f"{mixed[0]} is right in square blocks alone")


def _step(kernel: StudentKernel, axis: str, constants: Mapping[str, int]) -> str | None:
    """The constant that multiplies this axis of blockIdx, 1 for none; None for blockDim."""
    term, found = r"(?:[\w.]+|\([^()]*\))", list[str]()
    for product in re.finditer(rf"(?:{term}\s*\*\s*)*\bblockIdx\.{axis}\b(?:\s*\)?\s*\*\s*{term})*", kernel.indices):
        factors = [each.strip(" ()") for each in product[0].split("*")]
        if f"blockDim.{axis}" in factors:
            return None
        known = [each for each in factors if value_of(each, constants)]
        found += [" * ".join(known)] if known else []
    return max(found, key=lambda text: value_of(text, constants) or 0, default="1")


def _threads_of_arrays(file: StudentFile, kernel: StudentKernel) -> str:
    """The block size that the longest 1D shared array suggests; "" for none."""
    extents = [each[0] for each in extents_of(kernel.body, file.constants).values() if len(each) == 1]
    longest = max(extents, default=0)
    longest -= longest % 32 if longest > 32 else 0  # an array may have a halo
    return str(longest) if 0 < longest <= _MOST_THREADS else ""


def _has_rows_along_x(kernel: StudentKernel, meaning: Meaning) -> bool:
    """Whether the kernel bounds its x index by C's rows, and its y index by C's columns."""
    sizes = {each.name: of for each, of in zip(kernel.parameters, meaning.of, strict=True) if each.is_number}
    a, b, c = meaning.names(kernel)
    for matrix, of in ((a, "n"), (c, "n"), (b, "m"), (c, "m")):
        sizes.update((f"{matrix}.{name}", of) for name in (FIELDS_OF_ROWS if of == "n" else FIELDS_OF_COLUMNS))
    index = "blockIdx" if all(f"blockIdx.{along}" in kernel.indices for along in "xy") else "(?:threadIdx|blockIdx)"
    bounds: dict[str, set[str]] = {"x": set(), "y": set()}
    for along, found in bounds.items():
        for name in re.findall(rf"(\w+)\s*=(?!=)[^;,=]*\b{index}\.{along}\b", kernel.indices):
            found.update(sizes.get(text, "") for text in re.findall(rf"(?<![\w.]){name}\s*(?:<|>=)\s*([\w.]+)", kernel.body))
    return "n" in bounds["x"] and "m" not in bounds["x"] and "m" in bounds["y"] and "n" not in bounds["y"]


def _tile(file: StudentFile, kernel: StudentKernel) -> str:
    """The constant named as a tile's or block's width, or the width that all square shared arrays have; "" for neither."""
    named = [
        name for name in file.constants if _TILE.search(name) and re.search(rf"\b{name}\b", file.compiled.split(name, 1)[-1])
    ]
    widths = set[str]()
    for texts in shared_arrays(kernel.body).values():  # [T * T] is taken as [T][T]
        extents = texts[0].replace(" ", "").split("*") if len(texts) == 1 else texts[-2:]
        if len(extents) == 2:  # without padding against bank conflicts, as in [T][T + 1] or [32][33]
            rows, columns = (re.sub(r"\s*\+\s*1$", "", text) for text in extents)
            is_padded = rows.isdigit() and columns == str(int(rows) + 1)
            widths |= {rows} if rows == columns or is_padded else set()
    squares = {text: value_of(text, file.constants) or 0 for text in widths}
    fitting = {text for text, value in squares.items() if 0 < value <= _LONGEST}
    if len(fitting) == 1 and len(squares) == 1 and not set(squares.values()) & {file.constants[name] for name in named}:
        return fitting.pop()
    return named[0] if named else ""


def _blocks_of(size: str, threads: str) -> str:
    threads = threads if threads.isalnum() or threads.isidentifier() else f"({threads})"
    return f"({size} + {threads} - 1) / {threads}"


def within_comment(comment: str, name: str) -> str:
    """The text in parentheses after this name in a comment "// lab:"; "" where it is missing. UsageError for unknown names and
    unclosed parentheses."""
    texts = dict(_OF_NAME.findall(comment))
    if comment.count("(") > comment.count(")"):
        raise UsageError(f"// lab: {comment}: a parenthesis is not closed", code="lab-launch")
    if unknown := sorted(texts.keys() - {*_OF_COMMENT}):
        raise UsageError(f"// lab: {comment}: {unknown[0]}(…) is not known; {', '.join(_OF_COMMENT)} are", code="lab-launch")
    return texts.get(name, "").strip()


def _in_words(file: StudentFile, own: Mapping[str, str]) -> dict[str, str]:
    """Block and grid from a student's comment on the launch, as <<<(n + 255) / 256, 256>>> or dim3 b(16, 16), g(n / 16, 4);
    empty without one in plain arithmetic. The block has numbers alone. A grid that divides without rounding up is left out."""
    text = " ".join(re.findall(r"//[^\n]*|/\*.*?\*/", file.text, re.DOTALL))
    text = re.sub(r"\bceil\(\s*\(?(?:float\))?\s*(\w+)\s*/\s*(\d+)(?:\.0*f?)?\s*\)", r"((\1 + \2 - 1) / \2)", text)
    launch = re.search(r"<<<(.*?)>>>", text)
    within = split(launch[1])[:2] if launch else []
    found = [
        (kind, re.sub(r"^dim3\((.*)\)$", r"\1", each.strip())) for kind, each in zip(("grid", "block"), within, strict=False)
    ]
    if re.search(r"\bdim3\b|\b(?:grid|block)\(", text):
        found += [("", each) for _, each in _OF_NAME.findall(text)]
    sizes, said = {**file.constants, **dict.fromkeys("nlm", 64)}, dict[str, str]()
    for of, each in found:
        parts = split(re.sub(r"\b[A-Za-z_]\w*", lambda word: own.get(word[0], word[0]), each))
        if not 1 <= len(parts) <= 3 or any(value_of(part, sizes) is None for part in parts):
            continue
        kind = of or ("grid" if any(value_of(part, file.constants) is None for part in parts) else "block")
        if kind == "block" or all("+" in part or "-" in part or "/" not in part for part in parts):
            said.setdefault(kind, ", ".join(parts))
    return said if "block" in said else {}


def _extents(text: str) -> tuple[str, ...]:
    """The comma-separated expressions of x, y and z; y defaults to 1, and z is left out if missing."""
    parts = split(text)
    if len(parts) > 3:
        raise UsageError(f"({text}): x, y and z are taken", code="lab-launch")
    return (*parts, *["1"] * (2 - len(parts)))
