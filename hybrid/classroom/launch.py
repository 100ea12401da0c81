# SPDX-License-Identifier: MIT
"""How a student's kernel is launched: how many blocks of how many threads, as the user says or as can be guessed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hybrid.classroom.arithmetic import evaluated, evaluated_or_0
from hybrid.classroom.c_text import shared_arrays
from hybrid.classroom.meaning import Meaning
from hybrid.classroom.student_file import StudentFile
from hybrid.classroom.student_kernel import StudentKernel
from hybrid.core.problem import record
from hybrid.errors import UsageError

Extents = tuple[int, ...]  # x and y, and z where that is told

_TILE = re.compile(r"tile|block", re.IGNORECASE)
# A thread's number is divided by the threads of a warp.
_BY_WARPS = re.compile(r"blockIdx\.x[^;]*(?:/\s*\(?(?:warpSize|32|WARP\w*)\b|>>\s*5\b)")
_ROWS, _COLUMNS = ("height", "rows", "h"), ("width", "columns", "cols", "w")  # fields of a struct
_OF_COMMENT = ("kernel", "grid", "block", "shared")
_LONGEST = 32  # side of a square block
_DEFAULT_TILE, _DEFAULT_THREADS = 16, 128
_MOST_THREADS, _MOST_DEEP, _MOST_SHARED = 1024, 64, 227 << 10  # of a block, and of its z


@record
class Launch:
    """A launch configuration, as texts of arithmetic with n, l, m and the file's constants."""

    grid: tuple[str, ...]  # x and y, and z where that is told
    block: tuple[str, ...]
    shared: str  # bytes of dynamic shared memory
    why: str  # where the texts are from
    is_guess: bool = False
    follows_block: bool = False  # the grid is computed from the block
    is_unsure: bool = False  # a guess, though the kernel has shared arrays, from which no width of a block follows

    def at(self, sizes: Mapping[str, int]) -> tuple[Extents, Extents, int]:
        """Blocks, threads of a block, and bytes of dynamic shared memory for these sizes and constants. UsageError where that
        cannot be launched."""
        grid, block = (tuple(evaluated(text, sizes) for text in texts) for texts in (self.grid, self.block))
        shared = evaluated(self.shared, sizes)
        if min(grid) < 1:
            raise UsageError(
                f"a grid of {_times(grid)} blocks cannot be launched: grid({', '.join(self.grid)})", code="lab-launch"
            )
        if shared > _MOST_SHARED:
            raise UsageError(f"{shared} bytes of shared memory are more than a block can have, {_MOST_SHARED}", code="lab-launch")
        if min(block) < 1 or math.prod(block) > _MOST_THREADS or any(deep > _MOST_DEEP for deep in block[2:]):
            raise UsageError(
                f"a grid of {_times(grid)} blocks of {_times(block)} threads cannot be launched: a block has 1 to 1024 threads, "
                f"at most {_MOST_DEEP} in z",
                code="lab-launch",
            )
        return grid, block, shared

    def block_at(self, sizes: Mapping[str, int]) -> Extents:
        """Threads of a block for these sizes and constants, also where no grid of them can be launched."""
        return tuple(evaluated(text, sizes) for text in self.block)

    def __str__(self) -> str:
        text = f"grid({', '.join(self.grid)}) block({', '.join(self.block)})"
        return text + (f" shared({self.shared})" if self.shared != "0" else "")


def launch_of(file: StudentFile, kernel: StudentKernel, meaning: Meaning, flags: Mapping[str, str]) -> Launch:
    """The launch that the options say, or a comment "// lab: grid(…) block(…)", or one that is guessed from the kernel.

    `flags`: the options, which may use the kernel's own names of sizes or n, l and m, as the comment may.
    """
    own = {each.name: of for each, of in zip(kernel.parameters, meaning.of, strict=True) if each.is_number}
    given = {name: flags.get(name) or within_comment(file.launch_comment, name) for name in ("grid", "block", "shared")}
    said = {name: re.sub(r"\b[A-Za-z_]\w*", lambda word: own.get(word[0], word[0]), text) for name, text in given.items()}
    outer = ("n", "m") if _has_rows_along_x(kernel, meaning) else ("m", "n")
    guessed = _guess(file, kernel, outer)
    is_asked = any(flags.get(name) for name in ("grid", "block"))
    is_told = any(said[name] for name in ("grid", "block"))
    where = "as asked for" if is_asked else "from the comment // lab:" if is_told else guessed.why
    grid, block = (_extents(said[name]) if said[name] else getattr(guessed, name) for name in ("grid", "block"))
    if said["block"] and not said["grid"]:
        grid = _covering(kernel, block, outer)
    if "cuda_on_cpu::dynamic_shared_memory" in file.compiled and not said["shared"]:
        raise UsageError(
            f"{file.path.name} has dynamic shared memory: --shared BYTES, or // lab: shared(BYTES), tells how much",
            code="lab-launch",
        )
    is_unsure = not is_told and guessed.is_unsure
    return Launch(grid, block, said["shared"] or "0", where, not is_told, not said["grid"], is_unsure)


