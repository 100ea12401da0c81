# SPDX-License-Identifier: MIT
"""What a student's kernel is launched with: which parameter is A, B, C or a size, and how many blocks of how many threads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybrid.classroom.arithmetic import evaluated
from hybrid.classroom.student_file import ELEMENTS, Parameter, StudentFile, StudentKernel
from hybrid.errors import UsageError

Pair = tuple[int, int]

_SIZES = "n (rows of A and C), l (columns of A, rows of B) or m (columns of B and C)"
_ROWS, _COLUMNS = (
    ("h", "height", "rows", "row", "nrows", "numrows"),
    ("w", "width", "columns", "cols", "col", "ncols", "numcolumns", "numcols"),
)
_OF_MATRIX = {  # rows and columns of the matrices that lectures call so
    **dict.fromkeys(("a", "m", "md", "d_a", "dm"), ("n", "l")),
    **dict.fromkeys(("b", "n", "nd", "d_b", "dn"), ("l", "m")),
    **dict.fromkeys(("c", "p", "pd", "d_c", "dp"), ("n", "m")),
}
_TILE, _COUNT = re.compile(r"tile|block", re.IGNORECASE), re.compile(r"num|count|blocks|tiles", re.IGNORECASE)
_LONGEST = 32  # of a square block's side
_DEFAULT_TILE, _DEFAULT_THREADS = 16, 128
_MOST_THREADS, _MOST_SHARED = 1024, 227 << 10  # of a block


@dataclass(frozen=True)
class Launch:
    """Texts of arithmetic with n, l, m and the file's constants. `why`: where they are from."""

    grid: tuple[str, str]
    block: tuple[str, str]
    shared: str  # bytes of dynamic shared memory
    why: str

    def at(self, sizes: Mapping[str, int]) -> tuple[Pair, Pair, int]:
        """Blocks, threads of a block and bytes."""
        grid, block = ((evaluated(x, sizes), evaluated(y, sizes)) for x, y in (self.grid, self.block))
        shared = evaluated(self.shared, sizes)
        if min(grid) < 1:
            raise UsageError(f"a grid of {_pair(grid)} blocks cannot be launched: grid({', '.join(self.grid)})")
        if shared > _MOST_SHARED:
            raise UsageError(f"{shared} bytes of shared memory are more than a block can have, {_MOST_SHARED}")
        if min(block) < 1 or block[0] * block[1] > _MOST_THREADS:
            raise UsageError(
                f"a grid of {_pair(grid)} blocks of {_pair(block)} threads cannot be launched: a block has 1 to 1024 threads"
            )
        return grid, block, shared

    def __str__(self) -> str:
        text = f"grid({', '.join(self.grid)}) block({', '.join(self.block)})"
        return text + (f" shared({self.shared})" if self.shared != "0" else "")


@dataclass(frozen=True)
class Meaning:
    """Of each parameter "A", "B", "C", "n", "l" or "m". `square`: one size stands for all three."""

    of: tuple[str, ...]
    dtype: str
    square: bool

    def names(self, kernel: StudentKernel) -> tuple[str, str, str]:
        """What the kernel calls A, B and C."""
        called = dict(zip(self.of, (each.name for each in kernel.parameters), strict=True))
        return called["A"], called["B"], called["C"]

    def told(self, kernel: StudentKernel) -> str:
        """What is called otherwise than here."""
        pairs = [(each.name, of) for each, of in zip(kernel.parameters, self.of, strict=True)]
        if self.square:
            pairs = [(name, "n = l = m" if of == "n" else of) for name, of in pairs]
        return "; ".join([*(f"{name} is {of}" for name, of in pairs if name != of), self.dtype])


def meaning_of(file: StudentFile, kernel: StudentKernel, let: Mapping[str, str]) -> Meaning:
    """`let`: sizes by the parameter's name, as the user says. UsageError where something cannot be told."""
    for each in kernel.parameters:
        if not (each.is_number or each.is_pointer or each.type in file.structs):
            raise UsageError(
                f"{kernel.name}: the parameter {each} is no pointer, no whole number, and no struct of {file.path.name}"
            )
    matrices = [each for each in kernel.parameters if not each.is_number]
    if len(matrices) != 3:
        raise UsageError(f"{kernel} takes {len(matrices)} matrices: the lab runs kernels that multiply A by B into C")
    elements = {_element(file, each) for each in matrices}
    if len(elements) > 1 or not elements <= ELEMENTS.keys():
        raise UsageError(
            f"{kernel}: the elements are {', '.join(sorted(elements))}; float and double matrices are multiplied here"
        )
    numbers = [each for each in kernel.parameters if each.is_number]
    of_numbers = _sizes([each.name for each in numbers], let)
    letters = iter(_letters([each.name for each in matrices]))
    of = tuple(of_numbers[each.name] if each.is_number else next(letters) for each in kernel.parameters)
    square = len(numbers) == 1
    return Meaning(of, ELEMENTS[elements.pop()], square)


