# SPDX-License-Identifier: MIT
"""Turns the CPU runtime's findings in a process into sentences: which thread did what to which element, in which line."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.classroom.cuda_text import blanked, dynamic_arrays, element_text, extents_of, functions_in, loops_in, split
from hybrid.classroom.mistakes import Finding, Place, judged
from hybrid.classroom.student_file import exchanged
from hybrid.core.text import counted
from hybrid.emulation.errors import CODES_OF_KINDS
from hybrid.emulation.kernel import ORDERS
from hybrid.emulation.observed import places_of, symbols_of
from hybrid.emulation.whole_program import ProcessResult

_SHARED, _DYNAMIC, _VARIABLES = 3, 4, 2  # Region::Kind in runtime.h
_PLACES = ("at", "other_at", "frames")
_NOTES = {
    "streams": "the work of all streams is done in the order of the calls, without overlap",
    "times": "cudaEventElapsedTime gives times of this CPU with every access looked at: they say nothing about a GPU",
    "unflushed": "what kernels printed last was not shown: it is shown when the host waits for them, as in "
    "cudaDeviceSynchronize(), and not at the program's end",
}
_STACK = ": its local arrays may be larger than 256 KiB a thread, which the CPU runtime has"
_NOT_WRITTEN = "in shared memory, which its block has not written"
_MAKERS = ("malloc", "new", "new[]", "cudaMallocHost")  # heap::Maker in runtime.h, and what frees theirs
_FREEING = ("free()", "delete", "delete[]", "cudaFreeHost()")
_FINDINGS = {  # by code and kind: a sentence of an event's members and of `Telling._words`
    "wrong-elements": {
        "bytes": "wrong values: {line} fills {name}, and {latest}, launched in line {latest_line}, reads them: {set}",
    },
    "mpi-memory": {"mpi": "wrong memory for MPI: in {line} {text}"},
    "never-written": {
        "left out": "left out: in {line} {text}",
        "too small": "too few threads: the launch in {line} {text}",
    },
    "too-early": {
        "clock": "too early: {line} reads the clock while {of}, launched in line {launch}, may still run, so it measures the "
        "launch: cudaDeviceSynchronize() waits for the kernel",
        "events": "too early: {line} takes the time between two events of a stream, and {of}, launched in line {launch} between "
        "them, runs in another stream, for which the second event does not wait: record both in the kernel's stream",
    },
    "undefined": {"return": "undefined: the function in {line} ends without a return, and has to return a value"},
    "out-of-bounds": {
        "index": "out of bounds: {line} uses {wrong_index}",
        "range": "out of bounds: {does} {bytes:,} bytes from {element} on, and {size}",
        "bounds": "out of bounds: {does} {what}, and {size}",
        "bounds of dynamic": "out of bounds: {does} beyond the launch's dynamic shared memory, at byte {offset}",
        "no matrix": "out of bounds: {does} memory that is no matrix's",
        "stack": "out of bounds: the function that ends in {line} has written beyond one of its local arrays",
    },
    "uninitialised": {
        "unwritten": "uninitialised: {uses} {what}{made}, {never}",
        "unwritten part": "uninitialised: {uses} {what}, {never}: the copy in line {part} has {has:,} of its {whole:,} bytes",
        "unwritten copy": "uninitialised: {uses} {what}, which line {copied_in} copied from {from}, where nothing had written it",
        "unwritten in shared": f"uninitialised: {{uses}} {{what}} {_NOT_WRITTEN}",
        "unwritten by the host": "uninitialised: {does} {what}, which nothing has written",
        "copies unwritten": "uninitialised: {line} copies {element} to the host, {never}",
        "copies unwritten of the host": "uninitialised: {line} copies {copied} to the device, and nothing has written it",
    },
    "illegal-address": {
        "variable": "illegal address: {does} {variable_name}, a variable of the device, in host code: {copies} copies it",
        "null": "illegal address: {does} through a null pointer{null}",
        "host": "illegal address: {does} host memory in a kernel, which device memory is for",
        "host variable": "illegal address: {does} {variable_name}, a variable of the host: kernels have __device__ ones",
        "freed": "illegal address: {does} {what} after {freed_how}",
        "freed twice": "illegal address: {line} frees {name_and_line}, which {other} has freed",
        "not to free": "illegal address: {line} frees what is not the begin of {name_and_line}",
        "freed by another": "illegal address: {line} frees {name_and_line} by {by}, but {maker} gave it, which {frees} frees",
        "device": "illegal address: {does} {what} of another device: cudaSetDevice, or cudaDeviceEnablePeerAccess, is missing",
        "misaligned": "misaligned address: {does} {bytes} bytes together, from {what} on, whose address is no multiple of "
        "{bytes}",
    },
    "data-race": {
        "order": "data race: {text}",
        "pinned": "data race: {does} host memory that {text} may still use: no cudaStreamSynchronize() or other waiting stands "
        "between them",
        "early": "data race: {does} managed memory {what} on the host while {latest}, launched in line {latest_line}, may still "
        "run: no cudaDeviceSynchronize() stands between them",
        "race": "{race}, in different threads of a block, and no __syncthreads() stands between them{threads}",
        "race of blocks": "{race} in different threads, of different blocks",
    },
}
_SENTENCES = {kind: (code, sentence) for code, of_code in _FINDINGS.items() for kind, sentence in of_code.items()}
_PARTNERS = {  # of MPI calls: the argument with the rank, and what the call waits for
    "MPI_Recv": (3, "a message of rank {}"),
    "MPI_Probe": (0, "a message of rank {}"),
    **dict.fromkeys(("MPI_Send", "MPI_Ssend", "MPI_Rsend"), (3, "rank {} to receive")),
    "MPI_Sendrecv": (8, "a message of rank {}"),
    "MPI_Sendrecv_replace": (5, "a message of rank {}"),
    **dict.fromkeys(("MPI_Wait", "MPI_Waitall", "MPI_Waitany"), (0, "the other end of its requests")),
}
_SIGNALS = {signal.SIGALRM: "no-end", signal.SIGSEGV: "segmentation-fault", signal.SIGFPE: "zero-division"}

_CALL = re.compile(
    r"\bcudaMalloc(?:Managed|Pitch)?\s*\(\s*(?:\((?:[^()]|\([^()]*\))*\)\s*)*?\(?\s*&?\s*([\w.\->\[\]]+)\s*\)?\s*[,)]"
)
_OF_HOST_CALL = re.compile(
    r"([\w.\->\[\]]+)\s*=(?!=)[^=;]*?\b(?:new|(?:malloc|calloc|realloc|aligned_alloc)\s*\()"
    r"|\bvector\s*<[^;]*?>\s*(\w+)\s*[({=](?![^;]*[)}]\s*,)"
    r"|\bcuda(?:MallocHost|HostAlloc)\s*\(\s*(?:\([\w\s*]+\)\s*)?&\s*([\w.\->\[\]]+)"
)
_ITEM = re.compile(r"sizeof\s*\(?\s*(\w+)")
_BYTES = {"double": 8, "long": 8, "size_t": 8, "char": 1, "bool": 1, "short": 2}
_USUAL = 4  # bytes of an element, if unknown
_INNER = r"\[((?:[^][]|\[[^][]*\])*)\]"
_INDEXED = re.compile(rf"[\w.]+\s*(?:{_INNER}\s*)*{_INNER}$")
_PRINTED = re.compile(  # elements, by a program that takes no times and gets nothing in other ways
    r"(?!.*(?:clock|time|chrono|symbol|mapped|devicepointer)).*\b(?:printf|cout)\b[^;]*\w\s*\[", re.DOTALL | re.IGNORECASE
)
_DROPPED = re.compile(r"^(?:.*/)?([^/:\n]+):(\d+):\d+: warning: ignoring return", re.MULTILINE)
_NO_VALUE = re.compile(
    r"^(?:.*/)?([^/:\n]+):(\d+):\d+: warning: (?:variable )?'([^'\n]+)' "
    r"(?:is (?:used uninitialized|uninitialized when used)|(may be (?:used uninitialized|uninitialized when used)))",
    re.MULTILINE,
)

Matrix = tuple[str, int, int]  # its name in the kernel, its rows and columns; for an array 0 rows and its length


def dropped_results(warnings: str) -> set[Place]:
    """The places of calls whose result is ignored, from the compiler's warnings."""
    return {(file, int(line)) for file, line in _DROPPED.findall(warnings)}


