# SPDX-License-Identifier: MIT
"""The lecture's roofline: what memory delivers bounds what can be computed, unless numbers are used more than once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.common import cuda, plots, records, timing, wording
from experiments.common.tables import Table
from hybrid.host.threads import limited_threads
from hybrid.kernels.catalogue import fastest

ITEM = 4  # bytes of a float32
COPIED = (8192, 8192)  # float32 numbers, more than any cache holds
MULTIPLIED = {"cuda": 8192, "emulate": 1024}
REPEAT = 5
TILE = 32
# Operations for each byte that a program loads from global memory: a multiplication and an addition for two numbers, or for
# two TILEth parts of numbers.
INTENSITY = {"MM-CPU": 2 / (2 * ITEM), "MM-GPU-GM": 2 / (2 * ITEM), "MM-GPU-SM": 2 / (2 * ITEM / TILE)}


@dataclass(frozen=True)
class Roof:
    """What a device's memory and its arithmetic can do in a second."""

    name: str
    bytes: float
    operations: float

    @property
    def numbers(self) -> float:
        return self.bytes / ITEM

    def bound(self, intensity: float) -> float:
        """Operations a second at so many for each byte."""
        return min(self.operations, self.bytes * intensity)


@dataclass(frozen=True)
class Point:
    """A program on a device: operations for each byte, and a second."""

    program: str
    intensity: float
    operations: float


LECTURE = Roof("C2075 (lecture)", 144e9, 1e12)


def point(program: str, width: int, seconds: float) -> Point:
    return Point(program, INTENSITY[program], 2 * width**3 / seconds)


def measured(runtime: cuda.CudaRuntime) -> Iterator[records.Line]:
    """A GPU, or where there is none a core of the CPU: the best of some copies, and the fastest multiplication there is."""
    moved = 2 * ITEM * COPIED[0] * COPIED[1]  # read and written
    size = MULTIPLIED[runtime.device]
    a, b = timing.matrices("uniform", "float32", size, size, size)
    if runtime.device == "cuda":
        copy = min(_copies_on_gpu(runtime))
        kernel = fastest("cuda", "float32", size, runtime.capability)
        product = min(timing.kernel_seconds(runtime, kernel, a, b, REPEAT))
        name, how = runtime.name, kernel.name
    else:
        with limited_threads(1):
            into, source = np.zeros(COPIED, np.float32), np.ones(COPIED, np.float32)
            copy = min(records.seconds_of(np.copyto, into, source) for _ in range(REPEAT))
            product = min(records.seconds_of(np.matmul, a, b) for _ in range(REPEAT))
        name, how = f"one core of {cuda.processor()}", "blas"
    roof = {"roof": name, "bytes_per_second": moved / copy, "operations_per_second": 2 * size**3 / product}
    yield {"part": "roof", **roof, "multiplied_by": how}


def _copies_on_gpu(runtime: cuda.CudaRuntime) -> list[float]:
    try:
        into, source = (runtime.allocate(*COPIED, "float32") for _ in range(2))
        runtime.poison(source)
        times = []
        for _ in range(REPEAT + 1):
            begin = runtime.event()
            runtime.move(into, source)
            times.append(runtime.seconds(begin, runtime.event()))
        return times[1:]
    finally:
        runtime.release()


def roof_of(lines: Sequence[records.Line]) -> Roof:
    """The last one measured."""
    line = [line for line in lines if line["part"] == "roof"][-1]
    return Roof(line["roof"], line["bytes_per_second"], line["operations_per_second"])


def tables(roof: Roof, points: Sequence[Point]) -> Iterator[Table]:
    """The lecture's argument in its numbers, then in these; then what was reached. `points`: programs on `roof`."""
    rows = []
    for one in (LECTURE, roof):
        memory, numbers, peak = (wording.number(rate / 1e9) for rate in (one.bytes, one.numbers, one.operations))
        share = f"{100 * one.numbers / one.operations:.2g} %"
        rows.append([one.name, f"{memory} GB/s", f"{numbers} G/s", f"{numbers} GF/s", f"{peak} GF/s", share])
    yield Table(["", "memory", "numbers", "an operation each", "arithmetic", "share"], "lrrrrr", rows, "the roofline")
    rows = []
    for each in points:
        bound, reached = (wording.number(rate / 1e9) for rate in (roof.bound(each.intensity), each.operations))
        note = " (above: caches hold what was loaded before)" if each.operations > roof.bound(each.intensity) else ""
        rows.append([each.program, f"{each.intensity:g}", f"{bound} GF/s", f"{reached} GF/s{note}"])
    if rows:
        yield Table(["", "operations a byte", "bound", "reached"], "lrrl", rows, f"under the roof of {roof.name}")


def draw(panel: Any, roof: Roof, points: Sequence[Point], lecture: Sequence[Point]) -> None:
    """Both roofs, and the programs that were measured under each."""
    plots.plain(panel, "what memory and arithmetic allow")
    across = np.geomspace(1 / 64, 256, 200)
    for one, reached, color in ((LECTURE, lecture, plots.LECTURE), (roof, points, plots.HERE)):
        rates = f"{wording.number(one.bytes / 1e9)} GB/s, {wording.number(one.operations / 1e9)} GF/s"
        label = f"{one.name}:{chr(10) if plots.narrow() else ' '}{rates}"
        panel.plot(across, [one.bound(intensity) / 1e9 for intensity in across], color=color, label=label)
        for each in reached:
            where = (each.intensity, each.operations / 1e9)
            panel.plot(*where, "o", color=color)
            above = each.operations > one.bound(each.intensity)  # the texts keep off the slope
            side = {"xytext": (-6, 5), "ha": "right"} if above else {"xytext": (6, 5), "ha": "left"}
            panel.annotate(each.program, where, textcoords="offset points", color=color, fontsize=8, **side)
    if any(each.operations > one.bound(each.intensity) for one, of in ((LECTURE, lecture), (roof, points)) for each in of):
        note = "above its slope: caches deliver\nwhat was loaded before"
        panel.annotate(note, (0.02, 0.97), xycoords="axes fraction", va="top", fontsize=8, color=plots.TEXT)
    panel.margins(y=0.14)
    panel.axvline(1 / ITEM, color=plots.GREY, linewidth=0.8, linestyle=":")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
    panel.set_xlabel("operations a byte loaded from memory")
    panel.set_ylabel("GF/s")
    panel.legend(frameon=False, fontsize=8, loc="lower right")
