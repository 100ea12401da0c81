# SPDX-License-Identifier: MIT
"""How large may N×N matrices be? python -m hybrid.lectures largest [--gpu-memory BYTES]

Question 2 of the matrix multiplication module: N by the memory alone, floor(sqrt(bytes / (3·bytes an element))), beside the
largest N that really runs: in core, where the three matrices are allocated as multShare and multNoShare do; by the runner as
long as all three are resident; and by the runner out of core, where it streams parts through the memory, --times times as far
or as seven eighths of the host's free memory reach (HYBRID_HOST_MEMORY sets others). Every N is searched from above, multiplied
and checked: integers, so that the check is exact.

On a GPU its free memory counts, or --gpu-memory (HYBRID_GPU_MEMORY) of it; a search in all of a large GPU takes minutes.
Without one 1 MiB of the CPU's memory stands for a GPU's (--quick: 256 KiB): the module's kernels run on the CPU's CUDA runtime,
and the runner copies into buffers of that size as into a GPU's.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from experiments.common import cli, cuda, plots, records, results, tables, timing, wording
from experiments.lectures.largest_runs import RunnerAlone, largest_in_core, theoretical
from hybrid.core.problem import ITEM_SIZES
from hybrid.core.settings import Settings, parse_bytes
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit, UsageError
from hybrid.kernels.catalogue import BOTH, fastest, refusal
from hybrid.selection.decision import kernel_asked_for

PRETENDED_MEMORY, QUICK_MEMORY = 1 << 20, 256 << 10
MOST_EMULATED = 1024  # rows and columns: the CPU's CUDA runtime takes seconds for them, and hours for ten times as many
TIMES = 4.0
PARTS = {  # of lines: what they are called
    "theoretical": "by the memory alone",
    "in core": "three allocations, as in the module",
    "resident": "runner, all resident",
    "out of core": "runner, out of core",
}


def measured(
    runtime: cuda.CudaRuntime, dtypes: Sequence[str], kernels: Sequence[str] | None, memory: int, times: float
) -> Iterator[records.Line]:
    runner = RunnerAlone(runtime.device, memory)
    for dtype in dtypes:
        about = {"dtype": dtype, "memory": memory}
        most = theoretical(memory, dtype)
        yield {**about, "part": "theoretical", "n": most}
        # With and without shared memory; on a GPU the fastest alone: the others take minutes there.
        on_gpu = runtime.device == "cuda" and [fastest("cuda", dtype, most, runtime.capability).name]
        for name in kernels or on_gpu or ("naive", "tiled"):
            n, seconds = largest_in_core(runtime, timing.kernel_of(name), dtype, most)
            yield {**about, "part": "in core", "n": n, "kernel": name, "seconds": seconds}
        yield from ({**about, **line} for line in runner.lines(dtype, most, times))


class Results(results.Results):
    """For each type the largest N of each part."""

    command, again = "largest", "python -m hybrid.lectures largest"

    def __init__(self, lines: Sequence[records.Line]) -> None:
        super().__init__(lines)
        self.by_dtype: dict[str, list[records.Line]] = {}
        for line in lines:
            self.by_dtype.setdefault(line["dtype"], []).append(line)

    def blocks(self) -> Iterator[tables.Table]:
        whose = "of the GPU" if self.of_gpu else "of the CPU, in place of a GPU's"
        for dtype, lines in self.by_dtype.items():
            most = next(line["n"] for line in lines if line["part"] == "theoretical")
            rows = [[PARTS[line["part"]], str(line["n"]), _about(line, most)] for line in lines]
            yield tables.Table(["way", "largest N", "how"], "lrl", rows, f"{dtype}, {readable(lines[-1]['memory'])} {whose}")

    def draw(self, path: str) -> None:
        """N of each part, a panel for each type."""
        memory = readable(self.lines[-1]["memory"])
        title = f"The largest N×N matrices in {memory}" + ("" if self.of_gpu else " (of the CPU, in place of a GPU's)")
        with plots.figure(
            path, (9.5, 1.0 + (2.6 if plots.narrow() else 1.9) * len(self.by_dtype)), title, self.caption()
        ) as figure:
            panels = figure.subplots(len(self.by_dtype), 1, squeeze=False, sharex=True)[:, 0]
            for (dtype, lines), panel in zip(self.by_dtype.items(), panels, strict=True):
                largest = {line["part"]: line["n"] for line in lines}
                parts = [part for part in PARTS if part in largest]
                plots.plain(panel, dtype)
                colors = [plots.GREY if part == "theoretical" else plots.HERE for part in parts]
                drawn = panel.barh(
                    [plots.label(PARTS[part]) for part in parts], [largest[part] for part in parts], color=colors, height=0.65
                )
                panel.bar_label(drawn, [f"{largest[part]:,}" for part in parts], fontsize=9, padding=4)
                panel.invert_yaxis()
                panel.margins(x=0.12)
                panel.grid(axis="y", visible=False)
            panels[-1].set_xlabel("N, rows and columns of each matrix")


def _about(line: records.Line, most: int) -> str:
    if line["part"] == "theoretical":
        return f"floor(sqrt({line['memory']:,} / (3 · {ITEM_SIZES[line['dtype']]})))"
    seconds = f" in {wording.duration(line['seconds'])}" if line["device"] == "cuda" else ""
    right = f"{line['kernel']}: multiplied{seconds} and right"
    far = f"{line['n'] / most:.3g} × {most}" if line["part"] == "out of core" else f"{most - line['n']} short"
    return f"{right}, {far}" + (f"; {line['ended_by']}" if line.get("ended_by") else "")


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    asked_for = parse_bytes(options.gpu_memory) if options.gpu_memory else Settings.gather({}).gpu_memory
    runtime = cuda.runtime_for(options.device, asked_for)
    if runtime.device == "emulate" and not asked_for:
        runtime = cuda.runtime_for("emulate", QUICK_MEMORY if options.quick else PRETENDED_MEMORY)
    memory = runtime.memory()
    dtypes = [options.dtype] if options.dtype else ["float32"] if options.quick else list(BOTH)
    if not theoretical(memory, "float64"):
        raise DoesNotFit(f"{memory} bytes hold no three numbers: a larger --gpu-memory")
    if runtime.device == "emulate" and theoretical(memory, dtypes[0]) > MOST_EMULATED:
        raise UsageError(
            f"{readable(memory)} hold more than the CPU's CUDA runtime multiplies in a short time: "
            f"--gpu-memory up to {readable(3 * ITEM_SIZES[dtypes[0]] * MOST_EMULATED**2)} without a GPU"
        )
    for name in options.kernels or ():
        kernel_asked_for(Settings(device=runtime.device, kernel=name))
        for dtype in dtypes:
            if refused := refusal(timing.kernel_of(name), dtype, columns=2, capability=runtime.capability):
                raise UsageError(refused)
    yield from cuda.on(runtime, measured(runtime, dtypes, options.kernels, memory, options.times))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--dtype", choices=BOTH, help="only this one (both; --quick: float32)")
    parser.add_argument("--gpu-memory", metavar="BYTES", help="of the GPU, or of the CPU in its place (free; 1 MiB)")
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="for in core (the fastest; without a GPU naive and tiled)")
    longest = "out of core, up to T times as large (4)"
    parser.add_argument("--times", type=partial(cli.at_least_1, kind=float), default=TIMES, metavar="T", help=longest)
    return cli.command(parser, partial(cli.present, results=Results, measured=_measured), arguments)
