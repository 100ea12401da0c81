# SPDX-License-Identifier: MIT
"""What the CPU runtime found in a whole program, in CUDA's words and with the lines and names of its text."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid.classroom.allocations import Allocations
from hybrid.classroom.finding import Finding, Place
from hybrid.classroom.launches import exchanged
from hybrid.classroom.products import Judged, judged
from hybrid.classroom.symbols import Variables
from hybrid.classroom.wording import index_text, index_told, race_told, thread_of_block, thread_text
from hybrid.core.text import counted
from hybrid.emulation.errors import CODES_OF_KINDS
from hybrid.emulation.requests import places_of
from hybrid.emulation.whole_program import Ran

_SHARED, _DYNAMIC, _VARIABLES = 3, 4, 2  # as in device_memory.h
_PLACES = ("at", "other_at", "frames")
_NOTES = {
    "streams": "the work of all streams is done in the order of the calls, without overlap",
    "times": "cudaEventElapsedTime gives times of this CPU with every access looked at: they say nothing about a GPU",
    "unflushed": "what kernels printed last was not shown: it is shown when the host waits for them, as in "
    "cudaDeviceSynchronize(), and not at the program's end",
}
_STACK = ": its local arrays may be larger than 256 KiB a thread, which the CPU runtime has"

# The codes of what the runtime found, by its kinds.
_CODES = {
    "bounds": "out-of-bounds",
    "index": "out-of-bounds",
    "freed": "illegal-address",
    "null": "illegal-address",
    "misaligned": "illegal-address",
    "host": "illegal-address",
    "unwritten": "uninitialised",
    "copies unwritten": "uninitialised",
    "early": "data-race",
    "race": "data-race",
    "race of blocks": "data-race",
    "order": "data-race",
    "pinned": "data-race",
    "clock": "too-early",
}
_MUCH = 8  # of an array: at least so large a part is told that no kernel reads
# The codes of the signals that end a program.
_SIGNALS = {signal.SIGALRM: "no-end", signal.SIGSEGV: "segmentation-fault", signal.SIGFPE: "zero-division"}


class Telling:
    """Makes sentences of what the runtime found in a process. Findings of kind K are told by the method _K."""

    _never = "which no copy, cudaMemset or kernel has written"

    def __init__(
        self, ran: Ran, program: Path, sources: Mapping[str, Sequence[str]], limit: str, arrays: Allocations | None = None
    ) -> None:
        """`limit`: the time that the process had. `arrays`: names of arrays, where they are not those in the program's text."""
        self._events, self._limit = ran.findings, limit
        self._sources, self._own = sources, next(iter(sources))
        self._allocations = arrays or Allocations(ran.findings, sources)
        self._variables = Variables(program, sources)
        launches = ((each, judged(each)) for each in self.of("product"))
        self.products = [(each, found) for each, found in launches if found is not None]
        named = {offset for each in ran.findings for key in _PLACES for offset in _listed(each.get(key, 0))}
        offsets = sorted({*named, *(found.at for _, found in self.products)} - {0})
        self._places = dict(zip(offsets, places_of(offsets, program, set(sources)), strict=True))
        self._status = ran.status
        self._is_sampled = any(each["sampled"] for each in self.of("end"))

    def of(self, event: str) -> Iterator[dict[str, Any]]:
        """The events of this name."""
        return (each for each in self._events if each["event"] == event)

    def findings(self) -> list[Finding]:
        """What was found, each once."""
        found = [self._finding(each) for each in self.of("finding")]
        found += [each for event, judged in self.products if (each := self._product(event, judged))]
        ended = [self._ended(each) for each in self.of("ended")]
        if not ended and not any(self.of("end")) and self._status < 0:
            ended = [Finding(f"{signal.Signals(-self._status).name} ended the program", "killed")]
        return list(dict.fromkeys([*found, *ended]))

    def _finding(self, event: dict[str, Any]) -> Finding:
        place = (event["file"], event["line"]) if "line" in event else self._places.get(event.get("at", 0), ("", 0))
        other = self._places.get(event.get("other_at", 0), ("", 0))
        text = getattr(self, f"_{event['kind'].replace(' ', '_')}")(event, place, other)
        if event["kind"] == "stopped":
            place = (self._own, int((re.findall(r"\w\.\w+:(\d+)", text) or ["0"])[0]))
        code = CODES_OF_KINDS[event["stop"]] if event["kind"] == "stopped" else _CODES[event["kind"]]
        return Finding(f"{text}{self._by(event)}", code, tuple(sorted({each for each in (place, other) if each[1]})))

    def told(self, text: str) -> str:
        """The runtime's text, in which {N} stands for the name of allocation N and {N:} for it with its line."""
        return re.sub(r"\{(\d+)(:?)\}", lambda found: self._allocations.named(int(found[1]), with_line=bool(found[2])), text)

    def unused(self) -> tuple[list[Finding], list[str]]:
        """What a program that has ended well has filled, or computed, for nothing; and notes of what may be meant so."""
        uses = [each for each in self.of("use") if not each["managed"]]
        never_read = [each for each in uses if each["filled"] and not (each["read"] or each["written"] or each["consumed"])]
        found = [self._unused(each["number"], "no kernel reads {}, and no copy either") for each in never_read]
        of_products = {event["operands"][2][0] for event, _ in self.products}
        notes = []
        for each in uses:
            number, size = each["number"], each["bytes"]
            if each["written"] and not each["consumed"]:
                lost = self._unused(number, "kernels write {}, and it is never copied back")
                if number in of_products:
                    found.append(lost)
                else:
                    notes.append(lost.text)
            elif number in of_products and 0 < each["copied_out"] < size:
                part = f"{each['copied_out']:,} of {size:,} bytes"
                found.append(self._unused(number, f"{part} of {{}} are copied back, and no others"))
            if each["filled"] and each["read"] and each["unread"] * _MUCH >= size and not self._is_sampled:
                notes.append(self.told(f"the last {each['unread']:,} of {size:,} bytes of {{{number}:}} are never read"))
        return list(dict.fromkeys(found)), list(dict.fromkeys(notes))

    def _unused(self, number: int, text: str) -> Finding:
        place = self._allocations.place(number)
        return Finding(f"unused: {text.format(self._allocations.named(number, with_line=True))}", "unused", (place,))

    def _product(self, event: dict[str, Any], judged: Judged) -> Finding | None:
        gives = exchanged("\n".join(self._sources[self._own]), event["kernel"])
        gives = gives and f"the launch in line {event['launched']} gives {gives}"
        if not judged.text:
            return Finding(f"exchanged: {gives}", "wrong-operand", ((self._own, event["launched"]),)) if gives else None
        place = self._places[judged.at]
        text = (
            f"wrong product: {self._line(place)} writes {self.told(judged.text)}{'; ' if gives else ''}{gives}{self._by(event)}"
        )
        return Finding(text, "wrong-elements", (place,) if place[1] else ())

    def _by(self, event: dict[str, Any]) -> str:
        """The kernel and the thread that did it."""
        if not event["kernel"]:
            return ""
        who = f"{event['kernel']}, launched in line {event['launched']}"
        return f" ({who}{': ' + thread_text(event) if 'thread' in event else ''})"

    def _does(self, event: dict[str, Any], place: Place) -> str:
        line = self._line(place)
        return f"{line} {'writes' if event['writes'] else 'reads'}"

    def _line(self, place: Place) -> str:
        return f"line {place[1]}{'' if place[0] == self._own else f' of {place[0]}'}" if place[1] else "it"

    def _what(self, event: dict[str, Any]) -> str:
        """The element that was accessed, with the name of its array."""
        if event["space"] == _DYNAMIC:
            return self._variables.of_dynamic_shared(event["offset"], event["bytes"])
        if event["space"] == _SHARED:
            return self._variables.of_shared(event["offset"], event["bytes"])
        if event["space"] == _VARIABLES:
            return self._variables.of_device(event["variable"], event["bytes"])
        return self._allocations.element(event["number"], event["offset"], event["bytes"])

    def _bounds(self, event: dict[str, Any], place: Place, _: Place) -> str:
        if event["space"] == _DYNAMIC:
            return (
                f"out of bounds: {self._does(event, place)} beyond the launch's dynamic shared memory, at byte {event['offset']}"
            )
        size = self._allocations.size(event["number"], event["bytes"])
        return f"out of bounds: {self._does(event, place)} {self._what(event)}, and {size}"

    def _freed(self, event: dict[str, Any], place: Place, _: Place) -> str:
        return f"illegal address: {self._does(event, place)} {self._what(event)} after cudaFree"

    def _misaligned(self, event: dict[str, Any], place: Place, _: Place) -> str:
        what = f"{event['bytes']} bytes together, from {self._what(event)} on"
        return f"misaligned address: {self._does(event, place)} {what}, whose address is no multiple of {event['bytes']}"

    def _null(self, event: dict[str, Any], place: Place, _: Place) -> str:
        return f"illegal address: {self._does(event, place)} through a null pointer: was it allocated with cudaMalloc?"

    def _host(self, event: dict[str, Any], place: Place, _: Place) -> str:
        if event["variable"]:
            name = self._variables.of_device(event["variable"], event["bytes"])
            return f"illegal address: {self._does(event, place)} {name}, a variable of the host: kernels have __device__ ones"
        return f"illegal address: {self._does(event, place)} host memory in a kernel, which device memory is for"

    def _unwritten(self, event: dict[str, Any], place: Place, _: Place) -> str:
        does = f"{self._line(place)} {'updates' if event['writes'] else 'reads'}"  # what writes here is an atomic update
        if event["space"] in (_SHARED, _DYNAMIC):
            return f"uninitialised: {does} {self._what(event)} in shared memory, which its block has not written"
        return f"uninitialised: {does} {self._what(event)}, {self._never}"

    def _copies_unwritten(self, event: dict[str, Any], place: Place, _: Place) -> str:
        what = self._allocations.element(event["number"], event["offset"], 0)
        return f"uninitialised: {self._line(place)} copies {what} to the host, {self._never}"

    def _early(self, event: dict[str, Any], place: Place, _: Place) -> str:
        what = f"{self._does(event, place)} managed memory {self._what(event)} on the host while the kernel may still run"
        return f"data race: {what}: no cudaDeviceSynchronize() stands between them"

    def _order(self, event: dict[str, Any], _: Place, __: Place) -> str:
        return f"data race: {self.told(event['text'])}"

    def _pinned(self, event: dict[str, Any], place: Place, _: Place) -> str:
        what = f"{self._does(event, place)} host memory that {event['text']} may still use"
        return f"data race: {what}: no cudaStreamSynchronize() or other waiting stands between them"

    def _clock(self, event: dict[str, Any], place: Place, _: Place) -> str:
        what = f"{self._line(place)} reads the clock while {event['of']}, launched in line {event['launch']}, may still run"
        return f"too early: {what}, so it measures the launch: cudaDeviceSynchronize() waits for the kernel"

    def _race(self, event: dict[str, Any], place: Place, other: Place) -> str:
        return race_told(self._accesses(event, place, other), self._what(event), within_block=True) + self._two(
            event, place, other
        )

    def _race_of_blocks(self, event: dict[str, Any], place: Place, other: Place) -> str:
        return race_told(self._accesses(event, place, other), self._what(event), within_block=False) + ", of different blocks"

    def _accesses(self, event: dict[str, Any], place: Place, other: Place) -> list[tuple[int, bool]]:
        return [(place[1], bool(event["writes"])), (other[1], bool(event["other_writes"]))]

    def _two(self, event: dict[str, Any], place: Place, other_place: Place) -> str:
        if event["other_thread"] < 0:
            return ""
        other = {**event, "thread": thread_of_block(event["other_thread"], event["block_size"])}
        lines = place[1], other_place[1]
        where = [f" in line {line}" if all(lines) and len(set(lines)) > 1 else "" for line in lines]
        return f": {index_text(other, 'thread')}{where[1]} and then {index_text(event, 'thread')}{where[0]}"

    def _index(self, event: dict[str, Any], place: Place, _: Place) -> str:
        lines = self._sources.get(place[0], ())
        source = lines[place[1] - 1] if 0 < place[1] <= len(lines) else ""
        what = index_told(source, event["column"], event["index"], event["type"])
        return f"out of bounds: {self._line(place)} uses {what}"

    def _stopped(self, event: dict[str, Any], _: Place, __: Place) -> str:
        return f"divergent barrier: {event['text']}" if event["stop"] == "barrier" else str(event["text"])

    def _ended(self, event: dict[str, Any]) -> Finding:
        places = [self._places[offset] for offset in event["frames"] if self._places[offset][1]]
        place = next(iter(places), ("", 0))
        where = self._line(place) if place[1] else "an unknown line"
        who = f"the kernel {event['kernel']}" if event["kernel"] else "the host code"
        at = f"{where}{self._by(event)}"
        name = signal.Signals(event["signal"])
        if name == signal.SIGALRM:
            source = self._sources[place[0]][place[1] - 1] if place[1] else ""
            why = "a message or a rank that never came" if "MPI_" in source else "an endless loop, or much work for a CPU"
            text = f"{who} had not ended after {self._limit}; it was in {at}: {why}"
        elif name == signal.SIGSEGV and event["number"] and event["kernel"]:
            return Finding(
                f"out of bounds: {at} is beyond {self._allocations.named(event['number'], with_line=True)}",
                "out-of-bounds",
                (place,),
            )
        elif name == signal.SIGSEGV and event["number"]:
            array = self._allocations.name(event["number"])
            text = f"segmentation fault: {where} of the host code uses {array}, which is in device memory: cudaMemcpy copies it"
        elif name == signal.SIGFPE:
            text = f"{who} divides a whole number by zero in {at}"
        else:
            does = {signal.SIGSEGV: "segmentation fault", signal.SIGABRT: "abort"}.get(name, name.name)
            stack = name == signal.SIGSEGV and event["kernel"]
            text = f"{does}: {who} in {at}{_STACK if stack else ''}"
        return Finding(text, _SIGNALS.get(name, "killed"), (place,) if place[1] else ())

    def notes(self) -> Iterator[str]:
        leaks = [each["number"] for each in self.of("leak")]
        for line, names in self._allocations.by_line(leaks).items():
            yield (
                f"never freed: {', '.join(names)} (line {line})"
                if len(set(names)) == len(names)
                else (f"never freed: {counted(len(names), 'allocation')} of line {line}, {names[0]}")
            )
        yield from (_NOTES[each["kind"]] for each in self.of("note"))


def _listed(value: Any) -> list[int]:
    return value if isinstance(value, list) else [value]
