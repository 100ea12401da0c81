# SPDX-License-Identifier: MIT
"""How all pictures are drawn: one style; the same lines and the same matplotlib make the same file."""

import importlib.util
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hybrid.core.installation import install, temporary_folder
from hybrid.errors import UsageError
from hybrid.host import files
from hybrid.reporting.svg import PALETTE

HERE, LECTURE, OTHER = (PALETTE[name][0] for name in ("first", "second", "third"))
GREY = "#999999"
TEXT, GRID = "#333333", "#e4e4e4"
FORMATS = (".png", ".svg")
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "experiments",  # else names inside the file are random
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
}


def refuse(path: str) -> None:
    """UsageError for what could not be written."""
    if Path(path).suffix not in FORMATS:
        raise UsageError(f"{path}: pictures are {' or '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"the picture needs matplotlib: {install('plot')}")


def give_matplotlib_a_folder() -> None:
    """Before it is imported: among the temporary files, where it could not write to its own and would complain in many lines."""
    usual = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "matplotlib"
    there = next(folder for folder in (usual, *usual.parents) if folder.exists())
    if "MPLCONFIGDIR" not in os.environ and not os.access(there, os.W_OK):
        os.environ["MPLCONFIGDIR"] = str(temporary_folder("matplotlib"))


@contextmanager
def figure(path: str, size: tuple[float, float], title: str = "", caption: str = "") -> Iterator[Any]:
    """A matplotlib figure, written to `path` at the end. `caption`: machine and date, below."""
    give_matplotlib_a_folder()
    import matplotlib
    from matplotlib.figure import Figure

    suffix = Path(path).suffix
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context(_STYLE):
        drawn = Figure(figsize=size, layout="constrained")
        if title:
            drawn.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        yield drawn
        if caption:
            drawn.supxlabel(caption, fontsize=8, x=0.01, ha="left")
        with files.atomic_write(path) as beside:
            drawn.savefig(beside, format=suffix[1:], metadata=metadata, dpi=120)


def plain(panel: Any, title: str = "") -> None:
    """A panel without a box, with a light grid."""
    panel.set_title(title, loc="left", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)


def bars(panel: Any, names: Sequence[str], values: Sequence[float], texts: Sequence[str], colors: Sequence[str]) -> None:
    """From top to bottom on a logarithmic axis, each value's text behind its bar."""
    panel.barh(range(len(names)), values, color=colors, height=0.65)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xscale("log")
    least, most = math.floor(math.log10(min(values)) - 0.2), math.ceil(math.log10(max(values)))
    panel.set_xlim(10**least, max(values) * 30)  # from a whole power of ten; right of the bars is room for their texts
    panel.set_xticks([10.0**power for power in range(least, most + 1, 1 + int(most - least > 4))])
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    panel.minorticks_off()
    for row, (value, text) in enumerate(zip(values, texts, strict=True)):
        panel.annotate(text, (value, row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="y", visible=False)
