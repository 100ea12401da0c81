# SPDX-License-Identifier: MIT
"""Compiles and runs a student's whole CUDA program on the CPU runtime, on one rank or several, and reports how it ended, what was
found, which CUDA call failed first, and what was checked."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from hybrid.classroom.cuda_text import (
    after_bracket,
    after_statement,
    blanked,
    constants_in,
    for_program,
    functions_in,
    joined,
    spaces,
)
from hybrid.classroom.mistakes import Finding, Place
from hybrid.classroom.student_file import StudentFile, kernels_of, refuse_host_calls, refuse_unsupported
from hybrid.classroom.telling import Telling, dropped_results
from hybrid.core.problem import record
from hybrid.emulation import whole_program
from hybrid.emulation.child import new_folder
from hybrid.emulation.whole_program import ProcessResult
from hybrid.errors import HybridError, StartError, UsageError, with_code
from hybrid.ranks.launcher import family_of, mpirun

_MOST = 8  # findings shown
_OPENMP = re.compile(r"^[ \t]*#[ \t]*(?:pragma[ \t]+omp\b|include[ \t]*<omp\.h>)", re.MULTILINE)
_SERIAL = ", and threads of OpenMP side by side: since they call CUDA, one of them ran"
_MPI = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]mpi\.h[>\"]", re.MULTILINE)
_USUAL_RANKS = 2
_NUMBERS = ("50", "70", "30", "20")  # arguments of a program that wants some and has none
_ARGUMENT = re.compile(r"(\b(?:atoi|atol|atoll|atof|strto\w+|(?:std\s*::\s*)?sto\w+)\s*\(\s*)?\bargv\s*\[\s*([1-9])\s*\]")
_REFERENCE = r"\w*(?:ref|expect|cpu|gold|correct|serial)\w*(?:\s*\[[^;=<>|&]*?\])?"
_ELEMENT = r"\w+\s*\[[^;=<>|&]*?\]"
_DIFFERENCE = re.compile(
    rf"\bif\s*\(\s*(?:({_REFERENCE})\s*-\s*({_ELEMENT})|({_ELEMENT})\s*-\s*({_REFERENCE}))\s*>=?\s*[\w.]+(?:-\d+f?)?\s*\)",
    re.IGNORECASE,
)

# A line in which a program says that its own check failed, and not how often, as in "FAILED: 0" or "PASSED/FAILED".
_SAYS_WRONG = re.compile(r"^(?!.*\b(?:0|no|PASS\w*)\b).*\b(FAIL(?:ED|URE)?|WRONG|INCORRECT|MISMATCH)\b", re.MULTILINE)


@record
class Account:
    status: int  # exit status
    launches: int | None  # None for a program that was killed
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    failed: str  # a line about the first CUDA call that failed; "" for none
    sources: Mapping[str, Sequence[str]]  # the lines of each file, the program's own first
    looked_at: str = ""  # what was checked and what was not; "" for a program that was killed
    is_cut: bool = False  # some blocks did not run, for lack of time: its exit status says nothing
    factors: Mapping[tuple[Place, int], tuple[str, bool]] = field(default_factory=dict)  # from `Telling.factors`
    not_finite: Mapping[Place, str] = field(default_factory=dict)  # arguments of launches, as inf
    collectives: Sequence[Mapping[str, Any]] = ()  # calls of MPI that all ranks make, in order

    @property
    def is_right(self) -> bool:
        return not ((self.status and not (self.is_cut and self.looked_at)) or self.findings or self.failed)


def account_of(ran: ProcessResult, program: Path, warnings: str, sources: Mapping[str, Sequence[str]], seconds: int) -> Account:
    """The account of a process. `program`: the executable, which must still exist. `warnings`: the compiler's. `sources`: the
    lines of each file. `seconds`: the time limit."""
    telling = Telling(ran, program, warnings, sources, seconds)
    found = [*telling.findings(), *_one_sided(sources), *_shared(sources), *_in_seconds(sources), *_always_0(sources)]
    end = next(telling.of("end"), None)
    failed = _first_failed(ran.findings, dropped_results(warnings), telling)
    notes = list(telling.notes())
    if end and not (ran.status or failed) and all(each.code in ("wrong-elements", "uninitialised") for each in found):
        unused, more = telling.unused()
        found, notes = [*found, *unused], [*more, *notes]
    launches = end["launches"] if end else None
    looked = _looked_at(end, telling) if end else ""
    cut = any(telling.of("cut"))
    return Account(
        ran.status,
        launches,
        tuple(found),
        tuple(notes),
        failed,
        sources,
        looked,
        cut,
        telling.factors(),
        {(each["file"], each["line"]): each["value"] for each in telling.of("not finite")},
        [*telling.of("collective")],
    )


def _one_sided(sources: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Checks of a difference from a reference in functions that take no absolute value."""
    name, lines = next(iter(sources.items()))
    plain = blanked("\n".join(lines))
    for function in functions_in(plain):
        found = None if function.is_kernel_or_of_device else _DIFFERENCE.search(plain, function.opening, function.end)
        if found and not re.search(r"abs|\|\||sqrt|pow|fmax", plain[function.opening : function.end]):
            line, (one, other) = plain.count("\n", 0, found.start()) + 1, filter(None, found.groups())
            which = "large" if found[1] else "small"
            text = f"one-sided check: line {line} takes {one} - {other} without fabs(): a result that is too {which} passes"
            yield Finding(text, "one-sided", ((name, line),))