def _guess(file: StudentFile, kernel: StudentKernel, outer: tuple[str, str]) -> Launch:
    """The launch that the built-in variables in the kernel's body, its arrays and the file's constants suggest. `outer`: the
    sizes of C along x and y."""
    text = kernel.body
    if "blockIdx" not in text:
        block = outer if ".y" in text else ("m", "1")
        return Launch(("1", "1"), block, "0", "guessed: the kernel reads no blockIdx, so there is one block")
    tile = _tile(file, kernel)
    if not re.search(r"(threadIdx|blockIdx)\.y", text):
        block = (tile or str(_DEFAULT_THREADS), "1")
        if _BY_WARPS.search(text):
            grid = (_blocks_of("32 * n * m", block[0]), "1")
            return Launch(
                grid, block, "0", "guessed: the kernel divides by a warp's 32 threads, so there is a warp for each element of C"
            )
        return Launch(
            _covering(kernel, block, outer),
            block,
            "0",
            "guessed: the kernel reads no y, so there is a thread for each element of C, or more than enough",
        )
    why = f"guessed from {tile}" if tile else "guessed"
    is_unsure = not tile and bool(shared_arrays(kernel.body))
    tile = tile or str(_DEFAULT_TILE)
    return Launch(
        _covering(kernel, (tile, tile), outer), (tile, tile), "0", f"{why}: a thread for each element of C", is_unsure=is_unsure
    )


def launch_of_arrays(file: StudentFile, kernel: StudentKernel, flags: Mapping[str, str]) -> Launch:
    """The launch of a kernel that multiplies no matrices: with a thread for each of n elements, or of n rows and m columns."""
    given = {name: flags.get(name) or within_comment(file.launch_comment, name) for name in ("grid", "block", "shared")}
    numbers = [each.name for each in kernel.parameters if each.is_number]
    given = {name: re.sub(rf"\b(?:{'|'.join(numbers)})\b", "n", text) for name, text in given.items()}
    extents = [evaluated_or_0(each[0], file.constants) for each in shared_arrays(kernel.body).values() if len(each) == 1]
    is_flat = not re.search(r"(threadIdx|blockIdx)\.y", kernel.body)
    longest = max(extents, default=0) if is_flat else 0
    longest -= longest % 32 if longest > 32 else 0  # an array may have neighbours of the block, too
    tile = _tile(file, kernel) or (str(longest) if 0 < longest <= _MOST_THREADS else "")
    usual = (tile or "256", "1") if is_flat else (tile or str(_DEFAULT_TILE),) * 2
    block = _extents(given["block"]) if given["block"] else usual
    grid: tuple[str, ...] = ("1", "1")
    if given["grid"]:
        grid = _extents(given["grid"])
    elif "blockIdx" in kernel.body:
        grid = (_blocks_of("n", block[0]), "1") if is_flat else (_blocks_of("m", block[0]), _blocks_of("n", block[1]))
    shared = given["shared"] or (f"8 * {block[0]} * {block[1]}" if "cuda_on_cpu::dynamic_shared_memory" in file.compiled else "0")
    why = "from the comment // lab:, or as asked for" if given["grid"] or given["block"] else "guessed: a thread for each element"
    return Launch(grid, block, shared, why, is_guess=not given["grid"])


