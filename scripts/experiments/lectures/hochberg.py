# SPDX-License-Identifier: MIT
"""With and without shared memory: python -m hybrid.lectures hochberg [--picture FILE.svg]

Section 2.4 of the matrix multiplication module, float32: the kernels of multNoShare and multShare against the matrices' size, and
how many times faster shared memory makes them, by CUDA events. The published factors are of whole programs by the clock on the
wall; no curves were published, and the factors are points. The module's programs: `python -m hybrid.lectures programs`, then
`python -m hybrid.lab run programs/multShare.cu -- 10 15 8`.

Without a GPU the kernels run on the CPU's CUDA runtime at sizes 64, 100 and 130 (--quick: 64): products are checked, and nothing
is compared.
"""

import argparse
from collections import namedtuple
from collections.abc import Iterator, Sequence

from experiments.common import cli, cuda, plots, results

DTYPE = "float32"
WITHOUT, WITH = "multNoShare", "multShare"  # shared memory
KERNELS = {WITHOUT: "naive", WITH: "tiled"}
SIZES, QUICK_SIZES = (*range(100, 1000, 100), *range(1000, 8001, 1000)), (200, 1000, 2000)
EMULATED_SIZES, EMULATED_QUICK = (64, 100, 130), (64,)
REPEAT = 7

# How many times faster shared memory made the whole program, as the module words it.
Published = namedtuple("Published", "gpu capability cores size factor wording")
PUBLISHED = (
    Published("GT 9600M", "1.1", 32, 1000, 7, "7"),
    Published("GT 330M", "1.2", 48, 1000, 2, "towards 2"),
    Published("C1060", "1.3", 240, 1000, 1.1, "about 1.1"),
    Published("C1060", "1.3", 240, 8000, 6.5, "more than 6.5"),
    Published("M2070", "2.0", 448, 1000, 1.7, "about 1.7"),
    Published("M2070", "2.0", 448, 8000, 2.6, "2.6"),
)


def measured(options: argparse.Namespace) -> Iterator[results.Line]:
    runtime = cuda.runtime_for(options.device)
    usual, quick = (EMULATED_SIZES, EMULATED_QUICK) if runtime.device == "emulate" else (SIZES, QUICK_SIZES)
    for size in cli.shown(options.sizes or (quick if options.quick else usual), "kernels"):
        cli.refuse_too_large(size, size, size)
        a, b = cuda.matrices("lecture", DTYPE, size, size, size)
        for program, kernel in KERNELS.items():
            times = cuda.kernel_seconds(runtime, cuda.kernel_of(kernel), a, b, REPEAT)
            yield {**runtime.about, "part": "kernel", "program": program, "size": size, "seconds": results.spread(times)}


class Results(results.Results):
    """Medians by size; none of them where there was no GPU."""

    command, again = "lecture_hochberg", "python -m hybrid.lectures hochberg"

    def __init__(self, lines: Sequence[results.Line]) -> None:
        super().__init__(lines)
        kernels = [line for line in lines if line["part"] == "kernel"]
        self.sizes = sorted({line["size"] for line in kernels})
        self.seconds = {(line["program"], line["size"]): line["seconds"]["median"] for line in kernels}

    def ratio(self, size: int) -> float:
        """Time without shared memory / time with it."""
        return self.seconds[WITHOUT, size] / self.seconds[WITH, size]

    def blocks(self) -> Iterator[results.Block]:
        title = f"{DTYPE}, time without / with shared memory"
        if self.of_gpu:
            rows = []
            for size in self.sizes:
                both = " / ".join(results.number(1e3 * self.seconds[program, size]) for program in KERNELS)
                rows.append([str(size), both, f"{self.ratio(size):.2f}"])
            yield results.Table(["size", "kernel, ms", "ratio"], "rrr", rows, title)
        else:
            sizes = ", ".join(map(str, self.sizes))
            said = f"no GPU: both kernels are right at {sizes} on the CPU's CUDA runtime, and nothing is compared"
            yield results.Remarks([said], title)
        rows = [[one.gpu, one.capability, f"{one.cores} cores", str(one.size), one.wording] for one in PUBLISHED]
        yield results.Table(["GPU", "compute capability", "", "size", "factor"], "lrrrl", rows, "published, of whole programs")

    def draw(self, path: str) -> None:
        """The published factors, and on a GPU its own."""
        with plots.figure(path, (6, 3.8), f"Shared memory: what it brings, {DTYPE}", self.caption()) as figure:
            panel = figure.subplots()
            plots.plain(panel, "ratio without / with" + ("" if self.of_gpu else " (no GPU here)"))
            if self.of_gpu:
                ratios = [self.ratio(size) for size in self.sizes]
                panel.plot(self.sizes, ratios, marker="o", markersize=3, color=plots.HERE, label="kernels, here")
            panel.plot(
                *zip(*((one.size, one.factor) for one in PUBLISHED), strict=True), "D", color=plots.LECTURE, label="published"
            )
            for one in PUBLISHED:
                where, inwards = (one.size, one.factor), -8 if one.size == 8000 else 8
                style = {"ha": "right" if inwards < 0 else "left", "fontsize": 8, "color": plots.LECTURE}
                panel.annotate(f"{one.gpu}: {one.wording}", where, (inwards, 6), textcoords="offset points", **style)
            panel.axhline(1, color=plots.GREY, linewidth=0.8)
            panel.set_yscale("log", base=2)
            panel.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
            panel.set_ylabel("times faster")
            panel.set_xlabel("rows and columns of each matrix")
            panel.legend(frameon=False, fontsize=8)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--sizes", nargs="+", type=cli.at_least_1, metavar="N", help="sizes to measure")
    return cli.experiment(parser, Results, measured, arguments)
