# SPDX-License-Identifier: MIT
"""The report on a student's kernel, by shape: findings, causes before consequences; counters of memory and branches; a map of C
in characters; occupancy and roofline on a GPU; the verdict; and all of it as a JSON line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from hybrid.classroom.gpu_models import WARP, GpuModel, Occupancy, occupancy
from hybrid.classroom.launch import Extents, Launch, Meaning
from hybrid.classroom.mistakes import Finding
from hybrid.classroom.student_file import ELEMENTS, StudentFile, StudentKernel
from hybrid.classroom.trial import Case
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.emulation.observed import SECTOR_BYTES, SHARED, Site

Names = tuple[str, ...]  # of A, B and C in the kernel, or of its arrays


@record
class Examination:
    """The kernel's runs on all shapes."""

    kernel: StudentKernel
    meaning: Meaning | None  # None for a kernel that multiplies no matrices
    launch: Launch
    cases: tuple[Case, ...]
    static_shared: int | None  # bytes of a block's __shared__ variables; None if unknown
    computes: str = ""  # what it was compared with, if not the usual product; "" for nothing
    stated: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of sizes: what they are multiples of, and the line

    @property
    def is_right(self) -> bool:
        return all(case.is_right for case in self.cases)

    @property
    def dtype(self) -> str:
        types = (ELEMENTS[each.type] for each in self.kernel.parameters if each.is_pointer and each.type in ELEMENTS)
        return self.meaning.dtype if self.meaning is not None else next(types, "")

    @property
    def names(self) -> Names:
        if self.meaning is not None:
            return self.meaning.names(self.kernel)
        arrays = [each.name for each in self.kernel.parameters if each.is_pointer]
        return tuple("/".join(arrays[number::3]) for number in range(3))  # as the observers number them


# Faults that explain wrong elements: races, stray accesses, missing values.
_CAUSES = ({"data-race"}, {"out-of-bounds", "illegal-address"}, {"uninitialised", "no-value"})
_SHARING = 4  # lanes that read the same element, on average, from which on a load counts as a broadcast
_NO_VALUE = -1e37  # smaller numbers come from the bytes 0xFE with which variables begin


def lines_named(finding: Finding) -> set[int]:
    """The lines of the student's file that a finding names."""
    found = re.findall(r"\bline (\d+)\b(?! of \w+\.\w)|\w\.cu:(\d+)", finding.text)
    return {int(number) for pair in found for number in pair if number}


def findings(case: Case, names: Names) -> list[Finding]:
    """The findings, causes before consequences, without consequences that say nothing new. `names`: of A, B and C."""
    found = without_repetition(case.faults)
    if not case.outcomes:
        return found
    n, m, c = case.batch * case.sizes[0], case.sizes[2], names[2]
    has_race, is_stray, has_no_value = (any(fault.code in codes for fault in found) for codes in _CAUSES)
    for name, number in () if is_stray else case.outside:
        found.append(Finding(f"it writes {name}[{number // m}][{number % m}], where nothing may be written", "out-of-bounds"))
    if case.uncertain and not is_stray:
        found.append(Finding(f"{counted(len(case.uncertain), 'element')} of {c} written by several threads", "several-writers"))
    if case.never:
        what = f"{len(case.never)} of {c}'s {n * m} elements never written{_part(sorted(case.never), n, m)}"
        found.append(Finding(f"{what}{_lines('; {} stores to ' + c, case, {2}, 'store')}", "never-written"))
    worst = max(case.outcomes, key=lambda outcome: len(outcome.wrong), default=None)
    if worst is not None and worst.mistake and not (has_race or is_stray or has_no_value or case.outside):
        code, text = worst.mistake
        if "index of {C}:" in text:
            where = _lines("; {} stores it", case, {2}, "store")
        else:  # wrong terms of factors in shared memory are read there; what is stored to C is a sum, and no factor
            stores = {site.line for site in case.sites if site.space == 2 and site.kind == "store"}
            of_tiles = [site for site in case.sites if site.space == SHARED and site.kind == "load" and site.line not in stores]
            in_shared = code == "wrong-terms" and of_tiles
            where = _lines("; {} reads the factors", case, {SHARED} if in_shared else {0, 1}, "load")
            where += _around(case.loops, where) if "the products" in text else ""
        found.append(Finding(text.format(**dict(zip("ABC", names, strict=True))) + where, code))
    if worst is not None and worst.first_wrong is not None:
        if not (has_race or is_stray or has_no_value or worst.mistake):
            if case.hints:
                found += case.hints
            elif worst.nan > len(case.never):
                text = f"{c} has NaN, and its factors have none: memory or a variable that nothing has written is read"
                found.append(Finding(text, "uninitialised"))
            elif worst.first_wrong[0] < _NO_VALUE:
                text = "a variable is used that has never been given a value: here it then begins with a huge negative one"
                found.append(Finding(text, "no-value"))
        first = f"the first {c}{_first(worst.wrong[0], worst.first_wrong, worst.first_writer, m)}"
        found.append(Finding(f"{len(case.wrong)} of {n * m} elements are wrong, {first}", "wrong-elements"))
    if case.depends_on_order and not has_race:
        found.append(Finding(f"{c} depends on the order in which blocks, warps and threads run", "order-dependent"))
    return found


