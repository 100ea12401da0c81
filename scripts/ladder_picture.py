"""The ladder as a picture: the same lines and the same matplotlib make the same SVG."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ladder_table import YARDSTICK, Results, label, rungs, square

from hybrid.errors import UsageError
from hybrid.host import files

SHAPE = square(8192)
_BAR, _LINE, _TEXT = "#4878a8", "#c44e52", "#333333"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "ladder",  # else names inside the file are random
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
}


def refuse_without_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("the picture needs matplotlib: pip install '.[plot]'")


def draw(results: Results, path: Path) -> None:
    """Each rung's TF/s at 8192 as a bar, cuBLAS as a line, a panel for each dtype."""
    import matplotlib
    from matplotlib.figure import Figure

    dtypes = results.dtypes()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6 * len(dtypes), 3.6), layout="constrained")
        panels = figure.subplots(1, len(dtypes), sharex=True, squeeze=False)[0]
        for dtype, panel in zip(dtypes, panels, strict=True):
            _panel(panel, results, dtype)
        figure.supxlabel(f"TF/s, matrices of {label(SHAPE)}×{label(SHAPE)} on {list(results)[-1]['gpu']}", fontsize=10)
        with files.atomic_write(str(path)) as beside:
            figure.savefig(beside, format="svg", metadata={"Date": None, "Creator": None})


def _panel(panel: Any, results: Results, dtype: str) -> None:
    names = [kernel.name for kernel in rungs() if dtype in kernel.dtypes]
    speeds = [line["teraflops"] if (line := results.of(name, dtype, SHAPE)) else None for name in names]
    panel.barh(names, [speed or 0 for speed in speeds], color=_BAR, height=0.7)
    yardstick = results.of(YARDSTICK, dtype, SHAPE)
    widest = max([yardstick["teraflops"] if yardstick else 0, *(speed or 0 for speed in speeds)])
    for place, speed in enumerate(speeds):
        inside = speed is not None and speed > widest / 4  # else the line of cuBLAS would cross it
        side = {"ha": "right", "color": "white"} if inside else {"ha": "left"}
        text, shift = "–" if speed is None else f"{speed:.1f}", (-4 if inside else 4, 0)
        panel.annotate(text, (speed or 0, place), shift, textcoords="offset points", va="center", **side)
    if yardstick:
        speed = yardstick["teraflops"]
        panel.axvline(speed, color=_LINE, linewidth=1.2, zorder=0)  # behind the bars that go past it
        top = (speed, 1), (0, 3), ("data", "axes fraction"), "offset points"
        panel.annotate(f"cuBLAS {speed:.1f}", *top, ha="center", color=_LINE)
    panel.invert_yaxis()  # the first rung above
    panel.margins(x=0.1)
    panel.set_title(dtype, loc="left", fontsize=10, fontweight="bold")
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
