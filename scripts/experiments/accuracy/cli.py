# SPDX-License-Identifier: MIT
"""How large are the errors of products in every arithmetic? python scripts/accuracy.py [--sizes 512x1024x512] [--dtype float32]

For each kind of matrices and each type: errors of sampled elements of C as parts of (|A||B|)ij, in units of 2^-53 or 2^-24,
against an exact reference. Columns: native arithmetic, the arithmetic that the guard chooses with --precision auto and fast, and
numbers of moduli that are taken whatever the guard says.

On the CPU a model in NumPy computes all of them, and native arithmetic is one chain of multiply-adds. With --device cuda the GPU
computes them, native arithmetic is cuBLAS, and only the forced numbers of moduli are the model's.
--write puts the tables into docs/algorithm.md, between its markers, and the picture beside it.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import hybrid
from experiments.accuracy import model
from experiments.accuracy.errors import UNITS, Reference
from experiments.accuracy.kinds import KINDS, matrices
from experiments.accuracy.results import FORCED, MODES, NATIVE, Results
from experiments.common import cli, plots, records, tables
from experiments.start import ROOT
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import UsageError
from hybrid.plan.arithmetic import MODULI, Arithmetic
from hybrid.plan.arithmetic import NATIVE as NATIVE_ARITHMETIC

DOCUMENT, PICTURE, MARKER = ROOT / "docs" / "algorithm.md", ROOT / "docs" / "accuracy.svg", "accuracy"
SIZES = ((256, 64, 256), (256, 1024, 256), (256, 8192, 256))
SAMPLED = 24

Errors = dict[str, list[float] | None]


class Sample:
    """Some rows of A and columns of B, and the exact elements of C where they meet."""

    def __init__(self, a: np.ndarray, b: np.ndarray, most: int, random: np.random.Generator) -> None:
        self.rows, self.columns = (np.sort(random.permutation(length)[:most]) for length in (len(a), b.shape[1]))
        self.a, self.b = a[self.rows], np.ascontiguousarray(b[:, self.columns])
        self._reference = Reference(self.a, self.b)

    def of(self, c: np.ndarray) -> np.ndarray:
        return c[np.ix_(self.rows, self.columns)]

    def errors(self, c: np.ndarray) -> list[float]:
        return list(self._reference.rms_and_max(c))

    def modelled(self, arithmetic: Arithmetic) -> list[float]:
        c = model.from_remainders(self.a, self.b, arithmetic) if arithmetic.moduli else model.native(self.a, self.b)
        return self.errors(c)


def _by_model(sample: Sample, chosen: dict[str, Arithmetic]) -> Errors:
    return {name: sample.modelled(arithmetic) for name, arithmetic in {NATIVE: NATIVE_ARITHMETIC, **chosen}.items()}


def _on_gpu(sample: Sample, a: np.ndarray, b: np.ndarray) -> Errors:
    how: dict[str, dict[str, Any]] = {NATIVE: {"kernel": "cublas"}, **{mode: {"precision": mode} for mode in MODES}}
    return {name: sample.errors(sample.of(hybrid.multiply(a, b, device="cuda", **more))) for name, more in how.items()}


def _line(options: argparse.Namespace, kind: str, dtype: str, sizes: tuple[int, int, int], gpu: str | None) -> records.Line:
    random = np.random.default_rng(options.seed)
    a, b = matrices(kind, dtype, *sizes, random)
    sample = Sample(a, b, options.sampled, random)
    rows, columns = model.Lines(a), model.Lines(np.ascontiguousarray(b.T))
    in_range = rows.summary().in_range and columns.summary().in_range
    chosen = {mode: model.chosen(a, b, fast=mode == "fast") for mode in MODES}
    errors = _by_model(sample, chosen) if gpu is None else _on_gpu(sample, a, b)
    for count in options.moduli or FORCED[dtype]:
        errors[str(count)] = sample.modelled(Arithmetic(count)) if in_range else None
    return {
        **dict(zip("nlm", sizes, strict=True)),
        "part": "errors",
        "device": "cpu" if gpu is None else "cuda",
        "gpu": gpu,
        "dtype": dtype,
        "kind": kind,
        "sampled": len(sample.rows) * len(sample.columns),
        "ratio": model.least_ratio(rows, columns) if in_range else 0.0,
        "chosen": {mode: arithmetic.name for mode, arithmetic in chosen.items()},
        "errors": errors,
    }


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    if max(options.moduli or [0]) > len(MODULI):
        raise UsageError(f"--moduli takes numbers up to {len(MODULI)}")
    gpu = usable_gpus()[0].name if options.device == "cuda" else None
    dtypes = [options.dtype] if options.dtype else list(UNITS)
    cases = [(kind, dtype, sizes) for dtype in dtypes for sizes in options.sizes for kind in options.kinds]
    for n, l, m in options.sizes:
        cli.refuse_too_large(n, l, m, item=16)
    for case in cli.shown(cases, "kinds"):
        yield _line(options, *case, gpu)


def work(options: argparse.Namespace) -> int:
    if options.write:
        tables.refuse_without_markers(DOCUMENT, MARKER)  # not after minutes
        plots.refuse(str(PICTURE))
    if not options.write:
        return cli.present(options, Results, measured)
    if options.source:
        results = Results(Results.recorded(options.source))
    else:
        recorder = records.Recorder(Results.command, options.words, options.json)
        results = Results([recorder.keep(line) for line in measured(options)])
        recorder.keep({"part": records.END})
    results.draw(str(PICTURE))
    picture = f"![Root mean squares of errors by number of moduli]({PICTURE.name})\n\n"
    tables.write_between_markers(DOCUMENT, MARKER, picture + results.markdown())
    return results.exit_code()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    label = " ".join("x".join(map(str, sizes)) for sizes in SIZES)
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, default=SIZES, metavar="N", help=f"N or NxLxM ({label})")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=f"{', '.join(KINDS)} (all)"
    )
    parser.add_argument("--dtype", choices=list(UNITS), help="only this one (both)")
    parser.add_argument("--moduli", nargs="+", type=cli.at_least_1, metavar="N", help="numbers taken whatever the guard says")
    parser.add_argument(
        "--sampled", type=cli.at_least_1, default=SAMPLED, metavar="K", help=f"rows and columns that are looked at ({SAMPLED})"
    )
    parser.add_argument("--seed", type=int, default=1, help="of matrices and samples (1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: a model in NumPy (cpu)")
    parser.add_argument("--picture", metavar="FILE", help="draw the results, as .png or .svg")
    parser.add_argument("--write", action="store_true", help="the tables in docs/algorithm.md, and docs/accuracy.svg")
    cli.add_lines(parser)
    return cli.command(parser, work, arguments)