_SECONDS = re.compile(
    r"\bcudaEventElapsedTime\s*\(\s*&\s*(?!\w*(?:milli|micro|nano))(\w*?(?<![a-zA-Z])(?:s|secs?|seconds?)|[a-z]+S(?:ecs?|econds?))\s*,"
)


def _in_seconds(sources: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Times of cudaEventElapsedTime that the program calls seconds, and never divides."""
    name, lines = next(iter(sources.items()))
    plain = blanked("\n".join(lines))
    for found in _SECONDS.finditer(plain):
        if not re.search(
            rf"\b{found[1]}\s*(?:[/*]=|=[^=;]*\b{found[1]}\s*[/*])|\b{found[1]}\s*(?:/|\*\s*(?:1e-0?3|0?\.001))", plain
        ):
            line = plain.count("\n", 0, found.start()) + 1
            text = f"wrong unit: line {line} names milliseconds {found[1]}: divide what cudaEventElapsedTime gives by 1000"
            yield Finding(text, "wrong-unit", ((name, line),))


_QUOTIENT = re.compile(
    r"\b(?:float|double)\s+\w+\s*=\s*(?P<a>\d+)\s*/\s*(?P<b>\w+)\s*;"
    r"|\*\s*\(\s*(?P<c>\d+)\s*/\s*(?P<d>\w+)\s*\)|\(\s*(?P<e>\d+)\s*/\s*(?P<f>\w+)\s*\)\s*\*"
)


def _always_0(sources: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Quotients of whole numbers that are 0, as of 1 and a variable, as factors or values of floating-point variables."""
    name, lines = next(iter(sources.items()))
    plain = blanked("\n".join(lines))
    constants = constants_in(plain)
    for found in _QUOTIENT.finditer(plain):
        one, other = filter(None, found.groups())
        number = int(other) if other.isdigit() else constants.get(other)
        declared = re.findall(rf"\b(\w+)\b[\s*&]+(?:\w+\s*(?:=[^;,(){{}}]*)?,\s*)*{other}\s*(?=[=;,)\[:{{])", plain)
        is_whole = bool(declared) and {*declared} <= {"int", "unsigned", "size_t", "long", "short"}
        if number > int(one) if number is not None else is_whole and one == "1":
            line = plain.count("\n", 0, found.start()) + 1
            text = f"always 0: line {line} divides whole numbers, {one} / {other}: {one}.0 / {other} is a fraction"
            yield Finding(text, "always-zero", ((name, line),))


_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+omp[ \t]+((?:\\\n|[^\n])*)\n", re.MULTILINE)
_OWN = re.compile(r"\b(?:\w*private|reduction)\s*\((?:[^():]*:)?([^()]*)\)")
_SCALAR = r"(?<![\w.\]>*&])(\w+)\s*"
_UPDATED = re.compile(rf"\bfor\s*\(\s*(\w+)\s*=|{_SCALAR}(?:[-+*]=|\+\+|--)|(?:\+\+|--)\s*(\w+)\b(?!\s*(?:\[|\.|->))")
_ASSIGNED = re.compile(rf"{_SCALAR}=(?!=)([^;{{}}]*);")
_LOCKED = re.compile(r"\bomp_set_\w*lock\b|\b\w+_(?:lock|guard)\b|\.\s*lock\s*\(|\bsections?\b")


def _shared(sources: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Variables that the threads of an OpenMP region share, and change unprotected; and sums over loops that each thread runs
    whole."""
    name, lines = next(iter(sources.items()))
    plain = blanked("\n".join(lines))
    for begin in (each for each in _PRAGMA.finditer(plain) if re.match(r"parallel\b", each[1])):
        region = plain[begin.start() : after_statement(plain, begin.end())]
        own = {
            each.strip()
            for pragma in _PRAGMA.finditer(plain)
            if begin.start() <= pragma.start() < begin.start() + len(region) or pragma[1].startswith("threadprivate")
            for text in _OWN.findall(pragma[1])
            for each in text.split(",")
        }
        numbers = "|".join([r"omp_get_thread_num\s*\(\s*\)", *re.findall(r"(\w+)\s*=\s*omp_get_thread_num\b", region)])
        for of_one in re.finditer(rf"\bif\s*\(\s*(?:!\s*(?:{numbers})|(?:{numbers})\s*==\s*\w+)\s*\)", region):
            region = _without(region, of_one.start(), after_statement(region, of_one.start()))
        whole = region  # without loops whose iterations the threads share
        for pragma in _PRAGMA.finditer(region):
            inner = pragma.end(), after_statement(region, pragma.end())
            if re.search(r"\bfor\b", pragma[1]):  # its loop's variable is each thread's own
                many = re.search(r"collapse\s*\(\s*(\d)", pragma[1])
                own |= {*re.findall(r"\bfor\s*\(\s*(\w+)\s*=", region[slice(*inner)])[: int(many[1]) if many else 1]}
                whole = _without(whole, *inner)
            elif re.match(r"atomic|critical|ordered|single|master|masked", pragma[1]):
                region, whole = _without(region, *inner), _without(whole, *inner)
        if _LOCKED.search(region):
            continue
        of = plain.count("\n", 0, begin.start()) + 1
        for place, variable, how in _changed(region, own, plain):
            line = plain.count("\n", 0, begin.start() + place) + 1
            text = f"line {line} updates {variable}, which all threads of the region of line {of} share: {how} is missing"
            yield Finding(f"data race: {text}", "data-race", ((name, line),))
        for place, variable in _summed_by_all(whole, begin[1], own):
            line = plain.count("\n", 0, begin.start() + place) + 1
            runs = f"each thread of the region of line {of} runs the loop of line {line} whole"
            text = (
                f"summed again: {runs}, so {variable} has each term several times: #pragma omp parallel for shares the loop out"
            )
            yield Finding(text, "wrong-terms", ((name, line),))


def _without(text: str, begin: int, end: int) -> str:
    return text[:begin] + spaces(text[begin:end]) + text[end:]


def _is_declared(variable: str, region: str) -> bool:
    of_type = r"(?<![=+\-*/%?!|]\s)(?<![=+\-*/%?!|])\b(?!return\b|else\b)\w[\w:<>]*[\s*&]+"
    return re.search(rf"{of_type}(?:\w+[^;(){{}}]*,\s*)?{variable}\s*(?:[=;,({{\[:]|$)", region) is not None


def _changed(region: str, own: Collection[str], plain: str) -> Iterator[tuple[int, str, str]]:
    """Where a region changes a variable that is neither of `own`, declared in it nor atomic, each once, and what is missing."""
    found = [(each.start(), each[1] or each[2] or each[3], "" if each[1] else "+") for each in _UPDATED.finditer(region)]
    always = region  # without what only some threads may do
    for condition in re.finditer(r"\b(?:if|switch)\s*\(|\belse\b", region):
        begin = after_bracket(region, condition.end() - 1) if condition[0].endswith("(") else condition.end()
        always = _without(always, begin, after_statement(region, begin))
    for each in _ASSIGNED.finditer(region):
        variable, words = each[1], set(re.findall(r"\b[a-zA-Z_]\w*", each[2]))
        if not any(word in own or _is_declared(word, region) for word in words):
            continue  # all threads assign the same
        order = rf"(?:[<>]=?\s*{variable}\b(?!\s*\()|\b{variable}\s*[<>]=?\s*(?!-?\d))"
        is_extreme = re.search(rf"\bif\s*\([^;{{}}]*{order}[^;{{}}]*\)\s*(?:\{{[^{{}}]*|[^;{{}}]*)$", region[: each.start()])
        is_extreme = is_extreme or re.search(rf"\bf?(?:max|min)f?\s*\(.*\b{variable}\b|{order}.*\?", each[2])
        if is_extreme or variable in words:
            found.append((each.start(), variable, "max" if is_extreme else "+"))
        elif always[each.start()] == variable[0] and len(re.findall(rf"\b{variable}\b(?!\s*=[^=])", region)):
            found.append((each.start(), variable, ""))
    told = {*own}
    for place, variable, operator in sorted(found):
        is_atomic = re.search(rf"\batomic(?:_\w+\s|\s*<)[^;(]*\b{variable}\b", plain)
        if not (variable in told or is_atomic or _is_declared(variable, region)):
            told.add(variable)
            of = "a maximum" if operator == "max" else "a sum"
            yield place, variable, f"reduction({operator}:{variable}), for {of}," if operator else f"private({variable})"


def _summed_by_all(whole: str, clauses: str, own: Collection[str]) -> Iterator[tuple[int, str]]:
    """Each sum of a region's threads to which all of them add the same elements of an array, and where the loop is."""
    sums = {each.strip() for text in re.findall(r"\breduction\s*\(\s*\+\s*:([^()]*)\)", clauses) for each in text.split(",")}
    loops = [*re.finditer(r"\bfor\s*\(\s*(?:\w+\s+)*(\w+)\s*=([^{}]*?;[^{}]*?;)", whole)]
    variables = {each[1] for each in loops}
    for loop in loops if "omp_get_" not in whole else ():
        added = re.compile(rf"{_SCALAR}\+=([^;=]*\w\s*\[[^;=]*\b{loop[1]}\b[^;=]*\][^;=]*);")
        for each in added.finditer(whole, loop.end(), after_statement(whole, loop.start())):
            words = set(re.findall(r"\b[a-zA-Z_]\w*", loop[2] + each[2])) - variables
            if each[1] in sums and not any(word in own or _is_declared(word, whole) for word in words):
                sums.remove(each[1])
                yield loop.start(), each[1]


def _runs_cuda_in_parallel(text: str) -> bool:
    """Whether a parallel region of OpenMP calls CUDA, itself or through the program's functions."""
    plain, called = blanked(text), r"<<<|\bcuda[A-Z]"
    bodies = {each.name: plain[each.opening : each.end] for each in functions_in(plain)}
    for _ in range(2):
        called = "|".join([called, *(rf"\b{name}\s*\(" for name, body in bodies.items() if re.search(called, body))])
    begins = (each.end() for each in _PRAGMA.finditer(plain) if re.match(r"parallel\b", each[1]))
    return any(re.search(called, plain[begin : after_statement(plain, begin)]) for begin in begins)


def _launches(number: int, what: str = "launch") -> str:
    return f"{number} {what}{'' if number == 1 else 'es'}"


def _looked_at(end: Mapping[str, int], telling: Telling) -> str:
    launches, sampled = end["launches"], end["sampled"]
    compared = sum(not event["order"] for event, _ in telling.products)
    looked = [f"every access of {_launches(launches - sampled)}"] if launches > sampled or not sampled else []
    looked += [f"accesses of some blocks of {_launches(sampled)}, all writes among them"] if sampled else []
    looked += [f"the product of {_launches(compared)}"] if compared else []
    looked.append("copies, streams, CUDA's calls and host memory")
    if cut := next(telling.of("cut"), None):
        blocks = f"{cut['left_out']:,} of {cut['blocks']:,} blocks of the launch in line {cut['line']} were left out"
        left = f"results and the program's output about them: {blocks}, to save time; smaller sizes run whole"
    else:
        left = f"{'' if compared else 'products (no launch has the shape of one), '}what the host computes"
    return f"looked at: {', '.join(looked)}; not: {left}"


def _first_failed(events: Sequence[dict[str, Any]], dropped: set[Place], telling: Telling) -> str:
    """The first CUDA call that failed, why, and whether the program checks for the error; "" if none failed. `dropped`: the
    places of calls whose result is ignored."""
    of_errors = ((i, each) for i, each in enumerate(events) if each["event"] in ("error", "unseen"))
    number, first = next(((i, each) for i, each in of_errors if not telling.is_expected(each)), (0, None))
    if first is None:
        return ""
    if first["event"] == "unseen":
        launch = f"the launch of {first['kernel']} in line {first['line']}"
        return f"{launch} failed, and no call waits for it, so no call tells the program"
    looked = any(each["event"] == "looked" for each in events[number:])
    is_launch = first["call"].startswith("the launch of")
    seen = looked or (not is_launch and (first["file"], first["line"]) not in dropped)
    why = f": {telling.told(first['why'])}" if first["why"] else ""
    sees = "the program looks at its error" if seen else "the program does not look at its error"
    tells = ", the first call that waits for the kernel" if first["of_kernel"] else ""
    return f"{first['call']} in line {first['line']}{tells}: {first['text']} ({first['name']}){why}; {sees}"


def of_all_ranks(accounts: Sequence[Account]) -> Account:
    """The accounts of all ranks as one: a finding of several ranks appears once, with their numbers; launches are added up."""
    if len(accounts) == 1:
        return accounts[0]
    launches = [account.launches for account in accounts if account.launches is not None]
    waits = [each for account in accounts for each in account.findings if each.code == "no-end"]
    ends = [each for each in waits if "MPI_Finalize" in each.text]  # a consequence, if other ranks wait elsewhere
    left_out = ends if len(ends) < len(waits) else []
    findings = [*_by_ranks([[each for each in account.findings if each not in left_out] for account in accounts])]
    failed = _by_ranks([(account.failed,) if account.failed else () for account in accounts])
    for place, which in dict.fromkeys(key for account in accounts for key in account.factors):
        of_ranks = [account.factors.get((place, which), ("", True)) for account in accounts]
        zeros = [str(rank) for rank, (_, has_others) in enumerate(of_ranks) if not has_others]
        if 0 < len(zeros) < len(accounts):
            what = f"{of_ranks[int(zeros[0])][0]} is all zeros in the launch of line {place[1]}, unlike on other ranks"
            found = Finding(f"not sent: {what}: does MPI_Bcast or the like bring it to all?", "not-sent", (place,))
            findings.append((f"rank{'s' * (len(zeros) > 1)} {', '.join(zeros)}", found))
    for place in dict.fromkeys(place for account in accounts for place in account.not_finite) if len({*launches}) == 1 else ():
        having = {str(rank): account.not_finite[place] for rank, account in enumerate(accounts) if place in account.not_finite}
        if len(having) < len(accounts):
            what = f"the launch of line {place[1]} is given {next(iter(having.values()))}, unlike on other ranks"
            found = Finding(f"not sent: {what}: does MPI_Allreduce or the like bring the value to all?", "not-sent", (place,))
            findings.append((f"rank{'s' * (len(having) > 1)} {', '.join(having)}", found))
    findings += [("all ranks", each) for each in _disagreeing([each.collectives for each in accounts])]
    return replace(
        accounts[0],
        launches=sum(launches) if len(launches) == len(accounts) else None,
        findings=tuple(replace(finding, text=f"{ranks}: {finding}") for ranks, finding in findings),
        is_cut=any(account.is_cut for account in accounts),
        notes=tuple(dict.fromkeys(note for account in accounts for note in account.notes)),
        failed="; ".join(f"{ranks}: {failure}" for ranks, failure in failed),
    )


def _disagreeing(of_ranks: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[Finding]:
    """The first collective call in which a rank differs from rank 0."""
    says = {"call": "calls {call}", "root": "has the root {root}", "bytes": "gives {bytes} bytes"}
    for first, *others in zip(*of_ranks, strict=False):
        for rank, other in enumerate(others, 1):
            for text in (text for what, text in says.items() if first[what] != other[what]):
                said = [f"rank {of} {text.format_map(each)} in line {each['line']}" for of, each in ((0, first), (rank, other))]
                places = {(each["file"], each["line"]) for each in (first, other)}
                what = f"wrong {other['call']}: {' and '.join(said)}: all ranks must agree"
                yield Finding(what, "mpi-memory", tuple(sorted(places)))
                return


def _by_ranks(of_ranks: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Each different thing once, with the names of the ranks that have it before it."""
    for each in dict.fromkeys(each for of_rank in of_ranks for each in of_rank):
        ranks = [str(rank) for rank, of_rank in enumerate(of_ranks) if each in of_rank]
        named = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"
        yield named if len(ranks) < len(of_ranks) else f"all {len(ranks)} ranks", each


def told(account: Account) -> Iterator[str]:
    """The report's lines."""
    name = next(iter(account.sources))
    how = f"exit status {account.status}" if account.status >= 0 else f"ended by {signal.Signals(-account.status).name}"
    launches = "" if account.launches is None else f", {_launches(account.launches, 'kernel launch')}"
    yield f"{name}: {how}{launches}"
    for finding in account.findings[:_MOST]:
        yield from finding.told(account.sources, finding.places)
    if len(account.findings) > _MOST:
        yield f"  and {len(account.findings) - _MOST} more; --json FILE keeps all"
    yield from (f"  note: {note}" for note in account.notes)
    if account.failed:
        yield with_code(f"first CUDA call that failed: {account.failed}", "cuda-call")
    yield "; ".join(filter(None, ["no error found" if account.is_right else "wrong", account.looked_at]))


def as_record(account: Account, arguments: Sequence[str]) -> dict[str, Any]:
    """The entries of a JSON line."""
    return {
        "file": next(iter(account.sources)),
        "arguments": list(arguments),
        "status": account.status,
        "launches": account.launches,
        "right": account.is_right,
        "findings": [finding.as_record() for finding in account.findings],
        "notes": list(account.notes),
        "first_failed": account.failed or None,
        "looked_at": account.looked_at or None,
    }


def is_program(file: StudentFile) -> bool:
    """Whether the file has a main function, and it or its own headers launch kernels."""
    return file.has_main and any("<<<" in blanked(text) for text in file.texts.values())


def _started(file: StudentFile, ranks: int) -> whole_program.Ranks:
    """How to compile and start the program on this number of ranks. HybridError without MPI."""
    try:
        command = mpirun(ranks)
        variable = "OMPI_COMM_WORLD_RANK" if family_of(command[0]) == "Open MPI" else "PMI_RANK"
        mpicc = Path(command[0]).with_name("mpicc")
        if not mpicc.exists():
            how = "install your MPI's files for developers"
            raise StartError(f"no {mpicc.name} beside {command[0]}", how, code="mpi-missing")
        shown = subprocess.run([str(mpicc), "-show"], capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
        return whole_program.Ranks(ranks, command, variable, shlex.split(shown)[1:])
    except StartError as missing:
        raise HybridError(f"{file.path} is a program of MPI (mpi.h): {missing}", code="mpi-missing") from None


def _usual_devices(text: str) -> int:
    """Two for a program that counts its GPUs and chooses among them; else one."""
    chooses = re.search(r"\bcudaGetDeviceCount\b", text) and re.search(r"\bcudaSetDevice\s*\(\s*[^\d\s]", text)
    return 2 if chooses and not _MPI.search(text) else 1


def ran(
    file: StudentFile,
    arguments: Sequence[str],
    seconds: int,
    show: Callable[[str], None],
    ranks: int | None = None,
    devices: int | None = None,
) -> Account:
    """Compile and run the program. `show` gets its output. `ranks`: of an MPI program, 2 by default. `devices`: GPUs of each
    process; None: `_usual_devices`. UsageError for unsupported CUDA, EmulationError if the program does not compile."""
    text = joined(file.texts, elsewhere=True)
    refuse_unsupported(text, file.path.name)
    refuse_host_calls(joined(file.texts), file.path.name)
    text = for_program(text, file.path.name, {kernel.name: len(kernel.template) for kernel in kernels_of(text)})
    whole, started = "\n".join(file.texts.values()), None
    flags = ["-fopenmp"] if _OPENMP.search(whole) else []  # in a comment, too, which does no harm
    if _MPI.search(whole):
        started = _started(file, ranks or _USUAL_RANKS)
        flags += started.flags
    elif ranks:
        what = f"{file.path} includes no mpi.h: it is one process, and --ranks is for programs of MPI"
        raise UsageError(what, code="option-combination")
    sources = {path.name: each.split("\n") for path, each in file.texts.items()}
    variables = {"HYBRID_LAB_DEVICES": str(devices or _usual_devices(whole))}
    if is_serial := _runs_cuda_in_parallel(joined(file.texts)):
        variables |= {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1"}
    with new_folder() as folder:
        program, warnings = whole_program.built(folder / file.path.name, text, flags)

        def account(words: Sequence[str]) -> Account:
            printed = list[str]()

            def shown(text: str) -> None:
                printed.append(text)
                show(text)

            outcomes = whole_program.run(program, file.path, words, seconds, shown, started, variables=variables)
            made = of_all_ranks([account_of(outcome, program, warnings, sources, seconds) for outcome in outcomes])
            if is_serial and made.looked_at:
                made = replace(made, looked_at=made.looked_at + _SERIAL)
            says = None if made.is_cut or not made.is_right else _SAYS_WRONG.search("".join(printed))
            own = Finding(f"the program says itself that its result is wrong: it prints {says[1]}", "own-check") if says else None
            return replace(made, findings=(own,)) if own else made

        got = account(arguments)
        wanted = _ARGUMENT.findall(blanked(whole))
        number = max((int(place) for _, place in wanted), default=0)
        wants_numbers = 0 < number <= len(_NUMBERS) and all(call for call, _ in wanted)
        if arguments or not got.status or got.launches != 0 or not wants_numbers:
            return got
        given = " ".join(_NUMBERS[:number])
        note = f"the program wants arguments: these are the findings with {given}; arguments after -- give others"
        again = account(_NUMBERS[:number])
        return replace(again, notes=(note, *again.notes))
