"""Time against the number of GPUs as a picture: the same lines and the same matplotlib make the same SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hosts_results import Results, size_of_picture
from ladder_picture import STYLE

from hybrid.errors import UsageError
from hybrid.host import files

DRAWN = {  # name, colour, how the line is drawn
    "handwritten": ("written by hand", "#c44e52", "-"),
    "jax": ("JAX", "#937860", "-"),
    "torch": ("PyTorch", "#dd8452", "-"),
    "library": ("ours, multiply(a, b, out=c)", "#4878a8", "--"),
    "ours": ("ours, the command", "#4878a8", "-"),
    "wires": ("the copies alone", "#999999", ":"),
}


def draw(results: Results, path: Path) -> None:
    """A line for each program at 8000, or at the largest size there is; both axes logarithmic."""
    import matplotlib
    from matplotlib.figure import Figure

    sizes = results.sizes(tuple(DRAWN))
    if not sizes:
        raise UsageError("nothing of the picture was measured")
    n = size_of_picture(sizes)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "hosts"}):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        panel = figure.subplots()
        for part, (name, color, style) in DRAWN.items():
            points = [(cell.gpus, cell.milliseconds) for gpus in results.gpus() if (cell := results.of(part, gpus, n))]
            if points:
                last = f"{name}: {points[-1][1]:.{1 if points[-1][1] < 100 else 0}f} ms on {points[-1][0]}"
                panel.plot(*zip(*points, strict=True), style, marker="o", markersize=4, color=color, label=last)
        _axes(panel, results.gpus())
        panel.set_ylabel(f"ms, host memory to host memory, {n}³ float64")
        panel.set_xlabel(f"GPUs of {results.machine()}, {results.dates()}")
        figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
        with files.atomic_write(str(path)) as beside:
            figure.savefig(beside, format="svg", metadata={"Date": None, "Creator": None})


def _axes(panel: Any, gpus: list[int]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(gpus, [str(count) for count in gpus])
    panel.set_xticks([], minor=True)
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_minor_locator(NullLocator())
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
