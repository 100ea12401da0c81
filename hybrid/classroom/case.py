# SPDX-License-Identifier: MIT
"""What was found of a student's kernel on one shape and on all, in sentences: faults, causes before their consequences; and
counters, in a lecture's words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from hybrid.classroom.finding import Finding
from hybrid.classroom.gpu_models import WARP
from hybrid.classroom.launch import Extents, Launch, Meaning
from hybrid.classroom.student_file import StudentKernel
from hybrid.classroom.trial import Outcome
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.emulation.observed import SECTOR_BYTES, SHARED, Branch, Site

Sizes = tuple[int, int, int]  # n, l, m
Names = tuple[str, str, str]  # of A, B and C in the kernel


@record
class Case:
    """The kernel on one shape."""

    sizes: Sizes
    grid: Extents
    block: Extents
    outcomes: tuple[Outcome, ...]  # in each order of the threads; after one that was stopped there are no more
    sites: tuple[Site, ...] = ()  # where no fault is found, how its lines use memory
    branches: tuple[Branch, ...] = ()  # where no fault is found, where the lanes of warps diverge
    shared: int = 0  # bytes of dynamic shared memory
    faults: tuple[Finding, ...] = ()  # other than wrong elements: races, stray accesses, a divergent barrier, an endless loop
    hints: tuple[Finding, ...] = ()  # what may be why C is wrong, and is no fault where it is right
    notes: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()  # lines that the kernel printed, in one order of the threads

    @property
    def wrong(self) -> set[int]:
        """The wrong elements of C, numbered row by row."""
        return {each for outcome in self.outcomes for each in outcome.wrong}

    @property
    def never(self) -> set[int]:
        """Elements that no thread writes."""
        return {each for outcome in self.outcomes for each in outcome.never}

    @property
    def uncertain(self) -> set[int]:
        """Elements that several threads write."""
        return {each for outcome in self.outcomes for each in outcome.several}

    @property
    def depends_on_order(self) -> bool:
        """Whether C is not the same in every order of the threads."""
        return len({outcome.digest for outcome in self.outcomes}) > 1

    @property
    def outside(self) -> tuple[tuple[str, int], ...]:
        """Elements that were written where nothing may be: the matrix, and the number counted from its first element."""
        return next((outcome.outside for outcome in self.outcomes if outcome.outside), ())

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.faults or self.outside or self.uncertain)


@record
class Examination:
    """The kernel on all shapes."""

    kernel: StudentKernel
    meaning: Meaning
    launch: Launch
    cases: tuple[Case, ...]
    static_shared: int | None  # bytes of a block's __shared__ variables; None where they are not known

    @property
    def is_right(self) -> bool:
        return all(case.is_right for case in self.cases)

    @property
    def names(self) -> Names:
        return self.meaning.names(self.kernel)


# Faults that explain wrong elements: a race, an access to memory that is not the kernel's, a value that nobody wrote.
_CAUSES = ({"data-race"}, {"out-of-bounds", "illegal-address"}, {"uninitialised", "no-value"})
_SHARING = 4  # lanes, on average, that want the same element: from here on a load counts as a broadcast
_EXACT_IN_FLOAT, _FLOAT = 2**24, 1e-6
_NO_VALUE = -1e37  # numbers below are made of bytes of 0xFE, with which variables begin; no right sum is one


def lines_named(finding: Finding) -> set[int]:
    """The lines of the student's file that a finding names."""
    found = re.findall(r"\bline (\d+)\b(?! of \w+\.\w)|\w\.cu:(\d+)", finding.text)
    return {int(number) for pair in found for number in pair if number}


