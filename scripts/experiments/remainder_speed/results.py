# SPDX-License-Identifier: MIT
"""What recorded times of the kernels of products from remainders say: tables, and the goals for an H200."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.common import records, results, schema, tables, targets
from experiments.common.timed_products import milliseconds, sizes_of

YARDSTICK = "cuBLAS"
KINDS = ("normal", "integers", "bytes", "halves", "errors", "stages")
DTYPES = ("float64", "float32", "int8")

_LINE: schema.Schema = {**schema.ON_DEVICE, **schema.SIDES, "dtype": schema.among(*DTYPES), "kind": schema.among(*KINDS)}

# Of an H200: kind, type, n×l×m, way, at least so many times cuBLAS' speed in turns, and alone.
GOALS: tuple[tuple[str, str, str, str, float, float], ...] = (
    ("normal", "float64", "2048×2048×2048", "15 moduli", 1.2, 0),
    ("normal", "float64", "4096×4096×4096", "15 moduli", 1.4, 0),
    ("normal", "float64", "8192×8192×8192", "15 moduli", 1.65, 1.55),
    ("normal", "float64", "8192×8192×8192", "14 moduli", 1.75, 0),
    ("normal", "float64", "16384×16384×16384", "15 moduli", 1.70, 1.63),
    ("normal", "float64", "16384×16384×16384", "14 moduli", 1.80, 0),
    ("normal", "float64", "1000×8000×8000", "14 moduli, B ready", 1.7, 0),
    ("normal", "float32", "4096×4096×4096", "7 moduli", 3.1, 0),
    ("normal", "float32", "8192×8192×8192", "7 moduli", 4.2, 3.45),
    ("normal", "float32", "16384×16384×16384", "7 moduli", 4.2, 3.45),
    ("integers", "float64", "8192×8192×8192", "bytes", 17, 0),
    ("integers", "float64", "16384×16384×16384", "bytes", 21, 0),
    ("bytes", "int8", "8192×8192×8192", "packed bytes", 1.15, 0),
)


class Results(results.Results):
    command = "bench_remainders"
    schemas = {
        "products": {**_LINE, "way": schema.name, "seconds": schema.spread, "alone": schema.positive},
        "errors": {**_LINE, "fill": schema.name, "way": schema.name, "rms": schema.real, "most": schema.real},
        "stages": {**_LINE, "stage": schema.name, "moduli": schema.count, "took": schema.positive},
    }

    def blocks(self) -> Iterator[tables.Block]:
        yield from self._products()
        yield from self._errors()
        yield from self._stages()

    def _products(self) -> Iterator[tables.Block]:
        rows = []
        for line in self._of("products"):
            cells = []
            for time in ("seconds", "alone"):
                ratio = self._ratio(line, time)
                cells += [milliseconds(_seconds(line, time)), "–" if ratio is None else f"{ratio:.2f}"]
            operations = 2 * line["n"] * line["l"] * line["m"] / _seconds(line, "alone") / 1e12
            rows.append([f"{line['kind']}, {line['dtype']}", sizes_of(line), line["way"], *cells, f"{operations:.4g}"])
        heads = ["elements", "n×l×m", "way", "in turns, ms", "× cuBLAS", "alone, ms", "× cuBLAS", "10¹² operations/s"]
        if rows:
            yield tables.Table(heads, "lllrrrrr", rows, "operands on the GPU, unchecked")

    def _errors(self) -> Iterator[tables.Block]:
        heads = ["elements", "n×l×m", "way", "root mean square", "maximum"]
        rows = [
            [line["fill"], sizes_of(line), line["way"], f"{line['rms']:.2g}", f"{line['most']:.2g}"]
            for line in self._of("errors")
        ]
        if rows:
            yield tables.Table(heads, "lllrr", rows, "errors as parts of |A||B|, in 2⁻²⁴")

    def _stages(self) -> Iterator[tables.Block]:
        heads, rows = ["type", "n×l×m", "stage", "ms"], []
        for line in self._of("stages"):
            kind = f"{line['dtype']}, {line['moduli']} moduli"
            rows.append([kind, sizes_of(line), line["stage"], milliseconds(line["took"])])
        if rows:
            yield tables.Table(heads, "lllr", rows, "each kernel alone")

    def _of(self, part: str) -> list[records.Line]:
        return [line for line in self.lines if line["part"] == part]

    def _ratio(self, line: records.Line, time: str) -> float | None:
        """cuBLAS' time over this one's; None where cuBLAS was not measured."""
        same = ("kind", "dtype", "n", "l", "m")
        for other in self._of("products"):
            if other["way"] == YARDSTICK and all(other[key] == line[key] for key in same):
                return _seconds(other, time) / _seconds(line, time)
        return None

    def verdicts(self) -> Iterator[targets.Verdict]:
        """On each goal whose product was measured."""
        for kind, dtype, sizes, way, *goals in GOALS:
            for line in self._of("products"):
                if (line["kind"], line["dtype"], sizes_of(line), line["way"]) != (kind, dtype, sizes, way):
                    continue
                for time, goal in zip(("seconds", "alone"), goals, strict=True):
                    ratio = self._ratio(line, time)
                    if goal and ratio is not None:
                        what = f"{kind}, {dtype}, {sizes}, {way}, {'in turns' if time == 'seconds' else time}"
                        yield targets.verdict(what, ratio, goal, "× cuBLAS", at_least=True)


class Checked(Results):
    """1 where a goal is missed."""

    def exit_code(self) -> int:
        return 0 if targets.all_reached(self.verdicts()) else 1


def _seconds(line: records.Line, time: str) -> Any:
    return line["seconds"]["median"] if time == "seconds" else line[time]