class Allocations:
    """The names of arrays in messages: a kernel's matrices, numbered from 1 on; or the variables that a program passes to
    cudaMalloc, or assigns from malloc and new. The runtime numbers arrays: below 0 in host memory."""

    def __init__(
        self, events: Iterable[dict[str, Any]], sources: Mapping[str, Sequence[str]], matrices: Sequence[Matrix] = ()
    ) -> None:
        self._matrices = dict(enumerate(matrices, 1))
        self._of = {each["number"]: each for each in events if each["event"] == "allocation"}
        calls: dict[tuple[Place, bool], list[tuple[str, int]]] = {}  # by place, and whether on the host: names, elements' bytes
        for file, lines in sources.items():
            plain = blanked("\n".join(lines))
            for call in chain(_CALL.finditer(plain), _OF_HOST_CALL.finditer(plain)):
                end = plain.find(";", call.end())
                item = _ITEM.search(plain, call.end(), end if end >= 0 else len(plain))
                named = call[call.lastindex or 0], _BYTES.get(item[1], _USUAL) if item else _USUAL
                first, last = (plain.count("\n", 0, place) + 1 for place in (call.start(), call.end()))
                for line in range(first, last + 1):
                    calls.setdefault(((file, line), call.re is _OF_HOST_CALL), []).append(named)
        self._called: dict[int, tuple[str, int]] = {}
        so_far: dict[Place, int] = {}
        for number in self._of:
            place = self.place(number)
            of_line = calls.get((place, number < 0), ())
            if number > 0 and of_line:  # of several calls in a line, in turn
                self._called[number] = of_line[so_far.get(place, 0) % len(of_line)]
                so_far[place] = so_far.get(place, 0) + 1
            elif len(of_line) == 1:
                self._called[number] = of_line[0]

    def name(self, number: int, *, with_line: bool = False) -> str:
        line = self._of[number]["line"] if number in self._of else 0
        if number in self._matrices:
            return self._matrices[number][0]
        if number in self._called:
            return f"{self._called[number][0]} (allocated in line {line})" if with_line else self._called[number][0]
        return f"the array of line {line}" if line else "an array"

    def place(self, number: int) -> Place:
        """Where the array was allocated."""
        return (self._of[number]["file"], self._of[number]["line"]) if number in self._of else ("", 0)

    def element(self, number: int, offset: int, item: int) -> str:
        """The name of the element at this byte offset. `item`: bytes of an element; 0: as at the array's allocation."""
        _, rows, columns = self._matrices.get(number, ("", 0, 0))
        place = offset // (item or self.item(number))
        return f"{self.name(number)}" + (f"[{place // columns}][{place % columns}]" if rows else f"[{place}]")

    def item(self, number: int) -> int:
        """Bytes of an element, from the sizeof where the array is allocated."""
        return self._called.get(number, ("", _USUAL))[1]

    def size(self, number: int, item: int) -> str:
        """A clause with the array's number of elements."""
        if number in self._matrices:
            name, rows, columns = self._matrices[number]
            return f"{name} is {rows}×{columns}" if rows else f"{name} has {columns} elements"
        event = self._of.get(number)
        if event is None:
            return "it has fewer elements"
        where = f" (allocated in line {event['line']})" if event["line"] else ""
        return f"it has {counted(event['bytes'] // item, 'element')}{where}"


