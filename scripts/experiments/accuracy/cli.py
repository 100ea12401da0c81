"""How large are the errors of products in every arithmetic? python scripts/accuracy.py [--sizes 512x1024x512] [--dtype float32]

For each kind of matrices and each type: errors of sampled elements of C as parts of (|A||B|)ij, in units of 2^-53 or 2^-24,
against an exact reference. Columns: native arithmetic, the arithmetic that the guard chooses with --precision auto and fast, and
numbers of moduli that are taken whatever the guard says. In brackets: what was chosen, and what is proved of its errors.

On the CPU a model in NumPy computes all of them, and native arithmetic is one chain of multiply-adds. With --device cuda the GPU
computes them by the kernels and the pipeline of hybrid.multiply, from remainders also where native kernels would be faster;
native is the kernel that auto chooses, and cuBLAS stands beside it. With --device emulate the CPU runs the same kernels, slowly.
Only the forced numbers of moduli are always the model's.

--balanced multiplies columns of A and divides rows of B by powers of two first, so that what is scaled along k comes out even.
The runner does not: docs/remainders.md says what it would gain and cost.

--matrices N takes N random pairs of any of these kinds instead, one for each seed from --seed on, counts those that are accepted,
and names each seed whose errors exceed native ones, with the command that repeats it. If any does that must not, the exit code
is 1. --write puts the tables into docs/remainders.md, between its markers, and the picture beside it.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.accuracy import model
from experiments.accuracy.errors import UNITS
from experiments.accuracy.kinds import ALL_KINDS, KINDS, Pair, balanced, matrices, varied
from experiments.accuracy.measure import ByModel, Measure, OnDevice, Sample
from experiments.accuracy.results import FORCED, Results
from experiments.common import cli, plots, records, tables
from experiments.start import ROOT
from hybrid.errors import UsageError
from hybrid.kernels.remainders import MOST_TERMS
from hybrid.planning.arithmetic import MODULI, Arithmetic, Computed

DOCUMENT, PICTURE, MARKER = ROOT / "docs" / "remainders.md", ROOT / "docs" / "accuracy.svg", "accuracy"
Sizes = tuple[int, int, int]
SAMPLED, SAMPLED_OF_RANDOM = 24, 16  # rows and columns: an exact element takes longer than a product
# n, l, m by default: of each kind, and of random matrices, which are few so that many have the same.
_WHOLE = ((256, 64, 256), (256, 1024, 256), (256, 8192, 256))
SIZES = {"cpu": _WHOLE, "cuda": _WHOLE, "emulate": ((40, 200, 50),)}
OF_RANDOM = {
    "cpu": ((40, 300, 30), (24, 64, 24), (24, 2304, 24)),
    "cuda": ((512, 512, 512), (200, 333, 150), (384, 100, 256), (64, 2304, 96)),
    "emulate": ((40, 70, 50), (24, 300, 30)),
}


def _line(options: argparse.Namespace, measure: Measure, kind: str, dtype: str, sizes: Sizes) -> records.Line:
    random = np.random.default_rng(options.seed)
    a, b = _as_asked(options, matrices(kind, dtype, *sizes, random))
    sample = Sample(a, b, options.sampled, random)
    rows, columns = model.Lines(a), model.Lines(np.ascontiguousarray(b.T))
    in_range = rows.summary().in_range and columns.summary().in_range
    line = _errors(measure, kind, a, b, sample)
    for count in options.moduli or FORCED[dtype]:
        line["errors"][str(count)] = sample.modelled(Arithmetic(count)) if in_range else None
    return {**line, "part": "errors", "ratio": model.least_ratio(rows, columns) if in_range else 0.0}


def _random_line(options: argparse.Namespace, measure: Measure, seed: int, kind: str, dtype: str, sizes: Sizes) -> records.Line:
    random = np.random.default_rng(seed)
    a, b = _as_asked(options, varied(kind, dtype, *sizes, random))
    line = _errors(measure, kind, a, b, Sample(a, b, options.sampled, random))
    alone = {
        "--seed": seed,
        "--kinds": kind,
        "--dtype": dtype,
        "--sizes": "x".join(map(str, sizes)),
        "--sampled": options.sampled,
    }
    words = [str(word) for option in alone.items() for word in option] + ["--balanced"] * options.balanced
    repeat = shlex.join(["python", "scripts/accuracy.py", "--device", measure.name, "--matrices", "1", *words])
    return {**line, "part": "random", "seed": seed, "repeat": repeat}


def _as_asked(options: argparse.Namespace, pair: Pair) -> Pair:
    return balanced(*pair) if options.balanced else pair


def _errors(measure: Measure, kind: str, a: np.ndarray, b: np.ndarray, sample: Sample) -> records.Line:
    errors, computed = measure(a, b, sample)
    return {
        **dict(zip("nlm", (*a.shape, b.shape[1]), strict=True)),
        "device": measure.name,
        "gpu": measure.gpu,
        "dtype": a.dtype.name,
        "kind": kind,
        "sampled": sample.elements,
        "chosen": {mode: " and ".join(arithmetic.name for arithmetic in done) for mode, done in computed.items()},
        "certified": {mode: _certified(done) for mode, done in computed.items()},
        "errors": errors,
    }


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
    if max(options.moduli or [0]) > len(MODULI):
        raise UsageError(f"--moduli takes numbers up to {len(MODULI)}")
    if options.matrices and options.moduli:
        raise UsageError("--matrices takes what the guard chooses, not --moduli")
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


def work(options: argparse.Namespace) -> int:
    if options.balanced and options.write:
        raise UsageError("tables in the documentation are of matrices as they are: leave --balanced out")
    if options.matrices and (options.write or options.picture):
        raise UsageError("tables in the documentation, and the picture, are of all kinds: leave --matrices out")
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
    label = " ".join("x".join(map(str, sizes)) for sizes in SIZES["cpu"])
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, metavar="N", help=f"N or NxLxM ({label}; others for --matrices)")
    kinds = f"{', '.join(ALL_KINDS)}: any up to 2.5 (all but that)"
    parser.add_argument("--kinds", nargs="+", choices=ALL_KINDS, metavar="KIND", help=kinds)
    parser.add_argument("--matrices", type=cli.at_least_1, default=0, metavar="N", help="so many random ones, of any kind")
    parser.add_argument("--dtype", choices=list(UNITS), help="only this one (both)")
    parser.add_argument("--moduli", nargs="+", type=cli.at_least_1, metavar="N", help="numbers taken whatever the guard says")
    parser.add_argument(
        "--sampled",
        type=cli.at_least_1,
        metavar="K",
        help=f"rows and columns that are looked at ({SAMPLED}; of --matrices {SAMPLED_OF_RANDOM})",
    )
    parser.add_argument("--seed", type=int, default=1, help="of matrices and samples (1)")
    parser.add_argument("--balanced", action="store_true", help="columns of A and rows of B are made alike first")
    parser.add_argument("--device", choices=SIZES, default="cpu", help="cpu: a model in NumPy (cpu)")
    parser.add_argument("--picture", metavar="FILE", help="draw the results, as .png or .svg")
    parser.add_argument("--write", action="store_true", help="the tables in docs/remainders.md, and docs/accuracy.svg")
    cli.add_lines(parser)
    return cli.command(parser, work, arguments)