def findings(case: Case, names: Names) -> list[Finding]:
    """What is wrong, causes before their consequences. Consequences that say nothing new are left out. `names`: of A, B and C."""
    (n, _, m), c = case.sizes, names[2]
    found = without_repetition(case.faults)
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
        else:  # where the factors are in shared memory, that is where they are read, unless wrong ones are loaded
            in_shared = code == "wrong-terms" and any(site.space == SHARED and site.kind == "load" for site in case.sites)
            where = _lines("; {} reads the factors", case, {SHARED} if in_shared else {0, 1}, "load")
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
    """Which rows or columns of C, of n×m, these elements are, where they are whole ones; else the first of them."""
    rows, columns = sorted({number // m for number in numbers}), sorted({number % m for number in numbers})
    is_block = len(numbers) == len(rows) * len(columns)
    for several, of, others, name in ((columns, m, len(rows) == n, "columns"), (rows, n, len(columns) == m, "rows")):
        if is_block and others and len(several) < of and several[-1] - several[0] < len(several):
            return f": the {name} {several[0]} to {several[-1]}"
    return f", the first [{numbers[0] // m}][{numbers[0] % m}]" if len(numbers) < n * m else ""


def _lines(text: str, case: Case, spaces: set[int], kind: str) -> str:
    """The text with the lines that use such memory so; "" where they are not known."""
    lines = sorted({site.line for site in case.sites if site.space in spaces and site.kind == kind})
    return text.format(" and ".join(f"line {line}" for line in lines[:2])) if lines else ""


def without_repetition(faults: Sequence[Finding]) -> list[Finding]:
    """The faults, but of those that differ only in elements and threads just the first, and without missing values that follow
    from a race."""
    first: dict[str, Finding] = {}
    for fault in faults:
        first.setdefault(kind_of(fault), fault)
    races = [fault for fault in first.values() if fault.code == "data-race"]
    racing = {name for race in races for name in re.findall(r"(\w+)\[", race.text)}
    follow = [
        fault
        for fault in first.values()
        if fault.code == "uninitialised" and (reads := re.search(r"line \d+ reads (\w+)\[", fault.text)) and reads[1] in racing
    ]
    return [*races, *(fault for fault in first.values() if fault not in follow and fault not in races)]


def kind_of(finding: Finding) -> str:
    """A finding without its elements, numbers and threads: findings of the same kind have the same lines and arrays."""
    text = re.sub(r"\[[^\]]*\]|\((?:block|thread) .*\)|: thread \(.*|, (?:which|half of what) --stall sets", "", finding.text)
    return re.sub(r"(?<!line )(?<![\w.:])-?\d+(?:\.\d+)?", "", text)


def _first(number: int, values: tuple[float, float], writer: Sequence[Extents], m: int) -> str:
    """A wrong element: its indices, what it is instead of what is right, and who wrote it."""
    is_now, right = values
    digits = 6 if f"{is_now:g}" != f"{right:g}" else 17  # enough to show that the two are not the same
    text = f"[{number // m}][{number % m}]: {is_now:.{digits}g} instead of {right:.{digits}g}"
    if writer:
        text += ", written by block ({}), thread ({})".format(*(", ".join(map(str, place)) for place in writer))
    if right > _EXACT_IN_FLOAT and abs(is_now - right) < _FLOAT * right:  # so large as only sums of double become
        text += "; right to the digits of a float: is a variable one that should be a double?"
    return text


@record
class Counter:
    """What a line of the kernel does."""

    line: int
    text: str
    dear: bool  # it costs more than it has to


def traffic(case: Case, names: Names) -> str:
    """Loads and stores of global memory, in a line."""
    n, l, m = case.sizes
    outcome = case.outcomes[0]
    a, b = (loads / (n * l * m) for loads in outcome.loads)
    stores = outcome.stores / (n * m)
    each = f"{names[0]} {a:.3g}, {names[1]} {b:.3g}"
    return f"global loads per multiply-add: {a + b:.3g} ({each}); stores per element: {stores:.3g}"


def intensity(case: Case) -> float | None:
    """Operations for each byte of global memory that is moved, in whole sectors; None where no memory was looked at."""
    moved = SECTOR_BYTES * sum(site.sectors for site in case.sites if site.space != SHARED)
    return 2 * math.prod(case.sizes) / moved if moved else None


def divergence(case: Case) -> Iterator[Counter]:
    """The lines at whose branches lanes of a warp go different ways."""
    for branch in case.branches:
        if branch.divergent:
            executions = counted(branch.executions, "execution")
            yield Counter(branch.line, f"in {branch.divergent} of {executions} by a warp", dear=True)


def is_dear(site: Site) -> bool:
    """Whether it costs more than it has to: by bank conflicts, or as more is moved than is wanted, and that is no broadcast."""
    if site.space == SHARED:
        return site.steps > site.least_steps
    return site.bytes < SECTOR_BYTES * site.sectors and site.lanes < _SHARING * site.addresses


def use_of_memory(site: Site, names: Names) -> Counter:
    """How a line's requests use memory."""
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
        how = "coalesced" if used >= 1 else f"not coalesced, {100 * used:.0f} % of what is moved is wanted"
    many = f"{sectors:.3g} sector{'' if sectors == 1 else 's'} of {SECTOR_BYTES} bytes"
    return Counter(site.line, f"{does}: {many} for {of_lanes}: {how}", is_dear(site))