def not_used(found: Iterable[Finding], right: Collection[int] | None = None) -> list[Finding]:
    """Those about values of shared memory that nothing has written. `right`: the lines of launches; None for all."""
    told = ((each, re.search(rf"{_NOT_WRITTEN}(?:.*launched in line (\d+))?", each.text)) for each in found)
    return [each for each, text in told if text and (right is None or int(text[1] or 0) in right)]


class Telling:
    """Turns a process's events into sentences."""

    def __init__(
        self,
        ran: ProcessResult,
        program: Path,
        warnings: str,
        sources: Mapping[str, Sequence[str]],
        seconds: float,
        matrices: Sequence[Matrix] | None = None,
    ) -> None:
        """`warnings`: the compiler's. `seconds`: the time limit. `matrices`: of a kernel that the lab launches; None for a
        student's program, whose text names the arrays."""
        self._is_kernel = matrices is not None
        self._events = [each for each in ran.findings if not self._is_kernel or each["event"] not in ("leak", "unseen", "use")]
        self._warnings, self._sources, self._own = warnings, sources, next(iter(sources))
        self._own_text = "\n".join(sources[self._own])
        self._limit = f"{math.ceil(seconds)} s (--stall)"
        self._symbols, plain = symbols_of(program), blanked("\n".join(line for lines in sources.values() for line in lines))
        self._extents, self._dynamic = extents_of(plain), dynamic_arrays(plain)
        launches = ((each, judged(each)) for each in self.of("product"))
        self.products = [(each, found) for each, found in launches if found is not None]
        of_events = (each[key] for each in self._events for key in _PLACES if key in each)
        named = {offset for one in of_events for offset in (one if isinstance(one, list) else [one])}
        offsets = sorted({*named, *(at for _, (_, at, _) in self.products)} - {0})
        self._places = dict(zip(offsets, places_of(offsets, program, set(sources)), strict=True))
        # Code of the C++ library, as of std::vector<bool>, may read what has no value yet.
        reads = [each for each in self._events if each.get("kind") == "unwritten by the host"]
        lines = places_of([each["at"] for each in reads], program, set(sources), innermost=True)
        of_library = [each for each, (_, line) in zip(reads, lines, strict=True) if not line]
        if "__CUDA_ARCH__" in plain:  # here it is defined in host code, too
            of_library += [each for each in self._events if each.get("kind") == "variable"]
        self._events = [each for each in self._events if each not in of_library]
        for each in self.of("allocation"):
            if "frames" in each:  # an array in host memory
                each["file"], each["line"] = self._place(*each["frames"])
        self._allocations = Allocations(() if self._is_kernel else self._events, sources, matrices or ())
        self._status = ran.status
        self._harmless: list[Finding] = []
        self._is_sampled = any(each["sampled"] for each in self.of("end"))

    def of(self, event: str) -> Iterator[dict[str, Any]]:
        """The events of this name."""
        return (each for each in self._events if each["event"] == event)

    def findings(self) -> list[Finding]:
        """All findings, without repetition."""
        by_index = any(each["kind"] == "index" and not each["kernel"] for each in self.of("finding"))
        of_products, right = list[Finding](), set[int]()  # lines of launches
        before: dict[int, dict[str, Any]] = {}  # the last launch of a line
        for launch, (wrong, at, is_by_columns) in self.products:
            if _adds_again(before.get(launch["launched"]), launch):
                line, name = launch["launched"], self._allocations.name(launch["operands"][2][0])
                text = f"the launch in line {line} adds to {name} what it has added before: cudaMemset begins with 0 again"
                of_products.append(Finding(f"added again: {text}", "wrong-terms", ((self._own, line),)))
            if not launch["order"]:
                before[launch["launched"]] = launch
            if not launch["order"] or launch["launched"] in right:
                of_products += [] if is_by_columns else filter(None, [self._product(launch, wrong, at)])
            (right.discard if wrong else right.add)(launch["launched"])
        found = self.without_value("line {} uses {}, which has no value yet")
        found += [self._finding(each) for each in self.of("finding") if not (each["kind"] == "stack" and by_index)]
        self._harmless = not_used(found, right)
        found = [*(each for each in found if each not in self._harmless), *of_products]
        ended = [self._ended(each) for each in self.of("ended")]
        if not (found or ended or any(self.of("end"))) and self._status < 0:
            ended = [Finding(f"{signal.Signals(-self._status).name} ended the program", "killed")]
        found = list(dict.fromkeys([*found, *ended]))
        return [*dict.fromkeys(self._arithmetic()), *found] if found else []

    def _arithmetic(self) -> Iterator[Finding]:
        """Undefined arithmetic. It is often intended, so it is no error unless something else is wrong."""
        for each in self.of("arithmetic"):
            place = (each["file"], each["line"])
            yield Finding(f"undefined: in {self._line(place)} {each['text']}", "undefined", (place,))

    def without_value(self, text: str, *, perhaps: bool = False) -> list[Finding]:
        """A finding for each variable that is used before it has a value; `text`: takes its line and name. `perhaps`: instead,
        for each that has none on some path, which may never be taken."""
        found = dict.fromkeys(_NO_VALUE.findall(re.sub("[‘’]", "'", self._warnings)))
        return [
            Finding(text.format(line, name), "no-value", ((file, int(line)),))
            for file, line, name, may_be in found
            if bool(may_be) == perhaps and (file == self._own or not self._is_kernel)
        ]

    def told(self, text: str) -> str:
        """The text with the name of allocation N for {N}, and with its line, too, for {N:}."""
        return re.sub(r"\{(-?\d+)(:?)\}", lambda found: self._allocations.name(int(found[1]), with_line=bool(found[2])), text)

    def is_expected(self, error: Mapping[str, Any]) -> bool:
        """Whether the program, which ends well, knows this error of a call by name, as where it tries smaller blocks."""
        name, is_of_a_call = error.get("name", ""), not error.get("of_kernel", True) and error["name"] != "cudaErrorNotReady"
        return is_of_a_call and self._status == 0 and re.search(rf"(?:[=!]=|\bcase)\s*{name}\b", self._own_text) is not None

    def notes(self) -> Iterator[str]:
        """What is no error but worth knowing."""
        leaks: dict[int, list[str]] = {}
        for each in self.of("leak"):
            leaks.setdefault(self._allocations.place(each["number"])[1], []).append(self._allocations.name(each["number"]))
        for line, names in leaks.items():
            many = "" if len(set(names)) == len(names) else f", {len(names)} allocations"
            yield f"never freed: {', '.join(dict.fromkeys(names))} (line {line}{many})"
        if not self.findings():
            yield from dict.fromkeys(each.text for each in self._arithmetic())
        yield from dict.fromkeys(f"{each}; the product is right without it" for each in self._harmless)
        told = {each["line"] for each in self.of("finding") if each["kind"] == "bytes"}
        yield from (f"line {each['line']}: {_set(each)}" for each in self.of("bytes") if each["line"] not in told)
        yield from (_NOTES[each["kind"]] for each in self.of("note"))

    def of_launch(self) -> dict[str, Any]:
        """What was found in a launch of a kernel: the `faults`, `hints` and `notes` of its case."""
        found, hints = self.findings(), self.without_value("line {}: {} may be used before it has a value", perhaps=True)
        if not found and self._status > 0:
            found = [Finding(f"the kernel ended the process with exit status {self._status}", "exit-status")]
        for each in self.of("undefined"):
            what = "takes values of lanes that take no part in this shuffle: have they left the loop or kernel?"
            hints.append(Finding(f"line {each['line']} {what}", "uninitialised"))
        return {"faults": tuple(found), "hints": tuple(hints), "notes": tuple(self.notes())}

    def factors(self) -> dict[tuple[Place, int], tuple[str, bool]]:
        """For both factors of each product, by the place of its launch: the name, and whether a number in it is not 0."""
        found: dict[tuple[Place, int], tuple[str, bool]] = {}
        for event, _ in self.products:
            for which, array in enumerate(event["arrays"][:2]):
                key = (self._own, event["launched"]), which
                has_others = bool(array.any()) or found.get(key, ("", False))[1]
                found[key] = self._allocations.name(event["operands"][which][0]), has_others
        return found

    def unused(self) -> tuple[list[Finding], list[str]]:
        """Findings about arrays that a program filled or computed for nothing; and notes about what may be intended."""
        found, lost, notes = [], [], []
        uses, missed = list(self.of("use")), set[int]()
        for copy in self.of("operand") if not self._is_sampled else ():
            outputs = [each for each in uses if each["written_by"] == copy["launch"]]
            # Arrays that take turns were read before; another array's copy may be intended where kernels wrote it.
            is_wrong = bool(outputs) and (not copy["written"] or all(each["consumed"] for each in outputs))
            if is_wrong and not any(each["seen"] or each["managed"] for each in outputs):
                place, name = (copy["file"], copy["line"]), self._allocations.name(copy["number"])
                missed |= {each["number"] for each in outputs}
                written = ", ".join(self._allocations.name(each["number"], with_line=True) for each in outputs)
                what = f"{self._line(place)} copies back {name}, which the last launch with it reads"
                lost.append(Finding(f"unused: {what}, and nothing reads what that launch writes: {written}", "unused", (place,)))
        of_products = {event["operands"][2][0] for event, _ in self.products}
        plain = blanked(self._own_text)
        host = "".join(plain[each.opening : each.end] for each in functions_in(plain) if each.is_of_host)
        is_printed = _PRINTED.match(host) and not any(each["copied_out"] or each["managed"] for each in uses)
        for each in uses:
            number, size = each["number"], each["bytes"]
            if each["managed"]:
                continue
            if each["filled"] and not (each["read"] or each["written"] or each["consumed"]):
                found.append(self._unused(number, "no kernel reads {}, and no copy either"))
            if each["written"] and not each["consumed"]:
                text = f"kernels write {{}}, last in the launch of line {each['launched']}, and it is never copied back"
                text += f"; nothing has written {self._allocations.name(each['untouched'])}" * bool(each["untouched"])
                unseen = self._unused(number, text)
                if number in of_products or each["untouched"] or is_printed:
                    lost.append(unseen)
                elif number not in missed:
                    notes.append(unseen.text)
            elif number in of_products and 0 < each["copied_out"] < size:
                part = f"{each['copied_out']:,} of {size:,} bytes"
                lost.append(self._unused(number, f"{part} of {{}} are copied back, and no others"))
        return list(dict.fromkeys([*found, *lost])), list(dict.fromkeys(notes))

    def _unused(self, number: int, text: str) -> Finding:
        what = text.format(self._allocations.name(number, with_line=True))
        return Finding(f"unused: {what}", "unused", (self._allocations.place(number),))

    def _finding(self, event: dict[str, Any]) -> Finding:
        place = (event["file"], event["line"]) if "line" in event else self._place(event.get("at", 0), *event.get("frames", ()))
        other = self._places.get(event.get("other_at", 0), ("", 0))
        if event["kind"] == "stopped":
            text, code = str(event["text"]), CODES_OF_KINDS[event["stop"]]
            text = f"divergent barrier: {text}{self._left(text)}" if event["stop"] == "barrier" else text
            place = (self._own, int((re.findall(r"\w\.\w+:(\d+)", text) or ["0"])[0]))
        else:
            code, sentence = _SENTENCES[self._kind(event)]
            text = sentence.format_map(self._words(event, place, other))
        is_beyond = event["kind"] == "bounds" and event["kernel"] and not self._is_kernel
        gives = exchanged(self._own_text, event["kernel"]) if is_beyond else ""
        text = f"{text}{self._by(event)}" + (f"; the launch in line {event['launched']} gives {gives}" if gives else "")
        return Finding(text, code, tuple(sorted({each for each in (place, other) if each[1]})))

    def _place(self, *offsets: int) -> Place:
        """The first of these offsets' places that is known."""
        return next((self._places[each] for each in offsets if self._places.get(each, ("", 0))[1]), ("", 0))

    def _kind(self, event: Mapping[str, Any]) -> str:
        """The kind, by which `_FINDINGS` has the sentence."""
        kind, of_dynamic = str(event["kind"]), event.get("space") == _DYNAMIC
        if kind == "host":
            return "no matrix" if self._is_kernel else "host variable" if event["variable"] else kind
        if kind == "unwritten":
            of_part = "unwritten part" if event["part"] > 0 else kind
            of_shared = "unwritten in shared" if of_dynamic or event["space"] == _SHARED else of_part
            return "unwritten copy" if event["copied_in"] else of_shared
        return "bounds of dynamic" if kind == "bounds" and of_dynamic else kind

    def _words(self, event: Mapping[str, Any], place: Place, other: Place) -> dict[str, Any]:
        """The event's members and what sentences say about it. `place`: of the access. `other`: of the other thread's in a race,
        or of the call that freed the array."""
        none = {"number": 0, "space": -1, "offset": 0, "bytes": 1, "variable": 0, "writes": False, "freed_by": "", "maker": 0}
        event = {**none, "by": 0, "source": 0, "copied_in": 0, "part_bytes": 0, "text": "", **event}
        of, line, number = self._allocations, self._line(place), event["number"]
        item, made = event["bytes"] if event["kind"] != "range" else of.item(number), of.place(number)[1]
        return {
            **event,
            "line": line,
            "other": self._line(other),
            "text": self.told(event["text"]),
            "does": f"{line} {'writes' if event['writes'] else 'reads'}",
            "uses": f"{line} {'updates' if event['writes'] else 'reads'}",  # what writes there is an atomic update
            "what": self._what(event),
            "variable_name": self._variable("OBJECT", event["variable"], event["bytes"]) or "a __device__ variable",
            "name": of.name(number),
            "name_and_line": of.name(number, with_line=True),
            "element": of.element(number, event["offset"], 0),
            "size": of.size(number, item),
            "made": f" (allocated in line {made})" if made else "",
            "never": f"which no {'thread' if self._is_kernel else 'copy, cudaMemset or kernel'} has written",
            "set": _set(event) if event["kind"] == "bytes" else "",
            "copied": self._copied(number, place),
            "from": self._copied(event["source"], (self._own, event["copied_in"])),
            "copies": "cudaMemcpyToSymbol" if event["writes"] else "cudaMemcpyFromSymbol",
            "has": event["part_bytes"],
            "whole": next((each["bytes"] for each in self.of("allocation") if each["number"] == number), 0)
            or self._of_variable(event["variable"]),
            "freed_how": event["freed_by"] if number > 0 else f"{self._line(other)} has freed it",
            "by": _FREEING[event["by"]],
            "maker": _MAKERS[event["maker"]],
            "frees": _FREEING[event["maker"]],
            "null": self._null() if event["kind"] == "null" else "",
            "wrong_index": self._index(event, place) if event["kind"] == "index" else "",
            **(self._race(event, place, other) if event["kind"] in ("race", "race of blocks") else {}),
        }

    def _null(self) -> str:
        """Why a program's pointer may be null, as where cudaMalloc sets one that a function has got by value."""
        plain = blanked(self._own_text)
        for each in functions_in(self._own_text) if not self._is_kernel else ():
            for call in _CALL.finditer(plain, each.opening, each.end):
                if re.search(rf"\w\s*\*\s*{re.escape(call[1])}\s*[,)]", each.head):
                    line = plain.count("\n", 0, call.start()) + 1
                    return f": in line {line} cudaMalloc sets {each.name}'s own {call[1]}, not the caller's: pass a pointer to it"
        return "" if self._is_kernel else ": was it allocated with cudaMalloc?"

    def _copied(self, number: int, place: Place) -> str:
        """The host's array that a copy in this place reads. `number`: its number, or 0."""
        call = re.search(r"\bcudaMemcpy\w*\s*\(", self._source(place))
        arguments = split(self._source(place)[call.end() :]) if call else []
        named = arguments[1].lstrip("&") if len(arguments) > 1 else "host memory"
        line = self._allocations.place(number)[1]
        return f"{named} (allocated in line {line})" if line else named

    def _left(self, text: str) -> str:
        """The conditions around a barrier that some threads do not reach."""
        barrier = re.search(rf"{re.escape(self._own)}:(\d+)", text)
        if barrier is None:
            return ""
        ifs = {first for first, last in loops_in(self._own_text, words="if") if first <= int(barrier[1]) <= last}
        return f"; the barrier stands within the if of {' and '.join(f'line {each}' for each in sorted(ifs))}" if ifs else ""

    def _race(self, event: Mapping[str, Any], place: Place, other_place: Place) -> dict[str, str]:
        """What a race's sentence says: its lines, and the threads where both are known."""
        lines: dict[int, str] = {}
        for line, writes in ((place[1], event["writes"]), (other_place[1], event["other_writes"])):
            lines[line] = "writes" if writes or lines.get(line) == "writes" else "reads"
        race = f"data race: {' and '.join(f'line {line} {does}' for line, does in sorted(lines.items()))} {self._what(event)}"
        threads = "; atomic updates wait for no plain access" * event.get("mixed", 0)
        if event["other_thread"] >= 0:
            (x, y, _), number = event["block_size"], event["other_thread"]
            other = {"thread": [number % x, number // x % y, number // (x * y)]}
            where = [f" in line {line}" if 0 not in lines and len(lines) > 1 else "" for line in (place[1], other_place[1])]
            threads += f": {_index_text(other, 'thread')}{where[1]} and then {_index_text(event, 'thread')}{where[0]}"
        return {"race": race, "threads": threads}

    def _index(self, event: Mapping[str, Any], place: Place) -> str:
        """A wrong index, as in: As[ty][k] with k = 16: 0 to 15 are there."""
        extent = re.search(r"\[(\d+)\]", event["type"])
        there = f"0 to {int(extent[1]) - 1} are there" if extent else f"its type is {event['type']}"
        # The column is that of the index's closing bracket, if the compiler tells it.
        found = _INDEXED.search(self._source(place)[: event["column"]])
        if found is None:
            return f"index {event['index']}: {there}"
        value = "" if found[2].strip() == str(event["index"]) else f" with {found[2].strip()} = {event['index']}"
        return f"{found[0]}{value}: {there}"

    def _product(self, event: dict[str, Any], wrong: str, at: int) -> Finding | None:
        gives = exchanged(self._own_text, event["kernel"])
        gives = gives and f"the launch in line {event['launched']} gives {gives}"
        if not wrong:
            return Finding(f"exchanged: {gives}", "wrong-operand", ((self._own, event["launched"]),)) if gives else None
        place, order = self._places[at], event["order"]
        which = f"this with the threads in {ORDERS[order]} order, and it is right in forward order" if order else ""
        text = "; ".join(filter(None, [f"{self._line(place)} writes {self.told(wrong)}", gives, which]))
        code = "order-dependent" if order else "wrong-elements"
        return Finding(f"wrong product: {text}{self._by(event)}", code, (place,) if place[1] else ())

    def _ended(self, event: dict[str, Any]) -> Finding:
        place = self._place(*event["frames"])
        where = self._line(place) if place[1] else "an unknown line"
        who = f"the kernel {event['kernel']}" if event["kernel"] else "the host code"
        at, name = f"{where}{self._by(event)}", signal.Signals(event["signal"])
        code = _SIGNALS.get(name, "killed")
        if name == signal.SIGALRM:
            waits = _waits_in(self._source(place))
            why = waits or "an endless loop, or much work for a CPU"
            text = f"{who} had not ended after {self._limit}; it was in {at}: {why}"
        elif name == signal.SIGSEGV and event["number"] and event["kernel"]:
            code = "out-of-bounds"
            text = f"out of bounds: {at} is beyond {self._allocations.name(event['number'], with_line=True)}"
        elif name == signal.SIGSEGV and event["number"]:
            why = "is in device memory: cudaMemcpy copies it"
            why = f"was freed by {event['freed_by']}" if event["freed_by"] else why
            array = self._allocations.name(event["number"])
            text = f"segmentation fault: {where} of the host code uses {array}, which {why}"
        elif name == signal.SIGFPE:
            text = f"{who} divides a whole number by zero in {at}"
        else:
            does = {signal.SIGSEGV: "segmentation fault", signal.SIGABRT: "abort"}.get(name, name.name)
            text = f"{does}: {who} in {at}{_STACK if name == signal.SIGSEGV and event['kernel'] else ''}"
        return Finding(text, code, (place,) if place[1] else ())

    def _by(self, event: dict[str, Any]) -> str:
        """The kernel and the thread of an event."""
        thread = f"{_index_text(event, 'block')}, {_index_text(event, 'thread')}" if {"block", "thread"} <= event.keys() else ""
        if self._is_kernel:
            if event.get("kind") == "race" and event["other_thread"] >= 0:  # the threads are named already
                return f", {_index_text(event, 'block')}"
            return f" ({thread})" if thread else ""
        if not event["kernel"]:
            return ""
        return f" ({event['kernel']}, launched in line {event['launched']}{': ' * bool(thread)}{thread})"

    def _line(self, place: Place) -> str:
        return f"line {place[1]}{'' if place[0] == self._own else f' of {place[0]}'}" if place[1] else "it"

    def _source(self, place: Place) -> str:
        """The source line; "" for none."""
        lines = self._sources.get(place[0], ())
        return lines[place[1] - 1] if 0 < place[1] <= len(lines) else ""

    def _what(self, event: Mapping[str, Any]) -> str:
        """The name of the accessed element."""
        space, offset, item = event["space"], event["offset"], event["bytes"]
        if space == _SHARED:
            return self._variable("TLS", offset, item) or "shared memory"
        if space == _VARIABLES:
            return self._variable("OBJECT", event["variable"], item) or "a __device__ variable"
        if space != _DYNAMIC:
            return self._allocations.element(event["number"], offset, item)
        # Of several arrays, it is unknown which one has this offset, and its type.
        if len(self._dynamic) == 1 and offset % item == 0:
            return f"{self._dynamic[0]}[{offset // item}]"
        return f"dynamic shared memory, byte {offset}"

    def _of_variable(self, offset: int) -> int:
        """The bytes of the __device__ or __constant__ variable at this offset; 0 if unknown."""
        return next((size for _, kind, begin, size in self._symbols if kind == "OBJECT" and begin <= offset < begin + size), 0)

    def _variable(self, kind: str, offset: int, item: int) -> str:
        """The element at this offset of a __shared__ (TLS) or __device__ variable (OBJECT); "" if unknown."""
        for name, of_kind, begin, size in self._symbols:
            if of_kind == kind and begin <= offset < begin + size:
                return name if size <= item else element_text(name, (offset - begin) // item, self._extents.get(name, ()))
        return ""


def _adds_again(before: dict[str, Any] | None, launch: dict[str, Any]) -> bool:
    """Whether a launch adds the same product as the one before to what that has left in C."""
    if before is None or launch["order"] or launch["scales"] or before["operands"] != launch["operands"]:
        return False
    (*factors, c, old, _), (*others, left, _, _) = launch["arrays"], before["arrays"]
    is_same = all(map(np.array_equal, (*factors, old), (*others, left)))
    return is_same and not np.array_equal(c, left)


def _waits_in(source: str) -> str:
    """A sentence about the MPI call in a source line and whom it waits for; "" for none."""
    found = re.search(r"\b(MPI_\w+)\s*\(", source)
    if found is None:
        return ""
    arguments = split(source[found.end() :])
    place, whom = _PARTNERS.get(found[1], (0, "the ranks that have not called it"))
    partner = arguments[place] if place < len(arguments) else ""
    return f"{found[1]} waits for {whom.format(partner)}, which never came"


def _set(event: Mapping[str, Any]) -> str:
    filled = f"each of {event['items']:,} elements becomes {event['item']:,.8g}, not {event['value']}"
    return f"cudaMemset sets bytes: {filled}"


def _index_text(event: Mapping[str, Any], what: str) -> str:
    """The event's block or thread, as in: block (0, 1)."""
    index = event[what]
    return f"{what} ({', '.join(map(str, index if index[2] else index[:2]))})"
