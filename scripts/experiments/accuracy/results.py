# SPDX-License-Identifier: MIT
"""What recorded errors say: a table for each type and length along k, and a picture of errors by number of moduli."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.accuracy import random_matrices
from experiments.accuracy.errors import UNITS, above
from experiments.accuracy.kinds import ALL_KINDS
from experiments.accuracy.wording import MODES, NATIVE, about_native, pair, short
from experiments.common import plots, records, results, schema, tables
from hybrid.core.text import rounded_up
from hybrid.errors import UsageError

FORCED = {"float64": (13, 14, 15, 16), "float32": (6, 7, 8)}  # moduli, whatever the guard says
_IN_BRACKETS = (
    "In brackets: the arithmetic that the guard chose (in the model for the whole product as one tile), and what no element's "
    "error can exceed, in the same units."
)
_LEAST = 1e-3  # errors below are drawn there
_DRAWN = ("uniform", "normal", "φ = 1", "φ = 2", "Hilbert", "graded k")
_COLORS = (plots.HERE, plots.LECTURE, plots.OTHER, plots.GREY, "#8c6bb1", "#66ccee")


def _error(value: Any) -> bool:
    """Root mean square and maximum; none where a product cannot be computed so."""
    return value is None or (isinstance(value, list) and len(value) == 2 and all(schema.real(each) for each in value))


def _errors(value: Any) -> bool:
    return isinstance(value, dict) and NATIVE in value and all(schema.name(name) and _error(each) for name, each in value.items())


def _of_modes(test: schema.Test) -> schema.Test:
    return lambda value: isinstance(value, dict) and set(value) == set(MODES) and all(map(test, value.values()))


_PRODUCT: schema.Schema = {
    **schema.WHOLE_RUN,
    **schema.SIDES,
    "device": schema.among("cuda", "cpu", "emulate"),
    "gpu": schema.or_none(schema.name),
    "dtype": schema.among(*UNITS),
    "kind": schema.among(*ALL_KINDS),
    "sampled": schema.count,
    "chosen": _of_modes(schema.name),
    "certified": _of_modes(schema.or_none(schema.real)),
    "errors": _errors,
}


class Results(results.Results):
    command = "accuracy"
    schemas = {
        "errors": {**_PRODUCT, "ratio": schema.real},
        "random": {**_PRODUCT, "seed": schema.whole, "repeat": schema.text},
    }

    def blocks(self) -> Iterator[tables.Block]:
        if self.lines[-1]["part"] == "random":
            yield from random_matrices.blocks(self.lines)
            return
        for dtype, l in dict.fromkeys((line["dtype"], line["l"]) for line in self.lines):
            lines = [line for line in self.lines if (line["dtype"], line["l"]) == (dtype, l)]
            columns = list(dict.fromkeys(name for line in lines for name in line["errors"]))
            heads = ["matrices", "least ratio", *(_head(name) for name in columns)]
            rows = [[line["kind"], short(line["ratio"]), *(_cell(line, name) for name in columns)] for line in lines]
            unit = {"float64": "2⁻⁵³", "float32": "2⁻²⁴"}[dtype]
            title = f"{dtype}, l = {l}: errors as parts of (|A||B|)ᵢⱼ, in units of {unit}, root mean square / maximum"
            yield tables.Table(heads, "lr" + "r" * len(columns), rows, title)
        yield tables.Remarks([f"Native is {about_native(self.lines[-1])}. {_IN_BRACKETS}", *self._above_native()])

    def markdown(self) -> str:
        started = "; ".join(f"`{command}`" for command in self.started())
        return "\n".join([*map(tables.markdown, self.blocks()), f"{self.caption()}, {started}\n"])

    def _above_native(self) -> Iterator[str]:
        """Where a choice of the guard has larger errors than native arithmetic."""
        for line in self.lines:
            for mode in MODES:
                chosen, of_native = line["errors"][mode], line["errors"][NATIVE]
                if above(chosen, of_native):
                    what = f"{line['dtype']}, l = {line['l']}, {line['kind']}: {line['chosen'][mode]}"
                    yield f"Above native arithmetic: {what}, {pair(chosen)} with precision {mode}, {pair(of_native)} natively."

    def exit_code(self) -> int:
        return int(self.lines[-1]["part"] == "random" and bool(random_matrices.failed(self.lines)))

    def has_picture(self) -> bool:
        return self.lines[-1]["part"] == "errors"

    def draw(self, path: str) -> None:
        """Root mean squares by number of moduli, and natively as dashed lines; a panel for each type, of the longest k."""
        if not self.has_picture():
            raise UsageError(f"random matrices have no picture for {path}")
        dtypes = list(dict.fromkeys(line["dtype"] for line in self.lines))
        longest = max(line["l"] for line in self.lines)
        with plots.figure(path, (4.6 * len(dtypes) + 1, 3.6), f"Errors of products, l = {longest}", self.caption()) as figure:
            for dtype, panel in zip(dtypes, figure.subplots(1, len(dtypes), squeeze=False)[0], strict=True):
                plots.plain(panel, f"{dtype}, root mean square in units of {'2⁻⁵³' if dtype == 'float64' else '2⁻²⁴'}")
                there = {line["kind"]: line for line in self.lines if (line["dtype"], line["l"]) == (dtype, longest)}
                kinds = [kind for kind in _DRAWN if kind in there] or list(there)[: len(_COLORS)]
                for kind, color in zip(kinds, _COLORS, strict=False):
                    _draw_kind(panel, there[kind], color)
                panel.set_yscale("log")
                panel.set_xticks(FORCED[dtype])
                panel.set_xlabel("moduli; natively: dashed")
            panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)  # beside the last one


def _draw_kind(panel: Any, line: records.Line, color: str) -> None:
    errors: Mapping[str, Any] = line["errors"]
    points = [(count, max(_LEAST, errors[str(count)][0])) for count in FORCED[line["dtype"]] if errors.get(str(count))]
    if points:
        panel.plot(*zip(*points, strict=True), "o-", ms=4, color=color, label=line["kind"])
    panel.axhline(max(_LEAST, errors[NATIVE][0]), color=color, linewidth=0.8, dashes=(4, 3))


def _head(column: str) -> str:
    return f"precision {column}" if column in MODES else f"{column} moduli" if column.isdecimal() else column


def _cell(line: records.Line, column: str) -> str:
    text = pair(line["errors"].get(column))
    if column not in MODES:
        return text
    proved = line["certified"][column]
    certain = f", ≤ {float(rounded_up(proved / UNITS[line['dtype']])):g}" if proved else ""
    return f"{text} ({line['chosen'][column]}{certain})"