def _letters(names: Sequence[str]) -> str:
    """In the order of the parameters: by their names, A, B, C or M, N, P, else A, B and C."""
    bare = [re.sub(r"^(d|dev|g|h|mat)_|_(d|dev|mat)$|(?<=^.)d$", "", name.lower()) for name in names]
    for usual in ("abc", "mnp"):
        if sorted(bare) == sorted(usual):
            return "".join("ABC"[usual.index(name)] for name in bare)
    return "ABC"


def _element(file: StudentFile, parameter: Parameter) -> str:
    if parameter.is_pointer:
        return parameter.type
    fields = file.structs[parameter.type]
    pointers = [kind[:-1].replace("const", "").strip() for kind in fields.values() if kind.endswith("*")]
    if len(pointers) != 1:
        raise UsageError(f"the struct {parameter.type} has {len(pointers)} pointers: one is wanted, to the elements")
    return pointers[0]


def _sizes(names: Sequence[str], let: Mapping[str, str]) -> dict[str, str]:
    if unknown := set(let) - set(names):
        raise UsageError(f"--let {sorted(unknown)[0]}: the kernel has no such number; it has {', '.join(names) or 'none'}")
    if wrong := [size for size in let.values() if size not in ("n", "l", "m")]:
        raise UsageError(f"--let …={wrong[0]}: a size is {_SIZES}")
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
        if not size:
            raise UsageError(f"what {name} stands for cannot be told: --let {name}=SIZE says it, {_SIZES}")
        sizes[name] = size
    return sizes


def _by_matrix(name: str) -> str:
    """wA, height_B, numCColumns: the columns of A, …"""
    name = re.sub(r"^num_?", "", name)
    for extents, place in ((_ROWS, 0), (_COLUMNS, 1)):
        for extent in extents:
            for matrix, sizes in _OF_MATRIX.items():
                if name in (f"{extent}{matrix}", f"{extent}_{matrix}", f"{matrix}{extent}", f"{matrix}_{extent}"):
                    return sizes[place]
    return ""


def launch_of(file: StudentFile, kernel: StudentKernel, meaning: Meaning, flags: Mapping[str, str]) -> Launch:
    """By flags, by a comment "// lab: grid(…) block(…)", or guessed from what the kernel reads."""
    said = {name: flags.get(name) or _within(file.launch_comment, name) for name in ("grid", "block", "shared")}
    guessed = _guess(file, kernel)
    where = "as asked for" if any(flags.values()) else "from the comment // lab:" if file.launch_comment else guessed.why
    grid, block = (_two(said[name]) if said[name] else getattr(guessed, name) for name in ("grid", "block"))
    if said["block"] and not said["grid"]:
        grid = _covering(kernel, block)
    if "dynamic_shared_memory" in file.compiled and not said["shared"]:
        raise UsageError(f"{file.path.name} has dynamic shared memory: --shared BYTES, or // lab: shared(BYTES), tells how much")
    return Launch(grid, block, said["shared"] or "0", where)


def _guess(file: StudentFile, kernel: StudentKernel) -> Launch:
    text = kernel.body
    if "blockIdx" not in text:
        block = ("m", "n") if ".y" in text else ("m", "1")
        return Launch(("1", "1"), block, "0", "guessed: the kernel reads no blockIdx, so there is one block")
    tiles = [
        name for name in file.constants if _TILE.search(name) and re.search(rf"\b{name}\b", file.compiled.split(name, 1)[-1])
    ]
    if not re.search(r"(threadIdx|blockIdx)\.y", text):
        block = (tiles[0] if tiles else str(_DEFAULT_THREADS), "1")
        return Launch(
            _covering(kernel, block),
            block,
            "0",
            "guessed: the kernel reads no y, so there is a thread for each element of C, or more than enough",
        )
    tile = tiles[0] if tiles else str(_DEFAULT_TILE)
    why = f"guessed from {tile}" if tiles else "guessed"
    return Launch(_covering(kernel, (tile, tile)), (tile, tile), "0", f"{why}: a thread for each element of C")


def _covering(kernel: StudentKernel, block: tuple[str, str]) -> tuple[str, str]:
    x, y = block
    if not re.search(r"(threadIdx|blockIdx)\.y", kernel.body):
        return (_blocks_of("n * m", x), "1")
    return (_blocks_of("m", x), _blocks_of("n", y))


def _blocks_of(size: str, threads: str) -> str:
    threads = threads if threads.isalnum() or threads.isidentifier() else f"({threads})"
    return f"({size} + {threads} - 1) / {threads}"


def _within(comment: str, name: str) -> str:
    """The text between the parentheses after this name."""
    found = re.search(rf"\b{name}\s*\(", comment)
    if found is None:
        return ""
    depth, begin = 1, found.end()
    for place in range(begin, len(comment)):
        depth += {"(": 1, ")": -1}.get(comment[place], 0)
        if not depth:
            return comment[begin:place]
    raise UsageError(f"// lab: {comment}: a parenthesis is not closed")


def _two(text: str) -> tuple[str, str]:
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if len(parts) > 2:
        raise UsageError(f"({text}): x and y are taken")
    return parts[0].strip(), parts[1].strip() if len(parts) > 1 else "1"


def _pair(numbers: Pair) -> str:
    return "×".join(map(str, numbers))
