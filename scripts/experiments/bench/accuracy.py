# SPDX-License-Identifier: MIT
"""How large are the errors of products in every arithmetic? python scripts/accuracy.py [--sizes 512x1024x512] [--dtype float32]

For each kind of matrices and each type: errors of sampled elements of C as parts of (|A||B|)ij, in units of 2^-53 or 2^-24,
against an exact reference. Columns: native arithmetic, the arithmetic that the guard chooses with --precision auto and fast, and
numbers of moduli that are taken whatever the guard says. In brackets: what was chosen, and what is proved of its errors.

On the CPU a model in NumPy computes all of them, and native arithmetic is one chain of multiply-adds. With --device cuda the GPU
computes them by the kernels and the pipeline of hybrid.multiply, from remainders also where native kernels would be faster;
native is the kernel that auto chooses, and cuBLAS stands beside it. With --device emulate the CPU runs the same kernels, slowly.
Only the forced numbers of moduli are always the model's.

--matrices N takes N random pairs of any of these kinds instead, one for each seed from --seed on, counts those that are accepted,
and names each seed whose errors exceed native ones, with the command that repeats it. If any does that must not, the exit code
is 1.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.bench import remainder_model as model
from experiments.bench.accuracy_kinds import ALL_KINDS, KINDS, matrices, varied
from experiments.bench.accuracy_products import CUBLAS, MODES, NATIVE, UNITS, ByModel, OnDevice, Sample, above
from experiments.common import cli, plots, records, results, tables
from hybrid.core.text import rounded_up
from hybrid.errors import UsageError
from hybrid.kernels.remainders import MOST_TERMS
from hybrid.planning.arithmetic import Arithmetic, Computed

Sizes = tuple[int, int, int]
SAMPLED, SAMPLED_OF_RANDOM = 24, 16  # rows and columns: an exact element takes longer than a product
FORCED = {"float64": (13, 14, 15, 16), "float32": (6, 7, 8)}  # moduli, whatever the guard says
# n, l, m by default: of each kind, and of random matrices, which are few so that many have the same.
_WHOLE = ((256, 64, 256), (256, 1024, 256), (256, 8192, 256))
SIZES = {"cpu": _WHOLE, "cuda": _WHOLE, "emulate": ((40, 200, 50),)}
OF_RANDOM = {
    "cpu": ((40, 300, 30), (24, 64, 24), (24, 2304, 24)),
    "cuda": ((512, 512, 512), (200, 333, 150), (384, 100, 256), (64, 2304, 96)),
    "emulate": ((40, 70, 50), (24, 300, 30)),
}
_LEAST = 1e-3  # errors below are drawn there
_DRAWN = ("uniform", "normal", "φ = 1", "φ = 2", "Hilbert", "graded k")
_COLORS = (plots.HERE, plots.LECTURE, plots.OTHER, plots.GREY, "#8c6bb1", "#66ccee")


def _line(options: argparse.Namespace, measure: Any, kind: str, dtype: str, sizes: Sizes) -> records.Line:
    random = np.random.default_rng(options.seed)
    a, b = matrices(kind, dtype, *sizes, random)
    sample = Sample(a, b, options.sampled, random)
    rows, columns = model.Lines(a), model.Lines(np.ascontiguousarray(b.T))
    in_range = rows.summary().in_range and columns.summary().in_range
    line = _errors(measure, kind, a, b, sample)
    for count in FORCED[dtype]:
        line["errors"][str(count)] = sample.modelled(Arithmetic(count)) if in_range else None
    return {**line, "part": "errors", "ratio": model.least_ratio(rows, columns) if in_range else 0.0}


def _random_line(options: argparse.Namespace, measure: Any, seed: int, kind: str, dtype: str, sizes: Sizes) -> records.Line:
    random = np.random.default_rng(seed)
    a, b = varied(kind, dtype, *sizes, random)
    line = _errors(measure, kind, a, b, Sample(a, b, options.sampled, random))
    alone = {"seed": seed, "kinds": kind, "dtype": dtype, "sizes": "x".join(map(str, sizes)), "sampled": options.sampled}
    words = [str(word) for option, value in alone.items() for word in (f"--{option}", value)]
    repeat = shlex.join(["python", "scripts/accuracy.py", "--device", measure.name, "--matrices", "1", *words])
    return {**line, "part": "random", "seed": seed, "repeat": repeat}


def _errors(measure: Any, kind: str, a: np.ndarray, b: np.ndarray, sample: Sample) -> records.Line:
    errors, computed = measure(a, b, sample)
    return {
        **dict(zip("nlm", (*a.shape, b.shape[1]), strict=True)), "device": measure.name, "gpu": measure.gpu,
        "dtype": a.dtype.name, "kind": kind, "sampled": sample.elements, "errors": errors,
        "chosen": {mode: " and ".join(arithmetic.name for arithmetic in done) for mode, done in computed.items()},
        "certified": {mode: _certified(done) for mode, done in computed.items()},
    }  # fmt: skip


def _certified(computed: Computed) -> float | None:
    """Of a whole product; None where a part of it is native."""
    proved = [error for _, error in computed.values() if error is not None]
    return max(proved) if len(proved) == len(computed) else None


def _random_cases(options: argparse.Namespace) -> list[tuple[int, str, str, Sizes]]:
    """Seed, kind, type and sizes; in an order in which few plans follow each other."""
    cases = []
    for seed in range(options.seed, options.seed + options.matrices):
        random = np.random.default_rng([seed, 1])  # beside that of the matrices, which are the same if all of this is given
        kind, dtype = random.choice(options.kinds), random.choice(options.dtypes)
        cases.append((seed, str(kind), str(dtype), options.sizes[random.integers(len(options.sizes))]))
    return sorted(cases, key=lambda case: case[2:])


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    options.dtypes = [options.dtype] if options.dtype else list(UNITS)
    options.sizes = options.sizes or (OF_RANDOM if options.matrices else SIZES)[options.device]
    options.kinds = options.kinds or list(ALL_KINDS if options.matrices else KINDS)
    options.sampled = options.sampled or (SAMPLED_OF_RANDOM if options.matrices else SAMPLED)
    for n, l, m in options.sizes:
        if l > MOST_TERMS:
            raise UsageError(f"sums of more than {MOST_TERMS} terms are always native: --sizes takes an l up to that")
        cli.refuse_too_large(n, l, m, item=16)
    measure = ByModel() if options.device == "cpu" else OnDevice(options.device)
    if options.matrices:
        for random_case in cli.shown(_random_cases(options), "matrices"):
            yield _random_line(options, measure, *random_case)
        return
    cases = [(kind, dtype, sizes) for dtype in options.dtypes for sizes in options.sizes for kind in options.kinds]
    for case in cli.shown(cases, "kinds"):
        yield _line(options, measure, *case)


class Results(results.Results):
    command = "accuracy"

    def blocks(self) -> Iterator[tables.Block]:
        native = "one chain of multiply-adds" if self.lines[-1]["device"] == "cpu" else "the kernel that auto chooses"
        if self.lines[-1]["part"] == "random":
            yield from self._of_random(native)
            return
        for dtype, l in dict.fromkeys((line["dtype"], line["l"]) for line in self.lines):
            lines = [line for line in self.lines if (line["dtype"], line["l"]) == (dtype, l)]
            columns = list(dict.fromkeys(name for line in lines for name in line["errors"]))
            heads = ["matrices", "least ratio", *(_head(name) for name in columns)]
            rows = [[line["kind"], _short(line["ratio"]), *(_cell(line, name) for name in columns)] for line in lines]
            title = f"{dtype}, l = {l}: errors as parts of (|A||B|)ᵢⱼ, in units of {_unit(dtype)}, root mean square / maximum"
            yield tables.Table(heads, "lr" + "r" * len(columns), rows, title)
        in_brackets = (
            "In brackets: the arithmetic that the guard chose (in the model for the whole product as one tile), and what no "
            "element's error can exceed, in the same units."
        )
        yield tables.Remarks([f"Native is {native}. {in_brackets}", *self._named(strict=True)])

    def _of_random(self, native: str) -> Iterator[tables.Block]:
        """How many the guard accepted, and whose errors exceed native ones."""
        seeds, rows = [line["seed"] for line in self.lines], []
        for dtype in dict.fromkeys(line["dtype"] for line in self.lines):
            for how in (*MODES, CUBLAS):
                lines = [line for line in self.lines if line["dtype"] == dtype and how in line["errors"]]
                there = [line for line in lines if how == CUBLAS or _accepted(line, how)]
                if there or how != CUBLAS:
                    exact = "–" if how == CUBLAS else str(sum(line["certified"][how] == 0 for line in there))
                    larger = sum(above(line["errors"][how], line["errors"][NATIVE]) for line in there)
                    rows.append([dtype, how, str(len(lines)), str(len(there)), exact, str(larger)])
        title = f"{len(self.lines)} pairs of random matrices, seeds from {min(seeds)} to {max(seeds)}"
        heads = ["type", "computed by", "matrices", "from remainders", "exact", "above native"]
        yield tables.Table(heads, "llrrrr", rows, title)
        said = f"Native is {native}. Exact: those whose errors are proved to be 0."
        yield tables.Remarks(
            [said, *self._named(strict=False), *([] if self._failed() else ["No error is larger than allowed."])]
        )

    def _named(self, *, strict: bool) -> Iterator[str]:
        """Where a choice of the guard has larger errors than native arithmetic; unless `strict`, than its arithmetic may have."""
        for line in self.lines:
            for mode in MODES:
                chosen, native = line["errors"][mode], line["errors"][NATIVE]
                if _accepted(line, mode) and above(chosen, native, "" if strict else line["chosen"][mode]):
                    what = f"{line['dtype']}, l = {line['l']}, {line['kind']}: {line['chosen'][mode]}"
                    both = f"{_pair(chosen)} with precision {mode}, {_pair(native)} natively."
                    yield f"Above native arithmetic: {what}, {both}" + (f" Again: {line['repeat']}" if "repeat" in line else "")

    def _failed(self) -> bool:
        return any(True for _ in self._named(strict=False))

    def exit_code(self) -> int:
        return int(self.lines[-1]["part"] == "random" and self._failed())

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
                plots.plain(panel, f"{dtype}, root mean square in units of {_unit(dtype)}")
                there = {line["kind"]: line for line in self.lines if (line["dtype"], line["l"]) == (dtype, longest)}
                kinds = [kind for kind in _DRAWN if kind in there] or list(there)[: len(_COLORS)]
                for kind, color in zip(kinds, _COLORS, strict=False):
                    errors = there[kind]["errors"]
                    points = [(count, max(_LEAST, errors[str(count)][0])) for count in FORCED[dtype] if errors.get(str(count))]
                    if points:
                        panel.plot(*zip(*points, strict=True), "o-", ms=4, color=color, label=kind)
                    panel.axhline(max(_LEAST, errors[NATIVE][0]), color=color, linewidth=0.8, dashes=(4, 3))
                panel.set_yscale("log")
                panel.set_xticks(FORCED[dtype])
                panel.set_xlabel("moduli; natively: dashed")
            panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)  # beside the last one


def _accepted(line: records.Line, mode: str) -> bool:
    return NATIVE not in line["chosen"][mode]


def _short(value: float) -> str:
    return f"{value:.2g}" if value else "0"


def _pair(errors: list[float] | None) -> str:
    """Root mean square and maximum."""
    return " / ".join(map(_short, errors)) if errors else "–"


def _unit(dtype: str) -> str:
    return {"float64": "2⁻⁵³", "float32": "2⁻²⁴"}[dtype]


def _head(column: str) -> str:
    return f"precision {column}" if column in MODES else f"{column} moduli" if column.isdecimal() else column


def _cell(line: records.Line, column: str) -> str:
    text = _pair(line["errors"].get(column))
    if column not in MODES:
        return text
    proved = line["certified"][column]
    certain = f", ≤ {float(rounded_up(proved / UNITS[line['dtype']])):g}" if proved else ""
    return f"{text} ({line['chosen'][column]}{certain})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    label = " ".join("x".join(map(str, sizes)) for sizes in SIZES["cpu"])
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, metavar="N", help=f"N or NxLxM ({label}; others for --matrices)")
    kinds = f"{', '.join(ALL_KINDS)}: any up to 2.5 (all but that)"
    parser.add_argument("--kinds", nargs="+", choices=ALL_KINDS, metavar="KIND", help=kinds)
    parser.add_argument("--matrices", type=cli.at_least_1, default=0, metavar="N", help="so many random ones, of any kind")
    parser.add_argument("--dtype", choices=list(UNITS), help="only this one (both)")
    sampled = f"rows and columns that are looked at ({SAMPLED}; of --matrices {SAMPLED_OF_RANDOM})"
    parser.add_argument("--sampled", type=cli.at_least_1, metavar="K", help=sampled)
    parser.add_argument("--seed", type=int, default=1, help="of matrices and samples (1)")
    parser.add_argument("--device", choices=SIZES, default="cpu", help="cpu: a model in NumPy (cpu)")
    parser.add_argument("--picture", metavar="FILE", help="draw the results, as .png or .svg")
    cli.add_lines(parser)
    return cli.command(parser, partial(cli.present, results=Results, measured=measured), arguments)