def _part(numbers: Sequence[int], n: int, m: int) -> str:
    """The rows or columns of C (n×m) that these elements make up; else the first element, unless they are all."""
    rows, columns = sorted({number // m for number in numbers}), sorted({number % m for number in numbers})
    is_block = len(numbers) == len(rows) * len(columns)
    for several, of, others, name in ((columns, m, len(rows) == n, "columns"), (rows, n, len(columns) == m, "rows")):
        if is_block and others and len(several) < of and several[-1] - several[0] < len(several):
            return f": the {name} {several[0]} to {several[-1]}"
    return f", the first [{numbers[0] // m}][{numbers[0] % m}]" if len(numbers) < n * m else ""


def _lines(text: str, case: Case, spaces: set[int], kind: str) -> str:
    """The text with the lines that make such accesses to these spaces; "" if unknown."""
    lines = sorted({site.line for site in case.sites if site.space in spaces and site.kind == kind})
    return text.format(" and ".join(f"line {line}" for line in lines[:2])) if lines else ""


def _around(loops: Sequence[tuple[int, int]], where: str) -> str:
    """A clause with the loops around these lines, which begin in other ones."""
    lines = {int(number) for number in re.findall(r"line (\d+)", where)}
    begins = sorted({first for first, last in loops for line in lines if first < line <= last})
    texts = " and ".join(f"line {line}" for line in begins)
    return f", in the loop{'s' * (len(begins) > 1)} of {texts}" if begins else ""


def without_repetition(faults: Sequence[Finding]) -> list[Finding]:
    """The faults, races first: of several that differ only in elements and threads just the first, and no missing values that a
    race explains."""
    first: dict[str, Finding] = {}
    for fault in faults:
        first.setdefault(kind_of(fault), fault)
    races = [fault for fault in first.values() if fault.code == "data-race"]
    racing = {name for race in races for name in re.findall(r"(\w+)\[", race.text)}
    read = {each: re.search(r"line \d+ reads (\w+)\[", each.text) for each in first.values() if each.code == "uninitialised"}
    follow = [fault for fault, reads in read.items() if reads and reads[1] in racing]
    return [*races, *(fault for fault in first.values() if fault not in follow and fault not in races)]


def kind_of(finding: Finding) -> str:
    """The finding's text without elements, numbers and threads, but with lines and arrays."""
    text = re.sub(r"\[[^\]]*\]|\((?:block|thread) .*\)|: thread \(.*", "", finding.text)
    return re.sub(r"(?<!line )(?<![\w.:])-?\d+(?:\.\d+)?", "", text)


def _first(number: int, values: tuple[float, float], writer: Sequence[Extents], m: int) -> str:
    """A wrong element: indices, value, right value, writer."""
    is_now, right = values
    digits = 6 if f"{is_now:g}" != f"{right:g}" else 17  # enough to show a difference
    text = f"[{number // m}][{number % m}]: {is_now:.{digits}g} instead of {right:.{digits}g}"
    if writer:
        text += ", written by block ({}), thread ({})".format(*(", ".join(map(str, place)) for place in writer))
    return text


@record
class Counter:
    """A counter of a line."""

    line: int
    text: str
    dear: bool  # costs more than necessary


def lanes_of(case: Case, kind: str, *, shared: bool = False) -> int:
    """The number of threads' accesses of this kind, to global or shared memory."""
    return sum(site.lanes for site in case.sites if site.kind == kind and (site.space == SHARED) == shared)


def intensity(case: Case) -> float | None:
    """Operations a byte of global memory moved, in whole sectors; None if the kernel is no product, or requests were not
    counted."""
    moved = SECTOR_BYTES * sum(site.sectors for site in case.sites if site.space != SHARED)
    return 2 * math.prod(case.sizes) / moved if moved and case.outcomes else None


def divergence(case: Case) -> Iterator[Counter]:
    """The lines with divergent branches."""
    for branch in case.branches:
        if branch.divergent:
            executions = counted(branch.executions, "execution")
            yield Counter(branch.line, f"in {branch.divergent} of {executions} by a warp", dear=True)


def costs(case: Case, names: Names) -> list[str]:
    """What a right kernel costs, as far as counted: loads and stores, divergent branches, arithmetic intensity."""
    if not case.is_right or not (case.outcomes or case.sites):
        return []
    if case.outcomes:
        (n, l, m), outcome = case.sizes, case.outcomes[0]
        n *= case.batch
        a, b = (loads / (n * l * m) for loads in outcome.loads)
        of_each = f"{names[0]} {a:.3g}, {names[1]} {b:.3g}"
        traffic = f"global loads per multiply-add: {a + b:.3g} ({of_each}); stores per element: {outcome.stores / (n * m):.3g}"
    else:
        numbers = (f"{kind}s {lanes_of(case, kind) / math.prod(case.sizes):.3g}" for kind in ("load", "store", "atomic"))
        traffic = f"accesses of global memory per element: {', '.join(numbers)}"
    divergent = [f"line {counter.line} {counter.text}" for counter in divergence(case)]
    told = [traffic, f"divergent branches: {', '.join(divergent) or 'none'}"]
    if operations := intensity(case):
        told.append(f"arithmetic: {operations:.3g} operations for each byte of global memory that is moved")
    return told if case.sites else told[:1]


def is_dear(site: Site) -> bool:
    """Whether it costs more than necessary: it has bank conflicts, or moves unused bytes and is no broadcast."""
    if site.space == SHARED:
        return site.steps > site.least_steps
    return site.bytes < SECTOR_BYTES * site.sectors and site.lanes < _SHARING * site.addresses


def use_of_memory(site: Site, names: Names) -> Counter:
    shared, lanes = site.space == SHARED, site.lanes / site.requests
    what = "shared memory" if shared else names[site.space]
    does = {"load": f"loads from {what}", "store": f"stores to {what}", "atomic": f"updates {what} atomically"}[site.kind]
    of_lanes = f"a request of {lanes:.3g} lane{'s' * (lanes != 1)}" if lanes < WARP else "a warp's request"
    if shared:
        ways = site.steps / site.least_steps
        how = "no bank conflicts" if ways <= 1 else f"{ways:.3g}-way bank conflicts"
        return Counter(site.line, f"{does}: {how}, for {of_lanes}", is_dear(site))
    sectors, used = site.sectors / site.requests, site.bytes / (SECTOR_BYTES * site.sectors)
    if site.kind == "atomic" and site.lanes > site.addresses:
        how = f"{site.lanes / site.addresses:.3g} lanes at the same element, one after the other"
    elif site.lanes >= _SHARING * site.addresses:
        how = f"broadcast, {site.lanes / site.addresses:.3g} lanes want the same"
    else:
        how = "coalesced" if used >= 1 else f"not coalesced, {int(100 * used)} % of what is moved is wanted"
    many = f"{sectors:.3g} sector{'' if sectors == 1 else 's'} of {SECTOR_BYTES} bytes"
    return Counter(site.line, f"{does}: {many} for {of_lanes}: {how}", is_dear(site))


@record
class OnGpu:
    """The kernel on a GPU, on the first of its shapes."""

    gpu: GpuModel
    threads: int  # of a block
    shared: int  # bytes of a block, static and dynamic
    occupancy: Occupancy
    dtype: str
    intensity: float | None  # operations a byte of global memory moved; None for a wrong kernel

    @property
    def attainable(self) -> float | None:
        """The attainable GF/s: the lower of the roofs of global memory, without caches, and of arithmetic."""
        if self.intensity is None:
            return None
        return min(float(self.gpu.rate(self.dtype)), self.intensity * self.gpu.bandwidth)

    def told(self) -> Iterator[str]:
        """The lines about it."""
        resident, warps, most = counted(self.occupancy.blocks, "block"), self.occupancy.warps, self.occupancy.most_warps
        yield f"on {self.gpu}: {self.shared} bytes of shared memory a block of {self.threads} threads, registers not counted"
        if not self.occupancy.blocks:
            yield f"  no block is resident on a multiprocessor: too much of {' and '.join(self.occupancy.limits)}"
            return
        yield (
            f"  occupancy: {100 * warps / most:.0f} %, {warps} of {most} warps: "
            f"{resident} resident on a multiprocessor, limited by {' and '.join(self.occupancy.limits)}"
        )
        alone = ", ".join(f"{limit} {number}" for limit, number in self.occupancy.alone.items())
        yield f"  blocks that each limit by itself would let in: {alone}"
        rate, attainable = self.gpu.rate(self.dtype), self.attainable
        if attainable is None:
            return
        if not rate:
            yield f"  {self.gpu.name} has no {self.dtype} arithmetic"
            return
        bound = "global memory" if attainable < rate else "arithmetic"
        yield (
            f"  roofline: {self.intensity:.3g} operations a byte moved, {self.gpu.bandwidth} GB/s: at most {attainable:,.0f} of "
            f"{rate:,} GF/s in {self.dtype}, bound by {bound}; caches may deliver some of the bytes"
        )

    def as_record(self) -> dict[str, Any]:
        """The entries of a JSON line."""
        return {
            "gpu": self.gpu.name,
            "shared": self.shared,
            **{f"occupancy_{key}": value for key, value in asdict(self.occupancy).items()},
            "intensity": self.intensity,
            "attainable_gflops": self.attainable,
            "peak_gflops": self.gpu.rate(self.dtype),
        }


def on_gpu(gpu: GpuModel, examination: Examination) -> OnGpu:
    """The kernel's occupancy and roofline on this GPU, from the first shape."""
    case = examination.cases[0]
    threads, shared = math.prod(case.block), (examination.static_shared or 0) + case.shared
    found = occupancy(gpu.multiprocessor, threads, shared)
    return OnGpu(gpu, threads, shared, found, examination.dtype, intensity(case))


_MOST = 4  # findings shown of a shape
_MOST_PRINTED = 8  # lines of a kernel's output shown
_MOST_CHARACTERS = (16, 40)  # of a map: lines and columns
KINDS, _CHARACTERS = ("right", "wrong", "never written", "written by several threads"), ".x?!"  # of elements of C


def told(file: StudentFile, examination: Examination, gpu: OnGpu | None = None) -> Iterator[str]:
    """The report's lines."""
    kernel, meaning, launch = examination.kernel, examination.meaning, examination.launch
    yield f"{file.path.name}, line {kernel.line}: " + "\n  ".join(about(kernel, meaning, launch))
    if file.has_main:
        yield "  host code is left out: main() does not run, and the lab launches the kernel"
    shown: set[str] = set()
    for case in examination.cases:
        yield ""
        yield from _of_case(case, examination.names, file.lines, shown)
        # Only for the first shape: rows of others begin within sectors, and their edges leave lanes idle.
        if case is examination.cases[0] and case.is_right:
            for counter in (use_of_memory(site, examination.names) for site in case.sites):
                yield f"    line {counter.line} {counter.text}"
            yield from (f"  {line}" for line in costs(case, examination.names)[2:])
    if gpu is not None:
        yield ""
        yield from gpu.told()
    yield ""
    yield verdict(examination)


def about(kernel: StudentKernel, meaning: Meaning | None, launch: Launch) -> list[str]:
    """The kernel, the meaning of its parameters, and its launch."""
    return [str(kernel), *([meaning.told(kernel)] if meaning is not None else []), str(launch), launch.why]


def verdict(examination: Examination) -> str:
    """The verdict in a few words."""
    right = [case.is_right for case in examination.cases]
    if right[0] and not all(right):
        sizes = ("×".join(map(str, case.sizes)) for case in examination.cases if not case.is_right)
        return f"right on the first shape, wrong on {', '.join(sizes)}"
    if not all(right):
        told = "--grid and --block, or a line // lab: grid(…) block(…), tell another launch"
        may_be = f"; the launch is a guess, and this guess may be wrong: {told}"
        return f"wrong{may_be if examination.launch.is_guess and not any(right) else ''}"
    stated = (f"{name} is a multiple of {of}, as line {line} says" for name, (of, line) in examination.stated.items())
    only = f"; {', '.join(stated)}: other sizes were not tried" if examination.stated else ""
    if examination.meaning is not None and examination.meaning.adds:
        only += f"; {examination.names[2]} has values before, and the kernel adds to them"
    if examination.computes:
        return f"right: {examination.computes}{only}"
    unknown = f"no error found; what {examination.kernel.name} should compute is not known, so its results were not compared"
    return f"{'right' if examination.meaning is not None else unknown}{only}"


def _of_case(case: Case, names: Names, source: Sequence[str], shown: set[str]) -> Iterator[str]:
    """The lines about one shape, without what was `shown` for others: kinds of findings, source lines, a map, printed lines."""
    yield heading(case, names)
    found = findings(case, names)
    faults = [finding for finding in found if finding in case.faults]
    new = [finding for finding in faults if kind_of(finding) not in shown]
    shown.update(map(kind_of, new))
    if len(new) < len(faults):
        again = dict.fromkeys(finding.code for finding in faults if finding not in new)
        yield f"  * {'also' if new else 'again'} what was found above: {', '.join(again)}"
    for finding in [*new[:_MOST], *(finding for finding in found if finding not in faults)]:
        if finding not in case.hints or finding.text not in shown:
            new_lines = [line for line in sorted(lines_named(finding)) if f"line {line}" not in shown]
            shown.update(f"line {line}" for line in new_lines)
            yield from finding.told({"": source}, [("", line) for line in new_lines])
    shown.update(hint.text for hint in case.hints)
    if len(new) > _MOST:
        yield f"  and {len(new) - _MOST} more; --json FILE keeps all"
    differing = case.wrong | case.uncertain
    if differing and len(case.wrong) < case.sizes[0] * case.sizes[-1] and (new or not faults) and "map" not in shown:
        shown.add("map")
        squares, scale = map_of(case, names[2], _MOST_CHARACTERS)
        legend = ", ".join(map(" ".join, zip(_CHARACTERS[::-1], KINDS[::-1], strict=True)))
        yield f"    a character is {scale}{', the worst of them' * ('×' in scale)}: {legend}"
        yield from ("    " + "".join(_CHARACTERS[square] for square in line).rstrip() for line in squares)
    yield from (f"  note: {note}" for note in case.notes)
    if case.printed and "printed" not in shown:
        shown.add("printed")
        yield "  the kernel prints:"
        yield from (f"      {line}" for line in case.printed[:_MOST_PRINTED])
        if len(case.printed) > _MOST_PRINTED:
            yield f"      and {counted(len(case.printed) - _MOST_PRINTED, 'line')} more; --json FILE keeps all"
    yield from (f"  {line}" for line in costs(case, names)[:2])


def heading(case: Case, names: Names) -> str:
    """The shape, the launch and whether C is right."""
    grid, block = ("×".join(map(str, each)) for each in (case.grid, case.block))
    launch = f", {grid} blocks of {block} threads" if any(case.grid) else ""
    if len(case.sizes) < 3:
        what = "no error found" if case.is_right else "WRONG"
        return f"{'×'.join(map(str, case.sizes))} elements{launch}: {what}"
    (n, l, m), (a, b, c) = case.sizes, names
    orders = " in every order of the threads" if len(case.outcomes) > 1 else ""
    is_right = f"right{orders}" if case.is_right else "WRONG"
    launch = f", {case.batch} times" * (case.batch > 1) + launch
    return f"{c} ({n}×{m}) = {a} ({n}×{l}) · {b} ({l}×{m}){launch}: {is_right}"


def first_finding(examination: Examination) -> str:
    """A line with the first wrong shape and its first finding; "" if all are right."""
    names = examination.names
    for case in examination.cases:
        if not case.is_right:
            return ": ".join(["×".join(map(str, case.sizes)), *(finding.line for finding in findings(case, names)[:1])])
    return ""


def as_record(file_name: str, examination: Examination, gpu: OnGpu | None = None) -> dict[str, Any]:
    """The entries of a JSON line."""
    names = examination.names
    cases = [
        {
            "sizes": case.sizes,
            **dict(zip("nlm", case.sizes if len(case.sizes) == 3 else (), strict=False)),
            "grid": list(case.grid),
            "block": list(case.block),
            "right": case.is_right,
            "findings": [finding.as_record() for finding in findings(case, names)],
            "notes": list(case.notes),
            "printed": list(case.printed),
            "wrong": len(case.wrong),
            "requests": [asdict(site) for site in case.sites if case.is_right],
            "branches": [asdict(branch) for branch in case.branches if case.is_right],
            "loads": list(case.outcomes[0].loads) if case.outcomes else None,
        }
        for case in examination.cases
    ]
    return {
        "file": file_name,
        "kernel": examination.kernel.name,
        "dtype": examination.dtype,
        "computes": examination.computes,
        "launch": str(examination.launch),
        "right": examination.is_right,
        "cases": cases,
        "on_gpu": gpu.as_record() if gpu is not None else None,
    }


def map_of(case: Case, name: str, most: tuple[int, int]) -> tuple[np.ndarray, str]:
    """A map of C, each square with the largest of the KINDS of its elements; and the text of what a square is. `most`: lines and
    columns. A single column is drawn as a line."""
    codes = np.zeros((case.batch * case.sizes[0], case.sizes[2]), int)
    for code, elements in enumerate((case.wrong, case.never, case.uncertain), 1):
        codes.flat[list(elements)] = code
    codes = codes.T if codes.shape[1] == 1 else codes
    rows, columns = codes.shape
    height, width = -(-rows // most[0]), -(-columns // most[1])
    padded = np.pad(codes, ((0, -rows % height), (0, -columns % width)))
    squares = padded.reshape(-(-rows // height), height, -(-columns // width), width).max(axis=(1, 3))
    return squares, f"{height}×{width} elements of {name}" if height * width > 1 else f"an element of {name}"
