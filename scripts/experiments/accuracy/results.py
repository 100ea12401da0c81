# SPDX-License-Identifier: MIT
"""What recorded errors say: a table for each type and length along k, and a picture of errors by number of moduli."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.accuracy.errors import UNITS
from experiments.accuracy.kinds import KINDS
from experiments.common import plots, records, results, schema, tables

FORCED = {"float64": (13, 14, 15, 16), "float32": (6, 7, 8)}  # moduli, whatever the guard says
MODES = ("auto", "fast")
NATIVE = "native"
_LEAST = 1e-3  # errors below are drawn there
_DRAWN = ("uniform", "normal", "φ = 1", "φ = 2", "Hilbert", "graded k")
_COLORS = (plots.HERE, plots.LECTURE, plots.OTHER, plots.GREY, "#8c6bb1", "#d9a441")


def _error(value: Any) -> bool:
    """Root mean square and maximum; none where a product cannot be computed so."""
    return value is None or (isinstance(value, list) and len(value) == 2 and all(schema.real(each) for each in value))


def _errors(value: Any) -> bool:
    return isinstance(value, dict) and NATIVE in value and all(schema.name(name) and _error(each) for name, each in value.items())


def _chosen(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == set(MODES) and all(map(schema.name, value.values()))


class Results(results.Results):
    command = "accuracy"
    schemas = {
        "errors": {
            **schema.WHOLE_RUN,
            **schema.SIDES,
            "device": schema.among("cuda", "cpu"),
            "gpu": schema.or_none(schema.name),
            "dtype": schema.among(*UNITS),
            "kind": schema.among(*KINDS),
            "sampled": schema.count,
            "ratio": schema.real,
            "chosen": _chosen,
            "errors": _errors,
        }
    }

    def blocks(self) -> Iterator[tables.Block]:
        for dtype, l in dict.fromkeys((line["dtype"], line["l"]) for line in self.lines):
            lines = [line for line in self.lines if (line["dtype"], line["l"]) == (dtype, l)]
            columns = list(dict.fromkeys(name for line in lines for name in line["errors"]))
            heads = ["matrices", "least ratio", *(_head(name) for name in columns)]
            rows = [[line["kind"], _short(line["ratio"]), *(_cell(line, name) for name in columns)] for line in lines]
            unit = {"float64": "2⁻⁵³", "float32": "2⁻²⁴"}[dtype]
            title = f"{dtype}, l = {l}: errors as parts of (|A||B|)ᵢⱼ, in units of {unit}, root mean square / maximum"
            yield tables.Table(heads, "lr" + "r" * len(columns), rows, title)
        yield tables.Remarks([_about_native(self.lines[-1]), *self._above_native()])

    def markdown(self) -> str:
        started = "; ".join(f"`{command}`" for command in self.started())
        return "\n".join([*map(tables.markdown, self.blocks()), f"{self.caption()}, {started}\n"])

    def _above_native(self) -> Iterator[str]:
        """Where a choice of the guard has larger errors than native arithmetic."""
        for line in self.lines:
            for mode in MODES:
                chosen, of_native = line["errors"].get(mode), line["errors"][NATIVE]
                if chosen and of_native and any(map(float.__gt__, map(float, chosen), map(float, of_native))):
                    what = f"{line['dtype']}, l = {line['l']}, {line['kind']}: {line['chosen'][mode]}"
                    yield f"Above native arithmetic: {what}, {_pair(chosen)} with precision {mode}, {_pair(of_native)} natively."

    def draw(self, path: str) -> None:
        """Root mean squares by number of moduli, and natively as dashed lines; a panel for each type, of the longest k."""
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
    text = _pair(line["errors"].get(column))
    return f"{text} ({line['chosen'][column]})" if column in MODES and line["errors"].get(column) else text


def _pair(errors: list[float] | None) -> str:
    return " / ".join(map(_short, errors)) if errors else "–"


def _short(value: float) -> str:
    return f"{value:.2g}" if value else "0"


def _about_native(line: records.Line) -> str:
    native = "cuBLAS" if line["device"] == "cuda" else "one chain of multiply-adds"
    return f"Native is {native}. In brackets: the arithmetic that the guard chooses for the whole product as one tile."