def _has_rows_along_x(kernel: StudentKernel, meaning: Meaning) -> bool:
    """Whether the kernel compares what it makes of x with the number of C's rows, and what it makes of y with that of columns."""
    sizes = {each.name: of for each, of in zip(kernel.parameters, meaning.of, strict=True) if each.is_number}
    a, b, c = meaning.names(kernel)
    for matrix, field, of in ((a, _ROWS, "n"), (c, _ROWS, "n"), (b, _COLUMNS, "m"), (c, _COLUMNS, "m")):
        sizes.update((f"{matrix}.{name}", of) for name in field)
    bounds: dict[str, set[str]] = {"x": set(), "y": set()}
    for along, found in bounds.items():
        for name in re.findall(rf"(\w+)\s*=(?!=)[^;,=]*\b(?:threadIdx|blockIdx)\.{along}\b", kernel.body):
            found.update(sizes.get(text, "") for text in re.findall(rf"(?<![\w.]){name}\s*(?:<|>=)\s*([\w.]+)", kernel.body))
    return "n" in bounds["x"] and "m" not in bounds["x"] and "m" in bounds["y"] and "n" not in bounds["y"]


def _tile(file: StudentFile, kernel: StudentKernel) -> str:
    """The constant whose name says that it is a tile's or a block's width, or the extent that all square arrays in shared memory
    have; "" where there is neither."""
    named = [
        name for name in file.constants if _TILE.search(name) and re.search(rf"\b{name}\b", file.compiled.split(name, 1)[-1])
    ]
    extents = {name: evaluated_or_0(name, file.constants) for name in named}
    arrays = [_as_square(texts) for texts in shared_arrays(kernel.body).values()]
    widths = {columns for rows, columns in (_without_padding(each[-2:]) for each in arrays if len(each) > 1) if rows == columns}
    squares = {text: evaluated_or_0(text, file.constants) for text in widths}
    fitting = {text for text, value in squares.items() if 0 < value <= _LONGEST}
    if len(fitting) == 1 and len(squares) == 1 and not set(squares.values()) & set(extents.values()):
        return fitting.pop()
    return named[0] if named else ""


def _as_square(extents: tuple[str, ...]) -> tuple[str, ...]:
    """The extents of an array, those of [T * T] as if it were [T][T]."""
    factors = extents[0].replace(" ", "").split("*") if len(extents) == 1 else []
    return tuple(factors) if len(factors) == 2 else extents


def _without_padding(extents: tuple[str, ...]) -> tuple[str, str]:
    """The extents of an array without padding: T and T for [T][T + 1], which avoids bank conflicts."""
    rows, columns = (re.sub(r"\s*\+\s*1$", "", text) for text in extents)
    return rows, columns


def _covering(kernel: StudentKernel, block: tuple[str, ...], outer: tuple[str, str]) -> tuple[str, ...]:
    """The grid of such blocks that has a thread for each element of C. `outer`: its sizes along x and y."""
    x, y = block[:2]
    if not re.search(r"(threadIdx|blockIdx)\.y", kernel.body):
        return (_blocks_of("n * m", x), "1")
    return (_blocks_of(outer[0], x), _blocks_of(outer[1], y))


def _blocks_of(size: str, threads: str) -> str:
    threads = threads if threads.isalnum() or threads.isidentifier() else f"({threads})"
    return f"({size} + {threads} - 1) / {threads}"


def within_comment(comment: str, name: str) -> str:
    """The text between the parentheses after this name in the rest of a line "// lab:"; "" where it is not there. UsageError
    where one of the names is misspelt, or a parenthesis is not closed."""
    texts: dict[str, str] = {}
    depth = begin = 0
    for place, letter in enumerate(comment):
        if letter == "(":
            if not depth:
                word, begin = re.search(r"(\w*)(\s*)$", comment[begin:place]), place + 1
                called = word[1] if word and (word[1] in _OF_COMMENT or not word[2]) else ""
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
            if not depth:
                texts[called], begin = comment[begin:place].strip(), place + 1
    if depth:
        raise UsageError(f"// lab: {comment}: a parenthesis is not closed", code="lab-launch")
    if unknown := sorted(texts.keys() - {"", *_OF_COMMENT}):
        raise UsageError(f"// lab: {comment}: {unknown[0]}(…) is not known; {', '.join(_OF_COMMENT)} are", code="lab-launch")
    return texts.get(name, "")


def _extents(text: str) -> tuple[str, ...]:
    """The texts of x, y and, where there are three, z, which commas separate; y is 1 where there is one text."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if len(parts) > 3:
        raise UsageError(f"({text}): x, y and z are taken", code="lab-launch")
    return (*(part.strip() for part in parts), *["1"] * (2 - len(parts)))


def _times(numbers: Extents) -> str:
    return "×".join(map(str, numbers))
